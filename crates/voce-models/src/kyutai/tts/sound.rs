//! Codes to samples: Mimi's decoder, which hears a voice's own codes first, and whose samples stay within bounds.

use std::sync::Arc;

use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError, Span};

use crate::mimi::{Mimi, MimiDecoderState};
use crate::speech::{Frame, Vocoder, VocoderRoom, Voice};

/// Samples stay within this on both sides of 0.
const LOUDEST: f32 = 0.99;

/// Slots of a codec's decoder.
pub(super) struct TtsVocoder {
    mimi: Arc<Mimi>,
    state: MimiDecoderState,
    room: VocoderRoom,
    codes: Vec<u32>,
    samples: Vec<f32>,
}

impl TtsVocoder {
    pub(super) fn new(mimi: Arc<Mimi>, room: VocoderRoom) -> Self {
        let state = mimi.decoder().state_for(room.slots, room.frames, room.slot_frames);
        Self { mimi, state, room, codes: Vec::new(), samples: Vec::new() }
    }

    /// Frames of the first entries for each of `spans`, which nobody hears.
    fn rehearse(&mut self, exec: &mut Exec, spans: &[Span]) {
        let (decoder, frames) = (self.mimi.decoder(), spans.iter().map(|s| s.rows).sum::<usize>());
        self.codes.clear();
        self.codes.resize(frames * decoder.codebooks(), 0);
        spans.iter().for_each(|s| self.state.reset(s.slot));
        decoder.decode_codes(exec, &mut self.state, spans, &self.codes);
    }
}

impl Vocoder for TtsVocoder {
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        let spans = self.room.largest();
        Ok(exec.rehearse(|exec| (0..2).for_each(|_| self.rehearse(exec, &spans)))?)
    }

    fn start(&mut self, exec: &mut Exec, slot: usize, voice: Option<&Voice>) {
        self.state.reset(slot);
        let Some(Voice::Looked(voice)) = voice else { return };
        let (decoder, books) = (self.mimi.decoder(), voice.codes());
        let frames = books.first().map_or(0, Vec::len);
        for first in (0..frames).step_by(self.room.slot_frames.max(1)) {
            let rows = self.room.slot_frames.max(1).min(frames - first);
            let frame = |t: usize| {
                let known = books.iter().map(move |book| book[t]);
                known.chain(std::iter::repeat(u32::MAX)).take(decoder.codebooks())
            };
            let codes: Vec<u32> = (first..first + rows).flat_map(frame).collect();
            decoder.decode_codes(exec, &mut self.state, &[Span { slot, rows }], &codes);
        }
    }

    fn step(&mut self, exec: &mut Exec, spans: &[Span], frames: &[Frame]) {
        let decoder = self.mimi.decoder();
        self.codes.clear();
        for frame in frames {
            let Frame::Codes(codes) = frame else { unreachable!("frames of another family's synth") };
            self.codes
                .extend(codes.iter().copied().chain(std::iter::repeat(u32::MAX)).take(decoder.codebooks()));
        }
        decoder.begin_codes(exec, &mut self.state, spans, &self.codes);
    }

    fn fetch(&mut self, exec: &mut Exec) -> &[f32] {
        let samples = self.mimi.decoder().finish_decode(exec, &mut self.state);
        self.samples.clear();
        self.samples.extend(samples.iter().map(|s| s.clamp(-LOUDEST, LOUDEST)));
        &self.samples
    }

    fn warm(&mut self, exec: &mut Exec) {
        self.rehearse(exec, &[Span { slot: 0, rows: 1 }]);
    }
}
