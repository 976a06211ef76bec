//! From codes to samples, frame by frame: nothing of the past is decoded twice.

use voce_nn::{
    Conv1d, ConvIo, Decoder, DecoderState, Formats, Linear, Loader, TransformerShape, WeightError,
};
use voce_runtime::{Activation, Buffer, ConvState, Exec, Span};

use super::block::{Block, BlockState, SnakeBeta, causal};
use super::config::{CodecConfig, KERNEL};
use super::convnext::{UpsampleStage, UpsampleState};
use super::quantizer::Quantizer;

/// Kernel of the convolution before the transformer.
const FIRST_KERNEL: usize = 3;
/// Blocks at the end that a CPU runs frame by frame: their rows are many and their weights few, so that the rows of
/// more frames would leave the caches and gain nothing.
const FRAMEWISE: usize = 2;

/// The decoder half of the codec.
pub struct CodecDecoder {
    quantizer: Quantizer,
    pre_conv: Conv1d,
    input_proj: Linear,
    transformer: Decoder,
    output_proj: Linear,
    upsample: Vec<UpsampleStage>,
    first: Conv1d,
    blocks: Vec<Block>,
    snake: SnakeBeta,
    last: Conv1d,
    /// Blocks before those that run frame by frame.
    low: usize,
    config: CodecConfig,
}

/// Streaming state of a [`CodecDecoder`].
pub struct CodecDecoderState {
    codes: Buffer,
    quantized: Buffer,
    latent: Buffer,
    hidden: Buffer,
    pre_conv: ConvState,
    transformer: DecoderState,
    upsample: Vec<UpsampleState>,
    first: (ConvState, Buffer),
    blocks: Vec<BlockState>,
    /// Input rows of the blocks that run frame by frame.
    piece: Buffer,
    last: (ConvState, Buffer),
    spans: Vec<Span>,
    audio: Vec<f32>,
    /// Samples of the last call.
    made: usize,
    slots: usize,
    max_frames: usize,
    slot_frames: usize,
}

/// A stage of the decoder, for those who watch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecoderStage {
    /// After the quantisers' projections.
    Quantizer,
    /// After the first convolution.
    PreConv,
    /// After a transformer layer.
    Layer(usize),
    /// After the transformer and its projection.
    Transformer,
    /// After a part of an upsampling stage.
    Upsample(usize, usize),
    /// After a stage of `decoder` in the checkpoint.
    Decoder(usize),
    /// After a part of a block of `decoder`.
    Block(usize, usize),
}

/// Who looks at the stages, which on a CPU come in pieces towards the end.
pub type DecoderWatch<'a> = Option<&'a mut dyn FnMut(DecoderStage, &[f32])>;

struct Watcher<'a>(DecoderWatch<'a>);

impl Watcher<'_> {
    fn show(&mut self, exec: &mut Exec, stage: DecoderStage, rows: &mut Buffer, count: usize) {
        if let Some(watch) = &mut self.0 {
            exec.fetch(rows, count);
            watch(stage, rows.head(count));
        }
    }
}

