//! LSTM layers over rows of state: each step reads some rows of a state buffer and writes the same or other rows.

use voce_runtime::{Buffer, Exec, Format, Gate, LstmCellOp, RowList};

use crate::{Linear, Loader, WeightError};

/// A stack of LSTM layers of one width.
pub struct Lstm {
    layers: Vec<Layer>,
    hidden: usize,
}

struct Layer {
    input: Linear,
    recurrent: Linear,
}

/// Buffers of a step, grown as rows need them and kept.
pub struct LstmScratch {
    x: Buffer,
    gates: Buffer,
}

impl Lstm {
    /// Loads torch's `weight_ih_lK [4 hidden, inputs]`, `weight_hh_lK` and, if present, their biases.
    pub fn load(
        l: &Loader,
        inputs: usize,
        hidden: usize,
        layers: usize,
        format: Format,
    ) -> Result<Self, WeightError> {
        let layer = |k: usize| {
            let inputs = if k == 0 { inputs } else { hidden };
            let part = |name: &str, inputs| {
                let values = l.tensor(&format!("weight_{name}_l{k}"), &[4 * hidden, inputs])?;
                Linear::from_values(l, format, 4 * hidden, inputs, &values)
            };
            let mut bias = vec![0f32; 4 * hidden];
            for name in ["bias_ih", "bias_hh"] {
                if let Some(b) = l.optional(&format!("{name}_l{k}"), &[4 * hidden])? {
                    bias.iter_mut().zip(&b).for_each(|(s, b)| *s += b);
                }
            }
            Ok(Layer { input: part("ih", inputs)?.with_bias(bias), recurrent: part("hh", hidden)? })
        };
        Ok(Self { layers: (0..layers).map(layer).collect::<Result<_, WeightError>>()?, hidden })
    }

    /// Columns of a row of state: output and cell of each layer.
    pub fn state_width(&self) -> usize {
        self.layers.len() * 2 * self.hidden
    }

    /// Where the last layer's output is in a row of state.
    pub fn output(&self) -> std::ops::Range<usize> {
        let at = self.layers.len().saturating_sub(1) * 2 * self.hidden;
        at..at + self.hidden
    }

    /// Buffers for steps of up to `rows` rows, and more when asked.
    pub fn scratch(&self, rows: usize) -> LstmScratch {
        LstmScratch { x: Buffer::new(rows, self.hidden), gates: Buffer::new(rows, 4 * self.hidden) }
    }

    /// Feeds row `r` of `x` to the state in row `from[r]`, and puts what becomes of it into row `to[r]`.
    /// No entry of `to` may be another row's `from`.
    pub fn step(
        &self,
        exec: &mut Exec,
        x: &Buffer,
        from: RowList<'_>,
        to: RowList<'_>,
        state: &mut Buffer,
        scratch: &mut LstmScratch,
    ) {
        let (rows, hidden) = (from.len(), self.hidden);
        if scratch.x.rows() < rows {
            *scratch = self.scratch(rows.next_power_of_two());
        }
        for (k, layer) in self.layers.iter().enumerate() {
            let column = 2 * k * hidden;
            if k == 0 {
                exec.linear(&layer.input.op(x, rows), &mut scratch.gates);
            } else {
                exec.gather_rows(state, to, column - 2 * hidden, &mut scratch.x);
                exec.linear(&layer.input.op(&scratch.x, rows), &mut scratch.gates);
            }
            exec.gather_rows(state, from, column, &mut scratch.x);
            let mut op = layer.recurrent.op(&scratch.x, rows);
            op.gate = Gate::Add;
            exec.linear(&op, &mut scratch.gates);
            exec.lstm_cell(&LstmCellOp { gates: &scratch.gates, column, from, to }, state);
        }
    }

    /// Bytes that one step reads.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|l| l.input.bytes() + l.recurrent.bytes()).sum()
    }

    /// Multiply-adds per row.
    pub fn macs(&self) -> usize {
        self.layers.iter().map(|l| l.input.macs() + l.recurrent.macs()).sum()
    }
}
