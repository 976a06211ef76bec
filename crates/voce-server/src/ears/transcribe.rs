//! A whole file through a recogniser: decoded on a blocking worker, with limits, while it is being heard.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use voce_audio::{AudioError, DecodeLimits, Decoder, MonoStream, RawFormat, Source};

use super::{Ear, HearRequest, Hearing, ListenEvent, SAMPLE_RATE, Segment, Step};
use crate::core::error::ServerError;
use crate::core::trace::{Meter, Stage};

/// Decoded blocks that wait to be heard.
const BLOCKS: usize = 16;

/// A file on its way through a recogniser.
pub(crate) struct Transcription {
    hearing: Hearing,
    blocks: Option<mpsc::Receiver<Result<Vec<f32>, AudioError>>>,
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
        let (sender, mut blocks) = mpsc::channel(BLOCKS);
        let meter = Meter::new(Stage::Decode);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = decode(bytes, extension.as_deref(), raw, &sender, &meter) {
                let _ = sender.blocking_send(Err(error));
            }
        });
        // A file that is no audio is refused before anything is answered.
        let mut this = Self { hearing, blocks: None };
        match blocks.recv().await {
            Some(Err(error)) => return Err(error.into()),
            Some(Ok(block)) => {
                this.hearing.push(&block);
                this.blocks = Some(blocks);
            }
            None => this.hearing.finish(),
        }
        Ok(this)
    }

    /// The next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<ListenEvent, ServerError>> {
        loop {
            let Some(blocks) = self.blocks.as_mut().filter(|_| self.hearing.has_room()) else {
                match self.hearing.step().await {
                    Step::Event(event) => return Some(Ok(event)),
                    Step::Failed(error) => return Some(Err(error)),
                    Step::Ended => return None,
                    Step::Room => continue,
                }
            };
            tokio::select! {
                biased;
                step = self.hearing.step() => match step {
                    Step::Event(event) => return Some(Ok(event)),
                    Step::Failed(error) => return Some(Err(error)),
                    Step::Ended => return None,
                    Step::Room => {}
                },
                block = blocks.recv() => match block {
                    Some(Ok(block)) => self.hearing.push(&block),
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

fn decode(
    bytes: Bytes,
    extension: Option<&str>,
    raw: Option<RawFormat>,
    sender: &mpsc::Sender<Result<Vec<f32>, AudioError>>,
    meter: &Meter,
) -> Result<(), AudioError> {
    let mut begun = meter.begin();
    let limits = DecodeLimits::default();
    let source = Source::bytes(bytes);
    let decoder = match raw {
        Some(format) => Decoder::open_raw(source, format, &limits)?,
        None => Decoder::open(source, extension, &limits)?,
    };
    let mut stream = MonoStream::new(decoder, SAMPLE_RATE);
    while let Some(block) = stream.next_block()? {
        let block = block.to_vec();
        meter.end(begun);
        if sender.blocking_send(Ok(block)).is_err() {
            break;
        }
        begun = meter.begin();
    }
    Ok(())
}
