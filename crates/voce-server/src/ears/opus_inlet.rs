//! Ogg Opus, or another container, that arrives in pieces, through the same guarded decoder as files, on a blocking thread of its own.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use bytes::{Buf as _, Bytes};
use tokio::sync::mpsc;
use voce_audio::{AudioError, DecodeLimits, Decoder, MonoStream, Source};

use super::SAMPLE_RATE;
use crate::core::error::ServerError;

/// Messages that wait to be decoded.
const WAITING: usize = 256;
/// Decoded blocks that wait to be heard.
const BLOCKS: usize = 16;

/// What comes out, in the order of what went in.
#[derive(Debug)]
pub(crate) enum Decoded {
    Samples(Vec<f32>),
    /// All that came before the mark has been decoded.
    Mark,
}

enum Piece {
    Bytes(Bytes),
    Mark,
}

/// A decoder that is fed messages and gives samples.
pub(crate) struct OpusInlet {
    pieces: Option<SyncSender<Piece>>,
    decoded: mpsc::Receiver<Result<Decoded, AudioError>>,
    /// What the stream must begin with, as far as it has not been seen.
    expected: &'static [u8],
}

impl OpusInlet {
    /// For Ogg only: what is none is refused by its first bytes.
    pub(crate) fn ogg() -> Self {
        Self { expected: b"OggS", ..Self::any() }
    }

    /// For any container that can be read as a stream.
    pub(crate) fn any() -> Self {
        let (pieces, waiting) = sync_channel(WAITING);
        let (sender, decoded) = mpsc::channel(BLOCKS);
        tokio::task::spawn_blocking(move || decode(waiting, &sender));
        Self { pieces: Some(pieces), decoded, expected: b"" }
    }

    /// Feeds a piece; a client that is far ahead of the decoder is cut off.
    pub(crate) fn push(&mut self, piece: Bytes) -> Result<(), ServerError> {
        let n = self.expected.len().min(piece.len());
        let (now, later) = self.expected.split_at(n);
        if now != &piece[..n] {
            return Err(ServerError::malformed("the audio is not Ogg: send its pages from the first on"));
        }
        self.expected = later;
        self.feed(Piece::Bytes(piece))
    }

    /// Asks to be told when all that came so far is out.
    pub(crate) fn mark(&mut self) -> Result<(), ServerError> {
        self.feed(Piece::Mark)
    }

    fn feed(&mut self, piece: Piece) -> Result<(), ServerError> {
        match self.pieces.as_ref().map(|p| p.try_send(piece)) {
            Some(Err(TrySendError::Full(_))) => Err(ServerError::malformed(
                "the audio comes faster than it can be decoded: send it at its own pace",
            )),
            // A decoder that has ended says why by what comes out.
            _ => Ok(()),
        }
    }

    /// No more pieces.
    pub(crate) fn finish(&mut self) {
        self.pieces = None;
    }

    /// What comes out next; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Decoded, AudioError>> {
        self.decoded.recv().await
    }
}

type Out = mpsc::Sender<Result<Decoded, AudioError>>;

fn decode(waiting: Receiver<Piece>, out: &Out) {
    // A conversation may take hours, and costs no memory.
    let limits = DecodeLimits::local();
    let pieces = Pieces { waiting, now: Bytes::new(), out: out.clone() };
    let run = || -> Result<(), AudioError> {
        let decoder = match Decoder::open(Source::reader(pieces), Some("ogg"), &limits) {
            // A client that ends before its first packet has said nothing.
            Err(AudioError::Empty | AudioError::Truncated) => return Ok(()),
            other => other?,
        };
        let mut stream = MonoStream::new(decoder, SAMPLE_RATE);
        while let Some(block) = stream.next_block()? {
            if out.blocking_send(Ok(Decoded::Samples(block.to_vec()))).is_err() {
                break;
            }
        }
        Ok(())
    };
    if let Err(error) = run() {
        let _ = out.blocking_send(Err(error));
    }
}

/// Pieces as the decoder reads them. It asks for the next one only when it has done with those before.
struct Pieces {
    waiting: Receiver<Piece>,
    now: Bytes,
    out: Out,
}

impl Read for Pieces {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() {
            match self.waiting.recv() {
                Ok(Piece::Bytes(piece)) => self.now = piece,
                Ok(Piece::Mark) => {
                    if self.out.blocking_send(Ok(Decoded::Mark)).is_err() {
                        return Ok(0);
                    }
                }
                Err(_) => return Ok(0),
            }
        }
        let n = self.now.len().min(buf.len());
        self.now.copy_to_slice(&mut buf[..n]);
        Ok(n)
    }
}
