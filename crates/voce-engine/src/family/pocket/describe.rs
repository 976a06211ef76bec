//! What a Pocket TTS model is: parts by its published shape, or by the names of its tensors.

use std::path::PathBuf;

use voce_models::pocket::PocketConfig;
use voce_nn::weights::SafetensorsFile;
use voce_runtime::AttentionKind;

use super::Files;
use crate::EngineError;
use crate::describe::{AttentionInfo, Description, PartInfo, Role, count};
use crate::store::catalogue::Extra;
use crate::store::catalogue::pocket::Pocket;
use crate::store::{Entry, Located, Store};

/// Frames that the codec decodes together, reading its weights once.
const CODEC_GROUP: f64 = voce_models::pocket::CODEC_GROUP as f64;

/// Positions of a common passage: a voice, its text and ten seconds of frames.
const POSITIONS: usize = 300;

/// Parameters by part.
#[derive(Default)]
struct Parameters {
    backbone: u64,
    head: u64,
    text: u64,
    codec: u64,
    voice_encoder: u64,
}

impl Parameters {
    fn of_entry(published: &Pocket) -> Self {
        let shape = &published.shape;
        let (backbone, text) = (shape.backbone_parameters(), shape.embedding_parameters());
        Self {
            backbone,
            text,
            head: shape.flow_parameters() - backbone - text,
            codec: shape.decoder_parameters(),
            voice_encoder: shape.encoder_parameters(),
        }
    }

    fn of_files(paths: &[PathBuf]) -> Result<Self, EngineError> {
        let mut all = Self::default();
        for path in paths {
            for (name, shape) in SafetensorsFile::open(path)?.tensors() {
                *all.part(name) += count(shape);
            }
        }
        Ok(all)
    }

    fn part(&mut self, tensor: &str) -> &mut u64 {
        let name = tensor.strip_prefix("flow_lm.").unwrap_or(tensor);
        let name = name.strip_prefix("mimi.").unwrap_or(name);
        match name.split('.').next().unwrap_or_default() {
            "transformer" => &mut self.backbone,
            "conditioner" => &mut self.text,
            "encoder" | "encoder_transformer" | "downsample" => &mut self.voice_encoder,
            "decoder" | "decoder_transformer" | "upsample" | "quantizer" => &mut self.codec,
            _ => &mut self.head,
        }
    }

    fn parts(&self, frame_rate: f64) -> Vec<PartInfo> {
        let part = |name, parameters, role, reads_per_second| PartInfo {
            name,
            parameters,
            role,
            reads_per_second,
            resident: true,
        };
        let codec = part("codec", self.codec, Role::Codec, Some(frame_rate / CODEC_GROUP));
        vec![
            part("backbone", self.backbone, Role::Backbone, Some(frame_rate)),
            part("head", self.head, Role::Linear, Some(frame_rate)),
            codec,
            part("text", self.text, Role::Embedding, None),
            PartInfo {
                name: "voice encoder",
                parameters: self.voice_encoder,
                reads_per_second: None,
                resident: false,
                ..codec
            },
        ]
    }
}

/// Of a model on this machine.
pub(in crate::family) fn of_files(
    description: &mut Description,
    store: &Store,
    reference: &str,
) -> Result<(), EngineError> {
    let config = Files::find(store, reference)?.config;
    let weights = description.located.as_ref().map(weights).unwrap_or_default();
    fill(description, &config, &Parameters::of_files(&weights)?);
    Ok(())
}

/// Of a model of the catalogue.
pub(in crate::family) fn of_entry(description: &mut Description, entry: &Entry) -> Result<(), EngineError> {
    let Extra::Pocket(published) = entry.extra else { return Ok(()) };
    let bad = |source| EngineError::Config { path: entry.alias.into(), source };
    let config = PocketConfig::from_yaml(&entry.config_text().unwrap_or_default()).map_err(bad)?;
    fill(description, &config, &Parameters::of_entry(published));
    Ok(())
}

fn fill(description: &mut Description, config: &PocketConfig, parameters: &Parameters) {
    let (lm, codec) = (&config.flow_lm, &config.mimi);
    let t = &lm.transformer;
    let kv_heads = t.num_kv_heads.unwrap_or(t.num_heads);
    let head = format!("{:?}", lm.flow.kind).to_lowercase();
    let (temperature, eos) = (config.default_temperature, config.default_eos_threshold);
    let text = format!("{} tokens, {:?}", lm.lookup_table.n_bins, lm.lookup_table.tokenizer).to_lowercase();
    description.parts = parameters.parts(codec.frame_rate);
    description.frame_rate = Some(codec.frame_rate);
    let ct = codec.decoder_transformer();
    description.attention = vec![
        AttentionInfo {
            name: "backbone",
            kind: AttentionKind::Causal,
            heads: t.num_heads,
            kv_heads,
            head_dim: t.attn_dim.unwrap_or(t.d_model) / t.num_heads.max(1),
            rows: 1,
            positions: POSITIONS,
        },
        AttentionInfo {
            name: "codec",
            kind: AttentionKind::Causal,
            heads: ct.num_heads,
            kv_heads: ct.num_heads,
            head_dim: ct.d_model / ct.num_heads.max(1),
            rows: codec.positions_per_frame(),
            positions: ct.context,
        },
    ];
    description.facts = vec![
        (
            "backbone",
            format!("{} layers of {}, {} heads on {kv_heads}", t.num_layers, t.d_model, t.num_heads),
        ),
        ("head", format!("{head}, {} blocks of {}", lm.flow.depth, lm.flow.dim)),
        ("text", text),
        ("audio", format!("{} Hz, {} frames a second", codec.sample_rate, codec.frame_rate)),
        ("defaults", format!("temperature {temperature}, eos {eos}")),
    ];
    description.value("d_model", t.d_model);
    description.value("layers", t.num_layers);
    description.value("heads", t.num_heads);
    description.value("kv_heads", kv_heads);
    description.value("head_type", head);
    description.value("tokens", lm.lookup_table.n_bins);
    description.value("sample_rate", codec.sample_rate);
    description.value("frame_rate", codec.frame_rate);
    description.value("temperature", temperature);
    description.value("eos_threshold", eos);
}

/// The weight files that the configuration would open; copies at other precisions beside them are left out.
fn weights(located: &Located) -> Vec<PathBuf> {
    let whole = located.weights.iter().find(|path| path.ends_with("model.safetensors"));
    whole.map_or_else(|| located.weights.clone(), |path| vec![path.clone()])
}
