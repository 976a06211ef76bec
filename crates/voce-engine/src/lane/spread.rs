//! Lanes side by side over the same weights: how many there are, what each has of the slots and threads, and which of
//! them a new stream goes to. On a device the host's part of one lane's step runs while the kernels of another's do.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::default_threads;
use crate::EngineError;
use crate::device::Place;
use crate::wake::{Waker, lock};

/// Lanes at most.
pub const MAX_LANES: usize = 4;
/// Lanes of a device by default.
const DEVICE_LANES: usize = 2;
/// Threads of a device's lane at most: a few copy as fast as the memory can.
const DEVICE_THREADS: usize = 8;

/// Streams of each lane, counted up by those who ask for one and down by the lane.
pub(crate) type Live = Arc<[AtomicUsize]>;

/// How many lanes share `slots` slots; `asked` is 0 where nobody asked. One when kernels are timed, as a second would
/// distort the timings, and where one keeps a device busy.
pub(crate) fn count(asked: usize, slots: usize, place: &Place, one_is_enough: bool) -> usize {
    let chosen = match &place.device {
        Some(device) if !one_is_enough && !device.tuning().events => DEVICE_LANES,
        _ => 1,
    };
    (if asked == 0 { chosen } else { asked }).min(MAX_LANES).min(slots)
}

/// The threads of each lane. On a device they do the host's part.
pub(crate) fn threads(asked: usize, lanes: usize, place: &Place) -> usize {
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

/// The slots of each lane, as even as they can be.
pub(crate) fn shares(slots: usize, lanes: usize) -> impl Iterator<Item = usize> {
    (0..lanes).map(move |i| slots / lanes + usize::from(i < slots % lanes))
}

/// A lane as those who ask for streams see it; `T` is a new stream.
struct Door<T> {
    requests: SyncSender<T>,
    waker: Arc<Waker>,
    slots: usize,
    thread: Option<JoinHandle<()>>,
}

/// What a lane's thread holds of the lanes.
pub(crate) struct Seat<T> {
    /// Which lane it is.
    pub lane: usize,
    pub slots: usize,
    /// The number that its first slot has among those of all lanes.
    pub first_slot: usize,
    /// New streams.
    pub requests: Receiver<T>,
    pub waker: Arc<Waker>,
    pub stop: Arc<AtomicBool>,
    /// Slots in use of each lane.
    pub live: Live,
}

impl<T> Seat<T> {
    /// A stream of this lane has ended: whoever learns of it may ask for another at once.
    pub(crate) fn leave(&self) {
        self.live[self.lane].fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether no lane has a stream.
    pub(crate) fn all_are_empty(&self) -> bool {
        self.live.iter().all(|n| n.load(Ordering::Relaxed) == 0)
    }
}

/// All lanes of a model. Dropping them ends their threads.
pub(crate) struct Lanes<T> {
    doors: Vec<Door<T>>,
    live: Live,
    /// Streams in all that share the first lane.
    few: usize,
    stop: Arc<AtomicBool>,
    /// Held by whoever places a stream, so that streams that come at once are spread evenly.
    placing: Mutex<()>,
}

impl<T> Lanes<T> {
    /// `count` lanes without threads yet. The first `few` streams share a lane, the others are spread evenly.
    pub(crate) fn new(count: usize, few: usize) -> Self {
        Self {
            doors: Vec::with_capacity(count),
            live: (0..count).map(|_| AtomicUsize::new(0)).collect(),
            few,
            stop: Arc::default(),
            placing: Mutex::default(),
        }
    }

    /// Adds the next lane; `start` starts its thread.
    pub(crate) fn add(
        &mut self,
        slots: usize,
        start: impl FnOnce(Seat<T>) -> Result<JoinHandle<()>, EngineError>,
    ) -> Result<(), EngineError> {
        let (requests, taken) = sync_channel(slots);
        let waker = Arc::<Waker>::default();
        let thread = start(Seat {
            lane: self.doors.len(),
            slots,
            first_slot: self.slots(),
            requests: taken,
            waker: waker.clone(),
            stop: self.stop.clone(),
            live: self.live.clone(),
        })?;
        self.doors.push(Door { requests, waker, slots, thread: Some(thread) });
        Ok(())
    }

    /// Slots of all lanes.
    pub(crate) fn slots(&self) -> usize {
        self.doors.iter().map(|door| door.slots).sum()
    }

    pub(crate) fn len(&self) -> usize {
        self.doors.len()
    }

    pub(crate) fn waker(&self, lane: usize) -> &Arc<Waker> {
        &self.doors[lane].waker
    }

    /// Takes a slot for a stream where the fewest are, or in the lane that is asked for, and gives the lane's number.
    pub(crate) fn take(&self, asked: Option<usize>) -> Result<usize, EngineError> {
        let _placing = lock(&self.placing);
        let live = |i: usize| self.live[i].load(Ordering::Relaxed);
        let has_room = |i: &usize| live(*i) < self.doors[*i].slots;
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

    /// Hands a lane something that takes no slot.
    pub(crate) fn tell(&self, lane: usize, ask: T) -> Result<(), EngineError> {
        let sent = self.doors[lane].requests.try_send(ask);
        sent.map_err(|e| match e {
            TrySendError::Full(_) => EngineError::Busy(self.slots()),
            TrySendError::Disconnected(_) => EngineError::Stopped("its thread has ended".into()),
        })?;
        self.doors[lane].waker.wake();
        Ok(())
    }

    /// Hands a stream to the lane that a slot was taken of.
    pub(crate) fn send(&self, lane: usize, new: T) -> Result<(), EngineError> {
        self.tell(lane, new).inspect_err(|_| {
            self.live[lane].fetch_sub(1, Ordering::Relaxed);
        })
    }
}

impl<T> Drop for Lanes<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.doors.iter().for_each(|door| door.waker.wake());
        for door in &mut self.doors {
            if let Some(thread) = door.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(slots: usize, count: usize, few: usize) -> Lanes<()> {
        let mut lanes = Lanes::new(count, few);
        shares(slots, count).for_each(|n| lanes.add(n, |_| Ok(std::thread::spawn(|| {}))).unwrap());
        lanes
    }

    fn live(lanes: &Lanes<()>) -> Vec<usize> {
        lanes.live.iter().map(|n| n.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn streams_are_spread_evenly_up_to_the_last_slot() {
        let uneven = lanes(7, 3, 0);
        assert_eq!(uneven.doors.iter().map(|l| l.slots).collect::<Vec<_>>(), [3, 2, 2]);
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

    #[test]
    fn a_lane_knows_its_place_among_all_slots() {
        let mut lanes = Lanes::<()>::new(3, 0);
        let mut seats = Vec::new();
        for n in shares(8, 3) {
            let start = |seat| {
                seats.push(seat);
                Ok(std::thread::spawn(|| {}))
            };
            lanes.add(n, start).unwrap();
        }
        assert_eq!(
            seats.iter().map(|s| (s.lane, s.first_slot, s.slots)).collect::<Vec<_>>(),
            [(0, 0, 3), (1, 3, 3), (2, 6, 2)]
        );
        let lane = lanes.take(Some(1)).unwrap();
        lanes.send(lane, ()).unwrap();
        assert!(seats[1].requests.try_recv().is_ok() && !seats[0].all_are_empty());
        seats[1].leave();
        assert!(seats[0].all_are_empty());
        assert!(!seats[0].stop.load(Ordering::Relaxed));
        let stop = seats[0].stop.clone();
        drop(lanes);
        assert!(stop.load(Ordering::Relaxed));
    }
}
