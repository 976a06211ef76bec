//! A spin-then-park thread pool: one fork-join per op, a share for each thread.
//!
//! An op of a streaming step lasts tens of microseconds, so workers spin for the next one and only
//! park when none comes for a while. A job has as many shares as the pool has threads; whoever is there
//! takes the next one. On an idle machine every thread takes one; where a worker has lost its core to
//! another program, the caller does its share instead of waiting for it.
//!
//! Cores differ in speed: some are built smaller, and some share theirs with another program. The shares of a larger job
//! therefore come in parts. Each worker takes those of its own share, whose rows and weights its caches may still hold,
//! and then what its neighbours have not begun.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};

use crate::RuntimeError;

/// The most threads a pool takes.
pub const MAX_THREADS: usize = 256;

/// Spins before a worker parks: about 100 microseconds.
const SPINS_BEFORE_PARK: u32 = 20_000;
/// Spins before the caller starts yielding its time slice while it waits for workers.
const SPINS_BEFORE_YIELD: u32 = 2_000;
/// Bits of the claim word that count shares; the rest counts jobs.
const SHARE_BITS: u32 = 16;

/// Multiply-adds of the smallest part: some microseconds, in which a counter that two cores ask for does not show.
const PART_WORK: usize = 1 << 18;
/// Parts of a share at most.
const MOST_PARTS: u32 = 8;
/// Neighbours that a worker helps when its own share is done.
const HELPED: usize = 3;

type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// The job's number and, below it, the next share that nobody has taken.
    claim: AtomicU64,
    /// Shares that are not finished.
    pending: AtomicUsize,
    shares: u64,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    panicked: AtomicBool,
    parked: Vec<AtomicBool>,
    /// The next part of each share that nobody has taken.
    turns: Vec<Turn>,
}

/// A counter that shares no cache line with another.
#[derive(Default)]
#[repr(align(128))]
struct Turn(AtomicUsize);

// SAFETY: `job` is written by the caller only while every share of the last job is finished, and read by
// whoever has claimed a share of the current one, which cannot finish before that share does.
unsafe impl Sync for Shared {}
// SAFETY: the job pointer is only dereferenced while the caller of `run` keeps the closure alive.
unsafe impl Send for Shared {}

