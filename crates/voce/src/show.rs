//! `voce show`: what a model is, and what it needs at which precision on this machine.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use voce_engine::store::Store;
use voce_engine::{Description, describe};
use voce_nn::{Formats, Precision};
use voce_runtime::Isa;

use crate::args::ShowArgs;
use crate::console::{Console, bytes, table};
use crate::doctor::convolutions;
use crate::embedded;
use crate::failure::Outcome;

/// Runs the command.
pub(crate) fn run(console: Console, args: ShowArgs) -> Outcome {
    let store = Store::from_env()?;
    embedded::provide(&store, &args.id)?;
    let model = describe(&store, &args.id)?;
    let isa = Isa::from_env()?;
    let built_in = embedded::find(&args.id);
    if console.json {
        return console.json(&values(&args.id, &model, built_in, isa));
    }
    let mut out = String::new();
    let mut fact = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<12} {value}");
    };
    let identity = &model.identity;
    fact("model", args.id.clone());
    let language = language(&model, built_in).unwrap_or_else(|| "language not stated".to_owned());
    let task = identity.task.map_or("a part of other models", |task| task.name());
    fact("family", format!("{} ({}), {task}, {language}", identity.family, identity.title));
    match &model.located {
        Some(located) => fact("files", located.root.display().to_string()),
        None => fact("files", format!("not on this machine: voce pull {}", args.id)),
    }
    let parts: Vec<String> =
        model.parts.iter().map(|part| format!("{} {}", part.name, million(part.parameters))).collect();
    let parts = if parts.len() > 1 { format!(": {}", parts.join(", ")) } else { String::new() };
    fact("parameters", million(model.parameters()) + &parts);
    for (name, value) in &model.facts {
        fact(name, value.clone());
    }
    if let Some(model) = built_in {
        fact("quality", model.quality.into());
        fact("trained on", model.data.into());
        fact("licence", format!("{}; comes with the binary", model.licence));
    }
    let voices = voices(&model);
    if !voices.is_empty() {
        fact("voices", voices.join(", "));
    }
    if identity.runs() && !model.parts.is_empty() {
        out = format!("{out}\n{}", precision_table(&model, isa));
    }
    console.result(&out)
}

/// Voices that are here.
fn voices(model: &Description) -> Vec<&str> {
    model.located.iter().flat_map(|located| located.voices.keys().map(String::as_str)).collect()
}

/// What a model speaks or hears, where it is stated.
fn language(model: &Description, built_in: Option<&embedded::Embedded>) -> Option<String> {
    let stated = built_in.map(|model| model.language.to_owned());
    stated.or_else(|| (!model.languages.is_empty()).then(|| model.languages.join(", ")))
}

/// The object.
fn values(id: &str, model: &Description, built_in: Option<&embedded::Embedded>, isa: Isa) -> Value {
    let parts: Map<String, Value> =
        model.parts.iter().map(|part| (part.name.replace(' ', "_"), part.parameters.into())).collect();
    let precision = |p: Precision| {
        let f = Formats::new(p, isa);
        let value = json!({
            "bytes": model.resident_bytes(&f), "frame_bytes": model.frame_bytes(&f),
            "backbone": f.backbone.name(), "linear": f.linear.name(), "conv": f.conv.name(),
            "codec": f.codec.format.name(),
        });
        (p.name().to_owned(), value)
    };
    let precisions: Map<String, Value> = Precision::ON_CPU.into_iter().map(precision).collect();
    let (identity, located) = (&model.identity, model.located.as_ref());
    let mut all = json!({
        "id": id, "installed": located.is_some(), "family": identity.family.name(), "title": identity.title,
        "task": identity.task.map(|task| task.name()), "runs": identity.runs(),
        "language": language(model, built_in), "languages": model.languages,
        "parameters": model.parameters(), "parts": parts,
        "path": located.map(|l| &l.root), "weights": located.map(|l| &l.weights), "voices": voices(model),
        "isa": isa.name(), "precisions": precisions,
        "embedded": built_in.is_some(), "licence": built_in.map(|m| m.licence), "data": built_in.map(|m| m.data),
        "quality": built_in.map(|m| m.quality),
    });
    if let Value::Object(all) = &mut all {
        all.extend(model.values.clone());
    }
    all
}

/// What each precision keeps in memory and reads per frame, and in which formats, on this CPU.
fn precision_table(model: &Description, isa: Isa) -> String {
    let mut rows = vec![
        ["PRECISION", "WEIGHTS", "PER FRAME", "BACKBONE", "LINEAR", "CONV", "CPU"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for p in Precision::ON_CPU {
        let formats = Formats::new(p, isa);
        rows.push(vec![
            if p == Precision::auto(isa).0 { format!("{p} (auto)") } else { p.to_string() },
            bytes(model.resident_bytes(&formats)),
            bytes(model.frame_bytes(&formats)),
            formats.backbone.name().into(),
            formats.linear.name().into(),
            convolutions(&formats),
            isa.to_string(),
        ]);
    }
    table(&rows, &[1, 2])
}

fn million(n: u64) -> String {
    format!("{:.1}M", n as f64 / 1e6)
}
