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

#[test]
fn options_of_other_families_are_refused_by_name() {
    let t = Talker::new("lsd4", &exact());
    let ask = |request: SpeakRequest| t.speaker.speak("Hello.", &request).map(drop).unwrap_err();
    let told = ask(SpeakRequest { instruct: Some("warm and slow".into()), ..t.request() });
    assert!(told.to_string().contains("Pocket TTS takes no instruction"), "{told}");
    let told = ask(SpeakRequest { language: Some("french".into()), ..t.request() });
    assert!(told.to_string().contains("Pocket TTS takes no language"), "{told}");
    let told = t.speaker.clone_samples(&[0.0; 100], Some("hello")).map(drop).unwrap_err();
    assert!(told.to_string().contains("Pocket TTS takes no reference text"), "{told}");
}

#[test]
fn a_request_without_a_voice_has_the_default_one() {
    let t = Talker::new("wide_speaker", &exact());
    let request = SpeakRequest { max_frames: Some(5), ..t.request() };
    let named = t.say("Hello world.", &request);
    let default = SpeakRequest { voice: Default::default(), ..request.clone() };
    support::same("default", &t.say("Hello world.", &default), &named);
    let by_name = SpeakRequest { voice: "voice".into(), ..request };
    support::same("by name", &t.say("Hello world.", &by_name), &named);
}

#[test]
fn speech_is_saved_whole_in_the_format_of_its_name() {
    let t = Talker::new("lsd", &exact());
    let dir = tempfile::tempdir().unwrap();
    let request = SpeakRequest { max_frames: Some(4), ..t.request() };
    let want = t.say("Hello.", &request);
    let path = dir.path().join("hi.wav");
    let stats = t.speaker.speak("Hello.", &request).unwrap().save(&path).unwrap();
    assert_eq!(stats.samples, want.len());
    // A header of 44 bytes and 16-bit samples.
    assert_eq!(std::fs::metadata(&path).unwrap().len() as usize, 44 + 2 * want.len());
    let told = t.speaker.speak("Hello.", &request).unwrap().save(dir.path().join("hi.xyz")).unwrap_err();
    assert!(told.to_string().contains("hi.xyz") && told.to_string().contains(".wav"), "{told}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing else is left behind");
}

#[test]
fn pauses_take_no_memory_until_they_are_read() {
    let t = Talker::new("lsd4", &exact());
    let text = "[pause:30s]".repeat(9) + " Go.";
    let mut stream = t.speaker.speak(&text, &SpeakRequest { max_frames: Some(2), ..t.request() }).unwrap();
    let rate = t.speaker.info().sample_rate;
    let mut silence = 0;
    while silence < 9 * 30 * rate {
        let chunk = stream.next().unwrap().unwrap();
        assert!(chunk.samples.len() <= 4096 && chunk.samples.iter().all(|s| *s == 0.0));
        silence += chunk.samples.len();
    }
    assert_eq!(silence, 9 * 30 * rate);
    let (audio, end) = support::until_end(&mut stream);
    assert!(end.is_ok() && audio.len() == 2 * rate * 2 / 25);
}
