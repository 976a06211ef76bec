//! The pulse of a model's threads: whether they live, how long the step under way has taken, and which steps were slow.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::wake::lock;

/// Frames that a step may last before it counts as slow.
pub const SLOW_FRAMES: u32 = 5;
/// Slow steps that are kept for whoever asks.
const MAX_SLOW: usize = 16;

/// A thread of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Model,
    Codec,
    /// The model thread of a listener's lane.
    Lane(usize),
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Model | Stage::Lane(_) => "model",
            Stage::Codec => "codec",
        }
    }

    /// Its place among the threads of its model.
    fn index(self) -> usize {
        match self {
            Stage::Model => 0,
            Stage::Codec => 1,
            Stage::Lane(lane) => lane,
        }
    }
}

/// A step that took longer than it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowStep {
    /// The thread: `model` or `codec`.
    pub stage: &'static str,
    /// How long it took.
    pub took: Duration,
    /// The slots it worked on.
    pub slots: Vec<usize>,
    /// Frames it worked on.
    pub frames: usize,
}

/// What a model's threads leave behind for those who watch them.
#[derive(Debug)]
pub struct Pulse {
    born: Instant,
    frame: Duration,
    alive: AtomicBool,
    /// Microseconds after `born`, plus one, at which the step under way began; 0 between steps.
    begun: Box<[AtomicU64]>,
    slow_steps: AtomicU64,
    warm_steps: AtomicU64,
    slow: Mutex<VecDeque<SlowStep>>,
}

impl Pulse {
    /// The pulse of a model with `threads`, whose frames last `frame`.
    pub(crate) fn new(frame: Duration, threads: usize) -> Arc<Self> {
        Arc::new(Self {
            born: Instant::now(),
            frame,
            alive: AtomicBool::new(true),
            begun: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            slow_steps: AtomicU64::new(0),
            warm_steps: AtomicU64::new(0),
            slow: Mutex::default(),
        })
    }

    /// Whether all threads of the model run.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// How long the step under way has taken, of several the oldest; none between steps.
    pub fn in_step(&self) -> Option<Duration> {
        let now = self.born.elapsed();
        let begun = self.begun.iter().filter_map(|b| b.load(Ordering::Relaxed).checked_sub(1)).min()?;
        Some(now.saturating_sub(Duration::from_micros(begun)))
    }

    /// Slow steps so far.
    pub fn slow_steps(&self) -> u64 {
        self.slow_steps.load(Ordering::Relaxed)
    }

    /// Steps that were made only to keep caches warm.
    pub fn warm_steps(&self) -> u64 {
        self.warm_steps.load(Ordering::Relaxed)
    }

    /// The slow steps since the last call, as far as they were kept.
    pub fn take_slow(&self) -> Vec<SlowStep> {
        lock(&self.slow).drain(..).collect()
    }

    /// A step begins.
    pub(crate) fn begin(&self, stage: Stage) {
        let now = self.born.elapsed().as_micros() as u64 + 1;
        self.begun[stage.index()].store(now, Ordering::Relaxed);
    }

    /// A step ends. `frames` is how many frames of one stream it may have taken.
    pub(crate) fn end(
        &self,
        stage: Stage,
        took: Duration,
        frames: usize,
        slots: impl Iterator<Item = usize>,
    ) {
        self.begun[stage.index()].store(0, Ordering::Relaxed);
        if took <= self.frame * SLOW_FRAMES {
            return;
        }
        let slots: Vec<usize> = slots.collect();
        // A step over a long file is as long as it must be; it is slow if it lasts longer than what it heard.
        if took <= self.frame * (frames / slots.len().max(1)) as u32 {
            return;
        }
        self.slow_steps.fetch_add(1, Ordering::Relaxed);
        let mut slow = lock(&self.slow);
        if slow.len() < MAX_SLOW {
            slow.push_back(SlowStep { stage: stage.name(), took, slots, frames });
        }
    }

    /// A step that only kept caches warm has ended.
    pub(crate) fn warmed(&self, stage: Stage) {
        self.begun[stage.index()].store(0, Ordering::Relaxed);
        self.warm_steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Held by a thread of a model; the model is dead when one of them is.
pub(crate) struct Life(pub Arc<Pulse>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_steps_are_told_with_their_slots() {
        let pulse = Pulse::new(Duration::from_millis(80), 2);
        assert_eq!(pulse.in_step(), None);
        // A step of one thread ends while that of another goes on.
        pulse.begin(Stage::Lane(0));
        pulse.begin(Stage::Lane(1));
        pulse.end(Stage::Lane(0), Duration::ZERO, 1, [0].into_iter());
        assert!(pulse.in_step().is_some());
        pulse.warmed(Stage::Lane(1));
        assert_eq!((pulse.in_step(), pulse.warm_steps()), (None, 1));
        pulse.begin(Stage::Codec);
        assert!(pulse.in_step().is_some());
        pulse.end(Stage::Codec, Duration::from_millis(400), 1, [3].into_iter());
        assert_eq!((pulse.in_step(), pulse.slow_steps()), (None, 0));
        // Ten frames of each of two streams may take 0.8 s.
        let slots = || [1, 4].into_iter();
        pulse.end(Stage::Model, Duration::from_millis(800), 20, slots());
        assert_eq!(pulse.slow_steps(), 0);
        for _ in 0..40 {
            pulse.end(Stage::Model, Duration::from_millis(801), 20, slots());
        }
        assert_eq!(pulse.slow_steps(), 40);
        let told = pulse.take_slow();
        assert_eq!((told.len(), &told[0].slots[..], told[0].stage), (MAX_SLOW, &[1, 4][..], "model"));
        assert!(pulse.take_slow().is_empty());
        drop(Life(pulse.clone()));
        assert!(!pulse.is_alive());
    }
}
