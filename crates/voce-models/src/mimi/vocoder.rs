//! The decoder as the second half of speech: frames of codes in, samples out.

use std::sync::Arc;

use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError, Span};

use super::decoder::{MimiDecoder, MimiDecoderState};
use crate::speech::{Frame, Vocoder, VocoderRoom, Voice};

/// Slots of a decoder of codes. A frame may have fewer codes than there are codebooks: the others add nothing.
pub struct MimiVocoder {
    decoder: Arc<MimiDecoder>,
    state: MimiDecoderState,
    room: VocoderRoom,
    codes: Vec<u32>,
}

impl MimiVocoder {
    /// Slots for this much.
    pub fn new(decoder: Arc<MimiDecoder>, room: VocoderRoom) -> Self {
        let state = decoder.state_for(room.slots, room.frames, room.slot_frames);
        Self { decoder, state, room, codes: Vec::new() }
    }

    /// Frames of the first entries for each of `spans`, which nobody hears.
    fn rehearse(&mut self, exec: &mut Exec, spans: &[Span]) {
        let frames: usize = spans.iter().map(|s| s.rows).sum();
        self.codes.clear();
        self.codes.resize(frames * self.decoder.codebooks(), 0);
        spans.iter().for_each(|s| self.state.reset(s.slot));
        self.decoder.decode_codes(exec, &mut self.state, spans, &self.codes);
    }
}

impl Vocoder for MimiVocoder {
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        let spans = self.room.largest();
        Ok(exec.rehearse(|exec| (0..2).for_each(|_| self.rehearse(exec, &spans)))?)
    }

    fn start(&mut self, _exec: &mut Exec, slot: usize, _voice: Option<&Voice>) {
        self.state.reset(slot);
    }

    fn step(&mut self, exec: &mut Exec, spans: &[Span], frames: &[Frame]) {
        self.codes.clear();
        for frame in frames {
            let Frame::Codes(codes) = frame else { unreachable!("frames of another family's synth") };
            let count = self.decoder.codebooks();
            self.codes.extend(codes.iter().copied().chain(std::iter::repeat(u32::MAX)).take(count));
        }
        self.decoder.begin_codes(exec, &mut self.state, spans, &self.codes);
    }

    fn fetch(&mut self, exec: &mut Exec) -> &[f32] {
        self.decoder.finish_decode(exec, &mut self.state)
    }

    fn warm(&mut self, exec: &mut Exec) {
        self.rehearse(exec, &[Span { slot: 0, rows: 1 }]);
    }
}
