//! From latent frames to samples.

use voce_nn::{
    DepthwiseUpsample, Formats, Linear, Loader, Transformer, TransformerShape, TransformerState, Watch,
    WeightError,
};
use voce_runtime::{Buffer, ConvState, Exec, Span};

use super::config::MimiConfig;
use super::seanet::{Seanet, SeanetState};

/// The mean and deviation that a model's latents were normalised with.
#[derive(Clone, Debug)]
pub struct LatentScale {
    /// Added.
    pub mean: Vec<f32>,
    /// Multiplied in first.
    pub std: Vec<f32>,
}

/// The decoder half of Mimi.
pub struct MimiDecoder {
    proj: Linear,
    upsample: DepthwiseUpsample,
    input_proj: Option<Linear>,
    transformer: Transformer,
    output_proj: Option<Linear>,
    /// Up to the first rate, and from there to samples.
    seanet: [Seanet; 2],
    config: MimiConfig,
    steps: usize,
}

/// Streaming state of a [`MimiDecoder`].
pub struct MimiDecoderState {
    latents: Buffer,
    projected: Buffer,
    upsampled: Buffer,
    wide: Option<Buffer>,
    output: Option<Buffer>,
    upsample: ConvState,
    transformer: TransformerState,
    seanet: [SeanetState; 2],
    spans: Vec<Span>,
    audio: Vec<f32>,
    /// Samples of the last call.
    made: usize,
    max_frames: usize,
    slot_frames: usize,
}

impl MimiDecoder {
    /// Loads `quantizer`, `upsample`, `decoder_transformer` and `decoder`; latents are given before `scale`.
    pub fn load(
        l: &Loader,
        c: &MimiConfig,
        f: Formats,
        scale: Option<&LatentScale>,
    ) -> Result<Self, WeightError> {
        let (s, t, q) = (c.decoder_seanet(), c.decoder_transformer(), &c.quantizer);
        let steps = c.positions_per_frame();
        let ql = l.sub("quantizer").sub("output_proj");
        let mut w = ql.tensor("weight", &[q.output_dimension, q.dimension, 1])?;
        let mut bias = ql.optional("bias", &[q.output_dimension])?.unwrap_or(vec![0.0; q.output_dimension]);
        if let Some(scale) = scale {
            for (row, bias) in w.chunks_exact_mut(q.dimension).zip(&mut bias) {
                *bias += row.iter().zip(&scale.mean).map(|(w, m)| w * m).sum::<f32>();
                row.iter_mut().zip(&scale.std).for_each(|(w, s)| *w *= s);
            }
        }
        // Latents are few and their error reaches every sample: never below bf16.
        let proj = Linear::from_values(l, f.conv, q.output_dimension, q.dimension, &w)?.with_bias(bias);
        let tl = l.sub("decoder_transformer");
        let projection = |name: String, outputs, inputs| {
            (outputs != inputs).then(|| Linear::load(&tl.sub(name), outputs, inputs, f.linear)).transpose()
        };
        Ok(Self {
            proj,
            upsample: DepthwiseUpsample::load(&l.sub("upsample.convtr.convtr"), s.dimension, steps)?,
            input_proj: projection("input_proj".into(), t.d_model, t.input_dimension)?,
            transformer: Transformer::load(&tl.sub("transformer"), t.layers(f.linear, f.kv))?,
            output_proj: projection("output_projs.0".into(), t.output(), t.d_model)?,
            seanet: Seanet::decoder(&l.sub("decoder"), s, f.conv)?,
            config: c.clone(),
            steps,
        })
    }

    /// Samples per second.
    pub fn sample_rate(&self) -> usize {
        self.config.sample_rate
    }

    /// Samples per frame.
    pub fn frame_size(&self) -> usize {
        self.config.frame_size()
    }

    /// Values per latent.
    pub fn latent_dim(&self) -> usize {
        self.config.quantizer.dimension
    }

    /// State for `slots` streams, with up to `max_frames` frames in one call over all of them.
    pub fn state(&self, slots: usize, max_frames: usize) -> MimiDecoderState {
        self.state_for(slots, max_frames, max_frames)
    }

