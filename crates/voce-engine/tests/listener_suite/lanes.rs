//! A listener of several lanes hears in each what a listener of one hears.

use voce_engine::EngineError;
use voce_engine::listener::{ListenEvent, ListenRequest, Listener, ListenerOptions, MAX_LANES};
use voce_engine::speaker::Trace;
use voce_runtime::cuda::Device;

use super::support::{Heard, chunk, clip, exact, feed, fixtures, hear, open, rest, store};

fn open_with(name: &str, options: ListenerOptions) -> Listener {
    Listener::open(&store(), fixtures().join(name).to_str().unwrap(), &options).unwrap()
}

fn lanes(slots: usize, lanes: usize) -> ListenerOptions {
    exact(slots).with_lanes(lanes)
}

#[test]
fn every_lane_hears_the_same() {
    let audio = clip("long.wav");
    for (name, request) in [
        ("stream", chunk(160).with_beam(3)),
        ("tdt", ListenRequest::default()),
        ("prompt", ListenRequest::default().with_language(Some("de-DE".into()))),
    ] {
        let want = hear(&open(name, 1), &request, &audio);
        let listener = open_with(name, lanes(5, 3));
        assert_eq!(listener.info().lanes, 3);
        let mut streams = Vec::new();
        for i in 0..5 {
            let (sender, stream) = listener.listen(&request).unwrap();
            feed(sender, &audio, &[777 + 1000 * i]);
            streams.push(stream);
        }
        for stream in &mut streams {
            assert_eq!(rest(stream), want, "{name}");
        }
    }
}

#[test]
fn lanes_of_a_device_hear_what_the_cpu_hears() {
    let device = Device::emulated().unwrap();
    // A whole utterance of two seconds fills the emulated device, whose lanes then take turns.
    let long = clip("long.wav");
    for (name, samples) in [("stream", 14_000), ("prompt", 14_000), ("tdt", 34_000)] {
        let audio = &long[..samples];
        let request = ListenRequest::default();
        let want = hear(&open(name, 1), &request, audio);
        let listener = open_with(name, exact(3).with_device(device.clone().into()));
        assert_eq!(listener.info().lanes, 2, "a device has two unless told otherwise");
        let mut streams: Vec<_> = (0..3).map(|_| listener.listen(&request).unwrap()).collect();
        for (sender, _) in &mut streams {
            sender.push(audio).unwrap();
        }
        for (sender, mut stream) in streams {
            sender.finish();
            let got = rest(&mut stream);
            assert_eq!((got.tokens(), got.frames()), (want.tokens(), want.frames()), "{name}");
        }
        device.status().unwrap();
    }
}

#[test]
fn all_slots_of_all_lanes_and_not_one_more() {
    for (slots, count) in [(1, 2), (5, 3), (4, 2), (3, 99)] {
        let listener = open_with("stream", lanes(slots, count));
        assert_eq!(listener.info().lanes, count.min(slots).min(MAX_LANES));
        let held: Vec<_> = (0..slots).map(|_| listener.listen(&chunk(80)).unwrap()).collect();
        match listener.listen(&chunk(80)) {
            Err(EngineError::Busy(n)) => assert_eq!(n, slots),
            _ => panic!("{slots} slots of {count} lanes"),
        }
        drop(held);
        // Each lane gives back what it had.
        let again: Vec<_> = (0..slots).map(|_| super::support::when_free(&listener, &chunk(80))).collect();
        assert_eq!(again.len(), slots);
    }
}

#[test]
fn a_stream_goes_on_in_another_lane() {
    let device = Device::emulated().unwrap();
    for (name, on) in [("stream", None), ("tdt", None), ("stream", Some(device))] {
        // A lane has one slot, so a second stream is in the other lane.
        let listener = open_with(name, lanes(2, 2).with_device(on.into()));
        let audio = &clip("a.wav")[..14_000];
        let request = ListenRequest::default();
        let whole = hear(&open(name, 1), &request, audio);
        let mut heard = Heard::default();
        let (mut sender, mut stream) = listener.listen(&request).unwrap();
        for piece in [&audio[..5_000], &audio[5_000..9_001]] {
            sender.push(piece).unwrap();
            let saved = sender.snapshot().unwrap();
            let (next, events) = listener.resume(&saved, &request).unwrap();
            drop(std::mem::replace(&mut sender, next));
            let mut before = std::mem::replace(&mut stream, events);
            before.by_ref().flatten().for_each(|event| heard.add(event));
        }
        sender.push(&audio[9_001..]).unwrap();
        sender.finish();
        let tokens = [heard.tokens(), rest(&mut stream).tokens()].concat();
        assert_eq!(tokens, whole.tokens(), "{name}");
    }
}

#[test]
fn statistics_are_of_all_lanes_and_warming_reaches_each() {
    let trace = Trace::default();
    let listener = open_with("stream", lanes(3, 3).with_trace(Some(trace.clone())));
    listener.warm().unwrap();
    let mut threads: Vec<_> = trace.events().iter().map(|e| e.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    assert_eq!(threads, ["model", "model 2", "model 3"]);
    listener.take_stats();
    let audio = clip("a.wav");
    let mut streams = Vec::new();
    for _ in 0..3 {
        let (sender, stream) = listener.listen(&chunk(320)).unwrap();
        feed(sender, &audio, &[1_000]);
        streams.push(stream);
    }
    streams.iter_mut().for_each(|s| drop(rest(s)));
    let of_streams: Vec<_> = streams.iter().map(|s| s.stats()).collect();
    let all = listener.take_stats();
    assert_eq!(all.frames, of_streams.iter().map(|s| s.frames).sum::<usize>());
    // A lane of one slot steps for one stream alone.
    assert_eq!(all.steps, of_streams.iter().map(|s| s.steps).sum::<usize>());
    assert_eq!((all.step_times.count(), all.chunks), (all.steps as u64, all.steps));
}

#[test]
fn a_device_that_is_lost_ends_the_streams_of_every_lane() {
    let device = Device::emulated().unwrap();
    let listener = open_with("stream", lanes(2, 2).with_device(device.clone().into()));
    let streams: Vec<_> = (0..2).map(|_| listener.listen(&ListenRequest::default()).unwrap()).collect();
    device.lose();
    for (mut sender, stream) in streams {
        // The stream may be hung up before all of it is taken.
        let _ = sender.push(&clip("b.wav")[..16_000]);
        sender.finish();
        let events: Vec<_> = stream.collect();
        assert!(!events.iter().any(|e| matches!(e, Ok(ListenEvent::Word(_)))));
        assert!(matches!(events.last(), Some(Err(EngineError::Stopped(_)))), "{events:?}");
    }
    assert!(!listener.pulse().is_alive());
    assert!(matches!(listener.listen(&ListenRequest::default()), Err(EngineError::Stopped(_))));
}
