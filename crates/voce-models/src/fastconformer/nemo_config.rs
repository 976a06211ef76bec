//! The `model_config.yaml` of a `.nemo` archive: what its parts mean for recognition, and what cannot be run.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_yaml_ng::Value;

use super::check::ConfigError;
use super::config::{FastConformerConfig, Head, MelConfig, MelNormalize, PredictorConfig, PromptConfig};
use super::languages;
use super::nemo_encoder::Encoder;

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    target: String,
    #[serde(default)]
    sample_rate: Option<usize>,
    preprocessor: Preprocessor,
    encoder: Encoder,
    decoder: Decoder,
    #[serde(default)]
    joint: Option<Joint>,
    #[serde(default)]
    decoding: Option<Decoding>,
    #[serde(default)]
    loss: Option<Loss>,
    #[serde(default)]
    model_defaults: Option<Defaults>,
    #[serde(default)]
    aux_ctc: Option<Value>,
    #[serde(default)]
    labels: Option<Vec<Value>>,
    #[serde(default)]
    tokenizer: Option<Tokenizer>,
    #[serde(default)]
    num_prompts: Option<usize>,
}

#[derive(Deserialize)]
struct Preprocessor {
    #[serde(default, rename = "_target_")]
    class: Option<String>,
    #[serde(default)]
    sample_rate: Option<usize>,
    #[serde(default, deserialize_with = "stated")]
    normalize: Option<Value>,
    #[serde(default)]
    window_size: Option<f64>,
    #[serde(default)]
    window_stride: Option<f64>,
    #[serde(default)]
    window: Option<String>,
    #[serde(default)]
    features: Option<usize>,
    #[serde(default)]
    n_fft: Option<usize>,
    #[serde(default)]
    preemph: Option<f64>,
    #[serde(default)]
    lowfreq: Option<f64>,
    #[serde(default)]
    highfreq: Option<f64>,
    #[serde(default)]
    log: Option<bool>,
    #[serde(default)]
    log_zero_guard_type: Option<String>,
    #[serde(default)]
    frame_splicing: Option<usize>,
    #[serde(default)]
    mag_power: Option<f64>,
    #[serde(default)]
    mel_norm: Option<String>,
}

#[derive(Deserialize)]
struct Decoder {
    #[serde(default, rename = "_target_")]
    class: Option<String>,
    #[serde(default)]
    prednet: Option<Prednet>,
    #[serde(default)]
    vocab_size: Option<i64>,
    #[serde(default)]
    num_classes: Option<i64>,
    #[serde(default)]
    vocabulary: Option<Vec<Value>>,
    #[serde(default)]
    normalization_mode: Option<String>,
    #[serde(default)]
    blank_as_pad: Option<bool>,
}

#[derive(Deserialize)]
struct Prednet {
    pred_hidden: usize,
    pred_rnn_layers: usize,
    #[serde(default)]
    rnn_hidden_size: Option<i64>,
}

