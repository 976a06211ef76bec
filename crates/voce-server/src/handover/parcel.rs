//! A session on its way to another machine, as bytes: what the dialect knows, the way its audio takes, the stream's snapshot.

use serde::{Deserialize, Serialize};

use crate::ears::{HearRequest, InletState};

/// Largest head: everything but the snapshot.
const MAX_HEAD: usize = 4 << 20;

/// A session between two messages.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parcel {
    pub(crate) head: Head,
    /// The engine's; empty where no stream was open.
    pub(crate) snapshot: Vec<u8>,
}

/// What is known of a session beside the engine's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Who speaks.
    pub(crate) dialect: String,
    /// The recogniser's name.
    pub(crate) model: String,
    /// Messages of the client that are in it, and lasting messages that the client was sent.
    pub(crate) taken: u64,
    pub(crate) told: u64,
    /// What the stream was asked for, and how many samples it has; none where none was open.
    pub(crate) stream: Option<(HearRequest, u64)>,
    /// The way of raw audio.
    pub(crate) inlet: Option<InletState>,
    /// The dialect's own, in MessagePack.
    pub(crate) own: Vec<u8>,
}

impl Parcel {
    /// As bytes: the length of the head, the head, the snapshot.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // Plain data always has a form.
        let head = rmp_serde::to_vec_named(&self.head).unwrap_or_default();
        [&(head.len() as u32).to_le_bytes()[..], &head, &self.snapshot].concat()
    }

    /// From bytes that another machine made.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        let (head, snapshot) = rest.split_at_checked(length).filter(|_| length <= MAX_HEAD)?;
        let head = rmp_serde::from_slice(head).ok()?;
        Some(Self { head, snapshot: snapshot.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_back() {
        let request = HearRequest {
            hotwords: vec![("Voce".into(), 1.5)],
            silence_ms: Some(7),
            ..HearRequest::default()
        };
        let head = Head {
            dialect: "moshi".into(),
            model: "ear".into(),
            taken: 3,
            told: u64::MAX,
            stream: Some((request, 48_000)),
            inlet: None,
            own: vec![1, 255],
        };
        let parcel = Parcel { head, snapshot: vec![9; 1000] };
        let bytes = parcel.to_bytes();
        assert_eq!(Parcel::from_bytes(&bytes), Some(parcel.clone()));
        for n in 0..bytes.len() - parcel.snapshot.len() {
            assert_eq!(Parcel::from_bytes(&bytes[..n]), None, "{n}");
        }
        assert_eq!(Parcel::from_bytes(&[255; 100]), None);
    }
}
