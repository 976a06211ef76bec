//! A list of any length, done on this machine at full rate; what is done is not done again.

use std::collections::HashSet;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::error::JobError;
use crate::failures::{Failed, Failures};
use crate::folder::Folder;
use crate::hear::Watch;
use crate::label::Label;
use crate::list::Entry;
use crate::model::{Made, Model};
use crate::slots::Slots;
use crate::unit::{Settings, Unit};

/// Threads besides one a slot: they open inputs and keep results while others have the slots.
const SPARE: usize = 2;
/// How often the caller is told how far the work is.
const TICK: Duration = Duration::from_millis(100);

/// Where results go.
pub enum Out {
    /// A file each in a folder, with a list of what failed.
    Folder {
        /// The folder.
        folder: Folder,
        /// What failed in this run.
        failures: Failures,
        /// Names of results that failed in earlier runs and are left out.
        before: HashSet<String>,
    },
    /// A line of JSON each.
    Lines(Mutex<Box<dyn Write + Send>>),
}

/// The task, its model and its settings.
pub struct Bulk<'a> {
    /// The model.
    pub model: &'a Model,
    /// Its files' revision and its precision.
    pub revision: &'a str,
    /// How units are done.
    pub settings: &'a Settings,
    /// Where results go.
    pub out: &'a Out,
}

/// How far the work is; the counts only grow.
#[derive(Default)]
pub struct Tally {
    /// Milliseconds of audio that the model has done.
    pub audio_ms: AtomicU64,
    /// Units with a result of this run.
    pub done: AtomicU64,
    /// Units whose result was there.
    pub skipped: AtomicU64,
    /// Seconds, in milliseconds, that the list promises for those.
    pub skipped_ms: AtomicU64,
    /// Units that failed in this run, bad lines included.
    pub failed: AtomicU64,
    /// Units that failed in an earlier run and were left out.
    pub failed_before: AtomicU64,
    /// Chunks of speech that did not end, and whose words may be missing.
    pub unended: AtomicU64,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Units with a result of this run.
    pub done: u64,
    /// Units whose result was there.
    pub skipped: u64,
    /// Units that failed in this run, bad lines included.
    pub failed: u64,
    /// Units that failed in an earlier run and were left out.
    pub failed_before: u64,
    /// Chunks of speech that did not end, and whose words may be missing.
    pub unended: u64,
    /// Seconds of audio done.
    pub audio_seconds: f64,
    /// Seconds it took.
    pub wall_seconds: f64,
}

/// What the caller hears of while it waits.
pub enum News<'a> {
    /// Time has passed.
    Tick(&'a Tally),
    /// A unit or a line failed.
    Failed(&'a Failed),
}

impl Tally {
    fn summary(&self, begun: Instant) -> Summary {
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Summary {
            done: count(&self.done),
            skipped: count(&self.skipped),
            failed: count(&self.failed),
            failed_before: count(&self.failed_before),
            unended: count(&self.unended),
            audio_seconds: count(&self.audio_ms) as f64 / 1e3,
            wall_seconds: begun.elapsed().as_secs_f64(),
        }
    }
}

/// Counts a unit's audio while it is done.
struct Counting<'a> {
    tally: &'a Tally,
    told: AtomicU64,
    stop: &'a (dyn Fn() -> bool + Sync),
    halted: &'a AtomicBool,
}

impl Watch for Counting<'_> {
    fn stop(&self) -> bool {
        self.halted.load(Ordering::Relaxed) || (self.stop)()
    }

    fn at(&self, seconds: f64) {
        let now = (seconds * 1e3) as u64;
        let before = self.told.fetch_max(now, Ordering::Relaxed);
        self.tally.audio_ms.fetch_add(now.saturating_sub(before), Ordering::Relaxed);
    }
}

/// A run while it goes on.
struct Run<'a> {
    bulk: &'a Bulk<'a>,
    slots: Slots,
    tally: Tally,
    stop: &'a (dyn Fn() -> bool + Sync),
    /// Raised when what follows would fail as well.
    halted: AtomicBool,
    reason: Mutex<Option<JobError>>,
}

