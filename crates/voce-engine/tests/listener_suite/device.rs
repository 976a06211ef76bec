//! A listener on a device hears what it hears on a CPU. The device is emulated, so clips are short.

use voce_engine::EngineError;
use voce_engine::listener::{ListenEvent, ListenRequest, Listener, Report};
use voce_runtime::cuda::Device;

use super::support::{Heard, clip, exact, feed, fixtures, hear, open, rest, store};

/// A small recogniser on a device.
fn open_on(device: &std::sync::Arc<Device>, name: &str) -> Listener {
    let options = exact(2).with_device(device.clone().into());
    Listener::open(&store(), fixtures().join(name).to_str().unwrap(), &options).unwrap()
}

#[test]
fn a_device_hears_what_the_cpu_hears() {
    let device = Device::emulated().unwrap();
    for name in ["stream", "tdt"] {
        let on_device = open_on(&device, name);
        on_device.warm().unwrap();
        let audio = &clip("a.wav")[..16_000];
        let request = ListenRequest::default();
        let (got, want) = (hear(&on_device, &request, audio), hear(&open(name, 2), &request, audio));
        assert_eq!(got.tokens(), want.tokens(), "{name}");
        assert_eq!(got.frames(), want.frames(), "{name}");
        device.status().unwrap();
    }
}

/// What a listener hears of two streams at once: one in pieces of any size, one with ends and reports in the middle.
fn two_at_once(listener: &Listener, audio: &[f32]) -> [Heard; 2] {
    let request = ListenRequest::default();
    let (pieces, mut first) = listener.listen(&request).unwrap();
    let (mut parts, mut second) = listener.listen(&request).unwrap();
    feed(pieces, audio, &[777, 1, 3001, 160]);
    for (i, part) in [&audio[..5003], &audio[..0], &audio[5003..5100], &audio[5100..]].into_iter().enumerate()
    {
        parts.push(part).unwrap();
        if i < 3 {
            parts.end_utterance();
            parts.report(Report::All);
        }
    }
    parts.finish();
    [rest(&mut first), rest(&mut second)]
}

#[test]
fn pieces_and_ends_are_on_a_device_what_they_are_on_the_cpu() {
    let device = Device::emulated().unwrap();
    for name in ["stream", "tdt"] {
        let audio = &clip("a.wav")[..14_000];
        let got = two_at_once(&open_on(&device, name), audio);
        let want = two_at_once(&open(name, 2), audio);
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(got.tokens(), want.tokens(), "{name}");
            assert_eq!(got.frames(), want.frames(), "{name}");
            assert_eq!(got.ends, want.ends, "{name}");
        }
        device.status().unwrap();
    }
}

#[test]
fn streams_go_on_from_cpu_to_device_and_back() {
    let device = Device::emulated().unwrap();
    for name in ["stream", "tdt"] {
        let (cpu, on_device) = (open(name, 2), open_on(&device, name));
        let audio = &clip("a.wav")[..14_000];
        let request = ListenRequest::default();
        let whole = hear(&cpu, &request, audio);
        // Rows that wait for a chunk came as samples here and as rows there.
        for (from, to) in [(&cpu, &on_device), (&on_device, &cpu), (&on_device, &on_device)] {
            let (mut sender, mut stream) = from.listen(&request).unwrap();
            sender.push(&audio[..9_001]).unwrap();
            let saved = sender.snapshot().unwrap();
            drop(sender);
            let mut heard = Heard::default();
            stream.by_ref().flatten().for_each(|event| heard.add(event));
            let (mut sender, mut stream) = to.resume(&saved, &request).unwrap();
            sender.push(&audio[9_001..]).unwrap();
            sender.finish();
            let later = rest(&mut stream);
            let tokens = [heard.tokens(), later.tokens()].concat();
            assert_eq!(tokens, whole.tokens(), "{name}");
        }
        device.status().unwrap();
    }
}

#[test]
fn streams_of_a_device_that_is_lost_end_with_its_error() {
    let device = Device::emulated().unwrap();
    let listener = open_on(&device, "stream");
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
