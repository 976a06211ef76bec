//! The `config.json` of Parakeet and Nemotron checkpoints in Hugging Face's layout, and the processor's file beside it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::check::ConfigError;
use super::config::{
    Attention, ConvNorm, EncoderConfig, FastConformerConfig, Head, MelConfig, MelNormalize, PredictorConfig,
    PromptConfig,
};
use super::languages;

/// Look-aheads of published streaming models, used where no processor file lists its own.
const PUBLISHED_LOOK_AHEADS: [usize; 4] = [13, 6, 1, 0];

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    architectures: Option<Vec<String>>,
    #[serde(default)]
    model_type: String,
    encoder_config: Encoder,
    vocab_size: usize,
    #[serde(default)]
    blank_token_id: Option<usize>,
    #[serde(default)]
    pad_token_id: Option<usize>,
    #[serde(default = "default_hidden")]
    decoder_hidden_size: usize,
    #[serde(default = "default_layers")]
    num_decoder_layers: usize,
    #[serde(default)]
    hidden_act: Option<String>,
    #[serde(default)]
    max_symbols_per_step: Option<usize>,
    #[serde(default)]
    durations: Option<Vec<usize>>,
    #[serde(default = "default_prompts")]
    num_prompts: usize,
    #[serde(default = "default_prompt_width")]
    prompt_intermediate_size: usize,
    #[serde(default)]
    default_prompt_id: Option<usize>,
}

#[derive(Deserialize)]
struct Encoder {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    #[serde(default)]
    num_key_value_heads: Option<usize>,
    intermediate_size: usize,
    #[serde(default)]
    hidden_act: Option<String>,
    #[serde(default = "default_kernel")]
    conv_kernel_size: usize,
    #[serde(default = "default_factor")]
    subsampling_factor: usize,
    #[serde(default = "default_channels")]
    subsampling_conv_channels: usize,
    #[serde(default = "default_bins")]
    num_mel_bins: usize,
    #[serde(default = "default_subsampling_kernel")]
    subsampling_conv_kernel_size: usize,
    #[serde(default = "default_stride")]
    subsampling_conv_stride: usize,
    #[serde(default = "yes")]
    scale_input: bool,
    #[serde(default = "default_window")]
    sliding_window: usize,
    #[serde(default = "default_look_ahead")]
    default_num_lookahead_tokens: usize,
}

/// `processor_config.json`, or `preprocessor_config.json`, whose keys are those of the feature extractor.
#[derive(Default, Deserialize)]
struct Processor {
    #[serde(default)]
    feature_extractor: Option<Features>,
    #[serde(flatten)]
    features: Features,
    #[serde(default)]
    supported_num_lookahead_tokens: Option<Vec<usize>>,
    #[serde(default)]
    prompt_dictionary: Option<BTreeMap<String, usize>>,
}

#[derive(Default, Deserialize)]
struct Features {
    #[serde(default)]
    feature_size: Option<usize>,
    #[serde(default)]
    sampling_rate: Option<usize>,
    #[serde(default)]
    hop_length: Option<usize>,
    #[serde(default)]
    n_fft: Option<usize>,
    #[serde(default)]
    win_length: Option<usize>,
    #[serde(default)]
    preemphasis: Option<f64>,
    #[serde(default)]
    mel_filters_dtype: Option<String>,
}

fn yes() -> bool {
    true
}
fn default_hidden() -> usize {
    640
}
fn default_layers() -> usize {
    2
}
fn default_prompts() -> usize {
    128
}
fn default_prompt_width() -> usize {
    2048
}
fn default_kernel() -> usize {
    9
}
fn default_factor() -> usize {
    8
}
fn default_channels() -> usize {
    256
}
fn default_bins() -> usize {
    80
}
fn default_subsampling_kernel() -> usize {
    3
}
fn default_stride() -> usize {
    2
}
fn default_window() -> usize {
    71
}
fn default_look_ahead() -> usize {
    13
}

/// What a checkpoint is, by the class that runs it.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Ctc,
    Rnnt,
    Tdt,
    Streaming,
    Prompted,
}

