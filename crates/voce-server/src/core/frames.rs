//! Frames on their way in. Large ones are cut, so that nobody holds buffers of their size when they are done with; and
//! all large messages share a budget, so that no number of sockets holds more than it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::budget::{Budget, Turn};
use super::caller::Caller;
use super::error::ServerError;
use super::limits::{LARGE_MESSAGE, LARGE_TIME, LARGE_WAIT, WS_READ_BUFFER};

/// Longest frame that is passed on as it is.
const FRAGMENT: u64 = 64 * 1024;
/// Longest head of a frame.
const MAX_HEAD: usize = 14;

/// Why reading has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There was no room for a large message for too long.
    NoRoom,
    /// A large message came too slowly.
    Slow,
}

/// What a socket and its reader know of each other.
pub(crate) struct Claim {
    budget: Arc<Budget>,
    caller: Caller,
    room: Mutex<Option<Turn>>,
    /// Whether there is a turn in `room`: most messages are short and need none.
    held: AtomicBool,
    state: AtomicU8,
}

const WAITING: u8 = 1;
const NO_ROOM: u8 = 2;
const SLOW: u8 = 3;

impl Claim {
    /// The claim of a caller on the room that there is for large messages.
    pub(crate) fn new(budget: Arc<Budget>, caller: Caller) -> Self {
        Self { budget, caller, room: Mutex::default(), held: AtomicBool::new(false), state: AtomicU8::new(0) }
    }

    /// The last message is done with: what it took is free.
    pub(crate) fn release(&self) {
        if self.is_held() {
            *self.room.lock().unwrap_or_else(PoisonError::into_inner) = None;
            self.held.store(false, Ordering::Release);
        }
    }

    /// Whether a message waits for room.
    pub(crate) fn is_waiting(&self) -> bool {
        self.state.load(Ordering::Relaxed) == WAITING
    }

    /// Why reading has ended, where that was for want of room or of speed.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        match self.state.load(Ordering::Relaxed) {
            NO_ROOM => Some(Verdict::NoRoom),
            SLOW => Some(Verdict::Slow),
            _ => None,
        }
    }

    fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    fn hold(&self, room: Turn) {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = Some(room);
        self.held.store(true, Ordering::Release);
    }

    fn end(&self, state: u8) -> io::Error {
        self.state.store(state, Ordering::Relaxed);
        io::ErrorKind::TimedOut.into()
    }
}

/// The head of a frame, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    first: u8,
    masked: bool,
    length: u64,
    mask: [u8; 4],
}

const FIN: u8 = 0x80;
const OPCODE: u8 = 0x0f;

impl Head {
    /// The head that the bytes begin with, and its length; `None` where there is only a part of it.
    fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let [first, second, rest @ ..] = bytes else { return None };
        let (length, used) = match second & 0x7f {
            126 => (u64::from(u16::from_be_bytes(*rest.first_chunk()?)), 2),
            127 => (u64::from_be_bytes(*rest.first_chunk()?), 8),
            n => (u64::from(n), 0),
        };
        let masked = second & 0x80 != 0;
        let mask = if masked { *rest[used..].first_chunk()? } else { [0; 4] };
        Some((Self { first: *first, masked, length, mask }, 2 + used + if masked { 4 } else { 0 }))
    }

    fn put(&self, out: &mut BytesMut) {
        let bit = if self.masked { 0x80 } else { 0 };
        out.extend_from_slice(&[self.first]);
        match self.length {
            n @ 0..=125 => out.extend_from_slice(&[bit | n as u8]),
            n @ 126..=0xffff => {
                out.extend_from_slice(&[bit | 126]);
                out.extend_from_slice(&(n as u16).to_be_bytes());
            }
            n => {
                out.extend_from_slice(&[bit | 127]);
                out.extend_from_slice(&n.to_be_bytes());
            }
        }
        if self.masked {
            out.extend_from_slice(&self.mask);
        }
    }

    fn is_control(&self) -> bool {
        self.first & OPCODE >= 8
    }

    fn is_last(&self) -> bool {
        self.first & FIN != 0
    }
}

