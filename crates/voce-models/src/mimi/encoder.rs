//! From samples to latent frames: what voice cloning listens with.

use voce_nn::{
    Conv1d, Conv1dConfig, ConvIo, Formats, Linear, Loader, Padding, Transformer, TransformerConfig,
    TransformerShape, TransformerState, WeightError,
};
use voce_runtime::{Activation, Buffer, ConvState, Exec, Span};

use super::config::{MimiConfig, SeanetConfig};
use super::decoder::{Stage, StageWatch, Watcher};
use super::seanet::{Seanet, SeanetState};

/// The encoder half of Mimi.
pub struct MimiEncoder {
    seanet: Seanet,
    input_proj: Option<Linear>,
    transformer: Transformer,
    output_proj: Option<Linear>,
    downsample: Conv1d,
    shape: Shape,
}

/// Sizes that a state and a call need.
struct Shape {
    frame_size: usize,
    steps: usize,
    /// Width between SEANet and downsampling.
    width: usize,
}

/// What an encoder is made of, for codecs with a configuration of their own.
pub(crate) struct EncoderParts<'a> {
    /// Convolutions.
    pub(crate) seanet: &'a SeanetConfig,
    /// Layers, as wide as the convolutions' output.
    pub(crate) transformer: TransformerConfig,
    /// Positions of a frame.
    pub(crate) steps: usize,
}

/// Streaming state of a [`MimiEncoder`] for one stream.
pub struct MimiEncoderState {
    seanet: SeanetState,
    wide: Buffer,
    transformer: TransformerState,
    output: Buffer,
    downsample: ConvState,
    latents: Buffer,
    max_frames: usize,
}

impl MimiEncoder {
    /// Loads `encoder`, `encoder_transformer` and `downsample`.
    pub fn load(l: &Loader, c: &MimiConfig, f: Formats) -> Result<Self, WeightError> {
        let (s, t) = (&c.seanet, &c.transformer);
        let steps = c.positions_per_frame();
        let tl = l.sub("encoder_transformer");
        let projection = |name: String, outputs, inputs| {
            (outputs != inputs).then(|| Linear::load(&tl.sub(name), outputs, inputs, f.conv)).transpose()
        };
        let downsample = Conv1dConfig {
            inputs: s.dimension,
            outputs: c.inner_dim.unwrap_or(s.dimension),
            kernel: 2 * steps,
            stride: steps,
            dilation: 1,
            padding: Padding::Replicate,
        };
        Ok(Self {
            seanet: Seanet::encoder(&l.sub("encoder"), s, f.conv)?,
            input_proj: projection("input_proj".into(), t.d_model, t.input_dimension)?,
            transformer: Transformer::load(&tl.sub("transformer"), t.layers(f.conv, f.kv))?,
            output_proj: projection("output_projs.0".into(), t.output(), t.d_model)?,
            downsample: Conv1d::load(&l.sub("downsample.conv.conv"), downsample, f.conv)?,
            shape: Shape { frame_size: c.frame_size(), steps, width: s.dimension },
        })
    }

    /// As [`MimiEncoder::load`], from parts and without projections around the transformer.
    pub(crate) fn from_parts(l: &Loader, parts: &EncoderParts<'_>, f: Formats) -> Result<Self, WeightError> {
        let (s, steps) = (parts.seanet, parts.steps);
        let downsample = Conv1dConfig {
            inputs: s.dimension,
            outputs: s.dimension,
            kernel: 2 * steps,
            stride: steps,
            dilation: 1,
            padding: Padding::Replicate,
        };
        Ok(Self {
            seanet: Seanet::encoder(&l.sub("encoder"), s, f.conv)?,
            input_proj: None,
            transformer: Transformer::load(&l.sub("encoder_transformer.transformer"), parts.transformer)?,
            output_proj: None,
            downsample: Conv1d::load(&l.sub("downsample.conv.conv"), downsample, f.conv)?,
            shape: Shape { frame_size: s.hop() * steps, steps, width: s.dimension },
        })
    }

