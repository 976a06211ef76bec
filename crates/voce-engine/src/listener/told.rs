//! What a lane tells of a stream, and the reader's side of it: the lane tells what is new, and the reader puts utterances
//! together. A step's cost for the lane then does not grow with the utterance.

use std::sync::Arc;

use super::event::{Alternative, EndReason, ListenEvent, Segment, Word};
use super::words::Speller;

/// A token as readers are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spoken {
    pub id: u32,
    /// From the stream's start.
    pub frame: usize,
    pub duration: usize,
}

/// Some words and their tokens, of which some may make no word.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Piece {
    pub words: Vec<Word>,
    pub tokens: Vec<Spoken>,
}

/// Something new.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Told {
    /// More of the utterance, which will not change.
    More(Piece),
    /// The utterance is what was told of it and this, for now.
    Partial(Piece),
    /// The utterance will end here.
    Endpoint {
        at: f64,
        reason: EndReason,
    },
    /// The utterance has ended with what was told of it.
    Final {
        nbest: Vec<Alternative>,
    },
    /// What was told of the utterance before the stream was saved.
    Before(Piece),
    /// The last word that was told ends here.
    Ended {
        end: f64,
    },
    /// A word ended here, for those who want to be told apart from the word.
    WordEnd {
        at: f64,
    },
    /// Tokens that were drawn.
    Drawn(Vec<u32>),
    Progress {
        at: f64,
        spoken: Option<f64>,
    },
    Pause {
        at: f64,
        probabilities: Vec<f32>,
    },
}

impl Told {
    /// Events that a reader makes of it, or one where it makes none.
    pub(super) fn events(&self) -> usize {
        match self {
            Told::More(piece) => piece.words.len().max(1),
            _ => 1,
        }
    }
}

/// Puts utterances together for a reader.
pub(super) struct Scribe {
    speller: Arc<Speller>,
    /// What was told of the utterance.
    said: Piece,
    /// Words that the reader has yet to hear of.
    words: std::vec::IntoIter<Word>,
}

impl Scribe {
    pub(super) fn new(speller: Arc<Speller>) -> Self {
        Self { speller, said: Piece::default(), words: Vec::new().into_iter() }
    }

    /// The next word that was told and not yet given to the reader.
    pub(super) fn next_word(&mut self) -> Option<ListenEvent> {
        self.words.next().map(ListenEvent::Word)
    }

    /// Takes what was told. Returns an event, if it is one for the reader; words come by [`Scribe::next_word`], all of
    /// them before this is called again.
    pub(super) fn take(&mut self, told: Told) -> Option<ListenEvent> {
        match told {
            Told::More(piece) => {
                self.words = piece.words.clone().into_iter();
                self.add(piece);
                self.next_word()
            }
            Told::Before(piece) => {
                self.add(piece);
                None
            }
            Told::Partial(piece) => {
                let mut all = self.said.clone();
                all.words.extend(piece.words);
                all.tokens.extend(piece.tokens);
                Some(ListenEvent::Partial(self.segment(all, Vec::new())))
            }
            Told::Final { nbest } => {
                let all = std::mem::take(&mut self.said);
                Some(ListenEvent::Final(self.segment(all, nbest)))
            }
            Told::Ended { end } => {
                if let Some(word) = self.said.words.last_mut() {
                    word.end = end.max(word.start);
                }
                None
            }
            Told::WordEnd { at } => Some(ListenEvent::WordEnd { at }),
            Told::Drawn(tokens) => Some(ListenEvent::Drawn(tokens)),
            Told::Endpoint { at, reason } => Some(ListenEvent::Endpoint { at, reason }),
            Told::Progress { at, spoken } => Some(ListenEvent::Progress { at, spoken }),
            Told::Pause { at, probabilities } => Some(ListenEvent::Pause { at, probabilities }),
        }
    }

    fn add(&mut self, piece: Piece) {
        self.said.words.extend(piece.words);
        self.said.tokens.extend(piece.tokens);
    }

    fn segment(&self, all: Piece, nbest: Vec<Alternative>) -> Segment {
        let Piece { words, tokens } = all;
        let ids: Vec<u32> = tokens.iter().map(|t| t.id).collect();
        let durations = if self.speller.has_durations() { &tokens[..] } else { &[] };
        Segment {
            text: self.speller.text(&ids),
            start: words.first().map_or(0.0, |w| w.start),
            end: words.last().map_or(0.0, |w| w.end),
            frames: tokens.iter().map(|t| t.frame).collect(),
            durations: durations.iter().map(|t| t.duration).collect(),
            words,
            tokens: ids,
            nbest,
        }
    }
}
