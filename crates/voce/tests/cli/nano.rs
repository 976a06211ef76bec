//! The models in the binary: what they say is heard, real speech is heard, and nothing is fetched for it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::patience::output;
use crate::sandbox::{Sandbox, arg, stderr};

/// Ordinary sentences, taken as they came to mind.
const SENTENCES: [&str; 10] = [
    "Good morning, and thank you for coming.",
    "The train to the city leaves at half past nine.",
    "She put the letter on the table and closed the door.",
    "Can you tell me where the nearest station is?",
    "It rained all night, so the garden is green again.",
    "My brother works in a small shop near the market.",
    "Please turn off the lights before you go to bed.",
    "We had soup and bread for dinner by the fire.",
    "There are twenty seven children in the school.",
    "I do not know what he will say tomorrow.",
];

fn speech(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speech").join(name)
}

/// Files and what is said in them.
fn clips() -> Vec<(PathBuf, String)> {
    let lines = std::fs::read_to_string(speech("transcripts.tsv")).unwrap();
    let clips = lines.lines().map(|l| l.split_once('\t').unwrap());
    clips.map(|(file, text)| (speech(file), text.to_owned())).collect()
}

/// Words in lower case without punctuation.
fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '\'');
    words.filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

fn errors(said: &[String], heard: &[String]) -> usize {
    let mut row: Vec<usize> = (0..=heard.len()).collect();
    for (i, a) in said.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, b) in heard.iter().enumerate() {
            next.push((row[j] + usize::from(a != b)).min(row[j + 1] + 1).min(next[j] + 1));
        }
        row = next;
    }
    row[heard.len()]
}

/// Hears all clips in one go and holds their word error rate in percent; a failure shows each clip.
#[track_caller]
fn hold(s: &Sandbox, clips: &[(PathBuf, String)], flags: &[&str], most: f64) {
    let mut args = vec!["hear", "--json"];
    args.extend(flags);
    args.extend(clips.iter().map(|(path, _)| arg(path)));
    let output = s.run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let heard = String::from_utf8(output.stdout).unwrap();
    assert_eq!(heard.lines().count(), clips.len());
    let (mut wrong, mut all, mut shown) = (0, 0, String::new());
    for ((_, text), line) in clips.iter().zip(heard.lines()) {
        let json: Value = serde_json::from_str(line).unwrap();
        assert_eq!(json["model"], "nano-ear");
        let (said, got) = (words(text), words(json["text"].as_str().unwrap()));
        wrong += errors(&said, &got);
        all += said.len();
        shown += &format!("\n  {}\n  {}", said.join(" "), got.join(" "));
    }
    let rate = 100.0 * wrong as f64 / all as f64;
    assert!(rate <= most, "{wrong} of {all} words wrong, {rate:.1} %, at most {most} % wanted:{shown}");
}

#[test]
fn what_the_voice_says_the_ear_hears() {
    let s = Sandbox::new();
    let mut clips = Vec::new();
    for (i, text) in SENTENCES.iter().enumerate() {
        let out = s.out(&format!("{i}.wav"));
        let said = s.json(&["say", "--seed", "1", "-o", arg(&out), "--json", text]);
        assert_eq!((&said["model"], &said["unended_chunks"]), (&"nano-voice".into(), &0.into()));
        clips.push((out, (*text).to_owned()));
    }
    // 3.2 % where this was written, and with AVX2 and scalar kernels.
    hold(&s, &clips, &[], 6.5);
}

#[test]
fn text_without_stops_is_heard_as_sentences_are() {
    let s = Sandbox::new();
    let text = SENTENCES.join(" ").to_lowercase();
    let text: String = text.chars().filter(|c| c.is_alphabetic() || *c == ' ').collect();
    let out = s.out("long.wav");
    let said = s.json(&["say", "--seed", "1", "-o", arg(&out), "--json", &text]);
    assert_eq!((&said["unended_chunks"], &said["respoken_chunks"]), (&0.into(), &0.into()), "{said}");
    assert!(said["chunks"].as_u64().unwrap() >= 3, "{said}");
    hold(&s, &[(out, text.clone())], &[], 12.0);
    // As it arrives.
    let live = s.out("live.wav");
    let mut child = s.command(&["say", "--seed", "1", "-q", "-o", arg(&live), "-"]);
    let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    hold(&s, &[(live, text)], &[], 12.0);
}

