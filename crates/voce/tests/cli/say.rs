//! `voce say` with all of the text at hand.

use crate::patience::{Ends as _, output};
use crate::sandbox::{Sandbox, arg, model, stderr};

const RATE: usize = 2400;
const FRAME: usize = RATE * 8 / 100;

/// Samples in a 16-bit mono WAV file whose header tells the truth.
fn wav_samples(bytes: &[u8]) -> usize {
    assert_eq!(&bytes[..4], b"RIFF");
    let length = u32::from_le_bytes(bytes[40..44].try_into().unwrap()) as usize;
    assert_eq!(length, bytes.len() - 44);
    length / 2
}

#[cfg(feature = "nano")]
#[test]
fn the_built_in_voice_speaks_and_comes_to_an_end() {
    let s = Sandbox::new();
    for (text, seconds) in
        [("Hello there.", 0.4..3.0), ("The quick brown fox jumps over the lazy dog.", 1.5..6.0)]
    {
        let out = s.out("nano.wav");
        let json = s.json(&["say", "--seed", "3", "-o", arg(&out), "--json", text]);
        assert_eq!(json["model"], "nano-voice");
        assert_eq!(json["unended_chunks"], 0, "{json}");
        assert!(seconds.contains(&json["audio_seconds"].as_f64().unwrap()), "{json}");
        let wav = std::fs::read(&out).unwrap();
        let loud = wav[44..].chunks_exact(2).map(|b| i16::from_le_bytes([b[0], b[1]]).unsigned_abs()).max();
        assert!((2_000..32_767).contains(&loud.unwrap()), "speech is neither silent nor clipped: {loud:?}");
    }
}

#[test]
fn the_stated_frames_in_a_whole_file() {
    let s = Sandbox::new();
    let out = s.out("hello.wav");
    let m = model("drifting_gqa");
    let json = s.json(&[
        "say",
        "--model",
        arg(&m),
        "--temperature",
        "0",
        "--precision",
        "f32",
        "--threads",
        "2",
        "-o",
        arg(&out),
        "--json",
        "Hello world.",
    ]);
    // The published package makes 12 frames of this text with these weights.
    assert_eq!(json["frames"], 12);
    assert_eq!(json["sample_rate"], RATE);
    assert_eq!(json["audio_seconds"], 0.96);
    assert_eq!(json["precision"], "f32");
    assert_eq!(json["threads"], 2);
    assert_eq!(json["voice"], "voice");
    for key in ["rtf", "first_audio_ms", "peak_rss_mb", "seed"] {
        assert!(json[key].as_f64().is_some(), "{key} in {json}");
    }
    for key in ["model", "cpu", "isa"] {
        assert!(json[key].as_str().is_some_and(|v| !v.is_empty()), "{key} in {json}");
    }
    assert_eq!(wav_samples(&std::fs::read(&out).unwrap()), 12 * FRAME);
    assert_eq!(s.results(), ["hello.wav"]);
}

#[test]
fn the_ending_or_the_format_chooses_the_encoder() {
    let s = Sandbox::new();
    let m = model("lsd");
    let say = |out: &str, extra: &[&str]| {
        let common =
            ["say", "--model", arg(&m), "--temperature", "0", "--max-frames", "6", "-o", out, "Hello."];
        let output = s.run(&[&common[..], extra].concat());
        assert!(output.status.success(), "{out}: {}", stderr(&output));
        output.stdout
    };
    let is_mp3 = |bytes: &[u8]| bytes.len() > 200 && bytes[0] == 0xff && bytes[1] & 0xe0 == 0xe0;
    for name in ["a.mp3", "b.MP3"] {
        say(arg(&s.out(name)), &[]);
        assert!(is_mp3(&std::fs::read(s.out(name)).unwrap()), "{name}");
    }
    for (name, start) in
        [("c.ogg", &b"OggS"[..]), ("d.opus", b"OggS"), ("e.flac", b"fLaC"), ("f.wav", b"RIFF")]
    {
        say(arg(&s.out(name)), &[]);
        assert!(std::fs::read(s.out(name)).unwrap().starts_with(start), "{name}");
    }
    say(arg(&s.out("g.dat")), &["--format", "mp3"]);
    assert!(is_mp3(&std::fs::read(s.out("g.dat")).unwrap()));
    assert!(is_mp3(&say("-", &["--format", "mp3"])), "a pipe as well");
    assert_eq!(s.results().len(), 7, "and nothing beside them");
}

