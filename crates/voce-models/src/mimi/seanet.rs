//! SEANet: stacks of causal convolutions between positions and samples.

use voce_nn::{
    Conv1d, Conv1dConfig, ConvFormat, ConvIo, ConvTranspose1d, Loader, Padding, Watch, WeightError,
};
use voce_runtime::{Activation, Buffer, ConvState, Exec, Format, Span};

use super::config::{PadMode, SeanetConfig};

enum Stage {
    /// A convolution; the activation comes before it.
    Conv(Activation, Conv1d),
    /// ELU, then a transposed convolution.
    Up(ConvTranspose1d, usize),
    /// `x + conv(ELU(conv(ELU(x))))`.
    Residual(Box<[Conv1d; 2]>),
}

/// A stack of stages, each with its index in the checkpoint.
pub(super) struct Seanet {
    stages: Vec<(usize, Stage)>,
    inputs: usize,
}

/// Histories and activations of a [`Seanet`].
pub(super) struct SeanetState {
    convs: Vec<Vec<ConvState>>,
    buffers: Vec<Buffer>,
    hidden: Vec<Option<Buffer>>,
    /// What a device makes of residual stages, which it does not run in place.
    made: Vec<Option<Buffer>>,
    /// The residual stage whose rows there are the last stage's.
    at_made: Option<usize>,
    spans: Vec<Span>,
}

impl Seanet {
    /// `model.N` of the decoder, from positions up to samples, in two parts: up to the first rate (few rows,
    /// most of the weights) and the rest (many rows, few weights).
    pub(super) fn decoder(
        l: &Loader,
        c: &SeanetConfig,
        format: impl Into<ConvFormat>,
    ) -> Result<[Self; 2], WeightError> {
        let format = format.into();
        let mut b = Builder::new(l, c, format);
        let mut width = (1 << c.ratios.len()) * c.n_filters;
        b.conv(Activation::None, c.dimension, width, c.kernel_size, 1)?;
        let mut first = (Vec::new(), width);
        for (i, &ratio) in c.ratios.iter().enumerate() {
            if i == 1 {
                first = (std::mem::take(&mut b.stages), width);
            }
            b.index += 1; // the ELU
            let l = l.sub("model").sub(b.index).sub("convtr");
            let up = ConvTranspose1d::load(&l, width, width / 2, 2 * ratio, ratio, format)?;
            b.push(Stage::Up(up, ratio));
            width /= 2;
            b.residuals(width)?;
        }
        b.index += 1;
        b.conv(Activation::Elu, c.n_filters, c.channels, c.last_kernel_size, 1)?;
        if first.0.is_empty() {
            first.0.push(b.stages.remove(0));
        }
        Ok([Self { stages: first.0, inputs: c.dimension }, Self { stages: b.stages, inputs: first.1 }])
    }

    /// `model.N` of the encoder, from samples down to positions, in two parts: many rows and few weights, and from
    /// the last stride on the rest, which begins with a convolution.
    pub(super) fn encoder(l: &Loader, c: &SeanetConfig, format: Format) -> Result<[Self; 2], WeightError> {
        let mut b = Builder::new(l, c, format.into());
        let mut width = c.n_filters;
        b.conv(Activation::None, c.channels, width, c.kernel_size, 1)?;
        let mut first = (Vec::new(), width);
        for (i, &ratio) in c.ratios.iter().rev().enumerate() {
            b.residuals(width)?;
            if i + 1 == c.ratios.len() {
                first = (std::mem::take(&mut b.stages), width);
            }
            b.index += 1;
            b.conv(Activation::Elu, width, 2 * width, 2 * ratio, ratio)?;
            width *= 2;
        }
        b.index += 1;
        b.conv(Activation::Elu, width, c.dimension, c.last_kernel_size, 1)?;
        if first.0.is_empty() {
            first.0.push(b.stages.remove(0));
        }
        Ok([Self { stages: first.0, inputs: c.channels }, Self { stages: b.stages, inputs: first.1 }])
    }

