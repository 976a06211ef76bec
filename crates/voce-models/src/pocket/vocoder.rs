//! Mimi's decoder as the second half of Pocket TTS: latents in, samples out.

use std::sync::Arc;

use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError, Span};

use crate::mimi::{MimiDecoder, MimiDecoderState};
use crate::speech::{Frame, Vocoder, VocoderRoom, Voice};

/// Slots of a decoder.
pub(super) struct PocketVocoder {
    decoder: Arc<MimiDecoder>,
    state: MimiDecoderState,
    room: VocoderRoom,
    latents: Vec<f32>,
}

impl PocketVocoder {
    pub(super) fn new(decoder: Arc<MimiDecoder>, room: VocoderRoom) -> Self {
        let state = decoder.state_for(room.slots, room.frames, room.slot_frames);
        Self { decoder, state, room, latents: Vec::new() }
    }

    /// Frames of silence for each of `spans`.
    fn silence(&mut self, exec: &mut Exec, spans: &[Span]) {
        let frames: usize = spans.iter().map(|s| s.rows).sum();
        self.latents.clear();
        self.latents.resize(frames * self.decoder.latent_dim(), 0.0);
        spans.iter().for_each(|s| self.state.reset(s.slot));
        self.decoder.decode(exec, &mut self.state, spans, &self.latents);
    }
}

impl Vocoder for PocketVocoder {
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        let spans = self.room.largest();
        Ok(exec.rehearse(|exec| (0..2).for_each(|_| self.silence(exec, &spans)))?)
    }

    fn start(&mut self, _exec: &mut Exec, slot: usize, _voice: Option<&Voice>) {
        self.state.reset(slot);
    }

    fn step(&mut self, exec: &mut Exec, spans: &[Span], frames: &[Frame]) {
        self.latents.clear();
        for frame in frames {
            let Frame::Latent(latent) = frame else { unreachable!("frames of another family's synth") };
            self.latents.extend_from_slice(latent);
        }
        self.decoder.begin_decode(exec, &mut self.state, spans, &self.latents);
    }

    fn fetch(&mut self, exec: &mut Exec) -> &[f32] {
        self.decoder.finish_decode(exec, &mut self.state)
    }

    fn warm(&mut self, exec: &mut Exec) {
        self.silence(exec, &[Span { slot: 0, rows: 1 }]);
    }
}
