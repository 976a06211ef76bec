//! Weight matrices on a device: rows of outputs, padded to whole 16-byte pieces.

use std::sync::{Arc, OnceLock};

use super::fp8::SIXTEEN;
use super::{Cuda, CudaError, Device, Memory, bytes};
use crate::exec::Table;
use crate::fp8;
use crate::matrix::{Format, Matrix, max_abs, round_small};
use crate::simd::lanes::round_bf16;

/// A matrix in device memory.
#[derive(Clone)]
pub(crate) struct DeviceMatrix {
    parts: Arc<(Memory, Option<Memory>)>,
    /// The same weights as panels, once they were asked for.
    panels: Arc<OnceLock<(Panels, Memory)>>,
    /// Values from one output's weights to the next's.
    pub(crate) stride: usize,
}

/// Weights as products of warpgroups take them: `[outputs / part][k / 8][part][8]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panels {
    /// Outputs that lie together.
    pub part: usize,
    /// Of every 16 outputs those that a thread has, four neighbours, lie where its sums are.
    pub by_thread: bool,
}

impl Panels {
    /// The output at a place of its part.
    fn output(self, place: usize) -> usize {
        match self.by_thread {
            true => place / 16 * 16 + place % 8 / 2 * 4 + place / 8 % 2 * 2 + place % 2,
            false => place,
        }
    }
}

/// Values per 16 bytes.
fn piece(format: Format) -> usize {
    match format {
        Format::F32 => 4,
        Format::Bf16 => 8,
        Format::Int8 | Format::Int4 | Format::Fp8 => 16,
    }
}

/// Values below which rows are made on one thread.
const MADE_ALONE: usize = 1 << 20;

/// Makes each row of `data`, on several threads where there are many.
fn by_rows<T: Send>(data: &mut [T], row: usize, make: impl Fn(usize, &mut [T]) + Sync) {
    let row = row.max(1);
    let threads =
        if data.len() < MADE_ALONE { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    let share = (data.len() / row).div_ceil(threads).max(1);
    let part = |(i, part): (usize, &mut [T])| {
        part.chunks_exact_mut(row).enumerate().for_each(|(r, to)| make(i * share + r, to));
    };
    if threads == 1 {
        return data.chunks_mut(share * row).enumerate().for_each(part);
    }
    std::thread::scope(|scope| {
        for piece in data.chunks_mut(share * row).enumerate() {
            let part = &part;
            scope.spawn(move || part(piece));
        }
    });
}

impl DeviceMatrix {
    /// Stores a row-major `[n][k]` matrix.
    pub(crate) fn store(
        device: &Arc<Device>,
        format: Format,
        n: usize,
        k: usize,
        weights: &[f32],
    ) -> Result<Self, CudaError> {
        let stride = k.next_multiple_of(piece(format));
        let store = |data: &[u8], scales: Option<&[u8]>| {
            let data = device.store(data)?;
            let scales = scales.map(|s| device.store(s)).transpose()?;
            Ok::<_, CudaError>(Self { parts: Arc::new((data, scales)), panels: Arc::default(), stride })
        };
        let row = |i: usize| &weights[i * k..(i + 1) * k];
        match format {
            Format::F32 => {
                let mut data = vec![0f32; n * stride];
                by_rows(&mut data, stride, |i, to| to[..k].copy_from_slice(row(i)));
                store(bytes(&data), None)
            }
            Format::Bf16 => {
                let mut data = vec![0u16; n * stride];
                by_rows(&mut data, stride, |i, to| {
                    to.iter_mut().zip(row(i)).for_each(|(to, &w)| *to = round_bf16(w).to_le());
                });
                store(bytes(&data), None)
            }
            Format::Int8 => {
                // The library wants outputs by fours: zeros make them whole.
                let (mut data, mut scales) = (vec![0u8; n.next_multiple_of(4) * stride], vec![0f32; n]);
                by_rows(&mut scales, 1, |i, to| to[0] = max_abs(row(i)) / 127.0);
                by_rows(&mut data[..n * stride], stride, |i, to| {
                    let inverse = if scales[i] > 0.0 { 1.0 / scales[i] } else { 0.0 };
                    to.iter_mut().zip(row(i)).for_each(|(q, w)| *q = round_small(w * inverse) as i8 as u8);
                });
                store(&data, Some(bytes(&scales)))
            }
            Format::Fp8 if !device.info().has_fp8() => Err(CudaError::NoFp8(device.info().name.clone())),
            Format::Fp8 => {
                // So that nothing is tried in a step.
                device.scales_products();
                // As for int8, by sixteens.
                let outputs = n.next_multiple_of(SIXTEEN);
                let (mut data, mut scales) = (vec![0u8; outputs * stride], vec![0f32; outputs]);
                by_rows(&mut scales[..n], 1, |i, to| to[0] = fp8::scale(max_abs(row(i))).0);
                by_rows(&mut data[..n * stride], stride, |i, to| {
                    let (_, inverse) = fp8::scale(max_abs(row(i)));
                    to.iter_mut().zip(row(i)).for_each(|(q, w)| *q = fp8::encode(w * inverse));
                });
                store(&data, Some(bytes(&scales)))
            }
            Format::Int4 => Err(CudaError::Format("int4")),
        }
    }

    /// What stands for a matrix that found no memory: no op that reads it runs.
    pub(crate) fn nothing(device: &Arc<Device>, format: Format, k: usize) -> Self {
        let nothing = Memory { device: device.clone(), at: 0, bytes: 0 };
        let stride = k.next_multiple_of(piece(format));
        Self { parts: Arc::new((nothing, None)), panels: Arc::default(), stride }
    }

    /// Where the weights are.
    pub(crate) fn at(&self) -> u64 {
        self.parts.0.at
    }

    /// Where the bf16 weights of `n` outputs are as panels, which are made when they are first asked for.
    pub(super) fn panels(&self, n: usize, order: Panels) -> Result<u64, CudaError> {
        if let Some((made, memory)) = self.panels.get() {
            assert_eq!(*made, order, "a matrix has one order of panels");
            return Ok(memory.at);
        }
        let memory = &self.parts.0;
        let mut data = vec![0u8; 2 * n * self.stride];
        memory.device.load(memory.at, &mut data)?;
        let mut panels = Vec::with_capacity(data.len());
        for part in 0..n / order.part {
            for column in (0..self.stride).step_by(8) {
                for place in 0..order.part {
                    let output = part * order.part + order.output(place);
                    let at = 2 * (output * self.stride + column);
                    panels.extend_from_slice(&data[at..at + 16]);
                }
            }
        }
        let made = memory.device.store(&panels)?;
        Ok(self.panels.get_or_init(|| (order, made)).1.at)
    }

    /// Where the outputs' scales are, or 0.
    pub(crate) fn scales(&self) -> u64 {
        self.parts.1.as_ref().map_or(0, |s| s.at)
    }

    /// Bytes of weights and scales.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.0.bytes + self.parts.1.as_ref().map_or(0, |s| s.bytes)
    }

    /// The weights as the kernels see them, row-major `[n][k]`.
    pub(crate) fn unpack(&self, format: Format, n: usize, k: usize) -> Vec<f32> {
        let (memory, scales) = &*self.parts;
        let load = |m: &Memory, len: usize| {
            let mut data = vec![0u8; len];
            if memory.at != 0 && memory.device.load(m.at, &mut data).is_err() {
                data.fill(0);
            }
            data
        };
        let value = 16 / piece(format);
        let data = load(memory, n * self.stride * value);
        let float = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let scales: Vec<f32> =
            scales.as_ref().map_or(vec![], |s| load(s, n * 4).chunks_exact(4).map(float).collect());
        (0..n * k)
            .map(|i| {
                let at = &data[(i / k * self.stride + i % k) * value..];
                match format {
                    Format::F32 => float(at),
                    Format::Bf16 => f32::from_bits((u16::from_le_bytes([at[0], at[1]]) as u32) << 16),
                    Format::Fp8 => fp8::decode(at[0]) * scales[i / k],
                    Format::Int8 | Format::Int4 => at[0] as i8 as f32 * scales[i / k],
                }
            })
            .collect()
    }
}