#[test]
fn what_the_voice_cannot_say_is_named() {
    let s = Sandbox::new();
    for (text, says) in [
        ("Привет, как дела?", "speaks English and does not know the letters П р и в е т"),
        ("Hello Мир world", "М и р:"),
        ("こんにちは", "こ ん に ち は"),
        ("!!!", "nothing to say"),
        ("...", "nothing to say"),
        ("☺", "nothing to say"),
    ] {
        let (code, said) = s.fails(&["say", "-q", "-o", arg(&s.out("none.wav")), text]);
        assert!(code == 2 && said.contains(says), "{text}: {code} {said}");
    }
    assert!(s.results().is_empty());
    let said = s.json(&["say", "--json", "-o", arg(&s.out("some.wav")), "Café Łódź – “fine”, 5 € ☺!"]);
    assert!(said["audio_seconds"].as_f64().unwrap() > 1.0, "{said}");
}

#[test]
fn its_language_is_the_voice_and_another_is_refused() {
    let s = Sandbox::new();
    let out = s.out("en.wav");
    for language in ["en", "english", "EN", "en-US"] {
        let said = s.json(&["say", "--json", "--language", language, "-o", arg(&out), "Hi."]);
        assert_eq!(said["model"], "nano-voice", "{language}");
        s.json(&["say", "--json", "--language", language, "--model", "nano-voice", "-o", arg(&out), "Hi."]);
    }
    let (code, said) =
        s.fails(&["say", "-q", "--language", "de", "--model", "nano-voice", "-o", arg(&out), "Hi."]);
    assert!(code == 2 && said.contains("nano-voice speaks English, not 'de'"), "{said}");
    let (code, said) = s.fails(&["say", "-q", "--language", "de", "-o", arg(&out), "Hallo."]);
    assert!(code == 1 && said.contains("voce pull pocket-german"), "{said}");
}

#[test]
fn the_voice_says_that_it_cannot_clone() {
    let s = Sandbox::new();
    let clip = &clips()[0].0;
    let out = s.out("clone.wav");
    let says = ["nano-voice cannot clone a voice", "voce pull pocket --cloning"];
    for args in [
        &["voice", "add", "anna", arg(clip)][..],
        &["voice", "export", arg(clip), arg(&s.out("anna.safetensors"))],
        &["say", "-q", "--clone", arg(clip), "-o", arg(&out), "Hi."],
        &["say", "-q", "--clone", arg(clip), "--clone-text", "What is said.", "-o", arg(&out), "Hi."],
        &["say", "-q", "--voice", arg(clip), "-o", arg(&out), "Hi."],
    ] {
        let (code, said) = s.fails(args);
        assert!(code == 2 && says.iter().all(|says| said.contains(says)), "{args:?}: {code} {said}");
    }
    assert!(s.results().is_empty());
    // Its own voice can be kept under another name.
    let own = s.out("own.safetensors");
    s.json(&["voice", "export", "--json", "voice", arg(&own)]);
    s.json(&["voice", "add", "--json", "anna", arg(&own)]);
    s.json(&["say", "--json", "--voice", "anna", "-o", arg(&out), "Hi."]);
}

#[test]
fn real_speech_is_heard() {
    let s = Sandbox::new();
    // 15.0 % and 19.8 % where this was written, 16.2 % and 20.4 % with scalar kernels.
    hold(&s, &clips(), &[], 18.5);
    hold(&s, &clips(), &["--chunk", "80"], 23.0);
}

