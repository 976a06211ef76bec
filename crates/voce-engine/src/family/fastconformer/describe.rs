//! What a FastConformer recogniser is, by its configuration.

use serde_json::Value;
use voce_models::fastconformer::{Attention, FastConformerConfig, Head};
use voce_runtime::AttentionKind;

use super::Files;
use crate::EngineError;
use crate::describe::{AttentionInfo, Description, PartInfo, Role, count};
use crate::store::{Store, Task};

/// Milliseconds of a mel row.
const ROW_MS: usize = 10;

/// Frames of a common utterance: ten seconds.
const UTTERANCE: usize = 125;

/// Of a model on this machine.
pub(in crate::family) fn of_files(
    description: &mut Description,
    store: &Store,
    reference: &str,
) -> Result<(), EngineError> {
    let files = Files::find(store, reference)?;
    fill(description, &files.config, files.languages);
    Ok(())
}

/// Of random weights.
pub(in crate::family) fn of_shape(description: &mut Description, name: &str) -> Result<(), EngineError> {
    let config = FastConformerConfig::named(name).ok_or_else(|| crate::unknown_shape(Task::Hearing, name))?;
    fill(description, &config, Vec::new());
    Ok(())
}

fn fill(description: &mut Description, config: &FastConformerConfig, known: Vec<String>) {
    let e = &config.encoder;
    let frame_ms = e.subsampling_factor * ROW_MS;
    let chunks: Vec<usize> = match &e.attention {
        Attention::Full => Vec::new(),
        Attention::Chunked { look_aheads, .. } => look_aheads.iter().map(|n| (n + 1) * frame_ms).collect(),
    };
    let languages: Vec<String> = match &config.prompt {
        Some(prompt) => prompt.languages.iter().map(|(code, _)| code.clone()).collect(),
        None => known,
    };
    let head = head_name(config);
    let frame_rate = 1e3 / frame_ms as f64;
    // A step of one stream has a chunk's frames; whole utterances read the weights less often than any figure says.
    let steps = chunks.first().map_or(1.0, |ms| 1e3 / *ms as f64);
    description.parts = parts(config, steps);
    description.frame_rate = Some(frame_rate);
    let (kind, rows, past) = match &e.attention {
        Attention::Full => (AttentionKind::Whole, UTTERANCE, 0),
        Attention::Chunked { left, look_aheads, .. } => {
            (AttentionKind::Chunked, look_aheads.first().map_or(1, |n| n + 1), *left)
        }
    };
    description.attention = vec![AttentionInfo {
        name: "encoder",
        kind,
        heads: e.heads,
        kv_heads: e.heads,
        head_dim: e.dim / e.heads.max(1),
        rows,
        positions: past + rows,
    }];
    let hears = if chunks.is_empty() {
        "whole utterances, long audio in windows".to_owned()
    } else {
        let list: Vec<String> = chunks.iter().map(usize::to_string).collect();
        format!("chunks of {} ms", list.join(", "))
    };
    description.facts = vec![
        (
            "encoder",
            format!("{} layers of {}, {} heads, {} mel bins", e.layers, e.dim, e.heads, config.mel.bins),
        ),
        ("head", format!("{head}, {} tokens", config.vocab)),
        ("hears", hears),
    ];
    if !languages.is_empty() {
        description.facts.push(("languages", languages.join(", ")));
    }
    description.value("layers", e.layers);
    description.value("d_model", e.dim);
    description.value("heads", e.heads);
    description.value("mel", config.mel.bins);
    description.value("head_type", head);
    description.value("vocab", config.vocab);
    description.value("offline", chunks.is_empty());
    description.value("chunks_ms", chunks);
    description.value("beams", true);
    description.value("languages", Value::from(languages));
    description.value("sample_rate", config.mel.sample_rate);
    description.value("frame_ms", frame_ms);
    description.value("frame_rate", frame_rate);
}

/// Parts by the names of tensors; `steps` is how often a second of audio reads the encoder.
fn parts(config: &FastConformerConfig, steps: f64) -> Vec<PartInfo> {
    let [mut encoder, mut search, mut labels, mut beside] = [0; 4];
    for (name, shape) in config.tensors() {
        let part = match name.as_str() {
            n if n.starts_with("encoder.") || n.starts_with("prompt_kernel.") => &mut encoder,
            n if n.starts_with("ctc_decoder.") && config.head != Head::Ctc => &mut beside,
            n if n.starts_with("decoder.") || n.starts_with("joint.pred.") => &mut labels,
            _ => &mut search,
        };
        *part += count(&shape);
    }
    let part = |name, parameters, role, reads_per_second| PartInfo {
        name,
        parameters,
        role,
        reads_per_second,
        resident: true,
    };
    let mut all = vec![
        part("encoder", encoder, Role::Backbone, Some(steps)),
        part("search", search, Role::Linear, Some(steps)),
        part("labels", labels, Role::Linear, None),
        PartInfo { resident: false, ..part("second head", beside, Role::Linear, None) },
    ];
    all.retain(|part| part.parameters > 0);
    all
}

fn head_name(config: &FastConformerConfig) -> &'static str {
    match (&config.head, config.auxiliary_ctc) {
        (Head::Ctc, _) => "ctc",
        (Head::Rnnt(_), false) => "rnnt",
        (Head::Rnnt(_), true) => "rnnt, with a CTC head beside it",
        (Head::Tdt { .. }, false) => "tdt",
        (Head::Tdt { .. }, true) => "tdt, with a CTC head beside it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_what_the_configuration_counts() {
        for name in voce_models::fastconformer::SHAPES {
            let config = FastConformerConfig::named(name).unwrap();
            let sum: u64 = parts(&config, 1.0).iter().map(|part| part.parameters).sum();
            let counted = config.parameters();
            assert!(sum.abs_diff(counted) * 1000 < counted, "{name}: {sum} of {counted}");
        }
    }
}