    /// State for `slots` streams and calls of up to `rows` input rows.
    pub(super) fn state(&self, slots: usize, rows: usize) -> SeanetState {
        let (mut convs, mut buffers, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        let mut rows = rows;
        buffers.push(Buffer::new(rows, self.inputs));
        for (_, stage) in &self.stages {
            let (states, made, inner) = match stage {
                Stage::Conv(_, c) => {
                    rows /= c.config().stride;
                    (vec![c.state(slots)], Some(Buffer::new(rows, c.config().outputs)), None)
                }
                Stage::Up(c, ratio) => {
                    rows *= ratio;
                    (vec![c.state(slots)], Some(Buffer::new(rows, c.outputs())), None)
                }
                Stage::Residual(pair) => {
                    let [a, b] = &**pair;
                    (vec![a.state(slots), b.state(slots)], None, Some(Buffer::new(rows, a.config().outputs)))
                }
            };
            convs.push(states);
            buffers.extend(made);
            hidden.push(inner);
        }
        let made = self.stages.iter().map(|_| None).collect();
        SeanetState { convs, buffers, hidden, made, at_made: None, spans: Vec::new() }
    }

    /// Runs over the spans' rows of [`SeanetState::input`]; the result is [`SeanetState::output`]. Of one span alone a
    /// stride may take a part: zeros follow its last row.
    pub(super) fn run(&self, exec: &mut Exec, spans: &[Span], state: &mut SeanetState, watch: Watch<'_>) {
        self.run_from(exec, None, spans, state, watch);
    }

    /// As [`Seanet::run`], over rows that are elsewhere; the first stage is a convolution.
    pub(super) fn run_from(
        &self,
        exec: &mut Exec,
        mut from: Option<&Buffer>,
        spans: &[Span],
        state: &mut SeanetState,
        mut watch: Watch<'_>,
    ) {
        let SeanetState { convs, buffers, hidden, made, at_made, spans: now } = state;
        now.clear();
        now.extend_from_slice(spans);
        *at_made = None;
        let mut at = 0;
        let states = convs.iter_mut().zip(hidden).enumerate();
        for ((index, stage), (i, (convs, hidden))) in self.stages.iter().zip(states) {
            // The last stage's rows, wherever it has put them.
            let place = at_made.take();
            let mut kept = place.and_then(|i| made[i].take());
            match stage {
                Stage::Conv(pre, c) => {
                    let [x, out] = pair(buffers, at);
                    if let [span] = &mut now[..]
                        && !span.rows.is_multiple_of(c.config().stride)
                    {
                        let whole = span.rows.next_multiple_of(c.config().stride);
                        let x = kept.as_mut().unwrap_or(x);
                        let short: Vec<usize> = (span.rows..whole).collect();
                        exec.set_rows(x, &short, &vec![0.0; short.len() * x.cols()]);
                        span.rows = whole;
                    }
                    let x = from.take().or(kept.as_ref()).unwrap_or(x);
                    c.run(exec, x, ConvIo { spans: now, pre: *pre, add: false }, &mut convs[0], out);
                    now.iter_mut().for_each(|s| s.rows /= c.config().stride);
                    at += 1;
                }
                Stage::Up(c, ratio) => {
                    let [x, out] = pair(buffers, at);
                    let x = from.take().or(kept.as_ref()).unwrap_or(x);
                    let io = ConvIo { spans: now, pre: Activation::Elu, add: false };
                    c.run(exec, x, io, &mut convs[0], out);
                    now.iter_mut().for_each(|s| s.rows *= ratio);
                    at += 1;
                }
                Stage::Residual(pair) => {
                    let [a, b] = &**pair;
                    let io = ConvIo { spans: now, pre: Activation::Elu, add: false };
                    let [first, second] = &mut convs[..] else { unreachable!("two convolutions") };
                    let x = kept.as_mut().unwrap_or(&mut buffers[at]);
                    let fused = exec.fuses_residuals() && {
                        let out = made[i].get_or_insert_with(|| Buffer::new(x.rows(), x.cols()));
                        a.residual(b, exec, x, io, first, out)
                    };
                    if fused {
                        *at_made = Some(i);
                    } else {
                        let h = hidden.as_mut().expect("made for residual stages");
                        a.run(exec, x, io, first, h);
                        b.run(exec, h, ConvIo { add: true, ..io }, second, x);
                        *at_made = place;
                    }
                }
            }
            if let Some(i) = place {
                made[i] = kept;
            }
            if let Some(watch) = &mut watch {
                let rows = now.iter().map(|s| s.rows).sum();
                let shown = at_made.and_then(|i| made[i].as_mut()).unwrap_or(&mut buffers[at]);
                exec.fetch(shown, rows);
                watch(*index, shown.head(rows));
            }
        }
    }

    /// Output rows for `rows` input rows, of which the last stride may have a part.
    pub(super) fn rows(&self, rows: usize) -> usize {
        self.stages.iter().fold(rows, |rows, (_, stage)| match stage {
            Stage::Conv(_, c) => rows.div_ceil(c.config().stride),
            Stage::Up(_, ratio) => rows * ratio,
            Stage::Residual(..) => rows,
        })
    }

    /// Multiply-adds per `rows` input rows.
    pub(super) fn macs(&self, rows: usize) -> usize {
        let mut rows = rows;
        self.stages
            .iter()
            .map(|(_, stage)| match stage {
                Stage::Conv(_, c) => {
                    rows /= c.config().stride;
                    rows * c.macs()
                }
                Stage::Up(c, ratio) => {
                    let macs = rows * c.macs();
                    rows *= ratio;
                    macs
                }
                Stage::Residual(pair) => rows * pair.iter().map(Conv1d::macs).sum::<usize>(),
            })
            .sum()
    }

    /// Bytes of weights that one pass reads.
    pub(super) fn bytes(&self) -> usize {
        self.stages
            .iter()
            .map(|(_, stage)| match stage {
                Stage::Conv(_, c) => c.bytes(),
                Stage::Up(c, _) => c.bytes(),
                Stage::Residual(pair) => pair.iter().map(Conv1d::bytes).sum(),
            })
            .sum()
    }
}

impl SeanetState {
    /// Makes room for calls of up to `rows` input rows; streams in progress go on as before.
    pub(super) fn grow(&mut self, seanet: &Seanet, rows: usize) {
        if self.buffers[0].rows() < rows {
            let larger = seanet.state(0, rows);
            (self.buffers, self.hidden, self.made) = (larger.buffers, larger.hidden, larger.made);
        }
    }

