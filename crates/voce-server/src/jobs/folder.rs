//! Jobs in a folder: a record, a recording, a checkpoint and a result each. What is told to a client was written down before,
//! so that a server that dies at any moment finds every job again.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use voce_jobs::{Checkpoint, Folder, JobError, Phase};

use super::record::VERSION;
use super::{Fault, Order, Record, View};
use crate::core::aside::now;
use crate::core::error::ServerError;
use crate::core::limits::{JOB_TRIES, Limits};

/// The tag under which a server writes; another process with it is refused.
const TAG: &str = "server";
/// What the names of records, recordings, checkpoints and results end in.
const RECORD: &str = "job";
const INPUT: &str = "input";
const CHECKPOINT: &str = "checkpoint";
const RESULT: &str = "result";
/// How often listeners are told how far a job is.
const TELL: Duration = Duration::from_millis(500);

/// What became of a job that was begun.
pub(super) enum Outcome {
    /// What was heard, as a file, and the seconds of audio.
    Done(String, f64),
    Failed(Fault),
    Cancelled,
    /// The server or its model ends: the job goes on later. Whether that counts as a try.
    Returned {
        counts: bool,
    },
}

/// What is known of all jobs.
#[derive(Default)]
struct Known {
    records: BTreeMap<String, Record>,
    /// Switches of those that run.
    stops: HashMap<String, Arc<AtomicBool>>,
    /// Owners and bytes of recordings on their way in.
    coming: HashMap<String, (String, u64)>,
}

/// A recording on its way in.
pub(crate) struct Coming {
    jobs: Arc<JobFolder>,
    id: String,
}

impl Drop for Coming {
    fn drop(&mut self) {
        lock(&self.jobs.known).coming.remove(&self.id);
    }
}

/// A folder of jobs.
pub(crate) struct JobFolder {
    folder: Folder,
    known: Mutex<Known>,
    /// Held while something is written, so that the last word of two is the same in memory and on disk.
    writing: Mutex<()>,
    changes: watch::Sender<u64>,
    told: Mutex<Instant>,
    limits: Limits,
    keep: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl JobFolder {
    /// Opens a folder, and finds the jobs of an earlier process: those that ran wait again.
    pub(crate) fn open(path: &Path, limits: Limits, keep: Duration) -> Result<Self, JobError> {
        let Some(folder) = Folder::open(path, TAG)? else {
            return Err(JobError::Refused(format!(
                "{}: another server has its jobs here: give each its own folder",
                path.display()
            )));
        };
        let this = Self {
            folder,
            known: Mutex::default(),
            writing: Mutex::new(()),
            changes: watch::Sender::new(0),
            told: Mutex::new(Instant::now()),
            limits,
            keep,
        };
        this.find()?;
        Ok(this)
    }

    fn find(&self) -> Result<(), JobError> {
        let bad = |source| JobError::Keep { path: self.folder.path().to_owned(), source };
        let entries = fs::read_dir(self.folder.path()).map_err(bad)?;
        let names: Vec<String> = entries
            .filter_map(|e| e.ok()?.file_name().into_string().ok())
            .filter(|n| !n.starts_with('.'))
            .collect();
        let mut known = lock(&self.known);
        for name in &names {
            let Some((id, RECORD)) = name.rsplit_once('.') else { continue };
            let record = fs::read(self.folder.result(name)).ok();
            match record.and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok()) {
                Some(mut record) if record.version == VERSION && record.id == id => {
                    if record.phase == Phase::Running {
                        record.phase = Phase::Waiting;
                    }
                    known.records.insert(record.id.clone(), record);
                }
                _ => tracing::warn!(file = name, "this is no job of this version: it is left as it is"),
            }
        }
        // What came without its record belongs to a job that nobody was told of.
        for name in &names {
            if let Some((id, INPUT | CHECKPOINT | RESULT)) = name.rsplit_once('.')
                && !known.records.contains_key(id)
                && !self.folder.has(&format!("{id}.{RECORD}"))
            {
                let _ = fs::remove_file(self.folder.result(name));
            }
        }
        Ok(())
    }

    fn path(&self, id: &str, what: &str) -> PathBuf {
        self.folder.result(&format!("{id}.{what}"))
    }

