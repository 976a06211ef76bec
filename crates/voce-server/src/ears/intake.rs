//! The way of raw audio into a stream, whatever the size of its messages: what is short is turned into samples where it
//! is, what is long piece by piece on blocking workers, the next piece when the stream has taken the last.

use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use tokio::task::JoinHandle;
use tungstenite::Utf8Bytes;

use super::{Hearing, Inlet, InletState};
use crate::core::error::ServerError;

/// What an async worker turns into samples itself, in samples at the higher of both rates: a second.
const AT_ONCE: usize = 16_000;
/// What a blocking worker does at a time: five seconds.
const PIECE: usize = 80_000;

/// Audio of one message.
pub(crate) enum Payload {
    /// Bytes in the stream's encoding.
    Raw(Bytes),
    /// The same in base64.
    Base64(Base64Text),
    /// Samples.
    Floats(Vec<f32>),
}

/// Base64 inside the text of a message, which is kept as it came.
pub(crate) struct Base64Text {
    text: Utf8Bytes,
    at: usize,
    end: usize,
    decoded: usize,
}

impl Base64Text {
    /// The base64 between two places of a text of JSON, where it may have escapes. All of it is looked at.
    pub(crate) fn new(text: Utf8Bytes, range: std::ops::Range<usize>) -> Result<Self, ServerError> {
        let bad = |what: String| ServerError::bad("audio", format!("audio is not base64: {what}"));
        let this = Self { text, at: range.start, end: range.end, decoded: 0 };
        let (mut letters, mut padding, mut last) = (0, 0, [0; 4]);
        for letter in this.letters() {
            if letter == b'=' {
                padding += 1;
            } else if padding > 0 || !(letter.is_ascii_alphanumeric() || matches!(letter, b'+' | b'/')) {
                return Err(bad(format!("a wrong letter at {letters}")));
            }
            last[letters % 4] = letter;
            letters += 1;
        }
        if letters % 4 != 0 || padding > 2 {
            return Err(bad("its length is not a multiple of four, with padding".into()));
        }
        if letters > 0 {
            BASE64.decode(last).map_err(|e| bad(format!("its end: {e}")))?;
        }
        Ok(Self { decoded: letters / 4 * 3 - padding, ..this })
    }

    /// Bytes that it stands for.
    pub(crate) fn decoded(&self) -> usize {
        self.decoded
    }

    fn letters(&self) -> Letters<'_> {
        Letters(&self.text.as_bytes()[self.at..self.end])
    }

    /// The next bytes, about as many as asked for; none at the end.
    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut letters = self.letters();
        let group: Vec<u8> = letters.by_ref().take((bytes / 3).max(1) * 4).collect();
        let left = letters.0.len();
        self.at = self.end - left;
        BASE64.decode(group).unwrap_or_default()
    }
}

/// The letters of a string of JSON without its escapes; what no base64 has comes as `!`.
struct Letters<'a>(&'a [u8]);

impl Iterator for Letters<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        if first != b'\\' {
            return Some(first);
        }
        let (&kind, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(match kind {
            b'/' => b'/',
            b'u' => {
                let (hex, rest) = self.0.split_at(self.0.len().min(4));
                self.0 = rest;
                let code = std::str::from_utf8(hex).ok().and_then(|h| u32::from_str_radix(h, 16).ok());
                code.and_then(|c| u8::try_from(c).ok()).unwrap_or(b'!')
            }
            _ => b'!',
        })
    }
}

impl Payload {
    /// Whether it is short enough to be turned into samples at once.
    fn is_short(&self, inlet: &Inlet) -> bool {
        match self {
            Self::Raw(bytes) => bytes.len() <= inlet.bytes_of(AT_ONCE),
            Self::Base64(text) => text.decoded <= inlet.bytes_of(AT_ONCE),
            Self::Floats(samples) => samples.len() <= inlet.floats_of(AT_ONCE),
        }
    }

    /// Whether nothing is left of it.
    fn is_done(&self) -> bool {
        match self {
            Self::Raw(rest) => rest.is_empty(),
            Self::Base64(text) => text.at == text.end,
            Self::Floats(rest) => rest.is_empty(),
        }
    }

    /// The samples of its next piece.
    fn next<'a>(&mut self, inlet: &'a mut Inlet, most: usize) -> &'a [f32] {
        let bytes = inlet.bytes_of(most).max(1);
        match self {
            Self::Raw(rest) => {
                let piece = rest.split_to(rest.len().min(bytes));
                inlet.bytes(&piece)
            }
            Self::Base64(text) => {
                let piece = text.take(bytes);
                inlet.bytes(&piece)
            }
            Self::Floats(rest) => {
                let n = rest.len().min(inlet.floats_of(most).max(1));
                let piece: Vec<f32> = rest.drain(..n).collect();
                inlet.floats(&piece)
            }
        }
    }
}

/// A worker that gives back what it was lent, with the samples of a piece.
type Work = JoinHandle<(Inlet, Payload, Vec<f32>)>;

/// An inlet, and the messages that are on their way through it.
pub(crate) struct Intake {
    inlet: Option<Inlet>,
    waiting: VecDeque<Payload>,
    work: Option<Work>,
}

impl Intake {
    pub(crate) fn new(inlet: Inlet) -> Self {
        Self { inlet: Some(inlet), waiting: VecDeque::new(), work: None }
    }

    /// The inlet's state between two messages; `None` while one is on its way.
    pub(crate) fn state(&self) -> Option<InletState> {
        self.inlet.as_ref().filter(|_| self.is_idle()).map(Inlet::state)
    }

