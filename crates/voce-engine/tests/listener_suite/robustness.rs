//! Bad requests, bad audio, readers that are slow or go away: nobody else notices.

use std::task::{Context, Poll, Waker};

use voce_engine::EngineError;
use voce_engine::listener::{HungUp, ListenRequest, Listener, MAX_EVENTS};

use crate::support::{chunk, clip, exact, feed, hear, open, rest, until_end, when_free};

#[test]
fn samples_that_are_no_numbers_end_their_stream_only() {
    let listener = open("stream", 2);
    let want = hear(&listener, &chunk(320), &clip("long.wav"));
    let (sender, mut good) = listener.listen(&chunk(320)).unwrap();
    feed(sender, &clip("long.wav"), &[2_000]);
    for bad in [f32::NAN, f32::INFINITY, 1e30] {
        let (mut sender, mut stream) = when_free(&listener, &chunk(320));
        sender.push(&clip("a.wav")).unwrap();
        assert_eq!(sender.push(&[0.1, bad, 0.2]), Err(HungUp));
        assert_eq!(sender.try_push(&[0.0]), Err(HungUp));
        let error = until_end(&mut stream).unwrap_err();
        assert_eq!(error.code(), "bad_request");
        assert!(stream.next().is_none());
    }
    assert_eq!(rest(&mut good), want);
}

#[test]
fn loud_noise_is_heard_without_harm() {
    let listener = open("stream", 1);
    let mut state = 1u32;
    let noise: Vec<f32> = (0..40_000)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state as f32 / u32::MAX as f32 - 0.5) * 60_000.0
        })
        .collect();
    let heard = hear(&listener, &chunk(160), &noise);
    assert!(heard.words.iter().all(|w| w.confidence.is_finite()));
}

#[test]
fn a_reader_that_goes_frees_its_slot() {
    let listener = open("stream", 1);
    let (mut sender, stream) = listener.listen(&chunk(80)).unwrap();
    assert!(matches!(listener.listen(&chunk(80)), Err(EngineError::Busy(1))));
    sender.push(&clip("a.wav")).unwrap();
    drop(stream);
    drop(when_free(&listener, &chunk(80)));
    assert_eq!(sender.push(&clip("a.wav")), Err(HungUp));
    assert!(sender.snapshot().is_err());
}

#[test]
fn a_sender_that_goes_ends_its_stream() {
    let listener = open("stream", 1);
    let (mut sender, mut stream) = listener.listen(&chunk(80)).unwrap();
    sender.push(&clip("a.wav")).unwrap();
    drop(sender);
    assert!(matches!(until_end(&mut stream), Err(EngineError::Abandoned)));
    assert!(listener.listen(&chunk(80)).is_ok(), "whoever learns of the end may begin anew");
}

#[test]
fn nobody_waits_for_a_slow_reader() {
    let listener = open("stream", 2);
    let mut audio = clip("long.wav");
    (0..4).for_each(|_| audio.extend_from_within(..));
    let (mut sender, mut slow) = listener.listen(&chunk(80)).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    // Pushes without reading until nothing more is taken while another stream runs from begin to end.
    let mut idle = 0;
    let mut pushed = 0;
    while idle < 3 {
        let taken = sender.try_push(&audio).unwrap();
        pushed += taken;
        if taken == 0 {
            // The model may have made room since.
            if matches!(sender.poll_ready(&mut cx), Poll::Ready(Ok(()))) {
                continue;
            }
            assert!(!hear(&listener, &chunk(320), &clip("a.wav")).segments.is_empty());
            let room = matches!(sender.poll_ready(&mut cx), Poll::Ready(Ok(())));
            idle = if room { 0 } else { idle + 1 };
        }
    }
    let before = slow.stats();
    assert!(before.lag() > 9.0 && before.lag() < 12.0, "{}", before.lag());
    // An utterance that was cut has an endpoint and a final besides its words, and maybe tokens that make no word.
    let events = before.words + 2 * before.segments;
    assert!((MAX_EVENTS - before.segments..MAX_EVENTS + 64).contains(&events), "{events}");
    sender.finish();
    let heard = rest(&mut slow);
    let seconds = pushed as f64 / 16_000.0;
    assert!((slow.stats().consumed - seconds).abs() < 0.02);
    assert_eq!(heard.segments.len(), slow.stats().segments);
}

#[test]
fn a_listener_that_is_dropped_ends_its_streams() {
    let listener = open("stream", 1);
    let (mut sender, mut stream) = listener.listen(&chunk(80)).unwrap();
    sender.push(&clip("b.wav")).unwrap();
    drop(listener);
    assert!(matches!(until_end(&mut stream), Err(EngineError::Stopped(_))));
    assert_eq!(sender.push(&[0.0]), Err(HungUp));
}

#[test]
fn bad_requests_are_refused_by_name() {
    let (streaming, offline) = (open("stream", 1), open("tdt", 1));
    let refused = |l: &Listener, r: ListenRequest| match l.listen(&r) {
        Ok(_) => panic!("accepted"),
        Err(e) => (e.code(), e.to_string()),
    };
    let (code, text) = refused(&offline, chunk(80));
    assert_eq!(code, "bad_request");
    assert!(text.contains("whole utterances") && text.contains("nemotron"), "{text}");
    let (_, text) = refused(&streaming, chunk(100));
    assert!(text.contains("80") && text.contains("320"), "{text}");
    let (_, text) = refused(&streaming, ListenRequest::default().with_language(Some("fr".into())));
    assert!(text.contains("'fr'"), "{text}");
    for beam in [0, 33] {
        assert!(refused(&streaming, ListenRequest::default().with_beam(beam)).1.contains("beam"));
    }
    assert!(refused(&streaming, ListenRequest::default().with_nbest(2)).1.contains("nbest"));
    let hotword = |phrase: &str| {
        ListenRequest::default()
            .with_hotwords(vec![voce_engine::listener::Hotword { phrase: phrase.into(), weight: 1.0 }])
    };
    assert!(refused(&streaming, hotword("  ")).1.contains("hotword"));
    assert!(refused(&streaming, hotword("\u{6f22}\u{5b57}")).1.contains("\u{6f22}"));
    assert!(streaming.listen(&hotword("window")).is_ok());
    let unknown = Listener::random("gigantic", 1, &exact(1));
    assert!(matches!(unknown, Err(EngineError::BadShape { .. })));
}

#[test]
fn random_weights_hear_something() {
    let listener = Listener::random("nano-ear", 1, &exact(2)).unwrap();
    let heard = hear(&listener, &ListenRequest::default(), &clip("a.wav"));
    let again = hear(&listener, &ListenRequest::default(), &clip("a.wav"));
    assert_eq!(heard, again);
    let info = listener.info();
    assert!(info.stages.iter().all(|s| s.bytes > 0 && s.macs > 0) && info.state_bytes > 0);
    assert_eq!(info.stages.iter().map(|s| s.name).collect::<Vec<_>>(), ["encoder", "search", "labels"]);
}
