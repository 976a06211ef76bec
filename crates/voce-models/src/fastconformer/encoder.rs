//! The encoder: mel rows in, rows for the head out, for many streams at once.

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::cuda::CudaError;
use voce_runtime::{
    Buffer, ChunkSpan, ConvState, Exec, FrameSpan, KvCache, KvFormat, KvSpec, RelativePositions, Span,
};

use super::conformer::{Layer, LayerInput, Scratch};
use super::positions::PositionProjections;
use super::prompt::Prompt;
use super::subsampling::{Subsampling, SubsamplingState};
use super::{Attention, EncoderConfig, FastConformerConfig};

/// Rows from which a device runs the first layers while the host still asks for the others.
const AHEAD_ROWS: usize = 4096;
const AHEAD_LAYERS: usize = 2;

/// The encoder's weights.
pub struct Encoder {
    subsampling: Subsampling,
    layers: Vec<Layer>,
    prompt: Option<Prompt>,
    positions: Positions,
    config: EncoderConfig,
    kv: KvFormat,
}

/// Distances: all that chunks can need, or what makes them for an utterance's length.
enum Positions {
    Chunked(Vec<RelativePositions>),
    Full(PositionProjections),
}

/// How a stream runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamShape {
    /// Frames after the current one that a chunk holds; of no meaning to offline models.
    pub look_ahead: usize,
    /// Slot of the language in the prompt; of no meaning to models without one.
    pub language: usize,
}

/// State of many streams, and what steps work in.
pub struct EncoderState {
    pub(super) subsampling: SubsamplingState,
    pub(super) cache: KvCache,
    pub(super) convs: Vec<ConvState>,
    pub(super) shapes: Vec<StreamShape>,
    grown: Vec<RelativePositions>,
    scratch: Scratch,
    x: Buffer,
    hidden: Buffer,
    /// The language of each row.
    languages: Vec<usize>,
    made: Vec<FrameSpan>,
    spans: Vec<Span>,
    chunks: Vec<ChunkSpan>,
}

impl Encoder {
    /// Loads `encoder.*` and, where there is one, the prompt.
    pub fn load(
        l: &Loader,
        c: &FastConformerConfig,
        f: Formats,
        exec: &mut Exec,
    ) -> Result<Self, WeightError> {
        let (encoder, e) = (l.sub("encoder"), &c.encoder);
        let positions = match &e.attention {
            Attention::Full => Positions::Full(PositionProjections::load(&encoder, e, f.kv)?),
            Attention::Chunked { left, look_aheads } => {
                let most = look_aheads.iter().copied().max().unwrap_or(0);
                // The projections are read once, so they stay out of the model's own memory.
                let projections = PositionProjections::load(&l.apart().sub("encoder"), e, f.kv)?;
                let projected = projections.project(exec, left + most, most);
                exec.status()?;
                Positions::Chunked(projected)
            }
        };
        let layers = encoder.sub("layers");
        Ok(Self {
            subsampling: Subsampling::load(&encoder.sub("pre_encode"), e, c.mel.bins, f)?,
            layers: (0..e.layers).map(|i| Layer::load(&layers.sub(i), e, f)).collect::<Result<_, _>>()?,
            prompt: c.prompt.as_ref().map(|p| Prompt::load(l, p, e.dim, f)).transpose()?,
            positions,
            config: e.clone(),
            kv: f.kv,
        })
    }

    /// Its shape.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Whether utterances have to be whole.
    pub fn is_offline(&self) -> bool {
        matches!(self.positions, Positions::Full(_))
    }

    /// Whether a prompt has a slot of this number; models without a prompt have slot 0.
    pub(super) fn has_language(&self, slot: usize) -> bool {
        slot < self.prompt.as_ref().map_or(1, Prompt::slots)
    }

    /// Mel rows that make `chunks` whole chunks, at a stream's begin or later.
    pub fn mel_rows(&self, look_ahead: usize, chunks: usize, first: bool) -> usize {
        let factor = self.config.subsampling_factor;
        let rows = chunks * factor * (look_ahead + 1);
        // The first frame needs one mel row only: zeros stand before it.
        if first { rows + 1 - factor } else { rows }
    }

    /// State for `slots` streams that take up to `frames` encoder frames a step each.
    pub fn state(&self, slots: usize, frames: usize) -> EncoderState {
        let c = &self.config;
        let (layers, capacity, format) = match &c.attention {
            // Nothing is kept between utterances, so all layers use one set of rings; less of it would save nothing.
            Attention::Full if self.kv == KvFormat::Fp8 => (1, frames, KvFormat::Bf16),
            Attention::Full => (1, frames, self.kv),
            Attention::Chunked { left, .. } => (c.layers, left + frames, self.kv),
        };
        let spec = KvSpec { layers, slots, kv_heads: c.heads, head_dim: c.dim / c.heads, capacity, format };
        EncoderState {
            subsampling: self.subsampling.state(slots),
            cache: KvCache::new(spec),
            convs: self.layers.iter().map(|l| l.conv_state(slots)).collect(),
            shapes: vec![StreamShape { look_ahead: 0, language: 0 }; slots],
            grown: Vec::new(),
            scratch: Scratch::new(),
            x: Buffer::new(1, c.dim),
            hidden: Buffer::new(1, 1),
            languages: Vec::new(),
            made: Vec::with_capacity(slots),
            spans: Vec::with_capacity(slots),
            chunks: Vec::with_capacity(slots),
        }
    }

