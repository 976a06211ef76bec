//! Codecs by themselves: recordings to codes as the published package makes them, and back.

use std::path::{Path, PathBuf};

use voce_engine::codec;
use voce_nn::Weights as _;
use voce_nn::weights::SafetensorsFile;

use crate::sandbox::{Sandbox, arg, model, stderr};

/// The folder of a small Qwen3-TTS model.
fn qwen(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/qwen").join(name)
}

/// Codes that the published package gave, and their shape.
fn dumped(folder: &Path, name: &str) -> (Vec<Vec<u32>>, SafetensorsFile) {
    let dump = SafetensorsFile::open(&folder.join("dump.safetensors")).unwrap();
    let values = dump.integers(name).unwrap().unwrap();
    let books = dump.shape(name).unwrap()[0];
    let codes = values.chunks(values.len() / books).map(|b| b.iter().map(|&c| c as u32).collect()).collect();
    (codes, dump)
}

#[test]
fn a_recording_becomes_the_packages_codes_and_codes_become_its_audio() {
    for name in ["base_1b7", "base_0b6"] {
        let (s, m) = (Sandbox::new(), qwen(name));
        let (out, wav) = (s.out("codes.safetensors"), s.out("codes.wav"));
        let clip = m.join("ref.wav");
        let run = ["codec", "encode", "--model", arg(&m), arg(&clip), "-o", arg(&out), "--json"];
        let said = s.json(&run);
        let (want, dump) = dumped(&m, "enc/codes");
        assert_eq!(codec::read_file(&out).unwrap(), want, "{name}");
        assert_eq!(said["frames"], want[0].len(), "{said}");
        let file = SafetensorsFile::open(&out).unwrap();
        assert_eq!(file.shape("codes").unwrap(), [want.len(), want[0].len()]);
        assert!(std::fs::read(&out).unwrap().windows(5).any(|w| w == b"\"I32\""));

        // The codec's own folder does as well as the model's.
        let (codes, _) = dumped(&m, "dec/codes");
        std::fs::write(&out, codec::to_bytes(&codes).unwrap()).unwrap();
        for folder in [m.clone(), m.join("speech_tokenizer")] {
            let run = ["codec", "decode", "--model", arg(&folder), arg(&out), "-o", arg(&wav), "--json"];
            let said = s.json(&run);
            let want = dump.get("dec/audio", &[]).unwrap().unwrap().values;
            let bytes = std::fs::read(&wav).unwrap();
            let got: Vec<f32> = bytes[44..]
                .chunks_exact(2)
                .map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0)
                .collect();
            assert_eq!(got.len(), want.len(), "{said}");
            let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-4, "{name}: {worst}");
        }
    }
}

#[test]
fn bad_codes_and_other_models_are_refused_and_nothing_is_left() {
    let (s, m) = (Sandbox::new(), qwen("custom_0b6"));
    let dir = tempfile::tempdir().unwrap();
    let (file, wav) = (dir.path().join("codes.safetensors"), s.out("out.wav"));
    let (good, _) = dumped(&m, "dec/codes");
    let decode = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        s.fails(&["codec", "decode", "--model", arg(&m), arg(&file), "-o", arg(&wav)])
    };
    let mut beyond = good.clone();
    beyond[3][1] = 32;
    let empty: Vec<Vec<u32>> = vec![Vec::new(); good.len()];
    for (bytes, says) in [
        (codec::to_bytes(&beyond).unwrap(), "code 32 of codebook 3 in frame 1"),
        (codec::to_bytes(&good[1..].to_vec()).unwrap(), "15 codebooks"),
        (codec::to_bytes(&empty).unwrap(), "at least one frame"),
        (b"not a file of tensors".to_vec(), "whole safetensors"),
        (std::fs::read(m.join("speech_tokenizer/model.safetensors")).unwrap(), "no tensor 'codes'"),
    ] {
        let (code, text) = decode(&bytes);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(says), "{text}");
    }
    let missing = dir.path().join("none.safetensors");
    let (code, text) = s.fails(&["codec", "decode", "--model", arg(&m), arg(&missing), "-o", arg(&wav)]);
    assert!(code == 2 && text.contains("no such file"), "{text}");

    let (pocket, out) = (model("lsd"), s.out("codes.safetensors"));
    let clip = qwen("base_1b7").join("ref.wav");
    let (code, text) = s.fails(&["codec", "encode", "--model", arg(&pocket), arg(&clip), "-o", arg(&out)]);
    assert!(code == 2 && text.contains("Pocket TTS"), "{text}");

    // A folder without the codec, and a codec without its weights.
    let bare = dir.path().join("bare");
    std::fs::create_dir(&bare).unwrap();
    std::fs::copy(m.join("config.json"), bare.join("config.json")).unwrap();
    let (code, text) = s.fails(&["codec", "encode", "--model", arg(&bare), arg(&clip), "-o", arg(&out)]);
    assert!(code != 0 && !text.is_empty(), "{text}");
    std::fs::create_dir(bare.join("speech_tokenizer")).unwrap();
    let config = "speech_tokenizer/config.json";
    std::fs::copy(m.join(config), bare.join(config)).unwrap();
    std::fs::copy(m.join("model.safetensors"), bare.join("model.safetensors")).unwrap();
    let (code, text) = s.fails(&["codec", "encode", "--model", arg(&bare), arg(&clip), "-o", arg(&out)]);
    assert!(code == 1 && text.contains("model.safetensors"), "{text}");
    assert!(s.results().is_empty(), "{:?}", s.results());
}