type Acquire = Pin<Box<dyn Future<Output = Result<Turn, ServerError>> + Send>>;

/// A socket whose frames are cut on their way in.
pub(crate) struct Frames<T> {
    io: T,
    /// Read and not looked at.
    read: BytesMut,
    /// Heads to be passed on.
    out: BytesMut,
    /// What is left of the present frame, and of the part of it that its last head announced.
    frame: Option<Head>,
    frame_left: u64,
    part_left: u64,
    /// Bytes of the present message so far, frames that are under way included.
    message: u64,
    max_message: u64,
    claim: Arc<Claim>,
    acquire: Option<Acquire>,
    alarm: Option<Pin<Box<Sleep>>>,
    /// How long a large message may wait for room, and how long it may take to come.
    patience: (Duration, Duration),
}

impl<T: AsyncRead + Unpin> Frames<T> {
    pub(crate) fn new(io: T, max_message: usize, claim: Arc<Claim>) -> Self {
        Self {
            io,
            read: BytesMut::new(),
            out: BytesMut::new(),
            frame: None,
            frame_left: 0,
            part_left: 0,
            message: 0,
            max_message: max_message as u64,
            claim,
            acquire: None,
            alarm: None,
            patience: (LARGE_WAIT, LARGE_TIME),
        }
    }

    /// Looks at the head of a frame: waits for room where its message is large, and announces its first part.
    fn poll_begin(&mut self, cx: &mut Context<'_>, head: Head) -> Poll<io::Result<()>> {
        let message = self.message.saturating_add(if head.is_control() { 0 } else { head.length });
        let is_broken = if head.is_control() { head.length > FRAGMENT } else { message > self.max_message };
        if is_broken {
            // What is announced is refused by its length before any of it is read.
            Head { length: u64::MAX >> 1, ..head }.put(&mut self.out);
            (self.frame_left, self.part_left) = (head.length, head.length);
            return Poll::Ready(Ok(()));
        }
        if message > LARGE_MESSAGE as u64 && !self.claim.is_held() {
            // A message in several frames does not say how long it will be.
            let bytes = if head.is_last() { message } else { self.max_message };
            ready!(self.poll_room(cx, bytes))?;
        }
        self.message = if !head.is_control() && head.is_last() { 0 } else { message };
        self.frame = Some(head);
        self.frame_left = head.length;
        self.announce(head.first);
        Poll::Ready(Ok(()))
    }

    /// Puts the head of the next part of the present frame.
    fn announce(&mut self, first: u8) {
        let Some(head) = self.frame else { return };
        self.part_left = self.frame_left.min(FRAGMENT);
        let is_cut = self.part_left < self.frame_left;
        let first = if is_cut { first & !FIN } else { first | head.first & FIN };
        Head { first, length: self.part_left, ..head }.put(&mut self.out);
    }

    fn poll_room(&mut self, cx: &mut Context<'_>, bytes: u64) -> Poll<io::Result<()>> {
        let claim = &self.claim;
        let acquire = self.acquire.get_or_insert_with(|| {
            let (budget, caller) = (claim.budget.clone(), claim.caller);
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            Box::pin(async move { budget.messages.enter(&caller, bytes).await })
        });
        let Poll::Ready(room) = acquire.as_mut().poll(cx) else {
            self.claim.state.store(WAITING, Ordering::Relaxed);
            let patience = self.patience.0;
            let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
            ready!(alarm.as_mut().poll(cx));
            return Poll::Ready(Err(self.claim.end(NO_ROOM)));
        };
        self.acquire = None;
        self.claim.state.store(0, Ordering::Relaxed);
        self.claim.hold(room.map_err(io::Error::other)?);
        self.alarm = Some(Box::pin(tokio::time::sleep(self.patience.1)));
        Poll::Ready(Ok(()))
    }

