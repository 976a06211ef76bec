//! Pocket TTS as a model that speaks.

use std::sync::{Arc, Mutex, PoisonError};

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::Exec;
use voce_text::normalize::Signs;
use voce_text::prompt::halve;
use voce_text::{PauseBudget, PromptRules, SentenceStream, Tokenizer, prepare};

use super::config::{OwnConfig, PocketConfig};
use super::flow_lm::FlowLm;
use super::script::PocketScript;
use super::synth::{Defaults, PocketSynth};
use super::vocoder::Latents;
use super::voice::{Voice as Past, VoiceEncoder};
use crate::mimi::MimiDecoder;
use crate::speech::{
    Line, MODEL_TOKENS, Script, SlotVocoder, SpeakRequest, Speech, SpeechError, SpeechInfo, Synth, Vocoder,
    VocoderRoom, Voice, VoiceChoice, VoiceError, VoiceSource, VoiceTensor, spoken,
};
use crate::stage::{Per, StageInfo};

/// The family's name as people write it.
const NAME: &str = "Pocket TTS";
/// The language that numbers and abbreviations are read out in.
const ENGLISH: &str = "english";
/// Tokens of a passage, as published, where neither the model nor a request says otherwise.
const PASSAGE_TOKENS: usize = 50;
/// A passage rises from silence in this part of a second.
const FADE: usize = 200;
/// Frames that the codec decodes together once a stream is ahead of playback.
pub const CODEC_GROUP: usize = 4;

/// A loaded Pocket TTS model.
pub struct Pocket {
    info: SpeechInfo,
    config: PocketConfig,
    formats: Formats,
    lm: Arc<FlowLm>,
    decoder: Arc<MimiDecoder>,
    tokenizer: Tokenizer,
    rules: Arc<PromptRules>,
    /// Tokens of a passage unless a request says otherwise.
    passage_tokens: usize,
    nobody: Arc<Past>,
    /// Loads the voice encoder, when somebody first clones a voice.
    later: Loader,
    encoder: Mutex<Option<Arc<VoiceEncoder>>>,
}

/// What a Pocket TTS model is made of.
pub struct PocketParts {
    /// The published configuration.
    pub config: PocketConfig,
    /// The tokeniser, of as many tokens as the configuration says.
    pub tokenizer: Tokenizer,
    /// The language that it speaks, in lower-case English, where known.
    pub language: Option<String>,
    /// What the published configuration has no words for.
    pub own: OwnConfig,
    /// Formats of the weights.
    pub formats: Formats,
    /// Loads what is needed only when a voice is cloned; it may read the same tensors again.
    pub later: Loader,
}

impl Pocket {
    /// Loads a model.
    pub fn load(loader: &Loader, parts: PocketParts) -> Result<Self, WeightError> {
        let PocketParts { config, tokenizer, language, own, formats, later } = parts;
        let lm = Arc::new(FlowLm::load(&loader.sub("flow_lm"), &config, formats)?);
        let scale = Some(lm.latent_scale());
        let decoder = Arc::new(MimiDecoder::load(&loader.sub("mimi"), &config.mimi, formats, scale)?);
        let info = SpeechInfo {
            family: NAME,
            sample_rate: config.mimi.sample_rate,
            frame_size: decoder.frame_size(),
            group: CODEC_GROUP,
            fade_in: config.mimi.sample_rate / FADE,
            temperature: config.default_temperature,
            languages: own.language.or(language).into_iter().collect(),
            speakers: Vec::new(),
            stages: stages(&lm, &decoder, config.mimi.frame_rate, formats),
        };
        Ok(Self {
            nobody: Arc::new(Past::empty(&lm)),
            rules: Arc::new(config.prompt_rules()),
            passage_tokens: own.max_tokens.unwrap_or(PASSAGE_TOKENS),
            info,
            formats,
            lm,
            decoder,
            tokenizer,
            later,
            encoder: Mutex::new(None),
            config,
        })
    }

    /// The voice encoder, loaded when first asked for.
    fn encoder(&self) -> Result<Arc<VoiceEncoder>, VoiceError> {
        let mut held = self.encoder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(encoder) = &*held {
            return Ok(encoder.clone());
        }
        let encoder = VoiceEncoder::load(&self.later, &self.config, self.formats)?;
        Ok(held.insert(Arc::new(encoder)).clone())
    }

    /// Refuses what this family does not have.
    fn check(&self, request: &SpeakRequest) -> Result<(), SpeechError> {
        request.check()?;
        let unsupported = |option| Err(SpeechError::Unsupported { family: NAME, option });
        if request.instruct.is_some() {
            return unsupported("instruction");
        }
        if let Some(option) = request.token_option().or(request.code_option()) {
            return unsupported(option);
        }
        if let Some(asked) = &request.language {
            let has = &self.info.languages;
            if has.is_empty() {
                return unsupported("language");
            }
            if spoken(asked, has).is_none() {
                return Err(SpeechError::Language { asked: asked.clone(), has: has.clone() });
            }
        }
        if let VoiceChoice::Ready(voice) = &request.voice
            && !self.fits(voice)
        {
            return Err(SpeechError::Value {
                what: "voice",
                value: "of another model or precision".into(),
                rule: "use a voice that this speaker has loaded",
            });
        }
        Ok(())
    }
}