    /// The recording of a job.
    pub(super) fn input(&self, id: &str) -> PathBuf {
        self.path(id, INPUT)
    }

    /// Where a recording is written while it comes; swept away at the next start where it never became a job.
    pub(super) fn spool(&self, id: &str) -> PathBuf {
        self.folder.path().join(format!(".{id}.{INPUT}.{TAG}.part"))
    }

    /// Told of every change.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn tell(&self) {
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// Writes a record down.
    fn write(&self, record: &Record) -> Result<(), JobError> {
        let bytes = serde_json::to_vec(record).unwrap_or_default();
        self.folder.keep(&format!("{}.{RECORD}", record.id), &bytes)
    }

    /// Makes a record known that was written down.
    fn know(&self, record: Record) {
        lock(&self.known).records.insert(record.id.clone(), record);
        self.tell();
    }

    fn put(&self, record: Record) -> Result<(), JobError> {
        self.write(&record)?;
        self.know(record);
        Ok(())
    }

    /// Refuses an owner that keeps as many jobs, or as many bytes of them, as it may; what is on its way in counts, but for
    /// the job `id` itself.
    fn check(&self, known: &Known, id: &str, owner: &str, bytes: u64) -> Result<(), ServerError> {
        let (mut all, mut mine) = ((1, bytes), (1, bytes));
        let kept = known.records.values().map(|r| (r.owner.as_str(), r.bytes));
        let coming = known.coming.iter().filter(|(coming, _)| *coming != id);
        for (whose, bytes) in kept.chain(coming.map(|(_, (owner, bytes))| (owner.as_str(), *bytes))) {
            let add = |sum: (usize, u64)| (sum.0 + 1, sum.1.saturating_add(bytes));
            all = add(all);
            if whose == owner {
                mine = add(mine);
            }
        }
        let is_over = |has: (usize, u64), count, bytes| has.0 > count || has.1 > bytes;
        if is_over(mine, self.limits.jobs_per_key, self.limits.job_bytes_per_key) {
            Err(ServerError::Quota("this key keeps as many jobs as it may: delete those that are over"))
        } else if is_over(all, self.limits.jobs, self.limits.job_bytes) {
            Err(ServerError::Quota("this server keeps as many jobs as it may: try again later"))
        } else {
            Ok(())
        }
    }

    /// Room for a recording that comes in, until the value is dropped.
    pub(super) fn reserve(
        self: &Arc<Self>,
        id: &str,
        owner: &str,
        bytes: u64,
    ) -> Result<Coming, ServerError> {
        let mut known = lock(&self.known);
        self.check(&known, id, owner, bytes)?;
        known.coming.insert(id.to_owned(), (owner.to_owned(), bytes));
        Ok(Coming { jobs: self.clone(), id: id.to_owned() })
    }

    pub(super) fn add(&self, order: Order) -> Result<View, ServerError> {
        let _one_at_a_time = lock(&self.writing);
        self.check(&lock(&self.known), &order.id, &order.owner, order.bytes)?;
        let (spooled, input) = (order.spooled.clone(), self.input(&order.id));
        fs::rename(&spooled, &input).map_err(ServerError::spooling)?;
        let record = Record::new(order);
        let view = record.view();
        self.put(record).map_err(|error| {
            let _ = fs::remove_file(&input);
            refused(&error)
        })?;
        Ok(view)
    }

    fn record(&self, owner: &str, id: &str) -> Result<Record, ServerError> {
        let known = lock(&self.known);
        let found = known.records.get(id).filter(|r| r.owner == owner);
        found.cloned().ok_or_else(|| ServerError::UnknownJob(crate::core::query::short(id)))
    }

    pub(super) fn get(&self, owner: &str, id: &str) -> Result<View, ServerError> {
        self.record(owner, id).map(|r| r.view())
    }

    pub(super) fn list(&self, owner: &str) -> Vec<View> {
        let known = lock(&self.known);
        let mut views: Vec<View> =
            known.records.values().filter(|r| r.owner == owner).map(Record::view).collect();
        drop(known);
        views.sort_by(|a, b| (b.created, &b.id).cmp(&(a.created, &a.id)));
        views
    }