    /// Reads more into the buffer; false at the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut space = [0; WS_READ_BUFFER];
        let mut buf = ReadBuf::new(&mut space);
        ready!(self.poll_io(cx, &mut buf))?;
        self.read.extend_from_slice(buf.filled());
        Poll::Ready(Ok(!buf.filled().is_empty()))
    }

    /// Reads from the socket; a large message that is not whole in time is an error.
    fn poll_io(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_read(cx, buf);
        if result.is_pending()
            && let Some(alarm) = &mut self.alarm
        {
            ready!(alarm.as_mut().poll(cx));
            return Poll::Ready(Err(self.claim.end(SLOW)));
        }
        result
    }

    /// Reads straight into the reader's buffer, which short messages cross as they are: their heads are only looked at.
    /// From the first head on that needs more than a look, bytes are kept for the loop of `poll_read`.
    fn poll_plain(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(self.poll_io(cx, buf))?;
        let bytes = &buf.filled()[before..];
        let mut at = 0;
        while at < bytes.len() {
            let Some((head, length)) = Head::parse(&bytes[at..]).filter(|(head, _)| self.is_plain(head))
            else {
                self.read.extend_from_slice(&bytes[at..]);
                break;
            };
            let left = bytes.len() - at - length;
            let here = usize::try_from(head.length).unwrap_or(usize::MAX).min(left);
            self.frame = Some(head);
            self.frame_left = head.length - here as u64;
            self.part_left = self.frame_left;
            at += length + here;
        }
        buf.set_filled(before + at);
        Poll::Ready(Ok(()))
    }

    /// Whether a frame is a whole message, or a control frame, that is neither cut nor waits for room.
    fn is_plain(&self, head: &Head) -> bool {
        self.message == 0
            && head.is_last()
            && head.length <= FRAGMENT.min(LARGE_MESSAGE as u64).min(self.max_message)
    }

    /// Passes payload on.
    fn poll_payload(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let most = usize::try_from(self.part_left).unwrap_or(usize::MAX).min(buf.remaining());
        let n = if self.read.is_empty() {
            let mut part = ReadBuf::new(buf.initialize_unfilled_to(most));
            ready!(self.poll_io(cx, &mut part))?;
            let n = part.filled().len();
            buf.advance(n);
            n
        } else {
            let n = most.min(self.read.len());
            buf.put_slice(&self.read[..n]);
            self.read.advance(n);
            n
        };
        self.part_left -= n as u64;
        self.frame_left = self.frame_left.saturating_sub(n as u64);
        if self.frame_left == 0 && self.message == 0 {
            self.alarm = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Frames<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        loop {
            if !this.out.is_empty() {
                let n = this.out.len().min(buf.remaining());
                buf.put_slice(&this.out[..n]);
                this.out.advance(n);
                // What is there of the payload goes along: a short message is one read.
                if this.out.is_empty() && this.part_left > 0 && !this.read.is_empty() && buf.remaining() > 0 {
                    return this.poll_payload(cx, buf);
                }
                return Poll::Ready(Ok(()));
            }
            if this.part_left > 0 {
                return this.poll_payload(cx, buf);
            }
            if this.frame_left > 0 {
                this.announce(0);
                continue;
            }
            if this.read.is_empty() {
                ready!(this.poll_plain(cx, buf))?;
                if this.read.is_empty() || buf.filled().len() > before {
                    return Poll::Ready(Ok(()));
                }
            }
            match Head::parse(&this.read) {
                Some((head, length)) => {
                    ready!(this.poll_begin(cx, head))?;
                    this.read.advance(length);
                }
                None => {
                    debug_assert!(this.read.len() < MAX_HEAD);
                    if !ready!(this.poll_fill(cx))? {
                        // Half a head is the reader's to judge.
                        let rest = this.read.split();
                        if rest.is_empty() {
                            return Poll::Ready(Ok(()));
                        }
                        this.out = rest;
                    }
                }
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Frames<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::core::limits::Limits;

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let head = Head { first, masked: true, length: payload.len() as u64, mask: [1, 2, 3, 4] };
        let mut out = BytesMut::new();
        head.put(&mut out);
        out.extend(payload.iter().enumerate().map(|(i, b)| b ^ head.mask[i % 4]));
        out.to_vec()
    }

    fn claim() -> Arc<Claim> {
        claim_on(&Arc::new(Budget::new(Limits::default(), 0)))
    }

    fn claim_on(budget: &Arc<Budget>) -> Arc<Claim> {
        Arc::new(Claim::new(budget.clone(), Caller::default()))
    }

    /// All room that a caller has.
    async fn all(budget: &Budget) -> Turn {
        budget.messages.enter(&Caller::default(), usize::MAX).await.unwrap()
    }

    async fn pass(bytes: Vec<u8>, max_message: usize) -> Vec<u8> {
        pass_by(bytes, max_message, claim()).await
    }

    async fn pass_by(bytes: Vec<u8>, max_message: usize, claim: Arc<Claim>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut frames = Frames::new(io::Cursor::new(bytes), max_message, claim);
        frames.read_to_end(&mut out).await.unwrap();
        out
    }

    /// Heads and payloads, unmasked.
    fn parts(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut parts = Vec::new();
        while let Some((head, length)) = Head::parse(bytes) {
            let (payload, rest) = bytes[length..].split_at(head.length as usize);
            parts.push((head.first, payload.iter().enumerate().map(|(i, b)| b ^ head.mask[i % 4]).collect()));
            bytes = rest;
        }
        parts
    }

    #[tokio::test]
    async fn small_frames_pass_as_they_are() {
        let mut bytes = Vec::new();
        for n in [0, 1, 125, 126, 5_000, 65_535, 65_536] {
            bytes.extend(frame(0x82, &vec![7; n]));
            bytes.extend(frame(0x89, b"ping"));
        }
        // Half a head at the end is passed on as well.
        bytes.extend([0x81, 0xfe, 0x01]);
        assert_eq!(pass(bytes.clone(), 1 << 20).await, bytes);
    }

    #[tokio::test]
    async fn what_is_read_in_pieces_of_any_size_is_the_same() {
        let payload: Vec<u8> = (0..70_000u32).map(|i| (i * 11) as u8).collect();
        let bytes =
            [frame(0x82, b"short"), frame(0x01, b"two "), frame(0x89, b"p"), frame(0x80, b"parts")].concat();
        let bytes = [bytes, frame(0x82, &payload), frame(0x81, &payload[..3000]), frame(0x88, b"")].concat();
        let whole = pass(bytes.clone(), 1 << 20).await;
        for (chunk, space) in [(1, 4096), (7, 33), (13, 4096), (4096, 20), (1 << 20, 1 << 20)] {
            let (mut ours, theirs) = tokio::io::duplex(chunk);
            let bytes = bytes.clone();
            let writer =
                tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut ours, &bytes).await });
            let (mut out, mut buf) = (Vec::new(), vec![0; space]);
            let mut frames = Frames::new(theirs, 1 << 20, claim());
            while let n @ 1.. = frames.read(&mut buf).await.unwrap() {
                out.extend_from_slice(&buf[..n]);
            }
            writer.await.unwrap().unwrap();
            assert!(out == whole, "{chunk} {space}");
        }
    }

    #[tokio::test]
    async fn large_frames_are_cut_and_say_the_same() {
        let payload: Vec<u8> = (0..200_001u32).map(|i| (i * 7) as u8).collect();
        let bytes = [frame(0x81, &payload), frame(0x82, b"after")].concat();
        let parts = parts(&pass(bytes, 1 << 20).await);
        let heads: Vec<(u8, usize)> = parts.iter().map(|(first, p)| (*first, p.len())).collect();
        assert_eq!(heads, [(0x01, 65_536), (0x00, 65_536), (0x00, 65_536), (0x80, 3_393), (0x82, 5)]);
        let said: Vec<u8> = parts[..4].iter().flat_map(|(_, p)| p.clone()).collect();
        assert_eq!(said, payload);
        // The first frame of several is not the end of its message, whoever cut it.
        let bytes = [frame(0x01, &payload), frame(0x89, b""), frame(0x80, b"end")].concat();
        let firsts: Vec<u8> = parts_of(&pass(bytes, 1 << 20).await);
        assert_eq!(firsts, [0x01, 0x00, 0x00, 0x00, 0x89, 0x80]);
    }

    fn parts_of(bytes: &[u8]) -> Vec<u8> {
        parts(bytes).into_iter().map(|(first, _)| first).collect()
    }

    #[tokio::test]
    async fn a_message_past_its_limit_is_announced_as_such() {
        let length = |bytes: &[u8]| Head::parse(bytes).unwrap().0.length;
        assert_eq!(length(&pass(frame(0x82, &[0; 1000]), 1000).await), 1000);
        assert!(length(&pass(frame(0x82, &[0; 1001]), 1000).await) > 1 << 60);
        // The same where it comes in two frames.
        let bytes = [frame(0x02, &[0; 999]), frame(0x80, &[0; 2])].concat();
        let out = pass(bytes, 1000).await;
        assert!(length(&out[frame(0x02, &[0; 999]).len()..]) > 1 << 60);
        // And for a control frame that no control frame can be.
        assert!(length(&pass(frame(0x89, &vec![0; 70_000]), 1 << 20).await) > 1 << 60);
    }

    #[tokio::test]
    async fn large_messages_wait_for_room() {
        let budget = Arc::new(Budget::new(Limits::default(), 0));
        let taken = all(&budget).await;
        let claim = claim_on(&budget);
        let bytes = frame(0x82, &vec![0; LARGE_MESSAGE + 1]);
        let mut frames = Frames::new(io::Cursor::new(bytes), 1 << 20, claim.clone());
        let mut buf = [0; 100];
        let mut reading = Box::pin(frames.read(&mut buf));
        let first = std::future::poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx).is_pending())).await;
        assert!(first && claim.is_waiting());
        drop(taken);
        assert!(reading.await.unwrap() > 0);
        assert!(!claim.is_waiting() && claim.is_held());
        claim.release();
        assert!(!claim.is_held());
        // One that is as large as small ones may be does not ask.
        let taken = all(&budget).await;
        let small = frame(0x82, &vec![0; LARGE_MESSAGE]);
        assert_eq!(pass_by(small.clone(), 1 << 20, claim_on(&budget)).await, small);
        drop(taken);
    }

    #[tokio::test]
    async fn a_large_message_has_a_time_to_come_and_to_wait() {
        let mut bytes = frame(0x82, &vec![0; LARGE_MESSAGE + 1]);
        bytes.pop();
        let short = Duration::from_millis(1);
        let long = Duration::from_secs(60);
        // All but its last byte.
        let budget = Arc::new(Budget::new(Limits::default(), 0));
        let claim = claim_on(&budget);
        let (mut ours, theirs) = tokio::io::duplex(1 << 20);
        tokio::io::AsyncWriteExt::write_all(&mut ours, &bytes).await.unwrap();
        let mut frames = Frames::new(theirs, 1 << 20, claim.clone());
        frames.patience = (long, short);
        assert!(frames.read_to_end(&mut Vec::new()).await.is_err());
        assert_eq!(claim.verdict(), Some(Verdict::Slow));
        claim.release();
        // No room.
        let taken = all(&budget).await;
        let mut frames = Frames::new(io::Cursor::new(bytes), 1 << 20, claim.clone());
        frames.patience = (short, long);
        assert!(frames.read_to_end(&mut Vec::new()).await.is_err());
        assert_eq!(claim.verdict(), Some(Verdict::NoRoom));
        drop(taken);
    }
}
