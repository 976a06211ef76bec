//! Kyutai's text to speech as a model that speaks.

use std::sync::Arc;

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::{Exec, Sampling};
use voce_text::normalize::Signs;
use voce_text::{PauseBudget, Tokenizer};

use super::machine::MachineRules;
use super::passage::Timing;
use super::script::{KyutaiScript, ScriptState};
use super::sound::TtsVocoder;
use super::synth::KyutaiSynth;
use super::voice::{MAX_PREFIX_FRAMES, Sources, Voice as Speaker};
use crate::codec::Codec as _;
use crate::kyutai::TtsConfig;
use crate::kyutai::{Condition, FrameLm, KyutaiConfig};
use crate::mimi::Mimi;
use crate::speech::{
    ClipRules, MODEL_TOKENS, Script, SpeakRequest, Speech, SpeechError, SpeechInfo, Synth, Vocoder,
    VocoderRoom, Voice, VoiceChoice, VoiceError, VoiceSource, VoiceTensor, spoken,
};
use crate::stage::{Per, StageInfo};

/// What the published package does where a request says nothing.
const TEMPERATURE: f32 = 0.6;
const TOP_K: usize = 250;
const TEXT_TOP_K: usize = 25;
const GUIDANCE: f32 = 2.0;
/// The strongest guidance that a request may ask for.
const MAX_GUIDANCE: f32 = 10.0;
const MAX_PADDING: usize = 8;
const INITIAL_PADDING: usize = 2;
const FINAL_PADDING: usize = 4;
const PADDING_BETWEEN: usize = 1;
/// Frames that the codec decodes together once a stream is ahead of playback.
const CODEC_GROUP: usize = 4;
/// Frames at the end of a recording that the published package leaves out of a voice.
const CUT_FRAMES: usize = 2;
/// The table of guidance values, and the table that says that speech is wanted.
const CFG: &str = "cfg";
const CONTROL: (&str, &str) = ("control", "ok");

/// Names of the stages.
pub(super) const BACKBONE: &str = "backbone";
pub(super) const DEPTH: &str = "depth";
const CODEC: &str = "codec";

/// What a model that speaks is made of.
pub struct TtsParts {
    /// The published configuration.
    pub config: KyutaiConfig,
    /// The tokeniser, of no more tokens than the configuration says.
    pub tokenizer: Tokenizer,
    /// The codec, with as many codebooks as the model draws.
    pub mimi: Mimi,
    /// Formats of the weights.
    pub formats: Formats,
    /// Languages that it speaks, where somebody knows.
    pub languages: Vec<String>,
}

/// What all passages of a model share.
pub(super) struct Common {
    pub frames: FrameLm,
    pub sources: Option<Sources>,
    pub rules: MachineRules,
    pub timing: Timing,
    /// Whether guidance is a second pass without text and voice.
    pub guides: bool,
}

/// A loaded model that speaks.
pub struct KyutaiTts {
    info: SpeechInfo,
    common: Arc<Common>,
    tokenizer: Tokenizer,
    mimi: Arc<Mimi>,
}

impl Common {
    /// The conditions of a request.
    pub(super) fn conditions(&self, request: &SpeakRequest) -> Vec<Condition> {
        let named = |name: &str, value: String| Condition { name: name.to_owned(), value: Some(value) };
        vec![
            named(CONTROL.0, CONTROL.1.to_owned()),
            named(CFG, format!("{:.1}", request.guidance.unwrap_or(GUIDANCE))),
        ]
    }

    /// How far a request's streams are guided, where that takes a second pass.
    pub(super) fn guidance(&self, request: &SpeakRequest) -> Option<f32> {
        let by = request.guidance.unwrap_or(GUIDANCE);
        (self.guides && by != 1.0).then_some(by)
    }

