//! `voce talk`: a conversation between files, with a small model whose answers the published package has given.

use std::path::{Path, PathBuf};

use voce_audio::wav::WavSample;
use voce_audio::{AudioFormat, open_sink};
use voce_engine::codec;
use voce_nn::Weights as _;
use voce_nn::weights::SafetensorsFile;

use crate::sandbox::{Sandbox, arg, model, stderr};

/// The folder of a small model of Kyutai's.
pub(crate) fn kyutai(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/kyutai").join(name)
}

/// What is said to the model, as a file.
fn user(sandbox: &Sandbox, dump: &SafetensorsFile) -> PathBuf {
    let pcm = dump.get("pcm", &[]).unwrap().unwrap();
    let path = sandbox.out("user.wav");
    let mut sink = open_sink(&path, AudioFormat::Wav(WavSample::F32), 24_000).unwrap();
    sink.write(&pcm.values[..pcm.shape[1]]).unwrap();
    sink.finish().unwrap();
    path
}

/// The text tokens and codes that the package drew of the first conversation, a list for each.
fn drawn(dump: &SafetensorsFile) -> Vec<Vec<u32>> {
    let shape = dump.shape("frames").unwrap();
    let all = dump.integers("frames").unwrap().unwrap();
    let lists = all.chunks(shape[2]).take(shape[1]);
    lists.map(|list| list.iter().map(|&token| token as u32).collect()).collect()
}

#[test]
fn an_answer_is_the_one_that_the_package_gives() {
    let (s, m) = (Sandbox::new(), kyutai("talk"));
    let dump = SafetensorsFile::open(&m.join("dump.safetensors")).unwrap();
    let (wav, out, codes) = (user(&s, &dump), s.out("reply.wav"), s.out("codes.safetensors"));
    let run = [
        "talk",
        "--model",
        arg(&m),
        "--temperature",
        "0",
        "--precision",
        "f32",
        "--in",
        arg(&wav),
        "--out",
        arg(&out),
        "--codes",
        arg(&codes),
    ];
    let mut json = run.to_vec();
    json.push("--json");
    let said = s.json(&json);
    let expected = drawn(&dump);
    let got = codec::read_file(&codes).unwrap();
    let frames = got[0].len();
    assert!(frames > 0 && frames <= expected[0].len(), "{frames}");
    for (k, (book, want)) in got.iter().zip(&expected[1..]).enumerate() {
        assert_eq!(book[..], want[..frames], "codebook {k}");
    }
    let tokens: Vec<u32> = serde_json::from_value(said["tokens"].clone()).unwrap();
    assert_eq!(tokens[..], expected[0][..frames]);
    assert_eq!(said["seconds"], frames as f64 * 0.08, "{said}");
    let audio = dump.get("decoded", &[]).unwrap().unwrap().values;
    let bytes = std::fs::read(&out).unwrap();
    let heard: Vec<f32> =
        bytes[44..].chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0).collect();
    assert_eq!(heard.len(), frames * 1920);
    let worst = heard.iter().zip(&audio).map(|(a, b)| (a - b.clamp(-1.0, 1.0)).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-3, "{worst}");
    // Without JSON the text is printed, and nothing else.
    let plain = s.run(&run);
    assert!(plain.status.success(), "{}", stderr(&plain));
    assert_eq!(String::from_utf8(plain.stdout).unwrap().trim_end(), said["text"].as_str().unwrap());
    // The same seed gives the same, another one does not.
    let drawn = |seed: &str| {
        let mut run = run.to_vec();
        run[4] = "0.9";
        run.extend(["--seed", seed, "--json"]);
        s.json(&run)["tokens"].clone()
    };
    assert_eq!(drawn("7"), drawn("7"));
}

#[test]
fn what_cannot_be_is_refused_and_leaves_no_trace() {
    let (s, m) = (Sandbox::new(), kyutai("talk"));
    let dump = SafetensorsFile::open(&m.join("dump.safetensors")).unwrap();
    let wav = user(&s, &dump);
    let out = s.out("b.wav");
    let base = ["talk", "--model", arg(&m), "--in", arg(&wav), "--out", arg(&out)];
    for (more, says) in [(&["--temperature", "11"][..], "use 0 to 10"), (&["--top-k", "999999"], "top k")] {
        let (code, text) = s.fails(&[&base[..], more].concat());
        assert!(code == 2 && text.contains(says), "{code} {text}");
    }
    let other = model("drifting");
    let (code, text) = s.fails(&["talk", "--model", arg(&other), "--in", arg(&wav), "--out", arg(&out)]);
    assert!(code == 2 && text.contains("voice model"), "{code} {text}");
    let (code, text) = s.fails(&["talk", "--model", arg(&m), "--in", "none.wav", "--out", arg(&out)]);
    assert!(code != 0 && text.contains("none.wav"), "{code} {text}");
    let (code, text) = s.fails(&["talk", "--model", arg(&m), "--out", arg(&out)]);
    assert!(code == 2 && text.contains("sound card"), "{code} {text}");
    assert_eq!(s.results(), ["user.wav"]);
}

/// The tensors of a safetensors file of floats as GGUF.
fn as_gguf(from: &Path) -> Vec<u8> {
    let file = SafetensorsFile::open(from).unwrap();
    let mut names: Vec<String> = file.tensors().map(|(name, _)| name.to_owned()).collect();
    names.sort();
    let (mut table, mut data) = (Vec::new(), Vec::new());
    for name in &names {
        let tensor = file.get(name, &[]).unwrap().unwrap();
        data.resize(data.len().next_multiple_of(32), 0u8);
        table.extend((name.len() as u64).to_le_bytes());
        table.extend(name.as_bytes());
        table.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|&d| table.extend((d as u64).to_le_bytes()));
        table.extend(0u32.to_le_bytes());
        table.extend((data.len() as u64).to_le_bytes());
        data.extend(tensor.values.iter().flat_map(|v| v.to_le_bytes()));
    }
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((names.len() as u64).to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.extend(table);
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

#[test]
fn weights_in_gguf_give_the_same_answer() {
    let (s, m) = (Sandbox::new(), kyutai("talk"));
    let dump = SafetensorsFile::open(&m.join("dump.safetensors")).unwrap();
    let (wav, out) = (user(&s, &dump), s.out("b.wav"));
    let copy = s.out("gguf");
    std::fs::create_dir(&copy).unwrap();
    for name in ["mimi.safetensors", "mimi_config.json", "tokenizer.model"] {
        std::fs::copy(m.join(name), copy.join(name)).unwrap();
    }
    std::fs::write(copy.join("model.gguf"), as_gguf(&m.join("model.safetensors"))).unwrap();
    let config = std::fs::read_to_string(m.join("config.json")).unwrap();
    assert!(config.contains("\"model.safetensors\""));
    std::fs::write(copy.join("config.json"), config.replace("\"model.safetensors\"", "\"model.gguf\""))
        .unwrap();
    let said = |model: &Path| {
        let run = [
            "talk",
            "--model",
            arg(model),
            "--temperature",
            "0",
            "--precision",
            "f32",
            "--in",
            arg(&wav),
            "--out",
            arg(&out),
            "--json",
        ];
        s.json(&run)["tokens"].clone()
    };
    assert_eq!(said(&copy), said(&m));
    let shown = s.json(&["show", arg(&copy), "--json"]);
    assert!(shown.to_string().contains("backbone"), "{shown}");
}