impl Shared {
    /// Takes the next share of the current job, if one is left.
    fn take(&self) -> Option<usize> {
        let mut seen = self.claim.load(Ordering::Relaxed);
        loop {
            let share = seen & ((1 << SHARE_BITS) - 1);
            if share >= self.shares {
                return None;
            }
            // Acquire pairs with the release that published the job.
            match self.claim.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(share as usize),
                Err(now) => seen = now,
            }
        }
    }

    /// Whether a share is left to take.
    fn has_work(&self) -> bool {
        self.claim.load(Ordering::SeqCst) & ((1 << SHARE_BITS) - 1) < self.shares
    }

    /// Runs a share that this thread has taken.
    fn finish(&self, share: usize) {
        // SAFETY: a share of the current job is ours, so its closure is in place and alive.
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unsafe {
            let job = (*self.job.get()).expect("a claimed share has a job");
            (*job)(share);
        }));
        if ran.is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
        self.pending.fetch_sub(1, Ordering::Release);
    }
}

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
            claim: AtomicU64::new(threads as u64),
            // Counts the workers down as they start.
            pending: AtomicUsize::new(threads - 1),
            shares: threads as u64,
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            parked: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            turns: (0..threads).map(|_| Turn::default()).collect(),
        });
        let mut pool = Self { shared, workers: Vec::new() };
        for id in 1..threads {
            let shared = pool.shared.clone();
            let core = crate::pool_pin::held(id - 1);
            let handle = thread::Builder::new()
                .name(format!("voce-{id}"))
                .spawn(move || {
                    // A core that cannot be had is no reason not to work.
                    if let Some(core) = core {
                        crate::pool_pin::pin(core);
                    }
                    work(&shared, id);
                })
                .map_err(RuntimeError::Spawn)?;
            let thread = handle.thread().clone();
            pool.workers.push((handle, thread));
        }
        // Whatever a starting thread allocates is not to fall into a step.
        while pool.shared.pending.load(Ordering::Acquire) != 0 {
            thread::yield_now();
        }
        Ok(pool)
    }

    /// Shares of each job, which is how many threads can run it.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(worker, share, parts)` for every share, where `worker` numbers who runs it: several may work on one share,
    /// and each does those of its parts that [`Parts`] gives it. `work` is about the job's multiply-adds.
    pub fn run_parts(&mut self, work: usize, job: impl Fn(usize, usize, &mut Parts<'_>) + Sync) {
        let threads = self.threads();
        let shared = self.shared.clone();
        let halvings = (work / threads / PART_WORK).checked_ilog2().unwrap_or(0);
        let pieces = if threads == 1 { 1 } else { (halvings + 1).min(MOST_PARTS) };
        shared.turns.iter().for_each(|turn| turn.0.store(0, Ordering::Relaxed));
        self.run(|worker| {
            let helped = if pieces > 1 { HELPED.min(threads - 1) } else { 0 };
            for share in (worker..=worker + helped).map(|share| share % threads) {
                job(worker, share, &mut Parts::new(&shared.turns[share].0, pieces));
            }
        });
    }

    /// Runs `job(share)` once for every share and returns when all are done.
    pub fn run(&mut self, job: impl Fn(usize) + Sync) {
        if self.workers.is_empty() {
            return job(0);
        }
        let job: &(dyn Fn(usize) + Sync) = &job;
        // SAFETY: only the lifetime is erased; this function waits for every share before returning, and
        // panics inside shares are caught, so the closure outlives its use.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        let shared = &*self.shared;
        // SAFETY: every share of the last job is finished and none of the next is out yet.
        unsafe { *shared.job.get() = Some(erased) };
        shared.pending.store(self.threads(), Ordering::Relaxed);
        let number = (shared.claim.load(Ordering::Relaxed) >> SHARE_BITS).wrapping_add(1);
        shared.claim.store(number << SHARE_BITS, Ordering::SeqCst);
        for (i, (_, thread)) in self.workers.iter().enumerate() {
            if shared.parked[i + 1].load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        while let Some(share) = shared.take() {
            shared.finish(share);
        }
        let mut spins = 0u32;
        while shared.pending.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < SPINS_BEFORE_YIELD { std::hint::spin_loop() } else { thread::yield_now() }
        }
        if shared.panicked.swap(false, Ordering::Relaxed) {
            panic!("a share of a job panicked");
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
    shared.pending.fetch_sub(1, Ordering::Release);
    let mut spins = 0u32;
    while !shared.stop.load(Ordering::Relaxed) {
        if let Some(share) = shared.take() {
            shared.finish(share);
            spins = 0;
            continue;
        }
        spins += 1;
        if spins < SPINS_BEFORE_PARK {
            std::hint::spin_loop();
            continue;
        }
        // Announce, look once more (the caller publishes the job before it reads the flag), sleep.
        shared.parked[id].store(true, Ordering::SeqCst);
        if !shared.has_work() && !shared.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        shared.parked[id].store(false, Ordering::SeqCst);
        spins = 0;
    }
}

/// Which parts of a share one of those who work on it takes. All of them ask for the same parts in the same order.
pub struct Parts<'a> {
    next: &'a AtomicUsize,
    /// How many a range is cut into.
    pieces: u32,
    /// The number of the part that is the caller's next, and of that which is asked for.
    mine: usize,
    asked: usize,
}

impl<'a> Parts<'a> {
    fn new(next: &'a AtomicUsize, pieces: u32) -> Self {
        // What a part reads was published with the job.
        Self { next, pieces, mine: next.fetch_add(1, Ordering::Relaxed), asked: 0 }
    }

    /// The parts of a range that the caller takes, cut in multiples of `grain`: a half, a quarter and so on, so that little
    /// is left for one alone at the end.
    pub fn of(&mut self, range: Range<usize>, grain: usize) -> impl Iterator<Item = Range<usize>> {
        (0..self.pieces).filter_map(move |piece| {
            let is_mine = self.asked == self.mine;
            self.asked += 1;
            if !is_mine {
                return None;
            }
            self.mine = self.next.fetch_add(1, Ordering::Relaxed);
            let units = range.len().div_ceil(grain);
            let at = |piece: u32| {
                let left = if piece == self.pieces { 0 } else { units >> piece };
                range.start + ((units - left) * grain).min(range.len())
            };
            Some(at(piece)..at(piece + 1))
        })
    }
}

/// The part of `0..n` that worker `id` of `threads` takes, in multiples of `grain`.
pub fn share(n: usize, grain: usize, id: usize, threads: usize) -> Range<usize> {
    let units = n.div_ceil(grain);
    let at = |i: usize| (units * i / threads * grain).min(n);
    at(id)..at(id + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_share_of_every_job_runs_once() {
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
    fn every_part_of_every_range_is_taken_once_and_help_comes() {
        for threads in [1, 2, 3, 6] {
            let mut pool = Pool::new(threads).unwrap();
            for (round, work) in (0..600).zip([usize::MAX, 0, 6 * PART_WORK].into_iter().cycle()) {
                let seen: Vec<AtomicU64> = (0..300).map(|_| AtomicU64::new(0)).collect();
                pool.run_parts(work, |worker, s, parts| {
                    // Two ranges one after the other, the first of which has fewer rows than parts.
                    for (first, n) in [(0, 5), (5, 295)] {
                        for part in parts.of(share(n, 1, s, threads), 4) {
                            if round % 50 == 0 && worker == 1 {
                                thread::yield_now();
                            }
                            for i in part {
                                seen[first + i].fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                });
                assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1), "{threads} threads, {round}");
            }
        }
        // A worker that is held up in its first part leaves the rest of its share to the others.
        let mut pool = Pool::new(2).unwrap();
        let done = AtomicU64::new(0);
        let all = 2 * u64::from(MOST_PARTS);
        pool.run_parts(usize::MAX, |worker, s, parts| {
            for _ in parts.of(0..1000, 1) {
                if s == 1 && worker == 1 {
                    while done.load(Ordering::Acquire) < all - 1 {
                        std::hint::spin_loop();
                    }
                }
                done.fetch_add(1, Ordering::Release);
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), all);
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
    fn a_panicking_share_is_reported_and_the_pool_lives() {
        let mut pool = Pool::new(2).unwrap();
        let hit = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(|share| assert!(share == 0, "this share fails"));
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
