//! What comes in on one side of a stream: bytes in, messages out. A message is passed on as the frame it came in, bytes and
//! mask unchanged; only words about the connection and messages in several frames are taken apart.

use bytes::buf::Limit;
use bytes::{BufMut as _, Bytes, BytesMut};
use tungstenite::protocol::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;

use super::frame::{Bad, Head, Kind, MAX_HEAD, Mask, apply, is_text};

/// Room that is made for bytes to come: some frames of the length that frames have lately, within these bounds.
const FRAMES: usize = 6;
const LEAST_ROOM: usize = 4 * 1024;
const MOST_ROOM: usize = 64 * 1024;

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// Its frames are masked.
    Client,
    /// Its frames are not.
    Machine,
}

/// A text or binary message: one whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) frame: Bytes,
    pub(super) is_text: bool,
    /// Where the payload begins.
    at: usize,
}

impl Data {
    /// The payload as it was sent: with its mask, where it has one.
    pub(super) fn payload(&self) -> &[u8] {
        &self.frame[self.at..]
    }
}

/// What a peer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Data(Data),
    Ping(Bytes),
    Pong,
    Close(Option<CloseFrame>),
}

/// A message in several frames, so far: its payload, under the mask of the first.
struct Parts {
    kind: Kind,
    mask: Option<Mask>,
    payload: BytesMut,
}

/// Bytes that have come and are not read yet.
pub(super) struct Inbox {
    sender: Sender,
    /// Bytes of a message's payload at most.
    most: usize,
    bytes: BytesMut,
    parts: Option<Parts>,
    /// Length of the last frame of a message.
    usual: usize,
}

impl Inbox {
    /// For messages of at most `most` bytes, of which some bytes may have come already.
    pub(super) fn new(sender: Sender, most: usize, come: &[u8]) -> Self {
        Self { sender, most, bytes: BytesMut::from(come), parts: None, usual: 0 }
    }

    /// Where bytes that come are put: there is room for some frames of the usual length. A longer one gets room as it comes,
    /// whatever length it claims.
    pub(super) fn room(&mut self) -> Limit<&mut BytesMut> {
        let rest = (self.usual + MAX_HEAD).saturating_sub(self.bytes.len()).max(MAX_HEAD);
        if self.bytes.capacity() - self.bytes.len() < rest {
            self.bytes.reserve((FRAMES * self.usual).clamp(LEAST_ROOM, MOST_ROOM));
        }
        (&mut self.bytes).limit(MOST_ROOM)
    }

    /// The next thing that has come whole.
    pub(super) fn next(&mut self) -> Result<Option<Said>, Bad> {
        loop {
            let Some((head, at)) = Head::parse(&self.bytes)? else { return Ok(None) };
            self.check(&head)?;
            // No longer than `most`, which fits.
            let end = at + head.length as usize;
            if self.bytes.len() < end {
                return Ok(None);
            }
            let frame = self.take(end);
            let said = match head.kind {
                Kind::Text | Kind::Binary if head.is_last => {
                    self.usual = end;
                    Some(data(head, frame.freeze(), at)?)
                }
                Kind::Text | Kind::Binary | Kind::Continue => self.gather(&head, &frame[at..])?,
                Kind::Close | Kind::Ping | Kind::Pong => Some(control(&head, frame, at)?),
            };
            if said.is_some() {
                return Ok(said);
            }
        }
    }

