//! The memory of a device: all of it is taken when a listener opens, and lack of it ends one stream and no device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use voce_engine::EngineError;
use voce_engine::listener::{ListenRequest, Listener};
use voce_runtime::cuda::Device;

use super::support::{clip, exact, fixtures, hear, open, rest, resume_when_free, store};

/// More than any of these listeners needs.
const PLENTY: u64 = 8 << 30;

/// A device whose memory may change.
fn device() -> (Arc<Device>, Arc<AtomicU64>) {
    let memory = Arc::new(AtomicU64::new(PLENTY));
    (Device::emulated_with(memory.clone()).unwrap(), memory)
}

fn open_on(device: &Arc<Device>, name: &str, slots: usize) -> Result<Listener, EngineError> {
    let options = exact(slots).with_device(device.clone().into());
    Listener::open(&store(), fixtures().join(name).to_str().unwrap(), &options)
}

#[test]
fn a_listener_that_is_open_needs_no_more_memory() {
    for name in ["stream", "tdt"] {
        let (device, memory) = device();
        let listener = open_on(&device, name, 3).unwrap();
        // From here on every allocation fails.
        memory.store(device.used() as u64, Ordering::Relaxed);
        let audio = &clip("a.wav")[..14_000];
        for beam in [1, 3] {
            let request = ListenRequest::default().with_beam(beam);
            let want = hear(&open(name, 1), &request, audio);
            assert!(!want.tokens().is_empty());
            let mut streams: Vec<_> = (0..3).map(|_| listener.listen(&request).unwrap()).collect();
            for (sender, _) in &mut streams {
                sender.push(&audio[..5_000]).unwrap();
                sender.push(&audio[5_000..]).unwrap();
            }
            for (sender, mut stream) in streams {
                sender.finish();
                let got = rest(&mut stream);
                assert_eq!((got.tokens(), got.frames()), (want.tokens(), want.frames()), "{name} {beam}");
            }
        }
        device.status().unwrap();
    }
}

#[test]
fn too_many_slots_are_refused_with_the_number_that_fits() {
    let (device, memory) = device();
    drop(open_on(&device, "stream", 2).unwrap());
    let least = {
        let _open = open_on(&device, "stream", 64).unwrap();
        device.used() as u64
    };
    memory.store(least, Ordering::Relaxed);
    let fit = match open_on(&device, "stream", 4_000) {
        Err(EngineError::NoRoom { slots: 4_000, fit, .. }) => fit,
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("4000 slots in the memory of 64"),
    };
    assert!((1..4_000).contains(&fit), "{fit}");
    device.status().unwrap();
    assert_eq!(device.used(), 0, "nothing is left of what was refused");
    // Memory that comes back can be used.
    memory.store(PLENTY, Ordering::Relaxed);
    assert!(open_on(&device, "stream", fit).is_ok());
}

#[test]
fn lack_of_memory_ends_what_asked_for_it_and_nothing_else() {
    let (device, memory) = device();
    let listener = open_on(&device, "stream", 2).unwrap();
    let audio = &clip("a.wav")[..14_000];
    let request = ListenRequest::default();
    let want = hear(&open("stream", 1), &request, audio);
    let (mut sender, mut stream) = listener.listen(&request).unwrap();
    sender.push(&audio[..9_001]).unwrap();
    // The first snapshot of all takes some memory: without it there is none, and the stream goes on.
    memory.store(device.used() as u64, Ordering::Relaxed);
    match sender.snapshot() {
        Err(e) => assert_eq!(e.code(), "runtime", "{e}"),
        Ok(_) => panic!("a snapshot without memory"),
    }
    memory.store(PLENTY, Ordering::Relaxed);
    let saved = sender.snapshot().unwrap();
    sender.push(&audio[9_001..]).unwrap();
    sender.finish();
    let got = rest(&mut stream);
    assert_eq!((got.tokens(), got.frames()), (want.tokens(), want.frames()));
    let (mut again, mut events) = resume_when_free(&listener, &saved, &request);
    again.push(&audio[9_001..]).unwrap();
    again.finish();
    assert!(!rest(&mut events).segments.is_empty());
    device.status().unwrap();
}
