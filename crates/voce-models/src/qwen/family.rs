//! Qwen3-TTS as a model that speaks.

use std::sync::Arc;

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::Exec;
use voce_text::{PauseBudget, SentenceStream, Tokenizer};

use super::codec::CodecDecoder;
use super::config::{GenerationConfig, QwenConfig, Variant};
use super::script::QwenScript;
use super::sound::Sound;
use super::synth::{Common, QwenSynth};
use super::talker::Talker;
use super::voice::Voice as Speaker;
use super::{AUTO, PREDICTOR, TALKER, text_mode};
use crate::speech::{
    ClipRules, MODEL_TOKENS, Script, SpeakRequest, Speech, SpeechError, SpeechInfo, Synth, Vocoder,
    VocoderRoom, Voice, VoiceChoice, VoiceError, VoiceSource, VoiceTensor, language_name,
};
use crate::stage::{Per, StageInfo};

/// Tokens of a passage unless a request says otherwise: minutes of speech, so that most texts are one.
const PASSAGE_TOKENS: usize = 400;
/// Tokens of an instruction at most.
pub const MAX_INSTRUCT_TOKENS: usize = 1_000;
/// Frames that the codec decodes together once a stream is ahead of playback.
const CODEC_GROUP: usize = 4;
/// Seconds of a recording at least.
pub const MIN_CLIP_SECONDS: f64 = 0.5;

/// A loaded Qwen3-TTS model.
pub struct Qwen {
    info: SpeechInfo,
    common: Arc<Common>,
    sound: Sound,
}

/// What a Qwen3-TTS model is made of.
pub struct QwenParts {
    /// The published configuration.
    pub config: QwenConfig,
    /// How frames are drawn where a request says nothing.
    pub generation: GenerationConfig,
    /// The tokeniser, of no more tokens than the configuration says.
    pub tokenizer: Tokenizer,
    /// The half that is sound.
    pub sound: Sound,
    /// Formats of the weights.
    pub formats: Formats,
}

impl Qwen {
    /// Loads a model; `exec` is one of where it will run.
    pub fn load(exec: &mut Exec, loader: &Loader, parts: QwenParts) -> Result<Self, WeightError> {
        let QwenParts { config, generation, tokenizer, sound, formats } = parts;
        let codec = sound.decoder();
        let talker = Talker::load(exec, loader, &config, formats)?;
        let frame_rate = codec.sample_rate() as f64 / codec.frame_size().max(1) as f64;
        let info = SpeechInfo {
            family: config.variant().name(),
            sample_rate: codec.sample_rate(),
            frame_size: codec.frame_size(),
            group: CODEC_GROUP,
            fade_in: 0,
            temperature: generation.temperature,
            languages: config.languages(),
            speakers: config.speakers(),
            stages: stages(&talker, codec, frame_rate, formats),
        };
        let mut role = vec![config.im_start_token_id, config.assistant_token_id];
        role.extend(tokenizer.encode("\n"));
        let common = Arc::new(Common { config, generation, talker, tokenizer, role });
        Ok(Self { info, common, sound })
    }

    /// The networks that make frames, to look at.
    pub fn talker(&self) -> &Talker {
        &self.common.talker
    }

    fn config(&self) -> &QwenConfig {
        &self.common.config
    }

    /// Refuses what this variant does not have.
    fn check(&self, request: &SpeakRequest) -> Result<(), SpeechError> {
        request.check()?;
        let family = self.info.family;
        let unsupported = |option| Err(SpeechError::Unsupported { family, option });
        if request.noise_clamp.is_some() {
            return unsupported("noise clamp");
        }
        if let Some(option) = request.code_option() {
            return unsupported(option);
        }
        // A threshold that nothing reaches means that the end is not to come.
        let threshold = request.eos_threshold.filter(|t| *t != f32::INFINITY);
        if threshold.is_some() || request.frames_after_eos.is_some() {
            return unsupported("threshold or frames of the end");
        }
        if let Some(instruct) = request.instruct.as_deref().filter(|text| !text.is_empty()) {
            if self.config().variant() == Variant::Base {
                return unsupported("instruction");
            }
            if !self.config().takes_instructions() {
                tracing::warn!("{family} of this size takes no instruction: it is left out, as published");
            }
            let tokens = self.common.tokenizer.encode(instruct).len();
            if tokens > MAX_INSTRUCT_TOKENS {
                return Err(SpeechError::Value {
                    what: "instruction",
                    value: format!("{tokens} tokens"),
                    rule: "use 1000 at most",
                });
            }
        }
        if let Some(asked) = &request.language {
            let (has, name) = (&self.info.languages, language_name(asked));
            if name != AUTO && !has.contains(&name) {
                let has = std::iter::once(AUTO.to_owned()).chain(has.iter().cloned()).collect();
                return Err(SpeechError::Language { asked: asked.clone(), has });
            }
        }
        if let VoiceChoice::Ready(voice) = &request.voice
            && !self.fits(voice)
        {
            return Err(SpeechError::Value {
                what: "voice",
                value: "of another model".into(),
                rule: "use a voice that this speaker has loaded",
            });
        }
        Ok(())
    }
}

