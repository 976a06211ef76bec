//! Models that speak in codes, over the small ones of `voce-models`: whole utterances against the published package,
//! company, arriving text, voices of recordings, and what each variant refuses.

mod support;

use std::path::PathBuf;

use serde_json::Value;
use support::{Empty, exact, same};
use voce_engine::speaker::{Overlap, Speaker, SpeakerOptions, TextMode};
use voce_engine::{EngineError, SpeakRequest, VoiceChoice};
use voce_nn::Weights;
use voce_nn::weights::SafetensorsFile;
use voce_runtime::cuda::Device;

const CASES: [&str; 5] = ["base_1b7", "base_0b6", "custom_0b6", "custom_1b7", "design_1b7"];

fn folder(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/qwen").join(case)
}

/// A speaker over a case, and what the package said with it.
struct Coded {
    speaker: Speaker,
    store: Empty,
    case: &'static str,
    runs: serde_json::Map<String, Value>,
    dump: SafetensorsFile,
    raw: Vec<u8>,
}

impl Coded {
    fn new(case: &'static str, options: &SpeakerOptions) -> Self {
        let (store, dir) = (Empty::new(), folder(case));
        let speaker = Speaker::open(&store.store, dir.to_str().unwrap(), options).unwrap();
        let notes = std::fs::read_to_string(dir.join("dump.json")).unwrap();
        let notes: Value = serde_json::from_str(&notes).unwrap();
        let path = dir.join("dump.safetensors");
        let dump = SafetensorsFile::open(&path).unwrap();
        let runs = notes["runs"].as_object().unwrap().clone();
        Self { speaker, store, case, runs, dump, raw: std::fs::read(path).unwrap() }
    }

    /// The text and the request of a run.
    fn ask(&self, name: &str) -> (String, SpeakRequest) {
        let run = &self.runs[name];
        let text = |key: &str| run[key].as_str().map(str::to_owned);
        let voice = match (text("speaker"), run.get("clone")) {
            (Some(name), _) => VoiceChoice::Named(name),
            (None, None) => VoiceChoice::Nobody,
            (None, Some(_)) => {
                let clip = folder(self.case).join("ref.wav");
                self.speaker.clone_voice(&clip, text("ref_text").as_deref()).unwrap().into()
            }
        };
        let whole = run["non_streaming_mode"].as_bool() == Some(true);
        let request = SpeakRequest::default()
            .with_voice(voice)
            .with_language(text("language"))
            .with_instruct(text("instruct"))
            .with_greedy(true)
            .with_text_mode(Some(if whole { TextMode::Whole } else { TextMode::Streaming }))
            .with_max_frames(Some(9));
        (text("text").unwrap(), request)
    }

    /// Frames of codes that the package chose.
    fn codes(&self, name: &str) -> Vec<Vec<u32>> {
        let size = u64::from_le_bytes(self.raw[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&self.raw[8..8 + size]).unwrap();
        let tensor = &header[format!("{name}/codes")];
        let at: Vec<usize> = serde_json::from_value(tensor["data_offsets"].clone()).unwrap();
        let (books, frames) =
            (tensor["shape"][0].as_u64().unwrap() as usize, tensor["shape"][1].as_u64().unwrap() as usize);
        let words: Vec<u32> = self.raw[8 + size..][at[0]..at[1]]
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        (0..frames).map(|f| (0..books).map(|b| words[b * frames + f]).collect()).collect()
    }

    fn say(&self, text: &str, request: &SpeakRequest) -> (Vec<f32>, Vec<Vec<u32>>) {
        gather(self.speaker.speak(text, request).unwrap())
    }
}

type Said = (Vec<f32>, Vec<Vec<u32>>);

fn gather(stream: impl Iterator<Item = Result<voce_engine::AudioChunk, EngineError>>) -> Said {
    let (mut audio, mut codes) = (Vec::new(), Vec::new());
    for chunk in stream {
        let chunk = chunk.unwrap();
        audio.extend(chunk.samples);
        codes.extend(chunk.codes);
    }
    (audio, codes)
}

#[test]
fn what_the_package_says_is_said_in_codes_and_in_sound() {
    let (mut codes_seen, mut audio_seen) = (0, 0);
    for case in CASES {
        let t = Coded::new(case, &exact());
        for name in t.runs.keys() {
            let (text, request) = t.ask(name);
            let (audio, codes) = t.say(&text, &request);
            assert_eq!(codes, t.codes(name), "{case}: {name}");
            codes_seen += codes.len();
            if let Some(want) = t.dump.get(&format!("{name}/audio"), &[]).unwrap() {
                let scale = want.values.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
                let worst = audio.iter().zip(&want.values).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max);
                assert_eq!(audio.len(), want.values.len(), "{case}: {name}");
                assert!(worst / scale < 1e-4, "{case}: {name} is off by {:e}", worst / scale);
                audio_seen += 1;
            }
        }
    }
    assert_eq!((codes_seen, audio_seen), (141, 8));
}