#[test]
fn a_demo_proves_the_installation() {
    let s = Sandbox::new();
    let json = s.json(&["demo", "--json"]);
    let number = |v: &Value| v.as_f64().unwrap_or_else(|| panic!("{json}"));
    assert_eq!((&json["speak"]["model"], &json["hear"]["model"]), (&"nano-voice".into(), &"nano-ear".into()));
    assert!(number(&json["word_error_rate"]) <= 0.2, "{json}");
    assert!(number(&json["words"]) > 10.0 && number(&json["audio_seconds"]) > 2.0, "{json}");
    for part in ["speak", "hear"] {
        for key in ["load_ms", "wall_ms", "rtf"] {
            assert!(number(&json[part][key]) > 0.0, "{part} {key} in {json}");
        }
    }
    assert!(number(&json["speak"]["first_audio_ms"]) > 0.0 && number(&json["total_ms"]) > 0.0);

    let out = s.out("demo.wav");
    let output = s.run(&["demo", "--out", arg(&out), "Come", "and see us. [pause:200ms] Then rest."]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.starts_with("said     Come and see us."), "{said}");
    assert!(said.contains("of 6 words") && said.contains("demo.wav"), "{said}");
    assert!(std::fs::read(&out).unwrap().starts_with(b"RIFF"));
    let (code, said) = s.fails(&["demo", "-q", "-o", "-"]);
    assert!(code == 2 && said.contains("standard output"), "{said}");
}

#[test]
fn a_demo_that_hears_nothing_fails() {
    let s = Sandbox::new();
    // A pause is no word.
    let output = s.run(&["demo", "-q", "--json", "[pause:1s]"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[test]
fn an_empty_home_lists_shows_and_hears_without_a_download() {
    let s = Sandbox::new();
    let check = |listed: &Value| {
        for (i, name) in ["nano-voice", "nano-ear"].into_iter().enumerate() {
            let model = &listed[i];
            assert_eq!((&model["id"], &model["embedded"]), (&name.into(), &true.into()));
            assert_eq!(model["language"], "english");
            assert!((5e6..13e6).contains(&model["bytes"].as_f64().unwrap()), "{model}");
            for key in ["family", "licence", "data", "quality"] {
                assert!(model[key].as_str().is_some_and(|t| !t.is_empty()), "{key} in {model}");
            }
        }
        assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    };
    check(&s.json(&["list", "--json"]));
    assert_eq!(s.json(&["pull", "-q", "--json", "nano-ear"])["fetched_bytes"], 0);
    let (code, said) = s.fails(&["rm", "nano-ear"]);
    assert!(code == 2 && said.contains("in the binary"), "{said}");
    let (clip, text) = &clips()[0];
    let output = output(s.command(&["hear", arg(clip)]).env("HF_HUB_OFFLINE", "1"));
    let heard = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && stderr(&output).contains("voce pull nemotron"), "{}", stderr(&output));
    assert!(errors(&words(text), &words(&heard)) < words(text).len() / 2, "{heard}");
    let named = s.run(&["hear", "-q", "--model", "nano-ear", arg(clip)]);
    assert!(named.stdout == output.stdout && named.stderr.is_empty(), "{}", stderr(&named));
    let shown = s.json(&["show", "nano-ear", "--json"]);
    assert_eq!((&shown["head_type"], &shown["chunks_ms"][0]), (&"rnnt".into(), &560.into()));
    assert_eq!((&shown["language"], &shown["embedded"]), (&"english".into(), &true.into()));
    let shown = String::from_utf8(s.run(&["show", "nano-voice"]).stdout).unwrap();
    assert!(shown.contains("word error rate") && shown.contains("MIT OR Apache-2.0"), "{shown}");
    // Laid out they are still those of the binary.
    check(&s.json(&["list", "--json"]));
    let lines = String::from_utf8(s.run(&["list"]).stdout).unwrap();
    assert!(lines.contains("built in: English") && lines.contains("nano-ear: "), "{lines}");
}
