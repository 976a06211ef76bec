//! Embedding tables.

use half::bf16;
use voce_runtime::Format;

use crate::{Loader, WeightError};

/// A table of rows, looked up by token.
pub struct Embedding {
    table: Table,
    dim: usize,
}

enum Table {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

impl Embedding {
    /// Loads `weight [rows, dim]`, kept as f32 or bf16.
    pub fn load(l: &Loader, rows: usize, dim: usize, format: Format) -> Result<Self, WeightError> {
        let values = l.tensor("weight", &[rows, dim])?;
        let table = match format {
            Format::F32 => Table::F32(values),
            _ => Table::Bf16(values.iter().map(|&v| bf16::from_f32(v)).collect()),
        };
        Ok(Self { table, dim })
    }

    /// Rows in the table.
    pub fn rows(&self) -> usize {
        match &self.table {
            Table::F32(t) => t.len() / self.dim,
            Table::Bf16(t) => t.len() / self.dim,
        }
    }

    /// Copies a token's row to `out`.
    pub fn lookup(&self, token: usize, out: &mut [f32]) {
        let at = token * self.dim..(token + 1) * self.dim;
        match &self.table {
            Table::F32(t) => out.copy_from_slice(&t[at]),
            Table::Bf16(t) => out.iter_mut().zip(&t[at]).for_each(|(o, v)| *o = v.to_f32()),
        }
    }
}