/// Does all units of a list. Failures are counted and do not stop the rest; the error is one that would meet every unit, such
/// as a full disk or a model that died. `news` is called on this thread.
pub fn run(
    bulk: &Bulk<'_>,
    list: impl Iterator<Item = Entry> + Send,
    stop: &(dyn Fn() -> bool + Sync),
    mut news: impl FnMut(News<'_>),
) -> Result<Summary, JobError> {
    let begun = Instant::now();
    let slots = bulk.model.slots();
    let run = Run {
        bulk,
        slots: Slots::new(slots),
        tally: Tally::default(),
        stop,
        halted: AtomicBool::new(false),
        reason: Mutex::new(None),
    };
    let list = Mutex::new(list);
    // Workers are ahead of the caller by a few failures at most.
    let (told, failures) = sync_channel(slots + SPARE);
    std::thread::scope(|scope| {
        for _ in 0..slots + SPARE {
            let (run, list, told) = (&run, &list, told.clone());
            scope.spawn(move || {
                while !run.is_over() {
                    let Some(entry) = lock(list).next() else { break };
                    if let Some(failed) = run.entry(entry)
                        && told.send(failed).is_err()
                    {
                        break;
                    }
                }
            });
        }
        drop(told);
        loop {
            match failures.recv_timeout(TICK) {
                Ok(failed) => news(News::Failed(&failed)),
                Err(RecvTimeoutError::Timeout) => news(News::Tick(&run.tally)),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    match lock(&run.reason).take() {
        Some(error) => Err(error),
        None if stop() => Err(JobError::Stopped),
        None => Ok(run.tally.summary(begun)),
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run<'_> {
    fn is_over(&self) -> bool {
        self.halted.load(Ordering::Relaxed) || (self.stop)()
    }

    fn halt(&self, error: JobError) {
        lock(&self.reason).get_or_insert(error);
        self.halted.store(true, Ordering::Relaxed);
    }

    /// Does an entry; gives what to tell if it failed.
    fn entry(&self, entry: Entry) -> Option<Failed> {
        let (unit, failed) = match entry {
            Entry::Bad(bad) => (
                None,
                Failed { id: bad.at, output: String::new(), code: "bad_line".into(), error: bad.reason },
            ),
            Entry::Unit(unit) => {
                let label = Label::new(&unit, self.bulk.revision, self.bulk.settings);
                let name = label.file_name(&unit, self.bulk.settings);
                let error = match self.unit(&unit, &name) {
                    Ok(()) | Err(JobError::Stopped) => return None,
                    Err(error) => error,
                };
                if error.is_about_the_place() || !self.bulk.model.is_alive() {
                    self.halt(error);
                    return None;
                }
                let failed = Failed {
                    id: unit.id.clone(),
                    output: name,
                    code: error.code().into(),
                    error: error.to_string(),
                };
                (Some(unit), failed)
            }
        };
        self.tally.failed.fetch_add(1, Ordering::Relaxed);
        let kept = match self.bulk.out {
            Out::Folder { failures, .. } => failures.add(&failed),
            Out::Lines(out) => {
                let id = unit.map_or(failed.id.clone(), |u| u.id);
                let line = json!({"id": id, "error": {"code": failed.code, "message": failed.error}});
                write_line(out, &line)
            }
        };
        if let Err(error) = kept {
            self.halt(error);
        }
        Some(failed)
    }

    fn unit(&self, unit: &Unit, name: &str) -> Result<(), JobError> {
        let Bulk { model, settings, .. } = *self.bulk;
        let watch =
            Counting { tally: &self.tally, told: AtomicU64::new(0), stop: self.stop, halted: &self.halted };
        match self.bulk.out {
            Out::Folder { folder, before, .. } => {
                if folder.has(name) {
                    self.tally.skipped.fetch_add(1, Ordering::Relaxed);
                    let ms = unit.seconds.unwrap_or_default() * 1e3;
                    self.tally.skipped_ms.fetch_add(ms as u64, Ordering::Relaxed);
                    return Ok(());
                }
                if before.contains(name) {
                    self.tally.failed_before.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                let made = model.run(unit, settings, &self.slots, &watch, || folder.write(name))?;
                if let Some(text) = made.render(unit, settings, model.id()) {
                    folder.keep(name, text.as_bytes())?;
                }
                self.count(&made, &watch);
                tracing::info!(unit = unit.id, output = name, "kept");
            }
            Out::Lines(out) => {
                let nowhere = || Err(JobError::Refused("speech needs a folder: give -o FOLDER".into()));
                let made = model.run(unit, settings, &self.slots, &watch, nowhere)?;
                write_line(out, &made.json(unit, model.id()))?;
                self.count(&made, &watch);
            }
        }
        Ok(())
    }

    fn count(&self, made: &Made, watch: &Counting<'_>) {
        watch.at(made.seconds());
        if let Made::Said(said) = made {
            self.tally.unended.fetch_add(said.unended as u64, Ordering::Relaxed);
        }
        self.tally.done.fetch_add(1, Ordering::Relaxed);
    }
}

fn write_line(out: &Mutex<Box<dyn Write + Send>>, line: &serde_json::Value) -> Result<(), JobError> {
    let mut out = lock(out);
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.map_err(|source| JobError::Keep { path: "standard output".into(), source })
}

/// Names of all results of a list that are there, with their lines: the list of results for a folder. Entries that have none
/// are left out.
pub fn results<'a>(
    bulk: &'a Bulk<'a>,
    list: impl Iterator<Item = Entry> + 'a,
) -> impl Iterator<Item = serde_json::Value> + 'a {
    list.filter_map(move |entry| {
        let (Entry::Unit(unit), Out::Folder { folder, .. }) = (entry, bulk.out) else { return None };
        let name = Label::new(&unit, bulk.revision, bulk.settings).file_name(&unit, bulk.settings);
        if !folder.has(&name) {
            return None;
        }
        let mut line = json!(unit.fields);
        if let Settings::Hear(hear) = bulk.settings
            && hear.format == crate::TextFormat::Nemo
        {
            let text = std::fs::read_to_string(folder.result(&name)).ok()?;
            line = serde_json::from_str(&text).ok()?;
        }
        line["id"] = json!(unit.id);
        if let Some(path) = unit.path() {
            line["audio_filepath"] = json!(path.to_string_lossy());
        }
        line["output"] = json!(name);
        Some(line)
    })
}
