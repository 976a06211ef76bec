//! `voce show`: what a model is, and what it needs at which precision on this machine.

mod recogniser;

use std::fmt::Write as _;

use serde_json::json;
use voce_engine::speaker::describe;
use voce_engine::store::{Family, Located, Reference, Store, StoreError};
use voce_models::pocket::PocketConfig;
use voce_nn::{Formats, Precision};
use voce_runtime::Isa;

use crate::args::ShowArgs;
use crate::console::{Console, bytes, table};
use crate::embedded;
use crate::failure::{Failure, Outcome};
use crate::parameters::Parameters;

/// Runs the command.
pub(crate) fn run(console: Console, args: ShowArgs) -> Outcome {
    let store = Store::from_env()?;
    embedded::provide(&store, &args.id)?;
    let reference = Reference::parse(&args.id)?;
    let isa = Isa::from_env()?;
    let (located, entry) = match (store.locate(&reference), &reference) {
        (Ok(located), _) => {
            let entry = located.entry;
            (Some(located), entry)
        }
        (Err(StoreError::NotPulled { .. }), Reference::Catalogue { entry, .. }) => (None, Some(*entry)),
        (Err(error), _) => return Err(error.into()),
    };
    if let Some(located) = located.as_ref().filter(|l| l.family == Some(Family::FastConformer)) {
        return recogniser::run(console, &store, &args.id, located, isa);
    }
    let (config, parameters) = match (&located, entry) {
        (Some(located), _) => (describe(&store, &args.id)?, Parameters::of_files(&weights(located))?),
        (None, Some(entry)) => {
            let config =
                PocketConfig::from_yaml(&entry.config_yaml()).map_err(|e| Failure::failed(e.to_string()))?;
            (config, Parameters::of_shape(&entry.shape))
        }
        (None, None) => return Err(Failure::failed(format!("{} is not on this machine", args.id))),
    };
    let built_in = embedded::find(&args.id);
    let language = entry.map(|e| e.language).or(built_in.map(|m| m.language));
    let voices: Vec<&String> = located.iter().flat_map(|l| l.voices.keys()).collect();
    let lm = &config.flow_lm;
    let t = &lm.transformer;
    let kv = t.num_kv_heads.unwrap_or(t.num_heads);
    let head = format!("{:?}", lm.flow.kind).to_lowercase();
    if console.json {
        let precisions: serde_json::Map<String, serde_json::Value> = Precision::ON_CPU
            .into_iter()
            .map(|p| {
                let formats = Formats::new(p, isa);
                let value = json!({
                    "bytes": parameters.resident_bytes(p, isa), "frame_bytes": parameters.frame_bytes(p, isa),
                    "backbone": formats.backbone.name(), "linear": formats.linear.name(), "conv": formats.conv.name(),
                });
                (p.name().to_owned(), value)
            })
            .collect();
        return console.json(&json!({
            "id": args.id, "installed": located.is_some(), "family": "pocket", "language": language,
            "parameters": parameters.total(), "parts": parameters,
            "path": located.as_ref().map(|l| &l.root), "weights": located.as_ref().map(|l| &l.weights),
            "voices": voices, "d_model": t.d_model, "layers": t.num_layers, "heads": t.num_heads, "kv_heads": kv,
            "head_type": head, "tokens": lm.lookup_table.n_bins, "sample_rate": config.mimi.sample_rate,
            "frame_rate": config.mimi.frame_rate, "temperature": config.default_temperature,
            "eos_threshold": config.default_eos_threshold, "isa": isa.name(), "precisions": precisions,
            "embedded": built_in.is_some(), "licence": built_in.map(|m| m.licence), "data": built_in.map(|m| m.data),
            "quality": built_in.map(|m| m.quality),
        }));
    }
    let mut out = String::new();
    let mut fact = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<12} {value}");
    };
    fact("model", args.id.clone());
    fact("family", format!("pocket, {}", language.unwrap_or("language not stated")));
    match &located {
        Some(located) => fact("files", located.root.display().to_string()),
        None => fact("files", format!("not on this machine: voce pull {}", args.id)),
    }
    let p = &parameters;
    fact(
        "parameters",
        format!(
            "{}: backbone {}, head {}, text {}, codec {}, voice encoder {}",
            million(p.total()),
            million(p.backbone),
            million(p.head),
            million(p.embedding),
            million(p.decoder),
            million(p.encoder)
        ),
    );
    fact("backbone", format!("{} layers of {}, {} heads on {kv}", t.num_layers, t.d_model, t.num_heads));
    fact("head", format!("{head}, {} blocks of {}", lm.flow.depth, lm.flow.dim));
    fact(
        "text",
        format!("{} tokens, {:?}", lm.lookup_table.n_bins, lm.lookup_table.tokenizer).to_lowercase(),
    );
    fact("audio", format!("{} Hz, {} frames a second", config.mimi.sample_rate, config.mimi.frame_rate));
    fact(
        "defaults",
        format!("temperature {}, eos {}", config.default_temperature, config.default_eos_threshold),
    );
    card(built_in, &mut fact);
    if !voices.is_empty() {
        fact("voices", voices.iter().map(|v| v.as_str()).collect::<Vec<_>>().join(", "));
    }
    console.result(&format!("{out}\n{}", precision_table(p, isa)))
}

/// What the card of a model in the binary says.
fn card(model: Option<&embedded::Embedded>, fact: &mut impl FnMut(&str, String)) {
    if let Some(model) = model {
        fact("quality", model.quality.into());
        fact("trained on", model.data.into());
        fact("licence", format!("{}; comes with the binary", model.licence));
    }
}

/// What each precision keeps in memory and reads per frame, and in which formats, on this CPU.
fn precision_table(parameters: &Parameters, isa: Isa) -> String {
    let mut rows = vec![
        ["PRECISION", "WEIGHTS", "PER FRAME", "BACKBONE", "LINEAR", "CONV", "CPU"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for p in Precision::ON_CPU {
        let formats = Formats::new(p, isa);
        rows.push(vec![
            if p == Precision::Int8 { format!("{p} (auto)") } else { p.to_string() },
            bytes(parameters.resident_bytes(p, isa)),
            bytes(parameters.frame_bytes(p, isa)),
            formats.backbone.name().into(),
            formats.linear.name().into(),
            formats.conv.name().into(),
            isa.to_string(),
        ]);
    }
    table(&rows, &[1, 2])
}

/// The weight files that the configuration would open; copies at other precisions beside them are left out.
fn weights(located: &Located) -> Vec<std::path::PathBuf> {
    let whole = located.weights.iter().find(|p| p.ends_with("model.safetensors"));
    whole.map_or_else(|| located.weights.clone(), |p| vec![p.clone()])
}

fn million(n: u64) -> String {
    format!("{:.1}M", n as f64 / 1e6)
}