    /// Takes the first bytes. What follows a long frame moves elsewhere, so that short messages do not hold its memory.
    fn take(&mut self, end: usize) -> BytesMut {
        let frame = self.bytes.split_to(end);
        if end > MOST_ROOM {
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
        frame
    }

    /// Whether a frame may come now.
    fn check(&self, head: &Head) -> Result<(), Bad> {
        let is_in_turn = match head.kind {
            Kind::Text | Kind::Binary => self.parts.is_none(),
            Kind::Continue => self.parts.is_some(),
            Kind::Close | Kind::Ping | Kind::Pong => true,
        };
        if head.mask.is_some() != (self.sender == Sender::Client) || !is_in_turn {
            return Err(Bad::Protocol);
        }
        let before = self.parts.as_ref().map_or(0, |parts| parts.payload.len());
        let room = self.most.saturating_sub(before);
        if usize::try_from(head.length).is_ok_and(|n| n <= room) { Ok(()) } else { Err(Bad::TooLong) }
    }

    /// Adds a frame to a message in several; the message where this is its last one.
    fn gather(&mut self, head: &Head, payload: &[u8]) -> Result<Option<Said>, Bad> {
        let parts = self.parts.get_or_insert_with(|| Parts {
            kind: head.kind,
            mask: head.mask,
            payload: BytesMut::new(),
        });
        let before = parts.payload.len();
        parts.payload.extend_from_slice(payload);
        // Its own mask off, and that of the first frame on, in one go.
        let (own, first) = (head.mask.unwrap_or_default(), parts.mask.unwrap_or_default());
        apply(std::array::from_fn(|i| own[i] ^ first[(before + i) % 4]), &mut parts.payload[before..]);
        let Some(Parts { kind, mask, payload }) = self.parts.take_if(|_| head.is_last) else {
            return Ok(None);
        };
        let head = Head { kind, is_last: true, mask, length: payload.len() as u64 };
        let mut frame = BytesMut::with_capacity(MAX_HEAD + payload.len());
        head.put(&mut frame);
        let at = frame.len();
        frame.extend_from_slice(&payload);
        Ok(Some(data(head, frame.freeze(), at)?))
    }
}

/// A message in one frame. Texts of clients are checked: a machine would blame the router for them.
fn data(head: Head, frame: Bytes, at: usize) -> Result<Said, Bad> {
    let is_text = head.kind == Kind::Text;
    if let Some(mask) = head.mask.filter(|_| is_text)
        && !self::is_text(mask, &frame[at..])
    {
        return Err(Bad::NotText);
    }
    Ok(Said::Data(Data { frame, is_text, at }))
}

/// A word about the connection.
fn control(head: &Head, mut frame: BytesMut, at: usize) -> Result<Said, Bad> {
    let mut payload = frame.split_off(at);
    apply(head.mask.unwrap_or_default(), &mut payload);
    Ok(match head.kind {
        Kind::Ping => Said::Ping(payload.freeze()),
        Kind::Pong => Said::Pong,
        _ => Said::Close(goodbye(&payload)?),
    })
}

/// What a close frame says: nothing, or a code and a reason.
fn goodbye(payload: &[u8]) -> Result<Option<CloseFrame>, Bad> {
    if payload.is_empty() {
        return Ok(None);
    }
    let (code, reason) = payload.split_first_chunk().ok_or(Bad::Protocol)?;
    let code = CloseCode::from(u16::from_be_bytes(*code));
    let reason = std::str::from_utf8(reason).map_err(|_| Bad::NotText)?;
    if !code.is_allowed() {
        return Err(Bad::Protocol);
    }
    Ok(Some(CloseFrame { code, reason: reason.into() }))
}

#[cfg(test)]
mod tests {
    use super::super::dice::Dice;
    use super::*;

    const MOST: usize = 200_000;
    const MASK: Mask = [3, 141, 59, 26];

    /// A frame with this first byte, masked where there is a mask.
    fn frame(first: u8, mask: Option<Mask>, payload: &[u8]) -> Vec<u8> {
        let head = Head { kind: Kind::Binary, is_last: true, mask, length: payload.len() as u64 };
        let mut out = BytesMut::new();
        head.put(&mut out);
        out[0] = first;
        let at = out.len();
        out.extend_from_slice(payload);
        apply(mask.unwrap_or_default(), &mut out[at..]);
        out.to_vec()
    }

    fn client(first: u8, payload: &[u8]) -> Vec<u8> {
        frame(first, Some(MASK), payload)
    }

    /// What a peer said, as a reader sees it.
    #[derive(Debug, PartialEq)]
    enum Seen {
        Text(Vec<u8>),
        Binary(Vec<u8>),
        Ping(Vec<u8>),
        Pong,
        Close(Option<(u16, String)>),
    }