#[test]
fn company_and_threads_change_no_bit() {
    for case in ["base_1b7", "custom_0b6"] {
        let alone = Coded::new(case, &exact());
        let options = exact().with_threads(2).with_slots(3).with_overlap(Overlap::Beside);
        let many = Coded::new(case, &options);
        let names: Vec<&String> = alone.runs.keys().collect();
        // Twice each, some sampled: more than there are slots, so that they join and leave.
        let asks: Vec<(String, SpeakRequest)> = (0..2 * names.len())
            .map(|i| {
                let (text, mut request) = many.ask(names[i % names.len()]);
                if i >= names.len() {
                    (request.greedy, request.seed) = (false, i as u64);
                    request.max_frames = Some(5 + i % 3);
                }
                (text, request)
            })
            .collect();
        let streams: Vec<_> =
            asks.iter().map(|(text, request)| many.speaker.speak(text, request).unwrap()).collect();
        for (stream, (i, (text, request))) in streams.into_iter().zip(asks.iter().enumerate()) {
            let (audio, codes) = gather(stream);
            let (again, same_codes) = alone.say(text, request);
            assert_eq!(codes, same_codes, "{case}: {i}");
            same(&format!("{case}: {i}"), &audio, &again);
        }
    }
}

#[test]
fn text_that_arrives_is_spoken_as_if_it_had_all_been_there() {
    for (case, name) in
        [("base_1b7", "icl"), ("base_1b7", "xvector"), ("base_0b6", "icl"), ("design_1b7", "streaming")]
    {
        let t = Coded::new(case, &exact());
        let (text, request) = t.ask(name);
        let (want, codes) = t.say(&text, &request);
        for pieces in [vec![0, 3, 4, 9, 20], vec![1, 2, 3, 5, 8, 13, 21, 34], vec![text.len()]] {
            let (mut sender, stream) = t.speaker.speak_live(&request).unwrap();
            let mut at = 0;
            for end in pieces.into_iter().filter(|end| text.is_char_boundary(*end)).chain([text.len()]) {
                sender.push(&text[at..end]).unwrap();
                at = end;
            }
            sender.finish().unwrap();
            let (audio, said) = gather(stream);
            assert_eq!(said, codes, "{case}: {name}");
            same(&format!("{case}: {name}"), &audio, &want);
        }
    }
}

#[test]
fn long_texts_are_cut_into_passages_of_whole_sentences() {
    let t = Coded::new("custom_0b6", &exact().with_slots(4));
    let text = "One is here. Two is there! Three is nowhere? Four is all of them. ".repeat(4);
    let request = SpeakRequest::voice("ryan").with_max_tokens(60).with_greedy(true);
    let mut streams = Vec::new();
    for lockstep in [1, 4] {
        let request = request.clone().with_lockstep(lockstep);
        let mut stream = t.speaker.speak(&text, &request).unwrap();
        let mut said: Said = Default::default();
        for chunk in stream.by_ref() {
            let chunk = chunk.unwrap();
            said.0.extend(chunk.samples);
            said.1.extend(chunk.codes);
        }
        let stats = stream.stats();
        assert!((4..=12).contains(&stats.passages), "{} passages", stats.passages);
        assert_eq!(stats.frames, said.1.len());
        streams.push(said);
    }
    assert_eq!(streams[0].1, streams[1].1);
    same("in lock step", &streams[0].0, &streams[1].0);
}

#[test]
fn a_run_without_an_end_is_bounded_and_counted() {
    let t = Coded::new("custom_0b6", &exact());
    // A threshold that nothing reaches: the end is never drawn.
    let request = SpeakRequest::voice("ryan").with_eos_threshold(Some(f32::INFINITY));
    let mut stream = t.speaker.speak("Hi", &request).unwrap();
    let frames: usize = stream.by_ref().map(|chunk| chunk.unwrap().codes.len()).sum();
    // Two seconds for each token and two more.
    assert_eq!((frames, stream.stats().unended), (25 * (t.speaker.count_tokens("Hi") + 1), 1));
}

#[test]
fn a_device_says_what_a_cpu_says() {
    let device = Device::emulated().unwrap();
    let on_cpu = Coded::new("custom_0b6", &exact());
    let on_device = Coded::new("custom_0b6", &exact().with_slots(2).with_device(device.into()));
    // Two at once, one of them sampled; the device is emulated, so little is said.
    let (text, greedy) = on_cpu.ask("dialect_auto");
    let sampled = greedy.clone().with_greedy(false).with_seed(5).with_max_frames(Some(2));
    let asks = [greedy, sampled];
    let streams: Vec<_> = asks.iter().map(|r| on_device.speaker.speak(&text, r).unwrap()).collect();
    for (stream, request) in streams.into_iter().zip(&asks) {
        let (audio, codes) = gather(stream);
        let (want, same_codes) = on_cpu.say(&text, request);
        assert_eq!(codes, same_codes);
        let worst = audio.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(audio.len() == want.len() && worst < 1e-3, "{worst:e}");
    }
}