#[test]
fn audio_goes_through_pipes_and_any_rate_is_taken() {
    let (s, m) = (Sandbox::new(), qwen("base_1b7"));
    let out = s.out("codes.safetensors");
    let clip = std::fs::read(m.join("ref.wav")).unwrap();
    // The same bytes as a recording of twice the rate is half as long.
    let mut faster = clip.clone();
    faster[24..28].copy_from_slice(&48_000u32.to_le_bytes());
    faster[28..32].copy_from_slice(&96_000u32.to_le_bytes());
    let path = s.out("faster.wav");
    std::fs::write(&path, faster).unwrap();
    let said = s.json(&["codec", "encode", "--model", arg(&m), arg(&path), "-o", arg(&out), "--json"]);
    assert_eq!(said["frames"], (clip.len() - 44).div_ceil(2).div_ceil(2).div_ceil(1920), "{said}");
    let piped = s.run(&["codec", "decode", "--model", arg(&m), arg(&out), "-o", "-", "--format", "pcm"]);
    assert!(piped.status.success(), "{}", stderr(&piped));
    assert_eq!(piped.stdout.len(), said["frames"].as_u64().unwrap() as usize * 1920 * 2);
}

/// The folder of a small model of Kyutai's.
fn kyutai(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/kyutai").join(name)
}

#[test]
fn mimi_encodes_and_decodes_with_some_or_all_of_its_codebooks() {
    // A recogniser's folder, and the codec's own file and folder: all have the codec.
    let (s, stt) = (Sandbox::new(), kyutai("stt_heads"));
    let alone = s.out("alone");
    std::fs::create_dir(&alone).unwrap();
    let file = alone.join("mimi.safetensors");
    std::fs::copy(stt.join("mimi-small@1.safetensors"), &file).unwrap();
    std::fs::copy(stt.join("mimi_config.json"), alone.join("mimi_config.json")).unwrap();
    let (clip, out, wav) = (stt.join("audio.wav"), s.out("codes.safetensors"), s.out("codes.wav"));
    let (want, _) = dumped(&stt, "codes");
    let frames = std::fs::read(&clip).unwrap()[44..].len().div_ceil(2 * 1920);
    let want: Vec<Vec<u32>> = want.iter().map(|book| book[..frames].to_vec()).collect();
    for model in [&stt, &alone, &file] {
        let run = ["codec", "encode", "--model", arg(model), arg(&clip), "-o", arg(&out), "--json"];
        let said = s.json(&run);
        assert_eq!(codec::read_file(&out).unwrap(), want, "{}", model.display());
        assert_eq!((said["codebooks"].as_u64(), said["frames"].as_u64()), (Some(8), Some(frames as u64)));
        let run = ["codec", "decode", "--model", arg(model), arg(&out), "-o", arg(&wav), "--json"];
        let said = s.json(&run);
        assert_eq!(
            (said["frames"].as_u64(), said["sample_rate"].as_u64()),
            (Some(frames as u64), Some(24_000))
        );
        assert_eq!(std::fs::read(&wav).unwrap().len(), 44 + 2 * 1920 * frames);
    }
    let whole = std::fs::read(&wav).unwrap();
    let few = ["codec", "encode", "--model", arg(&file), arg(&clip), "-o", arg(&out), "--codebooks", "3"];
    s.run(&few);
    assert_eq!(codec::read_file(&out).unwrap(), want[..3]);
    // Codes of few codebooks need no flag.
    s.run(&["codec", "decode", "--model", arg(&file), arg(&out), "-o", arg(&wav)]);
    let fewer = std::fs::read(&wav).unwrap();
    assert_eq!(fewer.len(), whole.len());
    assert_ne!(fewer, whole);
    for count in ["0", "9"] {
        let run =
            ["codec", "encode", "--model", arg(&file), arg(&clip), "-o", arg(&out), "--codebooks", count];
        let (code, text) = s.fails(&run);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("this codec has 8"), "{text}");
    }
    // Without its configuration the published one is meant, whose eight heads this file has not.
    std::fs::remove_file(alone.join("mimi_config.json")).unwrap();
    std::fs::write(&file, b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let (_, text) = s.fails(&["codec", "encode", "--model", arg(&file), arg(&clip), "-o", arg(&out)]);
    assert!(text.contains("mimi.safetensors"), "{text}");
}
