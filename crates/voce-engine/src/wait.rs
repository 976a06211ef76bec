//! Waiting for a stream on a thread of the caller's that has to look up from time to time: for a signal, a deadline, a
//! switch that another thread throws.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker that unparks the thread which asks for it.
pub fn unpark_waker() -> Waker {
    Waker::from(Arc::new(Unpark(std::thread::current())))
}

/// Waits on this thread until `poll` has something, as soon as its waker is called and at least every `every`; `look` is
/// asked each time before it waits, and its error ends the waiting.
pub fn wait_for<T, E>(
    every: Duration,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    mut look: impl FnMut() -> Result<(), E>,
) -> Result<T, E> {
    let waker = unpark_waker();
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = poll(&mut cx) {
            return Ok(value);
        }
        look()?;
        std::thread::park_timeout(every);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_waited_for_and_a_look_ends_the_waiting() {
        let never = |_: &mut Context<'_>| Poll::<()>::Pending;
        let there = wait_for(Duration::MAX, |_| Poll::Ready(7), || Err(()));
        assert_eq!(there, Ok(7));
        let mut looks = 0;
        let ended = wait_for(Duration::ZERO, never, || {
            looks += 1;
            if looks == 3 { Err("enough") } else { Ok(()) }
        });
        assert_eq!((ended, looks), (Err("enough"), 3));
    }

    #[test]
    fn a_waker_ends_the_waiting() {
        let (send, receive) = std::sync::mpsc::sync_channel::<Waker>(1);
        let other = std::thread::spawn(move || receive.recv().unwrap().wake());
        let mut polled = 0;
        let poll = |cx: &mut Context<'_>| {
            polled += 1;
            if polled == 1 {
                send.send(cx.waker().clone()).unwrap();
            }
            if polled == 2 { Poll::Ready(()) } else { Poll::Pending }
        };
        // Without the waker this would wait for ever.
        wait_for::<_, ()>(Duration::MAX, poll, || Ok(())).unwrap();
        other.join().unwrap();
    }
}
