//! `voce work` and `voce jobs`: jobs on NATS JetStream, done and handed in.

pub(crate) mod args;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use serde_json::json;
use voce_jobs::nats::{
    Desk, Job, Link, NatsError, Place, State, Submitted, Worker, WorkerOptions, serve_metrics,
};
use voce_jobs::{Entry, Folder, List, Phase, Shard, Task};

use crate::bulk::model::{self, Opened};
use crate::console::{self, Console};
use crate::embedded;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use args::{FetchArgs, JobsCommand, ListJobsArgs, PickArgs, SubmitArgs, WorkArgs};

/// How often somebody who waits looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);
/// Threads for jobs, besides one a slot: those that keep results.
const SPARE_THREADS: usize = 64;
/// Bad lines of a list that are told one by one.
const TOLD: u64 = 20;

impl From<NatsError> for Failure {
    fn from(error: NatsError) -> Self {
        match error {
            NatsError::Prefix(_) | NatsError::UnknownJob(_) | NatsError::File { .. } => {
                Failure::Usage(error.to_string())
            }
            _ => Failure::Failed(error.to_string()),
        }
    }
}

fn runtime(threads: usize) -> Outcome<tokio::runtime::Runtime> {
    let made = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(threads)
        .thread_name("voce-nats")
        .enable_all()
        .build();
    made.map_err(|e| Failure::failed(format!("cannot start threads: {e}")))
}

/// Ends with an error once a signal has come.
async fn or_interrupted<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let signal = async {
        while !interrupt::raised() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        done = work => done,
        () = signal => Err(Failure::Interrupted),
    }
}

/// Runs `voce work`.
pub(crate) fn work(console: Console, args: WorkArgs) -> Outcome {
    let task = Task::from(args.task);
    let host = crate::machine::host_name();
    let name = args.name.clone().unwrap_or_else(|| format!("{host}-{}", std::process::id()));
    let tag: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    // Who cannot reach the queue need not load a model.
    let early = runtime(SPARE_THREADS)?;
    early.block_on(or_interrupted(async {
        let link = Link::open(&args.nats.link(&name)).await?;
        Ok(link.prepare(&args.streams.options()).await?)
    }))?;
    early.shutdown_background();
    let progress = console.progress();
    progress.set_message("loading the model");
    let Opened { model, revision } = model::open(console, task, &args.model)?;
    progress.finish_and_clear();
    interrupt::check()?;
    let reference = model.id().to_owned();
    let runtime = runtime(2 * model.slots() + SPARE_THREADS)?;
    runtime.block_on(async {
        let link = Link::open(&args.nats.link(&name)).await?;
        let scratch = args.scratch.clone().unwrap_or_else(|| std::env::temp_dir().join("voce-work"));
        std::fs::create_dir_all(&scratch)
            .map_err(|e| Failure::failed(format!("{}: cannot make this folder: {e}", scratch.display())))?;
        let place = match &args.results {
            Some(path) => Place::folder(path, &tag)?,
            None => Place::objects(&link, &scratch, &tag).await?,
        };
        let options = WorkerOptions {
            name: tag.clone(),
            ack_wait: args.ack_wait,
            tries: args.tries,
            checkpoint: args.checkpoint,
            inputs: args.inputs.clone(),
            scratch,
            until_empty: args.until_empty,
        };
        let slots = model.slots();
        let worker = Worker::new(link, model, reference.clone(), revision, place, options).await?;
        let worker = Arc::new(worker);
        let figures = worker.figures();
        if let Some(port) = args.metrics_port {
            let address = (args.metrics_host.as_str(), port);
            let listener = tokio::net::TcpListener::bind(address).await.map_err(|e| {
                Failure::failed(format!("{}:{port}: cannot serve figures there: {e}", args.metrics_host))
            })?;
            let at = listener.local_addr().map_or_else(|_| String::new(), |a| a.to_string());
            console.note(&format!("figures at http://{at}/metrics"));
            tokio::spawn(serve_metrics(listener, figures.clone()));
        }
        console.note(&format!("{name} works for {reference}, {slots} jobs side by side"));
        let (stop, stopped) = tokio::sync::watch::channel(false);
        tokio::spawn(async move {
            while !interrupt::raised() {
                tokio::time::sleep(LOOK).await;
            }
            let _ = stop.send(true);
            // A worker that is told to stop needs somebody who can tell it.
            std::future::pending::<()>().await;
        });
        let ended = worker.clone().run(stopped).await;
        let count = |n: &std::sync::atomic::AtomicU64| n.load(std::sync::atomic::Ordering::Relaxed);
        let summary = json!({
            "worker": name, "done": count(&figures.done), "found": count(&figures.found), "dead": count(&figures.dead),
            "returned": count(&figures.returned), "cancelled": count(&figures.cancelled),
            "audio_seconds": count(&figures.audio_ms) as f64 / 1e3, "resumed": count(&figures.resumed),
        });
        if console.json {
            console.json(&summary)?;
        } else {
            console.note(&format!("{} done, {} given back, {} dead", summary["done"], summary["returned"], summary["dead"]));
        }
        ended.map_err(|e| Failure::Broken(e.to_string()))
    })
}

