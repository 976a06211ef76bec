//! From latent frames, or frames of codes, to samples.

use voce_nn::{
    DepthwiseUpsample, Formats, Linear, Loader, Transformer, TransformerShape, TransformerState, Watch,
    WeightError,
};
use voce_runtime::{Buffer, ConvState, Exec, Span, Tokens};

use super::config::MimiConfig;
use super::kyutai_config::KyutaiMimiConfig;
use super::quantizer::{LookupState, SplitLookup};
use super::seanet::{Seanet, SeanetState};

/// The mean and deviation that a model's latents were normalised with.
#[derive(Clone, Debug)]
pub struct LatentScale {
    /// Added.
    pub mean: Vec<f32>,
    /// Multiplied in first.
    pub std: Vec<f32>,
}

/// How frames come in.
enum Entrance {
    /// Latents, by a projection.
    Latents(Linear),
    /// Codes, by their codebooks.
    Codes(SplitLookup),
}

/// Sizes that a state and a call need.
struct Shape {
    sample_rate: usize,
    frame_size: usize,
    latent_dim: usize,
    /// Width between the entrance and the convolutions.
    dimension: usize,
    d_model: usize,
    /// Positions that leave the transformer's window together.
    together: usize,
}

/// The decoder half of Mimi.
pub struct MimiDecoder {
    entrance: Entrance,
    upsample: DepthwiseUpsample,
    input_proj: Option<Linear>,
    transformer: Transformer,
    output_proj: Option<Linear>,
    /// Up to the first rate, and from there to samples.
    seanet: [Seanet; 2],
    shape: Shape,
    steps: usize,
}