    pub(super) async fn changed(&self, owner: &str, seen: &View) -> Result<View, ServerError> {
        let mut changes = self.subscribe();
        loop {
            let view = self.get(owner, &seen.id)?;
            if view != *seen {
                return Ok(view);
            }
            // The sender lives as long as this value.
            let _ = changes.changed().await;
        }
    }

    pub(super) fn result(&self, owner: &str, id: &str) -> Result<(View, Vec<u8>), ServerError> {
        let view = self.get(owner, id)?;
        if view.phase != Phase::Done {
            return Err(no_result(&view));
        }
        let bytes = fs::read(self.path(id, RESULT)).map_err(ServerError::spooling)?;
        Ok((view, bytes))
    }

    pub(super) fn remove(&self, owner: &str, id: &str) -> Result<Option<View>, ServerError> {
        let _one_at_a_time = lock(&self.writing);
        let record = self.record(owner, id)?;
        if record.phase.is_over() {
            self.forget(id);
            return Ok(None);
        }
        let record = record.turned(Phase::Cancelled);
        let view = record.view();
        self.put(Record { bytes: 0, ..record }).map_err(|e| refused(&e))?;
        let stop = lock(&self.known).stops.get(id).cloned();
        match stop {
            // Whoever does it stops, and leaves nothing behind.
            Some(stop) => stop.store(true, Ordering::Relaxed),
            None => self.clear(id),
        }
        Ok(Some(view))
    }

    /// Removes all that a job needs no more once it is over.
    fn clear(&self, id: &str) {
        for what in [INPUT, CHECKPOINT] {
            let _ = fs::remove_file(self.path(id, what));
        }
    }

    fn forget(&self, id: &str) {
        self.clear(id);
        let _ = fs::remove_file(self.path(id, RESULT));
        let _ = fs::remove_file(self.path(id, RECORD));
        lock(&self.known).records.remove(id);
        self.tell();
    }

    /// The next job, and the switch that stops it: the oldest of the owner that has the fewest at work.
    pub(super) fn next(&self) -> Option<(Record, Arc<AtomicBool>)> {
        let _one_at_a_time = lock(&self.writing);
        loop {
            let record = {
                let known = lock(&self.known);
                let running = |owner: &str| {
                    let at_work = |id: &&String| known.records.get(*id).is_some_and(|r| r.owner == owner);
                    known.stops.keys().filter(at_work).count()
                };
                let waiting = known.records.values().filter(|r| r.phase == Phase::Waiting);
                let waiting = waiting.filter(|r| !known.stops.contains_key(&r.id));
                waiting.min_by_key(|r| (running(&r.owner), r.created, r.id.clone())).cloned()?
            };
            if record.tries >= JOB_TRIES {
                let message =
                    format!("begun {} times and never ended: the server died over it", record.tries);
                let failed = Record {
                    error: Some(Fault::new("abandoned", message)),
                    bytes: 0,
                    ..record.turned(Phase::Failed)
                };
                self.put_or_warn(failed);
                continue;
            }
            let running = Record { tries: record.tries + 1, ..record.turned(Phase::Running) };
            let stop = Arc::<AtomicBool>::default();
            lock(&self.known).stops.insert(record.id.clone(), stop.clone());
            self.put_or_warn(running.clone());
            return Some((running, stop));
        }
    }

    /// A record that cannot be written is known all the same; after a crash the job would only be done again. What a job
    /// that is over needs no more goes before anybody is told.
    fn put_or_warn(&self, record: Record) {
        if let Err(error) = self.write(&record) {
            tracing::error!(job = record.id, %error, "a job's state cannot be written");
        }
        if record.phase.is_over() {
            self.clear(&record.id);
        }
        self.know(record);
    }

    /// Notes how far a job is.
    pub(super) fn heard(&self, id: &str, seconds: f64) {
        if let Some(record) = lock(&self.known).records.get_mut(id) {
            record.heard = seconds;
        }
        let mut told = lock(&self.told);
        if told.elapsed() >= TELL {
            *told = Instant::now();
            drop(told);
            self.tell();
        }
    }

    pub(super) fn keep_checkpoint(&self, id: &str, checkpoint: &Checkpoint) -> Result<(), JobError> {
        self.folder.keep(&format!("{id}.{CHECKPOINT}"), &checkpoint.to_bytes())
    }