impl Kind {
    fn of(model: &Model) -> Result<Self, ConfigError> {
        let class = model.architectures.iter().flatten().next().map_or("", String::as_str);
        Ok(match (class, model.model_type.as_str()) {
            ("ParakeetForCTC", _) | ("", "parakeet_ctc") => Kind::Ctc,
            ("ParakeetForRNNT", _) | ("", "parakeet_rnnt") => Kind::Rnnt,
            ("ParakeetForTDT", _) | ("", "parakeet_tdt") => Kind::Tdt,
            ("NemotronAsrStreamingForRNNT", _) | ("", "nemotron_asr_streaming") => Kind::Streaming,
            ("Nemotron3_5AsrForRNNT", _) | ("", "nemotron3_5_asr") => Kind::Prompted,
            ("", other) | (other, _) => {
                return Err(ConfigError::unsupported(
                    "model class",
                    if other.is_empty() { "(none named)" } else { other },
                    "ParakeetForCTC, ParakeetForRNNT, ParakeetForTDT, NemotronAsrStreamingForRNNT, Nemotron3_5AsrForRNNT",
                ));
            }
        })
    }

    fn streaming(self) -> bool {
        matches!(self, Kind::Streaming | Kind::Prompted)
    }
}

impl FastConformerConfig {
    /// Reads a `config.json`; `processors` are the contents of `processor_config.json` and
    /// `preprocessor_config.json`, as far as they are there.
    pub fn from_hf_json(config: &str, processors: &[&str]) -> Result<Self, ConfigError> {
        let model: Model = serde_json::from_str(config)?;
        let kind = Kind::of(&model)?;
        let processors: Vec<Processor> =
            processors.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>()?;
        let encoder = encoder(&model.encoder_config, kind, &processors)?;
        let mel = mel(&model.encoder_config, kind, &processors)?;
        let Some(vocab) = model.vocab_size.checked_sub(1) else {
            return Err(ConfigError::Bad("vocab_size is 0".into()));
        };
        let blank = if kind == Kind::Ctc { model.pad_token_id } else { model.blank_token_id };
        if blank.is_some_and(|id| id != vocab) {
            let id = blank.unwrap_or_default();
            return Err(ConfigError::unsupported("blank id", id, "the last one, vocab_size - 1"));
        }
        let head = head(&model, kind)?;
        let prompt = (kind == Kind::Prompted).then(|| prompt(&model, &processors));
        let config = Self { mel, encoder, prompt, vocab, head, auxiliary_ctc: false };
        config.check()?;
        Ok(config)
    }
}

fn expect(key: &'static str, value: Option<&str>, only: &'static str) -> Result<(), ConfigError> {
    match value {
        Some(value) if value != only => Err(ConfigError::unsupported(key, value, only)),
        _ => Ok(()),
    }
}

fn encoder(e: &Encoder, kind: Kind, processors: &[Processor]) -> Result<EncoderConfig, ConfigError> {
    let at_most = |value: usize| if value == 0 { None } else { Some(value) };
    expect("encoder_config.hidden_act", e.hidden_act.as_deref(), "silu")?;
    if e.num_key_value_heads.is_some_and(|n| n != e.num_attention_heads) {
        let heads = e.num_key_value_heads.unwrap_or_default();
        return Err(ConfigError::unsupported("num_key_value_heads", heads, "as many as attention heads"));
    }
    if e.subsampling_conv_kernel_size != 3 || e.subsampling_conv_stride != 2 {
        let taps = format!("{} by {}", e.subsampling_conv_kernel_size, e.subsampling_conv_stride);
        return Err(ConfigError::unsupported("subsampling kernel and stride", taps, "3 by 2"));
    }
    let attention = if kind.streaming() {
        let left = at_most(e.sliding_window)
            .ok_or_else(|| ConfigError::Bad("sliding_window is 0".into()))?
            .saturating_sub(1);
        let listed = processors.iter().find_map(|p| p.supported_num_lookahead_tokens.as_deref());
        let default = e.default_num_lookahead_tokens;
        let mut look_aheads = vec![default];
        match listed {
            Some(listed) => look_aheads.extend(listed.iter().filter(|&&ahead| ahead != default)),
            None => look_aheads.extend(
                PUBLISHED_LOOK_AHEADS
                    .iter()
                    .filter(|&&ahead| ahead != default && left.is_multiple_of(ahead + 1)),
            ),
        }
        Attention::Chunked { left, look_aheads }
    } else {
        Attention::Full
    };
    Ok(EncoderConfig {
        layers: e.num_hidden_layers,
        dim: e.hidden_size,
        heads: e.num_attention_heads,
        ff_dim: e.intermediate_size,
        conv_kernel: e.conv_kernel_size,
        conv_norm: if kind.streaming() { ConvNorm::Layer } else { ConvNorm::Batch },
        subsampling_channels: e.subsampling_conv_channels,
        subsampling_factor: e.subsampling_factor,
        causal: kind.streaming(),
        scale_input: e.scale_input,
        attention,
    })
}

