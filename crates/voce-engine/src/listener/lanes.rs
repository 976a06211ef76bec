//! The lanes of a listener: model threads side by side, each with an executor, slots and a search of its own, over
//! the same weights. On a device the host's part of one lane's step runs while the kernels of another's do.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use voce_runtime::{Cores, Exec};

use super::slot::NewStream;
use crate::EngineError;
use crate::device::Place;
use crate::lane::default_threads;
use crate::wake::{Waker, lock};

/// Lanes at most.
pub const MAX_LANES: usize = 4;
/// Lanes of a device by default.
const DEVICE_LANES: usize = 2;
/// Threads of a device's lane at most: a few copy as fast as the memory can.
const DEVICE_THREADS: usize = 8;
/// Live streams that share the first lane of a device: so few take hardly longer together than one of them.
const FEW: usize = 8;

/// Streams of each lane, counted up by those who ask for one and down by the lane.
pub(super) type Live = Arc<[AtomicUsize]>;

/// How many lanes a listener has. A device whose every kernel is timed has one, or kernels would wait for others' in
/// the middle of their times.
pub(super) fn count(asked: usize, slots: usize, place: &Place) -> usize {
    let chosen = match &place.device {
        Some(device) if !device.tuning().events => DEVICE_LANES,
        _ => 1,
    };
    (if asked == 0 { chosen } else { asked }).min(MAX_LANES).min(slots)
}

/// The threads of each lane. On a device they do the host's part: copying samples, and taking beams on.
pub(super) fn threads(asked: usize, lanes: usize, place: &Place) -> usize {
    match (&place.device, asked) {
        (None, 0) => default_threads(),
        (None, asked) => asked,
        (Some(_), 0) => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            (cores * 3 / 4 / lanes).clamp(1, DEVICE_THREADS)
        }
        (Some(_), asked) => (asked / lanes).max(1),
    }
}

/// Live streams that share the first lane.
pub(super) fn few(offline: bool, place: &Place) -> usize {
    if place.device.is_some() && !offline { FEW } else { 0 }
}

/// The slots of each lane, as even as they can be.
pub(super) fn shares(slots: usize, lanes: usize) -> impl Iterator<Item = usize> {
    (0..lanes).map(move |i| slots / lanes + usize::from(i < slots % lanes))
}

/// A lane's executor, and the cores of its threads where they are to be pinned.
pub(super) fn team(threads: usize, place: &Place, pin: bool) -> Result<(Exec, Option<Cores>), EngineError> {
    let cores = if pin { Cores::take(threads) } else { None };
    let make = || {
        let exec = place.exec(threads)?;
        Ok::<_, EngineError>(if place.device.is_some() { exec.with_threads(threads)? } else { exec })
    };
    Ok((cores.as_ref().map_or_else(make, |cores| cores.hold(make))?, cores))
}

/// A lane as those who ask for streams see it.
pub(super) struct Lane {
    pub requests: SyncSender<NewStream>,
    pub waker: Arc<Waker>,
    pub slots: usize,
    pub thread: Option<JoinHandle<()>>,
}

/// All lanes of a listener.
pub(super) struct Lanes {
    pub lanes: Vec<Lane>,
    pub live: Live,
    pub few: usize,
    pub stop: Arc<AtomicBool>,
    /// Held by who places a stream, so that streams that come at once are spread evenly.
    pub placing: Mutex<()>,
}

impl Lanes {
    pub(super) fn slots(&self) -> usize {
        self.lanes.iter().map(|lane| lane.slots).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Takes a slot for a stream where the fewest are, or in the lane that is asked for, and gives the lane's number.
    pub(super) fn take(&self, asked: Option<usize>) -> Result<usize, EngineError> {
        let _placing = lock(&self.placing);
        let live = |i: usize| self.live[i].load(Ordering::Relaxed);
        let has_room = |i: &usize| live(*i) < self.lanes[*i].slots;
        let all: usize = (0..self.len()).map(live).sum();
        let first = || Some(0).filter(|i| all < self.few && has_room(i));
        let chosen = match asked {
            Some(lane) => Some(lane).filter(has_room),
            None => first().or_else(|| (0..self.len()).filter(has_room).min_by_key(|&i| live(i))),
        };
        let lane = chosen.ok_or_else(|| EngineError::Busy(self.slots()))?;
        self.live[lane].fetch_add(1, Ordering::Relaxed);
        Ok(lane)
    }

    /// Hands a stream to the lane that a slot was taken of.
    pub(super) fn send(&self, lane: usize, new: NewStream) -> Result<(), EngineError> {
        self.lanes[lane].requests.try_send(new).map_err(|e| {
            self.live[lane].fetch_sub(1, Ordering::Relaxed);
            match e {
                TrySendError::Full(_) => EngineError::Busy(self.slots()),
                TrySendError::Disconnected(_) => EngineError::Stopped("its thread has ended".into()),
            }
        })?;
        self.lanes[lane].waker.wake();
        Ok(())
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.lanes.iter().for_each(|lane| lane.waker.wake());
        for lane in &mut self.lanes {
            if let Some(thread) = lane.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn lanes(slots: usize, count: usize, few: usize) -> Lanes {
        let lane =
            |slots| Lane { requests: sync_channel(slots).0, waker: Arc::default(), slots, thread: None };
        Lanes {
            lanes: shares(slots, count).map(lane).collect(),
            live: (0..count).map(|_| AtomicUsize::new(0)).collect(),
            few,
            stop: Arc::default(),
            placing: Mutex::default(),
        }
    }

    fn live(lanes: &Lanes) -> Vec<usize> {
        lanes.live.iter().map(|n| n.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn streams_are_spread_evenly_up_to_the_last_slot() {
        let uneven = lanes(7, 3, 0);
        assert_eq!(uneven.lanes.iter().map(|l| l.slots).collect::<Vec<_>>(), [3, 2, 2]);
        let taken: Vec<usize> = (0..7).map(|_| uneven.take(None).unwrap()).collect();
        assert_eq!(taken, [0, 1, 2, 0, 1, 2, 0]);
        assert!(matches!(uneven.take(None), Err(EngineError::Busy(7))));
        // The next goes where one has left, and a lane can be asked for.
        uneven.live[1].fetch_sub(1, Ordering::Relaxed);
        assert!(matches!(uneven.take(Some(2)), Err(EngineError::Busy(7))));
        assert_eq!(uneven.take(None).unwrap(), 1);
        assert!(uneven.take(None).is_err());
    }

    #[test]
    fn few_streams_share_a_lane_and_many_are_even() {
        let lanes = lanes(64, 2, 8);
        (0..8).for_each(|_| assert_eq!(lanes.take(None).unwrap(), 0));
        (0..8).for_each(|_| assert_eq!(lanes.take(None).unwrap(), 1));
        assert!((16..64).all(|_| lanes.take(None).is_ok()));
        assert_eq!(live(&lanes), [32, 32]);
    }

    #[test]
    fn streams_that_come_at_once_are_even_too() {
        let lanes = lanes(64, 4, 0);
        std::thread::scope(|scope| {
            (0..8).for_each(|_| {
                scope.spawn(|| assert!((0..5).all(|_| lanes.take(None).is_ok())));
            });
        });
        assert_eq!(live(&lanes), [10; 4]);
    }
}