/// Runs `voce jobs`.
pub(crate) fn run(console: Console, command: JobsCommand) -> Outcome {
    let runtime = runtime(SPARE_THREADS)?;
    runtime.block_on(or_interrupted(async {
        match command {
            JobsCommand::Submit(args) => submit(console, &args).await,
            JobsCommand::List(args) => list(console, &args).await,
            JobsCommand::Watch(args) => watch(console, &args).await,
            JobsCommand::Cancel(args) => pick(console, &args, "cancelled").await,
            JobsCommand::Retry(args) => pick(console, &args, "submitted again").await,
            JobsCommand::Fetch(args) => fetch(console, &args).await,
        }
    }))
}

async fn submit(console: Console, args: &SubmitArgs) -> Outcome {
    let task = Task::from(args.how.task);
    let batch = args::batch(args.batch.as_deref())?;
    let settings = args.how.settings(args.language.clone())?;
    let model = args.model.clone().unwrap_or_else(|| match task {
        Task::Hear => embedded::EAR.to_owned(),
        Task::Say => embedded::VOICE.to_owned(),
    });
    let list = List::open(&args.list, task, Shard::WHOLE)
        .map_err(|e| Failure::usage(format!("{}: {e}", args.list.display())))?;
    let link = Link::open(&args.nats.link("voce jobs")).await?;
    link.prepare(&args.streams.options()).await?;
    let desk = Desk::new(link).await?;
    desk.announce(task, &model).await?;
    let progress = console.progress();
    let (mut new, mut known, mut bad) = (0u64, 0u64, 0u64);
    for entry in list {
        let unit = match entry {
            Entry::Unit(unit) => *unit,
            Entry::Bad(line) => {
                bad += 1;
                if bad <= TOLD {
                    progress.suspend(|| console::error(&format!("{}: {}", line.at, line.reason)));
                }
                continue;
            }
        };
        let unit = absolute(unit, args.upload);
        let mut job = Job::new(&batch, &model, &settings, unit);
        job.revision.clone_from(&args.revision);
        let id = job.unit.id.clone();
        match desk.submit(job, args.upload).await {
            Ok(Submitted::New) => new += 1,
            Ok(Submitted::Known(_)) => known += 1,
            Err(error @ NatsError::File { .. }) => {
                bad += 1;
                if bad <= TOLD {
                    progress.suspend(|| console::error(&format!("{id}: {error}")));
                }
            }
            Err(error) => return Err(error.into()),
        }
        progress.set_message(format!("{} submitted", new + known));
    }
    progress.finish_and_clear();
    if console.json {
        console.json(
            &json!({"batch": batch, "submitted": new, "known": known, "failed": bad, "model": model}),
        )?;
    } else {
        console.result(&batch)?;
        console
            .note(&format!("{new} submitted, {known} known already: `voce jobs watch {batch}` follows them"));
    }
    match bad {
        0 => Ok(()),
        n => Err(Failure::Partly(format!("{n} lines of the list are no jobs: see above"))),
    }
}

/// Paths that mean the same on every machine with the same folders.
fn absolute(mut unit: voce_jobs::Unit, upload: bool) -> voce_jobs::Unit {
    if let voce_jobs::Input::Audio { path, .. } = &mut unit.input
        && !upload
        && let Ok(full) = std::path::absolute(&*path)
    {
        *path = full;
    }
    unit
}

fn wanted(args: &ListJobsArgs, state: &State) -> bool {
    args.batch.as_ref().is_none_or(|b| *b == state.job.batch)
        && args.state.as_ref().is_none_or(|s| s == state.phase.name())
}

async fn desk(nats: &args::NatsArgs) -> Outcome<Desk> {
    Ok(Desk::new(Link::open(&nats.link("voce jobs")).await?).await?)
}

async fn list(console: Console, args: &ListJobsArgs) -> Outcome {
    let desk = desk(&args.nats).await?;
    let mut states = desk.states(false).await?;
    let mut rows =
        vec![["job", "state", "tries", "batch", "input", "result or error"].map(str::to_owned).to_vec()];
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    while let Some(state) = states.next().await {
        let state = state?;
        if !wanted(args, &state) {
            continue;
        }
        *counts.entry(state.phase.name()).or_default() += 1;
        if console.json {
            console.json(&state)?;
            continue;
        }
        let last = state.error.clone().filter(|_| state.phase != Phase::Done).or(state.output.clone());
        rows.push(vec![
            state.job.id.clone(),
            state.phase.name().to_owned(),
            state.tries.to_string(),
            state.job.batch.clone(),
            state.job.unit.id.clone(),
            last.unwrap_or_default(),
        ]);
    }
    if !console.json {
        console.result(&console::table(&rows, &[2]))?;
        let counts: Vec<String> = counts.iter().map(|(name, n)| format!("{n} {name}")).collect();
        console.note(&counts.join(", "));
    }
    Ok(())
}

