//! Readers that leave, readers that dawdle, and a speaker that goes before them.

mod support;

use std::time::Instant;

use support::{AHEAD_FRAMES, ENDLESS, Talker, audio, beside, exact, same, until_end};
use voce_engine::SpeakRequest;
use voce_engine::speaker::{Trace, TraceEvent};

fn endless(t: &Talker, frames: usize) -> SpeakRequest {
    t.request().with_eos_threshold(ENDLESS).with_max_frames(Some(frames)).with_temperature(Some(0.3))
}

fn backbone(trace: &Trace) -> Vec<TraceEvent> {
    trace.events().into_iter().filter(|e| e.name == "backbone").collect()
}

#[test]
fn a_dropped_stream_stops_within_a_frame() {
    for options in [exact(), beside()] {
        let origin = Instant::now();
        let trace = Trace::default();
        let t = Talker::new("pointwise", &options.with_slots(2).with_trace(Some(trace.clone())));
        let mut dropped = t.speaker.speak("Go and look.", &endless(&t, 5_000)).unwrap();
        let mut witness = t.speaker.speak("Go and look.", &endless(&t, 800)).unwrap();
        dropped.next().unwrap().unwrap();
        witness.next().unwrap().unwrap();
        drop(dropped);
        // Times of events count from a later moment than `origin`, so these began after the drop.
        let gone = origin.elapsed();
        audio(&mut witness);
        let after: Vec<TraceEvent> = backbone(&trace).into_iter().filter(|e| e.start > gone).collect();
        assert!(after.len() >= 800 - AHEAD_FRAMES - 2 * 64 - 16, "the witness went on");
        let both = after.iter().filter(|e| e.rows == 2).count();
        assert!(both <= 1, "{both} steps for a reader that had left");
    }
}

#[test]
fn a_dropped_stream_frees_its_slot() {
    for options in [exact(), beside()] {
        let trace = Trace::default();
        let t = Talker::new("pointwise", &options.with_slots(1).with_trace(Some(trace.clone())));
        let alone = t.say("Go and look.", &endless(&t, 12));
        let mut endless_one = t.speaker.speak("Go and look.", &endless(&t, 100_000)).unwrap();
        endless_one.next().unwrap().unwrap();
        // Waits for the only slot, and is dropped while it waits.
        let waiting = t.speaker.speak("Go and look.", &endless(&t, 100_000)).unwrap();
        drop(endless_one);
        drop(waiting);
        same("after the drop", &t.say("Go and look.", &endless(&t, 12)), &alone);
        // From here on nothing but the next request is computed.
        trace.clear();
        same("once more", &t.say("Go and look.", &endless(&t, 12)), &alone);
        assert_eq!(backbone(&trace).len(), 12);
    }
}

#[test]
fn a_slow_reader_pauses_its_own_request_alone() {
    for (options, lag) in [(exact(), 8), (beside(), 2 * 64 + 16)] {
        let t = Talker::new("pointwise", &options.with_slots(2));
        let short = endless(&t, 3);
        let quick = t.say("Go and look.", &short);
        let solo = t.say("Go and look.", &endless(&t, 900));
        let mut slow = t.speaker.speak("Go and look.", &endless(&t, 900)).unwrap();
        // Each short request steps the slow one too, unless that is paused.
        let mut before = usize::MAX;
        while slow.stats().frames != before || before < AHEAD_FRAMES {
            before = slow.stats().frames;
            same("beside a slow reader", &t.say("Go and look.", &short), &quick);
        }
        assert!(before <= AHEAD_FRAMES + lag, "{before} frames are held for a reader that does not read");
        same("resumed", &audio(&mut slow), &solo);
    }
}

#[test]
fn slow_readers_hold_no_slots() {
    for options in [exact(), beside()] {
        let t = Talker::new("pointwise", &options.with_slots(4));
        let request = t.request().with_eos_threshold(ENDLESS).with_max_tokens(12);
        let text = "Go and look. It runs fast. What is it? Look at it. ".repeat(4);
        let mut stream = t.speaker.speak(&text, &request).unwrap();
        let solo = audio(&mut stream);
        let all = stream.stats();
        assert!(all.passages > 12, "{} chunks", all.passages);

        let mut slow: Vec<_> = (0..2).map(|_| t.speaker.speak(&text, &request).unwrap()).collect();
        let quick = endless(&t, 3);
        let mut before = Vec::new();
        loop {
            assert_eq!(t.say("Go and look.", &quick).len(), 3 * 192);
            let now: Vec<usize> = slow.iter().map(|s| s.stats().frames).collect();
            if now == before && now.iter().all(|&f| f >= AHEAD_FRAMES) {
                break;
            }
            before = now;
        }
        for s in &slow {
            assert!(
                s.stats().passages < all.passages,
                "every chunk was made for a reader that does not read"
            );
        }
        // A longer text than any before needs a larger cache, which no paused stream may hinder.
        let long = request.clone().with_max_tokens(400);
        assert!(!t.say(&"so and so and ".repeat(20), &long).is_empty());
        for s in &mut slow {
            same("resumed", &audio(s), &solo);
        }
    }
}

#[test]
fn streams_end_with_an_error_when_the_speaker_goes() {
    for options in [exact(), beside()] {
        let t = Talker::new("pointwise", &options.with_slots(2));
        let Talker { speaker, voice, .. } = t;
        let request = SpeakRequest::default()
            .with_voice(voice.into())
            .with_eos_threshold(ENDLESS)
            .with_max_frames(Some(100_000));
        let mut started = speaker.speak("Go and look.", &request).unwrap();
        started.next().unwrap().unwrap();
        let mut streams: Vec<_> = (0..3).map(|_| speaker.speak("Go and look.", &request).unwrap()).collect();
        let (mut text, live) = speaker.speak_live(&request).unwrap();
        text.push("Go and").unwrap();
        streams.push(live);
        streams.push(started);
        drop(speaker);
        for s in &mut streams {
            let (_, end) = until_end(s);
            assert_eq!(end.unwrap_err().code(), "stopped");
            assert!(s.next().is_none(), "nothing after the error");
        }
        assert!(text.push(" look. And more. ").is_err(), "nobody listens");
    }
}

#[test]
fn a_finished_stream_can_be_read_after_the_speaker_went() {
    let t = Talker::new("pointwise", &exact());
    let want = t.say("Hello world.", &t.request());
    let mut stream = t.speaker.speak("Hello world.", &t.request()).unwrap();
    let first = stream.next().unwrap().unwrap().samples;
    // A second request that ends after the first shows that all of the first is queued.
    t.say("Hello world.", &t.request().with_max_frames(Some(60)).with_eos_threshold(ENDLESS));
    drop(t);
    same("the rest", &[first, audio(&mut stream)].concat(), &want);
}
