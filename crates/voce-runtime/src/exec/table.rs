//! Embedding tables and their lookup by tokens, several tables summed.

use super::{Buffer, Exec, Tokens};
use crate::cuda::{CudaError, DeviceMatrix};
use crate::matrix::Format;
use crate::memory::WeightArena;
use crate::simd::lanes::round_bf16;

/// Rows looked up by token.
pub struct Table {
    rows: usize,
    dim: usize,
    data: Data,
}

enum Data {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
    Device(DeviceMatrix, Format),
}

impl Table {
    /// A table of row-major `[rows][dim]` values, kept as f32 or, for every other format, as bf16.
    pub fn new(
        arena: &WeightArena,
        format: Format,
        rows: usize,
        dim: usize,
        values: &[f32],
    ) -> Result<Self, CudaError> {
        assert_eq!(values.len(), rows * dim, "table of {rows} by {dim}");
        let format = if format == Format::F32 { format } else { Format::Bf16 };
        let data = match (arena.device(), format) {
            (Some(device), _) => {
                Data::Device(DeviceMatrix::store(device, format, rows, dim, values)?, format)
            }
            (None, Format::F32) => Data::F32(values.to_vec()),
            (None, _) => Data::Bf16(values.iter().map(|&v| round_bf16(v)).collect()),
        };
        Ok(Self { rows, dim, data })
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes that the lookup of one row reads.
    pub fn row_bytes(&self) -> usize {
        self.dim * if self.is_bf16() { 2 } else { 4 }
    }

    pub(crate) fn is_bf16(&self) -> bool {
        matches!(self.data, Data::Bf16(_) | Data::Device(_, Format::Bf16))
    }

    /// Its rows on a device.
    pub(crate) fn device(&self) -> &DeviceMatrix {
        match &self.data {
            Data::Device(matrix, _) => matrix,
            _ => panic!("the table is not on the device"),
        }
    }

    /// Adds a token's row, that many times, to `to`; a token that the table lacks adds nothing.
    pub(super) fn add_row(&self, token: u32, times: f32, to: &mut [f32]) {
        let token = token as usize;
        if token >= self.rows {
            return;
        }
        let at = token * self.dim..(token + 1) * self.dim;
        match &self.data {
            Data::F32(t) => to.iter_mut().zip(&t[at]).for_each(|(o, v)| *o += times * v),
            Data::Bf16(t) => {
                to.iter_mut()
                    .zip(&t[at])
                    .for_each(|(o, &v)| *o += times * f32::from_bits(u32::from(v) << 16));
            }
            Data::Device(..) => panic!("a table on a device is used by that device's executor"),
        }
    }
}

/// Which rows of a buffer an op writes: `first`, then every `step`th.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EveryRow {
    /// The first.
    pub first: usize,
    /// From one to the next.
    pub step: usize,
}

impl Default for EveryRow {
    fn default() -> Self {
        Self { first: 0, step: 1 }
    }
}

impl EveryRow {
    /// The buffer's row of an op's row `r`.
    pub(crate) fn at(self, r: usize) -> usize {
        self.first + r * self.step
    }

    /// Whether the rows of an op lie in the buffer.
    pub(super) fn fits(self, rows: usize, out: &Buffer) -> bool {
        self.step > 0 && (rows == 0 || self.at(rows - 1) < out.rows())
    }
}

/// A table, and which of a slot's tokens says which of its rows.
#[derive(Clone, Copy)]
pub struct EmbedPart<'a> {
    /// The table.
    pub table: &'a Table,
    /// The token's column.
    pub column: usize,
}

/// Sums of the rows that slots' tokens name, in the order of the parts.
pub struct EmbedOp<'a> {
    /// What is looked up.
    pub parts: &'a [EmbedPart<'a>],
    /// The tokens.
    pub tokens: &'a Tokens,
    /// Whose tokens: one row each.
    pub slots: &'a [usize],
    /// Which rows of the output they become.
    pub place: EveryRow,
}

impl Exec {
    /// Puts each slot's sum of embeddings into its row of `out`; a token that a table lacks counts as zeros.
    pub fn embed(&mut self, op: &EmbedOp<'_>, out: &mut Buffer) {
        let dim = out.cols();
        assert!(op.parts.iter().all(|p| p.table.dim == dim && p.column < op.tokens.cols), "parts fit");
        assert!(op.slots.iter().all(|&s| s < op.tokens.slots), "slots have tokens");
        assert!(op.place.fits(op.slots.len(), out), "rows fit");
        if let Some(cuda) = &mut self.cuda {
            return cuda.embed(op, out);
        }
        for (r, &slot) in op.slots.iter().enumerate() {
            let to = out.row_mut(op.place.at(r));
            to.fill(0.0);
            for part in op.parts {
                part.table.add_row(op.tokens.row(slot)[part.column], 1.0, to);
            }
        }
    }
}
