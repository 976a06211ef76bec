//! From mel frames to encoder rows: strided convolutions that halve time and frequency, and a projection.

use voce_nn::{Formats, Linear, Loader, WeightError};
use voce_runtime::{Activation, Buffer, Exec, FrameSpan, SubsampleOp, SubsampleSpec, SubsampleState, Vector};

use super::EncoderConfig;

/// A strided convolution and, except after the first, the product over channels that follows it.
struct Stage {
    kernel: Vector,
    bias: Option<Vector>,
    pointwise: Option<Linear>,
    bins: usize,
    channels: usize,
}

/// The subsampling's weights.
pub(super) struct Subsampling {
    stages: Vec<Stage>,
    out: Linear,
    channels: usize,
    left: usize,
}

/// Streaming state and scratch of the subsampling.
pub(super) struct SubsamplingState {
    stages: Vec<SubsampleState>,
    spans: Vec<FrameSpan>,
    convolved: Buffer,
    mixed: Buffer,
}

impl Subsampling {
    pub(super) fn load(l: &Loader, c: &EncoderConfig, bins: usize, f: Formats) -> Result<Self, WeightError> {
        let (channels, left) = (c.subsampling_channels, if c.causal { 2 } else { 1 });
        let conv = l.sub("conv");
        let mut stages: Vec<Stage> = Vec::new();
        let mut bins = bins;
        for i in 0..c.subsampling_factor.ilog2() as usize {
            let convolution = conv.sub(if i == 0 { 0 } else { 3 * i - 1 });
            let values = convolution.tensor("weight", &[channels, 1, 3, 3])?;
            let mut kernel = vec![0f32; values.len()];
            for (channel, taps) in values.chunks_exact(9).enumerate() {
                taps.iter().enumerate().for_each(|(tap, w)| kernel[tap * channels + channel] = *w);
            }
            let bias = convolution.optional("bias", &[channels])?.map(Vector::from);
            let pointwise = (i > 0)
                .then(|| {
                    let l = conv.sub(3 * i);
                    Linear::load_with(&l, "weight", channels, channels, f.conv, || {
                        l.tensor("weight", &[channels, channels, 1, 1])
                    })
                })
                .transpose()?;
            let inputs = if i == 0 { 1 } else { channels };
            stages.push(Stage { kernel: kernel.into(), bias, pointwise, bins, channels: inputs });
            bins = SubsampleSpec { slots: 1, bins, channels, left }.out_bins();
        }
        let out = l.sub("out");
        // The published layout has a row's channels outside its bins; here they are together. The scale
        // of the embedding is folded in.
        let scale = if c.scale_input { (c.dim as f32).sqrt() } else { 1.0 };
        let width = channels * bins;
        let mut projection = Linear::load_with(&out, "scaled weight", c.dim, width, f.linear, || {
            let values = out.tensor("weight", &[c.dim, width])?;
            let mut rows = vec![0f32; values.len()];
            for (from, to) in values.chunks_exact(width).zip(rows.chunks_exact_mut(width)) {
                for channel in 0..channels {
                    for bin in 0..bins {
                        to[bin * channels + channel] = scale * from[channel * bins + bin];
                    }
                }
            }
            Ok(rows)
        })?;
        if let Some(bias) = projection.bias().map(|b| b.iter().map(|b| b * scale).collect()) {
            projection = projection.with_bias(bias);
        }
        Ok(Self { stages, out: projection, channels, left })
    }

    pub(super) fn state(&self, slots: usize) -> SubsamplingState {
        let spec = |s: &Stage| SubsampleSpec { slots, bins: s.bins, channels: s.channels, left: self.left };
        SubsamplingState {
            stages: self.stages.iter().map(|s| SubsampleState::new(spec(s))).collect(),
            spans: Vec::new(),
            convolved: Buffer::new(1, self.channels),
            mixed: Buffer::new(1, self.channels),
        }
    }

    /// Runs over mel rows; the result is in `out`, and `made` has the rows of each span.
    pub(super) fn run(
        &self,
        exec: &mut Exec,
        state: &mut SubsamplingState,
        mel: &Buffer,
        spans: &[FrameSpan],
        made: &mut Vec<FrameSpan>,
        out: &mut Buffer,
    ) {
        let SubsamplingState { stages, spans: before, convolved, mixed } = state;
        before.clear();
        before.extend_from_slice(spans);
        let mut width = 0;
        for (stage, kept) in self.stages.iter().zip(stages) {
            made.clear();
            made.extend(before.iter().map(|s| FrameSpan { rows: kept.yields(s.slot, s.rows, s.last), ..*s }));
            let times: usize = made.iter().map(|s| s.rows).sum();
            let bins = kept.spec().out_bins();
            width = bins * self.channels;
            let (x, out, act) = match &stage.pointwise {
                // The first one's result is the largest: it has a buffer that no other stage makes as large.
                None => (mel, &mut *mixed, Activation::Relu),
                Some(_) => (&*mixed, &mut *convolved, Activation::None),
            };
            out.shape(times * bins, self.channels);
            let (kernel, bias) = (&stage.kernel, stage.bias.as_ref());
            exec.subsample(&SubsampleOp { x, spans: before, kernel, bias, act }, kept, out);
            if let Some(pointwise) = &stage.pointwise {
                mixed.shape(times * bins, self.channels);
                let mut op = pointwise.op(&*convolved, times * bins);
                op.act = Activation::Relu;
                exec.linear(&op, mixed);
            }
            before.clone_from(made);
        }
        let rows: usize = made.iter().map(|s| s.rows).sum();
        mixed.shape(rows, width);
        out.shape(rows, self.out.matrix().outputs());
        self.out.run(exec, mixed, rows, out);
    }

    /// Bytes that one pass reads.
    pub(super) fn bytes(&self) -> usize {
        self.out.bytes()
            + self.stages.iter().filter_map(|s| s.pointwise.as_ref()).map(Linear::bytes).sum::<usize>()
    }

    /// Multiply-adds per encoder frame.
    pub(super) fn macs(&self) -> usize {
        let stages = self.stages.len();
        let per_stage = self.stages.iter().enumerate().map(|(i, s)| {
            let spec = SubsampleSpec { slots: 1, bins: s.bins, channels: s.channels, left: self.left };
            let rows = spec.out_bins() << (stages - 1 - i);
            rows * (9 * self.channels + s.pointwise.as_ref().map_or(0, Linear::macs))
        });
        per_stage.sum::<usize>() + self.out.macs()
    }
}

impl SubsamplingState {
    pub(super) fn reset(&mut self, slot: usize) {
        self.stages.iter_mut().for_each(|s| s.reset(slot));
    }

    /// Encoder rows that `rows` more mel rows of a slot give.
    pub(super) fn yields(&self, slot: usize, rows: usize, last: bool) -> usize {
        self.stages.iter().fold(rows, |rows, s| s.yields(slot, rows, last))
    }

    pub(super) fn stages(&self) -> &[SubsampleState] {
        &self.stages
    }

    pub(super) fn stages_mut(&mut self) -> &mut [SubsampleState] {
        &mut self.stages
    }
}
