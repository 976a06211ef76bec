//! Streaming convolutions with torch's weight layouts.

use voce_runtime::{
    Activation, Buffer, ConvOp, ConvState, ConvStateSpec, Exec, Format, Matrix, ResidualOp, Snake, Span,
    UpsampleOp, Vector,
};

use crate::{Linear, Loader, WeightError};

/// What stands before the first row of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Zeros.
    Zeros,
    /// The first row.
    Replicate,
}

/// Shape of a [`Conv1d`].
#[derive(Clone, Copy, Debug)]
pub struct Conv1dConfig {
    /// Input channels.
    pub inputs: usize,
    /// Output channels.
    pub outputs: usize,
    /// Kernel size.
    pub kernel: usize,
    /// Input rows per output row.
    pub stride: usize,
    /// Distance between taps.
    pub dilation: usize,
    /// What stands before the stream.
    pub padding: Padding,
}

/// How convolutions are stored: in int8 where they are wide enough to gain by it, else in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvFormat {
    /// The format.
    pub format: Format,
    /// Outputs from which on int8 is worth quantising the input.
    pub outputs: usize,
}

/// Outputs and inputs that int8 kernels pad to.
const INT8_SHAPE: (usize, usize) = (16, 64);

impl From<Format> for ConvFormat {
    fn from(format: Format) -> Self {
        Self { format, outputs: INT8_SHAPE.0 }
    }
}

impl ConvFormat {
    /// That of a convolution of this shape: the ones that begin or end in samples are too narrow to gain by int8, and
    /// what they would lose is heard.
    fn of(self, outputs: usize, inputs: usize) -> Format {
        let narrow = outputs < self.outputs || inputs < INT8_SHAPE.1;
        if self.format == Format::Int8 && narrow { Format::F32 } else { self.format }
    }
}

/// A causal convolution.
pub struct Conv1d {
    w: Matrix,
    bias: Option<Vector>,
    config: Conv1dConfig,
}

impl Conv1d {
    /// Loads torch's `weight [outputs, inputs, kernel]` and, if present, `bias`.
    pub fn load(l: &Loader, c: Conv1dConfig, format: impl Into<ConvFormat>) -> Result<Self, WeightError> {
        let rows = || {
            let values = l.tensor("weight", &[c.outputs, c.inputs, c.kernel])?;
            let mut rows = vec![0f32; values.len()];
            for o in 0..c.outputs {
                for i in 0..c.inputs {
                    for k in 0..c.kernel {
                        rows[(o * c.kernel + k) * c.inputs + i] = values[(o * c.inputs + i) * c.kernel + k];
                    }
                }
            }
            Ok(rows)
        };
        let format = format.into().of(c.outputs, c.kernel * c.inputs);
        let w = l.packed("weight", format, c.outputs, c.kernel * c.inputs, rows)?;
        Ok(Self { w, bias: l.optional("bias", &[c.outputs])?.map(Vector::from), config: c })
    }

    /// State for `slots` streams.
    pub fn state(&self, slots: usize) -> ConvState {
        let c = &self.config;
        ConvState::new(ConvStateSpec {
            slots,
            history: ConvOp::history(c.kernel, c.stride, c.dilation),
            channels: c.inputs,
            replicate: c.padding == Padding::Replicate,
        })
    }

    /// Runs over the spans' rows after `pre`; `add` adds to `out` instead of setting it.
    pub fn run(&self, exec: &mut Exec, x: &Buffer, io: ConvIo<'_>, state: &mut ConvState, out: &mut Buffer) {
        exec.conv(&self.op(x, io), state, out);
    }

    /// Runs over `snake` of the spans' rows in one pass, if the executor can; otherwise nothing happens.
    pub fn run_snaked(
        &self,
        exec: &mut Exec,
        snake: Snake<'_>,
        x: &Buffer,
        spans: &[Span],
        state: &mut ConvState,
        out: &mut Buffer,
    ) -> bool {
        let io = ConvIo { spans, pre: Activation::None, add: false };
        exec.conv_snaked(&self.op(x, io), snake, state, out)
    }

    fn op<'a>(&'a self, x: &'a Buffer, io: ConvIo<'a>) -> ConvOp<'a> {
        let c = &self.config;
        ConvOp {
            x,
            spans: io.spans,
            pre: io.pre,
            w: &self.w,
            bias: self.bias.as_ref(),
            taps: c.kernel,
            stride: c.stride,
            dilation: c.dilation,
            act: Activation::None,
            add: io.add,
        }
    }

    /// `x + second(pre(self(pre(x))))` in one pass, if the executor can; otherwise nothing happens. `state` is this
    /// convolution's.
    pub fn residual(
        &self,
        second: &Conv1d,
        exec: &mut Exec,
        x: &Buffer,
        io: ConvIo<'_>,
        state: &mut ConvState,
        out: &mut Buffer,
    ) -> bool {
        let (a, b) = (&self.config, &second.config);
        if (a.stride, b.stride, b.kernel) != (1, 1, 1) {
            return false;
        }
        let op = ResidualOp {
            x,
            spans: io.spans,
            pre: io.pre,
            snakes: None,
            first: &self.w,
            first_bias: self.bias.as_ref(),
            taps: a.kernel,
            dilation: a.dilation,
            second: &second.w,
            second_bias: second.bias.as_ref(),
        };
        exec.residual(&op, state, out)
    }

    /// `x + second(snake(self(snake(x))))` in one pass, with a periodic activation before each, if the executor can;
    /// otherwise nothing happens. `state` is this convolution's.
    pub fn residual_snaked(
        &self,
        exec: &mut Exec,
        snakes: [Snake<'_>; 2],
        second: &Linear,
        (x, spans): (&Buffer, &[Span]),
        state: &mut ConvState,
        out: &mut Buffer,
    ) -> bool {
        let op = ResidualOp {
            x,
            spans,
            pre: Activation::None,
            snakes: Some(snakes),
            first: &self.w,
            first_bias: self.bias.as_ref(),
            taps: self.config.kernel,
            dilation: self.config.dilation,
            second: second.matrix(),
            second_bias: second.bias.as_ref(),
        };
        self.config.stride == 1 && exec.residual(&op, state, out)
    }

    /// Its shape.
    pub fn config(&self) -> &Conv1dConfig {
        &self.config
    }

    /// Bytes that one pass reads.
    pub fn bytes(&self) -> usize {
        self.w.bytes()
    }

    /// Multiply-adds per output row.
    pub fn macs(&self) -> usize {
        self.w.inputs() * self.w.outputs()
    }
}

