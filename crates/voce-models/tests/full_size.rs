//! Models of the published sizes with random weights against the published packages, step by step. Run by hand, with folders
//! that `full_size.py` of reference/qwen and reference/kyutai make:
//!
//! ```text
//! VOCE_FULL_SIZE=DIR:DIR VOCE_FULL_SIZE_OUT=run.jsonl VOCE_FULL_SIZE_PRECISION=f32,int8 \
//!     cargo test --profile kit -p voce-models --test full_size -- --ignored
//! ```
//!
//! Every step goes on from the package's own tokens. A line for each part says how far its values and choices are off.

mod backend;
mod full_size_models;
mod kyutai;
mod kyutai_mimi;
mod meter;
mod qwen;
mod qwen_codec;

use std::io::Write as _;
use std::path::Path;

use full_size_models::{codec, language_model, mimi, speech, talker};
use meter::Meter;
use serde_json::{Value, json};
use voce_nn::Precision;
use voce_runtime::Isa;

/// f32 sums in another order than the package's, relative to the largest value of a row.
const TOLERANCE: f32 = 1e-3;

/// One part of a model, compared.
type Part = (&'static str, Meter);

#[test]
#[ignore = "needs folders by reference/*/full_size.py, named in VOCE_FULL_SIZE"]
fn full_size_models_are_the_packages() {
    let folders = std::env::var("VOCE_FULL_SIZE").expect("folders in VOCE_FULL_SIZE, with ':' between them");
    let precisions = std::env::var("VOCE_FULL_SIZE_PRECISION").unwrap_or_else(|_| "f32".into());
    for folder in folders.split(':') {
        for name in precisions.split(',') {
            let precision: Precision = name.parse().unwrap();
            let started = std::time::Instant::now();
            let (model, parts) = compare(folder, precision);
            for (part, meter) in parts {
                assert!(meter.values > 0, "{folder}: nothing of '{part}' was compared");
                keep(&json!({
                    "model": model, "part": part, "precision": name, "isa": Isa::from_env().unwrap().to_string(),
                    "values": meter.values, "largest_difference": meter.worst, "db": (meter.db() * 10.0).round() / 10.0,
                    "choices": meter.of, "same": meter.same, "widest_margin_missed": meter.missed,
                    "seconds": started.elapsed().as_secs(),
                }));
                if precision == Precision::F32 {
                    assert!(meter.worst < TOLERANCE, "{folder}, {part}: {meter:?}");
                    assert!(meter.missed < 2.0 * TOLERANCE, "{folder}, {part}: {meter:?}");
                }
            }
        }
    }
}

fn compare(folder: &str, precision: Precision) -> (String, Vec<Part>) {
    let read = |name: &str| -> Option<Value> {
        let text = std::fs::read_to_string(Path::new(folder).join(name)).ok()?;
        Some(serde_json::from_str(&text).unwrap())
    };
    let Some(config) = read("config.json") else { return ("mimi".into(), mimi(folder, precision)) };
    match config["model_type"].as_str().unwrap() {
        "qwen3_tts" => {
            let name = format!("{} {}", config["tts_model_type"], config["tts_model_size"]).replace('"', "");
            let mut parts = talker(folder, precision);
            parts.extend(codec(folder, precision, config["tts_model_type"] == "base"));
            (name, parts)
        }
        "stt" => (format!("stt of {} layers", config["num_layers"]), language_model(folder, precision)),
        "tts" => (format!("tts of {} layers", config["num_layers"]), speech(folder, precision)),
        other => panic!("{folder}: {other}"),
    }
}

/// Adds a line to the run.
fn keep(line: &Value) {
    let path = std::env::var("VOCE_FULL_SIZE_OUT").expect("a file in VOCE_FULL_SIZE_OUT");
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    writeln!(file.unwrap(), "{line}").unwrap();
}
