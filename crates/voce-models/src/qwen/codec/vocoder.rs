//! The decoder as the second half of speech: frames of codes in, samples out.

use std::sync::Arc;

use voce_runtime::{Exec, Span};

use super::decoder::{CodecDecoder, CodecDecoderState};
use crate::speech::{Frame, SlotDecoder, VocoderRoom, Voice};

/// A decoder of codes. Frames have a code of each codebook, below [`CodecDecoder::codebook_size`].
pub struct CodecCodes(pub Arc<CodecDecoder>);

impl SlotDecoder for CodecCodes {
    type State = CodecDecoderState;
    type Value = u32;

    fn state(&self, room: VocoderRoom) -> CodecDecoderState {
        self.0.state_for(room.slots, room.frames, room.slot_frames)
    }

    fn blank(&self) -> (u32, usize) {
        (0, self.0.codebooks())
    }

    fn take(&self, frame: &Frame, values: &mut Vec<u32>) {
        let Frame::Codes(codes) = frame else { unreachable!("frames of another family's synth") };
        values.extend_from_slice(codes);
    }

    fn reset(&self, state: &mut CodecDecoderState, slot: usize) {
        state.reset(slot);
    }

    fn begin(&self, exec: &mut Exec, state: &mut CodecDecoderState, spans: &[Span], codes: &[u32]) {
        self.0.begin_decode(exec, state, spans, codes);
    }

    fn finish<'s>(&self, exec: &mut Exec, state: &'s mut CodecDecoderState) -> &'s [f32] {
        self.0.finish_decode(exec, state)
    }

    fn start(&self, exec: &mut Exec, state: &mut CodecDecoderState, slot: usize, voice: Option<&Voice>) {
        // A recording that the frames go on from is decoded before them, and not heard.
        match voice {
            Some(Voice::Prompt(voice)) if voice.clip_codes().is_some() => {
                self.0.prime(exec, state, slot, voice.clip_codes().unwrap_or_default());
            }
            _ => state.reset(slot),
        }
    }
}