impl Speech for Pocket {
    fn info(&self) -> &SpeechInfo {
        &self.info
    }

    fn script(&self, request: &SpeakRequest) -> Result<Box<dyn Script>, SpeechError> {
        self.check(request)?;
        let english = self.info.languages.first().is_none_or(|own| own == ENGLISH);
        Ok(Box::new(PocketScript {
            tokenizer: self.tokenizer.clone(),
            rules: self.rules.clone(),
            max_tokens: match request.max_tokens {
                MODEL_TOKENS => self.passage_tokens,
                most => most,
            },
            speaks: self.info.languages.first().cloned(),
            english: request.normalize && english,
            signs: self.info.languages.first().filter(|_| request.normalize).and_then(|own| Signs::of(own)),
            frames_after_eos: request.frames_after_eos.or(self.config.model_recommended_frames_after_eos),
            sentences: SentenceStream::new(),
            pauses: PauseBudget::default(),
        }))
    }

    fn halves(&self, line: &Line) -> Option<[Line; 2]> {
        let [first, second] = halve(&self.tokenizer, &line.text)?;
        let half = |text: &str| {
            let text = prepare(&self.rules, text).ok()?.text;
            Some(Line { tokens: self.tokenizer.encode(&text), text, tail: line.tail, ..Line::default() })
        };
        Some([half(&first)?, half(&second)?])
    }

    fn synth(&self, slots: usize) -> Box<dyn Synth> {
        let defaults = Defaults {
            frame_rate: self.config.mimi.frame_rate,
            temperature: self.config.default_temperature,
            eos_threshold: self.config.default_eos_threshold,
        };
        Box::new(PocketSynth::new(self.lm.clone(), self.nobody.clone(), defaults, slots))
    }

    fn vocoder(&self, room: VocoderRoom) -> Box<dyn Vocoder> {
        Box::new(SlotVocoder::new(Latents(self.decoder.clone()), room))
    }

    fn count_tokens(&self, text: &str) -> usize {
        self.tokenizer.encode(text).len()
    }

    fn can_clone(&self, text: Option<&str>) -> Result<(), VoiceError> {
        match text {
            Some(_) => Err(VoiceError::Unsupported { family: NAME, option: "reference text" }),
            None if VoiceEncoder::is_in(&self.later, &self.config)? => Ok(()),
            None => Err(VoiceError::NoEncoder),
        }
    }

    fn voice(&self, exec: &mut Exec, from: VoiceSource<'_>) -> Result<Voice, VoiceError> {
        let voice = match from {
            VoiceSource::Name(name) => {
                return Err(VoiceError::Other(format!("{NAME} has no speaker '{name}' of its own")));
            }
            VoiceSource::Tensors(file) => Past::read(file, exec, &self.lm)?,
            VoiceSource::Clip { samples, text } => {
                self.can_clone(text)?;
                let rows = self.encoder()?.rows(exec, samples);
                Past::from_rows(exec, &self.lm, &rows)?
            }
        };
        Ok(Voice::Past(Arc::new(voice)))
    }

    fn fits(&self, voice: &Voice) -> bool {
        matches!(voice, Voice::Past(voice) if voice.fits(&self.lm))
    }

    fn export(&self, exec: &mut Exec, voice: &Voice) -> Result<Vec<VoiceTensor>, VoiceError> {
        match voice {
            Voice::Past(voice) => Ok(voice.export(exec)),
            _ => Err(VoiceError::Other("it is one of another family".into())),
        }
    }
}

/// What a frame passes through.
fn stages(lm: &FlowLm, codec: &MimiDecoder, frame_rate: f64, formats: Formats) -> Vec<StageInfo> {
    let backbone = StageInfo {
        name: "backbone",
        bytes: lm.backbone_bytes(),
        macs: lm.backbone_macs(),
        per: Per::Frame,
        per_second: Some(frame_rate),
        together: 1,
        format: formats.backbone,
        prompts: true,
    };
    let head = StageInfo {
        name: "head",
        bytes: lm.head_bytes(),
        macs: lm.head_macs(),
        per: Per::SamplerStep,
        format: formats.linear,
        prompts: false,
        ..backbone
    };
    let codec = StageInfo {
        name: "codec",
        bytes: codec.bytes(),
        macs: codec.macs_per_frame(),
        per: Per::Frame,
        together: CODEC_GROUP,
        format: formats.codec.format,
        ..head
    };
    vec![backbone, head, codec]
}
