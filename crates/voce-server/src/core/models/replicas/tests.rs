//! Replicas of a small model: where streams go, what is opened how often, what comes back and what does not.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use voce_engine::fault::{FaultPoint, Faults};
use voce_engine::listener::{ListenRequest, Listener, ListenerOptions};
use voce_engine::{EngineError, Pulse};
use voce_runtime::cuda::CudaError;

use super::{Kept, Model, Open, Replicas, Watched as _};
use crate::core::aside;
use crate::core::error::ServerError;
use crate::core::models::Seat;

/// No step of these tests lasts so long.
const NEVER: Duration = Duration::from_secs(3600);

/// A small recogniser that can be made to die or hang, perhaps on a device.
struct Small {
    listener: Listener,
    on_device: bool,
}

impl Model for Small {
    fn pulse(&self) -> &Arc<Pulse> {
        self.listener.pulse()
    }
    fn bytes(&self) -> usize {
        7
    }
    fn is_on_device(&self) -> bool {
        self.on_device
    }
    fn warm(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

/// Where a replica is, and what is wrong there.
#[derive(Default)]
struct Site {
    faults: Faults,
    opened: AtomicUsize,
    /// Why the next tries to open it fail.
    trouble: Mutex<Option<CudaError>>,
    on_device: AtomicBool,
}

impl Site {
    fn open(self: &Arc<Self>) -> Open<Small> {
        let this = self.clone();
        Box::new(move || {
            this.opened.fetch_add(1, Ordering::Relaxed);
            if let Some(error) = this.trouble.lock().unwrap().clone() {
                return Err(error.into());
            }
            let options =
                ListenerOptions::default().with_threads(1).with_slots(8).with_faults(this.faults.clone());
            let listener = Listener::random("nano-ear", 3, &options)?;
            Ok(Small { listener, on_device: this.on_device.load(Ordering::Relaxed) })
        })
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }
}

fn replicas(count: usize) -> (Vec<Arc<Site>>, Replicas<Small>) {
    let sites: Vec<Arc<Site>> = (0..count).map(|_| Arc::default()).collect();
    let replicas = Replicas::new("small", sites.iter().map(|s| s.open()).collect(), true, None);
    (sites, replicas)
}

async fn sit(replicas: &Replicas<Small>) -> Result<Seat, ServerError> {
    replicas.start(|_| async { Ok(()) }).await.map(|((), seat)| seat)
}

/// Makes the model of a replica die in a step.
async fn kill(replicas: &Replicas<Small>, site: &Site, replica: usize) {
    let model = replicas.held[replica].present().unwrap();
    site.faults.panic_at(FaultPoint::Step);
    let (mut audio, events) = model.listener.listen(&ListenRequest::default()).unwrap();
    let _ = audio.push(&[0.1; 32_000]);
    audio.finish();
    let last = tokio::task::spawn_blocking(|| events.last()).await.unwrap();
    assert!(matches!(last, Some(Err(EngineError::Stopped(_)))), "{last:?}");
}

/// Looks after the replicas until something holds.
async fn until(replicas: &Replicas<Small>, holds: impl Fn(&Replicas<Small>) -> bool) {
    while !holds(replicas) {
        assert_eq!(replicas.look_after(NEVER), None);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn streams_go_where_the_fewest_are_and_round_what_is_lost() {
    let (sites, replicas) = replicas(3);
    replicas.load().await.unwrap();
    assert_eq!(replicas.tally().bytes, 21);
    let mut seats = Vec::new();
    for _ in 0..6 {
        seats.push(sit(&replicas).await.unwrap());
    }
    let live = || replicas.held.iter().map(|h| h.live()).collect::<Vec<_>>();
    assert_eq!(live(), [2, 2, 2]);
    // Both streams of the second replica end: it gets the next two.
    seats.retain(|s| s.replica() != 1);
    for _ in 0..2 {
        seats.push(sit(&replicas).await.unwrap());
    }
    assert_eq!(live(), [2, 2, 2]);
    // The first one is lost, and there is no memory for a new one.
    *sites[0].trouble.lock().unwrap() = Some(CudaError::OutOfMemory { asked: 1 << 30, free: 0 });
    kill(&replicas, &sites[0], 0).await;
    replicas.bury(0);
    for _ in 0..2 {
        seats.push(sit(&replicas).await.unwrap());
    }
    assert_eq!(live(), [0, 3, 3]);
    assert_eq!((replicas.count(), replicas.ready()), (3, 2));
    // All are lost: nobody is served, and nobody waits.
    for (i, site) in sites.iter().enumerate().skip(1) {
        *site.trouble.lock().unwrap() = Some(CudaError::OutOfMemory { asked: 1 << 30, free: 0 });
        kill(&replicas, site, i).await;
        replicas.bury(i);
    }
    assert!(matches!(sit(&replicas).await, Err(ServerError::NotReady)));
    assert_eq!(replicas.ready(), 0);
}

#[tokio::test]
async fn a_replica_that_died_of_lack_of_memory_comes_back_when_there_is_some() {
    let (sites, replicas) = replicas(2);
    replicas.load().await.unwrap();
    *sites[0].trouble.lock().unwrap() = Some(CudaError::OutOfMemory { asked: 1 << 30, free: 0 });
    kill(&replicas, &sites[0], 0).await;
    until(&replicas, |_| sites[0].opened() == 2).await;
    // A request in between does not make it try more often than it should.
    until(&replicas, |r| r.held[0].present().is_none() && r.ready() == 1).await;
    for _ in 0..100 {
        assert_eq!(sit(&replicas).await.unwrap().replica(), 1);
    }
    assert!(sites[0].opened() < 20, "{}", sites[0].opened());
    *sites[0].trouble.lock().unwrap() = None;
    until(&replicas, |r| r.ready() == 2).await;
    assert_eq!(replicas.tally().restarts, 1);
    let _seat = sit(&replicas).await.unwrap();
}

#[tokio::test]
async fn a_device_that_is_lost_is_told_and_not_tried_for_ever() {
    let (sites, replicas) = replicas(1);
    replicas.load().await.unwrap();
    let lost = CudaError::Lost { call: "cuLaunchKernel", message: "the device was lost".into() };
    *sites[0].trouble.lock().unwrap() = Some(lost);
    kill(&replicas, &sites[0], 0).await;
    let verdict = loop {
        match replicas.look_after(NEVER) {
            Some(verdict) => break verdict,
            None => tokio::task::yield_now().await,
        }
    };
    assert!(verdict.0.contains("the device was lost"), "{verdict:?}");
}

#[tokio::test]
async fn many_who_wait_for_a_model_open_it_once() {
    let (sites, replicas) = replicas(1);
    let replicas = Arc::new(replicas);
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let replicas = replicas.clone();
            tokio::spawn(async move { sit(&replicas).await.is_ok() })
        })
        .collect();
    // Those who go away do not take the load with them.
    waiting[0].abort();
    for task in waiting.into_iter().skip(1) {
        assert!(task.await.unwrap());
    }
    assert_eq!(sites[0].opened(), 1);
}

#[tokio::test]
async fn a_step_that_hangs_ends_its_streams_and_the_model_is_opened_anew() {
    for on_device in [false, true] {
        let (sites, replicas) = replicas(1);
        sites[0].on_device.store(on_device, Ordering::Relaxed);
        replicas.load().await.unwrap();
        let seat = sit(&replicas).await.unwrap();
        let model = replicas.held[0].present().unwrap();
        sites[0].faults.hold_at(FaultPoint::Step);
        let (mut audio, _events) = model.listener.listen(&ListenRequest::default()).unwrap();
        let _ = audio.push(&[0.1; 32_000]);
        let faults = sites[0].faults.clone();
        tokio::task::spawn_blocking(move || faults.wait_held()).await.unwrap();
        assert_eq!(replicas.look_after(NEVER), None);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(!seat.is_gone(&mut cx));
        // The stream is asleep when its model is given up, and is woken.
        let woken = std::future::poll_fn(|cx| if seat.is_gone(cx) { Poll::Ready(()) } else { Poll::Pending });
        let look = async { replicas.look_after(Duration::ZERO) };
        let (verdict, ()) = futures_util::future::join(look, woken).await;
        assert_eq!(verdict.is_some(), on_device, "only a new process frees a device");
        assert_eq!(replicas.ready(), 0);
        if !on_device {
            until(&replicas, |r| r.ready() == 1).await;
            assert_eq!((sites[0].opened(), replicas.tally().restarts), (2, 1));
            assert!(!sit(&replicas).await.unwrap().is_gone(&mut cx));
        }
        sites[0].faults.release();
    }
}

#[tokio::test]
async fn an_idle_model_is_unloaded_and_one_in_use_is_not() {
    let site = Arc::<Site>::default();
    let replicas = Replicas::new("small", vec![site.open()], false, Some(Duration::ZERO));
    assert_eq!(replicas.ready(), 1, "it may be opened when it is asked for");
    let seat = sit(&replicas).await.unwrap();
    replicas.rest();
    assert_eq!(replicas.tally().unloads, 0);
    drop(seat);
    replicas.rest();
    replicas.rest();
    assert_eq!((replicas.tally().unloads, replicas.tally().bytes), (1, 0));
    sit(&replicas).await.unwrap();
    assert_eq!((site.opened(), replicas.tally().restarts), (2, 0));
}

/// No wait of these tests lasts so long.
const LIMIT: Duration = Duration::from_secs(120);

/// Lets a step that hangs go on, however the test ends.
struct Released(Faults);

impl Drop for Released {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A model of which a step hangs until the end of the test.
async fn hung() -> (Released, Arc<Replicas<Small>>) {
    let (sites, replicas) = replicas(1);
    replicas.load().await.unwrap();
    let model = replicas.present().unwrap();
    sites[0].faults.hold_at(FaultPoint::Step);
    let released = Released(sites[0].faults.clone());
    let (mut audio, _events) = model.listener.listen(&ListenRequest::default()).unwrap();
    let _ = audio.push(&[0.1; 32_000]);
    let faults = sites[0].faults.clone();
    tokio::task::spawn_blocking(move || faults.wait_held()).await.unwrap();
    (released, Arc::new(replicas))
}

/// Gives the model of a hung step up, as the watch does.
fn give_up(replicas: &Replicas<Small>) {
    assert!(replicas.present().is_some());
    assert_eq!(replicas.look_after(Duration::ZERO), None);
}

/// Does something on an async worker while a step hangs, and then asks what probes ask.
async fn while_it_hangs<F: Future<Output = ()> + Send>(
    work: impl FnOnce(Arc<Replicas<Small>>) -> F + Send + 'static,
) {
    let (_released, replicas) = hung().await;
    let task = tokio::spawn(async move {
        work(replicas.clone()).await;
        assert!(replicas.ready() <= 1 && replicas.pulses().len() <= 1);
        assert!(replicas.tally().loads > 0);
    });
    tokio::time::timeout(LIMIT, task).await.expect("nobody waits for the step").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_owner_of_a_model_that_hangs_does_not_wait_for_it() {
    // The watch itself.
    while_it_hangs(async |replicas| give_up(&replicas)).await;
    // Who asks what the model is.
    while_it_hangs(async |replicas| {
        let model = replicas.present();
        give_up(&replicas);
        drop(model);
    })
    .await;
    // Who counts bytes for `/metrics`.
    while_it_hangs(async |replicas| {
        let bytes = replicas.all_present().map(|model| {
            give_up(&replicas);
            model.bytes()
        });
        assert_eq!(bytes.sum::<usize>(), 7);
    })
    .await;
    // A stream that begins at once, as those of recognisers and of dialogue do.
    while_it_hangs(async |replicas| {
        let begin = |model: Kept<Small>| {
            give_up(&replicas);
            drop(model);
            async { Ok(()) }
        };
        replicas.start(begin).await.unwrap();
    })
    .await;
    // One that begins on a thread that may wait, as those of voices do, and whose client has gone.
    while_it_hangs(async |replicas| {
        let begin = |model: Kept<Small>| {
            let replicas = replicas.clone();
            async move {
                let begun = aside::wait(move || {
                    give_up(&replicas);
                    model.bytes()
                });
                assert_eq!(begun.await, Some(7));
                Ok(())
            }
        };
        replicas.start(begin).await.unwrap();
    })
    .await;
}
