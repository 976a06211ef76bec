//! Planted faults, for tests: with the feature `fault` a model's threads can be made to panic or to wait at named points.
//! Without it nothing of this is in the build but an empty struct.

/// Where a fault can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPoint {
    /// At the begin of a step of the model thread.
    Step,
    /// At the begin of a step of the codec.
    Codec,
    /// In what the model thread does for one stream alone.
    Stream,
    /// While a speaker's streams begin.
    Begin,
    /// While a voice is cloned.
    Clone,
}

#[cfg(feature = "fault")]
mod planted {
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::Duration;

    use super::FaultPoint;
    use crate::wake::lock;

    /// How long a test waits for a thread to come to a point.
    const LIMIT: Duration = Duration::from_secs(120);

    #[derive(Debug, Default)]
    struct Inside {
        panics: Vec<FaultPoint>,
        holds: Vec<FaultPoint>,
        /// Threads that wait now.
        held: usize,
    }

    /// The faults of one model; clones share them.
    #[derive(Clone, Debug, Default)]
    pub struct Faults(Arc<(Mutex<Inside>, Condvar)>);

    impl Faults {
        /// The next pass of the point panics.
        pub fn panic_at(&self, point: FaultPoint) {
            lock(&self.0.0).panics.push(point);
        }

        /// Passes of the point wait until they are [let go](Self::release).
        pub fn hold_at(&self, point: FaultPoint) {
            lock(&self.0.0).holds.push(point);
        }

        /// Waits until a thread waits at a point; panics where none comes there.
        pub fn wait_held(&self) {
            let inside = lock(&self.0.0);
            let waited = self.0.1.wait_timeout_while(inside, LIMIT, |inside| inside.held == 0);
            let (inside, _) = waited.unwrap_or_else(|e| e.into_inner());
            assert!(inside.held > 0, "no thread came to {:?} within {LIMIT:?}", inside.holds);
        }

        /// Lets all go on.
        pub fn release(&self) {
            lock(&self.0.0).holds.clear();
            self.0.1.notify_all();
        }

        pub(crate) fn pass(&self, point: FaultPoint) {
            let mut inside = lock(&self.0.0);
            if let Some(at) = inside.panics.iter().position(|p| *p == point) {
                inside.panics.remove(at);
                drop(inside);
                panic!("a planted panic");
            }
            while inside.holds.contains(&point) {
                inside.held += 1;
                self.0.1.notify_all();
                inside = self.0.1.wait(inside).unwrap_or_else(|e| e.into_inner());
                inside.held -= 1;
            }
        }
    }
}

#[cfg(feature = "fault")]
pub use planted::Faults;

/// The faults of one model: none can be planted in this build.
#[cfg(not(feature = "fault"))]
#[derive(Clone, Debug, Default)]
pub struct Faults(());

#[cfg(not(feature = "fault"))]
impl Faults {
    #[inline(always)]
    pub(crate) fn pass(&self, _: FaultPoint) {}
}