    fn seen(said: Said) -> Seen {
        match said {
            Said::Data(data) => {
                let (head, at) = Head::parse(&data.frame).unwrap().unwrap();
                assert!(head.is_last && at == data.at && data.frame.len() == at + head.length as usize);
                let mut payload = data.payload().to_vec();
                apply(head.mask.unwrap_or_default(), &mut payload);
                if data.is_text { Seen::Text(payload) } else { Seen::Binary(payload) }
            }
            Said::Ping(payload) => Seen::Ping(payload.to_vec()),
            Said::Pong => Seen::Pong,
            Said::Close(frame) => Seen::Close(frame.map(|f| (f.code.into(), f.reason.to_string()))),
        }
    }

    /// What an inbox finds in bytes that come in pieces of these lengths, up to a goodbye or to what it refuses.
    fn read(sender: Sender, bytes: &[u8], piece: impl FnMut() -> usize) -> (Vec<Seen>, Result<(), Bad>) {
        read_into(&mut Inbox::new(sender, MOST, &[]), bytes, piece)
    }

    fn read_into(
        inbox: &mut Inbox,
        bytes: &[u8],
        mut piece: impl FnMut() -> usize,
    ) -> (Vec<Seen>, Result<(), Bad>) {
        let (mut rest, mut all) = (bytes, Vec::new());
        loop {
            match inbox.next() {
                Ok(Some(said)) => all.push(seen(said)),
                Ok(None) if rest.is_empty() => return (all, Ok(())),
                Ok(None) => {
                    let mut room = inbox.room();
                    let n = piece().clamp(1, rest.len()).min(room.remaining_mut());
                    room.put_slice(&rest[..n]);
                    rest = &rest[n..];
                    assert!(inbox.bytes.capacity() <= 4 * (inbox.bytes.len() + MOST_ROOM));
                }
                Err(bad) => return (all, Err(bad)),
            }
            if matches!(all.last(), Some(Seen::Close(_))) {
                return (all, Ok(()));
            }
        }
    }

    #[test]
    fn a_frame_goes_on_as_it_came() {
        for length in [0, 1, 125, 126, 2560, 0xffff, 0x1_0000, MOST] {
            let payload: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let bytes = client(0x82, &payload);
            let mut inbox = Inbox::new(Sender::Client, MOST, &bytes);
            let Ok(Some(Said::Data(data))) = inbox.next() else { panic!("{length}") };
            assert!(data.frame == bytes && !data.is_text);
            assert_eq!(inbox.next(), Ok(None));
        }
        // Lengths that are written longer than they need be are passed on so.
        for bytes in [&b"\x82\x7e\0\x01a"[..], &b"\x82\x7f\0\0\0\0\0\0\0\x01a"[..]] {
            let Ok(Some(Said::Data(data))) = Inbox::new(Sender::Machine, MOST, bytes).next() else {
                panic!()
            };
            assert_eq!((&data.frame[..], data.payload()), (bytes, &b"a"[..]));
        }
    }

    #[test]
    fn a_message_in_parts_is_one_frame_and_words_between_them_are_heard() {
        let text = "über 🦀 alles".as_bytes();
        for cut in 0..text.len() {
            let bytes = [
                frame(0x01, Some(MASK), &text[..cut]),
                frame(0x89, Some([9; 4]), b"there?"),
                frame(0x00, Some([1, 2, 3, 4]), &[]),
                frame(0x8a, Some([0; 4]), b""),
                frame(0x80, Some([5, 6, 7, 8]), &text[cut..]),
                client(0x82, b"next"),
                client(0x88, b"\x03\xe8bye"),
            ]
            .concat();
            let expected = [
                Seen::Ping(b"there?".to_vec()),
                Seen::Pong,
                Seen::Text(text.to_vec()),
                Seen::Binary(b"next".to_vec()),
                Seen::Close(Some((1000, "bye".into()))),
            ];
            for piece in [1, 2, 7, 1000] {
                let (all, end) = read(Sender::Client, &bytes, || piece);
                assert_eq!((all.as_slice(), end), (&expected[..], Ok(())), "{cut} {piece}");
            }
        }
        let bytes = [frame(0x02, None, b"a"), frame(0x80, None, b"b")].concat();
        assert_eq!(read(Sender::Machine, &bytes, || 1).0, [Seen::Binary(b"ab".to_vec())]);
    }

