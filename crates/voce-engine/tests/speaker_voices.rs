//! Voices: found by name, read from files, cloned, written, and refused.

mod support;

use support::{Talker, exact, folder, rel, same};
use voce_engine::VoiceChoice;
use voce_models::speech::{Voice, VoiceData};
use voce_nn::Precision;
use voce_runtime::Exec;

/// Name, shape, and values of either kind.
type Named = (String, Vec<usize>, Vec<f32>, Vec<i64>);

/// Tensors of a safetensors file by name.
fn tensors(bytes: &[u8]) -> Vec<Named> {
    let file = safetensors::SafeTensors::deserialize(bytes).unwrap();
    let mut all: Vec<_> = file
        .tensors()
        .into_iter()
        .map(|(name, t)| {
            let floats = |b: &[u8]| f32::from_le_bytes(b.try_into().unwrap());
            let integers = |b: &[u8]| i64::from_le_bytes(b.try_into().unwrap());
            let (f, i) = match t.dtype() {
                safetensors::Dtype::F32 => (t.data().chunks(4).map(floats).collect(), Vec::new()),
                safetensors::Dtype::I64 => (Vec::new(), t.data().chunks(8).map(integers).collect()),
                other => panic!("{name} is {other:?}"),
            };
            (name, t.shape().to_vec(), f, i)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn floats(voice: &Voice) -> Vec<f32> {
    let Voice::Past(voice) = voice else { panic!("{voice:?}") };
    let values = voice.export(&mut Exec::new(1).unwrap()).into_iter().filter_map(|t| match t.data {
        VoiceData::Floats(v) => Some(v),
        VoiceData::Integers(_) => None,
    });
    values.flatten().collect()
}

#[test]
fn a_cloned_voice_is_the_one_the_package_exported() {
    // The other small models run at 2400 Hz, which is no rate of an audio file.
    for case in ["lsd"] {
        let t = Talker::new(case, &exact());
        let cloned = t.speaker.clone_voice(&folder(case).join("prompt.wav"), None).unwrap();
        let got = tensors(&t.speaker.voice_bytes(&cloned).unwrap());
        let want = tensors(&std::fs::read(folder(case).join("voice.safetensors")).unwrap());
        let names =
            |all: &[Named]| -> Vec<String> { all.iter().map(|t| format!("{} {:?}", t.0, t.1)).collect() };
        assert_eq!(names(&got), names(&want), "{case}");
        for (g, w) in got.iter().zip(&want) {
            assert_eq!(g.3, w.3, "{case} {}", g.0);
            if !w.2.is_empty() {
                let e = rel(&g.2, &w.2);
                assert!(e < 1e-4, "{case} {}: off by {e:e}", g.0);
            }
        }
    }
}

#[test]
fn a_voice_is_found_by_name_in_the_folder_in_the_store_and_by_path() {
    let t = Talker::new("wide_speaker", &exact());
    assert_eq!(t.speaker.default_voice().as_deref(), Some("voice"));
    assert_eq!(t.speaker.voice_names(), ["voice", "voice_old"]);
    let want = floats(&t.voice);
    let path = folder("wide_speaker").join("voice.safetensors");
    let by_path = t.speaker.voice(path.to_str().unwrap()).unwrap();
    same("by path", &floats(&by_path), &want);
    same("the older format", &floats(&t.speaker.voice("voice_old").unwrap()), &want);
}

#[test]
fn a_cloned_voice_is_written_read_and_speaks_as_it_did() {
    for precision in [Precision::F32, Precision::Int8] {
        let t = Talker::new("lsd", &exact().with_precision(Some(precision)));
        let store = &t.store.store;
        let prompt = folder("lsd").join("prompt.wav");
        let cloned = t.speaker.voice(prompt.to_str().unwrap()).unwrap();
        store.voices().create().unwrap();
        std::fs::write(store.voices().path("anna").unwrap(), t.speaker.voice_bytes(&cloned).unwrap())
            .unwrap();
        assert_eq!(t.speaker.voice_names(), ["anna", "voice"]);
        let anna = t.speaker.voice("anna").unwrap();
        same("written and read", &floats(&anna), &floats(&cloned));
        let say = |voice: Voice| {
            t.say("Hello world.", &t.request().with_voice(voice.into()).with_max_frames(Some(5)))
        };
        same("it speaks as it did", &say(anna), &say(cloned));
    }
}

#[test]
fn a_voice_changes_what_is_heard() {
    let t = Talker::new("lsd4", &exact());
    let with = t.say("Look at the water!", &t.request());
    let without = t.say("Look at the water!", &t.request().with_voice(VoiceChoice::Nobody));
    assert_ne!(with, without);
}

#[test]
fn unknown_voices_list_the_known_ones() {
    let t = Talker::new("wide_speaker", &exact());
    let unknown = |name: &str| t.speaker.voice(name).map(drop).unwrap_err();
    let e = unknown("nobody");
    assert_eq!(e.code(), "unknown_voice");
    assert!(e.to_string().contains("voice, voice_old"), "{e}");
    let e = unknown("nowhere/nobody.safetensors");
    assert!(e.to_string().contains("nobody.safetensors"), "{e}");
    let e = unknown("nowhere/nobody.wav");
    assert!(e.to_string().contains("nobody.wav"), "{e}");
    let e = unknown(folder("wide_speaker").join("config.yaml").to_str().unwrap());
    assert!(e.to_string().contains("config.yaml"), "{e}");
}

#[test]
fn a_voice_of_another_model_is_refused() {
    let t = Talker::new("lsd4", &exact());
    let read = |path: std::path::PathBuf| t.speaker.voice(path.to_str().unwrap()).map(drop).unwrap_err();
    let e = read(folder("drifting_gqa").join("voice.safetensors"));
    assert_eq!(e.code(), "bad_voice");
    assert!(e.to_string().contains("self_attn/cache"), "{e}");
    let e = read(folder("lsd4").join("model.safetensors"));
    assert_eq!(e.code(), "bad_voice");
    assert!(e.to_string().contains("not a voice"), "{e}");

    // Voices that other speakers have loaded fit neither.
    let other = Talker::new("drifting_gqa", &exact());
    let half = Talker::new("lsd4", &exact().with_precision(Some(Precision::Bf16)));
    for voice in [other.voice.clone(), half.voice.clone()] {
        let request = t.request().with_voice(voice.into());
        let e = t.speaker.speak("Hello world.", &request).map(drop).unwrap_err();
        assert_eq!(e.code(), "bad_request", "{e}");
    }
    assert!(!t.say("Look at the water!", &t.request()).is_empty(), "the speaker is well");
    // One of the same shape and format is only another past.
    let twin = Talker::new("lsd4", &exact());
    let request = t.request().with_voice(twin.voice.clone().into());
    same(
        "a twin's voice",
        &t.say("Look at the water!", &request),
        &t.say("Look at the water!", &t.request()),
    );
}
