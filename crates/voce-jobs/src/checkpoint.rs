//! A long recording in the middle: the stream's snapshot and what was heard before it, as bytes.

use serde::{Deserialize, Serialize};

use crate::formats::HeardSegment;

/// First bytes; the last one is the version.
const MAGIC: [u8; 8] = *b"vocechk1";

/// A point of a recording from which hearing can go on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// Segments heard up to there. A stream that goes on may tell the last one again.
    pub segments: Vec<HeardSegment>,
    /// Samples that the stream has had.
    pub samples: u64,
    /// The stream, for `Listener::resume`.
    pub snapshot: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    samples: u64,
    segments: Vec<HeardSegment>,
}

impl Checkpoint {
    /// As bytes: a head in JSON, then the snapshot.
    pub fn to_bytes(&self) -> Vec<u8> {
        let head = Head { samples: self.samples, segments: self.segments.clone() };
        let head = serde_json::to_vec(&head).unwrap_or_default();
        let mut bytes = MAGIC.to_vec();
        bytes.extend((head.len() as u64).to_le_bytes());
        bytes.extend(head);
        bytes.extend(&self.snapshot);
        bytes
    }

    /// Reads bytes; none where they are no checkpoint of this version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (head, snapshot) = rest.split_at_checked(length)?;
        let head: Head = serde_json::from_slice(head).ok()?;
        Some(Self { segments: head.segments, samples: head.samples, snapshot: snapshot.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_back() {
        let segment = HeardSegment { text: "hi".into(), start: 1.0, end: 2.0, ..Default::default() };
        let checkpoint = Checkpoint { segments: vec![segment], samples: 7, snapshot: vec![1, 2, 3] };
        let bytes = checkpoint.to_bytes();
        assert_eq!(Checkpoint::from_bytes(&bytes), Some(checkpoint));
        for cut in [0, 7, 8, 15, 17] {
            assert_eq!(Checkpoint::from_bytes(&bytes[..cut]), None, "{cut}");
        }
        let mut huge = bytes.clone();
        huge[8..16].fill(0xff);
        assert_eq!(Checkpoint::from_bytes(&huge), None);
    }
}