    /// Whether all that came is in the stream. Callers read no further message before.
    pub(crate) fn is_idle(&self) -> bool {
        self.work.is_none() && self.waiting.is_empty()
    }

    /// Takes a message: what is short goes into the stream now, the rest with [`Intake::next`].
    pub(crate) fn push(&mut self, mut payload: Payload, hearing: &mut Hearing) {
        match &mut self.inlet {
            Some(inlet) if self.waiting.is_empty() && payload.is_short(inlet) => {
                while !payload.is_done() {
                    hearing.push(payload.next(inlet, AT_ONCE));
                }
            }
            _ => self.waiting.push_back(payload),
        }
    }

    /// The next samples of a long message; waits for ever where there is none. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<Vec<f32>, ServerError> {
        if self.work.is_none() {
            if self.waiting.is_empty() {
                return std::future::pending().await;
            }
            let (Some(mut inlet), Some(mut payload)) = (self.inlet.take(), self.waiting.pop_front()) else {
                return Err(ServerError::Internal);
            };
            self.work = Some(tokio::task::spawn_blocking(move || {
                let samples = payload.next(&mut inlet, PIECE).to_vec();
                (inlet, payload, samples)
            }));
        }
        let Some(work) = &mut self.work else { return Err(ServerError::Internal) };
        let done = work.await;
        self.work = None;
        let (inlet, payload, samples) = done.map_err(|_| ServerError::Internal)?;
        self.inlet = Some(inlet);
        if !payload.is_done() {
            self.waiting.push_front(payload);
        }
        Ok(samples)
    }

    /// As [`Intake::next`] for an intake that may not be there yet: one that is not waits for ever.
    pub(crate) async fn next_of(intake: &mut Option<Self>) -> Result<Vec<f32>, ServerError> {
        match intake {
            Some(intake) => intake.next().await,
            None => std::future::pending().await,
        }
    }

    /// Puts what the resampler still holds into the stream; for when the intake [is idle](Intake::is_idle).
    pub(crate) fn finish(&mut self, hearing: &mut Hearing) {
        if let Some(inlet) = &mut self.inlet {
            hearing.push(inlet.finish());
        }
    }
}

#[cfg(test)]
mod tests {
    use voce_audio::RawEncoding;

    use super::*;

    fn text(inner: &str) -> Result<Base64Text, ServerError> {
        let text = format!("{{\"audio\":\"{inner}\"}}");
        let range = 10..text.len() - 2;
        Base64Text::new(text.into(), range)
    }

    fn whole(mut text: Base64Text, piece: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let part = text.take(piece);
            if part.is_empty() {
                assert_eq!(text.at, text.end);
                return bytes;
            }
            bytes.extend(part);
        }
    }

    #[test]
    fn base64_in_pieces_is_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 41 % 256) as u8).collect();
        for n in [0, 1, 2, 3, 4, 999, 1000] {
            let plain = BASE64.encode(&bytes[..n]);
            // As other encoders write it: slashes, and letters that HTML does not like.
            let escaped = plain.replace('/', "\\/").replace('+', "\\u002B").replace('=', "\\u003d");
            for inner in [plain, escaped] {
                for piece in [1, 3, 100, 5000] {
                    let text = text(&inner).unwrap();
                    assert_eq!(text.decoded(), n);
                    assert_eq!(whole(text, piece), bytes[..n]);
                }
            }
        }
    }

    #[test]
    fn what_is_no_base64_is_refused_whole() {
        for inner in [
            "A", "AA", "AAA", "AA=A", "====", "AB==", "AAA\\n", "AA A", "A\\\\AA", "é===", "AAAA=", "\\u00",
            "A\\",
        ] {
            assert!(text(inner).is_err(), "{inner}");
        }
    }

    #[tokio::test]
    async fn long_messages_are_the_same_samples_in_pieces() {
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i * 31 % 251) as u8).collect();
        let inlet = || Inlet::new(RawEncoding::Mulaw, 4_000, 1, 16_000).unwrap();
        let mut one = inlet();
        let mut expected = one.bytes(&bytes).to_vec();
        expected.extend_from_slice(one.finish());
        let encoded = BASE64.encode(&bytes);
        for payload in [Payload::Raw(bytes.clone().into()), Payload::Base64(text(&encoded).unwrap())] {
            let mut intake = Intake::new(inlet());
            intake.waiting.push_back(payload);
            let mut got = Vec::new();
            while !intake.is_idle() {
                let piece = intake.next().await.unwrap();
                assert!(piece.len() <= PIECE, "{}", piece.len());
                got.extend(piece);
            }
            got.extend_from_slice(intake.inlet.as_mut().unwrap().finish());
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn short_is_what_costs_little() {
        let slow = Inlet::new(RawEncoding::Mulaw, 4_000, 1, 16_000).unwrap();
        assert!(Payload::Raw(vec![0; 4_000].into()).is_short(&slow));
        assert!(!Payload::Raw(vec![0; 4_001].into()).is_short(&slow));
        let fast = Inlet::new(RawEncoding::F32le, 192_000, 2, 16_000).unwrap();
        assert!(Payload::Raw(vec![0; 16_000 * 8].into()).is_short(&fast));
        assert!(!Payload::Raw(vec![0; 16_000 * 8 + 1].into()).is_short(&fast));
        assert!(!Payload::Floats(vec![0.0; 16_001]).is_short(&fast));
    }
}
