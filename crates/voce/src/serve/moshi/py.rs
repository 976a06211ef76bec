//! The `py` tables of modules that ran Python: the same settings, without it.

use serde::Deserialize;

/// Steps of the models a second.
pub(crate) const FRAME_RATE: f64 = 12.5;

/// The repository of speech where none is named.
pub(crate) const DEFAULT_TTS: &str = "kyutai/tts-1.6b-en_fr";

/// Where the files of a model are; those that are not named are the repository's.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Weights {
    pub(crate) hf_repo: Option<String>,
    pub(crate) mimi_weight: Option<String>,
    pub(crate) moshi_weight: Option<String>,
    pub(crate) config_path: Option<String>,
    pub(crate) tokenizer: Option<String>,
}

/// `py` of speech; keys that steer Python alone are ignored.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct PyTts {
    #[serde(flatten)]
    pub(crate) weights: Weights,
    pub(crate) n_q: usize,
    pub(crate) voice_folder: Option<String>,
    pub(crate) default_voice: String,
    pub(crate) temp: f32,
    pub(crate) cfg_coef: f32,
    pub(crate) max_padding: usize,
    pub(crate) initial_padding: usize,
    pub(crate) final_padding: usize,
    pub(crate) padding_between: usize,
    pub(crate) padding_bonus: f32,
}

impl Default for PyTts {
    fn default() -> Self {
        Self {
            weights: Weights::default(),
            n_q: 24,
            voice_folder: None,
            default_voice: "barack_demo.wav".into(),
            temp: 0.6,
            cfg_coef: 2.0,
            max_padding: 8,
            initial_padding: 2,
            final_padding: 4,
            padding_between: 1,
            padding_bonus: 0.0,
        }
    }
}

/// `py` of recognition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PyAsr {
    #[serde(flatten)]
    pub(crate) weights: Weights,
    pub(crate) temp: f64,
}
