//! Weight matrices, packed once at load into the layout that the kernels stream.
//!
//! A matrix of `n` outputs by `k` inputs becomes panels of 16 outputs: f32 `[k][16]`, bf16
//! `[k/2][16][2]`, int8 `[k/4][16][4]`, int4 `[k/8][16][4]` (low nibbles first). Inputs are padded with
//! zeros to 32 (bf16) or 64 (int8, int4), outputs to 16.

use crate::cuda::{CudaError, DeviceMatrix};
use crate::memory::{AlignedVec, Stored, WeightArena};
use crate::simd::lanes::{LANES, round_bf16};
use crate::simd::quant::GROUP;

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// Int8 with one scale per output.
    Int8,
    /// Four bits with one bf16 scale per 32 inputs of each output.
    Int4,
    /// e4m3 with one scale per output; on devices alone.
    Fp8,
}

impl Format {
    /// Every format that CPUs have kernels for.
    pub const ON_CPU: [Format; 4] = [Format::F32, Format::Bf16, Format::Int8, Format::Int4];

    fn k_multiple(self) -> usize {
        match self {
            Format::F32 => 1,
            Format::Bf16 => 32,
            Format::Int8 | Format::Int4 | Format::Fp8 => 64,
        }
    }

    /// Bits per weight, scales included.
    pub fn bits(self) -> f64 {
        match self {
            Format::F32 => 32.0,
            Format::Bf16 => 16.0,
            Format::Int8 | Format::Fp8 => 8.0,
            Format::Int4 => 4.5,
        }
    }

    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::Bf16 => "bf16",
            Format::Int8 => "int8",
            Format::Int4 => "int4",
            Format::Fp8 => "fp8",
        }
    }
}

/// A packed weight matrix: `n` outputs by `k` inputs.
#[derive(Clone)]
pub struct Matrix {
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) kp: usize,
    pub(crate) format: Format,
    pub(crate) data: Stored,
    /// Int8: f32 scale per output; int4: bf16 scales per group.
    pub(crate) scales: Option<Stored>,
    /// Int8: 128 times the sum of each output's weights.
    pub(crate) sums: AlignedVec<i32>,
    /// The weights when they live on a device; the panels are then empty.
    pub(crate) device: Option<DeviceMatrix>,
}

impl Matrix {
    /// Packs a row-major `[n][k]` matrix; an error where a device has no memory for it or no kernels for the format.
    pub fn pack(
        arena: &WeightArena,
        format: Format,
        n: usize,
        k: usize,
        weights: &[f32],
    ) -> Result<Matrix, CudaError> {
        assert_eq!(weights.len(), n * k, "matrix of {n} by {k}");
        match arena.device() {
            Some(device) => {
                Ok(Self::on_device(format, n, k, DeviceMatrix::store(device, format, n, k, weights)?))
            }
            None => Ok(Self::on_host(arena, format, n, k, weights)),
        }
    }

