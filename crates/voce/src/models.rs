//! `voce list` and `voce rm`: the models of this machine and of the catalogue.

use serde_json::{Value, json};
use voce_engine::store::{Family, Installed, RECOGNISERS, Reference, Store, catalogue};

use crate::args::{ListArgs, RmArgs};
use crate::console::{Console, bytes, table};
use crate::embedded;
use crate::failure::{Failure, Outcome};

/// Lists models.
pub(crate) fn list(console: Console, args: ListArgs) -> Outcome {
    let store = Store::from_env()?;
    let installed = store.list();
    let mut rows = vec![["ID", "FAMILY", "SIZE", "STATE"].map(str::to_owned).to_vec()];
    let mut values: Vec<Value> = Vec::new();
    for model in embedded::all() {
        rows.push(vec![
            model.name.into(),
            model.family.name().into(),
            bytes(model.bytes()),
            format!("built in: {}, {}", model.language_name(), model.licence),
        ]);
        values.push(json!({
            "id": model.name, "family": model.family.name(), "bytes": model.bytes(), "language": model.language,
            "licence": model.licence, "data": model.data, "quality": model.quality, "installed": true,
            "complete": true, "embedded": true,
        }));
    }
    for model in installed.iter().filter(|m| embedded::behind(m).is_none()) {
        let family = model.family.map_or("?", |f| f.name());
        rows.push(vec![model.id.clone(), family.into(), bytes(model.bytes), state(model)]);
        values.push(json!({
            "id": model.id, "family": model.family.map(|f| f.name()), "bytes": model.bytes, "installed": true,
            "complete": model.is_complete(), "missing": model.missing, "files": model.files.len(),
        }));
    }
    if args.all {
        let absent = |alias: &str| !installed.iter().any(|m| m.id.split(':').next() == Some(alias));
        for entry in catalogue::entries().iter().filter(|e| absent(e.alias)) {
            let names = match entry.also {
                [] => "to be pulled".to_owned(),
                also => format!("to be pulled, also as {}", also.join(", ")),
            };
            rows.push(vec![
                entry.alias.into(),
                entry.family.name().into(),
                bytes(entry.weight_bytes()),
                names,
            ]);
            values.push(json!({
                "id": entry.alias, "also": entry.also, "family": entry.family.name(), "bytes": entry.weight_bytes(),
                "language": entry.language, "parameters": entry.parameters(), "installed": false,
            }));
        }
    }
    if args.all {
        // A recogniser that was pulled is listed under its repository's name.
        let absent = |alias: &str| !installed.iter().any(|m| m.id.contains(alias));
        for known in RECOGNISERS.iter().filter(|r| absent(r.alias)) {
            let also = if known.also.is_empty() {
                String::new()
            } else {
                format!(", also as {}", known.also.join(", "))
            };
            let (family, size) = (Family::FastConformer.name(), format!("{}M", known.millions));
            rows.push(vec![known.alias.into(), family.into(), size, format!("to be pulled{also}")]);
            values.push(json!({
                "id": known.alias, "also": known.also, "family": family, "language": known.languages,
                "parameters": known.millions * 1_000_000, "head_type": known.head, "streaming": known.streaming,
                "installed": false,
            }));
        }
    }
    if console.json {
        return console.json(&values);
    }
    if rows.len() == 1 {
        console.note("no models yet: `voce list --all` shows the catalogue, `voce pull pocket` fetches one");
        return Ok(());
    }
    let mut out = table(&rows, &[2]);
    for model in embedded::all() {
        out.push_str(&format!("\n{}: {}; trained on {}", model.name, model.quality, model.data));
    }
    console.result(&out)
}

fn state(model: &Installed) -> String {
    if model.is_complete() {
        "ready".into()
    } else {
        format!("incomplete: {} missing", model.missing.join(", "))
    }
}

/// Removes models.
pub(crate) fn remove(console: Console, args: RmArgs) -> Outcome {
    let store = Store::from_env()?;
    let mut values = Vec::new();
    for id in &args.ids {
        if embedded::find(id).is_some() && store.find(id).is_err() {
            return Err(Failure::usage(format!("{id} is in the binary: there is nothing to remove")));
        }
        let removed = store.remove(&Reference::parse(id)?)?;
        console.note(&format!("removed {id}: {} files, {}", removed.files, bytes(removed.bytes)));
        values.push(json!({"id": id, "files": removed.files, "bytes": removed.bytes}));
    }
    if console.json { console.json(&values) } else { Ok(()) }
}
