//! A listener on a device hears what it hears on a CPU. The device is emulated, so clips are short.

use voce_engine::EngineError;
use voce_engine::listener::{ListenEvent, ListenRequest, Listener, ListenerOptions};
use voce_runtime::cuda::Device;

use super::support::{clip, exact, fixtures, hear, open, store};

#[test]
fn a_device_hears_what_the_cpu_hears() {
    let device = Device::emulated().unwrap();
    for name in ["stream", "tdt"] {
        let options = ListenerOptions { device: Some(device.clone()), ..exact(2) };
        let path = fixtures().join(name);
        let on_device = Listener::open(&store(), path.to_str().unwrap(), &options).unwrap();
        let audio = &clip("b.wav")[..16_000];
        let request = ListenRequest::default();
        let (got, want) = (hear(&on_device, &request, audio), hear(&open(name, 2), &request, audio));
        assert_eq!(got.tokens(), want.tokens(), "{name}");
        assert_eq!(got.frames(), want.frames(), "{name}");
        device.status().unwrap();
    }
}

#[test]
fn streams_of_a_device_that_is_lost_end_with_its_error() {
    let device = Device::emulated().unwrap();
    let options = ListenerOptions { device: Some(device.clone()), ..exact(2) };
    let path = fixtures().join("stream");
    let listener = Listener::open(&store(), path.to_str().unwrap(), &options).unwrap();
    let (mut sender, stream) = listener.listen(&ListenRequest::default()).unwrap();
    device.lose();
    // The stream may be hung up before all of it is taken.
    let _ = sender.push(&clip("b.wav")[..16_000]);
    sender.finish();
    let events: Vec<_> = stream.collect();
    let heard = |e: &Result<ListenEvent, EngineError>| matches!(e, Ok(ListenEvent::Word(_)));
    assert!(!events.iter().any(heard), "nothing is heard by a device that is lost");
    match events.last() {
        Some(Err(EngineError::Stopped(why))) => assert!(why.contains("the device was lost"), "{why}"),
        other => panic!("{other:?}"),
    }
}