    fn on_host(arena: &WeightArena, format: Format, n: usize, k: usize, weights: &[f32]) -> Matrix {
        assert!(format != Format::Fp8, "CPUs have no kernels for fp8: use int8");
        let kp = k.next_multiple_of(format.k_multiple());
        let panels = n.div_ceil(LANES);
        let panel = panel_bytes(format, kp);
        let mut sums = AlignedVec::zeroed(if format == Format::Int8 { panels * LANES } else { 0 });
        let mut scales: Vec<u8> = Vec::new();
        let groups = kp / GROUP;
        match format {
            Format::Int8 => scales.resize(panels * LANES * 4, 0),
            Format::Int4 => scales.resize(panels * groups * LANES * 2, 0),
            Format::F32 | Format::Bf16 | Format::Fp8 => {}
        }
        let mut bytes = vec![0i8; kp];
        let mut nibbles = vec![8u8; kp];
        let data = arena.store(panels * panel, |out| {
            for (i, row) in weights.chunks_exact(k).enumerate() {
                let (p, lane) = (i / LANES, i % LANES);
                let to = &mut out[p * panel..(p + 1) * panel];
                match format {
                    Format::F32 => scatter(to, lane, row.iter().map(|w| w.to_bits())),
                    Format::Bf16 => {
                        let pair = |w: &[f32]| {
                            let odd = w.get(1).map_or(0, |&w| round_bf16(w));
                            round_bf16(w[0]) as u32 | (odd as u32) << 16
                        };
                        scatter(to, lane, row.chunks(2).map(pair));
                    }
                    Format::Int8 => {
                        let scale = max_abs(row) / 127.0;
                        let inv = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                        let mut sum = 0i32;
                        for (q, &w) in bytes.iter_mut().zip(row) {
                            *q = round_small(w * inv) as i8;
                            sum += *q as i32;
                        }
                        sums[i] = 128 * sum;
                        scales[i * 4..i * 4 + 4].copy_from_slice(&scale.to_le_bytes());
                        scatter(
                            to,
                            lane,
                            bytes.chunks_exact(4).map(|q| {
                                u32::from_le_bytes([q[0] as u8, q[1] as u8, q[2] as u8, q[3] as u8])
                            }),
                        );
                    }
                    Format::Fp8 => {}
                    Format::Int4 => {
                        for (g, q) in nibbles.chunks_exact_mut(GROUP).enumerate() {
                            let from = (g * GROUP).min(k);
                            let part = &row[from..(from + GROUP).min(k)];
                            let mut group = [0f32; GROUP];
                            group[..part.len()].copy_from_slice(part);
                            let scale = quantize_group(&group, q);
                            let at = ((p * groups + g) * LANES + lane) * 2;
                            scales[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                        }
                        scatter(
                            to,
                            lane,
                            nibbles
                                .chunks_exact(8)
                                .map(|q| u32::from_le_bytes(std::array::from_fn(|j| q[j] | q[j + 4] << 4))),
                        );
                    }
                }
            }
        });
        let scales =
            (!scales.is_empty()).then(|| arena.store(scales.len(), |out| out.copy_from_slice(&scales)));
        Matrix { n, k, kp, format, data, scales, sums, device: None }
    }

    pub(crate) fn on_device(format: Format, n: usize, k: usize, device: DeviceMatrix) -> Matrix {
        let (data, sums) = (Stored::default(), AlignedVec::zeroed(0));
        Matrix { n, k, kp: device.stride, format, data, scales: None, sums, device: Some(device) }
    }

    /// Bytes of [`Matrix::write_packed`] for a shape.
    pub fn packed_bytes(format: Format, n: usize, k: usize) -> usize {
        packed_parts(format, n, k).iter().sum()
    }

    /// Writes the packed weights, to be read by [`Matrix::read_packed`].
    pub fn write_packed(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        out.write_all(self.data.bytes())?;
        out.write_all(self.scales.as_ref().map_or(&[][..], |s| s.bytes()))?;
        self.sums.iter().try_for_each(|s| out.write_all(&s.to_le_bytes()))
    }

    /// Reads what [`Matrix::write_packed`] wrote for a matrix of this shape: `read` fills each part in turn.
    pub fn read_packed<E>(
        arena: &WeightArena,
        format: Format,
        n: usize,
        k: usize,
        mut read: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<Matrix, E> {
        let [data, scales, sums] = packed_parts(format, n, k);
        let mut result = Ok(());
        let mut part = |len: usize| {
            arena.store(len, |out| {
                if result.is_ok() {
                    result = read(out);
                }
            })
        };
        let data = part(data);
        let scales = (scales > 0).then(|| part(scales));
        let bytes = (sums > 0).then(|| part(sums));
        result?;
        let mut sums = AlignedVec::zeroed(sums / 4);
        if let Some(bytes) = bytes {
            let (values, _) = bytes.bytes().as_chunks::<4>();
            sums.iter_mut().zip(values).for_each(|(s, b)| *s = i32::from_le_bytes(*b));
        }
        let kp = k.next_multiple_of(format.k_multiple());
        Ok(Matrix { n, k, kp, format, data, scales, sums, device: None })
    }

    /// Outputs.
    pub fn outputs(&self) -> usize {
        self.n
    }

    /// Inputs.
    pub fn inputs(&self) -> usize {
        self.k
    }

    /// Storage format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes that one pass over the weights reads.
    pub fn bytes(&self) -> usize {
        if let Some(device) = &self.device {
            return device.bytes();
        }
        self.data.bytes().len() + self.scales.as_ref().map_or(0, |s| s.bytes().len())
    }

    /// Panics where the weights are not: on a device, or with a CPU.
    pub(crate) fn expect_place(&self, on_device: bool) {
        assert_eq!(self.device.is_some(), on_device, "weights on a device: as the ops that read them");
    }

    pub(crate) fn panel_bytes(&self) -> usize {
        panel_bytes(self.format, self.kp)
    }

    /// The weights as the kernels see them, row-major `[n][k]`: for references and tests.
    pub fn unpack(&self) -> Vec<f32> {
        if let Some(device) = &self.device {
            return device.unpack(self.format, self.n, self.k);
        }
        let (kp, data) = (self.kp, self.data.bytes());
        let scales = self.scales.as_ref().map_or(&[][..], |s| s.bytes());
        let mut out = vec![0f32; self.n * self.k];
        for (i, row) in out.chunks_exact_mut(self.k).enumerate() {
            let (p, l) = (i / LANES, i % LANES);
            for (kk, w) in row.iter_mut().enumerate() {
                *w = match self.format {
                    Format::F32 => f32::from_le_bytes(get(data, ((p * kp + kk) * LANES + l) * 4)),
                    Format::Bf16 => {
                        let at = (p * kp + kk / 2 * 2) * LANES + 2 * l + kk % 2;
                        bf16(u16::from_le_bytes(get(data, at * 2)))
                    }
                    Format::Int8 => {
                        let q = data[(p * kp + kk / 4 * 4) * LANES + 4 * l + kk % 4] as i8;
                        q as f32 * f32::from_le_bytes(get(scales, i * 4))
                    }
                    Format::Fp8 => crate::fp8::decode(data[i]),
                    Format::Int4 => {
                        let byte = data[(p * kp + kk / 8 * 8) * LANES / 2 + 4 * l + kk % 4];
                        let q = if kk % 8 < 4 { byte & 15 } else { byte >> 4 } as i32 - 8;
                        let at = (p * (kp / GROUP) + kk / GROUP) * LANES + l;
                        q as f32 * bf16(u16::from_le_bytes(get(scales, at * 2)))
                    }
                };
            }
        }
        out
    }
}

/// Bytes of weights, scales and sums.
fn packed_parts(format: Format, n: usize, k: usize) -> [usize; 3] {
    let kp = k.next_multiple_of(format.k_multiple());
    let panels = n.div_ceil(LANES);
    let (scales, sums) = match format {
        Format::F32 | Format::Bf16 | Format::Fp8 => (0, 0),
        Format::Int8 => (panels * LANES * 4, panels * LANES * 4),
        Format::Int4 => (panels * (kp / GROUP) * LANES * 2, 0),
    };
    [panels * panel_bytes(format, kp), scales, sums]
}

fn panel_bytes(format: Format, kp: usize) -> usize {
    LANES
        * match format {
            Format::F32 => kp * 4,
            Format::Bf16 => kp * 2,
            Format::Int8 | Format::Fp8 => kp,
            Format::Int4 => kp / 2,
        }
}

/// Writes a row's 32-bit units to its lane of a panel.
fn scatter(panel: &mut [u8], lane: usize, units: impl Iterator<Item = u32>) {
    for (line, unit) in panel.chunks_exact_mut(4 * LANES).zip(units) {
        line[4 * lane..4 * lane + 4].copy_from_slice(&unit.to_le_bytes());
    }
}

/// Rounds to the nearest integer, ties to even, for magnitudes under 2^22.
pub(crate) fn round_small(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC) - MAGIC
}

pub(crate) fn max_abs(row: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (m, w) in lanes.iter_mut().zip(chunk) {
            *m = if w.abs() > *m { w.abs() } else { *m };
        }
    }
    rest.iter().chain(&lanes).fold(0f32, |m, w| m.max(w.abs()))
}

