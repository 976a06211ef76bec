//! From text to pieces that a slot can speak: tokens of one chunk, or a pause.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use voce_models::pocket::EXTRA_FRAMES_AFTER_EOS;
use voce_text::{
    PromptRules, Segment, SentenceStream, TextError, Tokenizer, normalize_english, parse_pauses, prepare,
    split_into_chunks,
};

use crate::EngineError;
use crate::wake::Waker;

/// Pieces that wait for a slot before the text's producer must wait.
const QUEUE: usize = 64;
/// Text up to this size is split as a whole, as the published package does; longer text by sentences.
const WHOLE_TEXT: usize = 16 * 1024;
/// Sentences of longer text are gathered up to this size.
const BLOCK: usize = 4 * 1024;

/// What a slot can speak.
pub(super) enum Piece {
    /// A chunk of text.
    Chunk { tokens: Vec<u32>, frames_after_eos: usize },
    /// Silence.
    Pause(Duration),
    /// The text was no good.
    Failed(EngineError),
}

/// How text becomes pieces.
#[derive(Clone)]
pub(super) struct TextPlan {
    pub tokenizer: Tokenizer,
    pub rules: Arc<PromptRules>,
    pub max_tokens: usize,
    pub normalize: bool,
    /// Frames after EOS, unless each chunk's guess is to be used.
    pub frames_after_eos: Option<usize>,
}

impl TextPlan {
    /// The pieces of a text. Text that holds nothing to say has none.
    pub(super) fn pieces(&self, text: &str) -> Result<Vec<Piece>, EngineError> {
        let mut pieces = Vec::new();
        for segment in parse_pauses(text)? {
            match segment {
                Segment::Pause(d) => pieces.push(Piece::Pause(d)),
                Segment::Text(t) => self.text_pieces(&t, &mut pieces)?,
            }
        }
        Ok(pieces)
    }

    fn text_pieces(&self, text: &str, pieces: &mut Vec<Piece>) -> Result<(), EngineError> {
        let text = if self.normalize { normalize_english(text) } else { text.into() };
        let chunks = match split_into_chunks(&self.tokenizer, &self.rules, &text, self.max_tokens) {
            Err(TextError::Empty) => return Ok(()),
            other => other?,
        };
        for chunk in chunks {
            let prepared = prepare(&self.rules, &chunk)?;
            let guess = prepared.frames_after_eos_guess as usize + EXTRA_FRAMES_AFTER_EOS;
            pieces.push(Piece::Chunk {
                tokens: self.tokenizer.encode(&prepared.text),
                frames_after_eos: self.frames_after_eos.unwrap_or(guess),
            });
        }
        Ok(())
    }
}

/// Feeds text to a request piece by piece: speaking begins at the first sentence end.
pub struct TextSender {
    plan: TextPlan,
    sentences: SentenceStream,
    sender: SyncSender<Piece>,
    waker: Arc<Waker>,
    said: bool,
}

/// The reader of a request has gone.
#[derive(Debug, thiserror::Error)]
#[error("nobody listens any more")]
pub struct HungUp;

impl TextSender {
    pub(super) fn new(plan: TextPlan, waker: Arc<Waker>) -> (Self, Receiver<Piece>) {
        let (sender, receiver) = sync_channel(QUEUE);
        (Self { plan, sentences: SentenceStream::new(), sender, waker, said: false }, receiver)
    }

    /// Adds text; blocks while too much of it waits to be spoken.
    pub fn push(&mut self, text: &str) -> Result<(), HungUp> {
        for sentence in self.sentences.push(text) {
            self.say(&sentence)?;
        }
        Ok(())
    }

    /// Says what is left. Text that held nothing to say ends the request with an error.
    pub fn finish(mut self) -> Result<(), HungUp> {
        for sentence in self.sentences.finish() {
            self.say(&sentence)?;
        }
        if self.said { Ok(()) } else { self.send(Piece::Failed(TextError::Empty.into())) }
    }

    fn say(&mut self, text: &str) -> Result<(), HungUp> {
        match self.plan.pieces(text) {
            Ok(pieces) => pieces.into_iter().try_for_each(|p| {
                self.said = true;
                self.send(p)
            }),
            Err(e) => {
                self.said = true;
                self.send(Piece::Failed(e))
            }
        }
    }

    fn send(&self, piece: Piece) -> Result<(), HungUp> {
        self.sender.send(piece).map_err(|_| HungUp)?;
        self.waker.wake();
        Ok(())
    }
}

impl Drop for TextSender {
    fn drop(&mut self) {
        // The channel closes with the sender: the model thread must look.
        let (closed, _) = sync_channel(1);
        self.sender = closed;
        self.waker.wake();
    }
}

/// The pieces of a whole text, made at once or, for long text, by a thread of their own.
pub(super) fn whole_text(
    plan: TextPlan,
    text: &str,
    waker: Arc<Waker>,
) -> Result<Receiver<Piece>, EngineError> {
    if text.len() <= WHOLE_TEXT {
        let pieces = plan.pieces(text)?;
        if pieces.is_empty() {
            return Err(TextError::Empty.into());
        }
        let (sender, receiver) = sync_channel(pieces.len());
        for p in pieces {
            // The channel has room for all of them, and its reader is at hand.
            let _ = sender.try_send(p);
        }
        return Ok(receiver);
    }
    if text.trim().is_empty() {
        return Err(TextError::Empty.into());
    }
    let (mut sender, receiver) = TextSender::new(plan, waker);
    let text = text.to_owned();
    std::thread::Builder::new()
        .name("voce-text".into())
        .spawn(move || {
            let mut sentences = SentenceStream::new();
            let mut block = String::new();
            for sentence in sentences.push(&text).into_iter().chain(sentences.finish()) {
                block.push_str(&sentence);
                block.push(' ');
                if block.len() >= BLOCK {
                    if sender.say(&block).is_err() {
                        return;
                    }
                    block.clear();
                }
            }
            let _ = sender.say(&block).and_then(|()| sender.finish());
        })
        .map_err(|e| EngineError::Stopped(e.to_string()))?;
    Ok(receiver)
}
