//! From samples to latent frames: what voice cloning and recognisers listen with, in slots.

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
    /// Many rows and few weights, and the rest.
    seanet: [Seanet; 2],
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
    /// Positions that leave the transformer's window together.
    together: usize,
}

/// What an encoder is made of, for codecs with a configuration of their own.
pub(crate) struct EncoderParts<'a> {
    /// Convolutions.
    pub(crate) seanet: &'a SeanetConfig,
    /// Layers, as wide as the convolutions' output.
    pub(crate) transformer: TransformerConfig,
    /// Positions of a frame.
    pub(crate) steps: usize,
    /// Whether the transformer's window moves by whole frames.
    pub(crate) by_frames: bool,
}

/// Streaming state of a [`MimiEncoder`].
pub struct MimiEncoderState {
    pub(super) seanet: [SeanetState; 2],
    wide: Buffer,
    pub(super) transformer: TransformerState,
    output: Buffer,
    pub(super) downsample: ConvState,
    latents: Buffer,
    spans: Vec<Span>,
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
            shape: Shape { frame_size: c.frame_size(), steps, width: s.dimension, together: 1 },
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
            shape: Shape {
                frame_size: s.hop() * steps,
                steps,
                width: s.dimension,
                together: if parts.by_frames { steps } else { 1 },
            },
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

    /// Multiply-adds per frame, attention not counted.
    pub fn macs_per_frame(&self) -> usize {
        let [high, low] = &self.seanet;
        let seanet = high.macs(self.shape.frame_size) + low.macs(high.rows(self.shape.frame_size));
        seanet + self.shape.steps * self.transformer.macs() + self.downsample.macs()
    }

    /// Bytes of weights read by one call.
    pub fn bytes(&self) -> usize {
        let seanet: usize = self.seanet.iter().map(Seanet::bytes).sum();
        seanet + self.transformer.bytes() + self.downsample.bytes()
    }

    /// Bytes of a slot's keys and values.
    pub fn slot_bytes(&self) -> usize {
        let rows = self.shape.steps;
        let shape = TransformerShape { slots: 1, rows, rows_per_slot: rows, positions: rows };
        self.transformer.cache_spec(shape).bytes()
    }

    pub(super) fn transformer(&self) -> &Transformer {
        &self.transformer
    }

    /// Positions of a frame.
    pub(super) fn steps(&self) -> usize {
        self.shape.steps
    }

    /// State for one stream and calls of up to `max_frames`.
    pub fn state(&self, max_frames: usize) -> MimiEncoderState {
        self.state_of(max_frames, max_frames)
    }

    /// As [`MimiEncoder::state`], for `frames` in all where the transformer has no window.
    pub fn state_of(&self, max_frames: usize, frames: usize) -> MimiEncoderState {
        let rows = max_frames * self.shape.steps;
        let positions = frames * self.shape.steps;
        self.shaped(TransformerShape { slots: 1, rows, rows_per_slot: rows, positions })
    }

    /// State for `slots` streams, with up to `max_frames` frames in one call over all of them and `slot_frames` of one;
    /// the transformer has a window.
    pub fn state_for(&self, slots: usize, max_frames: usize, slot_frames: usize) -> MimiEncoderState {
        let (rows, rows_per_slot) = (max_frames * self.shape.steps, slot_frames * self.shape.steps);
        self.shaped(TransformerShape { slots, rows, rows_per_slot, positions: rows_per_slot })
    }

