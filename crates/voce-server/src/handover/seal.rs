//! Tokens and seals: what the machines of a service know each other and their streams by.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::HandoverError;
use crate::core::aside::now;
use crate::core::caller::Caller;

/// Shortest secret, in bytes.
pub const MIN_SECRET: usize = 16;
/// Bytes of a seal.
const SEAL: usize = 32;
/// Bytes of a token: a name, when it expires, a seal.
const TOKEN: usize = 16 + 8 + SEAL;

/// What all machines of a service share; nobody else may have it.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A secret of at least [`MIN_SECRET`] bytes.
    pub fn new(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() < MIN_SECRET {
            return Err(format!(
                "the handover secret is shorter than {MIN_SECRET} bytes: make one with `openssl rand -hex 32`"
            ));
        }
        Ok(Self(text.as_bytes().to_vec()))
    }

    /// A seal of something over its parts.
    fn mac(&self, what: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        for part in [what.as_bytes()].iter().chain(parts) {
            // Lengths keep one part from passing for the end of another.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    fn seal(&self, what: &str, parts: &[&[u8]]) -> [u8; SEAL] {
        self.mac(what, parts).finalize().into_bytes().into()
    }

    /// Whether a seal is one of these parts; takes the same time whatever it is.
    fn holds(&self, what: &str, parts: &[&[u8]], seal: &[u8]) -> bool {
        self.mac(what, parts).verify_slice(seal).is_ok()
    }

    /// The word that lets another machine take a parcel.
    pub(super) fn word(&self, id: Id) -> String {
        BASE64.encode(self.seal("take", &[&id.0]))
    }

    pub(super) fn is_word(&self, id: Id, word: &str) -> bool {
        BASE64.decode(word).is_ok_and(|word| self.holds("take", &[&id.0], &word))
    }

    /// A parcel that nobody else can make or change: the seal, when it expires, the content.
    pub(super) fn close(&self, token: &Token, content: &[u8]) -> Vec<u8> {
        let expires = token.expires.to_le_bytes();
        [&self.seal("parcel", &[&token.id.0, &expires, content])[..], &expires, content].concat()
    }

    /// The content of a parcel of this name, and when it expires; `None` where the seal is broken.
    pub(super) fn open<'a>(&self, id: Id, sealed: &'a [u8]) -> Option<(u64, &'a [u8])> {
        let (seal, rest) = sealed.split_at_checked(SEAL)?;
        let (expires, content) = rest.split_first_chunk::<8>()?;
        let holds = self.holds("parcel", &[&id.0, expires, content], seal);
        holds.then(|| (u64::from_le_bytes(*expires), content))
    }
}

/// The name of a stream on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id(pub(super) [u8; 16]);

impl Id {
    pub(super) fn new() -> Result<Self, getrandom::Error> {
        let mut id = [0; 16];
        getrandom::fill(&mut id)?;
        Ok(Self(id))
    }

    pub(super) fn hex(self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    pub(super) fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut id = [0; 16];
        for (i, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self(id))
    }
}

/// What a client goes on with: the name of its stream, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) id: Id,
    /// Seconds since 1970.
    pub(super) expires: u64,
}

impl Token {
    /// A token that is good for `time`.
    pub(super) fn new(id: Id, time: Duration) -> Self {
        Self { id, expires: now() + time.as_secs() }
    }

    /// As a client gets it: good for this caller's key alone.
    pub(super) fn text(&self, secret: &Secret, caller: &Caller) -> String {
        let expires = self.expires.to_le_bytes();
        let seal = secret.seal("token", &[&self.id.0, &expires, &key(caller)]);
        BASE64.encode([&self.id.0[..], &expires, &seal].concat())
    }