impl Speech for Qwen {
    fn info(&self) -> &SpeechInfo {
        &self.info
    }

    fn script(&self, request: &SpeakRequest) -> Result<Box<dyn Script>, SpeechError> {
        self.check(request)?;
        Ok(Box::new(QwenScript {
            tokenizer: self.common.tokenizer.clone(),
            max_tokens: match request.max_tokens {
                MODEL_TOKENS => PASSAGE_TOKENS,
                most => most,
            },
            mode: text_mode(self.config(), request),
            sentences: SentenceStream::new(),
            pauses: PauseBudget::default(),
            pending: String::new(),
            open: None,
        }))
    }

    fn synth(&self, slots: usize) -> Box<dyn Synth> {
        Box::new(QwenSynth::new(self.common.clone(), slots))
    }

    fn vocoder(&self, room: VocoderRoom) -> Box<dyn Vocoder> {
        self.sound.vocoder(room)
    }

    fn takes_instructions(&self) -> bool {
        self.config().takes_instructions()
    }

    fn count_tokens(&self, text: &str) -> usize {
        self.common.tokenizer.encode(text).len()
    }

    fn can_clone(&self, _text: Option<&str>) -> Result<(), VoiceError> {
        match self.config().variant() {
            Variant::Base => Ok(()),
            Variant::CustomVoice | Variant::VoiceDesign => {
                Err(VoiceError::Unsupported { family: self.info.family, option: "recording to clone" })
            }
        }
    }

    fn clip_rules(&self, text: Option<&str>) -> ClipRules {
        if text.is_some() { ClipRules::Whole } else { ClipRules::AsItIs }
    }

    fn voice(&self, exec: &mut Exec, from: VoiceSource<'_>) -> Result<Voice, VoiceError> {
        let config = self.config();
        let voice = match from {
            VoiceSource::Name(name) => Speaker::speaker(config, name)?,
            VoiceSource::Tensors(file) => {
                self.can_clone(None)?;
                Speaker::read(config, file)?
            }
            VoiceSource::Clip { samples, text } => {
                self.can_clone(text)?;
                let seconds = samples.len() as f64 / self.info.sample_rate as f64;
                if seconds < MIN_CLIP_SECONDS {
                    return Err(VoiceError::TooShort { seconds, least: MIN_CLIP_SECONDS });
                }
                let text = text.map(str::trim).filter(|text| !text.is_empty());
                let clip = match text {
                    Some(text) => {
                        Some((self.common.tokenizer.encode(text), self.sound.encode(exec, samples)?))
                    }
                    None => None,
                };
                let encoder = config.speaker_encoder_config.as_ref().ok_or(VoiceError::NoEncoder)?;
                let embedding = self.sound.embed(exec, encoder, samples)?;
                Speaker::cloned(config, embedding, clip)?
            }
        };
        Ok(Voice::Prompt(Arc::new(voice)))
    }

    fn fits(&self, voice: &Voice) -> bool {
        matches!(voice, Voice::Prompt(voice) if voice.check(self.config()).is_ok())
    }

    fn export(&self, _exec: &mut Exec, voice: &Voice) -> Result<Vec<VoiceTensor>, VoiceError> {
        match voice {
            Voice::Prompt(voice) => voice.export(),
            _ => Err(VoiceError::Other("it is one of another family".into())),
        }
    }
}

/// What a frame passes through.
fn stages(talker: &Talker, codec: &CodecDecoder, frame_rate: f64, formats: Formats) -> Vec<StageInfo> {
    let frames = talker.frames();
    let (bytes, macs) = (frames.predictor_bytes(), frames.predictor_macs());
    let codes = talker.groups() - 1;
    let talker = StageInfo {
        name: TALKER,
        bytes: frames.bytes(1) - bytes,
        macs: frames.macs() - macs,
        per: Per::Frame,
        per_second: Some(frame_rate),
        together: 1,
        format: formats.backbone,
        prompts: true,
    };
    let predictor = StageInfo {
        name: PREDICTOR,
        bytes: bytes / codes,
        macs: macs / codes,
        per: Per::Code,
        per_second: Some(frame_rate * codes as f64),
        prompts: false,
        ..talker
    };
    let codec = StageInfo {
        name: "codec",
        bytes: codec.bytes(),
        macs: codec.macs_per_frame(),
        per: Per::Frame,
        per_second: Some(frame_rate),
        together: CODEC_GROUP,
        format: formats.conv,
        ..predictor
    };
    vec![talker, predictor, codec]
}
