//! Text on its way to the model: passages in a bounded queue, made at once or by a thread of their own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use voce_models::speech::{Passage, Script};
use voce_text::{MarkupStream, SentenceStream, TextError, says_something, strip_markup};

use crate::EngineError;
use crate::wake::Waker;

/// Passages that wait for a slot before the text's producer must wait.
const QUEUE: usize = 64;
/// Text up to this size is planned as a whole, as the published packages do; longer text by sentences.
const WHOLE_TEXT: usize = 16 * 1024;
/// Characters before the first thing to say that are kept.
const MAX_LEAD: usize = 256;
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
    /// Marks that came before anything to say.
    lead: Option<String>,
    /// What waits for room in the queue.
    waiting: VecDeque<Piece>,
    sender: SyncSender<Piece>,
    waker: Arc<Waker>,
    said: bool,
    ended: bool,
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
        let (passages, waiting) = <(Vec<_>, VecDeque<_>)>::default();
        let lead = Some(String::new());
        (Self { script, markup, passages, lead, waiting, sender, waker, said: false, ended: false }, receiver)
    }

    /// Adds text; blocks while too much of it waits to be spoken.
    pub fn push(&mut self, text: &str) -> Result<(), HungUp> {
        self.take(text);
        self.flush()
    }

    /// Adds text and does not wait: whether all of it found room. What did not goes with the next call of this or of
    /// [`try_flush`](Self::try_flush).
    pub fn try_push(&mut self, text: &str) -> Result<bool, HungUp> {
        self.take(text);
        self.try_flush()
    }

    /// Plans text, without its markup where that was asked for.
    fn take(&mut self, text: &str) {
        match &mut self.markup {
            Some(markup) => {
                let plain = markup.push(text);
                self.arrived(&plain);
            }
            None => self.arrived(text),
        }
    }

    /// Plans plain text, once there is anything to say in it.
    fn arrived(&mut self, text: &str) {
        let Some(mut lead) = self.lead.take() else {
            return self.plan(|script, passages| script.push(text, passages));
        };
        lead.push_str(text);
        if says_something(&lead) {
            return self.plan(|script, passages| script.push(&lead, passages));
        }
        // Only the last `MAX_LEAD` of these can matter to what comes after them.
        lead.drain(..lead.char_indices().rev().nth(MAX_LEAD).map_or(0, |(at, _)| at));
        self.lead = Some(lead);
    }

    /// Passes on what waits, as far as there is room: whether nothing waits any more.
    pub fn try_flush(&mut self) -> Result<bool, HungUp> {
        while let Some(piece) = self.waiting.pop_front() {
            match self.sender.try_send(piece) {
                Ok(()) => self.waker.wake(),
                Err(TrySendError::Full(piece)) => {
                    self.waiting.push_front(piece);
                    return Ok(false);
                }
                Err(TrySendError::Disconnected(_)) => return Err(HungUp),
            }
        }
        Ok(true)
    }

    /// Says what is left. Text that held nothing to say ends the request with an error.
    pub fn finish(mut self) -> Result<(), HungUp> {
        self.end();
        self.flush()
    }

    /// As [`finish`](Self::finish), without waiting: whether all found room. Once it has, drop the sender; else call
    /// [`try_flush`](Self::try_flush) until it has.
    pub fn try_finish(&mut self) -> Result<bool, HungUp> {
        self.end();
        self.try_flush()
    }

    /// Plans the last of the text, once.
    fn end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if let Some(left) = self.markup.as_mut().map(MarkupStream::finish) {
            self.arrived(&left);
        }
        self.plan(|script, passages| script.finish(passages));
        if !self.said {
            self.waiting.push_back(Err(TextError::Empty.into()));
        }
    }

    /// Adds a block of text that is all there.
    fn say(&mut self, text: &str) -> Result<(), HungUp> {
        self.plan(|script, passages| script.whole(text, passages));
        self.flush()
    }

    fn plan(&mut self, plan: impl FnOnce(&mut dyn Script, &mut Vec<Passage>) -> Result<(), TextError>) {
        let planned = plan(&mut *self.script, &mut self.passages);
        self.said |= !self.passages.is_empty() || planned.is_err();
        self.waiting.extend(self.passages.drain(..).map(Ok));
        self.waiting.extend(planned.err().map(|e| Err(e.into())));
    }

    fn flush(&mut self) -> Result<(), HungUp> {
        while let Some(piece) = self.waiting.pop_front() {
            self.sender.send(piece).map_err(|_| HungUp)?;
            self.waker.wake();
        }
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
    if !says_something(text) {
        return Err(TextError::Empty.into());
    }
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
