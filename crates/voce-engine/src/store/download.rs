//! One file from the hub into the cache: under a lock, resuming, retrying, checked, and put in place in one step.

use std::fs::{File, TryLockError};
use std::io::Read as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::catalogue::HubFile;
use super::error::StoreError;
use super::hub::{FileMeta, Hub, Trouble, header};
use super::layout::{RepoCache, make_parent};
use super::partial::Partial;
use super::progress::{Cancel, Event};
use super::settings::Patience;
use crate::breaker::{Breaker, jittered};

const CHUNK: usize = 64 << 10;
const LOCK_POLL: Duration = Duration::from_millis(50);

/// What a transfer needs to know besides the file.
pub(super) struct Transfer<'a> {
    pub(super) hub: &'a Hub<'a>,
    pub(super) patience: Patience,
    pub(super) breaker: &'a Breaker,
    pub(super) cancel: &'a Cancel,
    pub(super) report: &'a mut dyn FnMut(&Event<'_>),
}

/// Counts failures in a row.
struct Failures {
    count: u32,
    best: u64,
}

impl Transfer<'_> {
    /// Calls `attempt` until it works, fails for good, or patience ends.
    pub(super) fn patiently<T>(
        &mut self,
        what: &str,
        mut attempt: impl FnMut(&Hub<'_>) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        let mut failures = Failures { count: 0, best: 0 };
        loop {
            self.check_cancel()?;
            match self.guarded(what, |this| (attempt(this.hub), false)) {
                Ok(value) => return Ok(value),
                Err(trouble) => self.after(what, trouble, 0, &mut failures)?,
            }
        }
    }

    /// One call behind the breaker, which also says whether bytes came. Those, or an answer of any kind, are a
    /// success: the hub is there.
    fn guarded<T>(
        &mut self,
        what: &str,
        call: impl FnOnce(&mut Self) -> (Result<T, Trouble>, bool),
    ) -> Result<T, Trouble> {
        let breaker = self.breaker;
        let pass = breaker.enter().map_err(|resting| StoreError::Resting {
            what: what.to_owned(),
            seconds: resting.0.as_secs_f64().ceil() as u64,
        })?;
        let (result, came) = call(self);
        match &result {
            Err(_) if self.cancel.is_cancelled() => drop(pass),
            Err(Trouble::Fatal(StoreError::Network { .. }) | Trouble::Retry { .. }) if !came => pass.failed(),
            _ => pass.succeeded(),
        }
        result
    }

    fn check_cancel(&self) -> Result<(), StoreError> {
        if self.cancel.is_cancelled() { Err(StoreError::Cancelled) } else { Ok(()) }
    }

    /// Waits before the next try, or says why there will be none.
    fn after(
        &mut self,
        what: &str,
        trouble: Trouble,
        len: u64,
        failures: &mut Failures,
    ) -> Result<(), StoreError> {
        self.check_cancel()?;
        let (wait, reason) = match trouble {
            Trouble::Fatal(error) => return Err(error),
            Trouble::Retry { wait, reason } => (wait, reason),
        };
        if len > failures.best {
            failures.best = len;
            failures.count = 0;
        }
        failures.count += 1;
        if failures.count > self.patience.retries {
            return Err(StoreError::Network { what: what.to_owned(), reason });
        }
        let doubled = self.patience.first_wait.saturating_mul(1 << (failures.count - 1).min(16));
        // A server that says when is obeyed; else those who failed together should not come back together.
        let wait = wait.unwrap_or_else(|| jittered(doubled)).min(self.patience.longest_wait);
        tracing::debug!(what, %reason, ?wait, "retrying");
        (self.report)(&Event::Retrying { file: what, attempt: failures.count, wait, reason: &reason });
        if self.cancel.wait(wait) { Err(StoreError::Cancelled) } else { Ok(()) }
    }

    /// Brings `file`, whose revision is a commit, into the cache.
    pub(super) fn fetch(
        &mut self,
        cache: &RepoCache,
        file: &HubFile,
        meta: &FileMeta,
    ) -> Result<PathBuf, StoreError> {
        let blob = cache.blob(&meta.etag);
        make_parent(&blob)?;
        let lock = self.lock(cache, file, meta)?;
        if !blob.metadata().is_ok_and(|found| found.len() == meta.size) {
            match self.transfer(cache, file, meta) {
                // Bytes of an earlier run may be to blame: once more from the start.
                Err((StoreError::Damaged { .. }, true)) => {
                    tracing::warn!(file = file.path, "a partial file was damaged; starting over");
                    self.transfer(cache, file, meta).map_err(|(error, _)| error)?;
                }
                other => other.map_err(|(error, _)| error)?,
            }
        }
        let pointer = cache.link(&file.revision, &file.path, &meta.etag)?;
        drop(lock);
        Ok(pointer)
    }

    fn lock(&mut self, cache: &RepoCache, file: &HubFile, meta: &FileMeta) -> Result<File, StoreError> {
        let path = cache.lock(&meta.etag);
        make_parent(&path)?;
        let lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(StoreError::io("open", &path))?;
        let mut told = false;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
                    return Ok(lock);
                }
                Err(TryLockError::Error(error)) => return Err(StoreError::io("lock", &path)(error)),
            }
            if !std::mem::replace(&mut told, true) {
                (self.report)(&Event::Waiting { file: &file.path });
            }
            if self.cancel.wait(LOCK_POLL) {
                return Err(StoreError::Cancelled);
            }
        }
    }

    /// The error comes with whether bytes of an earlier run were in use.
    fn transfer(
        &mut self,
        cache: &RepoCache,
        file: &HubFile,
        meta: &FileMeta,
    ) -> Result<(), (StoreError, bool)> {
        let mut partial = Partial::open(&cache.partial(&meta.etag), meta).map_err(|error| (error, false))?;
        let resumed = partial.len();
        let fail = |error| (error, resumed > 0);
        (self.report)(&Event::Started { file: &file.path, resumed, total: meta.size });
        let started = Instant::now();
        let mut failures = Failures { count: 0, best: resumed };
        while !partial.is_whole() {
            self.check_cancel().map_err(fail)?;
            let from = partial.len();
            let what = format!("{}/{}", file.repo, file.path);
            let read = self.guarded(&what, |this| {
                let read = this.read_some(&mut partial, file, meta, started, resumed);
                (read, partial.len() > from)
            });
            if let Err(trouble) = read {
                self.after(&what, trouble, partial.len(), &mut failures).map_err(fail)?;
            } else if partial.len() == from && !partial.is_whole() {
                let trouble = Trouble::Retry { wait: None, reason: "an empty reply".to_owned() };
                self.after(&file.path, trouble, from, &mut failures).map_err(fail)?;
            }
        }
        partial.finish(&file.path, &cache.blob(&meta.etag)).map_err(fail)
    }

    fn read_some(
        &mut self,
        partial: &mut Partial,
        file: &HubFile,
        meta: &FileMeta,
        started: Instant,
        resumed: u64,
    ) -> Result<(), Trouble> {
        let from = partial.len();
        let response = self.hub.get(file, from)?;
        let starts_at = match response.status().as_u16() {
            206 => header(&response, "content-range").and_then(range_start),
            200 => Some(0),
            _ => None,
        };
        if starts_at != Some(from) {
            // The range was ignored, or answered with another: only the start is safe.
            partial.restart()?;
            if starts_at != Some(0) {
                return Err(Trouble::Retry { wait: None, reason: "the range was not served".to_owned() });
            }
        }
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; CHUNK];
        loop {
            self.check_cancel()?;
            match body.read(&mut buffer) {
                Ok(0) if partial.is_whole() => return Ok(()),
                Ok(0) => {
                    return Err(Trouble::Retry { wait: None, reason: "the reply ended early".to_owned() });
                }
                Ok(n) => {
                    partial.push(&buffer[..n])?;
                    let fresh = partial.len().saturating_sub(resumed) as f64;
                    let seconds = started.elapsed().as_secs_f64().max(1e-6);
                    (self.report)(&Event::Bytes {
                        file: &file.path,
                        done: partial.len(),
                        total: meta.size,
                        bytes_per_second: fresh / seconds,
                    });
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::Retry { wait: None, reason: error.to_string() }),
            }
        }
    }
}

/// The first byte that `Content-Range: bytes 5-9/10` speaks of.
fn range_start(header: &str) -> Option<u64> {
    header.trim().strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}