    /// Makes what utterances of up to `frames` frames need beside memory, where the model takes whole ones: distances.
    pub fn prepare(&self, exec: &mut Exec, state: &mut EncoderState, frames: usize) -> Result<(), CudaError> {
        if let Positions::Full(projections) = &self.positions {
            self.make_room(exec, projections, state, frames);
        }
        exec.status()
    }

    /// Begins a stream in a slot.
    pub fn start(&self, state: &mut EncoderState, slot: usize, shape: StreamShape) {
        state.subsampling.reset(slot);
        state.cache.reset(slot);
        state.convs.iter_mut().for_each(|c| c.reset(slot));
        state.shapes[slot] = shape;
    }

    /// Runs over mel rows of some slots. A span that is not its stream's last has to make whole chunks
    /// ([`Encoder::mel_rows`]); for offline models it is the whole utterance. Returns the rows for the head
    /// and whose they are.
    pub fn step<'s>(
        &self,
        exec: &mut Exec,
        state: &'s mut EncoderState,
        mel: &Buffer,
        spans: &[FrameSpan],
    ) -> (&'s mut Buffer, &'s [Span]) {
        let s = state;
        self.subsampling.run(exec, &mut s.subsampling, mel, spans, &mut s.made, &mut s.x);
        s.spans.clear();
        s.chunks.clear();
        let (mut longest, mut all) = (0, 0);
        for made in &s.made {
            let (slot, rows) = (made.slot, made.rows);
            s.spans.push(Span { slot, rows });
            all += rows;
            longest = longest.max(rows);
            s.chunks.push(match &self.config.attention {
                Attention::Full => ChunkSpan { slot, rows, chunk: usize::MAX, left: 0 },
                Attention::Chunked { left, .. } => {
                    let chunk = s.shapes[slot].look_ahead + 1;
                    debug_assert!(made.last || rows.is_multiple_of(chunk), "whole chunks");
                    ChunkSpan { slot, rows, chunk, left: left / chunk * chunk }
                }
            });
        }
        if longest == 0 {
            return (&mut s.x, &s.spans);
        }
        if let Positions::Full(projections) = &self.positions {
            self.make_room(exec, projections, s, longest);
        }
        let positions = match &self.positions {
            Positions::Chunked(positions) => positions,
            Positions::Full(_) => &s.grown,
        };
        for (i, layer) in self.layers.iter().enumerate() {
            let input = LayerInput {
                spans: &s.spans,
                chunks: &s.chunks,
                cache: &mut s.cache,
                layer: if self.is_offline() { 0 } else { i },
                conv: &mut s.convs[i],
                positions: &positions[i],
            };
            layer.run(exec, input, &mut s.x, &mut s.scratch);
            if i + 1 == AHEAD_LAYERS && all >= AHEAD_ROWS {
                exec.begin();
            }
        }
        for span in &s.spans {
            s.cache.advance(span.slot, span.rows);
        }
        if let Some(prompt) = &self.prompt {
            s.languages.clear();
            s.languages
                .extend(s.spans.iter().flat_map(|p| std::iter::repeat_n(s.shapes[p.slot].language, p.rows)));
            prompt.run(exec, all, &s.languages, &mut s.x, &mut s.hidden);
        }
        (&mut s.x, &s.spans)
    }

    /// Tabulates distances and makes rings long enough for an utterance.
    fn make_room(&self, exec: &mut Exec, p: &PositionProjections, s: &mut EncoderState, longest: usize) {
        if s.grown.first().is_none_or(|p| p.farthest + 1 < longest) {
            let reach = longest.next_power_of_two().max(128);
            s.grown = p.project(exec, reach - 1, reach - 1);
        }
        if s.cache.spec().capacity < longest {
            s.cache = KvCache::new(KvSpec { capacity: longest.next_power_of_two(), ..*s.cache.spec() });
        }
    }

    /// Bytes of weights that a step reads.
    pub fn bytes(&self) -> usize {
        self.subsampling.bytes() + self.layers.iter().map(Layer::bytes).sum::<usize>()
    }

    /// Multiply-adds per encoder frame, attention over keys left out.
    pub fn macs(&self) -> usize {
        self.subsampling.macs() + self.layers.iter().map(Layer::macs).sum::<usize>()
    }
}

impl EncoderState {
    /// Encoder frames that `rows` more mel rows of a slot give.
    pub fn yields(&self, slot: usize, rows: usize, last: bool) -> usize {
        self.subsampling.yields(slot, rows, last)
    }

    /// Keys and values of all streams.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// How the stream in a slot runs.
    pub fn shape(&self, slot: usize) -> StreamShape {
        self.shapes[slot]
    }

    /// Encoder frames that a slot has made.
    pub fn position(&self, slot: usize) -> usize {
        self.cache.position(slot)
    }

    /// Bytes that a slot's state takes.
    pub fn bytes_per_slot(&self) -> usize {
        let slots = self.shapes.len();
        let stages: usize = self.subsampling.stages().iter().map(|s| s.slot_len() * 4).sum();
        self.cache.spec().bytes() / slots
            + stages
            + self.convs.iter().map(|c| c.slot_len() * 4).sum::<usize>()
    }
}
