//! A spin-then-park thread pool: one fork-join per op, static split, no stealing.
//!
//! An op of a streaming step lasts tens of microseconds, so workers spin for the next one and only
//! park when none comes for a while. The caller is worker 0.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};

use crate::RuntimeError;

/// The most threads a pool takes.
pub const MAX_THREADS: usize = 256;

/// Spins before a worker parks: about 100 microseconds.
const SPINS_BEFORE_PARK: u32 = 20_000;
/// Spins before the caller starts yielding its time slice while it waits for workers.
const SPINS_BEFORE_YIELD: u32 = 4_000;

type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts jobs; a change means a new job is in `job`.
    epoch: AtomicUsize,
    /// Workers that have not finished the current job.
    pending: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    panicked: AtomicBool,
    parked: Vec<AtomicBool>,
}

// SAFETY: `job` is written by the caller only while no worker runs (pending == 0) and read by workers
// after they see the new epoch (release/acquire).
unsafe impl Sync for Shared {}
// SAFETY: the job pointer is only dereferenced while the caller of `run` keeps the closure alive.
unsafe impl Send for Shared {}

/// Threads that run one closure together.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<(JoinHandle<()>, Thread)>,
}

impl Pool {
    /// A pool of `threads` workers, the caller included.
    pub fn new(threads: usize) -> Result<Self, RuntimeError> {
        if threads == 0 || threads > MAX_THREADS {
            return Err(RuntimeError::Threads(threads));
        }
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            parked: (0..threads).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut pool = Self { shared, workers: Vec::new() };
        for id in 1..threads {
            let shared = pool.shared.clone();
            let handle = thread::Builder::new()
                .name(format!("voce-{id}"))
                .spawn(move || work(&shared, id))
                .map_err(RuntimeError::Spawn)?;
            let thread = handle.thread().clone();
            pool.workers.push((handle, thread));
        }
        Ok(pool)
    }

    /// How many threads run each job.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(worker)` on every worker and returns when all are done.
    pub fn run(&mut self, job: impl Fn(usize) + Sync) {
        if self.workers.is_empty() {
            return job(0);
        }
        let job: &(dyn Fn(usize) + Sync) = &job;
        // SAFETY: only the lifetime is erased; this function waits for every worker before returning
        // (also when `job(0)` panics, through `Wait`), so the closure outlives its use.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        let shared = &*self.shared;
        // SAFETY: no worker reads `job` now: pending is 0 since the last run ended.
        unsafe { *shared.job.get() = Some(erased) };
        shared.pending.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for (i, (_, thread)) in self.workers.iter().enumerate() {
            if shared.parked[i + 1].load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let wait = Wait(shared);
        job(0);
        drop(wait);
        if shared.panicked.swap(false, Ordering::Relaxed) {
            panic!("a pool worker panicked");
        }
    }
}

/// Waits for the workers when dropped.
struct Wait<'a>(&'a Shared);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut spins = 0u32;
        while self.0.pending.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < SPINS_BEFORE_YIELD { std::hint::spin_loop() } else { thread::yield_now() }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for (handle, thread) in self.workers.drain(..) {
            thread.unpark();
            let _ = handle.join();
        }
    }
}

fn work(shared: &Shared, id: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0u32;
        let epoch = loop {
            if shared.stop.load(Ordering::Relaxed) {
                return;
            }
            let epoch = shared.epoch.load(Ordering::Acquire);
            if epoch != seen {
                break epoch;
            }
            spins += 1;
            if spins < SPINS_BEFORE_PARK {
                std::hint::spin_loop();
                continue;
            }
            // Announce, look once more (the caller stores the epoch before it reads the flag), sleep.
            shared.parked[id].store(true, Ordering::SeqCst);
            if shared.epoch.load(Ordering::SeqCst) == seen && !shared.stop.load(Ordering::SeqCst) {
                thread::park();
            }
            shared.parked[id].store(false, Ordering::SeqCst);
            spins = 0;
        };
        seen = epoch;
        // SAFETY: the caller wrote `job` before the epoch we acquired and keeps it alive until
        // `pending` is 0.
        let job = unsafe { (*shared.job.get()).expect("a job comes with its epoch") };
        // SAFETY: as above.
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unsafe { (*job)(id) }));
        if ran.is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.pending.fetch_sub(1, Ordering::Release);
    }
}

/// The part of `0..n` that worker `id` of `threads` takes, in multiples of `grain`.
pub fn share(n: usize, grain: usize, id: usize, threads: usize) -> std::ops::Range<usize> {
    let units = n.div_ceil(grain);
    let at = |i: usize| (units * i / threads * grain).min(n);
    at(id)..at(id + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_worker_runs_every_job_once() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads).unwrap();
            let sums: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
            for round in 0..2_000u64 {
                pool.run(|id| {
                    sums[id].fetch_add(round + 1, Ordering::Relaxed);
                });
            }
            let want = 2_000 * 2_001 / 2;
            assert!(sums.iter().all(|s| s.load(Ordering::Relaxed) == want));
        }
    }

    #[test]
    fn parked_workers_wake_up() {
        let mut pool = Pool::new(3).unwrap();
        let count = AtomicU64::new(0);
        for _ in 0..3 {
            while !pool.shared.parked[1..].iter().all(|p| p.load(Ordering::SeqCst)) {
                thread::yield_now();
            }
            pool.run(|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(count.load(Ordering::Relaxed), 9);
    }

    #[test]
    fn a_panicking_worker_is_reported_and_the_pool_lives() {
        let mut pool = Pool::new(2).unwrap();
        let hit = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(|id| assert!(id == 0, "worker fails"));
        }));
        assert!(hit.is_err());
        let count = AtomicU64::new(0);
        pool.run(|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn shares_cover_everything_once() {
        for n in [0, 1, 15, 16, 17, 100] {
            for threads in 1..6 {
                let mut at = 0;
                for id in 0..threads {
                    let r = share(n, 16, id, threads);
                    assert_eq!(r.start, at.min(n));
                    at = r.end;
                }
                assert_eq!(at, n);
            }
        }
    }

    #[test]
    fn silly_thread_counts_are_refused() {
        assert!(Pool::new(0).is_err() && Pool::new(MAX_THREADS + 1).is_err());
    }
}
