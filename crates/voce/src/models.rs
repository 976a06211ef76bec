//! `voce list` and `voce rm`: the models of this machine and of the catalogue.

use serde_json::{Value, json};
use voce_engine::store::catalogue::{self, Extra};
use voce_engine::store::{Entry, Installed, Origin, Reference, Store, Task};

use crate::args::{ListArgs, RmArgs};
use crate::console::{Console, bytes, table};
use crate::embedded;
use crate::failure::{Failure, Outcome};

/// Lists models.
pub(crate) fn list(console: Console, args: ListArgs) -> Outcome {
    let store = Store::from_env()?;
    let installed = store.list();
    let mut rows = vec![["ID", "FAMILY", "TASK", "SIZE", "STATE"].map(str::to_owned).to_vec()];
    let mut values: Vec<Value> = Vec::new();
    for model in embedded::all() {
        rows.push(vec![
            model.name.into(),
            model.family.name().into(),
            model.task.name().into(),
            bytes(model.bytes()),
            format!("built in: {}, {}", model.language_name(), model.licence),
        ]);
        values.push(json!({
            "id": model.name, "family": model.family.name(), "task": model.task.name(), "bytes": model.bytes(),
            "language": model.language, "licence": model.licence, "data": model.data, "quality": model.quality,
            "installed": true, "complete": true, "embedded": true,
        }));
    }
    for model in installed.iter().filter(|m| embedded::behind(m).is_none()) {
        let (family, task) = (model.family.map(|f| f.name()), model.task.map(|t| t.name()));
        rows.push(vec![
            model.id.clone(),
            family.unwrap_or("?").into(),
            task.unwrap_or("?").into(),
            bytes(model.bytes),
            state(model),
        ]);
        values.push(json!({
            "id": model.id, "family": family, "task": task, "bytes": model.bytes, "installed": true,
            "complete": model.is_complete(), "missing": model.missing, "files": model.files.len(),
        }));
    }
    if args.all {
        let here = |entry: &Entry| {
            installed.iter().any(|m| matches!(m.origin, Origin::Catalogue(of) if of.alias == entry.alias))
        };
        for entry in catalogue::entries().filter(|entry| !here(entry)) {
            let names = match entry.also {
                [] => "to be pulled".to_owned(),
                also => format!("to be pulled, also as {}", also.join(", ")),
            };
            rows.push(vec![
                entry.alias.into(),
                entry.family.name().into(),
                entry.task.name().into(),
                bytes(entry.bytes),
                names,
            ]);
            let mut value = json!({
                "id": entry.alias, "also": entry.also, "family": entry.family.name(), "task": entry.task.name(),
                "bytes": entry.bytes, "language": entry.languages.join(", "), "languages": entry.languages,
                "parameters": entry.parameters, "installed": false,
            });
            if let Extra::Hearing { head, streaming, .. } = entry.extra {
                value["head_type"] = head.into();
                value["streaming"] = streaming.into();
            }
            values.push(value);
        }
    }
    if console.json {
        return console.json(&values);
    }
    if rows.len() == 1 {
        let first = catalogue::preferred(Task::Speech).first().copied().unwrap_or("NAME");
        console.note(&format!(
            "no models yet: `voce list --all` shows the catalogue, `voce pull {first}` fetches one"
        ));
        return Ok(());
    }
    let mut out = table(&rows, &[3]);
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
