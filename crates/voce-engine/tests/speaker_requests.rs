//! Requests and options that make no sense are refused by name.

mod support;

use support::{Talker, exact};
use voce_engine::speaker::{MAX_FRAMES, MAX_STEPS, MAX_TOKENS, Speaker, SpeakerOptions};
use voce_engine::{EngineError, SpeakRequest};

#[test]
fn bad_numbers_are_refused_by_name() {
    let t = Talker::new("pointwise", &exact());
    let good = t.request();
    let bad: Vec<(&str, SpeakRequest)> = vec![
        ("temperature", SpeakRequest { temperature: Some(f32::NAN), ..good.clone() }),
        ("temperature", SpeakRequest { temperature: Some(-0.1), ..good.clone() }),
        ("temperature", SpeakRequest { temperature: Some(10.1), ..good.clone() }),
        ("temperature", SpeakRequest { temperature: Some(f32::INFINITY), ..good.clone() }),
        ("noise clamp", SpeakRequest { noise_clamp: Some(f32::NAN), ..good.clone() }),
        ("noise clamp", SpeakRequest { noise_clamp: Some(0.0), ..good.clone() }),
        ("steps", SpeakRequest { steps: 0, ..good.clone() }),
        ("steps", SpeakRequest { steps: MAX_STEPS + 1, ..good.clone() }),
        ("max tokens", SpeakRequest { max_tokens: 0, ..good.clone() }),
        ("max tokens", SpeakRequest { max_tokens: MAX_TOKENS + 1, ..good.clone() }),
        ("max frames", SpeakRequest { max_frames: Some(0), ..good.clone() }),
        ("max frames", SpeakRequest { max_frames: Some(MAX_FRAMES + 1), ..good.clone() }),
        ("eos threshold", SpeakRequest { eos_threshold: Some(f32::NAN), ..good.clone() }),
        ("frames after eos", SpeakRequest { frames_after_eos: Some(10_001), ..good.clone() }),
        ("lockstep", SpeakRequest { lockstep: 0, ..good.clone() }),
    ];
    for (what, request) in bad {
        let refused = |result: Result<(), EngineError>| {
            let e = result.expect_err(what);
            assert_eq!(e.code(), "bad_request", "{e}");
            assert!(e.to_string().starts_with(what), "{what}: {e}");
            assert!(!e.to_string().contains('\n'));
        };
        refused(t.speaker.speak("Hello world.", &request).map(drop));
        refused(t.speaker.speak_live(&request).map(drop));
    }
}

#[test]
fn the_largest_and_smallest_numbers_are_taken() {
    let t = Talker::new("pointwise", &exact());
    let good = SpeakRequest { max_frames: Some(2), ..t.request() };
    for request in [
        SpeakRequest { temperature: Some(10.0), ..good.clone() },
        SpeakRequest { temperature: Some(1.0), noise_clamp: Some(0.02), ..good.clone() },
        SpeakRequest { steps: MAX_STEPS, ..good.clone() },
        SpeakRequest { max_tokens: 1, ..good.clone() },
        SpeakRequest { max_tokens: MAX_TOKENS, ..good.clone() },
        SpeakRequest { max_frames: Some(MAX_FRAMES), ..good.clone() },
        SpeakRequest { eos_threshold: Some(f32::NEG_INFINITY), max_frames: None, ..good.clone() },
        SpeakRequest { frames_after_eos: Some(10_000), ..good.clone() },
        SpeakRequest { lockstep: usize::MAX, ..good.clone() },
    ] {
        let said = t.say("Hello world.", &request);
        assert!(!said.is_empty() && said.iter().all(|v| v.is_finite()));
    }
}

#[test]
fn bad_options_are_errors() {
    let store = support::Empty::new();
    let dir = support::folder("pointwise");
    let open =
        |options: &SpeakerOptions| Speaker::open(&store.store, dir.to_str().unwrap(), options).map(drop);
    assert_eq!(open(&SpeakerOptions { threads: 100_000, ..exact() }).unwrap_err().code(), "runtime");
    open(&SpeakerOptions { slots: 0, ..exact() }).unwrap();
    let e = Speaker::random("pocket-9m", 0, &exact()).map(drop).unwrap_err();
    assert_eq!(e.code(), "bad_request");
    assert!(e.to_string().contains("pocket-100m"), "{e}");
    let e = Speaker::open(&store.store, "no-such-model", &exact()).map(drop).unwrap_err();
    assert_eq!(e.code(), "unknown_model", "{e}");
}
