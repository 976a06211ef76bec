//! A whole recording, heard in one call.

use std::path::Path;

use voce_audio::{DecodeLimits, Decoder, MonoStream, Source};

use super::{ListenEvent, ListenRequest, Listener, Segment, Word};
use crate::EngineError;

/// Samples that are read and heard at a time.
const PIECE: usize = 1 << 14;

/// What was heard in a recording.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Transcript {
    /// All of the text, a space between utterances.
    pub text: String,
    /// The utterances.
    pub segments: Vec<Segment>,
    /// The words of all of them.
    pub words: Vec<Word>,
    /// Seconds of audio.
    pub seconds: f64,
}

impl Transcript {
    /// Adds what was heard.
    pub fn take(&mut self, event: ListenEvent) {
        match event {
            ListenEvent::Word(word) => self.words.push(word),
            ListenEvent::Final(segment) => {
                if !self.text.is_empty() && !segment.text.is_empty() {
                    self.text.push(' ');
                }
                self.text.push_str(&segment.text);
                self.segments.push(segment);
            }
            _ => {}
        }
    }
}

impl Listener {
    /// Transcribes a file of any format that `voce hear` takes.
    pub fn transcribe_file(
        &self,
        path: impl AsRef<Path>,
        request: &ListenRequest,
    ) -> Result<Transcript, EngineError> {
        let path = path.as_ref();
        let wrap = |source| EngineError::Audio { path: path.to_owned(), source };
        let extension = path.extension().and_then(|e| e.to_str());
        let source = Source::file(path).map_err(wrap)?;
        let decoder = Decoder::open(source, extension, &DecodeLimits::default()).map_err(wrap)?;
        let mut audio = MonoStream::new(decoder, self.info().sample_rate as u32);
        self.hear_all(request, |piece| {
            let block = audio.next_block().map_err(wrap)?;
            piece.extend_from_slice(block.unwrap_or_default());
            Ok(block.is_some())
        })
    }

    /// Transcribes samples: mono, -1..1, at the model's [sample rate](super::ListenerInfo::sample_rate).
    pub fn transcribe(&self, samples: &[f32], request: &ListenRequest) -> Result<Transcript, EngineError> {
        let mut left = samples;
        self.hear_all(request, |piece| {
            let (now, later) = left.split_at(left.len().min(PIECE));
            piece.extend_from_slice(now);
            left = later;
            Ok(!now.is_empty())
        })
    }

    /// Hears what `more` appends, until it says that there is no more.
    fn hear_all(
        &self,
        request: &ListenRequest,
        mut more: impl FnMut(&mut Vec<f32>) -> Result<bool, EngineError>,
    ) -> Result<Transcript, EngineError> {
        let (mut sender, events) = self.listen(request)?;
        // Somebody has to read while this thread writes: either end waits for the other when its queue is full.
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut heard = Transcript::default();
                for event in events {
                    heard.take(event?);
                }
                Ok(heard)
            });
            let mut piece = Vec::with_capacity(PIECE);
            let sent = loop {
                piece.clear();
                match more(&mut piece) {
                    Ok(true) if sender.push(&piece).is_ok() => {}
                    // Nobody listens any more: the events say why.
                    Ok(_) => break Ok(()),
                    Err(e) => break Err(e),
                }
            };
            let seconds = sender.seconds();
            sender.finish();
            let heard = reader.join().unwrap_or(Err(EngineError::Broken));
            sent?;
            Ok(Transcript { seconds, ..heard? })
        })
    }
}
