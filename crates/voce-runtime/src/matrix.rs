//! Weight matrices, packed once at load into the layout that the kernels stream.
//!
//! A matrix of `n` outputs by `k` inputs becomes panels of 16 outputs: f32 `[k][16]`, bf16
//! `[k/2][16][2]`, int8 `[k/4][16][4]`, int4 `[k/8][16][4]` (low nibbles first). Inputs are padded with
//! zeros to 32 (bf16) or 64 (int8, int4), outputs to 16.

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
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 4] = [Format::F32, Format::Bf16, Format::Int8, Format::Int4];

    fn k_multiple(self) -> usize {
        match self {
            Format::F32 => 1,
            Format::Bf16 => 32,
            Format::Int8 | Format::Int4 => 64,
        }
    }

    /// Bits per weight, scales included.
    pub fn bits(self) -> f64 {
        match self {
            Format::F32 => 32.0,
            Format::Bf16 => 16.0,
            Format::Int8 => 8.0,
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
}

impl Matrix {
    /// Packs a row-major `[n][k]` matrix.
    pub fn pack(arena: &WeightArena, format: Format, n: usize, k: usize, weights: &[f32]) -> Matrix {
        assert_eq!(weights.len(), n * k, "matrix of {n} by {k}");
        let kp = k.next_multiple_of(format.k_multiple());
        let panels = n.div_ceil(LANES);
        let row = |i: usize| if i < n { Some(&weights[i * k..(i + 1) * k]) } else { None };
        let mut m = Matrix {
            n,
            k,
            kp,
            format,
            data: arena.store(0, |_| ()),
            scales: None,
            sums: AlignedVec::zeroed(0),
        };
        let bytes = panels * panel_bytes(format, kp);
        match format {
            Format::F32 => {
                m.data = arena.store(bytes, |out| {
                    scatter(panels, kp, row, |p, l, kk, w| {
                        put(out, ((p * kp + kk) * LANES + l) * 4, &w.to_le_bytes());
                    });
                });
            }
            Format::Bf16 => {
                m.data = arena.store(bytes, |out| {
                    scatter(panels, kp, row, |p, l, kk, w| {
                        let at = (p * kp + kk / 2 * 2) * LANES + 2 * l + kk % 2;
                        put(out, at * 2, &round_bf16(w).to_le_bytes());
                    });
                });
            }
            Format::Int8 => {
                let mut scales = vec![0f32; panels * LANES];
                m.sums = AlignedVec::zeroed(panels * LANES);
                for i in 0..n {
                    let max = weights[i * k..(i + 1) * k].iter().fold(0f32, |m, w| m.max(w.abs()));
                    scales[i] = max / 127.0;
                }
                let sums = &mut m.sums;
                m.data = arena.store(bytes, |out| {
                    scatter(panels, kp, row, |p, l, kk, w| {
                        let i = p * LANES + l;
                        let q = if scales[i] > 0.0 { (w / scales[i]).round_ties_even() as i32 } else { 0 };
                        sums[i] += 128 * q;
                        out[(p * kp + kk / 4 * 4) * LANES + 4 * l + kk % 4] = q as i8 as u8;
                    });
                });
                m.scales = Some(arena.store(scales.len() * 4, |out| {
                    for (o, s) in out.chunks_exact_mut(4).zip(&scales) {
                        o.copy_from_slice(&s.to_le_bytes());
                    }
                }));
            }
            Format::Int4 => {
                let groups = kp / GROUP;
                let mut scales = vec![0u16; panels * groups * LANES];
                m.data = arena.store(bytes, |out| {
                    let mut group = [0f32; GROUP];
                    for i in 0..n {
                        let (p, l) = (i / LANES, i % LANES);
                        for g in 0..groups {
                            let from = (g * GROUP).min(k);
                            let part = &weights[i * k + from..i * k + (from + GROUP).min(k)];
                            group.fill(0.0);
                            group[..part.len()].copy_from_slice(part);
                            let (scale, q) = quantize_group(&group);
                            scales[(p * groups + g) * LANES + l] = scale;
                            for (j, &q) in q.iter().enumerate() {
                                let kk = g * GROUP + j;
                                let at = (p * kp + kk / 8 * 8) * LANES / 2 + 4 * l + kk % 4;
                                out[at] |= if kk % 8 < 4 { q } else { q << 4 };
                            }
                        }
                    }
                });
                m.scales = Some(arena.store(scales.len() * 2, |out| {
                    for (o, s) in out.chunks_exact_mut(2).zip(&scales) {
                        o.copy_from_slice(&s.to_le_bytes());
                    }
                }));
            }
        }
        m
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
        self.data.bytes().len() + self.scales.as_ref().map_or(0, |s| s.bytes().len())
    }

    pub(crate) fn panel_bytes(&self) -> usize {
        panel_bytes(self.format, self.kp)
    }

    /// The weights as the kernels see them, row-major `[n][k]`: for references and tests.
    pub fn unpack(&self) -> Vec<f32> {
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

fn panel_bytes(format: Format, kp: usize) -> usize {
    LANES
        * match format {
            Format::F32 => kp * 4,
            Format::Bf16 => kp * 2,
            Format::Int8 => kp,
            Format::Int4 => kp / 2,
        }
}

/// Calls `put(panel, lane, k, weight)` for every weight, panel by panel.
fn scatter<'a>(
    panels: usize,
    kp: usize,
    row: impl Fn(usize) -> Option<&'a [f32]>,
    mut put: impl FnMut(usize, usize, usize, f32),
) {
    let _ = kp;
    for p in 0..panels {
        for l in 0..LANES {
            let Some(row) = row(p * LANES + l) else { break };
            for (kk, &w) in row.iter().enumerate() {
                put(p, l, kk, w);
            }
        }
    }
}

fn put<const N: usize>(out: &mut [u8], at: usize, bytes: &[u8; N]) {
    out[at..at + N].copy_from_slice(bytes);
}

fn get<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    data[at..at + N].try_into().expect("slice of N bytes")
}

fn bf16(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The bf16 scale and the nibbles (0..=15 for -8..=7) that lose least of a group.
///
/// The extreme value may sit at -8, so the scale is signed; a few scales around max / 8 are tried.
fn quantize_group(w: &[f32; GROUP]) -> (u16, [u8; GROUP]) {
    let extreme = w.iter().fold(0f32, |m, &x| if x.abs() > m.abs() { x } else { m });
    if extreme == 0.0 {
        return (0, [8; GROUP]);
    }
    let mut best = (f32::INFINITY, 0u16);
    for divisor in [-8.0f32, -7.75, -7.5, -7.2, -6.9, -8.4] {
        let scale = bf16(round_bf16(extreme / divisor));
        if scale == 0.0 {
            continue;
        }
        let inv = 1.0 / scale;
        let mut err = 0f32;
        for &x in w {
            let q = (x * inv).round_ties_even().clamp(-8.0, 7.0);
            err += (q * scale - x) * (q * scale - x);
        }
        if err < best.0 {
            best = (err, round_bf16(extreme / divisor));
        }
    }
    let scale = bf16(best.1);
    if scale == 0.0 {
        return (0, [8; GROUP]);
    }
    let q = w.map(|x| ((x / scale).round_ties_even().clamp(-8.0, 7.0) as i32 + 8) as u8);
    (best.1, q)
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
            let m = Matrix::pack(&arena, format, n, k, &w);
            let got = m.unpack();
            let worst = got.iter().zip(&w).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(worst <= bound, "{format:?}: {worst}");
        }
    }

    #[test]
    fn zero_weights_stay_zero() {
        let arena = WeightArena::new();
        for format in Format::ALL {
            let m = Matrix::pack(&arena, format, 3, 5, &[0.0; 15]);
            assert!(m.unpack().iter().all(|&w| w == 0.0), "{format:?}");
        }
    }
}
