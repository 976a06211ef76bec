//! The part of `voce bench hear` after the first seconds of every stream: what a step takes once rings are full.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use voce_engine::listener::{Listener, ListenerStats};
use voce_runtime::cuda::Device;

use super::limits::{KernelTime, kernel_times};
use crate::console::round;
use crate::machine;

/// Seconds before the end of the audio at which the window closes: streams that finish are not part of it.
const BEFORE_END: f64 = 0.4;

/// A window of every stream's audio, in samples, that is timed by itself.
pub(super) struct Window<'a> {
    listener: &'a Listener,
    device: Option<&'a Arc<Device>>,
    from: usize,
    to: usize,
    /// Streams whose audio has not been taken up to `from` yet.
    before: AtomicUsize,
    timed: Mutex<Timed>,
}

/// Readings at the window's ends.
#[derive(Default)]
struct Timed {
    opened: Option<(Instant, Option<Duration>)>,
    /// Frames of all streams before that.
    before: usize,
    closed: Option<Seen>,
}

/// A window's measurements.
pub(super) struct Seen {
    wall: f64,
    cpu: Option<f64>,
    /// Frames of all streams before it.
    pub(super) before: usize,
    pub(super) stats: ListenerStats,
    pub(super) kernels: Vec<KernelTime>,
}

/// A window as it is printed.
#[derive(Debug, Serialize)]
pub(super) struct Steady {
    /// Seconds of every stream before it.
    after_seconds: f64,
    /// Seconds of every stream in it, in the mean.
    seconds: f64,
    /// What a chunk of all streams took.
    pub(super) ms_per_chunk: f64,
    wall_seconds: f64,
    cpu_seconds: Option<f64>,
}

impl<'a> Window<'a> {
    /// The window from `after` seconds on, of `samples` in each of `streams` streams.
    pub(super) fn new(
        listener: &'a Listener,
        device: Option<&'a Arc<Device>>,
        after: f64,
        samples: usize,
        streams: usize,
    ) -> Self {
        let rate = listener.info().sample_rate as f64;
        let to = samples.saturating_sub((BEFORE_END * rate) as usize);
        let from = ((after * rate) as usize).min(to);
        Self { listener, device, from, to, before: AtomicUsize::new(streams), timed: Mutex::default() }
    }

    /// Notes that the model has taken so many samples of a stream; `is_in` is that stream's mark.
    pub(super) fn pass(&self, taken: usize, is_in: &mut bool) {
        if !*is_in && taken >= self.from {
            *is_in = true;
            if self.before.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.open();
            }
        }
        if taken >= self.to && self.before.load(Ordering::Acquire) == 0 {
            self.close();
        }
    }

    /// All streams are in it: what was before does not count.
    fn open(&self) {
        let mut timed = self.lock();
        timed.before = self.listener.take_stats().frames;
        let _ = self.device.map(kernel_times);
        timed.opened = Some((Instant::now(), machine::cpu_time()));
    }

    /// The first stream is at its end.
    fn close(&self) {
        let mut timed = self.lock();
        let Some((begun, cpu)) = timed.opened.filter(|_| timed.closed.is_none()) else { return };
        let wall = begun.elapsed().as_secs_f64();
        let cpu = cpu.zip(machine::cpu_time()).map(|(a, b)| b.saturating_sub(a).as_secs_f64());
        let kernels = self.device.map(kernel_times).unwrap_or_default();
        let (before, stats) = (timed.before, self.listener.stats());
        timed.closed = Some(Seen { wall, cpu, before, stats, kernels });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Timed> {
        self.timed.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What was seen, unless the window was too short for it.
    pub(super) fn seen(self) -> Option<Seen> {
        self.timed.into_inner().unwrap_or_else(|e| e.into_inner()).closed
    }
}

impl Seen {
    /// As it is printed, of streams with chunks of some seconds.
    pub(super) fn steady(&self, after: f64, streams: usize, frame: f64, chunk: f64) -> Steady {
        let seconds = self.stats.frames as f64 * frame / streams as f64;
        Steady {
            after_seconds: after,
            seconds: round(seconds, 3),
            ms_per_chunk: round(self.wall * 1e3 * chunk / seconds.max(1e-9), 3),
            wall_seconds: round(self.wall, 4),
            cpu_seconds: self.cpu.map(|c| round(c, 4)),
        }
    }
}

impl Steady {
    /// The line for people.
    pub(super) fn line(&self) -> String {
        let Self { after_seconds, seconds, ms_per_chunk, .. } = self;
        format!(
            "{ms_per_chunk:.2} ms for a chunk of all streams, over {seconds:.1} s after {after_seconds} s\n"
        )
    }
}
