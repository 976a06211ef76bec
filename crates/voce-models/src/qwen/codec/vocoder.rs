//! The decoder as the second half of speech: frames of codes in, samples out.

use std::sync::Arc;

use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError, Span};

use super::decoder::{CodecDecoder, CodecDecoderState};
use crate::speech::{Frame, Vocoder, VocoderRoom, Voice};

/// Slots of a decoder. Frames have a code of each codebook, below [`CodecDecoder::codebook_size`].
pub struct CodecVocoder {
    decoder: Arc<CodecDecoder>,
    state: CodecDecoderState,
    room: VocoderRoom,
    codes: Vec<u32>,
}

impl CodecVocoder {
    /// Slots for this much.
    pub fn new(decoder: Arc<CodecDecoder>, room: VocoderRoom) -> Self {
        let state = decoder.state_for(room.slots, room.frames, room.slot_frames);
        Self { decoder, state, room, codes: Vec::new() }
    }

    /// Frames of the first entries for each of `spans`, which nobody hears.
    fn rehearse(&mut self, exec: &mut Exec, spans: &[Span]) {
        let frames: usize = spans.iter().map(|s| s.rows).sum();
        self.codes.clear();
        self.codes.resize(frames * self.decoder.codebooks(), 0);
        spans.iter().for_each(|s| self.state.reset(s.slot));
        self.decoder.decode(exec, &mut self.state, spans, &self.codes);
    }
}

impl Vocoder for CodecVocoder {
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        let spans = self.room.largest();
        Ok(exec.rehearse(|exec| (0..2).for_each(|_| self.rehearse(exec, &spans)))?)
    }

    fn start(&mut self, exec: &mut Exec, slot: usize, voice: Option<&Voice>) {
        // A recording that the frames go on from is decoded before them, and not heard.
        match voice {
            Some(Voice::Prompt(voice)) if voice.clip_codes().is_some() => {
                let codes = voice.clip_codes().unwrap_or_default();
                self.decoder.prime(exec, &mut self.state, slot, codes);
            }
            _ => self.state.reset(slot),
        }
    }

    fn step(&mut self, exec: &mut Exec, spans: &[Span], frames: &[Frame]) {
        self.codes.clear();
        for frame in frames {
            let Frame::Codes(codes) = frame else { unreachable!("frames of another family's synth") };
            self.codes.extend_from_slice(codes);
        }
        self.decoder.begin_decode(exec, &mut self.state, spans, &self.codes);
    }

    fn fetch(&mut self, exec: &mut Exec) -> &[f32] {
        self.decoder.finish_decode(exec, &mut self.state)
    }

    fn warm(&mut self, exec: &mut Exec) {
        self.rehearse(exec, &[Span { slot: 0, rows: 1 }]);
    }
}