    /// As [`MimiDecoder::state`], with up to `slot_frames` of one slot in a call: what a slot keeps grows with it.
    pub fn state_for(&self, slots: usize, max_frames: usize, slot_frames: usize) -> MimiDecoderState {
        let s = self.config.decoder_seanet();
        let t = self.config.decoder_transformer();
        let rows = max_frames * self.steps;
        let rows_per_slot = slot_frames * self.steps;
        let shape = TransformerShape { slots, rows, rows_per_slot, positions: 0 };
        MimiDecoderState {
            latents: Buffer::new(max_frames, self.latent_dim()),
            projected: Buffer::new(max_frames, s.dimension),
            upsampled: Buffer::new(rows, s.dimension),
            wide: self.input_proj.as_ref().map(|_| Buffer::new(rows, t.d_model)),
            output: self.output_proj.as_ref().map(|_| Buffer::new(rows, t.output())),
            upsample: self.upsample.state(slots),
            transformer: self.transformer.state(shape),
            // Samples pass frame by frame: more would leave the second-level cache.
            seanet: [
                self.seanet[0].state(slots, rows),
                self.seanet[1].state(slots, self.seanet[0].rows(self.steps)),
            ],
            spans: Vec::with_capacity(slots),
            audio: Vec::with_capacity(max_frames * self.frame_size()),
            made: 0,
            max_frames,
            slot_frames,
        }
    }

    /// Decodes the spans' frames (rows are frames); samples of all spans follow each other.
    pub fn decode<'s>(
        &self,
        exec: &mut Exec,
        state: &'s mut MimiDecoderState,
        spans: &[Span],
        latents: &[f32],
    ) -> &'s [f32] {
        self.decode_watched(exec, state, spans, latents, None)
    }

    /// The first half of [`MimiDecoder::decode`], after which a device works while the host does something else.
    pub fn begin_decode(
        &self,
        exec: &mut Exec,
        state: &mut MimiDecoderState,
        spans: &[Span],
        latents: &[f32],
    ) {
        self.run(exec, state, spans, latents, Watcher(None));
        exec.begin();
    }

    /// The samples of the frames that were begun last.
    pub fn finish_decode<'s>(&self, exec: &mut Exec, state: &'s mut MimiDecoderState) -> &'s [f32] {
        if !exec.wants_batches() {
            return &state.audio;
        }
        let (made, high) = (state.made, state.seanet[1].output());
        exec.fetch(high, made);
        high.head(made)
    }

    /// As [`MimiDecoder::decode`], showing each stage's rows.
    pub fn decode_watched<'s>(
        &self,
        exec: &mut Exec,
        state: &'s mut MimiDecoderState,
        spans: &[Span],
        latents: &[f32],
        watch: StageWatch<'_>,
    ) -> &'s [f32] {
        self.run(exec, state, spans, latents, Watcher(watch));
        self.finish_decode(exec, state)
    }

    fn run(
        &self,
        exec: &mut Exec,
        state: &mut MimiDecoderState,
        spans: &[Span],
        latents: &[f32],
        mut watch: Watcher<'_>,
    ) {
        let frames: usize = spans.iter().map(|s| s.rows).sum();
        assert!(frames <= state.max_frames, "{frames} frames in a state for {}", state.max_frames);
        assert!(spans.iter().all(|s| s.rows <= state.slot_frames), "{} frames a slot", state.slot_frames);
        let rows = frames * self.steps;
        state.made = frames * self.frame_size();
        state.audio.clear();
        state.latents.discard();
        state.latents.head_mut(frames).copy_from_slice(latents);
        self.proj.run(exec, &state.latents, frames, &mut state.projected);
        watch.show(exec, Stage::Quantizer, &mut state.projected, frames);
        self.upsample.run(exec, &state.projected, spans, &mut state.upsample, &mut state.upsampled);
        watch.show(exec, Stage::Upsample, &mut state.upsampled, rows);
        state.spans.clear();
        state.spans.extend(spans.iter().map(|s| Span { slot: s.slot, rows: s.rows * self.steps }));
        let x = match (&self.input_proj, &mut state.wide) {
            (Some(proj), Some(wide)) => {
                proj.run(exec, &state.upsampled, rows, wide);
                wide
            }
            _ => &mut state.upsampled,
        };
        watch.each(Stage::TransformerLayer, |w| {
            self.transformer.run_watched(exec, x, &state.spans, &mut state.transformer, w);
        });
        let x = match (&self.output_proj, &mut state.output) {
            (Some(proj), Some(out)) => {
                proj.run(exec, x, rows, out);
                out
            }
            _ => x,
        };
        watch.show(exec, Stage::Transformer, x, rows);
        let [low, high] = &mut state.seanet;
        let frame_rows = self.seanet[0].rows(self.steps);
        if exec.wants_batches() {
            // All rows there are, and where they are.
            watch.each(Stage::Seanet, |w| self.seanet[0].run_from(exec, Some(x), &state.spans, low, w));
            high.grow(&self.seanet[1], state.max_frames * frame_rows);
            state.spans.iter_mut().zip(spans).for_each(|(to, s)| to.rows = s.rows * frame_rows);
            let low = low.output();
            watch.each(Stage::Seanet, |w| self.seanet[1].run_from(exec, Some(low), &state.spans, high, w));
            return;
        }
        exec.copy_head(x, 0, low.input(), rows);
        watch.each(Stage::Seanet, |w| self.seanet[0].run(exec, &state.spans, low, w));
        let low = low.output();
        let mut frame = 0;
        for s in spans {
            for _ in 0..s.rows {
                exec.copy_head(low, frame * frame_rows, high.input(), frame_rows);
                let span = [Span { slot: s.slot, rows: frame_rows }];
                watch.each(Stage::Seanet, |w| self.seanet[1].run(exec, &span, high, w));
                state.audio.extend_from_slice(high.output().head(self.frame_size()));
                frame += 1;
            }
        }
    }

    /// Multiply-adds per frame, attention not counted.
    pub fn macs_per_frame(&self) -> usize {
        let seanet = self.seanet[0].macs(self.steps) + self.seanet[1].macs(self.seanet[0].rows(self.steps));
        self.proj.macs() + self.steps * self.transformer.macs() + seanet
    }

    /// Bytes of weights read by one call.
    pub fn bytes(&self) -> usize {
        self.proj.bytes() + self.transformer.bytes() + self.seanet.iter().map(Seanet::bytes).sum::<usize>()
    }
}

