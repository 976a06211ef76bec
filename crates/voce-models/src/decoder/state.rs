//! What streams of a frame decoder keep between frames, and the buffers of a step.

use std::time::Instant;

use voce_nn::{DecoderState, TransformerShape};
use voce_runtime::cuda::CudaError;
use voce_runtime::{Buffer, Exec, KvCache, KvSpec, SentTokens, Tokens};

use super::FrameDecoder;
use super::text::TextState;

/// How large a state is to be.
#[derive(Clone, Copy, Debug)]
pub struct FrameShape {
    /// Streams side by side.
    pub slots: usize,
    /// Positions kept, for models without a window.
    pub positions: usize,
    /// Rows that a prefill may take at once, of one slot or of several.
    pub prefill: usize,
}

/// Buffers of the decoder that draws the rest of a frame.
pub(super) struct PredictorState {
    pub(super) decoder: DecoderState,
    /// Two rows for each slot: the frame, and its first token.
    pub(super) first: Buffer,
    /// One row for each slot: the token before.
    pub(super) x: Buffer,
    pub(super) logits: Buffer,
}

/// State of all streams.
pub struct FrameState {
    pub(super) decoder: DecoderState,
    pub(super) predictor: Option<PredictorState>,
    pub(super) tokens: Tokens,
    pub(super) history: Tokens,
    /// Of tokens that go through layers of their own.
    pub(super) text: Option<TextState>,
    /// Tokens of the rows of a prompt.
    pub(super) prompt: Tokens,
    /// Vectors that are added to rows of prompts, and those rows.
    pub(super) vectors: Buffer,
    pub(super) picked: Buffer,
    pub(super) x: Buffer,
    pub(super) logits: Buffer,
    /// Frames that each slot has had.
    pub(super) frames: Vec<u32>,
    /// Rows that a slot may take at once.
    pub(super) prefill: usize,
    pub(super) halfway: Instant,
}

impl FrameState {
    pub(super) fn new(model: &FrameDecoder, shape: FrameShape) -> Self {
        let (c, slots) = (model.config(), shape.slots);
        let prefill = shape.prefill.max(1);
        let rows = slots.max(prefill);
        let transformer =
            TransformerShape { slots, rows, rows_per_slot: prefill, positions: shape.positions };
        let predictor = model.predictor().map(|decoder| {
            let tokens = c.drawn();
            let width = decoder.config().hidden;
            let vocab = c.predictor.as_ref().map_or(0, |p| p.vocab);
            PredictorState {
                decoder: decoder.state(TransformerShape {
                    slots,
                    rows: 2 * slots,
                    rows_per_slot: 2,
                    positions: tokens,
                }),
                first: Buffer::new(2 * slots, width),
                x: Buffer::new(slots, width),
                logits: Buffer::new(slots, vocab),
            }
        });
        Self {
            decoder: model.decoder().state(transformer),
            predictor,
            tokens: Tokens::new(slots, c.columns(), u32::MAX),
            history: Tokens::history(slots, c.vocab),
            text: model.text().map(|text| text.state(rows)),
            prompt: Tokens::new(rows, c.columns(), u32::MAX),
            vectors: Buffer::new(slots, c.decoder.hidden),
            picked: Buffer::new(slots, c.decoder.hidden),
            x: Buffer::new(rows, c.decoder.hidden),
            logits: Buffer::new(slots, c.vocab),
            frames: vec![0; slots],
            prefill,
            halfway: Instant::now(),
        }
    }

    /// Takes the memory of keys and values now, so that lack of it is known before a stream begins.
    pub fn reserve(&mut self, exec: &mut Exec) -> Result<(), CudaError> {
        exec.reserve_cache(&mut self.decoder.cache)?;
        self.predictor.as_mut().map_or(Ok(()), |p| exec.reserve_cache(&mut p.decoder.cache))
    }

    /// Positions that a slot has room for; models with a window forget instead.
    pub fn capacity(&self) -> usize {
        self.decoder.cache.spec().capacity
    }

    /// The next position of a slot.
    pub fn position(&self, slot: usize) -> usize {
        self.decoder.cache.position(slot)
    }

    /// Bytes of keys and values.
    pub fn cache_bytes(&self) -> usize {
        let predictor = self.predictor.as_ref().map_or(0, |p| p.decoder.cache.spec().bytes());
        self.decoder.cache.spec().bytes() + predictor
    }

    /// Begins a stream in a slot.
    pub fn start(&mut self, exec: &mut Exec, slot: usize) {
        let none = vec![u32::MAX; self.tokens.cols()];
        self.start_all(exec, &[slot], &none);
    }

    /// Begins streams in slots; `rows` has the tokens that each goes on from.
    pub(super) fn start_all(&mut self, exec: &mut Exec, slots: &[usize], rows: &[u32]) {
        for &slot in slots {
            self.decoder.cache.reset(slot);
            self.frames[slot] = 0;
        }
        let none = vec![0; slots.len() * self.history.cols()];
        exec.set_tokens(&mut self.history, slots, 0, &none);
        exec.set_tokens(&mut self.tokens, slots, 0, rows);
    }

    /// Sets tokens of slots from `column` on, as many for each: what is given from outside, or a frame to go on from.
    pub fn give(&mut self, exec: &mut Exec, slots: &[usize], column: usize, values: &[u32]) {
        exec.set_tokens(&mut self.tokens, slots, column, values);
    }

    /// The tokens of every slot's last frame; waits for a device.
    pub fn tokens(&mut self, exec: &mut Exec) -> &Tokens {
        exec.fetch_tokens(&mut self.tokens);
        &self.tokens
    }

    /// Sends the tokens of every slot's last frame to the host, and does not wait.
    pub fn send(&self, exec: &mut Exec, sent: &mut SentTokens) {
        exec.send_tokens(&self.tokens, sent);
    }

    /// When a step on the host had drawn the first token of its frame.
    pub fn halfway(&self) -> Instant {
        self.halfway
    }

    /// Logits of the last step's rows, to look at.
    pub fn logits(&mut self, exec: &mut Exec, rows: usize) -> &[f32] {
        exec.fetch(&mut self.logits, rows);
        self.logits.head(rows)
    }

    /// Gives every slot a past of `positions` with made-up keys and values, to measure what it costs.
    pub fn fill(&mut self, exec: &mut Exec, positions: usize) {
        let cache = &mut self.decoder.cache;
        let spec = *cache.spec();
        let kept = positions.min(spec.capacity);
        if kept == 0 {
            return;
        }
        // One slot's values are made and copied to all, on a device within its memory.
        let mut past = KvCache::new(KvSpec { slots: 1, capacity: kept, ..spec });
        let mut state = 0x9e37_79b9u32;
        let block: Vec<f32> = (0..(1 << 16) + 1)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                state as f32 / u32::MAX as f32 - 0.5
            })
            .collect();
        let count = 2 * spec.layers * spec.kv_heads * kept * spec.head_dim;
        let values: Vec<f32> = block.iter().copied().cycle().take(count).collect();
        exec.write_cache(&mut past, 0, 0..kept, &values);
        for slot in 0..spec.slots {
            exec.copy_prefix(cache, slot, &past, 0, kept);
            cache.advance(slot, positions - kept);
        }
        exec.finish();
    }
}