fn get<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    data[at..at + N].try_into().expect("slice of N bytes")
}

fn bf16(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Writes the nibbles (0..=15 for -8..=7) that lose least of a group and returns their bf16 scale.
///
/// The extreme value may sit at -8, so the scale is signed; a few scales around max / 8 are tried.
fn quantize_group(w: &[f32; GROUP], q: &mut [u8]) -> u16 {
    let extreme = w.iter().fold(0f32, |m, &x| if x.abs() > m.abs() { x } else { m });
    let mut best = (f32::INFINITY, 0u16);
    for divisor in [-8.0f32, -7.75, -7.5, -7.2, -6.9, -8.4] {
        let bits = round_bf16(extreme / divisor);
        let scale = bf16(bits);
        if scale == 0.0 {
            continue;
        }
        let inv = 1.0 / scale;
        let err: f32 = w
            .map(|x| {
                let d = round_small((x * inv).clamp(-8.0, 7.0)) * scale - x;
                d * d
            })
            .iter()
            .sum();
        if err < best.0 {
            best = (err, bits);
        }
    }
    let scale = bf16(best.1);
    let inv = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    for (q, x) in q.iter_mut().zip(w) {
        *q = (round_small((x * inv).clamp(-8.0, 7.0)) as i32 + 8) as u8;
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_the_weights_within_the_format() {
        let (n, k) = (37, 75);
        let w: Vec<f32> =
            (0..n * k).map(|i| ((i * 2_654_435_761usize) % 1000) as f32 / 500.0 - 1.0).collect();
        let arena = WeightArena::new();
        for (format, bound) in
            [(Format::F32, 0.0), (Format::Bf16, 0.004), (Format::Int8, 0.004), (Format::Int4, 0.13)]
        {
            let m = Matrix::pack(&arena, format, n, k, &w).unwrap();
            let got = m.unpack();
            let worst = got.iter().zip(&w).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(worst <= bound, "{format:?}: {worst}");
        }
    }

    #[test]
    fn packed_weights_can_be_written_and_read() {
        let (n, k) = (37, 75);
        let w: Vec<f32> = (0..n * k).map(|i| (i as f32 * 0.37).sin()).collect();
        let arena = WeightArena::new();
        for format in Format::ON_CPU {
            let m = Matrix::pack(&arena, format, n, k, &w).unwrap();
            let mut bytes = Vec::new();
            m.write_packed(&mut bytes).unwrap();
            assert_eq!(bytes.len(), Matrix::packed_bytes(format, n, k), "{format:?}");
            let mut from = &bytes[..];
            let read =
                Matrix::read_packed(&arena, format, n, k, |out| std::io::Read::read_exact(&mut from, out))
                    .unwrap();
            assert!(from.is_empty() && read.unpack() == m.unpack() && read.sums[..] == m.sums[..]);
            let mut short = &bytes[..bytes.len() - 1];
            assert!(
                Matrix::read_packed(&arena, format, n, k, |out| std::io::Read::read_exact(&mut short, out))
                    .is_err()
            );
        }
    }

    #[test]
    fn zero_weights_stay_zero() {
        let arena = WeightArena::new();
        for format in Format::ON_CPU {
            let m = Matrix::pack(&arena, format, 3, 5, &[0.0; 15]).unwrap();
            assert!(m.unpack().iter().all(|&w| w == 0.0), "{format:?}");
        }
    }
}