    /// Samples per frame.
    pub fn frame_size(&self) -> usize {
        self.shape.frame_size
    }

    /// Values per latent.
    pub fn latent_dim(&self) -> usize {
        self.downsample.config().outputs
    }

    /// State for one stream and calls of up to `max_frames`.
    pub fn state(&self, max_frames: usize) -> MimiEncoderState {
        self.state_of(max_frames, max_frames)
    }

    /// As [`MimiEncoder::state`], for `frames` in all where the transformer has no window.
    pub fn state_of(&self, max_frames: usize, frames: usize) -> MimiEncoderState {
        let (width, d_model) = (self.shape.width, self.transformer.config().d_model);
        let (rows, positions) = (max_frames * self.shape.steps, frames * self.shape.steps);
        let shape = TransformerShape { slots: 1, rows, rows_per_slot: rows, positions };
        MimiEncoderState {
            seanet: self.seanet.state(1, max_frames * self.frame_size()),
            wide: Buffer::new(rows, d_model),
            transformer: self.transformer.state(shape),
            output: Buffer::new(rows, width),
            downsample: self.downsample.state(1),
            latents: Buffer::new(max_frames, self.latent_dim()),
            max_frames,
        }
    }

    /// Encodes frames of samples; the latents follow each other. The last frame of a stream may be short: each convolution
    /// then pads its own input, with zeros, and the last one with its last row.
    pub fn encode<'s>(&self, exec: &mut Exec, state: &'s mut MimiEncoderState, samples: &[f32]) -> &'s [f32] {
        self.encode_watched(exec, state, samples, None)
    }

    /// As [`MimiEncoder::encode`], showing each stage's rows.
    pub fn encode_watched<'s>(
        &self,
        exec: &mut Exec,
        state: &'s mut MimiEncoderState,
        samples: &[f32],
        watch: StageWatch<'_>,
    ) -> &'s [f32] {
        let mut watch = Watcher(watch);
        let frames = samples.len().div_ceil(self.frame_size());
        assert!(frames <= state.max_frames, "{frames} frames in a state for {}", state.max_frames);
        let rows = samples.len().div_ceil(self.frame_size() / self.shape.steps);
        let input = state.seanet.input();
        input.discard();
        input.head_mut(samples.len()).copy_from_slice(samples);
        let span = [Span { slot: 0, rows: samples.len() }];
        watch.each(Stage::Seanet, |w| self.seanet.run(exec, &span, &mut state.seanet, w));
        let out = state.seanet.output();
        match &self.input_proj {
            Some(proj) => proj.run(exec, out, rows, &mut state.wide),
            None => exec.copy_head(out, 0, &mut state.wide, rows),
        }
        let span = [Span { slot: 0, rows }];
        watch.each(Stage::TransformerLayer, |w| {
            self.transformer.run_watched(exec, &mut state.wide, &span, &mut state.transformer, w);
        });
        let x = match &self.output_proj {
            Some(proj) => {
                proj.run(exec, &state.wide, rows, &mut state.output);
                &mut state.output
            }
            None => &mut state.wide,
        };
        watch.show(exec, Stage::Transformer, x, rows);
        let whole = frames * self.shape.steps;
        if rows < whole {
            exec.fetch(x, rows);
            let last = x.row(rows - 1).repeat(whole - rows);
            exec.set_rows(x, &(rows..whole).collect::<Vec<_>>(), &last);
        }
        let span = [Span { slot: 0, rows: whole }];
        let io = ConvIo { spans: &span, pre: Activation::None, add: false };
        self.downsample.run(exec, x, io, &mut state.downsample, &mut state.latents);
        watch.show(exec, Stage::Downsample, &mut state.latents, frames);
        exec.fetch(&mut state.latents, frames);
        state.latents.head(frames)
    }
}
