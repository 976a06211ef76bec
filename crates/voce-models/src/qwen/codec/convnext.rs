//! The stages between transformer and blocks: each doubles the rate and mixes channels.

use voce_nn::{ConvIo, ConvTranspose1d, Formats, LayerNorm, Linear, Loader, WeightError};
use voce_runtime::{Activation, Buffer, ConvState, ConvStateSpec, DepthwiseOp, Exec, Gate, Span, Vector};

use super::config::KERNEL;

/// Of the norm after the depthwise convolution.
const EPS: f32 = 1e-6;
/// How much wider rows are between the two products.
const WIDER: usize = 4;

/// A transposed convolution, then `x + gamma * second(gelu(first(norm(depthwise(x)))))`.
pub(super) struct UpsampleStage {
    up: ConvTranspose1d,
    ratio: usize,
    /// `[taps][channels]`.
    kernel: Vector,
    bias: Option<Vector>,
    norm: LayerNorm,
    first: Linear,
    second: Linear,
    width: usize,
}

/// Histories and rows of an [`UpsampleStage`].
pub(super) struct UpsampleState {
    up: ConvState,
    depthwise: ConvState,
    /// The stage's output.
    pub(super) x: Buffer,
    mixed: Buffer,
    hidden: Buffer,
}

impl UpsampleStage {
    /// Loads `0.conv` and `1.{dwconv, norm, pwconv1, pwconv2, gamma}`.
    pub(super) fn load(l: &Loader, width: usize, ratio: usize, f: Formats) -> Result<Self, WeightError> {
        let up = ConvTranspose1d::load(&l.sub("0.conv"), width, width, ratio, ratio, f.conv)?;
        let l = l.sub(1);
        let values = l.tensor("dwconv.conv.weight", &[width, 1, KERNEL])?;
        let kernel = (0..KERNEL * width).map(|i| values[i % width * KERNEL + i / width]).collect();
        let gamma = l.tensor("gamma", &[width])?;
        let second =
            Linear::load_with(&l.sub("pwconv2"), "scaled weight", width, WIDER * width, f.linear, || {
                let mut values = l.tensor("pwconv2.weight", &[width, WIDER * width])?;
                for (row, g) in values.chunks_exact_mut(WIDER * width).zip(&gamma) {
                    row.iter_mut().for_each(|v| *v *= g);
                }
                Ok(values)
            })?;
        let bias = second.bias().map(|b| b.iter().zip(&gamma).map(|(b, g)| b * g).collect());
        Ok(Self {
            up,
            ratio,
            kernel,
            bias: l.optional("dwconv.conv.bias", &[width])?.map(Vector::from),
            norm: LayerNorm::load(&l.sub("norm"), width, EPS)?,
            first: Linear::load(&l.sub("pwconv1"), WIDER * width, width, f.linear)?,
            second: match bias {
                Some(bias) => second.with_bias(bias),
                None => second,
            },
            width,
        })
    }

    /// State for `slots` streams and calls of up to `rows` input rows.
    pub(super) fn state(&self, slots: usize, rows: usize) -> UpsampleState {
        let rows = rows * self.ratio;
        let past = ConvStateSpec { slots, history: KERNEL - 1, channels: self.width, replicate: false };
        UpsampleState {
            up: self.up.state(slots),
            depthwise: ConvState::new(past),
            x: Buffer::new(rows, self.width),
            mixed: Buffer::new(rows, self.width),
            hidden: Buffer::new(rows, WIDER * self.width),
        }
    }

    /// Runs over the spans' rows, whose numbers grow; `shown` sees the rows after the transposed convolution.
    pub(super) fn run(
        &self,
        exec: &mut Exec,
        x: &Buffer,
        spans: &mut [Span],
        state: &mut UpsampleState,
        shown: impl FnOnce(&mut Exec, &mut Buffer, usize),
    ) {
        let UpsampleState { up, depthwise, x: out, mixed, hidden } = state;
        self.up.run(exec, x, ConvIo { spans, pre: Activation::None, add: false }, up, out);
        spans.iter_mut().for_each(|s| s.rows *= self.ratio);
        let rows = spans.iter().map(|s| s.rows).sum();
        shown(exec, out, rows);
        let op = DepthwiseOp {
            x: out,
            spans,
            kernel: &self.kernel,
            bias: self.bias.as_ref(),
            ahead: 0,
            norm: Some(self.norm.row()),
            act: Activation::None,
        };
        let mut normed = self.first.rows_in(mixed);
        exec.depthwise(&op, depthwise, &mut normed);
        let mut op = self.first.op(&normed, rows);
        op.act = Activation::GeluErf;
        let mut wide = self.second.rows_in(hidden);
        exec.linear(&op, &mut wide);
        let mut op = self.second.op(&wide, rows);
        op.gate = Gate::Add;
        exec.linear(&op, out);
    }

    /// Output rows per input row.
    pub(super) fn ratio(&self) -> usize {
        self.ratio
    }

    /// Multiply-adds per input row.
    pub(super) fn macs(&self) -> usize {
        self.up.macs() + self.ratio * (self.first.macs() + self.second.macs() + KERNEL * self.width)
    }

    /// Bytes of weights that one pass reads.
    pub(super) fn bytes(&self) -> usize {
        self.up.bytes() + self.first.bytes() + self.second.bytes() + 4 * self.kernel.len()
    }
}

impl UpsampleState {
    /// Starts a slot anew.
    pub(super) fn reset(&mut self, slot: usize) {
        self.up.reset(slot);
        self.depthwise.reset(slot);
    }
}