    #[test]
    fn what_breaks_the_rules_is_refused() {
        let refused = |sender, bytes: &[u8]| read(sender, bytes, || 1).1;
        let protocol = [
            frame(0x82, None, b"not masked"),
            client(0x80, b"nothing to go on with"),
            [client(0x02, b"a"), client(0x82, b"another begins")].concat(),
            client(0x09, b"a ping in parts"),
            client(0x89, &[0; 126]),
            client(0xc2, b"a reserved bit"),
            client(0x83, b"a reserved kind"),
            client(0x88, b"x"),
            client(0x88, b"\x03\xed"),
        ];
        for bytes in protocol {
            assert_eq!(refused(Sender::Client, &bytes), Err(Bad::Protocol), "{bytes:?}");
        }
        assert_eq!(refused(Sender::Machine, &client(0x82, b"masked")), Err(Bad::Protocol));
        assert_eq!(refused(Sender::Client, &client(0x81, b"\xff")), Err(Bad::NotText));
        assert_eq!(refused(Sender::Client, &client(0x88, b"\x03\xe8\xff")), Err(Bad::NotText));
        // A character may be cut by parts, and not by the end.
        assert_eq!(refused(Sender::Client, &client(0x01, b"\xc3")), Ok(()));
        let cut = [client(0x01, b"\xc3"), client(0x80, b"")].concat();
        assert_eq!(refused(Sender::Client, &cut), Err(Bad::NotText));
    }

    #[test]
    fn long_messages_are_refused_by_their_head() {
        let at = [client(0x02, &vec![0; MOST - 1]), client(0x80, &[0])].concat();
        assert_eq!(read(Sender::Client, &at, || 9999).0, [Seen::Binary(vec![0; MOST])]);
        let past = [client(0x02, &vec![0; MOST]), client(0x80, &[0])[..6].to_vec()].concat();
        assert_eq!(read(Sender::Client, &past, || 9999).1, Err(Bad::TooLong));
        for length in [MOST as u64 + 1, u64::MAX, 1 << 63] {
            let mut head = BytesMut::new();
            Head { kind: Kind::Binary, is_last: true, mask: Some(MASK), length }.put(&mut head);
            assert_eq!(read(Sender::Client, &head, || 1).1, Err(Bad::TooLong));
        }
    }

    #[test]
    fn short_messages_do_not_hold_the_memory_of_long_ones() {
        let mut inbox = Inbox::new(Sender::Client, MOST, &client(0x82, &vec![0; MOST]));
        inbox.bytes.extend_from_slice(&client(0x82, b"short"));
        assert!(matches!(inbox.next(), Ok(Some(Said::Data(_)))));
        assert!(inbox.bytes.capacity() < 100);
        assert!(matches!(inbox.next(), Ok(Some(Said::Data(_)))));
        inbox.room();
        assert!(inbox.bytes.capacity() <= LEAST_ROOM);
    }

    /// Reads bytes, and writes nowhere.
    struct Wire<'a>(&'a [u8]);

