//! Text tokens whose embedding goes through two layers before it joins the others.

use voce_nn::{Formats, Linear, Loader, WeightError};
use voce_runtime::{Activation, Buffer, EmbedOp, EmbedPart, EveryRow, Exec, Gate, Table, Tokens};

/// Rows of a table that are projected at once.
const FOLDED: usize = 1024;

/// Widths of [`TextLayers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextShape {
    /// Tokens.
    pub vocab: usize,
    /// Width of the embedding.
    pub width: usize,
    /// Width of what it joins.
    pub hidden: usize,
}

/// An embedding and the two layers after it, with an activation between them.
pub struct TextLayers {
    table: Table,
    fc1: Linear,
    fc2: Linear,
}

/// Buffers of [`TextLayers`].
pub(super) struct TextState {
    embedded: Buffer,
    between: Buffer,
}

impl TextLayers {
    /// Loads `model.text_embedding` and `text_projection.linear_fc1|2`.
    pub fn load(l: &Loader, shape: TextShape, formats: Formats) -> Result<Self, WeightError> {
        let TextShape { vocab, width, hidden } = shape;
        let projection = l.sub("text_projection");
        Ok(Self {
            table: l.sub("model.text_embedding").table("weight", vocab, width, formats.embedding)?,
            fc1: Linear::load(&projection.sub("linear_fc1"), width, width, formats.linear)?,
            fc2: Linear::load(&projection.sub("linear_fc2"), hidden, width, formats.linear)?,
        })
    }

    /// A table of what every token gives: no layer is left to run. It pays where a device makes it in an instant.
    pub fn fold(&self, exec: &mut Exec, l: &Loader, formats: Formats) -> Result<Table, WeightError> {
        let (vocab, hidden) = (self.table.rows(), self.fc2.matrix().outputs());
        let mut state = self.state(FOLDED);
        let mut tokens = Tokens::new(FOLDED, 1, u32::MAX);
        let mut out = Buffer::new(FOLDED, hidden);
        let mut values = Vec::with_capacity(vocab * hidden);
        for first in (0..vocab).step_by(FOLDED) {
            let rows = FOLDED.min(vocab - first);
            let slots: Vec<usize> = (0..rows).collect();
            let named: Vec<u32> = (first..first + rows).map(|token| token as u32).collect();
            exec.set_tokens(&mut tokens, &slots, 0, &named);
            self.run(exec, &mut state, &tokens, 0, &slots, Gate::Set, &mut out);
            exec.fetch(&mut out, rows);
            values.extend_from_slice(out.head(rows));
        }
        l.table_of(&values, vocab, hidden, formats.embedding)
    }

    /// Bytes that a row's lookup and one pass of the layers read.
    pub(super) fn bytes(&self) -> usize {
        self.table.row_bytes() + self.fc1.bytes() + self.fc2.bytes()
    }

    pub(super) fn macs(&self) -> usize {
        self.fc1.macs() + self.fc2.macs()
    }

    pub(super) fn state(&self, rows: usize) -> TextState {
        let width = self.table.dim();
        TextState { embedded: Buffer::new(rows, width), between: Buffer::new(rows, width) }
    }

    /// What `slots`' tokens of a column give, to the first rows of `out`.
    #[expect(clippy::too_many_arguments, reason = "an op with its state, its tokens and its output")]
    pub(super) fn run(
        &self,
        exec: &mut Exec,
        state: &mut TextState,
        tokens: &Tokens,
        column: usize,
        slots: &[usize],
        gate: Gate<'_>,
        out: &mut Buffer,
    ) {
        let parts = [EmbedPart { table: &self.table, column }];
        let place = EveryRow::default();
        exec.embed(&EmbedOp { parts: &parts, tokens, slots, place }, &mut state.embedded);
        let mut op = self.fc1.op(&state.embedded, slots.len());
        op.act = Activation::Silu;
        exec.linear(&op, &mut state.between);
        let mut op = self.fc2.op(&state.between, slots.len());
        op.gate = gate;
        exec.linear(&op, out);
    }
}