fn mel(e: &Encoder, kind: Kind, processors: &[Processor]) -> Result<MelConfig, ConfigError> {
    let normalize = if kind.streaming() { MelNormalize::None } else { MelNormalize::PerFeature };
    let mut mel = MelConfig { sample_rate: 16_000, bins: e.num_mel_bins, normalize, bf16_filters: false };
    for f in processors.iter().flat_map(|p| [Some(&p.features), p.feature_extractor.as_ref()]).flatten() {
        if f.feature_size.is_some_and(|bins| bins != e.num_mel_bins) {
            return Err(ConfigError::Bad(format!(
                "the processor makes {} mel bins, the encoder takes {}",
                f.feature_size.unwrap_or_default(),
                e.num_mel_bins
            )));
        }
        mel.sample_rate = f.sampling_rate.unwrap_or(mel.sample_rate);
        let sizes =
            [(f.n_fft, 512, "n_fft"), (f.hop_length, 160, "hop_length"), (f.win_length, 400, "win_length")];
        for (value, only, key) in sizes {
            if value.is_some_and(|v| v != only) {
                let supported = "n_fft 512, hop 160, window 400";
                return Err(ConfigError::unsupported(key, value.unwrap_or_default(), supported));
            }
        }
        if f.preemphasis.is_some_and(|p| (p - 0.97).abs() > 1e-6) {
            return Err(ConfigError::unsupported("preemphasis", f.preemphasis.unwrap_or_default(), "0.97"));
        }
        match f.mel_filters_dtype.as_deref() {
            None | Some("float32") => {}
            Some("bfloat16") => mel.bf16_filters = true,
            Some(other) => {
                return Err(ConfigError::unsupported("mel_filters_dtype", other, "float32, bfloat16"));
            }
        }
    }
    Ok(mel)
}

fn head(m: &Model, kind: Kind) -> Result<Head, ConfigError> {
    if kind == Kind::Ctc {
        return Ok(Head::Ctc);
    }
    expect("hidden_act", m.hidden_act.as_deref(), "relu")?;
    let predictor = PredictorConfig {
        hidden: m.decoder_hidden_size,
        layers: m.num_decoder_layers,
        joint: m.decoder_hidden_size,
        max_symbols: m.max_symbols_per_step.unwrap_or(10),
    };
    if kind != Kind::Tdt {
        return Ok(Head::Rnnt(predictor));
    }
    let durations = m.durations.clone().unwrap_or_else(|| (0..5).collect());
    Ok(Head::Tdt { predictor, durations })
}

fn prompt(m: &Model, processors: &[Processor]) -> PromptConfig {
    let mut prompt = languages::prompt(m.num_prompts);
    if let Some(listed) = processors.iter().find_map(|p| p.prompt_dictionary.as_ref()) {
        prompt.languages = listed.iter().map(|(code, slot)| (code.clone(), *slot)).collect();
    }
    prompt.hidden = m.prompt_intermediate_size;
    prompt.default = m.default_prompt_id.unwrap_or(prompt.default);
    prompt
}
