//! The decoder as the second half of speech: frames of codes in, samples out.

use std::sync::Arc;

use voce_runtime::{Exec, Span};

use super::decoder::{MimiDecoder, MimiDecoderState};
use crate::speech::{Frame, SlotDecoder, VocoderRoom};

/// A decoder of codes. A frame may have fewer codes than there are codebooks: the others add nothing.
pub struct MimiCodes(pub Arc<MimiDecoder>);

impl SlotDecoder for MimiCodes {
    type State = MimiDecoderState;
    type Value = u32;

    fn state(&self, room: VocoderRoom) -> MimiDecoderState {
        self.0.state_for(room.slots, room.frames, room.slot_frames)
    }

    fn blank(&self) -> (u32, usize) {
        (0, self.0.codebooks())
    }

    fn take(&self, frame: &Frame, values: &mut Vec<u32>) {
        let Frame::Codes(codes) = frame else { unreachable!("frames of another family's synth") };
        let all = codes.iter().copied().chain(std::iter::repeat(u32::MAX));
        values.extend(all.take(self.0.codebooks()));
    }

    fn reset(&self, state: &mut MimiDecoderState, slot: usize) {
        state.reset(slot);
    }

    fn begin(&self, exec: &mut Exec, state: &mut MimiDecoderState, spans: &[Span], codes: &[u32]) {
        self.0.begin_codes(exec, state, spans, codes);
    }

    fn finish<'s>(&self, exec: &mut Exec, state: &'s mut MimiDecoderState) -> &'s [f32] {
        self.0.finish_decode(exec, state)
    }
}
