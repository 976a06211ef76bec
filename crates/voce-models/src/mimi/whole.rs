//! Both halves of Kyutai's Mimi as a codec by itself.

use std::sync::Arc;

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::{Exec, Span, Tokens};

use super::decoder::MimiDecoder;
use super::kyutai_config::KyutaiMimiConfig;
use super::names::published;
use super::quantizer::{Codebooks, SplitLookup};
use super::tokenizer::MimiTokenizer;
use super::vocoder::MimiCodes;
use crate::codec::{Codec, CodecError, CodecInfo, Codes};
use crate::speech::{SlotVocoder, Vocoder, VocoderRoom};

/// Frames that go through at a time: enough rows for each reading of the weights, few enough for the caches.
const GROUP: usize = 8;
/// Seconds that one call encodes at most: a day, whose codes are counted in 32 bits.
pub const MAX_MIMI_SECONDS: usize = 24 * 3600;

/// A whole Mimi.
pub struct Mimi {
    tokenizer: MimiTokenizer,
    decoder: Arc<MimiDecoder>,
    info: CodecInfo,
}

impl Mimi {
    /// Loads a published file with its first `codebooks` codebooks, of which it has as many.
    pub fn load(
        l: &Loader,
        config: &KyutaiMimiConfig,
        codebooks: usize,
        f: Formats,
    ) -> Result<Self, WeightError> {
        let l = &published(l);
        let books = Arc::new(Codebooks::load(&l.sub("quantizer"), &config.quantizer, codebooks)?);
        let lookup = SplitLookup::load(&l.sub("quantizer"), books.clone())?;
        let decoder = Arc::new(MimiDecoder::of_codes(l, config, f, lookup)?);
        let info = CodecInfo {
            title: "Mimi",
            input_rate: config.sample_rate,
            most_samples: MAX_MIMI_SECONDS * config.sample_rate,
            output_rate: config.sample_rate,
            frame_size: config.frame_size(),
            codebooks,
            fewest: 1,
            entries: config.quantizer.bins,
        };
        Ok(Self { tokenizer: MimiTokenizer::load(l, config, f, books)?, decoder, info })
    }

    /// From samples to codes.
    pub fn tokenizer(&self) -> &MimiTokenizer {
        &self.tokenizer
    }

    /// From codes to samples.
    pub fn decoder(&self) -> &MimiDecoder {
        &self.decoder
    }
}

impl Codec for Mimi {
    fn info(&self) -> &CodecInfo {
        &self.info
    }

    fn encode(&self, exec: &mut Exec, samples: &[f32]) -> Result<Codes, CodecError> {
        let mut rest = Some(samples);
        self.encode_from(exec, &mut |out| {
            rest.take().is_some_and(|all| {
                out.extend_from_slice(all);
                true
            })
        })
    }

    fn encode_from(
        &self,
        exec: &mut Exec,
        more: &mut dyn FnMut(&mut Vec<f32>) -> bool,
    ) -> Result<Codes, CodecError> {
        let (size, books) = (self.info.frame_size, self.info.codebooks);
        let mut state = self.tokenizer.state(1, GROUP, GROUP);
        let mut tokens = Tokens::new(GROUP, books, u32::MAX);
        let mut codes: Codes = vec![Vec::new(); books];
        let (mut samples, mut taken, mut goes_on) = (Vec::new(), 0, true);
        while goes_on {
            let before = samples.len();
            goes_on = more(&mut samples);
            taken += samples.len() - before;
            if taken > self.info.most_samples {
                let text = format!("more than {MAX_MIMI_SECONDS} s of audio: cut the recording");
                return Err(CodecError::Samples(text));
            }
            if !goes_on {
                // Silence fills the last frame.
                samples.resize(samples.len().next_multiple_of(size), 0.0);
            }
            let whole = samples.len() / size;
            // A part of a group waits for the rest of it.
            let whole = if goes_on { whole / GROUP * GROUP } else { whole };
            for group in samples[..whole * size].chunks(GROUP * size) {
                let frames = group.len() / size;
                let rows: Vec<usize> = (0..frames).collect();
                let spans = [Span { slot: 0, rows: frames }];
                self.tokenizer.encode(exec, &mut state, &spans, group, &rows, &mut tokens, 0);
                exec.fetch_tokens(&mut tokens);
                for row in rows {
                    codes.iter_mut().zip(tokens.row(row)).for_each(|(book, code)| book.push(*code));
                }
            }
            samples.drain(..whole * size);
        }
        if taken == 0 {
            return Err(CodecError::Samples("there are no samples to encode: give a recording".into()));
        }
        Ok(codes)
    }

    fn decode(
        &self,
        exec: &mut Exec,
        codes: &Codes,
        give: &mut dyn FnMut(&[f32]) -> bool,
    ) -> Result<(), CodecError> {
        self.info.check(codes)?;
        let frames = codes.first().map_or(0, Vec::len);
        let mut state = self.decoder.state(1, GROUP.min(frames));
        let mut piece = Vec::with_capacity(GROUP * self.info.codebooks);
        for first in (0..frames).step_by(GROUP) {
            let rows = GROUP.min(frames - first);
            piece.clear();
            for frame in first..first + rows {
                // Codebooks that the codes leave out add nothing.
                let all = codes.iter().map(|book| book[frame]).chain(std::iter::repeat(u32::MAX));
                piece.extend(all.take(self.info.codebooks));
            }
            if !give(self.decoder.decode_codes(exec, &mut state, &[Span { slot: 0, rows }], &piece)) {
                break;
            }
        }
        Ok(())
    }

    fn vocoder(&self, room: VocoderRoom) -> Option<Box<dyn Vocoder>> {
        Some(Box::new(SlotVocoder::new(MimiCodes(self.decoder.clone()), room)))
    }
}
