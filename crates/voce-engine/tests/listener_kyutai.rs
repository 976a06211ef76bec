//! Kyutai's recogniser behind a listener: what the published package hears, in any company, in any pieces.

use std::path::{Path, PathBuf};

use serde_json::Value;
use voce_engine::listener::{
    EndReason, Endpointing, ListenEvent, ListenRequest, Listener, ListenerOptions, Report, TranscriptStream,
    Word,
};
use voce_engine::store::{Settings, Store};
use voce_engine::{EngineError, Placement};
use voce_nn::Precision;
use voce_nn::weights::SafetensorsFile;
use voce_runtime::cuda::Device;
use voce_text::Tokenizer;

const CASES: [&str; 2] = ["stt_heads", "stt_late"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/kyutai").join(name)
}

fn open(name: &str, slots: usize, lanes: usize) -> Listener {
    open_with(name, slots, lanes, Placement::Cpu)
}

fn open_with(name: &str, slots: usize, lanes: usize, place: Placement) -> Listener {
    let settings = Settings::from_vars(|name| (name == "HOME").then(|| "/nowhere".into())).unwrap();
    let options = ListenerOptions::default()
        .with_precision(Some(Precision::F32))
        .with_threads(1)
        .with_slots(slots)
        .with_device(place)
        .with_lanes(lanes);
    Listener::open(&Store::new(settings), folder(name).to_str().unwrap(), &options).unwrap()
}

fn audio(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(folder(name).join("audio.wav")).unwrap();
    bytes[44..].chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0).collect()
}

fn tokens(name: &str) -> Vec<u32> {
    let dump = SafetensorsFile::open(&folder(name).join("dump.safetensors")).unwrap();
    dump.integers("tokens").unwrap().unwrap().into_iter().map(|t| t as u32).collect()
}

fn everything() -> ListenRequest {
    ListenRequest::default().with_drawn(true).with_pauses(true).with_word_ends(true)
}

/// Everything a stream said.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    drawn: Vec<u32>,
    words: Vec<Word>,
    /// Words of whole utterances, whose ends are known.
    told: Vec<Word>,
    text: String,
    ends: Vec<f64>,
    pauses: Vec<Vec<f32>>,
    forced: Vec<f64>,
}

impl Heard {
    fn add(&mut self, event: ListenEvent) {
        match event {
            ListenEvent::Drawn(tokens) => self.drawn.extend(tokens),
            ListenEvent::Word(word) => self.words.push(word),
            ListenEvent::WordEnd { at } => self.ends.push(at),
            ListenEvent::Pause { probabilities, .. } => self.pauses.push(probabilities),
            ListenEvent::Final(s) => {
                self.told.extend(s.words);
                self.text += &s.text;
            }
            ListenEvent::Endpoint { at, reason: EndReason::Forced } => self.forced.push(at),
            other => panic!("nobody asked for {other:?}"),
        }
    }
}

fn rest(stream: TranscriptStream) -> Result<Heard, EngineError> {
    let mut heard = Heard::default();
    for event in stream {
        heard.add(event?);
    }
    Ok(heard)
}

fn hear(listener: &Listener, audio: &[f32], piece: usize) -> Heard {
    let (mut sender, stream) = listener.listen(&everything()).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| rest(stream).unwrap());
        audio.chunks(piece).for_each(|samples| sender.push(samples).unwrap());
        sender.finish();
        reader.join().unwrap()
    })
}

