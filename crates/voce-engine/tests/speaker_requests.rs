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
        ("temperature", good.clone().with_temperature(Some(f32::NAN))),
        ("temperature", good.clone().with_temperature(Some(-0.1))),
        ("temperature", good.clone().with_temperature(Some(10.1))),
        ("temperature", good.clone().with_temperature(Some(f32::INFINITY))),
        ("noise clamp", good.clone().with_noise_clamp(Some(f32::NAN))),
        ("noise clamp", good.clone().with_noise_clamp(Some(0.0))),
        ("steps", good.clone().with_steps(0)),
        ("steps", good.clone().with_steps(MAX_STEPS + 1)),
        ("max tokens", good.clone().with_max_tokens(0)),
        ("max tokens", good.clone().with_max_tokens(MAX_TOKENS + 1)),
        ("max frames", good.clone().with_max_frames(Some(0))),
        ("max frames", good.clone().with_max_frames(Some(MAX_FRAMES + 1))),
        ("eos threshold", good.clone().with_eos_threshold(Some(f32::NAN))),
        ("frames after eos", good.clone().with_frames_after_eos(Some(10_001))),
        ("lockstep", good.clone().with_lockstep(0)),
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
    let good = t.request().with_max_frames(Some(2));
    for request in [
        good.clone().with_temperature(Some(10.0)),
        good.clone().with_temperature(Some(1.0)).with_noise_clamp(Some(0.02)),
        good.clone().with_steps(MAX_STEPS),
        good.clone().with_max_tokens(1),
        good.clone().with_max_tokens(MAX_TOKENS),
        good.clone().with_max_frames(Some(MAX_FRAMES)),
        good.clone().with_eos_threshold(Some(f32::NEG_INFINITY)).with_max_frames(None),
        good.clone().with_frames_after_eos(Some(10_000)),
        good.clone().with_lockstep(usize::MAX),
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
    assert_eq!(open(&exact().with_threads(100_000)).unwrap_err().code(), "runtime");
    open(&exact().with_slots(0)).unwrap();
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
    let told = ask(t.request().with_instruct(Some("warm and slow".into())));
    assert!(told.to_string().contains("Pocket TTS takes no instruction"), "{told}");
    let told = ask(t.request().with_language(Some("french".into())));
    assert!(told.to_string().contains("Pocket TTS takes no language"), "{told}");
    let told = t.speaker.clone_samples(&[0.0; 100], Some("hello")).map(drop).unwrap_err();
    assert!(told.to_string().contains("Pocket TTS takes no reference text"), "{told}");
}

#[test]
fn a_request_without_a_voice_has_the_default_one() {
    let t = Talker::new("wide_speaker", &exact());
    let request = t.request().with_max_frames(Some(5));
    let named = t.say("Hello world.", &request);
    let default = request.clone().with_voice(Default::default());
    support::same("default", &t.say("Hello world.", &default), &named);
    let by_name = request.with_voice("voice".into());
    support::same("by name", &t.say("Hello world.", &by_name), &named);
}

#[test]
fn speech_is_saved_whole_in_the_format_of_its_name() {
    let t = Talker::new("lsd", &exact());
    let dir = tempfile::tempdir().unwrap();
    let request = t.request().with_max_frames(Some(4));
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
    let mut stream = t.speaker.speak(&text, &t.request().with_max_frames(Some(2))).unwrap();
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
