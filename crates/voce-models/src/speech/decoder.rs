//! A vocoder over any decoder with slots.

use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError, Span};

use super::{Frame, Vocoder, VocoderRoom, Voice};

/// A decoder from frames to samples whose streams are in slots.
pub trait SlotDecoder: Send {
    /// What its slots hold.
    type State: Send;
    /// What frames are made of.
    type Value: Copy + Send;

    /// Slots for this much.
    fn state(&self, room: VocoderRoom) -> Self::State;
    /// The values of a frame that nobody hears, each of them the same, and how many they are.
    fn blank(&self) -> (Self::Value, usize);
    /// Adds a frame's values.
    fn take(&self, frame: &Frame, values: &mut Vec<Self::Value>);
    /// Forgets a slot's stream.
    fn reset(&self, state: &mut Self::State, slot: usize);
    /// Enqueues the frames of `spans`.
    fn begin(&self, exec: &mut Exec, state: &mut Self::State, spans: &[Span], values: &[Self::Value]);
    /// The samples of what was enqueued.
    fn finish<'s>(&self, exec: &mut Exec, state: &'s mut Self::State) -> &'s [f32];

    /// Begins a stream in a slot.
    fn start(&self, _exec: &mut Exec, state: &mut Self::State, slot: usize, _voice: Option<&Voice>) {
        self.reset(state, slot);
    }
}

/// Slots of a decoder.
pub struct SlotVocoder<D: SlotDecoder> {
    decoder: D,
    state: D::State,
    room: VocoderRoom,
    values: Vec<D::Value>,
}

impl<D: SlotDecoder> SlotVocoder<D> {
    /// Slots for this much.
    pub fn new(decoder: D, room: VocoderRoom) -> Self {
        Self { state: decoder.state(room), decoder, room, values: Vec::new() }
    }

    /// Frames for each of `spans` that nobody hears.
    fn rehearse(&mut self, exec: &mut Exec, spans: &[Span]) {
        let frames: usize = spans.iter().map(|s| s.rows).sum();
        let (value, count) = self.decoder.blank();
        self.values.clear();
        self.values.resize(frames * count, value);
        spans.iter().for_each(|s| self.decoder.reset(&mut self.state, s.slot));
        self.decoder.begin(exec, &mut self.state, spans, &self.values);
        self.decoder.finish(exec, &mut self.state);
    }
}

impl<D: SlotDecoder> Vocoder for SlotVocoder<D> {
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        let spans = self.room.largest();
        Ok(exec.rehearse(|exec| (0..2).for_each(|_| self.rehearse(exec, &spans)))?)
    }

    fn start(&mut self, exec: &mut Exec, slot: usize, voice: Option<&Voice>) {
        self.decoder.start(exec, &mut self.state, slot, voice);
    }

    fn step(&mut self, exec: &mut Exec, spans: &[Span], frames: &[Frame]) {
        self.values.clear();
        frames.iter().for_each(|frame| self.decoder.take(frame, &mut self.values));
        self.decoder.begin(exec, &mut self.state, spans, &self.values);
    }

    fn fetch(&mut self, exec: &mut Exec) -> &[f32] {
        self.decoder.finish(exec, &mut self.state)
    }

    fn warm(&mut self, exec: &mut Exec) {
        self.rehearse(exec, &[Span { slot: 0, rows: 1 }]);
    }
}