    /// How text and codes of a passage are drawn.
    pub(super) fn draws(&self, request: &SpeakRequest, number: u64) -> (Sampling, Sampling) {
        let seed = request.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let own = self.frames.config().lm_gen_config;
        let hot = if request.greedy { Some(0.0) } else { request.temperature };
        let text = request.fine.temperature.filter(|_| !request.greedy);
        let sampling =
            |temperature: f32, top_k: usize| Sampling { temperature, top_k, seed, ..Sampling::default() };
        let temperature = hot.or(own.temp).unwrap_or(TEMPERATURE);
        (
            sampling(
                text.or(hot).or(own.temp_text).unwrap_or(temperature),
                request.fine.top_k.or(own.top_k_text).unwrap_or(TEXT_TOP_K),
            ),
            sampling(temperature, request.top_k.or(own.top_k).unwrap_or(TOP_K)),
        )
    }
}

/// Numbers that the published package has as arguments.
#[derive(Clone, Copy, Debug)]
pub struct SynthSetting {
    /// Steps that the model may wait with the next word.
    pub max_padding: usize,
    /// Steps before the first word.
    pub initial_padding: usize,
    /// Steps after the last.
    pub final_padding: usize,
    /// Frames per second of the codec.
    pub frame_rate: f64,
}

impl SynthSetting {
    fn new(frame_rate: f64, config: &KyutaiConfig) -> Self {
        let said = |of: fn(&TtsConfig) -> Option<usize>| config.tts_config.as_ref().and_then(of);
        Self {
            max_padding: said(|t| t.max_padding).unwrap_or(MAX_PADDING),
            initial_padding: said(|t| t.initial_padding).unwrap_or(INITIAL_PADDING),
            final_padding: said(|t| t.final_padding).unwrap_or(FINAL_PADDING),
            frame_rate,
        }
    }
}

impl Common {
    fn new(frames: FrameLm, sources: Option<Sources>, setting: &SynthSetting) -> Arc<Self> {
        let config = frames.config();
        let rules = MachineRules {
            new_word: config.existing_text_end_padding_id,
            pad: config.existing_text_padding_id,
            ahead: config.tts_config.map_or(0, |t| t.second_stream_ahead),
            max_padding: setting.max_padding,
            initial_padding: setting.initial_padding,
        };
        let timing = Timing::new(config, setting.frame_rate, setting.final_padding);
        let guides = sources.is_none() && frames.lm().conditions().values(CFG).is_none();
        Arc::new(Self { frames, sources, rules, timing, guides })
    }
}

/// Slots over networks that look at no source, without a codec: text in, codes out.
pub fn synth_of(frames: FrameLm, setting: &SynthSetting, slots: usize) -> Box<dyn Synth> {
    Box::new(KyutaiSynth::new(Common::new(frames, None, setting), slots))
}

impl KyutaiTts {
    /// Loads a model; `exec` is one of where it will run. `None` where the configuration is of a model that does not
    /// speak.
    pub fn load(exec: &mut Exec, loader: &Loader, parts: TtsParts) -> Result<Option<Self>, WeightError> {
        let TtsParts { config, tokenizer, mimi, formats, languages } = parts;
        let Some(frames) = FrameLm::load(exec, loader, &config, formats)? else { return Ok(None) };
        let decoder = mimi.decoder();
        let frame_rate = decoder.sample_rate() as f64 / decoder.frame_size().max(1) as f64;
        let info = SpeechInfo {
            family: "Kyutai TTS",
            sample_rate: decoder.sample_rate(),
            frame_size: decoder.frame_size(),
            group: CODEC_GROUP,
            fade_in: 0,
            temperature: TEMPERATURE,
            languages,
            speakers: Vec::new(),
            stages: stages(&frames, &mimi, frame_rate, formats),
        };
        let sources = Sources::load(loader, &config)?;
        let setting = SynthSetting::new(frame_rate, &config);
        let common = Common::new(frames, sources, &setting);
        Ok(Some(Self { info, common, tokenizer, mimi: Arc::new(mimi) }))
    }

    /// The networks that make frames, to look at.
    pub fn frames(&self) -> &FrameLm {
        &self.common.frames
    }

    /// Values of guidance that can be asked for.
    fn guidance(&self) -> &[String] {
        self.common.frames.lm().conditions().values(CFG).unwrap_or_default()
    }

