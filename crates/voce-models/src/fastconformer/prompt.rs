//! Language prompt: a one-hot of the language beside each row, and a two-layer network back to the width.

use voce_nn::{Formats, Linear, Loader, WeightError};
use voce_runtime::{Activation, Buffer, Exec, Gate, Norm};

use super::PromptConfig;

/// The prompt's weights.
pub(super) struct Prompt {
    /// The first layer's part over the row.
    first: Linear,
    /// Its part over the one-hot, bias added: a row per language slot.
    languages: Buffer,
    second: Linear,
}

impl Prompt {
    pub(super) fn load(l: &Loader, c: &PromptConfig, dim: usize, f: Formats) -> Result<Self, WeightError> {
        let first = l.sub("prompt_kernel").sub(0);
        let values = first.tensor("weight", &[c.hidden, dim + c.slots])?;
        let bias = first.optional("bias", &[c.hidden])?.unwrap_or_else(|| vec![0.0; c.hidden]);
        let rows: Vec<f32> =
            values.chunks_exact(dim + c.slots).flat_map(|row| row[..dim].iter().copied()).collect();
        let mut languages = Buffer::new(c.slots, c.hidden).shared();
        for slot in 0..c.slots {
            let column = values.iter().skip(dim + slot).step_by(dim + c.slots);
            let to = languages.row_mut(slot).iter_mut();
            to.zip(column.zip(&bias)).for_each(|(to, (w, b))| *to = w + b);
        }
        Ok(Self {
            first: Linear::from_values(&first, f.linear, c.hidden, dim, &rows)?,
            languages,
            second: Linear::load(&l.sub("prompt_kernel").sub(2), dim, c.hidden, f.linear)?,
        })
    }

    /// Languages it has slots for.
    pub(super) fn slots(&self) -> usize {
        self.languages.rows()
    }

    /// Runs over `rows` rows in place; `languages` gives the slot of each.
    pub(super) fn run(
        &self,
        exec: &mut Exec,
        rows: usize,
        languages: &[usize],
        x: &mut Buffer,
        hidden: &mut Buffer,
    ) {
        hidden.shape(rows, self.first.matrix().outputs());
        exec.gather_rows(&self.languages, languages, 0, hidden);
        let mut op = self.first.op(&*x, rows);
        op.gate = Gate::Add;
        exec.linear(&op, hidden);
        let mut op = self.second.op(&*hidden, rows);
        op.norm = Norm::Activation(Activation::Relu);
        exec.linear(&op, x);
    }
}
