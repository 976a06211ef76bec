//! A whole file through a recogniser: decoded on a blocking worker, with limits, while it is being heard.

use std::sync::Arc;

use bytes::Bytes;
use voce_audio::{DecodeLimits, Decoder, RawFormat, Source};

use super::decoding::{Decoded, Decoding};
use super::{Ear, HearRequest, Hearing, ListenEvent, Segment, Step};
use crate::core::error::ServerError;
use crate::core::trace::{Meter, Stage};

/// A file on its way through a recogniser.
pub(crate) struct Transcription {
    hearing: Hearing,
    blocks: Option<Decoding>,
}

/// All that was heard.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) segments: Vec<Segment>,
    /// Seconds of audio.
    pub(crate) duration: f64,
}

impl Transcript {
    /// The text of all segments.
    pub(crate) fn text(&self) -> String {
        let texts = self.segments.iter().map(|s| s.text.trim()).filter(|t| !t.is_empty());
        texts.collect::<Vec<_>>().join(" ")
    }
}

impl Transcription {
    /// Begins with the bytes of a file, or of headerless samples where their format is given.
    pub(crate) async fn start(
        ear: &Arc<Ear>,
        request: &HearRequest,
        bytes: Bytes,
        name: Option<&str>,
        raw: Option<RawFormat>,
    ) -> Result<Self, ServerError> {
        let hearing = ear.open(request).await?;
        let extension = name.and_then(|n| n.rsplit_once('.')).map(|(_, e)| e.to_owned());
        let (meter, rate) = (Meter::new(Stage::Decode), hearing.rate());
        let mut blocks = Decoding::spawn(ear.decoder()?, move |outlet| {
            let begun = meter.begin();
            let limits = DecodeLimits::default();
            let source = Source::bytes(bytes);
            let decoder = match raw {
                Some(format) => Decoder::open_raw(source, format, &limits)?,
                None => Decoder::open(source, extension.as_deref(), &limits)?,
            };
            meter.end(begun);
            outlet.run(decoder, rate, Some(&meter))
        });
        // A file that is no audio is refused before anything is answered.
        let mut this = Self { hearing, blocks: None };
        match blocks.next().await {
            Some(Err(error)) => return Err(error.into()),
            Some(Ok(block)) => {
                this.push(&block);
                this.blocks = Some(blocks);
            }
            None => this.hearing.finish(),
        }
        Ok(this)
    }

    fn push(&mut self, block: &Decoded) {
        if let Decoded::Samples(samples) = block {
            self.hearing.push(samples);
        }
    }

    /// The next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<ListenEvent, ServerError>> {
        loop {
            let Some(blocks) = self.blocks.as_mut().filter(|_| self.hearing.has_room()) else {
                match self.hearing.step().await {
                    Step::Event(event) => return Some(Ok(event)),
                    Step::Failed(error) => return Some(Err(error)),
                    Step::Ended => return None,
                    Step::Room | Step::Saved(_) => continue,
                }
            };
            tokio::select! {
                biased;
                step = self.hearing.step() => match step {
                    Step::Event(event) => return Some(Ok(event)),
                    Step::Failed(error) => return Some(Err(error)),
                    Step::Ended => return None,
                    Step::Room | Step::Saved(_) => {}
                },
                block = blocks.next() => match block {
                    Some(Ok(block)) => self.push(&block),
                    Some(Err(error)) => return Some(Err(error.into())),
                    None => {
                        self.blocks = None;
                        self.hearing.finish();
                    }
                },
            }
        }
    }

    /// Seconds of audio so far.
    pub(crate) fn seconds(&self) -> f64 {
        self.hearing.seconds()
    }

    /// Waits for the end.
    pub(crate) async fn whole(mut self) -> Result<Transcript, ServerError> {
        let mut transcript = Transcript::default();
        while let Some(event) = self.next().await {
            if let ListenEvent::Final(segment) = event? {
                transcript.segments.push(segment);
            }
        }
        transcript.duration = self.seconds();
        Ok(transcript)
    }
}
