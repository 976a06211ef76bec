//! Ogg Opus, or another container, that arrives in pieces, through the same guarded decoder as files, on a blocking thread of its own.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use bytes::{Buf as _, Bytes};
use tokio::sync::Notify;
use voce_audio::{AudioError, DecodeLimits, Decoder, Source};

use super::decoding::{Decoded, Decoding, Outlet};
use crate::core::budget::Share;
use crate::core::error::ServerError;

/// Messages that wait to be decoded.
const WAITING: usize = 256;
/// Bytes that wait to be decoded before no further message is read.
const WAITING_BYTES: usize = 1024 * 1024;

enum Piece {
    Bytes(Bytes),
    Mark,
}

/// What waits to be decoded.
#[derive(Default)]
struct Waiting {
    pieces: AtomicUsize,
    bytes: AtomicUsize,
    /// Something was taken.
    taken: Notify,
}

impl Waiting {
    fn has_room(&self) -> bool {
        self.pieces.load(Ordering::Acquire) < WAITING && self.bytes.load(Ordering::Acquire) < WAITING_BYTES
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        self.pieces.fetch_add(1, Ordering::AcqRel);
    }

    fn take(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.pieces.fetch_sub(1, Ordering::AcqRel);
        self.taken.notify_one();
    }
}

/// A decoder that is fed messages and gives samples.
pub(crate) struct OpusInlet {
    pieces: Option<SyncSender<Piece>>,
    waiting: Arc<Waiting>,
    decoding: Decoding,
    /// What the stream must begin with, as far as it has not been seen.
    expected: &'static [u8],
}

impl OpusInlet {
    /// For Ogg only: what is none is refused by its first bytes.
    pub(crate) fn ogg(share: Share, rate: u32) -> Self {
        Self { expected: b"OggS", ..Self::any(share, rate) }
    }

    /// For any container that can be read as a stream, into samples of a rate.
    pub(crate) fn any(share: Share, rate: u32) -> Self {
        let (pieces, queue) = sync_channel(WAITING);
        let waiting = Arc::new(Waiting::default());
        let for_decoder = waiting.clone();
        let decoding = Decoding::spawn(share, move |outlet| decode(queue, for_decoder, rate, outlet));
        Self { pieces: Some(pieces), waiting, decoding, expected: b"" }
    }

    /// Whether callers may push more: what waits to be decoded is bounded in bytes and in messages.
    pub(crate) fn has_room(&self) -> bool {
        self.pieces.is_none() || self.waiting.has_room()
    }

    /// Feeds a piece; a client that is fed on without room is cut off.
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
        let bytes = if let Piece::Bytes(piece) = &piece { piece.len() } else { 0 };
        let Some(pieces) = &self.pieces else { return Ok(()) };
        self.waiting.add(bytes);
        match pieces.try_send(piece) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(ServerError::malformed(
                "the audio comes faster than it can be decoded: send it at its own pace",
            )),
            Err(TrySendError::Disconnected(_)) => {
                // A decoder that has ended says why by what comes out.
                self.pieces = None;
                Ok(())
            }
        }
    }

    /// No more pieces.
    pub(crate) fn finish(&mut self) {
        self.pieces = None;
    }

    /// What comes out next, or that there is room again; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Decoded, AudioError>> {
        let is_full = !self.has_room();
        tokio::select! {
            biased;
            next = self.decoding.next() => next,
            () = self.waiting.taken.notified(), if is_full => Some(Ok(Decoded::Room)),
        }
    }
}

fn decode(
    queue: Receiver<Piece>,
    waiting: Arc<Waiting>,
    rate: u32,
    outlet: &Outlet,
) -> Result<(), AudioError> {
    let pieces = Pieces { queue, waiting, now: Bytes::new(), outlet: outlet.clone() };
    let decoder = match Decoder::open(Source::reader(pieces), Some("ogg"), &DecodeLimits::live()) {
        // A client that ends before its first packet has said nothing.
        Err(AudioError::Empty | AudioError::Truncated) => return Ok(()),
        other => other?,
    };
    outlet.run(decoder, rate, None)
}

/// Pieces as the decoder reads them. It asks for the next one only when it has done with those before.
struct Pieces {
    queue: Receiver<Piece>,
    waiting: Arc<Waiting>,
    now: Bytes,
    outlet: Outlet,
}

impl Read for Pieces {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() {
            match self.queue.recv() {
                Ok(Piece::Bytes(piece)) => {
                    self.waiting.take(piece.len());
                    self.now = piece;
                }
                Ok(Piece::Mark) => {
                    self.waiting.take(0);
                    if self.outlet.put(Decoded::Mark).is_err() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_counted_in_bytes_and_in_messages() {
        let waiting = Waiting::default();
        waiting.add(WAITING_BYTES - 1);
        assert!(waiting.has_room());
        waiting.add(1);
        assert!(!waiting.has_room());
        waiting.take(WAITING_BYTES - 1);
        assert!(waiting.has_room());
        (1..WAITING - 1).for_each(|_| waiting.add(0));
        assert!(waiting.has_room());
        waiting.add(0);
        assert!(!waiting.has_room());
    }

    #[tokio::test]
    async fn a_full_queue_has_room_again_when_the_decoder_reads_on() {
        let mut inlet = OpusInlet::any(crate::ears::decoding::tests::share(), 16_000);
        // Junk, so that nothing is decoded from it: a head of WAV with a chunk that nobody wants.
        let mut junk = b"RIFF\xff\xff\xff\xffWAVEjunk\x00\x00\x30\x00".to_vec();
        junk.resize(WAITING_BYTES + 20, 0);
        inlet.push(junk.into()).unwrap();
        // Whether or not it was taken already, the decoder comes to want more.
        while !inlet.has_room() {
            assert_eq!(inlet.next().await.unwrap().unwrap(), Decoded::Room);
        }
        inlet.push(vec![0; WAITING_BYTES].into()).unwrap();
        while !inlet.has_room() {
            assert_eq!(inlet.next().await.unwrap().unwrap(), Decoded::Room);
        }
        inlet.finish();
        assert!(inlet.next().await.is_none());
    }
}
