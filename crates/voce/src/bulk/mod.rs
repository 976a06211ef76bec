//! `voce bulk`: a list of any length, heard or spoken on this machine.

pub(crate) mod args;
pub(crate) mod model;
mod show;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;

use serde::Serialize;
use voce_audio::output::Output as _;
use voce_engine::store::Store;
use voce_jobs::bulk::{Bulk, News, Out, Summary, results, run as run_list};
use voce_jobs::{Entry, Failures, Folder, JobError, List, Settings, Shard, Task};

use crate::console::{self, Console, round, to_json};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use args::BulkArgs;
use model::Opened;
use show::{Show, Total, clock};

/// Failures that are told one by one; all of them are in the list.
const TOLD: u64 = 20;

/// Runs the command.
pub(crate) fn run(console: Console, args: BulkArgs) -> Outcome {
    let task = Task::from(args.how.task);
    let piped = args.output.as_os_str() == "-";
    if piped && task == Task::Say {
        return Err(Failure::usage("speech needs a folder: give -o DIR"));
    }
    let shard = shard(&args)?;
    if !shard.is_whole() {
        console.note(&format!("part {shard} of the list"));
    }
    let settings = args.how.settings(model::language(task, &args.model, &Store::from_env()?))?;
    let total = total(&args.list, task, shard)?;
    let out = if piped { Some(pipe()) } else { None };
    let folder = if piped { None } else { Some(folder(&args.output, shard)?) };
    let progress = console.progress();
    progress.set_message("loading the model");
    let Opened { model, revision } = model::open(console, task, &args.model)?;
    model.check(&settings).map_err(Failure::from)?;
    interrupt::check()?;
    let out = match (out, folder) {
        (Some(out), _) => out,
        (None, Some(folder)) => lists(folder, shard, args.retry_failed)?,
        (None, None) => return Err(Failure::usage("no place for results: give -o DIR")),
    };
    let bulk = Bulk { model: &model, revision: &revision, settings: &settings, out: &out };
    let mut show = Show::new(console, progress, total);
    let mut told = 0;
    let list = open(&args.list, task, shard)?;
    let outcome = run_list(&bulk, list, &interrupt::raised, |news| match news {
        News::Tick(tally) => show.tick(tally),
        News::Failed(failed) => {
            told += 1;
            if told <= TOLD {
                show.above(|| console::error(&described(&failed.id, &failed.error)));
            }
        }
    });
    show.clear();
    let summary = match outcome {
        Ok(summary) => summary,
        Err(JobError::Stopped) => {
            if !piped {
                console.note("stopped: run the same command again to go on");
            }
            return Err(Failure::Interrupted);
        }
        Err(error) if !model.is_alive() => return Err(Failure::Broken(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    if !piped && args.list.as_os_str() != "-" {
        list_results(&bulk, &args, task, shard)?;
    }
    tell(console, &args, &bulk, &summary, shard, piped)?;
    if told > TOLD {
        console.note(&format!("{} more failures are not told here", told - TOLD));
    }
    match summary.failed + summary.failed_before {
        0 => Ok(()),
        failed => Err(Failure::Partly(failures_text(failed, &summary, &args, shard, piped))),
    }
}

/// The part of the list that the flag or the batch system gives this process.
fn shard(args: &BulkArgs) -> Outcome<Shard> {
    let shard = match &args.shard {
        Some(text) => text.parse(),
        None => Shard::from_environment(|name| std::env::var(name).ok()),
    };
    shard.map_err(|e| Failure::usage(e.to_string()))
}

fn open(path: &Path, task: Task, shard: Shard) -> Outcome<List> {
    List::open(path, task, shard).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
}

/// What the list holds; unknown where it can be read once only. A folder without audio is an error.
fn total(path: &Path, task: Task, shard: Shard) -> Outcome<Option<Total>> {
    if path.as_os_str() == "-" {
        return Ok(None);
    }
    let mut total = Total { units: 0, seconds: Some(0.0) };
    for entry in open(path, task, shard)? {
        interrupt::check()?;
        total.units += 1;
        let seconds = match entry {
            Entry::Unit(unit) => unit.seconds,
            Entry::Bad(_) => Some(0.0),
        };
        total.seconds = total.seconds.zip(seconds).map(|(a, b)| a + b);
    }
    if total.units == 0 && shard.is_whole() {
        return Err(Failure::usage(format!("{}: nothing to do in it", path.display())));
    }
    Ok(Some(total))
}

/// Standard output, a line a result.
fn pipe() -> Out {
    Out::Lines(Mutex::new(Box::new(std::io::stdout())))
}

fn folder(path: &Path, shard: Shard) -> Outcome<Folder> {
    let folder = Folder::open(path, &shard.tag())?;
    folder.ok_or_else(|| {
        let text = format!(
            "another voce bulk is at work on part {shard} in {}: wait for its end, or give another folder",
            path.display()
        );
        Failure::usage(text)
    })
}

/// The list of failures of a folder: those of earlier runs are left out, unless they are to be tried again.
fn lists(folder: Folder, shard: Shard, retry: bool) -> Outcome<Out> {
    let path = folder.result(&shard.file("failed", "jsonl"));
    let before = if retry { HashSet::new() } else { Failures::before(&path)? };
    // Bad lines are found again in every run; so is what is to be tried again.
    let failures = Failures::renew(&path, |f| before.contains(&f.output))?;
    Ok(Out::Folder { folder, failures, before })
}

/// Writes which input has which result.
fn list_results(bulk: &Bulk<'_>, args: &BulkArgs, task: Task, shard: Shard) -> Outcome {
    let Out::Folder { folder, .. } = bulk.out else { return Ok(()) };
    let mut part = folder.write(&shard.file("results", "jsonl"))?;
    for line in results(bulk, open(&args.list, task, shard)?) {
        interrupt::check()?;
        part.put(format!("{line}\n").as_bytes())?;
    }
    Ok(part.commit()?)
}

#[derive(Serialize)]
struct SummaryJson<'a> {
    done: u64,
    skipped: u64,
    failed: u64,
    failed_before: u64,
    unended_chunks: u64,
    audio_seconds: f64,
    wall_seconds: f64,
    hours_per_minute: f64,
    model: &'a str,
    revision: &'a str,
    settings: &'a Settings,
    shard: String,
    output: String,
}

/// The summary: a line for people, an object for scripts.
fn tell(
    console: Console,
    args: &BulkArgs,
    bulk: &Bulk<'_>,
    summary: &Summary,
    shard: Shard,
    piped: bool,
) -> Outcome {
    let hours = summary.audio_seconds / 3600.0;
    let per_minute = hours / (summary.wall_seconds / 60.0).max(1e-9);
    if console.json {
        let json = to_json(&SummaryJson {
            done: summary.done,
            skipped: summary.skipped,
            failed: summary.failed,
            failed_before: summary.failed_before,
            unended_chunks: summary.unended,
            audio_seconds: round(summary.audio_seconds, 3),
            wall_seconds: round(summary.wall_seconds, 3),
            hours_per_minute: round(per_minute, 4),
            model: bulk.model.id(),
            revision: bulk.revision,
            settings: bulk.settings,
            shard: shard.to_string(),
            output: args.output.display().to_string(),
        })?;
        // Results have standard output where they go there.
        if piped {
            console::note(&json);
            return Ok(());
        }
        return console.result(&json);
    }
    let wall = clock(summary.wall_seconds);
    let mut line = format!("{} done, {hours:.2} h of audio in {wall}, {per_minute:.2} h/min", summary.done);
    if summary.skipped > 0 {
        line += &format!(", {} were done before", summary.skipped);
    }
    console.note(&line);
    if summary.unended > 0 {
        console.note(&format!(
            "{} of the chunks of text did not end by themselves: words may be missing",
            summary.unended
        ));
    }
    Ok(())
}

fn failures_text(failed: u64, summary: &Summary, args: &BulkArgs, shard: Shard, piped: bool) -> String {
    if piped {
        return format!("{failed} failed: their lines say why");
    }
    let list = args.output.join(shard.file("failed", "jsonl"));
    let before = match summary.failed_before {
        0 => String::new(),
        n => format!(", {n} of them before"),
    };
    format!("{failed} failed{before}: {} says why; --retry-failed tries them again", list.display())
}

/// An error that names its unit.
fn described(id: &str, error: &str) -> String {
    if error.contains(id) { error.to_owned() } else { format!("{id}: {error}") }
}