    fn check(&self, request: &SpeakRequest) -> Result<(), SpeechError> {
        request.check()?;
        let family = self.info.family;
        let unsupported = |option| Err(SpeechError::Unsupported { family, option });
        let bad = |what, value: String, rule| Err(SpeechError::Value { what, value, rule });
        // A threshold that nothing reaches means that the end is not to come.
        let threshold = request.eos_threshold.filter(|t| *t != f32::INFINITY);
        for (is, option) in [
            (request.noise_clamp.is_some(), "noise clamp"),
            (threshold.is_some() || request.frames_after_eos.is_some(), "threshold or frames of the end"),
            (request.instruct.as_deref().is_some_and(|text| !text.is_empty()), "instruction"),
            (request.text_mode.is_some(), "text mode"),
            (request.top_p.is_some() || request.fine.top_p.is_some(), "top p"),
            (request.repetition_penalty.is_some(), "repetition penalty"),
        ] {
            if is {
                return unsupported(option);
            }
        }
        if let Some(asked) = &request.language {
            let has = &self.info.languages;
            if !has.is_empty() && spoken(asked, has).is_none() {
                return Err(SpeechError::Language { asked: asked.clone(), has: has.clone() });
            }
        }
        if let Some(guidance) = request.guidance {
            let value = format!("{guidance:.1}");
            if !(self.common.guides || guidance == 1.0) && self.guidance().is_empty() {
                return unsupported("guidance");
            }
            if !(1.0..=MAX_GUIDANCE).contains(&guidance) {
                return bad("guidance", format!("{guidance:?}"), "use 1 to 10");
            }
            if !self.guidance().is_empty() && !self.guidance().contains(&value) {
                return bad("guidance", format!("{guidance:?}"), "use 1 to 4 in steps of a half");
            }
        }
        let codes = self.common.frames.depth().codes();
        if request.codebooks.is_some_and(|n| n == 0 || n > codes) {
            let value = request.codebooks.unwrap_or_default().to_string();
            return bad("codebooks", value, "use 1 to as many as the model draws");
        }
        if let VoiceChoice::Ready(voice) = &request.voice
            && !self.fits(voice)
        {
            return bad("voice", "of another model".into(), "use a voice that this speaker has loaded");
        }
        Ok(())
    }
}

impl Speech for KyutaiTts {
    fn info(&self) -> &SpeechInfo {
        &self.info
    }

    fn script(&self, request: &SpeakRequest) -> Result<Box<dyn Script>, SpeechError> {
        self.check(request)?;
        let config = self.common.frames.config().tts_config;
        Ok(Box::new(KyutaiScript {
            tokenizer: self.tokenizer.clone(),
            max_tokens: if request.max_tokens == MODEL_TOKENS { usize::MAX } else { request.max_tokens },
            turns: self.common.sources.is_some(),
            between: config.and_then(|t| t.padding_between).unwrap_or(PADDING_BETWEEN),
            frame_rate: self.info.frame_rate(),
            signs: (request.language.as_ref().or(self.info.languages.first()))
                .filter(|_| request.normalize)
                .and_then(|language| Signs::of(language)),
            pauses: PauseBudget::default(),
            state: ScriptState::default(),
        }))
    }

    fn synth(&self, slots: usize) -> Box<dyn Synth> {
        Box::new(KyutaiSynth::new(self.common.clone(), slots))
    }

    fn vocoder(&self, room: VocoderRoom) -> Box<dyn Vocoder> {
        Box::new(TtsVocoder::new(self.mimi.clone(), room))
    }

    fn tells_words(&self) -> bool {
        true
    }

    fn count_tokens(&self, text: &str) -> usize {
        text.split_whitespace().map(|word| self.tokenizer.encode(word).len()).sum()
    }

    fn can_clone(&self, text: Option<&str>) -> Result<(), VoiceError> {
        let family = self.info.family;
        match &self.common.sources {
            // The encoder of these voices is not published.
            Some(_) => Err(VoiceError::NoEncoder),
            None if text.is_some() => Err(VoiceError::Unsupported { family, option: "text of a recording" }),
            None => Ok(()),
        }
    }

