//! When a stream looks at ends that say nothing: once a second, together with others, and without a look at the timer for
//! every frame.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, Sleep};

/// How often, and in how many groups: streams of a group are looked at together.
const TICK: Duration = Duration::from_secs(1);
const GROUPS: u32 = 8;

/// The ticks of one task, which alone polls them.
pub(super) struct Ticks {
    timer: Pin<Box<Sleep>>,
    /// The timer wakes the task then: until then it need not be asked.
    set: Option<Instant>,
}

impl Ticks {
    /// From the next second on.
    pub(super) fn new() -> Self {
        Self { timer: Box::pin(tokio::time::sleep(next())), set: None }
    }

    /// Whether it is time.
    pub(super) fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.set.is_some_and(|due| Instant::now() < due) {
            return Poll::Pending;
        }
        self.set = Some(self.timer.deadline());
        ready!(self.timer.as_mut().poll(cx));
        self.timer.as_mut().reset(Instant::now() + next());
        self.set = None;
        Poll::Ready(())
    }
}

/// How long it is to the next tick: a second, less what has passed of a group's time by the clock on the wall.
fn next() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let past = now.as_nanos() % (TICK / GROUPS).as_nanos();
    TICK - Duration::from_nanos(past as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tick_comes_whatever_else_wakes_the_task() {
        let mut ticks = Ticks::new();
        for _ in 0..2 {
            let mut others = 0;
            loop {
                tokio::select! {
                    biased;
                    () = std::future::poll_fn(|cx| ticks.poll_tick(cx)) => break,
                    () = tokio::time::sleep(Duration::from_millis(10)) => others += 1,
                }
            }
            assert!(others > 0);
        }
    }

    #[test]
    fn a_group_shares_its_time() {
        assert!((0..1000).all(|_| (TICK - TICK / GROUPS..=TICK).contains(&next())));
    }
}