/// What a convolution runs over.
#[derive(Clone, Copy)]
pub struct ConvIo<'a> {
    /// Whose rows.
    pub spans: &'a [Span],
    /// Applied to the input.
    pub pre: Activation,
    /// Add to the output.
    pub add: bool,
}

/// A causal transposed convolution: `stride` output rows per input row.
pub struct ConvTranspose1d {
    w: Matrix,
    /// The bias, once per output row of a step.
    bias: Option<Vector>,
    inputs: usize,
    outputs: usize,
    taps: usize,
}

impl ConvTranspose1d {
    /// Loads torch's `weight [inputs, outputs, kernel]` and, if present, `bias`.
    pub fn load(
        l: &Loader,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
        format: impl Into<ConvFormat>,
    ) -> Result<Self, WeightError> {
        // Output row j of a step is the sum over past input rows of kernel columns j, j + stride, ...
        let taps = kernel.div_ceil(stride);
        let rows = || {
            let values = l.tensor("weight", &[inputs, outputs, kernel])?;
            let mut rows = vec![0f32; stride * outputs * taps * inputs];
            for i in 0..inputs {
                for o in 0..outputs {
                    for k in 0..kernel {
                        let (age, j) = (k / stride, k % stride);
                        let tap = taps - 1 - age;
                        rows[((j * outputs + o) * taps + tap) * inputs + i] =
                            values[(i * outputs + o) * kernel + k];
                    }
                }
            }
            Ok(rows)
        };
        let bias = l.optional("bias", &[outputs])?.map(|b| b.repeat(stride).into());
        let format = format.into().of(stride * outputs, taps * inputs);
        let w = l.packed("weight", format, stride * outputs, taps * inputs, rows)?;
        Ok(Self { w, bias, inputs, outputs, taps })
    }

    /// State for `slots` streams.
    pub fn state(&self, slots: usize) -> ConvState {
        let history = self.taps - 1;
        ConvState::new(ConvStateSpec { slots, history, channels: self.inputs, replicate: false })
    }

    /// Runs over the spans' rows after `pre`.
    pub fn run(&self, exec: &mut Exec, x: &Buffer, io: ConvIo<'_>, state: &mut ConvState, out: &mut Buffer) {
        exec.conv(&self.op(x, io), state, out);
    }

    /// Runs over `snake` of the spans' rows in one pass, if the executor can; otherwise nothing happens.
    pub fn run_snaked(
        &self,
        exec: &mut Exec,
        snake: Snake<'_>,
        x: &Buffer,
        spans: &[Span],
        state: &mut ConvState,
        out: &mut Buffer,
    ) -> bool {
        let io = ConvIo { spans, pre: Activation::None, add: false };
        exec.conv_snaked(&self.op(x, io), snake, state, out)
    }

    fn op<'a>(&'a self, x: &'a Buffer, io: ConvIo<'a>) -> ConvOp<'a> {
        ConvOp {
            x,
            spans: io.spans,
            pre: io.pre,
            w: &self.w,
            bias: self.bias.as_ref(),
            taps: self.taps,
            stride: 1,
            dilation: 1,
            act: Activation::None,
            add: io.add,
        }
    }

    /// Output channels.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes that one pass reads.
    pub fn bytes(&self) -> usize {
        self.w.bytes()
    }

    /// Multiply-adds per input row.
    pub fn macs(&self) -> usize {
        self.w.inputs() * self.w.outputs()
    }
}

/// A depthwise transposed convolution whose kernel is a whole number of strides.
pub struct DepthwiseUpsample {
    /// `[kernel][channels]`.
    kernel: Vector,
    channels: usize,
    stride: usize,
}

impl DepthwiseUpsample {
    /// Loads torch's `weight [channels, 1, kernel]` with `kernel = 2 * stride`.
    pub fn load(l: &Loader, channels: usize, stride: usize) -> Result<Self, WeightError> {
        let k = 2 * stride;
        let values = l.tensor("weight", &[channels, 1, k])?;
        let kernel = (0..k * channels).map(|i| values[i % channels * k + i / channels]).collect();
        Ok(Self { kernel, channels, stride })
    }

    /// State for `slots` streams.
    pub fn state(&self, slots: usize) -> ConvState {
        ConvState::new(ConvStateSpec { slots, history: 1, channels: self.channels, replicate: false })
    }

    /// Runs over the spans' rows.
    pub fn run(&self, exec: &mut Exec, x: &Buffer, spans: &[Span], state: &mut ConvState, out: &mut Buffer) {
        exec.upsample(&UpsampleOp { x, spans, kernel: &self.kernel, stride: self.stride }, state, out);
    }
}
