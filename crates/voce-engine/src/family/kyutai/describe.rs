//! What a model of Kyutai's is: parts by the names of its tensors, or by its published shape.

use serde_json::Value;
use voce_models::kyutai::{KyutaiConfig, dialogue_shape, speech_shape, stt};
use voce_nn::weights::SafetensorsFile;
use voce_runtime::AttentionKind;

use super::Files;
use crate::EngineError;
use crate::describe::{AttentionInfo, Description, PartInfo, Role, count};
use crate::store::catalogue::Shape;
use crate::store::{Entry, Store, Task};

/// Frames in a second of the published codec.
const FRAME_RATE: f64 = 12.5;
/// Parameters of the published codec's encoder with its codebooks.
const ENCODER_PARAMETERS: u64 = 56_200_000;

fn part(name: &'static str, parameters: u64, role: Role, reads: Option<f64>) -> PartInfo {
    PartInfo { name, parameters, role, reads_per_second: reads, resident: true }
}

/// Of a model on this machine.
pub(in crate::family) fn of_files(
    description: &mut Description,
    store: &Store,
    reference: &str,
) -> Result<(), EngineError> {
    let files = Files::find(store, reference)?;
    let (mut layers, mut tables, mut depth, mut encoder, mut decoder) = (0, 0, 0, 0, 0);
    for (name, shape) in &voce_nn::weights::shapes(&files.lm)? {
        let starts = |marks: &[&str]| marks.iter().any(|mark| name.starts_with(mark));
        let of = match () {
            () if starts(&["emb.", "text_emb.", "depformer_emb.", "depformer_text_emb."]) => &mut tables,
            () if starts(&["depformer", "linears."]) => &mut depth,
            () => &mut layers,
        };
        *of += count(shape);
    }
    for (name, shape) in SafetensorsFile::open(&files.mimi.path)?.tensors() {
        let decodes = name.starts_with("decoder") || name.starts_with("upsample");
        *(if decodes { &mut decoder } else { &mut encoder }) += count(shape);
    }
    let (_, mimi) = files.mimi.open()?;
    description.parts = vec![
        part("backbone", layers, Role::Backbone, Some(mimi.frame_rate)),
        part("codec", encoder, Role::Linear, Some(mimi.frame_rate)),
        part("embeddings", tables, Role::Embedding, None),
    ];
    if depth > 0 {
        description.parts.push(part(
            "depth",
            depth,
            Role::Backbone,
            Some(depth_reads(&files.config, mimi.frame_rate)),
        ));
    }
    if description.identity.task == Some(Task::Hearing) {
        description.value("chunks_ms", vec![(1e3 / mimi.frame_rate) as usize]);
        description.value("beams", false);
    } else {
        description.parts.push(part("decoder", decoder, Role::Conv, Some(mimi.frame_rate)));
    }
    fill(description, &files.config, mimi.frame_rate);
    if !files.languages.is_empty() {
        description.facts.push(("languages", files.languages.join(", ")));
        description.value("languages", Value::from(files.languages));
    }
    let rate = mimi.sample_rate;
    description.facts.push(("audio", format!("{rate} Hz, {} frames a second", mimi.frame_rate)));
    description.value("sample_rate", rate);
    Ok(())
}

/// How often the depth transformer's weights are read in a second: steps share some of them.
fn depth_reads(config: &KyutaiConfig, frame_rate: f64) -> f64 {
    frame_rate * config.dep_q as f64 / config.sets().max(1) as f64
}

/// Of a model of the catalogue that is not here.
pub(in crate::family) fn of_entry(description: &mut Description, entry: &Entry) {
    if let Some(voices) = entry.voices {
        description
            .facts
            .push(("voices", format!("{} and others of kyutai/tts-voices", voices.names.join(", "))));
    }
    description.facts.push(("audio", format!("24000 Hz, {FRAME_RATE} frames a second")));
}

/// Of random weights of a published size.
pub(in crate::family) fn of_shape(description: &mut Description, shape: &Shape) {
    let made = || speech_shape(shape.name).or_else(|| dialogue_shape(shape.name));
    let Some((config, _)) = stt::shape(shape.name).or_else(made) else { return };
    let d = config.backbone();
    let layer = 4 * d.hidden * d.hidden + 3 * d.hidden * d.ffn + 2 * d.hidden;
    let heads = config.text_card + config.extra_heads_num_heads * config.extra_heads_dim + 1;
    let tables = (config.card + 1) * config.n_q + config.text_card + 1;
    description.parts = vec![
        part("backbone", (d.layers * layer + heads * d.hidden) as u64, Role::Backbone, Some(FRAME_RATE)),
        part("codec", ENCODER_PARAMETERS, Role::Linear, Some(FRAME_RATE)),
        part("embeddings", (tables * d.hidden) as u64, Role::Embedding, None),
    ];
    if config.dep_q > 0 {
        let z = config.depth();
        let set = z.layers * (4 * z.hidden * z.hidden + 3 * z.hidden * z.ffn) + d.hidden * z.hidden;
        let depth = config.sets() * set + config.dep_q * config.card * z.hidden;
        description.parts.push(part(
            "depth",
            depth as u64,
            Role::Backbone,
            Some(depth_reads(&config, FRAME_RATE)),
        ));
    }
    fill(description, &config, FRAME_RATE);
}

fn fill(description: &mut Description, config: &KyutaiConfig, frame_rate: f64) {
    let d = config.backbone();
    description.frame_rate = Some(frame_rate);
    description.attention = vec![AttentionInfo {
        name: "backbone",
        kind: AttentionKind::Causal,
        heads: d.heads,
        kv_heads: d.kv_heads,
        head_dim: d.head_dim,
        rows: 1,
        positions: config.context,
    }];
    let text = format!("{} layers of {}, {} heads", d.layers, d.hidden, d.heads);
    description.facts.push(("backbone", text));
    description.facts.push(("memory", format!("{:.0} s of audio", config.context as f64 / frame_rate)));
    description.facts.push(("codes", format!("{} codebooks a frame", config.n_q)));
    if config.extra_heads_num_heads > 0 {
        description.facts.push(("pauses", format!("{} heads foresee them", config.extra_heads_num_heads)));
    }
    if let Some(stt) = config.stt_config {
        description.facts.push(("delay", format!("{} s", stt.audio_delay_seconds)));
        description.value("delay_seconds", stt.audio_delay_seconds);
    }
    description.value("d_model", d.hidden);
    description.value("layers", d.layers);
    description.value("heads", d.heads);
    description.value("kv_heads", d.kv_heads);
    description.value("codes", config.n_q);
    description.value("tokens", config.text_out());
    description.value("frame_rate", frame_rate);
}