#[test]
fn passages_that_follow_each_other_in_a_slot_of_a_device_do_not_meet() {
    // A device has the next step before it is known that a passage has ended, and its slot is given away meanwhile.
    let device = Device::emulated().unwrap();
    let on_cpu = Coded::new("custom_0b6", &exact());
    let on_device = Coded::new("custom_0b6", &exact().with_slots(1).with_device(device.into()));
    let (text, greedy) = on_cpu.ask("dialect_auto");
    let sampled =
        |seed, frames| greedy.clone().with_greedy(false).with_seed(seed).with_max_frames(Some(frames));
    let asks = [sampled(3, 1), sampled(4, 3), sampled(5, 2)];
    let streams: Vec<_> = asks.iter().map(|r| on_device.speaker.speak(&text, r).unwrap()).collect();
    for (stream, request) in streams.into_iter().zip(&asks) {
        assert_eq!(gather(stream).1, on_cpu.say(&text, request).1);
    }
}

#[test]
fn saved_voices_speak_as_their_recordings_do() {
    let t = Coded::new("base_1b7", &exact());
    for name in ["icl", "xvector"] {
        let (text, mut request) = t.ask(name);
        let want = t.say(&text, &request);
        let VoiceChoice::Ready(voice) = &request.voice else { panic!() };
        let path = t.store.store.voices().path(name).unwrap();
        t.store.store.voices().create().unwrap();
        std::fs::write(&path, t.speaker.voice_bytes(voice).unwrap()).unwrap();
        request.voice = name.into();
        assert_eq!(t.say(&text, &request).1, want.1, "{name}");
    }
    // Of another size they are refused.
    let other = Coded::new("base_0b6", &exact());
    let path = t.store.store.voices().path("icl").unwrap();
    let told = other.speaker.voice(path.to_str().unwrap()).map(drop).unwrap_err().to_string();
    assert!(told.contains("speaker_embedding"), "{told}");
}

#[test]
fn what_a_variant_cannot_use_is_refused_by_name() {
    let base = Coded::new("base_1b7", &exact());
    let custom = Coded::new("custom_1b7", &exact());
    let design = Coded::new("design_1b7", &exact());
    let told = |t: &Coded, request: SpeakRequest| {
        t.speaker.speak("Hi.", &request).map(drop).unwrap_err().to_string()
    };
    let nobody = SpeakRequest::default().with_voice(VoiceChoice::Nobody);
    let clip = folder("base_1b7").join("ref.wav");
    for (said, parts) in [
        (told(&base, nobody.clone().with_instruct(Some("slow".into()))), vec!["Base", "instruction"]),
        (told(&base, SpeakRequest::voice("ryan")), vec!["ryan"]),
        (told(&custom, SpeakRequest::voice("nobody")), vec!["nobody", "aiden", "serena"]),
        (told(&design, SpeakRequest::voice("aiden")), vec!["aiden"]),
        (
            told(&custom, nobody.clone().with_language(Some("klingon".into()))),
            vec!["klingon", "auto", "english"],
        ),
        (
            told(&custom, nobody.clone().with_language(Some("sichuan_dialect".into()))),
            vec!["sichuan_dialect"],
        ),
        (told(&custom, nobody.clone().with_top_p(Some(0.0))), vec!["top p"]),
        (told(&custom, nobody.clone().with_top_k(Some(100_001))), vec!["top k"]),
        (told(&custom, nobody.clone().with_repetition_penalty(Some(0.0))), vec!["repetition penalty"]),
        (told(&custom, nobody.clone().with_eos_threshold(Some(1.0))), vec!["CustomVoice"]),
        (
            custom.speaker.clone_voice(&clip, None).map(drop).unwrap_err().to_string(),
            vec!["cannot clone a voice", "voce pull pocket --cloning"],
        ),
        (
            design.speaker.clone_voice(&clip, Some("x")).map(drop).unwrap_err().to_string(),
            vec!["cannot clone a voice", "voce pull pocket --cloning"],
        ),
        (
            base.speaker.clone_samples(&[0.1; 2400], None).map(drop).unwrap_err().to_string(),
            vec!["0.10 s", "0.5 s"],
        ),
        (base.speaker.speak("  ", &nobody).map(drop).unwrap_err().to_string(), vec!["nothing to say"]),
    ] {
        assert!(parts.iter().all(|part| said.contains(part)), "'{said}' should have {parts:?}");
    }
    // What Pocket TTS does not draw it refuses as well.
    let pocket = support::Talker::new("lsd", &exact());
    let said = pocket.speaker.speak("Hi.", &pocket.request().with_top_k(Some(3)));
    assert!(said.map(drop).unwrap_err().to_string().contains("top k"));
    // At the limits all is well.
    for request in [
        nobody.clone().with_top_k(Some(100_000)).with_top_p(Some(1.0)).with_repetition_penalty(Some(10.0)),
        nobody.with_top_k(Some(0)).with_top_p(Some(0.01)).with_language(Some("EN".into())),
    ] {
        let request = request.with_max_frames(Some(2));
        assert_eq!(custom.say("Hi.", &request).1.len(), 2);
    }
}