impl CodecDecoder {
    /// Loads `decoder.*` of a speech tokenizer.
    pub fn load(l: &Loader, config: &CodecConfig, f: Formats) -> Result<Self, WeightError> {
        let (l, c) = (l.sub("decoder"), &config.decoder_config);
        let (t, latent, width) = (l.sub("pre_transformer"), c.latent_dim, c.hidden_size);
        // Its layers are read once for a group of frames: as what stands around a backbone.
        let layers = Formats { backbone: f.linear, ..f };
        let stages = &l.sub("decoder");
        let blocks = c
            .upsample_rates
            .iter()
            .enumerate()
            .map(|(i, &ratio)| Block::load(&stages.sub(1 + i), c.decoder_dim >> i, ratio, f));
        let blocks: Vec<Block> = blocks.collect::<Result<_, WeightError>>()?;
        let upsample = c
            .upsampling_ratios
            .iter()
            .enumerate()
            .map(|(i, &ratio)| UpsampleStage::load(&l.sub("upsample").sub(i), latent, ratio, f));
        let (after, end) = (1 + blocks.len(), c.decoder_dim >> blocks.len());
        Ok(Self {
            quantizer: Quantizer::load(&l.sub("quantizer"), c, f)?,
            pre_conv: Conv1d::load(
                &l.sub("pre_conv.conv"),
                causal(c.codebook_dim, latent, FIRST_KERNEL, 1),
                f.conv,
            )?,
            input_proj: Linear::load(&t.sub("input_proj"), width, latent, f.linear)?,
            transformer: Decoder::load(&t, c.transformer(), layers)?,
            output_proj: Linear::load(&t.sub("output_proj"), latent, width, f.linear)?,
            upsample: upsample.collect::<Result<_, WeightError>>()?,
            first: Conv1d::load(&stages.sub("0.conv"), causal(latent, c.decoder_dim, KERNEL, 1), f.conv)?,
            snake: SnakeBeta::load(&stages.sub(after), end)?,
            last: Conv1d::load(&stages.sub(after + 1).sub("conv"), causal(end, 1, KERNEL, 1), f.conv)?,
            low: blocks.len().saturating_sub(FRAMEWISE),
            blocks,
            config: config.clone(),
        })
    }

    /// Its configuration.
    pub fn config(&self) -> &CodecConfig {
        &self.config
    }

    /// Samples per second.
    pub fn sample_rate(&self) -> usize {
        self.config.output_sample_rate
    }

    /// Samples per frame.
    pub fn frame_size(&self) -> usize {
        self.config.decode_upsample_rate
    }

    /// Codes of a frame.
    pub fn codebooks(&self) -> usize {
        self.config.codebooks()
    }

    /// Codes are below this.
    pub fn codebook_size(&self) -> usize {
        self.config.decoder_config.codebook_size
    }

    /// State for `slots` streams, with up to `max_frames` frames in one call over all of them.
    pub fn state(&self, slots: usize, max_frames: usize) -> CodecDecoderState {
        self.state_for(slots, max_frames, max_frames)
    }

    /// As [`CodecDecoder::state`], with up to `slot_frames` of one slot in a call: what a slot keeps grows with it.
    pub fn state_for(&self, slots: usize, max_frames: usize, slot_frames: usize) -> CodecDecoderState {
        let c = &self.config.decoder_config;
        let shape = TransformerShape { slots, rows: max_frames, rows_per_slot: slot_frames, positions: 0 };
        let mut rows = max_frames;
        let upsample = self.upsample.iter().map(|stage| {
            let state = stage.state(slots, rows);
            rows *= stage.ratio();
            state
        });
        let upsample = upsample.collect();
        let steps = c.steps();
        CodecDecoderState {
            codes: Buffer::new(max_frames, self.quantizer.row()),
            quantized: Buffer::new(max_frames, c.codebook_dim),
            latent: Buffer::new(max_frames, c.latent_dim),
            hidden: Buffer::new(max_frames, c.hidden_size),
            pre_conv: self.pre_conv.state(slots),
            transformer: self.transformer.state(shape),
            upsample,
            first: (self.first.state(slots), Buffer::new(max_frames * steps, c.decoder_dim)),
            blocks: self.block_states(slots, max_frames, 1),
            piece: Buffer::new(self.rows_before(self.low), c.decoder_dim >> self.low),
            last: (self.last.state(slots), Buffer::new(self.frame_size(), 1)),
            spans: Vec::with_capacity(slots),
            audio: Vec::with_capacity(max_frames * self.frame_size()),
            made: 0,
            slots,
            max_frames,
            slot_frames,
        }
    }

    /// States of all blocks, the last ones for calls of `last_frames`.
    fn block_states(&self, slots: usize, frames: usize, last_frames: usize) -> Vec<BlockState> {
        let of = |i| if i < self.low { frames } else { last_frames };
        self.blocks
            .iter()
            .enumerate()
            .map(|(i, block)| block.state(slots, of(i) * self.rows_before(i)))
            .collect()
    }