impl Cuda {
    /// Weights of this device.
    pub(super) fn weights<'w>(&mut self, w: &'w Matrix) -> &'w DeviceMatrix {
        self.present(w.device.as_ref().expect("weights are on the device"))
    }

    /// Rows of a table of this device.
    pub(super) fn table_rows<'t>(&mut self, table: &'t Table) -> &'t DeviceMatrix {
        self.present(table.device())
    }

    /// Notes lack of memory where a matrix found none.
    fn present<'m>(&mut self, matrix: &'m DeviceMatrix) -> &'m DeviceMatrix {
        let memory = &matrix.parts.0;
        self.queue.own(memory);
        if memory.at == 0 {
            let free = self.device().memory().map_or(0, |(free, _)| free);
            self.queue.fail(CudaError::OutOfMemory { asked: 0, free });
        }
        matrix
    }

    /// What stands for a matrix that could not be stored, for a reason that is now this executor's error.
    pub(crate) fn lacks_matrix(&mut self, format: Format, k: usize, why: CudaError) -> DeviceMatrix {
        self.queue.fail(why);
        DeviceMatrix::nothing(self.device(), format, k)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_have_every_weight_once_where_a_thread_looks_for_it() {
        let device = Device::emulated().unwrap();
        let (n, k) = (32, 24);
        let value = |n: usize, k: usize| ((24 * n + k) % 251) as f32;
        let weights: Vec<f32> = (0..n * k).map(|i| value(i / k, i % k)).collect();
        for (part, by_thread) in [(32, false), (16, true)] {
            let matrix = DeviceMatrix::store(&device, Format::Bf16, n, k, &weights).unwrap();
            let at = matrix.panels(n, Panels { part, by_thread }).unwrap();
            assert_eq!(matrix.panels(n, Panels { part, by_thread }).unwrap(), at, "they are made once");
            let mut data = vec![0u8; 2 * n * k];
            device.load(at, &mut data).unwrap();
            let found = |i: usize| {
                f32::from_bits(u32::from(u16::from_le_bytes([data[2 * i], data[2 * i + 1]])) << 16)
            };
            for i in 0..n * k {
                let (inner, place) = (i % 8, i / 8 % part);
                let (column, own) = (i / (8 * part) % (k / 8), i / (k * part));
                // Sums of places 8 j + 2 t and 8 j + 2 t + 1 are those of a thread t, for all j.
                let output = match by_thread {
                    true => 4 * (place % 8 / 2) + 2 * (place / 8) + place % 2,
                    false => place,
                };
                assert_eq!(found(i), value(own * part + output, 8 * column + inner), "{part} {i}");
            }
        }
    }
}
