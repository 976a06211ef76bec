//! `voce show` of a recogniser.

use std::fmt::Write as _;

use serde_json::json;
use voce_engine::listener;
use voce_engine::store::{Located, Store};
use voce_models::fastconformer::{Attention, FastConformerConfig, Head};
use voce_nn::{Formats, Precision};
use voce_runtime::Isa;

use super::{card, million};
use crate::console::{Console, bytes, table};
use crate::embedded;
use crate::failure::Outcome;

/// Milliseconds of a mel row.
const ROW_MS: usize = 10;

/// Prints what a recogniser is.
pub(super) fn run(console: Console, store: &Store, id: &str, located: &Located, isa: Isa) -> Outcome {
    let config = listener::describe(store, id)?;
    let (e, parameters) = (&config.encoder, config.parameters());
    let frame_ms = e.subsampling_factor * ROW_MS;
    let chunks: Vec<usize> = match &e.attention {
        Attention::Full => Vec::new(),
        Attention::Chunked { look_aheads, .. } => look_aheads.iter().map(|n| (n + 1) * frame_ms).collect(),
    };
    let built_in = embedded::find(id);
    let languages: Vec<&str> =
        config.prompt.iter().flat_map(|p| p.languages.iter().map(|(code, _)| code.as_str())).collect();
    let head = head_name(&config);
    if console.json {
        let precisions: serde_json::Map<String, serde_json::Value> = Precision::ON_CPU
            .into_iter()
            .map(|p| (p.name().to_owned(), json!({ "bytes": weight_bytes(parameters, p, isa) })))
            .collect();
        return console.json(&json!({
            "id": id, "installed": true, "family": "fastconformer", "parameters": parameters, "path": located.root,
            "weights": located.weights, "layers": e.layers, "d_model": e.dim, "heads": e.heads, "mel": config.mel.bins,
            "head_type": head, "vocab": config.vocab, "chunks_ms": chunks, "offline": chunks.is_empty(),
            "languages": languages, "sample_rate": config.mel.sample_rate, "frame_ms": frame_ms, "isa": isa.name(),
            "precisions": precisions, "embedded": built_in.is_some(),
            "language": built_in.map(|m| m.language), "licence": built_in.map(|m| m.licence),
            "data": built_in.map(|m| m.data), "quality": built_in.map(|m| m.quality),
        }));
    }
    let mut out = String::new();
    let mut fact = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<12} {value}");
    };
    fact("model", id.to_owned());
    let language = built_in.map_or_else(String::new, |m| format!(", {}", m.language));
    fact("family", format!("fastconformer{language}"));
    fact("files", located.root.display().to_string());
    fact("parameters", million(parameters));
    fact(
        "encoder",
        format!("{} layers of {}, {} heads, {} mel bins", e.layers, e.dim, e.heads, config.mel.bins),
    );
    fact("head", format!("{head}, {} tokens", config.vocab));
    let hears = if chunks.is_empty() {
        "whole utterances, long audio in windows".into()
    } else {
        let list: Vec<String> = chunks.iter().map(usize::to_string).collect();
        format!("chunks of {} ms", list.join(", "))
    };
    fact("hears", hears);
    if !languages.is_empty() {
        fact("languages", languages.join(", "));
    }
    card(built_in, &mut fact);
    let mut rows = vec![["PRECISION", "WEIGHTS", "CPU"].map(str::to_owned).to_vec()];
    for p in Precision::ON_CPU {
        let name = if p == Precision::Int8 { format!("{p} (auto)") } else { p.to_string() };
        rows.push(vec![name, bytes(weight_bytes(parameters, p, isa)), isa.to_string()]);
    }
    console.result(&format!("{out}\n{}", table(&rows, &[1])))
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

/// About what the weights take in memory: nearly all of them are in the layers.
fn weight_bytes(parameters: u64, precision: Precision, isa: Isa) -> u64 {
    (parameters as f64 * Formats::new(precision, isa).backbone.bits() / 8.0) as u64
}