#[test]
fn every_step_is_the_packages() {
    for name in CASES {
        let listener = open(name, 2, 1);
        let heard = hear(&listener, &audio(name), 777);
        assert_eq!(heard.drawn, tokens(name), "{name}");
        assert_eq!(heard, hear(&listener, &audio(name), 1 << 20), "{name}: in one piece");
        let json: Value =
            serde_json::from_str(&std::fs::read_to_string(folder(name).join("messages.json")).unwrap())
                .unwrap();
        let times = |kind: &str, key: &str| -> Vec<f64> {
            let all = json["messages"].as_array().unwrap().iter();
            all.filter(|m| m["type"] == kind).map(|m| m[key].as_f64().unwrap()).collect()
        };
        // Silence of 0.2 s, three frames of it begun, stood before the audio.
        let before = if name == "stt_late" { 0.24 } else { 0.0 };
        let shifted = |times: Vec<f64>| -> Vec<f64> {
            times.iter().map(|t| ((t - before).max(0.0) * 1e6).round() / 1e6).collect()
        };
        assert_eq!(heard.ends, shifted(times("EndWord", "stop_time")), "{name}");
        // A run of tokens without a pause may be several words; each run starts where the package says.
        let starts: Vec<f64> = heard.words.iter().map(|w| w.start).collect();
        let words = json["messages"].as_array().unwrap().iter().filter(|m| m["type"] == "Word");
        let model = std::fs::read_dir(folder(name)).unwrap().map(|e| e.unwrap().path());
        let model = model.into_iter().find(|p| p.extension().is_some_and(|end| end == "model")).unwrap();
        let tokenizer = Tokenizer::from_file(model).unwrap();
        let mut compared = 0;
        for (word, start) in words.zip(shifted(times("Word", "start_time"))) {
            // Tokens without text make no word.
            let first = word["tokens"][0].as_u64().unwrap() as u32;
            if !tokenizer.decode(&[first]).trim().is_empty() {
                assert!(starts.contains(&start), "{name}: {start} of {starts:?}");
                compared += 1;
            }
        }
        assert!(compared >= 3, "{name}: {compared} words");
        assert!(heard.told.iter().zip(&heard.words).all(|(t, w)| (&t.text, t.start) == (&w.text, w.start)));
        let heads = if name == "stt_heads" { vec![0.5, 1.0, 2.0, 3.0] } else { Vec::new() };
        assert_eq!(listener.info().pauses, heads);
        let frames = if heads.is_empty() { 0 } else { tokens(name).len() - 1 };
        assert_eq!(
            heard.pauses.len(),
            frames,
            "{name}: a pause for every frame, those of the flush included"
        );
    }
}