    pub(super) fn checkpoint(&self, id: &str) -> Option<Checkpoint> {
        Checkpoint::from_bytes(&fs::read(self.path(id, CHECKPOINT)).ok()?)
    }

    /// Keeps what became of a job that was begun. What it is now.
    pub(super) fn settle(&self, id: &str, outcome: Outcome) -> Phase {
        let _one_at_a_time = lock(&self.writing);
        let record = {
            let mut known = lock(&self.known);
            known.stops.remove(id);
            known.records.get(id).cloned()
        };
        let Some(record) = record else {
            self.clear(id);
            return Phase::Cancelled;
        };
        // What was cancelled meanwhile stays so.
        let outcome = if record.phase == Phase::Cancelled { Outcome::Cancelled } else { outcome };
        let now = match outcome {
            Outcome::Done(text, seconds) => {
                match self.folder.keep(&format!("{id}.{RESULT}"), text.as_bytes()) {
                    Ok(()) => Record {
                        seconds: Some(seconds),
                        bytes: text.len() as u64,
                        error: None,
                        ..record.turned(Phase::Done)
                    },
                    Err(error) => {
                        tracing::error!(job = id, %error, "a result cannot be kept");
                        let fault = Fault::new("no_space", refused(&error).to_string());
                        Record { error: Some(fault), bytes: 0, ..record.turned(Phase::Failed) }
                    }
                }
            }
            Outcome::Failed(fault) => Record { error: Some(fault), bytes: 0, ..record.turned(Phase::Failed) },
            Outcome::Cancelled => Record { bytes: 0, ..record.turned(Phase::Cancelled) },
            Outcome::Returned { counts } => {
                let tries = if counts { record.tries } else { record.tries.saturating_sub(1) };
                Record { tries, ..record.turned(Phase::Waiting) }
            }
        };
        let phase = now.phase;
        self.put_or_warn(now);
        phase
    }

    /// Forgets jobs that have been over for as long as they are kept.
    pub(super) fn sweep(&self) {
        let _one_at_a_time = lock(&self.writing);
        let before = now().saturating_sub(self.keep.as_secs());
        let is_old = |r: &&Record| r.phase.is_over() && r.updated <= before;
        let old: Vec<String> =
            lock(&self.known).records.values().filter(is_old).map(|r| r.id.clone()).collect();
        old.iter().for_each(|id| self.forget(id));
    }

    /// Jobs in each phase, and the bytes that all of them take.
    pub(crate) fn counts(&self) -> ([usize; Phase::ALL.len()], u64) {
        let known = lock(&self.known);
        let count = |phase| known.records.values().filter(|r| r.phase == phase).count();
        (Phase::ALL.map(count), known.records.values().map(|r| r.bytes).sum())
    }
}

/// What a client reads where nothing could be written down.
fn refused(error: &JobError) -> ServerError {
    match error {
        JobError::Keep { source, .. } => {
            ServerError::spooling(std::io::Error::new(source.kind(), source.to_string()))
        }
        _ => ServerError::Internal,
    }
}

