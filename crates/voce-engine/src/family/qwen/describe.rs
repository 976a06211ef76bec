//! What a Qwen3-TTS model is: parts by the names of its tensors, or by its published shape.

use voce_models::qwen::{QwenConfig, Variant, named};
use voce_nn::weights::SafetensorsFile;
use voce_runtime::AttentionKind;

use super::Files;
use crate::EngineError;
use crate::describe::{AttentionInfo, Description, PartInfo, Role, count};
use crate::store::{Entry, Store};

/// Frames that the codec decodes together, reading its weights once.
const CODEC_GROUP: f64 = 4.0;
/// Positions of a common passage: a prompt and twenty seconds of frames.
const POSITIONS: usize = 300;
/// Frames in a second of the published codec.
const FRAME_RATE: f64 = 12.5;
/// Parameters of the published codec's decoder.
const CODEC_PARAMETERS: u64 = 114_323_137;

/// Parameters by part.
#[derive(Default)]
struct Parameters {
    talker: u64,
    predictor: u64,
    text: u64,
    codec: u64,
    voice_encoder: u64,
}

impl Parameters {
    /// The part of a tensor.
    fn part(&mut self, tensor: &str) -> &mut u64 {
        if tensor.starts_with("talker.code_predictor.") {
            &mut self.predictor
        } else if tensor.contains(".text_") {
            &mut self.text
        } else if tensor.starts_with("talker.") {
            &mut self.talker
        } else if tensor.starts_with("decoder.") {
            &mut self.codec
        } else {
            &mut self.voice_encoder
        }
    }

    /// Of a configuration with the published codec.
    fn of_shape(config: &QwenConfig) -> Self {
        let frames = config.frames();
        let layers = |c: &voce_nn::DecoderConfig| {
            let heads = (2 * c.heads + 2 * c.kv_heads) * c.head_dim;
            (c.layers * (c.hidden * (heads + 3 * c.ffn) + 2 * c.hidden + 2 * c.head_dim) + c.hidden) as u64
        };
        let (hidden, text) = (frames.decoder.hidden, config.text());
        let predictor = frames.predictor.as_ref().map_or(0, |p| {
            let tables = p.tokens * p.vocab * (hidden + p.decoder.hidden);
            let wider = if hidden == p.decoder.hidden { 0 } else { p.decoder.hidden * (hidden + 1) };
            layers(&p.decoder) + (tables + wider) as u64
        });
        let projection = text.width * (text.width + 1) + text.hidden * (text.width + 1);
        Self {
            talker: layers(&frames.decoder) + 2 * (frames.vocab * hidden) as u64,
            predictor,
            text: (text.vocab * text.width + projection) as u64,
            codec: CODEC_PARAMETERS,
            voice_encoder: 0,
        }
    }

    fn parts(&self, frame_rate: f64, codes: usize) -> Vec<PartInfo> {
        let part = |name, parameters, role, reads_per_second| PartInfo {
            name,
            parameters,
            role,
            reads_per_second,
            resident: true,
        };
        let encoder = part("voice encoder", self.voice_encoder, Role::Conv, None);
        vec![
            part("talker", self.talker, Role::Backbone, Some(frame_rate)),
            part("predictor", self.predictor, Role::Backbone, Some(frame_rate * codes as f64)),
            part("codec", self.codec, Role::Conv, Some(frame_rate / CODEC_GROUP)),
            part("text", self.text, Role::Embedding, None),
            PartInfo { resident: false, ..encoder },
        ]
    }
}

/// Of a model on this machine.
pub(in crate::family) fn of_files(
    description: &mut Description,
    store: &Store,
    reference: &str,
) -> Result<(), EngineError> {
    let files = Files::find(store, reference)?;
    let mut parameters = Parameters::default();
    for path in description.located.iter().flat_map(|located| &located.weights) {
        for (name, shape) in SafetensorsFile::open(path)?.tensors() {
            *parameters.part(name) += count(shape);
        }
    }
    fill(description, &files.config, &parameters, files.codec.frame_rate());
    let rate = files.codec.output_sample_rate;
    let text = format!("{rate} Hz, {} frames a second", files.codec.frame_rate());
    description.facts.push(("audio", text));
    description.value("sample_rate", rate);
    Ok(())
}

/// Of a model of the catalogue: what its name says.
pub(in crate::family) fn of_entry(description: &mut Description, entry: &Entry) {
    if let Some(voices) = entry.voices {
        description.facts.push(("speakers", voices.names.join(", ")));
    }
    description.facts.push(("audio", format!("24000 Hz, {FRAME_RATE} frames a second")));
}

/// Of random weights of a published size.
pub(in crate::family) fn of_shape(description: &mut Description, name: &str) {
    let Some(config) = named(name) else { return };
    fill(description, &config, &Parameters::of_shape(&config), FRAME_RATE);
}

fn fill(description: &mut Description, config: &QwenConfig, parameters: &Parameters, frame_rate: f64) {
    let frames = config.frames();
    let (t, codes) = (&frames.decoder, frames.drawn() - 1);
    description.parts = parameters.parts(frame_rate, codes);
    description.frame_rate = Some(frame_rate);
    let attention = |name, c: &voce_nn::DecoderConfig, positions| AttentionInfo {
        name,
        kind: AttentionKind::Causal,
        heads: c.heads,
        kv_heads: c.kv_heads,
        head_dim: c.head_dim,
        rows: 1,
        positions,
    };
    description.attention = vec![attention("talker", t, POSITIONS)];
    let layers = |c: &voce_nn::DecoderConfig| {
        format!("{} layers of {}, {} heads on {}", c.layers, c.hidden, c.heads, c.kv_heads)
    };
    description.facts.push(("talker", layers(t)));
    if let Some(p) = &frames.predictor {
        description.attention.push(attention("predictor", &p.decoder, frames.drawn()));
        description.facts.push(("predictor", format!("{}, {codes} codes a frame", layers(&p.decoder))));
    }
    let says = match config.variant() {
        Variant::Base => "clones voices (Base)",
        Variant::CustomVoice => "has speakers (CustomVoice)",
        Variant::VoiceDesign => "speaks as an instruction says (VoiceDesign)",
    };
    description.facts.push(("variant", says.to_owned()));
    let speakers = config.speakers();
    if !speakers.is_empty() {
        description.facts.push(("speakers", speakers.join(", ")));
    }
    description.languages = config.languages();
    description.value("speakers", speakers);
    description.value("instructions", config.takes_instructions());
    description.value("d_model", t.hidden);
    description.value("layers", t.layers);
    description.value("heads", t.heads);
    description.value("kv_heads", t.kv_heads);
    description.value("codes", frames.drawn());
    description.value("tokens", config.text().vocab);
    description.value("frame_rate", frame_rate);
}
