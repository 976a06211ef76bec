//! `voce serve --check`: what the settings mean, and whether every model is here and can be read.

use std::path::PathBuf;

use serde_json::{Value, json};
use voce_engine::store::{Store, Task};
use voce_engine::{EngineError, describe};
use voce_server::ServerOptions;

use super::models;
use super::settings::Settings;
use crate::console::Console;
use crate::failure::{Failure, Outcome};

/// A model as it lies on the disk.
struct Model {
    reference: String,
    files: Vec<(PathBuf, u64)>,
}

impl Model {
    /// Finds its files and reads all but the numbers in its weights.
    fn look(store: &Store, reference: &str, task: Task) -> Result<Self, EngineError> {
        let located = store.find(reference)?;
        store.identify(reference)?.require(task)?;
        describe(store, reference)?;
        let mut paths = located.weights;
        paths.extend(located.tokenizer);
        paths.extend(located.config);
        let mut files = Vec::new();
        for path in paths {
            let size = std::fs::metadata(&path).map(|m| m.len());
            let bytes = size.map_err(|source| EngineError::Io { path: path.clone(), source })?;
            files.push((path, bytes));
        }
        Ok(Self { reference: reference.to_owned(), files })
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, n)| n).sum()
    }

    fn json(&self) -> Value {
        let file = |(path, bytes): &(PathBuf, u64)| json!({"path": path, "bytes": bytes});
        let files: Vec<Value> = self.files.iter().map(file).collect();
        json!({"model": self.reference, "bytes": self.bytes(), "files": files})
    }

    fn line(&self) -> String {
        format!("{} ({:.1} MB in {} files)", self.reference, self.bytes() as f64 / 1e6, self.files.len())
    }
}

/// Says what would be served, or all that is missing.
pub(super) fn run(console: Console, store: &Store, settings: &Settings, options: &ServerOptions) -> Outcome {
    let plan = models::plan(store, settings)?;
    let keep_warm = models::keep_warm(settings)?;
    for reference in plan.hear.iter().filter(|reference| store.find(reference).is_ok()) {
        models::check_hearing(store, reference, reference, settings)?;
    }
    let speak = plan.speak.iter().map(|r| Model::look(store, r, Task::Speech));
    let hear = plan.hear.iter().map(|r| Model::look(store, r, Task::Hearing));
    let talk = plan.talk.iter().map(|r| Model::look(store, r, Task::Dialogue));
    let (speak, hear, talk): (Vec<_>, Vec<_>, Vec<_>) = (speak.collect(), hear.collect(), talk.collect());
    let named = plan.speak.iter().chain(&plan.hear).chain(&plan.talk);
    let named = named.zip(speak.iter().chain(&hear).chain(&talk));
    let missing: Vec<String> =
        named.filter_map(|(name, look)| look.as_ref().err().map(|e| format!("{name}: {e}"))).collect();
    if !missing.is_empty() {
        return Err(Failure::usage(missing.join("\n")));
    }
    let here = |looks: Vec<Result<Model, EngineError>>| looks.into_iter().flatten().collect::<Vec<_>>();
    let (speak, hear, talk) = (here(speak), here(hear), here(talk));
    let modules: Vec<&str> = settings.modules.list.iter().map(|(name, _)| name.as_str()).collect();
    let folder_of_jobs = || settings.jobs.as_ref().map(|p| p.display().to_string());
    let jobs = settings.jobs_nats.clone().or_else(folder_of_jobs);
    if console.json {
        let models: Vec<Value> = speak.iter().chain(&hear).chain(&talk).map(Model::json).collect();
        return console.json(&json!({
            "addr": options.addr, "speak": plan.speak, "hear": plan.hear, "talk": plan.talk, "modules": modules, "keys": options.keys.len(), "cors": options.cors,
            "wyoming": options.wyoming, "aliases": options.aliases, "null_model": settings.null_model,
            "models": models, "otlp": options.otlp.is_some(), "log_tokens": options.journal.tokens,
            "capture_audio": options.journal.audio, "keep_warm_seconds": keep_warm.map(|d| d.as_secs_f64()),
            "jobs": jobs,
        }));
    }
    let list = |models: &[Model]| match models {
        [] => "none".to_owned(),
        some => some.iter().map(Model::line).collect::<Vec<_>>().join(", "),
    };
    let keys = match options.keys.len() {
        0 => "none: no key is needed".to_owned(),
        n => n.to_string(),
    };
    let folder =
        |path: &Option<PathBuf>| path.as_ref().map_or_else(|| "off".into(), |p| p.display().to_string());
    console.result(&format!(
        "address    {}\nspeak      {}\nhear       {}\ntalk       {}\nmodules    {}\nkeys       {keys}\nwyoming    {}\nspans      {}\ntokens     {}\naudio      {}\nkeep warm  {}\njobs       {}",
        options.addr,
        list(&speak),
        list(&hear),
        list(&talk),
        if modules.is_empty() { "none".to_owned() } else { modules.join(", ") },
        options.wyoming.map_or_else(|| "off".into(), |a| a.to_string()),
        if options.otlp.is_some() { "on" } else { "off" },
        folder(&options.journal.tokens),
        folder(&options.journal.audio),
        keep_warm.map_or_else(|| "off".into(), |d| format!("{} s", d.as_secs_f64())),
        jobs.as_deref().unwrap_or("off"),
    ))
}
