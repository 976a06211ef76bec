//! A block of the decoder: a periodic activation, a transposed convolution, three dilated residual units.

use voce_nn::{Conv1d, Conv1dConfig, ConvIo, ConvTranspose1d, Formats, Linear, Loader, Padding, WeightError};
use voce_runtime::{Activation, Buffer, ConvState, Exec, Gate, Snake, Span, Vector};

use super::config::{DILATIONS, KERNEL};

/// What the published activation adds before it divides.
const NO_DIVISION_BY_ZERO: f32 = 1e-9;

/// The activation `x + sin(e^alpha x)^2 / (e^beta + 1e-9)`, with its parameters as the op takes them.
pub(super) struct SnakeBeta {
    rate: Vector,
    gain: Vector,
}

impl SnakeBeta {
    /// Loads `alpha` and `beta`.
    pub(super) fn load(l: &Loader, channels: usize) -> Result<Self, WeightError> {
        let rate = l.tensor("alpha", &[channels])?.iter().map(|a| a.exp()).collect();
        let gain = |b: &f32| 1.0 / (b.exp() + NO_DIVISION_BY_ZERO);
        Ok(Self { rate, gain: l.tensor("beta", &[channels])?.iter().map(gain).collect() })
    }

    /// As an op takes it.
    pub(super) fn op(&self) -> Snake<'_> {
        Snake { rate: &self.rate, gain: &self.gain }
    }
}

/// A convolution of the decoder, which sees the past alone.
pub(super) fn causal(inputs: usize, outputs: usize, kernel: usize, dilation: usize) -> Conv1dConfig {
    Conv1dConfig { inputs, outputs, kernel, stride: 1, dilation, padding: Padding::Zeros }
}

/// `x + second(snake(first(snake(x))))`.
struct Unit {
    before: SnakeBeta,
    first: Conv1d,
    between: SnakeBeta,
    second: Linear,
}

/// A block: `ratio` output rows per input row, of half as many channels.
pub(super) struct Block {
    before: SnakeBeta,
    up: ConvTranspose1d,
    ratio: usize,
    units: Vec<Unit>,
}

/// Histories and rows of a [`Block`].
pub(super) struct BlockState {
    up: ConvState,
    units: Vec<ConvState>,
    /// The block's output.
    pub(super) x: Buffer,
    active: Buffer,
    hidden: Buffer,
}

/// Who looks at the parts of a block: the part's number, and its rows.
pub(super) type Shown<'a> = &'a mut dyn FnMut(&mut Exec, usize, &mut Buffer, usize);

impl Block {
    /// Loads `block.{0..4}`.
    pub(super) fn load(l: &Loader, inputs: usize, ratio: usize, f: Formats) -> Result<Self, WeightError> {
        let (l, width) = (l.sub("block"), inputs / 2);
        let units = DILATIONS.iter().enumerate().map(|(i, &dilation)| {
            let l = l.sub(2 + i);
            let pointwise = l.sub("conv2.conv");
            Ok(Unit {
                before: SnakeBeta::load(&l.sub("act1"), width)?,
                first: Conv1d::load(&l.sub("conv1.conv"), causal(width, width, KERNEL, dilation), f.conv)?,
                between: SnakeBeta::load(&l.sub("act2"), width)?,
                second: Linear::load_with(&pointwise, "weight", width, width, f.conv, || {
                    pointwise.tensor("weight", &[width, width, 1])
                })?,
            })
        });
        Ok(Self {
            before: SnakeBeta::load(&l.sub(0), inputs)?,
            up: ConvTranspose1d::load(&l.sub("1.conv"), inputs, width, 2 * ratio, ratio, f.conv)?,
            ratio,
            units: units.collect::<Result<_, WeightError>>()?,
        })
    }

    /// State for `slots` streams and calls of up to `rows` input rows.
    pub(super) fn state(&self, slots: usize, rows: usize) -> BlockState {
        let (rows, width) = (rows * self.ratio, self.up.outputs());
        BlockState {
            up: self.up.state(slots),
            units: self.units.iter().map(|u| u.first.state(slots)).collect(),
            x: Buffer::new(rows, width),
            active: Buffer::new(rows, width),
            hidden: Buffer::new(rows, width),
        }
    }

    /// Runs over the spans' rows of `x`, which it may activate in place; the spans' rows grow.
    pub(super) fn run(
        &self,
        exec: &mut Exec,
        x: &mut Buffer,
        spans: &mut [Span],
        state: &mut BlockState,
        mut shown: Option<Shown<'_>>,
    ) {
        let mut show = |exec: &mut Exec, part: usize, rows: &mut Buffer, count: usize| {
            if let Some(shown) = &mut shown {
                shown(exec, part, rows, count);
            }
        };
        let mut rows = spans.iter().map(|s| s.rows).sum();
        let BlockState { up, units, x: out, active, hidden } = state;
        if !self.up.run_snaked(exec, self.before.op(), x, spans, up, out) {
            exec.snake_in_place(self.before.op(), x, rows);
            show(exec, 0, x, rows);
            self.up.run(exec, x, ConvIo { spans, pre: Activation::None, add: false }, up, out);
        }
        spans.iter_mut().for_each(|s| s.rows *= self.ratio);
        rows *= self.ratio;
        show(exec, 1, out, rows);
        for (i, (unit, past)) in self.units.iter().zip(units).enumerate() {
            // Rows that others still look back at are not written: the result goes to rows that are free.
            let snakes = [unit.before.op(), unit.between.op()];
            if unit.first.residual_snaked(exec, snakes, &unit.second, (&*out, spans), past, hidden) {
                std::mem::swap(out, hidden);
                // After three of them every buffer is where it was, so that steps are alike.
                std::mem::swap(hidden, active);
                show(exec, 2 + i, out, rows);
                continue;
            }
            if !unit.first.run_snaked(exec, unit.before.op(), out, spans, past, hidden) {
                exec.snake(unit.before.op(), out, rows, active);
                let io = ConvIo { spans, pre: Activation::None, add: false };
                unit.first.run(exec, active, io, past, hidden);
            }
            let mut between = unit.second.rows_in(active);
            exec.snake(unit.between.op(), hidden, rows, &mut between);
            let mut op = unit.second.op(&between, rows);
            op.gate = Gate::Add;
            exec.linear(&op, out);
            show(exec, 2 + i, out, rows);
        }
    }

    /// Output rows per input row.
    pub(super) fn ratio(&self) -> usize {
        self.ratio
    }

    /// Output rows that its units look back, all together.
    pub(super) fn past(&self) -> usize {
        self.units.iter().map(|u| (u.first.config().kernel - 1) * u.first.config().dilation).sum()
    }

    /// Multiply-adds per input row.
    pub(super) fn macs(&self) -> usize {
        let units: usize = self.units.iter().map(|u| u.first.macs() + u.second.macs()).sum();
        self.up.macs() + self.ratio * units
    }

    /// Bytes of weights that one pass reads.
    pub(super) fn bytes(&self) -> usize {
        self.up.bytes() + self.units.iter().map(|u| u.first.bytes() + u.second.bytes()).sum::<usize>()
    }
}

impl BlockState {
    /// Takes over the rows of a larger state; the histories stay.
    pub(super) fn take_room(&mut self, larger: BlockState) {
        (self.x, self.active, self.hidden) = (larger.x, larger.active, larger.hidden);
    }

    /// Starts a slot anew.
    pub(super) fn reset(&mut self, slot: usize) {
        self.up.reset(slot);
        self.units.iter_mut().for_each(|s| s.reset(slot));
    }
}