    fn shaped(&self, shape: TransformerShape) -> MimiEncoderState {
        let (width, d_model) = (self.shape.width, self.transformer.config().d_model);
        let (slots, rows) = (shape.slots, shape.rows);
        let max_frames = rows / self.shape.steps;
        let [high, low] = &self.seanet;
        let frame_rows = high.rows(self.shape.frame_size);
        let mut transformer = self.transformer.state(shape);
        transformer.cache = transformer.cache.in_frames(self.shape.together);
        MimiEncoderState {
            // Samples pass frame by frame: more would leave the second-level cache.
            seanet: [high.state(slots, self.shape.frame_size), low.state(slots, max_frames * frame_rows)],
            wide: Buffer::new(rows, d_model),
            transformer,
            output: Buffer::new(rows, width),
            downsample: self.downsample.state(slots),
            latents: Buffer::new(max_frames, self.latent_dim()),
            spans: Vec::with_capacity(slots),
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
        let frames = self.run(exec, state, &[Span { slot: 0, rows: samples.len() }], samples, Watcher(watch));
        exec.fetch(&mut state.latents, frames);
        state.latents.head(frames)
    }

    /// Enqueues the encoding of whole frames of the spans' slots (rows are frames): the samples of all spans follow each
    /// other, and so do the latents.
    pub fn encode_frames<'s>(
        &self,
        exec: &mut Exec,
        state: &'s mut MimiEncoderState,
        spans: &[Span],
        samples: &[f32],
    ) -> &'s mut Buffer {
        let size = self.shape.frame_size;
        let samples_of: Vec<Span> =
            spans.iter().map(|s| Span { slot: s.slot, rows: s.rows * size }).collect();
        self.run(exec, state, &samples_of, samples, Watcher(None));
        &mut state.latents
    }

    /// Runs over the spans' samples, of which one that is alone may end within a frame; returns the number of latents.
    fn run(
        &self,
        exec: &mut Exec,
        state: &mut MimiEncoderState,
        spans: &[Span],
        samples: &[f32],
        mut watch: Watcher<'_>,
    ) -> usize {
        let Shape { frame_size, steps, .. } = self.shape;
        let frames: usize = spans.iter().map(|s| s.rows.div_ceil(frame_size)).sum();
        assert!(frames <= state.max_frames, "{frames} frames in a state for {}", state.max_frames);
        self.run_seanet(exec, state, spans, samples, &mut watch);
        let MimiEncoderState { seanet, wide, transformer, output, downsample, latents, spans: now, .. } =
            state;
        let rows = now.iter().map(|s| s.rows).sum();
        let out = seanet[1].output();
        match &self.input_proj {
            Some(proj) => proj.run(exec, out, rows, wide),
            None => exec.copy_head(out, 0, wide, rows),
        }
        watch.each(Stage::TransformerLayer, |w| {
            self.transformer.run_watched(exec, wide, now, transformer, w);
        });
        let x = match &self.output_proj {
            Some(proj) => {
                proj.run(exec, wide, rows, output);
                output
            }
            None => wide,
        };
        watch.show(exec, Stage::Transformer, x, rows);
        let whole = frames * steps;
        if let [span] = &mut now[..]
            && rows < whole
        {
            exec.fetch(x, rows);
            let last = x.row(rows - 1).repeat(whole - rows);
            exec.set_rows(x, &(rows..whole).collect::<Vec<_>>(), &last);
            span.rows = whole;
        }
        let io = ConvIo { spans: now, pre: Activation::None, add: false };
        self.downsample.run(exec, x, io, downsample, latents);
        watch.show(exec, Stage::Downsample, latents, frames);
        frames
    }

    /// The convolutions: their rows are the second part's output, and `spans` says whose.
    fn run_seanet(
        &self,
        exec: &mut Exec,
        state: &mut MimiEncoderState,
        spans: &[Span],
        samples: &[f32],
        watch: &mut Watcher<'_>,
    ) {
        let ([high_of, low_of], [high, low]) = (&self.seanet, &mut state.seanet);
        let now = &mut state.spans;
        now.clear();
        now.extend(spans.iter().map(|s| Span { slot: s.slot, rows: high_of.rows(s.rows) }));
        if exec.wants_batches() || watch.0.is_some() {
            // All rows there are, and where they are.
            high.grow(high_of, state.max_frames * self.shape.frame_size);
            let input = high.input();
            input.discard();
            input.head_mut(samples.len()).copy_from_slice(samples);
            watch.each(Stage::Seanet, |w| high_of.run(exec, spans, high, w));
            let from = high.output();
            if spans.iter().all(|s| s.rows.is_multiple_of(self.shape.frame_size)) {
                watch.each(Stage::Seanet, |w| low_of.run_from(exec, Some(from), now, low, w));
            } else {
                // A last stride that is short is filled up in place.
                exec.copy_head(from, 0, low.input(), now.iter().map(|s| s.rows).sum());
                watch.each(Stage::Seanet, |w| low_of.run(exec, now, low, w));
            }
        } else {
            let (mut at, mut rows) = (0, 0);
            for span in spans {
                for piece in samples[at..at + span.rows].chunks(self.shape.frame_size) {
                    high.input().head_mut(piece.len()).copy_from_slice(piece);
                    let one = [Span { slot: span.slot, rows: piece.len() }];
                    watch.each(Stage::Seanet, |w| high_of.run(exec, &one, high, w));
                    let made = high_of.rows(piece.len());
                    let cols = high.output().cols();
                    let to = &mut low.input().head_mut(rows + made)[rows * cols..];
                    to.copy_from_slice(high.output().head(made));
                    rows += made;
                }
                at += span.rows;
            }
            watch.each(Stage::Seanet, |w| low_of.run(exec, now, low, w));
        }
        now.iter_mut().for_each(|s| s.rows = low_of.rows(s.rows));
    }
}

impl MimiEncoderState {
    /// The latents of the last call.
    pub(crate) fn latents(&self) -> &Buffer {
        &self.latents
    }

    /// Starts a slot anew.
    pub fn reset(&mut self, slot: usize) {
        self.seanet.iter_mut().for_each(|s| s.reset(slot));
        self.transformer.cache.reset(slot);
        self.downsample.reset(slot);
    }
}
