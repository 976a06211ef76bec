//! Mimi's decoder as the second half of Pocket TTS: latents in, samples out.

use std::sync::Arc;

use voce_runtime::{Exec, Span};

use crate::mimi::{MimiDecoder, MimiDecoderState};
use crate::speech::{Frame, SlotDecoder, VocoderRoom};

/// A decoder of latents.
pub(super) struct Latents(pub Arc<MimiDecoder>);

impl SlotDecoder for Latents {
    type State = MimiDecoderState;
    type Value = f32;

    fn state(&self, room: VocoderRoom) -> MimiDecoderState {
        self.0.state_for(room.slots, room.frames, room.slot_frames)
    }

    fn blank(&self) -> (f32, usize) {
        (0.0, self.0.latent_dim())
    }

    fn take(&self, frame: &Frame, values: &mut Vec<f32>) {
        let Frame::Latent(latent) = frame else { unreachable!("frames of another family's synth") };
        values.extend_from_slice(latent);
    }

    fn reset(&self, state: &mut MimiDecoderState, slot: usize) {
        state.reset(slot);
    }

    fn begin(&self, exec: &mut Exec, state: &mut MimiDecoderState, spans: &[Span], latents: &[f32]) {
        self.0.begin_decode(exec, state, spans, latents);
    }

    fn finish<'s>(&self, exec: &mut Exec, state: &'s mut MimiDecoderState) -> &'s [f32] {
        self.0.finish_decode(exec, state)
    }
}