#[test]
fn broken_snapshots_are_named() {
    let copy = |change: &dyn Fn(&std::path::Path)| {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "vocab.json",
            "merges.txt",
            "tokenizer_config.json",
        ] {
            std::fs::copy(folder("custom_0b6").join(name), dir.path().join(name)).unwrap();
        }
        let codec = dir.path().join("speech_tokenizer");
        std::fs::create_dir(&codec).unwrap();
        for name in ["config.json", "model.safetensors"] {
            std::fs::copy(folder("custom_0b6").join("speech_tokenizer").join(name), codec.join(name))
                .unwrap();
        }
        change(dir.path());
        let store = Empty::new();
        let opened = Speaker::open(&store.store, dir.path().to_str().unwrap(), &exact());
        opened.map(drop).map_err(|e| e.to_string())
    };
    copy(&|_| {}).unwrap();
    let edit = |name: &'static str, from: &'static str, to: &'static str| {
        move |dir: &std::path::Path| {
            let text = std::fs::read_to_string(dir.join(name)).unwrap();
            assert!(text.contains(from), "{name}: {from}");
            std::fs::write(dir.join(name), text.replace(from, to)).unwrap();
        }
    };
    let remove =
        |name: &'static str| move |dir: &std::path::Path| std::fs::remove_file(dir.join(name)).unwrap();
    for (said, parts) in [
        (
            copy(&edit("config.json", "\"custom_voice\"", "\"song\"")),
            vec!["tts_model_type 'song'", "voice_design"],
        ),
        (copy(&edit("config.json", "qwen3_tts_tokenizer_12hz", "qwen3_tts_tokenizer_25hz")), vec!["25hz"]),
        (copy(&edit("config.json", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"relu\"")), vec!["relu"]),
        (copy(&edit("config.json", "\"vocab_size\": 1056", "\"vocab_size\": 1024")), vec!["vocab_size"]),
        (copy(&edit("config.json", "\"intermediate_size\": 56", "\"intermediate_size\": 57")), vec!["shape"]),
        (
            copy(&edit("config.json", "\"text_vocab_size\": 303", "\"text_vocab_size\": 290")),
            vec!["tts_pad_token_id"],
        ),
        (
            copy(&edit("generation_config.json", "\"temperature\": 0.9", "\"temperature\": -1")),
            vec!["temperature"],
        ),
        (copy(&remove("merges.txt")), vec!["merges.txt"]),
        (copy(&remove("speech_tokenizer/config.json")), vec!["speech_tokenizer/config.json"]),
        (copy(&remove("speech_tokenizer/model.safetensors")), vec!["model.safetensors"]),
        (copy(&remove("model.safetensors")), vec!["model.safetensors"]),
    ] {
        let said = said.unwrap_err();
        assert!(parts.iter().all(|part| said.contains(part)), "'{said}' should have {parts:?}");
    }
    // A shard that is missing.
    let dir = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(folder("base_0b6")).unwrap().flatten().filter(|f| f.path().is_file()) {
        std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    std::fs::create_dir(dir.path().join("speech_tokenizer")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        let part = PathBuf::from("speech_tokenizer").join(name);
        std::fs::copy(folder("base_0b6").join(&part), dir.path().join(part)).unwrap();
    }
    std::fs::remove_file(dir.path().join("model-00002-of-00002.safetensors")).unwrap();
    let store = Empty::new();
    let said = Speaker::open(&store.store, dir.path().to_str().unwrap(), &exact())
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(said.contains("model-00002-of-00002"), "{said}");
}

#[test]
fn many_slots_of_a_device_open_and_speak_in_bf16() {
    let device = Device::emulated().unwrap();
    let options = exact().with_slots(64).with_precision(Some(voce_engine::Precision::Bf16));
    let t = Coded::new("custom_0b6", &options.with_device(device.into()));
    let (text, request) = t.ask("dialect_auto");
    let (_, codes) = t.say(&text, &request.with_max_frames(Some(2)));
    assert_eq!(codes.len(), 2);
}