#[test]
fn streams_side_by_side_hear_what_one_hears_alone() {
    for (name, lanes) in [("stt_late", 1), ("stt_late", 2), ("stt_heads", 2)] {
        let listener = open(name, 6, lanes);
        let whole = audio(name);
        let audios: Vec<&[f32]> = (0..6).map(|i| &whole[i * 97..whole.len() - i * 311]).collect();
        let alone: Vec<Heard> = audios.iter().map(|a| hear(&listener, a, 1 << 20)).collect();
        let listener = &listener;
        let together: Vec<Heard> = std::thread::scope(|scope| {
            let threads: Vec<_> = audios
                .iter()
                .enumerate()
                .map(|(i, a)| scope.spawn(move || hear(listener, a, 300 + 50 * i)))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(alone, together, "{name} in {lanes} lanes");
    }
}

#[test]
fn a_device_hears_what_the_cpu_hears_and_forgets_nothing_between_parts() {
    let device = Device::emulated().unwrap();
    let (name, audio) = ("stt_late", audio("stt_late"));
    // The emulated device is slow.
    let audio = &audio[..7 * 64 + 30];
    let there = open_with(name, 2, 1, device.clone().into());
    there.warm().unwrap();
    let run = |listener: &Listener| {
        let (mut sender, stream) = listener.listen(&everything()).unwrap();
        sender.push(&audio[..200]).unwrap();
        sender.end_utterance();
        sender.push(&audio[200..]).unwrap();
        sender.finish();
        rest(stream).unwrap()
    };
    let (got, want) = (run(&there), run(&open(name, 2, 1)));
    assert_eq!((got.drawn, got.words, got.ends), (want.drawn, want.words, want.ends));
    device.status().unwrap();
}

#[test]
fn a_marker_comes_back_when_its_audio_is_transcribed_and_no_later() {
    for name in CASES {
        let listener = open(name, 1, 1);
        let whole = audio(name);
        let half = &whole[..whole.len() / 2];
        let (mut sender, mut stream) = listener.listen(&everything()).unwrap();
        sender.push(half).unwrap();
        sender.end_utterance();
        // No audio follows: the delay's silence is the model's own business.
        let mut first = Heard::default();
        while first.forced.is_empty() {
            first.add(stream.next().unwrap().unwrap());
        }
        let seconds = half.len() as f64 / listener.info().sample_rate as f64;
        assert_eq!(first.forced, [seconds]);
        let alone = hear(&listener_of(name), half, 1 << 20);
        assert_eq!((first.drawn, first.words, first.ends), (alone.drawn, alone.words, alone.ends), "{name}");
        // What follows is heard, too, and its times go on.
        sender.push(half).unwrap();
        sender.finish();
        let later = rest(stream).unwrap();
        assert!(later.words.iter().all(|w| w.start >= seconds - 1e-6), "{name}: {:?}", later.words);
    }
}

fn listener_of(name: &str) -> Listener {
    open(name, 1, 1)
}

#[test]
fn a_saved_stream_goes_on_elsewhere() {
    for name in CASES {
        let (here, there) = (open(name, 1, 1), open(name, 2, 1));
        let audio = audio(name);
        let whole = hear(&here, &audio, 1 << 20);
        for cut in [0, 1, audio.len() / 3, audio.len()] {
            let (mut sender, stream) = here.listen(&everything()).unwrap();
            sender.push(&audio[..cut]).unwrap();
            let saved = sender.snapshot().unwrap();
            drop(sender);
            let mut heard = Heard::default();
            for event in stream {
                match event {
                    Ok(event) => heard.add(event),
                    Err(e) => assert!(matches!(e, EngineError::Abandoned), "{e}"),
                }
            }
            let (mut sender, stream) = there.resume(&saved, &everything()).unwrap();
            sender.push(&audio[cut..]).unwrap();
            sender.finish();
            for event in stream {
                heard.add(event.unwrap());
            }
            assert_eq!(heard.drawn, whole.drawn, "{name} at {cut}");
            assert_eq!(heard.words, whole.words, "{name} at {cut}");
            assert_eq!(heard.ends, whole.ends, "{name} at {cut}");
        }
    }
}

#[test]
fn utterances_end_by_silence_and_the_model_goes_on() {
    let listener = open("stt_late", 1, 1);
    let half = audio("stt_late");
    let audio = [&half[..], &vec![0.0; half.len()], &half].concat();
    let plain = hear(&listener, &audio, 1 << 20);
    let ends = everything().with_endpoint(Endpointing::default().with_silence_ms(Some(160)));
    let (mut sender, stream) = listener.listen(&ends).unwrap();
    sender.push(&audio).unwrap();
    sender.finish();
    let (mut words, mut finals, mut drawn) = (Vec::new(), 0, Vec::new());
    for event in stream {
        match event.unwrap() {
            ListenEvent::Word(w) => words.push(w.text),
            ListenEvent::Final(_) => finals += 1,
            ListenEvent::Drawn(tokens) => drawn.extend(tokens),
            _ => {}
        }
    }
    assert_eq!(drawn, plain.drawn);
    assert!(finals > 1, "{finals} utterances");
    assert!(!words.is_empty());
}

#[test]
fn what_it_cannot_do_is_refused() {
    let listener = open("stt_heads", 1, 1);
    let refused = |request: ListenRequest, says: &str| match listener.listen(&request) {
        Ok(_) => panic!("{says} was accepted"),
        Err(e) => assert!(e.to_string().contains(says), "{e}"),
    };
    refused(ListenRequest::default().with_beam(4), "beam");
    refused(ListenRequest::default().with_chunk_ms(Some(160)), "160");
    refused(ListenRequest::default().with_temperature(Some(9.0)), "temperature");
}

#[test]
fn reports_change_nothing_of_what_is_drawn() {
    for name in CASES {
        let listener = open(name, 1, 1);
        let audio = audio(name);
        let plain = hear(&listener, &audio, 1 << 20);
        for report in [Report::Passed, Report::Words, Report::All] {
            let (mut sender, stream) = listener.listen(&everything()).unwrap();
            for piece in audio.chunks(audio.len() / 3) {
                sender.push(piece).unwrap();
                sender.report(report);
            }
            sender.finish();
            let heard = rest(stream).unwrap();
            assert_eq!(heard.drawn, plain.drawn, "{name} {report:?}");
            assert_eq!(heard.forced.len(), audio.len().div_ceil(audio.len() / 3), "{name} {report:?}");
            if report == Report::Passed {
                assert_eq!((heard.words, heard.ends), (plain.words.clone(), plain.ends.clone()), "{name}");
            }
        }
    }
}
