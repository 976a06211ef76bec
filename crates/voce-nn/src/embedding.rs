//! Embedding tables.

use std::sync::OnceLock;

use half::bf16;
use voce_runtime::{Buffer, Exec, Format, RowList};

use crate::{Loader, WeightError};

/// A table of rows, looked up by token.
pub struct Embedding {
    table: Table,
    dim: usize,
    /// The rows and one of zeros, where the host does not write them.
    spread: OnceLock<Buffer>,
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
        Ok(Self { table, dim, spread: OnceLock::new() })
    }

    /// Rows in the table.
    pub fn rows(&self) -> usize {
        match &self.table {
            Table::F32(t) => t.len() / self.dim,
            Table::Bf16(t) => t.len() / self.dim,
        }
    }

    /// Puts each token's row into the first rows of `out`; a token that the table lacks gets zeros.
    pub fn embed(&self, exec: &mut Exec, tokens: &[usize], out: &mut Buffer) {
        let rows = self.rows();
        if !exec.shares_memory() {
            let spread = self.spread();
            let known: Vec<usize> = tokens.iter().map(|&t| t.min(rows)).collect();
            return exec.gather_rows(spread, &known, 0, out);
        }
        for (r, &token) in tokens.iter().enumerate() {
            let to = out.row_mut(r);
            if token < rows { self.lookup(token, to) } else { to.fill(0.0) }
        }
    }

    /// As [`Embedding::embed`], of tokens that an op on a device has written; the table has all of them.
    pub fn embed_found(&self, exec: &mut Exec, tokens: RowList<'_>, out: &mut Buffer) {
        exec.gather_rows(self.spread(), tokens, 0, out);
    }

    fn spread(&self) -> &Buffer {
        self.spread.get_or_init(|| {
            let rows = self.rows();
            let mut spread = Buffer::new(rows + 1, self.dim).shared();
            (0..rows).for_each(|r| self.lookup(r, spread.row_mut(r)));
            spread
        })
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
