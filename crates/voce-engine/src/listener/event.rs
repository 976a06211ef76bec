//! What a listener hears: words, segments, and where utterances end.

/// Something heard.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ListenEvent {
    /// The current utterance so far; its end may still change.
    Partial(Segment),
    /// A word that will not change.
    Word(Word),
    /// A whole utterance.
    Final(Segment),
    /// The utterance ended here; its [`ListenEvent::Final`] comes next.
    Endpoint {
        /// Seconds of audio.
        at: f64,
        /// Why.
        reason: EndReason,
    },
    /// So much has been decoded; only for streams that [asked](super::ListenRequest::progress) to be told.
    Progress {
        /// Seconds of audio that were decoded.
        at: f64,
        /// Where the newest token ended, in seconds of audio; none before the first.
        spoken: Option<f64>,
    },
    /// The newest word ended here; only for streams that [asked](super::ListenRequest::word_ends) to be told, of models
    /// that know. Such a word is told when it is spelled, before its end is known.
    WordEnd {
        /// Seconds of audio.
        at: f64,
    },
    /// Tokens that were drawn, one in every step, whether they say something or not; only for streams that
    /// [asked](super::ListenRequest::drawn) to be told, of models that draw.
    Drawn(Vec<u32>),
    /// How probable it is that nobody speaks for some time; only for streams that
    /// [asked](super::ListenRequest::pauses) to be told, of models that know.
    Pause {
        /// Seconds of audio that were decoded.
        at: f64,
        /// A probability for each of [`ListenerInfo::pauses`](super::ListenerInfo::pauses).
        probabilities: Vec<f32>,
    },
}

/// Why an utterance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// Silence after speech.
    Silence,
    /// It was as long as an utterance may be.
    Length,
    /// The sender said so.
    Forced,
    /// The model said so.
    Token,
    /// The model foresees a pause.
    Pause,
}

impl EndReason {
    /// A short name for scripts.
    pub fn name(self) -> &'static str {
        match self {
            EndReason::Silence => "silence",
            EndReason::Length => "length",
            EndReason::Forced => "forced",
            EndReason::Token => "token",
            EndReason::Pause => "pause",
        }
    }
}

/// A word. Times are seconds of audio from the stream's start.
#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    /// As the model spells it, punctuation included.
    pub text: String,
    /// Start.
    pub start: f64,
    /// End.
    pub end: f64,
    /// How sure the model is, 0 to 1: the mean over the word's tokens.
    pub confidence: f32,
}

/// An utterance, or what there is of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segment {
    /// Its text.
    pub text: String,
    /// Its words.
    pub words: Vec<Word>,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The model's frame at which each token was emitted, from the stream's start.
    pub frames: Vec<usize>,
    /// Frames that each token spans, from models that predict them; else empty.
    pub durations: Vec<usize>,
    /// Start, in seconds of audio.
    pub start: f64,
    /// End, in seconds of audio.
    pub end: f64,
    /// The best readings where more than one was asked for, best first.
    pub nbest: Vec<Alternative>,
}

/// One reading of an utterance.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// Its text.
    pub text: String,
    /// Its token ids.
    pub tokens: Vec<u32>,
    /// Log-probability, with what phrases and language model added.
    pub score: f32,
}
