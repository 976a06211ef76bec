//! Weight matrices on a device: rows of outputs, padded to whole 16-byte pieces.

use std::sync::Arc;

use super::{CudaError, Device, Memory, bytes};
use crate::matrix::{Format, max_abs, round_small};
use crate::simd::lanes::round_bf16;

/// A matrix in device memory.
#[derive(Clone)]
pub(crate) struct DeviceMatrix {
    parts: Arc<(Memory, Option<Memory>)>,
    /// Values from one output's weights to the next's.
    pub(crate) stride: usize,
}

/// Values per 16 bytes.
fn piece(format: Format) -> usize {
    match format {
        Format::F32 => 4,
        Format::Bf16 => 8,
        Format::Int8 | Format::Int4 => 16,
    }
}

impl DeviceMatrix {
    /// Stores a row-major `[n][k]` matrix; a failure is the device's.
    pub(crate) fn store(device: &Arc<Device>, format: Format, n: usize, k: usize, weights: &[f32]) -> Self {
        let stride = k.next_multiple_of(piece(format));
        let store = |data: &[u8], scales: Option<&[u8]>| {
            let data = device.store(data)?;
            let scales = scales.map(|s| device.store(s)).transpose()?;
            Ok::<_, CudaError>(Self { parts: Arc::new((data, scales)), stride })
        };
        let rows = || weights.chunks_exact(k.max(1)).enumerate();
        let stored = match format {
            Format::F32 => {
                let mut data = vec![0f32; n * stride];
                rows().for_each(|(i, row)| data[i * stride..][..k].copy_from_slice(row));
                store(bytes(&data), None)
            }
            Format::Bf16 => {
                let mut data = vec![0u8; n * stride * 2];
                for (i, row) in rows() {
                    let to = data[i * stride * 2..].chunks_exact_mut(2);
                    to.zip(row).for_each(|(to, &w)| to.copy_from_slice(&round_bf16(w).to_le_bytes()));
                }
                store(&data, None)
            }
            Format::Int8 => {
                // The library wants outputs by fours: zeros make them whole.
                let (mut data, mut scales) = (vec![0u8; n.next_multiple_of(4) * stride], vec![0f32; n]);
                for (i, row) in rows() {
                    let scale = max_abs(row) / 127.0;
                    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                    let to = &mut data[i * stride..];
                    to.iter_mut().zip(row).for_each(|(q, w)| *q = round_small(w * inverse) as i8 as u8);
                    scales[i] = scale;
                }
                store(&data, Some(bytes(&scales)))
            }
            Format::Int4 => Err(CudaError::Format("int4")),
        };
        stored.unwrap_or_else(|e| {
            device.fail(e);
            let nothing = Memory { device: device.clone(), at: 0, bytes: 0 };
            Self { parts: Arc::new((nothing, None)), stride }
        })
    }

    /// Where the weights are.
    pub(crate) fn at(&self) -> u64 {
        self.parts.0.at
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
            memory.device.check(memory.device.load(m.at, &mut data));
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
                    Format::Int8 | Format::Int4 => at[0] as i8 as f32 * scales[i / k],
                }
            })
            .collect()
    }
}
