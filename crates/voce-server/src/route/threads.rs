//! The threads of a router. Each has an event loop of its own, and a connection stays with the one it began on, with its
//! machine's socket: a frame wakes one thread, once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Connections of a thread before another one is used: those of one thread share its wake-ups, and this many leave it idle for
/// most of the time.
const CONNECTIONS: usize = 1024;

/// Threads that run until the value is dropped; what they run then is dropped too.
pub(super) struct Threads(Vec<Thread>);

struct Thread {
    handle: Handle,
    load: Arc<AtomicUsize>,
    _stop: oneshot::Sender<()>,
}

/// A connection of a thread.
pub(super) struct Seat {
    load: Arc<AtomicUsize>,
    /// Where it is.
    pub(super) thread: Handle,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Threads {
    /// Starts this many.
    pub(super) fn start(threads: usize) -> io::Result<Self> {
        (0..threads.max(1)).map(Thread::start).collect::<io::Result<_>>().map(Self)
    }

    /// A place on one of them.
    pub(super) fn seat(&self) -> Seat {
        let loads: Vec<usize> = self.0.iter().map(|thread| thread.load.load(Ordering::Relaxed)).collect();
        let thread = &self.0[choose(&loads)];
        thread.load.fetch_add(1, Ordering::Relaxed);
        Seat { load: thread.load.clone(), thread: thread.handle.clone() }
    }
}

impl Thread {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name(format!("route-{number}")).spawn(move || {
            // The sender never sends: it is dropped.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, load: Arc::default(), _stop: stop })
    }
}

/// The emptiest of as many threads as there are connections for.
fn choose(loads: &[usize]) -> usize {
    let used = (loads.iter().sum::<usize>() / CONNECTIONS + 1).min(loads.len());
    (0..used).min_by_key(|i| loads[*i]).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_used_as_connections_come() {
        let mut loads = [0; 3];
        for connections in 1..10 * CONNECTIONS {
            loads[choose(&loads)] += 1;
            let used = loads.iter().filter(|load| **load > 0).count();
            assert_eq!(used, connections.div_ceil(CONNECTIONS).min(3), "{loads:?}");
        }
        assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{loads:?}");
    }

    #[test]
    fn a_place_is_free_when_it_is_left_and_all_end_with_the_threads() {
        let threads = Threads::start(1).unwrap();
        let (one, two) = (threads.seat(), threads.seat());
        assert_eq!(threads.0[0].load.load(Ordering::Relaxed), 2);
        drop(one);
        assert_eq!(threads.0[0].load.load(Ordering::Relaxed), 1);
        let (held, dropped) = std::sync::mpsc::sync_channel::<()>(1);
        two.thread.spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        drop(threads);
        assert!(dropped.recv().is_err());
    }
}
