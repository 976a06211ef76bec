//! Tokenisers against what `sentencepiece` 0.2.2 and `tokenizers` 0.23.3 gave (`reference/text`).

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use voce_text::{Tokenizer, TokenizerError};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn texts() -> Vec<String> {
    let lines = std::fs::read_to_string(fixture("texts.jsonl")).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn fnv(bytes: impl IntoIterator<Item = u8>) -> String {
    let hash = bytes
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{:08x}", hash as u32)
}

fn agrees(file: &str) {
    let path = fixture(file);
    let loaded = if path.is_dir() { Tokenizer::from_folder(path) } else { Tokenizer::from_file(path) };
    let tokenizer = loaded.unwrap();
    let name = file.split('.').next().unwrap();
    let expected = std::fs::read_to_string(fixture(&format!("{name}.ids"))).unwrap();
    let texts = texts();
    assert_eq!(texts.len(), expected.lines().count());
    let mut wrong = Vec::new();
    for (index, (text, line)) in texts.iter().zip(expected.lines()).enumerate() {
        let mut fields = line.split_ascii_whitespace();
        let (ids_hash, text_hash) = (fields.next().unwrap(), fields.next().unwrap());
        let ids = tokenizer.encode(text);
        let decoded = tokenizer.decode(&ids);
        if index % 10 == 0 {
            let listed: Vec<u32> = fields.map(|id| id.parse().unwrap()).collect();
            if ids != listed {
                wrong.push(format!("{index} {text:?}: {ids:?} instead of {listed:?}"));
                continue;
            }
        }
        if fnv(ids.iter().flat_map(|id| id.to_le_bytes())) != ids_hash {
            let pieces: Vec<_> = ids.iter().map(|id| tokenizer.piece(*id)).collect();
            wrong.push(format!("{index} {text:?}: ids {ids:?} {pieces:?}"));
        } else if fnv(decoded.bytes()) != text_hash {
            wrong.push(format!("{index} {text:?}: decoded {decoded:?} from {ids:?}"));
        }
        let mut stream = tokenizer.detokenizer();
        let mut streamed: String = ids.iter().map(|id| stream.push(*id)).collect();
        streamed += &stream.finish();
        assert_eq!(streamed, decoded, "{file}: {text:?} decoded id by id");
    }
    assert!(
        wrong.is_empty(),
        "{file}: {} lines differ, e.g.\n{}",
        wrong.len(),
        wrong[..wrong.len().min(8)].join("\n")
    );
}

macro_rules! agree {
    ($($name:ident: $file:literal,)*) => { $( #[test] fn $name() { agrees($file); } )* };
}

agree! {
    unigram_nfkc: "unigram_nfkc.model",
    unigram_identity: "unigram_identity.model",
    unigram_noprefix: "unigram_noprefix.model",
    bpe_rules: "bpe_rules.model",
    bpe_suffix: "bpe_suffix.model",
    json_pocket: "pocket.json",
    json_precompiled: "precompiled.json",
    json_prepend: "prepend.json",
    json_whitespace: "whitespace.json",
    json_bpe: "bpe_merges.json",
    byte_level: "byte_level",
}

#[test]
fn byte_level_ids_of_random_letters_are_those_of_the_package() {
    let tokenizer = Tokenizer::from_folder(fixture("byte_level")).unwrap();
    let lines = std::fs::read_to_string(fixture("byte_level_random.jsonl")).unwrap();
    let mut seen = 0;
    for line in lines.lines() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let ids: Vec<u32> = serde_json::from_value(record["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(record["t"].as_str().unwrap()), ids, "{line}");
        seen += 1;
    }
    assert_eq!(seen, 600);
}

#[test]
fn byte_level_files_that_are_broken_are_named() {
    let read = |name: &str| std::fs::read(fixture("byte_level").join(name)).unwrap();
    let (vocab, merges, config) = (read("vocab.json"), read("merges.txt"), read("tokenizer_config.json"));
    assert!(Tokenizer::from_byte_level(&vocab, &merges, &config).is_ok());
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let other = text(&config).replace("Qwen2Tokenizer", "LlamaTokenizer").into_bytes();
    let moved = text(&config).replace("\"900\"", "\"7\"").into_bytes();
    let spaced =
        text(&config).replace("\"add_prefix_space\": false", "\"add_prefix_space\": true").into_bytes();
    let fewer = text(&vocab).replace("\"Ġ\":", "\"ĠĠĠĠ\":").into_bytes();
    let longer = [&merges[..], "nowhere at\n".as_bytes()].concat();
    for (vocab, merges, config, says) in [
        (&vocab, &merges, &other, "LlamaTokenizer"),
        (&vocab, &merges, &moved, "<|endoftext|>"),
        (&vocab, &merges, &spaced, "add_prefix_space"),
        (&fewer, &merges, &config, "`Ġ`"),
        (&vocab, &longer, &config, "merge"),
        (&vocab, &b"\xff".to_vec(), &config, "merges.txt"),
        (&b"[]".to_vec(), &merges, &config, "vocab.json"),
    ] {
        let error = Tokenizer::from_byte_level(vocab, merges, config).unwrap_err().to_string();
        assert!(error.contains(says), "{error} should name {says}");
    }
    let error = Tokenizer::from_folder(fixture("nowhere")).unwrap_err().to_string();
    assert!(error.contains("vocab.json"), "{error}");
}

#[test]
fn vocabulary_is_readable() {
    for (file, size) in [("pocket.json", 900), ("unigram_nfkc.model", 900), ("bpe_rules.model", 800)] {
        let tokenizer = Tokenizer::from_file(fixture(file)).unwrap();
        assert_eq!(tokenizer.vocab_size(), size);
        assert_eq!(tokenizer.piece(0), Some("<unk>"));
        assert_eq!(tokenizer.piece(size as u32), None);
        for id in 0..size as u32 {
            assert_eq!(tokenizer.id(tokenizer.piece(id).unwrap()), Some(id));
        }
        assert_eq!(tokenizer.decode(&[u32::MAX, size as u32]), "");
    }
    let added = Tokenizer::from_file(fixture("precompiled.json")).unwrap();
    assert_eq!(added.piece(added.id("<new>").unwrap()), Some("<new>"));
    assert!(added.vocab_size() > 500);
}

#[test]
fn characters_split_over_byte_ids_come_out_whole() {
    for file in ["pocket.json", "unigram_nfkc.model"] {
        let tokenizer = Tokenizer::from_file(fixture(file)).unwrap();
        let byte = |byte: u8| tokenizer.id(&format!("<0x{byte:02X}>")).unwrap();
        let mut stream = tokenizer.detokenizer();
        let parts: Vec<String> = "😀".bytes().map(|value| stream.push(byte(value))).collect();
        assert_eq!(parts, ["", "", "", "😀"]);
        stream.push(byte(0xf0));
        assert!(stream.is_mid_character());
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(tokenizer.decode(&[byte(0xf0), byte(0x9f)]), "\u{fffd}\u{fffd}");
    }
}

#[test]
fn a_megabyte_without_a_space_is_encoded() {
    for file in ["pocket.json", "unigram_nfkc.model", "bpe_rules.model", "precompiled.json"] {
        let tokenizer = Tokenizer::from_file(fixture(file)).unwrap();
        for unit in ["station", "日本", "\u{301}"] {
            let text = unit.repeat(1_000_000 / unit.len());
            assert!(tokenizer.encode(&text).len() >= text.len() / 20, "{file} {unit}");
        }
    }
    let tokenizer = Tokenizer::from_folder(fixture("byte_level")).unwrap();
    for unit in ["station", "日本", "\u{301}", " ", "\n", " \n", "!", "7"] {
        let text = unit.repeat(1_000_000 / unit.len());
        assert!(tokenizer.encode(&text).len() >= text.len() / 20, "{unit}");
    }
}

fn json(changes: &[(&str, serde_json::Value)]) -> Result<Tokenizer, TokenizerError> {
    let mut file: serde_json::Value = serde_json::json!({
        "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]]}
    });
    for (pointer, value) in changes {
        match pointer.strip_prefix('/') {
            Some(_) => *file.pointer_mut(pointer).unwrap() = value.clone(),
            None => file[*pointer] = value.clone(),
        }
    }
    Tokenizer::from_json_bytes(file.to_string().as_bytes())
}

#[test]
fn what_is_not_known_is_named() {
    use serde_json::json as j;
    let tokenizer = json(&[]).unwrap();
    assert_eq!(tokenizer.encode("abx"), [1, 2, 0]);
    assert_eq!(tokenizer.decode(&[1, 2]), "a b");
    for (changes, word) in [
        (vec![("normalizer", j!({"type": "Odd"}))], "Odd"),
        (
            vec![("normalizer", j!({"type": "Sequence", "normalizers": [{"type": "BertNormalizer"}]}))],
            "BertNormalizer",
        ),
        (
            vec![("normalizer", j!({"type": "Replace", "pattern": {"Regex": "(?=a)"}, "content": ""}))],
            "(?=a)",
        ),
        (vec![("pre_tokenizer", j!({"type": "ByteLevel"}))], "ByteLevel"),
        (vec![("decoder", j!({"type": "WordPiece"}))], "WordPiece"),
        (vec![("post_processor", j!({"type": "BertProcessing"}))], "BertProcessing"),
        (vec![("model", j!({"type": "WordPiece"}))], "WordPiece"),
        (vec![("model", j!({"type": "BPE"}))], "vocab"),
        (vec![("truncation", j!({"max_length": 5}))], "truncation"),
        (vec![("padding", j!({"strategy": {"Fixed": 5}}))], "padding"),
        (vec![("/model/unk_id", j!(9))], "unk_id"),
        (vec![("/model/unk_id", j!(null))], "unk_id"),
        (vec![("/model/vocab", j!([["a"]]))], "entry 0"),
        (
            vec![(
                "model",
                j!({"type": "Unigram", "unk_id": 0, "vocab": [["u", 0.0]], "byte_fallback": true}),
            )],
            "<0x00>",
        ),
        (vec![("added_tokens", j!([{"id": 1, "content": "zz"}]))], "zz"),
        (vec![("added_tokens", j!([{"id": 7, "content": "a"}]))], "`a`"),
        (
            vec![(
                "decoder",
                j!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}),
            )],
            "Fuse",
        ),
    ] {
        let error = json(&changes).unwrap_err().to_string();
        assert!(error.contains(word), "{error} should name {word}");
    }
}

#[test]
fn files_that_are_no_tokenisers_are_errors() {
    let error = Tokenizer::from_file(fixture("nowhere.model")).unwrap_err();
    assert!(error.to_string().contains("nowhere.model"));
    assert!(matches!(Tokenizer::from_json_bytes(b"{"), Err(TokenizerError::Json(_))));
    assert!(matches!(Tokenizer::from_json_bytes(b"{}"), Err(TokenizerError::UnknownFormat)));
    assert!(Tokenizer::from_model_bytes(b"").is_err());
    let model = std::fs::read(fixture("bpe_rules.model")).unwrap();
    for cut in [1, 10, 100, model.len() / 2, model.len() - 1] {
        // A cut may fall between two fields, which leaves a smaller but whole file.
        if let Ok(tokenizer) = Tokenizer::from_model_bytes(&model[..cut]) {
            tokenizer.encode("hello");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Tokenizer::from_model_bytes(&bytes);
        let _ = Tokenizer::from_json_bytes(&bytes);
    }

    #[test]
    fn damaged_models_never_panic(
        which in 0usize..3,
        hits in prop::collection::vec((0.0f64..1.0, any::<u8>()), 1..20),
        text in "\\PC{0,20}",
    ) {
        let file = ["bpe_rules.model", "unigram_identity.model", "precompiled.json"][which];
        let mut bytes = std::fs::read(fixture(file)).unwrap();
        for (place, value) in hits {
            let at = (place * bytes.len() as f64) as usize;
            bytes[at] = value;
        }
        let loaded = if which == 2 { Tokenizer::from_json_bytes(&bytes) } else { Tokenizer::from_model_bytes(&bytes) };
        if let Ok(tokenizer) = loaded {
            let ids = tokenizer.encode(&text);
            tokenizer.decode(&ids);
        }
    }

    #[test]
    fn any_text_streams_as_it_decodes(text in "\\PC{0,60}") {
        let tokenizer = Tokenizer::from_file(fixture("pocket.json")).unwrap();
        let ids = tokenizer.encode(&text);
        let mut stream = tokenizer.detokenizer();
        let mut streamed: String = ids.iter().map(|id| stream.push(*id)).collect();
        streamed += &stream.finish();
        prop_assert_eq!(streamed, tokenizer.decode(&ids));
    }
}
