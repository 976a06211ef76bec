//! Kyutai's models and bad input: checkpoints of another naming or size, voices of another shape, audio of any rate.

use std::path::{Path, PathBuf};

use crate::sandbox::{Sandbox, arg};
use crate::talk::kyutai;

/// A copy of a folder without what the package computed.
fn copy(s: &Sandbox, name: &str) -> PathBuf {
    let to = s.out(name);
    std::fs::create_dir(&to).unwrap();
    for file in std::fs::read_dir(kyutai(name)).unwrap().flatten().filter(|f| f.path().is_file()) {
        if !file.file_name().to_str().unwrap().starts_with("dump") {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    to
}

fn edit(folder: &Path, from: &str, to: &str) {
    let path = folder.join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from}: {text}");
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// What one tensor of floats is as a file.
fn tensor(name: &str, shape: &[usize], values: &[f32]) -> Vec<u8> {
    let header =
        serde_json::json!({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * values.len()]}});
    let header = header.to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.bytes());
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    out
}

#[test]
fn checkpoints_of_another_naming_or_size_say_what_is_wrong() {
    let results = Sandbox::new();
    let (out, clip) = (results.out("x.wav"), kyutai("stt_heads").join("audio.wav"));
    let run = |name: &str, folder: &Path| match name {
        "say" => results.fails(&["say", "-q", "--model", arg(folder), "-o", arg(&out), "hello"]),
        "talk" => {
            results.fails(&["talk", "-q", "--model", arg(folder), "--in", arg(&clip), "--out", arg(&out)])
        }
        _ => results.fails(&["hear", "-q", "--model", arg(folder), arg(&clip)]),
    };
    for name in ["say", "talk", "stt_heads"] {
        // Tensors of other names: a codec's where the language model's should be.
        let s = Sandbox::new();
        let folder = copy(&s, name);
        let codec = if name == "stt_heads" { "mimi-small@1.safetensors" } else { "mimi.safetensors" };
        std::fs::copy(folder.join(codec), folder.join("model.safetensors")).unwrap();
        let (code, text) = run(name, &folder);
        assert!(code == 1 && text.contains("emb"), "{name}: {code} {text}");
        // A configuration of another size.
        for (from, to, says) in [
            ("\"num_layers\": 2", "\"num_layers\": 3", "layers.2"),
            ("\"card\": 24", "\"card\": 25", "shape"),
        ] {
            let s = Sandbox::new();
            let folder = copy(&s, name);
            edit(&folder, from, to);
            let (code, text) = run(name, &folder);
            assert!(code == 1 && text.contains(says), "{name}, {to}: {code} {text}");
        }
        // Half of a file.
        let s = Sandbox::new();
        let folder = copy(&s, name);
        let weights = std::fs::read(folder.join("model.safetensors")).unwrap();
        std::fs::write(folder.join("model.safetensors"), &weights[..weights.len() / 2]).unwrap();
        let (code, text) = run(name, &folder);
        assert!(code == 1 && text.contains("model.safetensors"), "{name}: {code} {text}");
    }
    assert!(results.results().is_empty(), "{:?}", results.results());
}

#[test]
fn voices_of_another_shape_are_refused() {
    let (s, place, m) = (Sandbox::new(), Sandbox::new(), kyutai("say"));
    let (voice, out) = (place.out("voice.safetensors"), s.out("x.wav"));
    let speak = ["say", "-q", "--model", arg(&m), "--voice", arg(&voice), "-o", arg(&out), "hello"];
    for (shape, value, says) in [
        (&[1, 11, 5][..], 0.5, "[1, 11, 5]"),
        (&[1, 5, 12], 0.5, "[1, 5, 12]"),
        (&[2, 12, 5], 0.5, "[2, 12, 5]"),
        (&[12, 5], 0.5, "[12, 5]"),
        (&[1, 12, 0], 0.5, "[1, 12, 0]"),
        (&[1, 12, 5], f32::NAN, "no numbers"),
    ] {
        let values = vec![value; shape.iter().product()];
        std::fs::write(&voice, tensor("speaker_wavs", shape, &values)).unwrap();
        let (code, text) = s.fails(&speak);
        assert!(code != 0 && text.contains(says), "{shape:?}: {text}");
    }
    std::fs::write(&voice, tensor("rows", &[1, 12, 5], &[0.5; 60])).unwrap();
    assert!(s.fails(&speak).1.contains("speaker_wavs"));
    std::fs::write(&voice, b"no tensors").unwrap();
    assert!(s.fails(&speak).1.contains("voice.safetensors"));
    assert!(s.results().is_empty(), "{:?}", s.results());
    // One of the right shape speaks, however many rows it has.
    std::fs::write(&voice, tensor("speaker_wavs", &[1, 12, 9], &[0.5; 108])).unwrap();
    assert!(s.run(&speak).status.success());
}

#[test]
fn recordings_of_any_rate_and_number_of_channels_are_heard() {
    let (s, m) = (Sandbox::new(), kyutai("stt_heads"));
    let clip = std::fs::read(m.join("audio.wav")).unwrap();
    let path = s.out("other.wav");
    for (rate, channels) in [(8_000u32, 1u16), (16_000, 1), (44_100, 2), (48_000, 1), (96_000, 1)] {
        // The same samples, faster or slower.
        let mut other = clip.clone();
        other[22..24].copy_from_slice(&channels.to_le_bytes());
        other[24..28].copy_from_slice(&rate.to_le_bytes());
        other[28..32].copy_from_slice(&(rate * u32::from(channels) * 2).to_le_bytes());
        other[32..34].copy_from_slice(&(channels * 2).to_le_bytes());
        std::fs::write(&path, other).unwrap();
        let got = s.json(&["hear", "--precision", "f32", "--model", arg(&m), "--format", "json", arg(&path)]);
        let samples = (clip.len() - 44) / 2 / usize::from(channels);
        let frames = samples as f64 / f64::from(rate) * 12.5;
        // A step for each frame, one before them, and those of the delay.
        let steps = got["tokens"].as_array().unwrap().len() as f64;
        assert!((steps - frames - 7.0).abs() <= 1.5, "{rate} Hz, {channels} channels: {steps} of {frames}");
    }
}
