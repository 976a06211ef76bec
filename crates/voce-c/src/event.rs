//! What was heard, as C reads it.

use std::ffi::{CString, c_char};
use std::ptr;

use voce_engine::listener::{ListenEvent, Segment};

use crate::guard::c_text;

/// What an event tells.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The current utterance so far; its end may still change.
    Partial = 0,
    /// A word that will not change.
    Word = 1,
    /// A whole utterance.
    Final = 2,
    /// The utterance ended here; its final comes next.
    Endpoint = 3,
}

/// A word. Times are seconds of audio from the stream's start.
#[repr(C)]
pub struct Word {
    /// As the model spells it.
    pub text: *const c_char,
    /// Start.
    pub start: f64,
    /// End.
    pub end: f64,
    /// How sure the model is, 0 to 1.
    pub confidence: f32,
}

/// Something heard. It and all that it points to are valid until the next call that reads its stream.
#[repr(C)]
pub struct Event {
    /// What it tells.
    pub kind: EventKind,
    /// The text of the utterance or of the word; of an endpoint the reason: `silence`, `length`, `forced`, `token`, `pause`.
    pub text: *const c_char,
    /// Start, in seconds of audio.
    pub start: f64,
    /// End, in seconds of audio.
    pub end: f64,
    /// The words of an utterance.
    pub words: *const Word,
    /// How many there are.
    pub word_count: usize,
}

/// An event with what it points to.
pub(crate) struct EventRoom {
    event: Event,
    words: Vec<Word>,
    texts: Vec<CString>,
}

impl Default for EventRoom {
    fn default() -> Self {
        let event = Event {
            kind: EventKind::Final,
            text: c"".as_ptr(),
            start: 0.0,
            end: 0.0,
            words: ptr::null(),
            word_count: 0,
        };
        Self { event, words: Vec::new(), texts: Vec::new() }
    }
}

impl EventRoom {
    /// Puts an event in place of the one before; none for events that nobody can ask for here.
    pub(crate) fn put(&mut self, event: ListenEvent) -> Option<*const Event> {
        *self = Self::default();
        match event {
            ListenEvent::Partial(segment) => self.segment(EventKind::Partial, segment),
            ListenEvent::Final(segment) => self.segment(EventKind::Final, segment),
            ListenEvent::Word(word) => self.line(EventKind::Word, &word.text, word.start, word.end),
            ListenEvent::Endpoint { at, reason } => self.line(EventKind::Endpoint, reason.name(), at, at),
            _ => return None,
        }
        Some(&raw const self.event)
    }

    fn keep(&mut self, text: &str) -> *const c_char {
        let text = c_text(text);
        // Where a `CString` lies does not change when it is moved.
        let pointer = text.as_ptr();
        self.texts.push(text);
        pointer
    }

    fn line(&mut self, kind: EventKind, text: &str, start: f64, end: f64) {
        let text = self.keep(text);
        self.event = Event { kind, text, start, end, words: ptr::null(), word_count: 0 };
    }

    fn segment(&mut self, kind: EventKind, segment: Segment) {
        self.line(kind, &segment.text, segment.start, segment.end);
        for word in segment.words {
            let text = self.keep(&word.text);
            self.words.push(Word { text, start: word.start, end: word.end, confidence: word.confidence });
        }
        (self.event.words, self.event.word_count) = (self.words.as_ptr(), self.words.len());
    }
}
