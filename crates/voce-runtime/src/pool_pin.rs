//! Threads that stay on cores of their own: a pool that is made within [`Cores::hold`] pins its workers, and whoever calls it
//! pins itself with [`Cores::pin_caller`]. Linux only; elsewhere there are no cores to take.

use std::cell::RefCell;
use std::sync::Mutex;

thread_local! {
    /// Cores of the workers of pools that this thread makes now.
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Cores that were given out so far, in the order of [`order`].
static GIVEN: Mutex<usize> = Mutex::new(0);

/// Some cores of this machine, one for each thread of a pool, the caller's first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(Vec<usize>);

impl Cores {
    /// The next `n` cores that this process may use, first one of each pair that shares its units, and from the first on
    /// again when all were given out. None where there are fewer: threads that share a core are better left to the system.
    pub fn take(n: usize) -> Option<Self> {
        let all = order(allowed());
        if n == 0 || n > all.len() {
            return None;
        }
        let mut given = GIVEN.lock().unwrap_or_else(|e| e.into_inner());
        // A pool does not straddle the end, so that its threads are never on one core.
        if *given + n > all.len() {
            *given = 0;
        }
        let cores = all[*given..*given + n].to_vec();
        *given += n;
        Some(Self(cores))
    }

    /// Their numbers.
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }

    /// Makes pools whose workers are pinned to the cores after the first.
    pub fn hold<T>(&self, make: impl FnOnce() -> T) -> T {
        let rest = self.0.get(1..).unwrap_or_default().to_vec();
        let before = HELD.with(|held| held.replace(rest));
        let made = make();
        HELD.with(|held| *held.borrow_mut() = before);
        made
    }

    /// Pins this thread, which is to call the pool, to the first core. Returns whether it could be.
    pub fn pin_caller(&self) -> bool {
        self.0.first().is_some_and(|&core| pin(core))
    }
}

/// The core of a worker of the pool that this thread makes.
pub(crate) fn held(worker: usize) -> Option<usize> {
    HELD.with(|held| held.borrow().get(worker).copied())
}

/// Cores that come first of those that share their units, then the others.
fn order(cores: Vec<usize>) -> Vec<usize> {
    let is_first = |core: &usize| {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        let list = std::fs::read_to_string(path).unwrap_or_default();
        let digits = list.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok());
        digits.is_none_or(|first: usize| first == *core)
    };
    let (mut first, second): (Vec<usize>, Vec<usize>) = cores.into_iter().partition(is_first);
    first.extend(second);
    first
}

/// The cores that this thread may run on; none where that cannot be told.
#[cfg(target_os = "linux")]
pub fn allowed() -> Vec<usize> {
    // SAFETY: a set of cores is plain bits, for which zeros are a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours and as large as is said; 0 is this thread.
    let failed = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0;
    if failed {
        return Vec::new();
    }
    // SAFETY: the numbers are below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

/// The cores that this thread may run on; none where that cannot be told.
#[cfg(not(target_os = "linux"))]
pub fn allowed() -> Vec<usize> {
    Vec::new()
}

/// Pins this thread to a core. Returns whether it could be.
#[cfg(target_os = "linux")]
pub(crate) fn pin(core: usize) -> bool {
    if core >= libc::CPU_SETSIZE as usize {
        return false;
    }
    // SAFETY: a set of cores is plain bits, for which zeros are a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is below the size of the set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the set is ours and as large as is said; 0 is this thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) == 0 }
}

/// Pins this thread to a core. Returns whether it could be.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_: usize) -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::pool::Pool;

    #[test]
    fn threads_of_a_pool_are_where_they_were_put() {
        // A thread of its own: pinning must not reach the other tests.
        std::thread::spawn(|| {
            let all = allowed();
            let threads = all.len().min(3);
            let cores = Cores::take(threads).unwrap();
            assert_eq!(cores.numbers().len(), threads);
            let mut pool = cores.hold(|| Pool::new(threads)).unwrap();
            assert_eq!(allowed(), all, "the maker is not pinned");
            assert!(cores.pin_caller());
            let (seen, barrier) = (Mutex::new(Vec::new()), Barrier::new(threads));
            pool.run(|_| {
                // Every thread takes one share.
                barrier.wait();
                seen.lock().unwrap().push(allowed());
            });
            let mut seen = seen.into_inner().unwrap();
            seen.sort();
            let mut expected: Vec<Vec<usize>> = cores.numbers().iter().map(|&c| vec![c]).collect();
            expected.sort();
            assert_eq!(seen, expected);
            // A pool that is not asked for pins nobody; its workers have the mask of their maker.
            assert_eq!(held(0), None);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn more_threads_than_cores_are_not_pinned() {
        assert_eq!(Cores::take(allowed().len() + 1), None);
        assert_eq!(Cores::take(0), None);
    }

    #[test]
    fn every_core_is_in_the_order_once() {
        let mut ordered = order(allowed());
        ordered.sort_unstable();
        assert_eq!(ordered, allowed());
    }
}
