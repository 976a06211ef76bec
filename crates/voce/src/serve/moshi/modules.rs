//! The modules of a moshi-server configuration, field by field.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::py::{PyAsr, PyTts};

/// What a configuration has beside keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Modules {
    /// The modules that are run, by name.
    pub(crate) list: Vec<(String, Module)>,
    /// Folder of files that are served where nothing else is.
    pub(crate) static_dir: Option<String>,
}

/// A module.
#[derive(Clone, Debug)]
pub(crate) enum Module {
    /// `Asr` and `BatchedAsr`.
    Asr(Box<Asr>),
    PyAsr(Box<PyAsrModule>),
    Tts(Box<Tts>),
    Py(Box<PyModule>),
    Lm(Box<Lm>),
    Mimi(Box<Mimi>),
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Asr {
    pub(crate) path: String,
    pub(crate) batch_size: Option<usize>,
    pub(crate) lm_model_file: String,
    pub(crate) text_tokenizer_file: String,
    pub(crate) audio_tokenizer_file: String,
    pub(crate) model: LmConfig,
    pub(crate) asr_delay_in_tokens: usize,
    pub(crate) log_frequency_s: Option<f64>,
    pub(crate) conditioning_delay: Option<f64>,
    #[serde(default)]
    pub(crate) conditioning_learnt_padding: bool,
    pub(crate) temperature: Option<f64>,
    pub(crate) dtype_override: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PyAsrModule {
    pub(crate) path: String,
    pub(crate) script: Option<String>,
    pub(crate) batch_size: usize,
    pub(crate) text_tokenizer_file: String,
    pub(crate) asr_delay_in_tokens: usize,
    #[serde(default)]
    pub(crate) py: PyAsr,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Tts {
    pub(crate) path: String,
    pub(crate) lm_model_file: String,
    pub(crate) text_tokenizer_file: String,
    /// Only cloning needs it, which voices in files do not.
    #[serde(rename = "speaker_tokenizer_file")]
    _speaker_tokenizer_file: String,
    pub(crate) audio_tokenizer_file: String,
    pub(crate) voices: BTreeMap<String, String>,
    pub(crate) voice_dir: String,
    pub(crate) model: LmConfig,
    pub(crate) generation: Generation,
    pub(crate) dtype_override: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PyModule {
    pub(crate) path: String,
    pub(crate) script: Option<String>,
    pub(crate) batch_size: usize,
    pub(crate) text_tokenizer_file: String,
    pub(crate) text_bos_token: u32,
    #[serde(default)]
    pub(crate) py: PyTts,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Lm {
    pub(crate) path: String,
    pub(crate) lm_model_file: String,
    pub(crate) text_tokenizer_file: String,
    pub(crate) audio_tokenizer_file: String,
    pub(crate) model: LmConfig,
    pub(crate) r#gen: Gen,
    pub(crate) dtype_override: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mimi {
    pub(crate) send_path: String,
    pub(crate) recv_path: String,
    pub(crate) audio_tokenizer_file: String,
    pub(crate) auth_recv: bool,
    pub(crate) rooms: Vec<String>,
    pub(crate) default_room: Option<String>,
}

/// `model`: a language model's shape.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LmConfig {
    pub(crate) transformer: TrConfig,
    pub(crate) depformer: Option<DepConfig>,
    pub(crate) text_in_vocab_size: usize,
    pub(crate) text_out_vocab_size: usize,
    pub(crate) audio_vocab_size: usize,
    pub(crate) audio_codebooks: usize,
    #[serde(default)]
    pub(crate) conditioners: BTreeMap<String, Conditioner>,
    pub(crate) extra_heads: Option<ExtraHeads>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct DepConfig {
    pub(crate) transformer: TrConfig,
    pub(crate) num_slices: usize,
    pub(crate) low_rank_embeddings: Option<usize>,
}

/// A transformer's shape; what the candle models know besides says nothing about gated models with RMS norms.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct TrConfig {
    pub(crate) d_model: usize,
    pub(crate) num_heads: usize,
    pub(crate) num_layers: usize,
    pub(crate) dim_feedforward: usize,
    pub(crate) causal: bool,
    pub(crate) norm_first: bool,
    pub(crate) bias_ff: bool,
    pub(crate) bias_attn: bool,
    pub(crate) layer_scale: Option<f64>,
    pub(crate) context: usize,
    pub(crate) max_period: f64,
    pub(crate) use_conv_block: bool,
    pub(crate) cross_attention: Option<toml::Value>,
    pub(crate) gating: Option<String>,
    pub(crate) norm: String,
    pub(crate) positional_embedding: String,
    pub(crate) kv_repeat: usize,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type")]
pub(crate) enum Conditioner {
    Lut { n_bins: usize, dim: usize, possible_values: Vec<String> },
    ContinuousAttribute { dim: usize, scale_factor: f64, max_period: f64 },
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct ExtraHeads {
    pub(crate) num_heads: usize,
    pub(crate) dim: usize,
}

/// `gen` of a dialogue.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Gen {
    pub(crate) generated_audio_codebooks: usize,
    pub(crate) input_audio_codebooks: usize,
    pub(crate) acoustic_delay: usize,
    pub(crate) text_pad_token: u32,
    pub(crate) text_eop_token: u32,
}

/// `generation` of native speech.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Generation {
    pub(crate) acoustic_delay: usize,
    pub(crate) text_pad_token: u32,
    pub(crate) text_eop_token: u32,
    pub(crate) text_audio_delay_in_tokens: usize,
    pub(crate) speaker_cond_dim: usize,
}

impl Module {
    /// Reads a module of a type that is known; none of one that is not.
    pub(crate) fn read(kind: &str, table: toml::Table) -> Option<Result<Self, String>> {
        fn of<T: DeserializeOwned>(table: toml::Table) -> Result<Box<T>, String> {
            // The first line says which field; what follows shows the file again.
            let short = |e: toml::de::Error| e.message().lines().next().unwrap_or_default().to_owned();
            T::deserialize(toml::Value::Table(table)).map(Box::new).map_err(short)
        }
        Some(match kind {
            "Asr" => of(table).map(|mut asr: Box<Asr>| {
                asr.batch_size = None;
                Self::Asr(asr)
            }),
            "BatchedAsr" => of(table).and_then(|asr: Box<Asr>| match asr.batch_size {
                Some(_) => Ok(Self::Asr(asr)),
                None => Err("missing field `batch_size`".into()),
            }),
            "PyBatchedAsr" => of(table).map(Self::PyAsr),
            "Tts" => of(table).map(Self::Tts),
            "Py" => of(table).map(Self::Py),
            "Lm" => of(table).map(Self::Lm),
            "Mimi" => of(table).map(Self::Mimi),
            _ => return None,
        })
    }
}