#[derive(Deserialize)]
struct Joint {
    #[serde(default, rename = "_target_")]
    class: Option<String>,
    jointnet: Jointnet,
    #[serde(default)]
    num_classes: Option<i64>,
    #[serde(default)]
    num_extra_outputs: Option<usize>,
    #[serde(default)]
    vocabulary: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Jointnet {
    joint_hidden: usize,
    #[serde(default)]
    activation: Option<String>,
}

#[derive(Deserialize)]
struct Decoding {
    #[serde(default)]
    durations: Option<Vec<usize>>,
    #[serde(default)]
    greedy: Option<Greedy>,
    #[serde(default)]
    big_blank_durations: Option<Vec<usize>>,
}

#[derive(Deserialize)]
struct Greedy {
    #[serde(default, alias = "max_symbols_per_step")]
    max_symbols: Option<usize>,
}

#[derive(Deserialize)]
struct Loss {
    #[serde(default)]
    loss_name: Option<String>,
    #[serde(default)]
    tdt_kwargs: Option<TdtLoss>,
}

#[derive(Deserialize)]
struct TdtLoss {
    #[serde(default)]
    durations: Option<Vec<usize>>,
}

#[derive(Deserialize)]
struct Defaults {
    #[serde(default)]
    tdt_durations: Option<Vec<usize>>,
    #[serde(default)]
    num_prompts: Option<usize>,
    #[serde(default)]
    prompt_dictionary: Option<BTreeMap<String, usize>>,
    #[serde(default)]
    initialize_prompt_feature: Option<bool>,
}

#[derive(Deserialize)]
struct Tokenizer {
    #[serde(default, rename = "type")]
    kind: Option<String>,
}

/// A value that is there, be it null.
fn stated<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// The class at the end of a dotted path.
fn class_of(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// A setting that has only one supported value, absent or spelled out.
fn only<T: PartialEq + std::fmt::Display>(
    key: &'static str,
    value: Option<T>,
    wanted: T,
    supported: &'static str,
) -> Result<(), ConfigError> {
    match value {
        Some(value) if value != wanted => Err(ConfigError::unsupported(key, value, supported)),
        _ => Ok(()),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Ctc,
    Transducer,
}

impl FastConformerConfig {
    /// Reads a `model_config.yaml`. Call [`FastConformerConfig::settle`] with the weights afterwards: the file may
    /// misstate what they have.
    pub fn from_nemo_yaml(yaml: &str) -> Result<Self, ConfigError> {
        let model: Model = serde_yaml_ng::from_str(yaml)?;
        let kind = model.kind()?;
        model.check_tokenizer()?;
        let mel = model.mel()?;
        let encoder = model.encoder.read(mel.bins)?;
        let head = model.head(kind)?;
        let vocab = model.vocab(kind).ok_or(ConfigError::Missing("decoder.vocab_size or labels"))?;
        let prompt = model.prompt(encoder.dim);
        let auxiliary_ctc = kind == Kind::Transducer && model.aux_ctc.is_some();
        let config = Self { mel, encoder, prompt, vocab, head, auxiliary_ctc };
        config.check()?;
        Ok(config)
    }
}

impl Model {
    fn kind(&self) -> Result<Kind, ConfigError> {
        match class_of(&self.target) {
            "EncDecCTCModelBPE" => Ok(Kind::Ctc),
            "EncDecRNNTBPEModel"
            | "EncDecHybridRNNTCTCBPEModel"
            | "EncDecRNNTBPEModelWithPrompt"
            | "EncDecHybridRNNTCTCBPEModelWithPrompt" => Ok(Kind::Transducer),
            // A model saved on its own may lack its class; the decoder's tells enough.
            "" => match self.decoder.class.as_deref().map(class_of) {
                Some("ConvASRDecoder") => Ok(Kind::Ctc),
                Some("RNNTDecoder") => Ok(Kind::Transducer),
                _ => Err(ConfigError::Missing("target")),
            },
            other => Err(ConfigError::unsupported(
                "model class",
                other,
                "EncDecRNNTBPEModel, EncDecCTCModelBPE, EncDecHybridRNNTCTCBPEModel, and these with a prompt",
            )),
        }
    }

    fn check_tokenizer(&self) -> Result<(), ConfigError> {
        let Some(tokenizer) = &self.tokenizer else {
            return Err(ConfigError::unsupported(
                "a character decoder",
                "(no tokenizer)",
                "tokenizer type bpe",
            ));
        };
        only("tokenizer type", tokenizer.kind.as_deref(), "bpe", "bpe")
    }

    fn mel(&self) -> Result<MelConfig, ConfigError> {
        let p = &self.preprocessor;
        only(
            "preprocessor",
            p.class.as_deref().map(class_of),
            "AudioToMelSpectrogramPreprocessor",
            "AudioToMelSpectrogramPreprocessor",
        )?;
        only("window", p.window.as_deref(), "hann", "hann")?;
        only("n_fft", p.n_fft, 512, "512")?;
        only("window_size", p.window_size, 0.025, "0.025")?;
        only("window_stride", p.window_stride, 0.01, "0.01")?;
        only("preemph", p.preemph, 0.97, "0.97")?;
        only("lowfreq", p.lowfreq, 0.0, "0")?;
        only("highfreq", p.highfreq, 8000.0, "8000 or none")?;
        only("log", p.log, true, "true")?;
        only("log_zero_guard_type", p.log_zero_guard_type.as_deref(), "add", "add")?;
        only("frame_splicing", p.frame_splicing, 1, "1")?;
        only("mag_power", p.mag_power, 2.0, "2.0")?;
        only("mel_norm", p.mel_norm.as_deref(), "slaney", "slaney")?;
        let normalize = match &p.normalize {
            // The preprocessor's own default.
            None => MelNormalize::PerFeature,
            Some(Value::String(s)) if s == "per_feature" => MelNormalize::PerFeature,
            Some(Value::String(s)) if ["NA", "na", "none", "None", ""].contains(&s.as_str()) => {
                MelNormalize::None
            }
            Some(Value::Null | Value::Bool(false)) => MelNormalize::None,
            Some(Value::String(other)) => {
                return Err(ConfigError::unsupported("normalize", other, "per_feature, NA"));
            }
            Some(_) => {
                return Err(ConfigError::unsupported("normalize", "(fixed values)", "per_feature, NA"));
            }
        };
        Ok(MelConfig {
            sample_rate: p.sample_rate.or(self.sample_rate).unwrap_or(16_000),
            bins: p.features.ok_or(ConfigError::Missing("preprocessor.features"))?,
            normalize,
            bf16_filters: false,
        })
    }

    fn durations(&self) -> Option<&Vec<usize>> {
        let decoding = self.decoding.as_ref().and_then(|d| d.durations.as_ref());
        let defaults = self.model_defaults.as_ref().and_then(|d| d.tdt_durations.as_ref());
        let loss = self.loss.as_ref().and_then(|l| l.tdt_kwargs.as_ref()).and_then(|k| k.durations.as_ref());
        [decoding, defaults, loss].into_iter().flatten().find(|d| !d.is_empty())
    }

    fn head(&self, kind: Kind) -> Result<Head, ConfigError> {
        if kind == Kind::Ctc {
            only("decoder", self.decoder.class.as_deref().map(class_of), "ConvASRDecoder", "ConvASRDecoder")?;
            return Ok(Head::Ctc);
        }
        let d = &self.decoder;
        only("decoder", d.class.as_deref().map(class_of), "RNNTDecoder", "RNNTDecoder")?;
        only("blank_as_pad", d.blank_as_pad, true, "true")?;
        if let Some(mode) = &d.normalization_mode {
            return Err(ConfigError::unsupported("normalization_mode", mode, "none"));
        }
        let prednet = d.prednet.as_ref().ok_or(ConfigError::Missing("decoder.prednet"))?;
        if prednet.rnn_hidden_size.is_some_and(|n| n > 0 && n != prednet.pred_hidden as i64) {
            let size = prednet.rnn_hidden_size.unwrap_or_default();
            return Err(ConfigError::unsupported("rnn_hidden_size", size, "the same as pred_hidden"));
        }
        let joint = self.joint.as_ref().ok_or(ConfigError::Missing("joint"))?;
        only("joint", joint.class.as_deref().map(class_of), "RNNTJoint", "RNNTJoint")?;
        only("joint activation", joint.jointnet.activation.as_deref(), "relu", "relu")?;
        let decoding = self.decoding.as_ref();
        let loss = self.loss.as_ref().and_then(|l| l.loss_name.as_deref()).unwrap_or("default");
        let big = decoding.and_then(|d| d.big_blank_durations.as_ref()).is_some_and(|b| !b.is_empty());
        if loss.starts_with("multiblank") || big {
            return Err(ConfigError::unsupported("transducer", "multi-blank", "RNN-T, TDT"));
        }
        let max_symbols = decoding.and_then(|d| d.greedy.as_ref()).and_then(|g| g.max_symbols);
        let predictor = PredictorConfig {
            hidden: prednet.pred_hidden,
            layers: prednet.pred_rnn_layers,
            joint: joint.jointnet.joint_hidden,
            max_symbols: max_symbols.filter(|&n| n > 0).unwrap_or(10),
        };
        let extra = joint.num_extra_outputs.unwrap_or(0);
        if loss != "tdt" && extra == 0 {
            return Ok(Head::Rnnt(predictor));
        }
        let durations = self.durations().ok_or(ConfigError::Missing("decoding.durations"))?.clone();
        if extra != 0 && extra != durations.len() {
            return Err(ConfigError::Bad(format!(
                "joint.num_extra_outputs is {extra} and there are {} durations",
                durations.len()
            )));
        }
        Ok(Head::Tdt { predictor, durations })
    }

    fn vocab(&self, kind: Kind) -> Option<usize> {
        let joint = self.joint.as_ref().filter(|_| kind == Kind::Transducer);
        let stated = [self.decoder.vocab_size, self.decoder.num_classes, joint.and_then(|j| j.num_classes)];
        let stated = stated.into_iter().flatten().find(|&n| n > 0).and_then(|n| usize::try_from(n).ok());
        let listed = [
            joint.and_then(|j| j.vocabulary.as_ref()),
            self.decoder.vocabulary.as_ref(),
            self.labels.as_ref(),
        ];
        stated.or_else(|| listed.into_iter().flatten().map(Vec::len).find(|&n| n > 0))
    }

    /// The language prompt. Its width is twice the encoder's, unless the tensors say otherwise.
    fn prompt(&self, dim: usize) -> Option<PromptConfig> {
        let defaults = self.model_defaults.as_ref();
        let wanted = self.target.ends_with("WithPrompt")
            || defaults.and_then(|d| d.initialize_prompt_feature).unwrap_or(false);
        if !wanted {
            return None;
        }
        let slots = defaults.and_then(|d| d.num_prompts).or(self.num_prompts).unwrap_or(128);
        let mut prompt = languages::prompt(slots);
        if let Some(listed) = defaults.and_then(|d| d.prompt_dictionary.as_ref()).filter(|d| !d.is_empty()) {
            prompt.languages = listed.iter().map(|(code, slot)| (code.clone(), *slot)).collect();
            prompt.default = prompt.slot("auto").unwrap_or(0);
        }
        prompt.hidden = dim.saturating_mul(2);
        Some(prompt)
    }
}
