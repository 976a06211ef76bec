//! Text on its way to the model: passages in a bounded queue, made at once or by a thread of their own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use voce_models::speech::{Passage, Script};
use voce_text::{MarkupStream, SentenceStream, TextError, strip_markup};

use crate::EngineError;
use crate::wake::Waker;

/// Passages that wait for a slot before the text's producer must wait.
const QUEUE: usize = 64;
/// Text up to this size is planned as a whole, as the published packages do; longer text by sentences.
const WHOLE_TEXT: usize = 16 * 1024;
/// Sentences of longer text are gathered up to this size.
const BLOCK: usize = 4 * 1024;

/// What the model thread takes of a request's text; an error means that the text was no good.
pub(super) type Piece = Result<Passage, EngineError>;

/// Feeds text to a request piece by piece: speaking begins as soon as the model has enough of it.
pub struct TextSender {
    script: Box<dyn Script>,
    /// Takes markup out of what arrives, where that was asked for.
    markup: Option<MarkupStream>,
    passages: Vec<Passage>,
    sender: SyncSender<Piece>,
    waker: Arc<Waker>,
    said: bool,
}

/// The reader of a request has gone.
#[derive(Debug, thiserror::Error)]
#[error("nobody listens any more")]
pub struct HungUp;

impl TextSender {
    pub(super) fn new(
        script: Box<dyn Script>,
        markup: Option<MarkupStream>,
        waker: Arc<Waker>,
    ) -> (Self, Receiver<Piece>) {
        let (sender, receiver) = sync_channel(QUEUE);
        (Self { script, markup, passages: Vec::new(), sender, waker, said: false }, receiver)
    }

    /// Adds text; blocks while too much of it waits to be spoken.
    pub fn push(&mut self, text: &str) -> Result<(), HungUp> {
        match &mut self.markup {
            Some(markup) => {
                let plain = markup.push(text);
                self.add(&plain)
            }
            None => self.add(text),
        }
    }

    fn add(&mut self, text: &str) -> Result<(), HungUp> {
        let planned = self.script.push(text, &mut self.passages);
        self.pass_on(planned)
    }

    /// Says what is left. Text that held nothing to say ends the request with an error.
    pub fn finish(mut self) -> Result<(), HungUp> {
        if let Some(left) = self.markup.as_mut().map(MarkupStream::finish) {
            self.add(&left)?;
        }
        let planned = self.script.finish(&mut self.passages);
        self.pass_on(planned)?;
        if self.said { Ok(()) } else { self.send(Err(TextError::Empty.into())) }
    }

    /// Adds a block of text that is all there.
    fn say(&mut self, text: &str) -> Result<(), HungUp> {
        let planned = self.script.whole(text, &mut self.passages);
        self.pass_on(planned)
    }

    fn pass_on(&mut self, planned: Result<(), TextError>) -> Result<(), HungUp> {
        let mut passages = std::mem::take(&mut self.passages);
        self.said |= !passages.is_empty();
        passages.drain(..).try_for_each(|passage| self.send(Ok(passage)))?;
        self.passages = passages;
        if let Err(e) = planned {
            self.said = true;
            return self.send(Err(e.into()));
        }
        Ok(())
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

/// The passages of a whole text, made at once or, for long text, by a thread of their own.
pub(super) fn whole_text(
    mut script: Box<dyn Script>,
    text: &str,
    is_marked: bool,
    waker: Arc<Waker>,
) -> Result<Receiver<Piece>, EngineError> {
    let text = &*if is_marked { strip_markup(text) } else { text.into() };
    if text.len() <= WHOLE_TEXT {
        let mut passages = Vec::new();
        script.whole(text, &mut passages)?;
        if passages.is_empty() {
            return Err(TextError::Empty.into());
        }
        let (sender, receiver) = sync_channel(passages.len());
        for passage in passages {
            // The channel has room for all of them, and its reader is at hand.
            let _ = sender.try_send(Ok(passage));
        }
        return Ok(receiver);
    }
    if text.trim().is_empty() {
        return Err(TextError::Empty.into());
    }
    let (mut sender, receiver) = TextSender::new(script, None, waker);
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