    fn clip_rules(&self, _text: Option<&str>) -> ClipRules {
        ClipRules::AsItIs
    }

    fn voice(&self, exec: &mut Exec, from: VoiceSource<'_>) -> Result<Voice, VoiceError> {
        let lm = self.common.frames.lm();
        let voice = match (from, &self.common.sources) {
            (VoiceSource::Name(name), _) => {
                return Err(VoiceError::Other(format!(
                    "this model has no speakers of its own, and so no '{name}'"
                )));
            }
            (VoiceSource::Tensors(file), Some(sources)) => sources.read(exec, lm, file)?,
            (VoiceSource::Tensors(_), None) => {
                return Err(VoiceError::Other("this model takes recordings as voices".into()));
            }
            (VoiceSource::Clip { samples, text }, _) => {
                self.can_clone(text)?;
                let codes = self.mimi.encode(exec, samples).map_err(|e| VoiceError::Other(e.to_string()))?;
                let frames = codes.first().map_or(0, Vec::len).saturating_sub(CUT_FRAMES);
                if frames == 0 {
                    let (seconds, least) = (samples.len() as f64 / self.info.sample_rate as f64, 0.24);
                    return Err(VoiceError::TooShort { seconds, least });
                }
                if frames > MAX_PREFIX_FRAMES {
                    return Err(VoiceError::TooLong { positions: frames, most: MAX_PREFIX_FRAMES });
                }
                Speaker::prefix(codes.into_iter().map(|book| book[..frames].to_vec()).collect())
            }
        };
        exec.finish();
        Ok(Voice::Looked(Arc::new(voice)))
    }

    fn together(&self, exec: &mut Exec, voices: &[Voice]) -> Result<Voice, VoiceError> {
        let other = || VoiceError::Other("only speakers of files speak together".into());
        let sources = self.common.sources.as_ref().ok_or_else(other)?;
        let own = |voice: &Voice| match voice {
            Voice::Looked(voice) => Ok(voice.clone()),
            _ => Err(other()),
        };
        let voices = voices.iter().map(own).collect::<Result<Vec<_>, _>>()?;
        let voice = sources.join(exec, self.common.frames.lm(), &voices)?;
        exec.finish();
        Ok(Voice::Looked(Arc::new(voice)))
    }

    fn fits(&self, voice: &Voice) -> bool {
        match (voice, &self.common.sources) {
            (Voice::Looked(voice), Some(_)) => voice.source().is_some_and(|source| {
                let (own, spec) = (self.common.frames.config().backbone(), source.spec());
                spec.layers == own.layers && spec.kv_heads == own.heads && spec.head_dim == own.head_dim
            }),
            (Voice::Looked(voice), None) => voice.codes().len() == self.common.frames.config().n_q,
            _ => false,
        }
    }

    fn export(&self, _exec: &mut Exec, voice: &Voice) -> Result<Vec<VoiceTensor>, VoiceError> {
        match voice {
            Voice::Looked(voice) => voice.export(),
            _ => Err(VoiceError::Other("it is one of another family".into())),
        }
    }
}

/// What a frame passes through.
fn stages(frames: &FrameLm, mimi: &Mimi, frame_rate: f64, formats: Formats) -> Vec<StageInfo> {
    let (depth, codes) = (frames.depth(), frames.depth().codes().max(1));
    let backbone = StageInfo {
        name: BACKBONE,
        bytes: frames.lm().bytes(1),
        macs: frames.lm().macs(),
        per: Per::Frame,
        per_second: Some(frame_rate),
        together: 1,
        format: formats.backbone,
        prompts: false,
    };
    let depth = StageInfo {
        name: DEPTH,
        bytes: depth.bytes(codes) / codes,
        macs: depth.macs(codes) / codes,
        per: Per::Code,
        per_second: Some(frame_rate * codes as f64),
        ..backbone
    };
    let codec = StageInfo {
        name: CODEC,
        bytes: mimi.decoder().bytes(),
        macs: mimi.decoder().macs_per_frame(),
        together: CODEC_GROUP,
        format: formats.conv,
        ..backbone
    };
    vec![backbone, depth, codec]
}