    /// A token that this service made for this caller's key, and that is good still.
    pub(super) fn read(text: &str, secret: &Secret, caller: &Caller) -> Result<Self, HandoverError> {
        let bytes = BASE64.decode(text).ok().filter(|b| b.len() == TOKEN).ok_or(HandoverError::Bad)?;
        let (id, rest) = bytes.split_first_chunk::<16>().ok_or(HandoverError::Bad)?;
        let (expires, seal) = rest.split_first_chunk::<8>().ok_or(HandoverError::Bad)?;
        if !secret.holds("token", &[id, expires, &key(caller)], seal) {
            return Err(HandoverError::Bad);
        }
        let token = Self { id: Id(*id), expires: u64::from_le_bytes(*expires) };
        if token.expires < now() { Err(HandoverError::Expired) } else { Ok(token) }
    }
}

/// What stands for the caller's key; nothing where the server has no keys.
fn key(caller: &Caller) -> Vec<u8> {
    caller.key.map_or_else(Vec::new, |key| key.digest().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::auth::Keys;

    fn secret(text: &str) -> Secret {
        Secret::new(text).unwrap()
    }

    fn caller(key: &str) -> Caller {
        Caller { key: Keys::new(&[key.into()]).accept(key), ..Caller::default() }
    }

    #[test]
    fn a_token_is_good_for_its_time_its_key_and_its_service() {
        let ours = secret("sixteen bytes ok");
        let (anna, ben) = (caller("anna"), caller("ben"));
        let token = Token::new(Id::new().unwrap(), Duration::from_secs(60));
        let text = token.text(&ours, &anna);
        // It fits into the reason of a close frame, with a word before it.
        assert_eq!(text.len(), 75);
        assert_eq!(Token::read(&text, &ours, &anna), Ok(token));
        for (secret, caller) in
            [(&ours, &ben), (&ours, &Caller::default()), (&secret("sixteen bytes other"), &anna)]
        {
            assert_eq!(Token::read(&text, secret, caller), Err(HandoverError::Bad));
        }
        let old = Token { expires: now() - 1, ..token };
        assert_eq!(Token::read(&old.text(&ours, &anna), &ours, &anna), Err(HandoverError::Expired));
        for at in 0..text.len() {
            let mut forged = text.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).unwrap();
            assert!(Token::read(&forged, &ours, &anna).is_err(), "{at}");
        }
        for none in ["", "moved", &text[1..], &format!("{text}A"), "ä"] {
            assert_eq!(Token::read(none, &ours, &anna), Err(HandoverError::Bad));
        }
    }

    #[test]
    fn a_parcel_is_of_its_name_and_whole() {
        let ours = secret("sixteen bytes ok");
        let token = Token::new(Id([7; 16]), Duration::from_secs(60));
        let sealed = ours.close(&token, b"content");
        assert_eq!(ours.open(token.id, &sealed), Some((token.expires, &b"content"[..])));
        assert_eq!(ours.open(Id([8; 16]), &sealed), None);
        for at in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[at] ^= 1;
            assert_eq!(ours.open(token.id, &bad), None, "{at}");
            assert_eq!(ours.open(token.id, &sealed[..at]), None, "{at}");
        }
        let word = ours.word(token.id);
        assert!(ours.is_word(token.id, &word) && !ours.is_word(Id([8; 16]), &word));
        assert!(
            !ours.is_word(token.id, "") && !ours.is_word(token.id, &token.text(&ours, &Caller::default()))
        );
    }

    #[test]
    fn names_and_secrets() {
        let id = Id::new().unwrap();
        assert_eq!(Id::from_hex(&id.hex()), Some(id));
        for bad in ["", "zz", &"g".repeat(32), &id.hex()[1..], "€€€€€€€€€€aa"] {
            assert_eq!(Id::from_hex(bad), None, "{bad}");
        }
        assert!(
            Secret::new(&"x".repeat(MIN_SECRET)).is_ok() && Secret::new(&"x".repeat(MIN_SECRET - 1)).is_err()
        );
        assert_eq!(format!("{:?}", secret("sixteen bytes ok")), "Secret(..)");
    }
}