impl MimiDecoderState {
    /// Starts a slot anew.
    pub fn reset(&mut self, slot: usize) {
        self.upsample.reset(slot);
        self.transformer.cache.reset(slot);
        self.seanet.iter_mut().for_each(|s| s.reset(slot));
    }

    /// Frames that one call takes.
    pub fn max_frames(&self) -> usize {
        self.max_frames
    }
}

/// Who looks at the codec's stages.
pub type StageWatch<'a> = Option<&'a mut dyn FnMut(Stage, &[f32])>;

/// Whoever watches the codec's stages, if anybody does.
pub(super) struct Watcher<'a>(pub StageWatch<'a>);

impl Watcher<'_> {
    /// Shows the first rows of a buffer.
    pub(super) fn show(&mut self, exec: &mut Exec, stage: Stage, rows: &mut Buffer, count: usize) {
        if let Some(watch) = &mut self.0 {
            exec.fetch(rows, count);
            watch(stage, rows.head(count));
        }
    }

    /// Runs something that shows stages by their numbers.
    pub(super) fn each(&mut self, stage: impl Fn(usize) -> Stage, run: impl FnOnce(Watch<'_>)) {
        match &mut self.0 {
            Some(watch) => run(Some(&mut |i, rows| watch(stage(i), rows))),
            None => run(None),
        }
    }
}

/// A stage of the codec, for those who watch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// After the latent projection.
    Quantizer,
    /// After upsampling.
    Upsample,
    /// After a transformer layer.
    TransformerLayer(usize),
    /// After the transformer and its projection.
    Transformer,
    /// After a SEANet stage, by its index in the checkpoint.
    Seanet(usize),
    /// After downsampling (encoder).
    Downsample,
}
