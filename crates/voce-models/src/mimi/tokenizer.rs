//! Samples to frames of codes, in slots: the encoder and the search over its latents.

use std::sync::Arc;

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::{Buffer, Exec, Span, Tokens};

use super::encoder::{EncoderParts, MimiEncoder, MimiEncoderState};
use super::kyutai_config::KyutaiMimiConfig;
use super::quantizer::{Codebooks, SearchState, SplitSearch};

/// The encoder half of Kyutai's codec.
pub struct MimiTokenizer {
    encoder: MimiEncoder,
    search: SplitSearch,
}

/// Streaming state of a [`MimiTokenizer`].
pub struct MimiTokenizerState {
    pub(super) encoder: MimiEncoderState,
    search: SearchState,
    /// Latents of some frames of a call.
    some: Buffer,
}

impl MimiTokenizer {
    /// Loads `encoder`, `encoder_transformer`, `downsample` and `quantizer`; `l` knows the
    /// [published](super::published) names.
    pub fn load(
        l: &Loader,
        c: &KyutaiMimiConfig,
        f: Formats,
        books: Arc<Codebooks>,
    ) -> Result<Self, WeightError> {
        let parts = EncoderParts {
            seanet: &c.seanet,
            transformer: c.layers(f.linear, f.kv),
            steps: c.steps(),
            by_frames: true,
        };
        Ok(Self {
            encoder: MimiEncoder::from_parts(l, &parts, f)?,
            search: SplitSearch::load(&l.sub("quantizer"), books)?,
        })
    }

    /// Samples of a frame.
    pub fn frame_size(&self) -> usize {
        self.encoder.frame_size()
    }

    /// Codes of a frame.
    pub fn codebooks(&self) -> usize {
        self.search.books().len()
    }

    /// The encoder before the search.
    pub fn encoder(&self) -> &MimiEncoder {
        &self.encoder
    }

    /// State for `slots` streams, with up to `frames` frames in one call over all of them and `slot_frames` of one.
    pub fn state(&self, slots: usize, frames: usize, slot_frames: usize) -> MimiTokenizerState {
        MimiTokenizerState {
            encoder: self.encoder.state_for(slots, frames, slot_frames),
            search: self.search.state(frames),
            some: Buffer::new(frames, self.encoder.latent_dim()),
        }
    }

    /// Enqueues the encoding of the spans' frames (rows are frames), whose samples follow each other. The codes of frame
    /// `i` go to row `rows[i]` of `tokens`, from `column` on; no row is named twice.
    #[allow(clippy::too_many_arguments)] // whose, what, and where to
    pub fn encode(
        &self,
        exec: &mut Exec,
        state: &mut MimiTokenizerState,
        spans: &[Span],
        samples: &[f32],
        rows: &[usize],
        tokens: &mut Tokens,
        column: usize,
    ) {
        let latents = self.encoder.encode_frames(exec, &mut state.encoder, spans, samples);
        self.search.search(exec, &mut state.search, latents, rows, tokens, column);
    }

    /// The first half of [`MimiTokenizer::encode`]: the frames' latents, whose codes are [found](MimiTokenizer::find) later.
    pub fn begin(&self, exec: &mut Exec, state: &mut MimiTokenizerState, spans: &[Span], samples: &[f32]) {
        self.encoder.encode_frames(exec, &mut state.encoder, spans, samples);
    }

    /// Writes the codes of some of the frames that were begun last, by their numbers, to rows of `tokens` from `column`
    /// on; no row is named twice.
    pub fn find(
        &self,
        exec: &mut Exec,
        state: &mut MimiTokenizerState,
        frames: &[usize],
        rows: &[usize],
        tokens: &mut Tokens,
        column: usize,
    ) {
        let latents = state.encoder.latents();
        let latents = if frames.iter().enumerate().all(|(i, &frame)| i == frame) {
            latents
        } else {
            exec.gather_rows(latents, frames, 0, &mut state.some);
            &state.some
        };
        self.search.search(exec, &mut state.search, latents, rows, tokens, column);
    }

    /// Multiply-adds of a frame, attention not counted.
    pub fn macs_per_frame(&self) -> usize {
        self.encoder.macs_per_frame() + self.search.macs()
    }

    /// Bytes of weights read by one call.
    pub fn bytes(&self) -> usize {
        self.encoder.bytes() + self.search.bytes()
    }
}

impl MimiTokenizerState {
    /// Starts a slot anew.
    pub fn reset(&mut self, slot: usize) {
        self.encoder.reset(slot);
    }
}