#[test]
fn markup_is_not_read_aloud_unless_it_is_asked_for() {
    let s = Sandbox::new();
    let m = model("lsd");
    let tokens = |text: &str, extra: &[&str]| {
        let out = s.out("x.wav");
        let common = ["say", "--model", arg(&m), "--max-frames", "3", "--json", "-o", arg(&out), text];
        s.json(&[&common[..], extra].concat())["tokens"].as_u64().unwrap()
    };
    let plain = tokens("The village. It is quiet, and the docs are early.", &[]);
    let marked = "# The village\nIt is *quiet*, and [the docs](https://a.b/c) are `early`. 😀";
    assert_eq!(tokens(marked, &[]), plain);
    assert!(tokens(marked, &["--no-normalize"]) > plain);
    // The same while it arrives; three frames are of the first sentence alone.
    let live = |text: &str| {
        let args = ["say", "--model", arg(&m), "--max-frames", "3", "--json", "-o", "/dev/null"];
        let piped = std::process::Stdio::piped;
        let mut child = s.command(&args).stdin(piped()).stdout(piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
        let output = child.says();
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json["tokens"].as_u64().unwrap()
    };
    let sentence = tokens("It is quiet, and the docs are early.", &[]);
    assert_eq!(live("It is quiet, and the docs are early."), sentence);
    assert_eq!(live("It is *quiet*, and [the docs](https://a.b/c) are `early`. 😀"), sentence);
    let (code, text) = s.fails(&["say", "--model", arg(&m), "-o", "/dev/null", "😀 👍"]);
    assert_eq!(code, 2, "nothing is left to say: {text}");
}

#[test]
fn temperature_0_is_the_same_at_any_thread_count() {
    let s = Sandbox::new();
    let m = model("lsd4");
    let said: Vec<Vec<u8>> = ["1", "2", "3"]
        .iter()
        .map(|threads| {
            let out = s.out(&format!("{threads}.wav"));
            let output = s.run(&[
                "say",
                "-q",
                "--model",
                arg(&m),
                "--temperature",
                "0",
                "--threads",
                threads,
                "-o",
                arg(&out),
                "So, what did he say to you? Look at the water!",
            ]);
            assert!(
                output.status.success() && output.stderr.is_empty() && output.stdout.is_empty(),
                "{output:?}"
            );
            std::fs::read(out).unwrap()
        })
        .collect();
    assert!(said[0].len() > 44 + FRAME);
    assert!(said[0] == said[1] && said[1] == said[2]);
}

#[test]
fn a_seed_says_the_same_again_and_another_does_not() {
    let s = Sandbox::new();
    let m = model("lsd");
    let speak = |name: &str, seed: &[&str]| {
        let out = s.out(name);
        let mut args = vec!["say", "--model", arg(&m), "--max-frames", "6", "--json", "-o", arg(&out)];
        args.extend(seed);
        args.push("Hello there.");
        let json = s.json(&args);
        (json["seed"].as_u64().unwrap(), std::fs::read(&out).unwrap())
    };
    let (seed, first) = speak("a.wav", &[]);
    let (_, again) = speak("b.wav", &["--seed", &seed.to_string()]);
    let (_, other) = speak("c.wav", &["--seed", &(seed + 1).to_string()]);
    assert!(first == again && first != other);
}

#[test]
fn max_frames_is_exact_where_no_end_comes() {
    let s = Sandbox::new();
    let m = model("lsd");
    for frames in [1, 7, 33] {
        let n = frames.to_string();
        let out = s.out("x.wav");
        let json = s.json(&[
            "say",
            "--model",
            arg(&m),
            "--eos-threshold",
            "1000",
            "--max-frames",
            &n,
            "-o",
            arg(&out),
            "--json",
            "Hi.",
        ]);
        assert_eq!(json["frames"], frames);
        assert_eq!(
            wav_samples(&std::fs::read(&out).unwrap()),
            frames * json["sample_rate"].as_u64().unwrap() as usize * 8 / 100
        );
    }
}

#[test]
fn pauses_and_trailing_silence_add_samples() {
    let s = Sandbox::new();
    let m = model("drifting_gqa");
    let samples = |extra: &[&str], text: &str| {
        let out = s.out("x.wav");
        let mut args = vec!["say", "--model", arg(&m), "--temperature", "0", "-q", "-o", arg(&out)];
        args.extend(extra);
        args.push(text);
        let output = s.run(&args);
        assert!(output.status.success(), "{}", stderr(&output));
        wav_samples(&std::fs::read(&out).unwrap())
    };
    let plain = samples(&[], "Hello world.");
    assert_eq!(samples(&[], "Hello world. [pause:500ms]"), plain + RATE / 2);
    assert_eq!(samples(&[], "<break time=\"0.25s\"/>Hello world."), plain + RATE / 4);
    assert_eq!(samples(&["--trailing-silence", "100"], "Hello world."), plain + RATE / 10);
}

#[test]
fn formats_by_extension_and_by_name() {
    let s = Sandbox::new();
    let m = model("lsd");
    for (name, extra, magic) in [
        ("a.flac", &[][..], &b"fLaC"[..]),
        ("a.opus", &[], b"OggS"),
        ("b.bin", &["--format", "wav"], b"RIFF"),
        ("noextension", &[], b"RIFF"),
    ] {
        let out = s.out(name);
        let mut args = vec!["say", "-q", "--model", arg(&m), "--max-frames", "3", "-o", arg(&out)];
        args.extend(extra);
        args.push("Hello.");
        let output = s.run(&args);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        assert!(std::fs::read(&out).unwrap().starts_with(magic), "{name}");
    }
    let raw = s.out("a.pcm");
    let json = s.json(&["say", "--model", arg(&m), "--max-frames", "3", "-o", arg(&raw), "--json", "Hello."]);
    assert_eq!(std::fs::metadata(&raw).unwrap().len(), json["samples"].as_u64().unwrap() * 2);
}

#[test]
fn a_file_and_flags_from_the_environment() {
    let s = Sandbox::new();
    let text = s.out("text.txt");
    std::fs::write(&text, "\u{feff}Hello there, all of you.").unwrap();
    let out = s.out("x.wav");
    let m = model("lsd");
    let mut command = s.command(&["say", "--file", arg(&text), "--json", "-o", arg(&out)]);
    command.env("VOCE_MODEL", &m).env("VOCE_MAX_FRAMES", "4").env("VOCE_PRECISION", "bf16");
    let output = output(&mut command);
    assert!(output.status.success(), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((json["frames"].as_u64(), json["precision"].as_str()), (Some(4), Some("bf16")));
    // Without a terminal there is one line to sum up.
    assert_eq!(stderr(&output), "");
    let said = stderr(&s.run(&["say", "--model", arg(&m), "--max-frames", "2", "-o", arg(&out), "Hi."]));
    assert!(said.contains("s of audio in") && said.lines().count() == 1, "{said}");
}

#[test]
fn lockstep_says_the_same_as_one_by_one() {
    let s = Sandbox::new();
    let m = model("lsd4");
    let text = "They call it a small engine. It runs fast. Look at the water! So, what did he say to you?";
    let said: Vec<Vec<u8>> = ["1", "4"]
        .iter()
        .map(|n| {
            let out = s.out(&format!("{n}.wav"));
            let output = s.run(&[
                "say",
                "--model",
                arg(&m),
                "--temperature",
                "0",
                "--precision",
                "f32",
                "--max-tokens",
                "20",
                "--lockstep",
                n,
                "-q",
                "-o",
                arg(&out),
                text,
            ]);
            assert!(output.status.success(), "{}", stderr(&output));
            std::fs::read(&out).unwrap()
        })
        .collect();
    assert!(said[0] == said[1]);
}