    /// Where the input rows go.
    pub(super) fn input(&mut self) -> &mut Buffer {
        &mut self.buffers[0]
    }

    /// The last stage's rows.
    pub(super) fn output(&mut self) -> &mut Buffer {
        let made = self.at_made.and_then(|i| self.made[i].as_mut());
        made.unwrap_or_else(|| self.buffers.last_mut().expect("a stack has stages"))
    }

    /// Starts a slot anew.
    pub(super) fn reset(&mut self, slot: usize) {
        self.convs.iter_mut().flatten().for_each(|c| c.reset(slot));
    }

    /// What the convolutions remember, in the order of the stages.
    pub(super) fn histories(&mut self) -> impl Iterator<Item = &mut ConvState> {
        self.convs.iter_mut().flatten()
    }
}

/// Buffers `at` and `at + 1`, the second to write.
fn pair(buffers: &mut [Buffer], at: usize) -> [&mut Buffer; 2] {
    let (a, b) = buffers.split_at_mut(at + 1);
    [&mut a[at], &mut b[0]]
}

struct Builder<'a> {
    l: &'a Loader,
    c: &'a SeanetConfig,
    format: ConvFormat,
    stages: Vec<(usize, Stage)>,
    index: usize,
}

impl<'a> Builder<'a> {
    fn new(l: &'a Loader, c: &'a SeanetConfig, format: ConvFormat) -> Self {
        Self { l, c, format, stages: Vec::new(), index: 0 }
    }

    fn push(&mut self, stage: Stage) {
        self.stages.push((self.index, stage));
        self.index += 1;
    }

    fn shape(&self, inputs: usize, outputs: usize, kernel: usize) -> Conv1dConfig {
        let padding = match self.c.pad_mode {
            PadMode::Constant => Padding::Zeros,
            PadMode::Replicate => Padding::Replicate,
        };
        Conv1dConfig { inputs, outputs, kernel, stride: 1, dilation: 1, padding }
    }

    fn conv(
        &mut self,
        pre: Activation,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
    ) -> Result<(), WeightError> {
        let l = self.l.sub("model").sub(self.index).sub("conv");
        let c = Conv1dConfig { stride, ..self.shape(inputs, outputs, kernel) };
        // One sample of three channels a row gains nothing from tiles, and keeps its precision in f32.
        let format = if inputs * kernel < 16 { Format::F32.into() } else { self.format };
        self.push(Stage::Conv(pre, Conv1d::load(&l, c, format)?));
        Ok(())
    }

    fn residuals(&mut self, width: usize) -> Result<(), WeightError> {
        for j in 0..self.c.n_residual_layers {
            let l = self.l.sub("model").sub(self.index).sub("block");
            let hidden = width / self.c.compress;
            let dilation = self.c.dilation_base.pow(j as u32);
            let a = Conv1dConfig { dilation, ..self.shape(width, hidden, self.c.residual_kernel_size) };
            let b = self.shape(hidden, width, 1);
            let a = Conv1d::load(&l.sub(1).sub("conv"), a, self.format)?;
            let b = Conv1d::load(&l.sub(3).sub("conv"), b, self.format)?;
            self.push(Stage::Residual(Box::new([a, b])));
        }
        Ok(())
    }
}
