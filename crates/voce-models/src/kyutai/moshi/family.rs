//! Moshi as a model that holds conversations.

use std::sync::Arc;

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::Exec;
use voce_text::Tokenizer;

use super::partner::MoshiPartner;
use crate::dialogue::{Dialogue, DialogueError, DialogueInfo, Partner, TalkRequest};
use crate::kyutai::{Condition, FrameLm, KyutaiConfig};
use crate::mimi::Mimi;
use crate::stage::{Per, StageInfo};

/// How tokens are drawn where neither a request nor a configuration says it.
const TEMPERATURE: f32 = 0.8;
const TEXT_TEMPERATURE: f32 = 0.7;
const TOP_K: usize = 250;
const TEXT_TOP_K: usize = 25;
/// The largest temperature that a request may ask for.
const MAX_TEMPERATURE: f32 = 10.0;

/// Names of the stages.
pub(super) const LISTEN: &str = "encoder";
pub(super) const THINK: &str = "backbone";
const DEPTH: &str = "depth";
pub(super) const SPEAK: &str = "codec";

/// What a dialogue model is made of.
pub struct MoshiParts {
    /// The published configuration.
    pub config: KyutaiConfig,
    /// The tokeniser of what it says.
    pub tokenizer: Tokenizer,
    /// The codec, with at least as many codebooks as go in and come out.
    pub mimi: Mimi,
    /// Formats of the weights.
    pub formats: Formats,
}

/// What all conversations share.
pub(super) struct Common {
    pub frames: FrameLm,
    pub tokenizer: Tokenizer,
    pub mimi: Arc<Mimi>,
}

impl Common {
    /// What every conversation is told besides tokens: of models that were taught how good recordings are, the best.
    pub(super) fn conditions(&self) -> Vec<Condition> {
        let known = self.frames.lm().conditions().values(QUALITY).unwrap_or_default();
        let best = known.iter().find(|value| *value == BEST).cloned();
        best.map(|value| Condition { name: QUALITY.into(), value: Some(value) }).into_iter().collect()
    }
}

/// The condition that says how good a recording is, and its value for the best.
const QUALITY: &str = "description";
const BEST: &str = "very_good";

/// A loaded dialogue model.
pub struct Moshi {
    info: DialogueInfo,
    common: Arc<Common>,
}

/// How a conversation draws its tokens.
pub(super) struct Draws {
    pub temperature: f32,
    pub text_temperature: f32,
    pub top_k: usize,
    pub text_top_k: usize,
}

impl Draws {
    /// What a request asks for, what the configuration says, what the published package does, in this order. A
    /// temperature of 0 alone is greedy for text and audio.
    pub(super) fn new(config: &KyutaiConfig, request: &TalkRequest) -> Self {
        let own = &config.lm_gen_config;
        let text = request.text_temperature.or(request.temperature.filter(|t| *t == 0.0));
        Self {
            temperature: request.temperature.or(own.temp).unwrap_or(TEMPERATURE),
            text_temperature: text.or(own.temp_text).unwrap_or(TEXT_TEMPERATURE),
            top_k: request.top_k.or(own.top_k).unwrap_or(TOP_K),
            text_top_k: request.text_top_k.or(own.top_k_text).unwrap_or(TEXT_TOP_K),
        }
    }
}

impl Moshi {
    /// Loads a model; `exec` is one of where it will run. `None` where the configuration is of a model that does not
    /// speak.
    pub fn load(exec: &mut Exec, loader: &Loader, parts: MoshiParts) -> Result<Option<Self>, WeightError> {
        let MoshiParts { config, tokenizer, mimi, formats } = parts;
        let Some(frames) = FrameLm::load(exec, loader, &config, formats)? else { return Ok(None) };
        let (tokenizer_half, decoder) = (mimi.tokenizer(), mimi.decoder());
        let codes = config.dep_q;
        let rate = decoder.sample_rate() as f64 / decoder.frame_size().max(1) as f64;
        let stage = |name, bytes, macs| StageInfo {
            name,
            bytes,
            macs,
            per: Per::Frame,
            per_second: Some(rate),
            together: 1,
            format: formats.backbone,
            prompts: false,
        };
        let depth = frames.depth();
        let stages = vec![
            StageInfo {
                format: formats.conv,
                ..stage(LISTEN, tokenizer_half.bytes(), tokenizer_half.macs_per_frame())
            },
            stage(THINK, frames.lm().bytes(1), frames.lm().macs()),
            StageInfo {
                per: Per::Code,
                per_second: Some(rate * codes as f64),
                ..stage(DEPTH, depth.bytes(codes) / codes.max(1), depth.macs(codes) / codes.max(1))
            },
            StageInfo { format: formats.conv, ..stage(SPEAK, decoder.bytes(), decoder.macs_per_frame()) },
        ];
        let info = DialogueInfo {
            family: "Moshi",
            sample_rate: decoder.sample_rate(),
            frame_size: decoder.frame_size(),
            longest: None,
            stages,
        };
        Ok(Some(Self { info, common: Arc::new(Common { frames, tokenizer, mimi: Arc::new(mimi) }) }))
    }

    /// The networks, to look at.
    pub fn frames(&self) -> &FrameLm {
        &self.common.frames
    }
}

impl Dialogue for Moshi {
    fn info(&self) -> &DialogueInfo {
        &self.info
    }

    fn check(&self, request: &TalkRequest) -> Result<(), DialogueError> {
        let bad = |what, value: String, rule| Err(DialogueError::Value { what, value, rule });
        for (what, value) in
            [("temperature", request.temperature), ("text temperature", request.text_temperature)]
        {
            if let Some(t) = value.filter(|t| !(0.0..=MAX_TEMPERATURE).contains(t)) {
                return bad(what, format!("{t:?}"), "use 0 to 10");
            }
        }
        for (what, value) in [("top k", request.top_k), ("text top k", request.text_top_k)] {
            if let Some(k) = value.filter(|k| *k > crate::speech::MAX_TOP_K) {
                return bad(what, k.to_string(), "use 0 to 100000");
            }
        }
        Ok(())
    }

    fn partner(&self, slots: usize) -> Box<dyn Partner> {
        Box::new(MoshiPartner::new(self.common.clone(), slots))
    }
}