    /// Rows of a frame before a block.
    fn rows_before(&self, block: usize) -> usize {
        self.blocks[..block].iter().map(Block::ratio).product::<usize>() * self.config.decoder_config.steps()
    }

    /// Decodes the spans' frames (rows are frames): `codes` has the codes of each frame, one frame after the other.
    /// Samples of all spans follow each other.
    pub fn decode<'s>(
        &self,
        exec: &mut Exec,
        state: &'s mut CodecDecoderState,
        spans: &[Span],
        codes: &[u32],
    ) -> &'s [f32] {
        self.decode_watched(exec, state, spans, codes, None)
    }

    /// The first half of [`CodecDecoder::decode`], after which a device works while the host does something else.
    pub fn begin_decode(
        &self,
        exec: &mut Exec,
        state: &mut CodecDecoderState,
        spans: &[Span],
        codes: &[u32],
    ) {
        self.run(exec, state, spans, codes, Watcher(None));
        exec.begin();
    }

    /// The samples of the frames that were begun last.
    pub fn finish_decode<'s>(&self, exec: &mut Exec, state: &'s mut CodecDecoderState) -> &'s [f32] {
        if exec.wants_batches() {
            let (made, out) = (state.made, &mut state.last.1);
            exec.fetch(out, made);
            state.audio.clear();
            state.audio.extend(out.head(made).iter().map(|v| v.clamp(-1.0, 1.0)));
        }
        &state.audio
    }

    /// As [`CodecDecoder::decode`], showing each stage's rows.
    pub fn decode_watched<'s>(
        &self,
        exec: &mut Exec,
        state: &'s mut CodecDecoderState,
        spans: &[Span],
        codes: &[u32],
        watch: DecoderWatch<'_>,
    ) -> &'s [f32] {
        self.run(exec, state, spans, codes, Watcher(watch));
        self.finish_decode(exec, state)
    }

    /// Starts a slot as if these frames had been decoded, whose samples nobody hears. Only the transformer sees all of
    /// them; of the convolutions, which see a few frames back, the last ones are enough for the same bits.
    pub fn prime(&self, exec: &mut Exec, state: &mut CodecDecoderState, slot: usize, codes: &[u32]) {
        state.reset(slot);
        let books = self.codebooks();
        let frames = codes.len() / books;
        let (early, late) = codes.split_at(frames.saturating_sub(self.reach()) * books);
        let most = state.max_frames.min(state.slot_frames);
        for codes in early.chunks(most * books) {
            let spans = [Span { slot, rows: codes.len() / books }];
            self.run_frames(exec, state, &spans, codes, &mut Watcher(None));
        }
        for codes in late.chunks(most * books) {
            let spans = [Span { slot, rows: codes.len() / books }];
            self.run(exec, state, &spans, codes, Watcher(None));
        }
        state.audio.clear();
        state.made = 0;
    }

    /// Frames that the convolutions after the transformer look back, at most.
    fn reach(&self) -> usize {
        let past = |c: &Conv1d| (c.config().kernel - 1) * c.config().dilation;
        let mut rows = past(&self.last);
        for block in self.blocks.iter().rev() {
            rows = (rows + block.past()).div_ceil(block.ratio()) + 1;
        }
        rows += past(&self.first);
        for stage in self.upsample.iter().rev() {
            rows = (rows + KERNEL - 1).div_ceil(stage.ratio());
        }
        rows
    }

    fn run(
        &self,
        exec: &mut Exec,
        state: &mut CodecDecoderState,
        spans: &[Span],
        codes: &[u32],
        mut watch: Watcher<'_>,
    ) {
        let frames: usize = spans.iter().map(|s| s.rows).sum();
        assert!(frames <= state.max_frames, "{frames} frames in a state for {}", state.max_frames);
        assert!(spans.iter().all(|s| s.rows <= state.slot_frames), "{} frames a slot", state.slot_frames);
        assert_eq!(codes.len(), frames * self.codebooks(), "a code per frame and codebook");
        state.made = frames * self.frame_size();
        state.audio.clear();
        if frames == 0 {
            return;
        }
        self.run_frames(exec, state, spans, codes, &mut watch);
        self.run_upsample(exec, state, spans, &mut watch);
        let CodecDecoderState { first, upsample, blocks, spans: now, .. } = state;
        let (past, made) = first;
        let x = upsample.last_mut().map_or(&mut state.latent, |s| &mut s.x);
        self.first.run(exec, x, ConvIo { spans: now, pre: Activation::None, add: false }, past, made);
        watch.show(exec, DecoderStage::Decoder(0), made, rows(now));
        let (low, high) = blocks.split_at_mut(self.low);
        self.run_blocks(exec, 0, made, low, now, &mut watch);
        let made = low.last_mut().map_or(made, |b| &mut b.x);
        if exec.wants_batches() {
            // All rows there are.
            if state.last.1.rows() < state.max_frames * self.frame_size() {
                grow(self, high, state.max_frames);
                state.last.1 = Buffer::new(state.max_frames * self.frame_size(), 1);
            }
            self.run_blocks(exec, self.low, made, high, now, &mut watch);
            let made = high.last_mut().map_or(made, |b| &mut b.x);
            self.run_last(exec, made, now, &mut state.last, &mut watch);
            return;
        }
        let (each, mut frame) = (self.rows_before(self.low), 0);
        for s in spans {
            for _ in 0..s.rows {
                exec.copy_head(made, frame * each, &mut state.piece, each);
                let mut span = [Span { slot: s.slot, rows: each }];
                self.run_blocks(exec, self.low, &mut state.piece, high, &mut span, &mut watch);
                let made = high.last_mut().map_or(&mut state.piece, |b| &mut b.x);
                self.run_last(exec, made, &span, &mut state.last, &mut watch);
                let samples = state.last.1.head(self.frame_size());
                state.audio.extend(samples.iter().map(|v| v.clamp(-1.0, 1.0)));
                frame += 1;
            }
        }
    }

    /// What runs at the rate of frames.
    fn run_frames(
        &self,
        exec: &mut Exec,
        state: &mut CodecDecoderState,
        spans: &[Span],
        codes: &[u32],
        watch: &mut Watcher<'_>,
    ) {
        let frames = rows(spans);
        state.codes.discard();
        self.quantizer.embed(codes, state.codes.head_mut(frames));
        self.quantizer.proj.run(exec, &state.codes, frames, &mut state.quantized);
        watch.show(exec, DecoderStage::Quantizer, &mut state.quantized, frames);
        let io = ConvIo { spans, pre: Activation::None, add: false };
        self.pre_conv.run(exec, &state.quantized, io, &mut state.pre_conv, &mut state.latent);
        watch.show(exec, DecoderStage::PreConv, &mut state.latent, frames);
        self.input_proj.run(exec, &state.latent, frames, &mut state.hidden);
        let mut each =
            watch.0.as_mut().map(|w| move |i: usize, rows: &[f32]| w(DecoderStage::Layer(i), rows));
        let each = each.as_mut().map(|w| w as &mut dyn FnMut(usize, &[f32]));
        self.transformer.run_watched(exec, &mut state.hidden, spans, &mut state.transformer, each);
        let mut op = self.output_proj.op(&state.hidden, frames);
        op.norm = self.transformer.norm();
        exec.linear(&op, &mut state.latent);
        watch.show(exec, DecoderStage::Transformer, &mut state.latent, frames);
    }

    /// The upsampling stages; leaves the spans as the last of them has them.
    fn run_upsample(
        &self,
        exec: &mut Exec,
        state: &mut CodecDecoderState,
        spans: &[Span],
        watch: &mut Watcher<'_>,
    ) {
        state.spans.clear();
        state.spans.extend_from_slice(spans);
        let (mut x, now) = (&mut state.latent, &mut state.spans);
        for (i, (stage, stage_state)) in self.upsample.iter().zip(&mut state.upsample).enumerate() {
            stage.run(exec, x, now, stage_state, |exec, out, rows| {
                watch.show(exec, DecoderStage::Upsample(i, 0), out, rows);
            });
            x = &mut stage_state.x;
            watch.show(exec, DecoderStage::Upsample(i, 1), x, rows(now));
        }
    }

    /// Runs blocks from number `first` on, as many as there are states.
    fn run_blocks<'b>(
        &self,
        exec: &mut Exec,
        first: usize,
        mut x: &'b mut Buffer,
        states: &'b mut [BlockState],
        spans: &mut [Span],
        watch: &mut Watcher<'_>,
    ) {
        for (i, (block, state)) in self.blocks[first..].iter().zip(states).enumerate() {
            if watch.0.is_some() {
                let mut show = |exec: &mut Exec, part: usize, out: &mut Buffer, rows: usize| {
                    watch.show(exec, DecoderStage::Block(1 + first + i, part), out, rows);
                };
                block.run(exec, x, spans, state, Some(&mut show));
            } else {
                block.run(exec, x, spans, state, None);
            }
            x = &mut state.x;
        }
    }

    fn run_last(
        &self,
        exec: &mut Exec,
        x: &mut Buffer,
        spans: &[Span],
        (past, out): &mut (ConvState, Buffer),
        watch: &mut Watcher<'_>,
    ) {
        let (count, at) = (rows(spans), 1 + self.blocks.len());
        if !self.last.run_snaked(exec, self.snake.op(), x, spans, past, out) {
            exec.snake_in_place(self.snake.op(), x, count);
            watch.show(exec, DecoderStage::Decoder(at), x, count);
            self.last.run(exec, x, ConvIo { spans, pre: Activation::None, add: false }, past, out);
        }
        watch.show(exec, DecoderStage::Decoder(at + 1), out, count);
    }

    /// Multiply-adds per frame, attention not counted.
    pub fn macs_per_frame(&self) -> usize {
        let mut rows = 1;
        let mut macs = self.quantizer.proj.macs() + self.pre_conv.macs() + self.transformer.macs();
        macs += self.input_proj.macs() + self.output_proj.macs();
        for stage in &self.upsample {
            macs += rows * stage.macs();
            rows *= stage.ratio();
        }
        macs += rows * self.first.macs();
        for block in &self.blocks {
            macs += rows * block.macs();
            rows *= block.ratio();
        }
        macs + rows * self.last.macs()
    }

    /// Bytes of weights read by one call.
    pub fn bytes(&self) -> usize {
        let frames = self.quantizer.bytes() + self.pre_conv.bytes() + self.transformer.bytes();
        let proj = self.input_proj.bytes() + self.output_proj.bytes();
        let upsample: usize = self.upsample.iter().map(UpsampleStage::bytes).sum();
        let blocks: usize = self.blocks.iter().map(Block::bytes).sum();
        frames + proj + upsample + self.first.bytes() + blocks + self.last.bytes()
    }
}

/// Gives blocks room for the rows of `frames` frames; streams in progress go on as before.
fn grow(decoder: &CodecDecoder, states: &mut [BlockState], frames: usize) {
    let larger = decoder.block_states(0, frames, frames);
    for (state, larger) in states.iter_mut().zip(larger.into_iter().skip(decoder.low)) {
        state.take_room(larger);
    }
}

fn rows(spans: &[Span]) -> usize {
    spans.iter().map(|s| s.rows).sum()
}

impl CodecDecoderState {
    /// Starts a slot anew.
    pub fn reset(&mut self, slot: usize) {
        self.pre_conv.reset(slot);
        self.transformer.cache.reset(slot);
        self.upsample.iter_mut().for_each(|s| s.reset(slot));
        self.first.0.reset(slot);
        self.blocks.iter_mut().for_each(|b| b.reset(slot));
        self.last.0.reset(slot);
    }

    /// Streams side by side.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Frames that one call takes.
    pub fn max_frames(&self) -> usize {
        self.max_frames
    }
}
