//! Talker, code predictor and text embedding: from rows of tokens to the codes of a frame.

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::{Exec, Sampling};

use super::config::{GenerationConfig, QwenConfig};
use super::prompt::NONE;
use super::{MIN_TOKENS, SUPPRESSED};
use crate::decoder::{FrameDecoder, FrameRow, TextLayers};
use crate::speech::SpeakRequest;

/// The networks that make frames.
pub struct Talker {
    frames: FrameDecoder,
    groups: usize,
    /// Draws of code 0 stay below, but for the end.
    below: u32,
    eos: u32,
    nothing: Vec<u32>,
}

/// How the codes of a passage's frames are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draws {
    first: Sampling,
    rest: Sampling,
    /// The end is never drawn.
    endless: bool,
}

impl Talker {
    /// Loads the networks. Where they run on a device, the text's layers are folded into its embedding.
    pub fn load(
        exec: &mut Exec,
        l: &Loader,
        config: &QwenConfig,
        formats: Formats,
    ) -> Result<Self, WeightError> {
        let shape = config.frames();
        let talker = l.sub("talker");
        let text = match exec.shares_memory() {
            true => TextLayers::load(&talker, config.text(), formats)?,
            // What is folded is rounded once, to the table's format.
            false => {
                let fine = Formats { linear: formats.embedding, ..formats };
                TextLayers::load(&talker.apart(), config.text(), fine)?
            }
        };
        let frames = if exec.shares_memory() {
            FrameDecoder::load(exec, l, &shape, Vec::new(), formats)?.with_text(text)
        } else {
            let table = text.fold(exec, &talker, formats)?;
            drop(text);
            FrameDecoder::load(exec, l, &shape, vec![table], formats)?
        };
        let t = &config.talker_config;
        let mut nothing = vec![NONE; t.num_code_groups + 1];
        nothing[0] = t.codec_bos_id;
        nothing[t.num_code_groups] = config.tts_pad_token_id;
        Ok(Self {
            frames,
            groups: t.num_code_groups,
            below: (t.vocab_size - SUPPRESSED) as u32,
            eos: t.codec_eos_token_id,
            nothing,
        })
    }

    /// The decoders.
    pub fn frames(&self) -> &FrameDecoder {
        &self.frames
    }

    /// Codes of a frame.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// The token that ends a passage.
    pub fn eos(&self) -> u32 {
        self.eos
    }

    /// A row that says nothing.
    pub(super) fn nothing(&self) -> &[u32] {
        &self.nothing
    }

    /// How a request's frames are drawn, with random numbers of its seed and the passage's number.
    pub fn draws(&self, defaults: &GenerationConfig, request: &SpeakRequest, number: u64) -> Draws {
        let d = defaults;
        let seed = request.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let hot = |sampled: bool, own: f32, asked: Option<f32>| match (request.greedy, asked) {
            (true, _) => 0.0,
            (false, Some(asked)) => asked,
            (false, None) => f32::from(u8::from(sampled)) * own,
        };
        let fine = &request.fine;
        Draws {
            first: Sampling {
                temperature: hot(d.do_sample, d.temperature, request.temperature),
                top_k: request.top_k.unwrap_or(d.top_k),
                top_p: request.top_p.unwrap_or(d.top_p),
                penalty: request.repetition_penalty.unwrap_or(d.repetition_penalty),
                below: self.below,
                also: None,
                seed,
            },
            rest: Sampling {
                temperature: hot(d.subtalker_dosample, d.subtalker_temperature, fine.temperature),
                top_k: fine.top_k.unwrap_or(d.subtalker_top_k),
                top_p: fine.top_p.unwrap_or(d.subtalker_top_p),
                seed,
                ..Sampling::default()
            },
            endless: request.eos_threshold == Some(f32::INFINITY),
        }
    }

    /// A slot's part of the step after `frames` frames.
    pub fn row(&self, slot: usize, draws: &Draws, frames: usize) -> FrameRow {
        let also = (frames >= MIN_TOKENS && !draws.endless).then_some(self.eos);
        FrameRow { slot, first: Sampling { also, ..draws.first }, rest: draws.rest }
    }
}