/// Streaming state of a [`MimiDecoder`].
pub struct MimiDecoderState {
    /// Latents as they come in.
    latents: Option<Buffer>,
    /// Codes as they come in, a row for each frame, and buffers to look them up.
    codes: Option<(Tokens, LookupState)>,
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
            entrance: Entrance::Latents(proj),
            upsample: DepthwiseUpsample::load(&l.sub("upsample.convtr.convtr"), s.dimension, steps)?,
            input_proj: projection("input_proj".into(), t.d_model, t.input_dimension)?,
            transformer: Transformer::load(&tl.sub("transformer"), t.layers(f.linear, f.kv))?,
            output_proj: projection("output_projs.0".into(), t.output(), t.d_model)?,
            seanet: Seanet::decoder(&l.sub("decoder"), s, f.codec)?,
            shape: Shape {
                sample_rate: c.sample_rate,
                frame_size: c.frame_size(),
                latent_dim: q.dimension,
                dimension: s.dimension,
                d_model: t.d_model,
                together: 1,
            },
            steps,
        })
    }

    /// Loads the decoder half of Kyutai's codec, which takes codes; `l` knows its [published](super::published) names.
    pub fn of_codes(
        l: &Loader,
        c: &KyutaiMimiConfig,
        f: Formats,
        lookup: SplitLookup,
    ) -> Result<Self, WeightError> {
        let (width, steps) = (c.seanet.dimension, c.steps());
        let tl = l.sub("decoder_transformer.transformer");
        Ok(Self {
            entrance: Entrance::Codes(lookup),
            upsample: DepthwiseUpsample::load(&l.sub("upsample.convtr.convtr"), width, steps)?,
            input_proj: None,
            transformer: Transformer::load(&tl, c.layers(f.linear, f.kv))?,
            output_proj: None,
            seanet: Seanet::decoder(&l.sub("decoder"), &c.seanet, f.conv)?,
            shape: Shape {
                sample_rate: c.sample_rate,
                frame_size: c.frame_size(),
                latent_dim: width,
                dimension: width,
                d_model: width,
                together: steps,
            },
            steps,
        })
    }

    /// Samples per second.
    pub fn sample_rate(&self) -> usize {
        self.shape.sample_rate
    }

    /// Samples per frame.
    pub fn frame_size(&self) -> usize {
        self.shape.frame_size
    }

    /// Values per latent.
    pub fn latent_dim(&self) -> usize {
        self.shape.latent_dim
    }

    /// Codes of a frame; none where frames are latents.
    pub fn codebooks(&self) -> usize {
        self.lookup().map_or(0, |lookup| lookup.books().len())
    }

    /// Codes are below this.
    pub fn entries(&self) -> usize {
        self.lookup().map_or(0, |lookup| lookup.books().entries())
    }

    fn lookup(&self) -> Option<&SplitLookup> {
        match &self.entrance {
            Entrance::Codes(lookup) => Some(lookup),
            Entrance::Latents(_) => None,
        }
    }

    /// State for `slots` streams, with up to `max_frames` frames in one call over all of them.
    pub fn state(&self, slots: usize, max_frames: usize) -> MimiDecoderState {
        self.state_for(slots, max_frames, max_frames)
    }

    /// As [`MimiDecoder::state`], with up to `slot_frames` of one slot in a call: what a slot keeps grows with it.
    pub fn state_for(&self, slots: usize, max_frames: usize, slot_frames: usize) -> MimiDecoderState {
        let s = &self.shape;
        let rows = max_frames * self.steps;
        let rows_per_slot = slot_frames * self.steps;
        let shape = TransformerShape { slots, rows, rows_per_slot, positions: 0 };
        let mut transformer = self.transformer.state(shape);
        transformer.cache = transformer.cache.in_frames(s.together);
        let codes = |lookup: &SplitLookup| {
            (Tokens::new(max_frames, lookup.books().len(), u32::MAX), lookup.state(max_frames))
        };
        MimiDecoderState {
            latents: match &self.entrance {
                Entrance::Latents(_) => Some(Buffer::new(max_frames, s.latent_dim)),
                Entrance::Codes(_) => None,
            },
            codes: self.lookup().map(codes),
            projected: Buffer::new(max_frames, s.dimension),
            upsampled: Buffer::new(rows, s.dimension),
            wide: self.input_proj.as_ref().map(|_| Buffer::new(rows, s.d_model)),
            output: self.output_proj.as_ref().map(|_| Buffer::new(rows, s.dimension)),
            upsample: self.upsample.state(slots),
            transformer,
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
        let frames = state.begin(spans, self.frame_size());
        let Entrance::Latents(proj) = &self.entrance else { unreachable!("a decoder of latents") };
        let held = state.latents.as_mut().expect("made for a decoder of latents");
        held.discard();
        held.head_mut(frames).copy_from_slice(latents);
        proj.run(exec, held, frames, &mut state.projected);
        watch.show(exec, Stage::Quantizer, &mut state.projected, frames);
        self.run_projected(exec, state, spans, watch);
    }

    /// Decodes the spans' frames of codes (rows are frames): `codes` has the codes of each frame, one frame after the
    /// other. Samples of all spans follow each other.
    pub fn decode_codes<'s>(
        &self,
        exec: &mut Exec,
        state: &'s mut MimiDecoderState,
        spans: &[Span],
        codes: &[u32],
    ) -> &'s [f32] {
        self.decode_codes_watched(exec, state, spans, codes, None)
    }

    /// As [`MimiDecoder::decode_codes`], showing each stage's rows.
    pub fn decode_codes_watched<'s>(
        &self,
        exec: &mut Exec,
        state: &'s mut MimiDecoderState,
        spans: &[Span],
        codes: &[u32],
        watch: StageWatch<'_>,
    ) -> &'s [f32] {
        self.run_codes(exec, state, spans, codes, Watcher(watch));
        self.finish_decode(exec, state)
    }

    /// The first half of [`MimiDecoder::decode_codes`], after which a device works while the host does something else.
    pub fn begin_codes(&self, exec: &mut Exec, state: &mut MimiDecoderState, spans: &[Span], codes: &[u32]) {
        self.run_codes(exec, state, spans, codes, Watcher(None));
        exec.begin();
    }

    /// As [`MimiDecoder::begin_codes`], of codes where the executor is: one frame for each of `slots`, which are slots of
    /// this state and rows of `tokens`, with its codes from `column` on.
    pub fn begin_found(
        &self,
        exec: &mut Exec,
        state: &mut MimiDecoderState,
        slots: &[usize],
        tokens: &Tokens,
        column: usize,
    ) {
        let spans: Vec<Span> = slots.iter().map(|&slot| Span { slot, rows: 1 }).collect();
        state.begin(&spans, self.frame_size());
        let lookup = self.lookup().expect("a decoder of codes");
        let (_, sums) = state.codes.as_mut().expect("made for a decoder of codes");
        lookup.run(exec, sums, tokens, slots, column, &mut state.projected);
        self.run_projected(exec, state, &spans, Watcher(None));
        exec.begin();
    }

    fn run_codes(
        &self,
        exec: &mut Exec,
        state: &mut MimiDecoderState,
        spans: &[Span],
        codes: &[u32],
        mut watch: Watcher<'_>,
    ) {
        let frames = state.begin(spans, self.frame_size());
        let lookup = self.lookup().expect("a decoder of codes");
        assert_eq!(codes.len(), frames * lookup.books().len(), "a code per frame and codebook");
        let (tokens, sums) = state.codes.as_mut().expect("made for a decoder of codes");
        let rows: Vec<usize> = (0..frames).collect();
        exec.set_tokens(tokens, &rows, 0, codes);
        lookup.run(exec, sums, tokens, &rows, 0, &mut state.projected);
        watch.show(exec, Stage::Quantizer, &mut state.projected, frames);
        self.run_projected(exec, state, spans, watch);
    }

    /// From the entrance's rows to samples.
    fn run_projected(
        &self,
        exec: &mut Exec,
        state: &mut MimiDecoderState,
        spans: &[Span],
        mut watch: Watcher<'_>,
    ) {
        let rows = spans.iter().map(|s| s.rows).sum::<usize>() * self.steps;
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
        let entrance = match &self.entrance {
            Entrance::Latents(proj) => proj.macs(),
            Entrance::Codes(lookup) => lookup.macs(),
        };
        entrance + self.steps * self.transformer.macs() + seanet
    }

    /// Bytes of weights read by one call.
    pub fn bytes(&self) -> usize {
        let entrance = match &self.entrance {
            Entrance::Latents(proj) => proj.bytes(),
            Entrance::Codes(lookup) => lookup.bytes(),
        };
        entrance + self.transformer.bytes() + self.seanet.iter().map(Seanet::bytes).sum::<usize>()
    }
}

impl MimiDecoderState {
    /// Begins a call over the spans' frames; returns how many they are.
    fn begin(&mut self, spans: &[Span], frame_size: usize) -> usize {
        let frames: usize = spans.iter().map(|s| s.rows).sum();
        assert!(frames <= self.max_frames, "{frames} frames in a state for {}", self.max_frames);
        assert!(spans.iter().all(|s| s.rows <= self.slot_frames), "{} frames a slot", self.slot_frames);
        self.made = frames * frame_size;
        self.audio.clear();
        frames
    }

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
