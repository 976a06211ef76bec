//! Waiting for a stream: until something comes, the time is up, or another thread cancels.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use voce_engine::wait_for;

use crate::status::{Fault, Outcome};

/// How often somebody who waits looks whether it was cancelled.
const LOOK: Duration = Duration::from_millis(20);

/// Why a wait ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Another thread cancelled.
    Cancelled,
    /// The time is up.
    Timeout,
}

/// Waits for `poll`, `timeout_ms` at most; negative is for ever, and 0 does not wait.
pub(crate) fn wait<T>(
    timeout_ms: i32,
    cancelled: &AtomicBool,
    poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<T, Stop> {
    let end = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
    let every = if timeout_ms < 0 { LOOK } else { LOOK.min(Duration::from_millis(timeout_ms as u64)) };
    wait_for(every, poll, || match end {
        _ if cancelled.load(Ordering::Relaxed) => Err(Stop::Cancelled),
        Some(end) if Instant::now() >= end => Err(Stop::Timeout),
        _ => Ok(()),
    })
}

/// How a stream ended, for its reader. Cancelling lets go of the sender as well: what the stream made of that (its end,
/// or audio that broke off) is no news then.
pub(crate) fn unless_cancelled(cancelled: &AtomicBool, ended: Outcome) -> Outcome {
    if cancelled.load(Ordering::Relaxed) { Err(Fault::cancelled()) } else { ended }
}

/// The lock's value, whoever panicked while holding it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_cancelling_end_a_wait() {
        let (no, yes) = (AtomicBool::new(false), AtomicBool::new(true));
        let never = |_: &mut Context<'_>| Poll::<()>::Pending;
        assert_eq!(wait(0, &no, never), Err(Stop::Timeout));
        assert_eq!(wait(5, &no, never), Err(Stop::Timeout));
        assert_eq!(wait(-1, &yes, never), Err(Stop::Cancelled));
        assert_eq!(wait(0, &no, |_| Poll::Ready(3)), Ok(3));
    }
}