/// Why a job has no result.
pub(super) fn no_result(view: &View) -> ServerError {
    let text = match (&view.error, view.phase) {
        (Some(fault), Phase::Failed) => format!("this job failed: {}", fault.message),
        (_, Phase::Cancelled) => "this job was cancelled: it has no result".into(),
        _ => format!("this job is {}: its result comes once it is completed", view.status()),
    };
    ServerError::NoResult(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(jobs: &JobFolder, id: &str, owner: &str) -> Order {
        let spooled = jobs.spool(id);
        fs::write(&spooled, id).unwrap();
        Order {
            id: id.into(),
            owner: owner.into(),
            model: "m".into(),
            settings: voce_jobs::HearSettings::default(),
            name: "a.wav".into(),
            extension: Some("wav".into()),
            spooled,
            bytes: 10,
        }
    }

    fn open(dir: &Path, limits: Limits) -> Arc<JobFolder> {
        Arc::new(JobFolder::open(dir, limits, Duration::from_secs(60)).unwrap())
    }

    #[test]
    fn jobs_are_found_again_and_no_key_has_all_hands() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = open(dir.path(), Limits::default());
        for (id, owner) in [("1", "anna"), ("2", "anna"), ("3", "bert")] {
            jobs.add(order(&jobs, id, owner)).unwrap();
        }
        // Another process is told to go elsewhere.
        assert!(JobFolder::open(dir.path(), Limits::default(), KEEP).is_err());
        let next = |jobs: &JobFolder| jobs.next().map(|(record, _)| record.id);
        assert_eq!([next(&jobs), next(&jobs)], [Some("1".into()), Some("3".into())]);
        assert_eq!(jobs.settle("3", Outcome::Done("text".into(), 1.5)), Phase::Done);
        // As a kill leaves it: one runs, one waits, one is done, an upload is half here.
        fs::write(jobs.spool("4"), "half").unwrap();
        fs::write(dir.path().join("5.input"), "nobody was told").unwrap();
        drop(jobs);
        let jobs = open(dir.path(), Limits::default());
        assert_eq!(jobs.counts().0, [2, 0, 1, 0, 0]);
        assert!(!jobs.spool("4").exists() && !jobs.input("5").exists() && jobs.input("1").exists());
        assert_eq!(jobs.result("bert", "3").unwrap().1, b"text");
        assert_eq!(jobs.get("anna", "3").unwrap_err().code(), "job_not_found");
        assert_eq!(jobs.result("anna", "1").unwrap_err().code(), "no_result");
        assert_eq!([next(&jobs), next(&jobs), next(&jobs)], [Some("1".into()), Some("2".into()), None]);
    }

    const KEEP: Duration = Duration::from_secs(60);

    #[test]
    fn a_job_that_kills_its_server_is_given_up_and_one_that_was_stopped_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = open(dir.path(), Limits::default());
        jobs.add(order(&jobs, "1", "anna")).unwrap();
        for _ in 0..2 * JOB_TRIES {
            jobs.next().unwrap();
            jobs.settle("1", Outcome::Returned { counts: false });
        }
        for _ in 0..JOB_TRIES {
            jobs.next().unwrap();
            jobs.settle("1", Outcome::Returned { counts: true });
        }
        assert!(jobs.next().is_none());
        let view = jobs.get("anna", "1").unwrap();
        assert_eq!((view.phase, view.error.unwrap().code.as_str()), (Phase::Failed, "abandoned"));
    }

    #[test]
    fn cancelled_jobs_leave_nothing_and_quotas_hold() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { jobs_per_key: 2, jobs: 3, job_bytes_per_key: 20, ..Limits::default() };
        let jobs = open(dir.path(), limits);
        jobs.add(order(&jobs, "1", "anna")).unwrap();
        jobs.add(order(&jobs, "2", "anna")).unwrap();
        assert_eq!(jobs.add(order(&jobs, "3", "anna")).unwrap_err().code(), "over_quota");
        jobs.add(order(&jobs, "4", "bert")).unwrap();
        assert_eq!(jobs.add(order(&jobs, "5", "bert")).unwrap_err().code(), "over_quota");
        assert_eq!(jobs.remove("bert", "1").unwrap_err().code(), "job_not_found");
        let (_, stop) = jobs.next().unwrap();
        assert_eq!(jobs.remove("anna", "1").unwrap().unwrap().phase, Phase::Cancelled);
        assert!(stop.load(Ordering::Relaxed));
        // What it was about to become does not matter any more.
        assert_eq!(jobs.settle("1", Outcome::Done("text".into(), 1.0)), Phase::Cancelled);
        assert_eq!(jobs.remove("anna", "2").unwrap().unwrap().phase, Phase::Cancelled);
        assert!(!jobs.input("1").exists() && !jobs.input("2").exists());
        let reserve = |bytes| jobs.reserve("6", "anna", bytes).map_err(|e| e.code());
        // Those that are over are forgotten when they are removed once more, and only then there is room.
        assert_eq!(reserve(20).err(), Some("over_quota"));
        assert!(jobs.remove("anna", "1").unwrap().is_none());
        assert_eq!(reserve(21).err(), Some("over_quota"));
        let coming = reserve(20).unwrap();
        // What comes in counts, for others.
        assert!(jobs.reserve("7", "anna", 0).is_err());
        drop(coming);
        assert!(jobs.reserve("7", "anna", 0).is_ok());
        assert_eq!(jobs.list("anna").len(), 1);
    }
}