/// Follows jobs until all of them are over; an error where some failed.
async fn watch(console: Console, args: &ListJobsArgs) -> Outcome {
    let desk = desk(&args.nats).await?;
    // What is known now decides what is waited for.
    let mut phases: BTreeMap<String, Phase> = BTreeMap::new();
    let mut now = desk.states(false).await?;
    while let Some(state) = now.next().await {
        let state = state?;
        if wanted(args, &state) {
            phases.insert(state.job.id.clone(), state.phase);
        }
    }
    drop(now);
    if phases.is_empty() {
        return Err(Failure::usage("no such jobs: `voce jobs list` has them"));
    }
    let progress = console.progress();
    let mut changes = desk.states(true).await?;
    let over = |phases: &BTreeMap<String, Phase>| phases.values().filter(|p| p.is_over()).count();
    while over(&phases) < phases.len() {
        let Some(state) = changes.next().await else { break };
        let state = state?;
        if let Some(phase) = phases.get_mut(&state.job.id) {
            let is_new = *phase != state.phase;
            *phase = state.phase;
            if is_new && state.phase.is_over() && console.json {
                console.json(&state)?;
            } else if is_new && state.phase == Phase::Failed {
                let reason = state.error.as_deref().unwrap_or("no reason is known");
                progress.suspend(|| console::error(&format!("{}: {reason}", state.job.unit.id)));
            }
        }
        progress.set_message(format!("{} of {} over", over(&phases), phases.len()));
    }
    progress.finish_and_clear();
    let count = |phase| phases.values().filter(|p| **p == phase).count();
    let (done, failed, cancelled) = (count(Phase::Done), count(Phase::Failed), count(Phase::Cancelled));
    console.note(&format!("{done} done, {failed} failed, {cancelled} cancelled"));
    match failed {
        0 => Ok(()),
        n => Err(Failure::Partly(format!(
            "{n} failed: `voce jobs list --state failed` says why, `voce jobs retry` tries again"
        ))),
    }
}

async fn pick(console: Console, args: &PickArgs, done: &str) -> Outcome {
    let desk = desk(&args.nats).await?;
    let mut ids = args.ids.clone();
    if args.batch.is_some() || args.failed {
        let mut states = desk.states(false).await?;
        while let Some(state) = states.next().await {
            let state = state?;
            if args.has(&state) {
                ids.push(state.job.id);
            }
        }
    }
    let mut changed = 0;
    for id in &ids {
        let phase = if done == "cancelled" { desk.cancel(id).await? } else { desk.retry(id).await? };
        let acted = if done == "cancelled" {
            !phase.is_over()
        } else {
            matches!(phase, Phase::Failed | Phase::Cancelled)
        };
        changed += u64::from(acted);
        if !acted {
            console.note(&format!("{id} is {}: left as it is", phase.name()));
        }
    }
    if console.json {
        return console.json(&json!({"changed": changed, "jobs": ids.len()}));
    }
    console.note(&format!("{changed} {done}"));
    Ok(())
}

async fn fetch(console: Console, args: &FetchArgs) -> Outcome {
    let desk = desk(&args.nats).await?;
    let folder = Folder::shared(&args.output, &format!("fetch-{}", std::process::id()))?;
    let mut states = desk.states(false).await?;
    let mut outputs: Vec<(String, String)> = Vec::new();
    while let Some(state) = states.next().await {
        let state = state?;
        let mine = args.batch.as_ref().is_none_or(|b| *b == state.job.batch);
        if let (Phase::Done, true, Some(output)) = (state.phase, mine, state.output) {
            outputs.push((state.job.unit.id, output));
        }
    }
    let (mut fetched, mut here, mut missing) = (0u64, 0u64, 0u64);
    for (id, output) in outputs {
        if PathBuf::from(&output).components().count() != 1 || output.starts_with('.') {
            missing += 1;
        } else if folder.has(&output) {
            here += 1;
        } else if desk.fetch(&output, &folder).await? {
            fetched += 1;
        } else {
            missing += 1;
            console
                .note(&format!("{id}: {output} is not in the object store: its worker kept it in a folder"));
        }
    }
    if console.json {
        return console.json(&json!({"fetched": fetched, "here": here, "missing": missing}));
    }
    console.note(&format!("{fetched} fetched, {here} were here"));
    Ok(())
}