    impl std::io::Read for Wire<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(into)
        }
    }

    impl std::io::Write for Wire<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What tungstenite finds in the bytes, and whether it refused them; an end in the middle is no refusal.
    fn reference(sender: Sender, bytes: &[u8]) -> (Vec<Seen>, bool) {
        use tungstenite::error::ProtocolError::ResetWithoutClosingHandshake;
        use tungstenite::protocol::{Role, WebSocketConfig};
        use tungstenite::{Error, Message, WebSocket};
        let config = WebSocketConfig::default().max_message_size(Some(MOST)).max_frame_size(Some(MOST));
        let role = if sender == Sender::Client { Role::Server } else { Role::Client };
        let mut socket = WebSocket::from_raw_socket(Wire(bytes), role, Some(config));
        let mut all = Vec::new();
        loop {
            match socket.read() {
                Ok(Message::Text(text)) => all.push(Seen::Text(text.as_bytes().to_vec())),
                Ok(Message::Binary(data)) => all.push(Seen::Binary(data.to_vec())),
                Ok(Message::Ping(data)) => all.push(Seen::Ping(data.to_vec())),
                Ok(Message::Pong(_)) => all.push(Seen::Pong),
                // It answers a bad code itself.
                Ok(Message::Close(Some(f))) if f.reason.as_str() == "Protocol violation" => {
                    return (all, true);
                }
                Ok(Message::Close(f)) => {
                    all.push(Seen::Close(f.map(|f| (f.code.into(), f.reason.to_string()))));
                    return (all, false);
                }
                Ok(Message::Frame(_)) => unreachable!(),
                Err(Error::Protocol(ResetWithoutClosingHandshake)) => return (all, false),
                Err(_) => return (all, true),
            }
        }
    }

    /// Frames of a peer that mostly keeps to the rules.
    fn frames(dice: &mut Dice, sender: Sender) -> Vec<u8> {
        let (mut bytes, mut is_open) = (Vec::new(), false);
        for _ in 0..dice.below(12) {
            let mask = (sender == Sender::Client).then(|| dice.next().to_le_bytes()[..4].try_into().unwrap());
            let is_last = dice.below(3) > 0;
            let (kind, length) = match dice.below(8) {
                0 => (0x89, dice.below(126)),
                1 => (0x8a, dice.below(4)),
                _ => {
                    let kind = if is_open { 0 } else { 1 + dice.below(2) as u8 };
                    is_open = !is_last;
                    (kind | if is_last { 0x80 } else { 0 }, [5, 130, 3000, 70_000][dice.below(4)])
                }
            };
            let payload: Vec<u8> = "aé€🦀".bytes().cycle().take(length - length % 10).collect();
            bytes.extend(frame(kind, mask, &payload));
        }
        bytes
    }

    #[test]
    fn whatever_comes_is_read_as_tungstenite_reads_it() {
        let mut dice = Dice::new(17);
        let mut refused = 0;
        for round in 0..3000 {
            let sender = [Sender::Client, Sender::Machine][dice.below(2)];
            let mut bytes = frames(&mut dice, sender);
            // Some of it is damaged, mostly near the start, where heads are a good part of the bytes.
            for _ in 0..dice.below(3) {
                if bytes.is_empty() {
                    break;
                }
                let reach = 1 << (1 + dice.below(16));
                let at = dice.below(bytes.len().min(reach));
                match dice.below(3) {
                    0 => bytes[at] ^= 1 << dice.below(8),
                    1 => bytes.truncate(at),
                    _ => bytes.insert(at, dice.next() as u8),
                }
            }
            let (theirs, is_refused) = reference(sender, &bytes);
            let most = 1 << (1 + dice.below(16));
            let mut inbox = Inbox::new(sender, MOST, &[]);
            let (ours, end) = read_into(&mut inbox, &bytes, || 1 + dice.below(most));
            refused += usize::from(is_refused);
            if sender == Sender::Machine
                && ours.iter().any(|s| matches!(s, Seen::Text(t) if std::str::from_utf8(t).is_err()))
            {
                // Texts of machines are not checked.
                continue;
            }
            // Tungstenite refuses a text at the part that is bad, and here at its end: words between them are heard before.
            let (same, more) = ours.split_at(theirs.len().min(ours.len()));
            assert_eq!(same, &theirs[..], "{round}");
            assert!(
                more.iter().all(|s| is_refused && matches!(s, Seen::Ping(_) | Seen::Pong)),
                "{round} {more:?}"
            );
            let is_open = inbox.parts.is_some_and(|parts| parts.kind == Kind::Text);
            assert!(!is_refused || end.is_err() || is_open, "{round} {end:?}");
        }
        assert!((300..2700).contains(&refused), "{refused}");
    }
}
