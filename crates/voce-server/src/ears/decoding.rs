//! A decoder on a blocking worker, and what comes out of it: blocks in bounded number and size, and an end that only a
//! decoder that came to its end can send.

use tokio::sync::mpsc;
use voce_audio::{AudioError, Decoder, MonoStream};

use crate::core::aside;
use crate::core::budget::Share;
use crate::core::trace::Meter;

/// Decoded blocks that wait to be heard.
const BLOCKS: usize = 16;
/// Most samples of a block: a second at the usual rate.
const BLOCK: usize = super::SAMPLE_RATE as usize;

/// What comes out, in the order of what went in.
#[derive(Debug, PartialEq)]
pub(crate) enum Decoded {
    /// Mono, at the rate of the stream that they are for.
    Samples(Vec<f32>),
    /// All that came before the mark has been decoded.
    Mark,
    /// There is room for more of what is to be decoded.
    Room,
    /// There is no more.
    End,
}

/// The reader of a decoder has gone.
pub(super) struct Gone;

/// Where a decoder puts what it has.
#[derive(Clone)]
pub(super) struct Outlet(mpsc::Sender<Result<Decoded, AudioError>>);

impl Outlet {
    /// Waits for room.
    pub(super) fn put(&self, decoded: Decoded) -> Result<(), Gone> {
        self.0.blocking_send(Ok(decoded)).map_err(|_| Gone)
    }

    /// Decodes to the end, or until nobody listens, into samples of a rate.
    pub(super) fn run(&self, decoder: Decoder, rate: u32, meter: Option<&Meter>) -> Result<(), AudioError> {
        let mut stream = MonoStream::new(decoder, rate);
        let mut begun = meter.and_then(Meter::begin);
        while let Some(block) = stream.next_block()? {
            for part in block.chunks(BLOCK) {
                let part = Decoded::Samples(part.to_vec());
                if let Some(meter) = meter {
                    meter.end(begun);
                }
                if self.put(part).is_err() {
                    return Ok(());
                }
                begun = meter.and_then(Meter::begin);
            }
        }
        Ok(())
    }
}

/// What a decoder gives.
pub(super) struct Decoding {
    blocks: mpsc::Receiver<Result<Decoded, AudioError>>,
    over: bool,
}

impl Decoding {
    /// Runs a decoder on a worker, which has its share of the decoders until it ends.
    pub(super) fn spawn(
        share: Share,
        work: impl FnOnce(&Outlet) -> Result<(), AudioError> + Send + 'static,
    ) -> Self {
        let (sender, blocks) = mpsc::channel(BLOCKS);
        let outlet = Outlet(sender);
        aside::detach(move || {
            let _share = share;
            let last = work(&outlet).map(|()| Decoded::End);
            let _ = outlet.0.blocking_send(last);
        });
        Self { blocks, over: false }
    }

    /// What comes next; `None` after the end or an error. A decoder that vanished without a word has failed.
    pub(super) async fn next(&mut self) -> Option<Result<Decoded, AudioError>> {
        if self.over {
            return None;
        }
        let next = self.blocks.recv().await.unwrap_or(Err(AudioError::DecoderFault));
        self.over = matches!(next, Ok(Decoded::End) | Err(_));
        match next {
            Ok(Decoded::End) => None,
            other => Some(other),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::core::budget::Budget;
    use crate::core::caller::Caller;
    use crate::core::limits::Limits;

    /// A share of decoders that nobody else wants.
    pub(in super::super) fn share() -> Share {
        Budget::new(Limits::default(), 0).decoders.take(&Caller::default(), 1).ok().unwrap()
    }

    #[tokio::test]
    async fn a_decoder_that_panics_is_an_error_and_no_end() {
        let mut decoding = Decoding::spawn(share(), |outlet| {
            let _ = outlet.put(Decoded::Samples(vec![0.5]));
            panic!("a decoder's bug")
        });
        assert_eq!(decoding.next().await.unwrap().unwrap(), Decoded::Samples(vec![0.5]));
        assert!(matches!(decoding.next().await, Some(Err(AudioError::DecoderFault))));
        assert!(decoding.next().await.is_none());
    }

    #[tokio::test]
    async fn ends_and_errors_come_once() {
        let mut decoding =
            Decoding::spawn(share(), |outlet| outlet.put(Decoded::Mark).map_err(|Gone| AudioError::Empty));
        assert_eq!(decoding.next().await.unwrap().unwrap(), Decoded::Mark);
        assert!(decoding.next().await.is_none() && decoding.next().await.is_none());
        let mut decoding = Decoding::spawn(share(), |_| Err(AudioError::Truncated));
        assert!(matches!(decoding.next().await, Some(Err(AudioError::Truncated))));
        assert!(decoding.next().await.is_none());
    }
}
