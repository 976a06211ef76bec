//! Text preparation and chunking against what the `pocket_tts` 4.0.1 package did (`reference/text`).

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::Value;
use voce_text::prompt::{HARD_LIMIT_TOKENS, split_into_chunks_limited};
use voce_text::{PromptRules, TextError, Tokenizer, prepare, split_into_chunks};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn map(pairs: &[(char, &str)]) -> BTreeMap<char, String> {
    pairs.iter().map(|(letter, text)| (*letter, (*text).to_owned())).collect()
}

/// The rule sets of the generator, in its order.
fn rule_sets() -> [PromptRules; 5] {
    let french = [
        ('"', ""),
        ('“', ""),
        ('”', ""),
        ('«', ""),
        ('»', ""),
        ('’', "'"),
        ('‘', "'"),
        (':', ","),
        ('(', ""),
        (')', ""),
        ('[', ""),
        (']', ""),
        ('–', ","),
    ];
    let base = PromptRules::default();
    [
        base.clone(),
        PromptRules { pad_with_spaces_for_short_inputs: true, remove_semicolons: true, ..base.clone() },
        PromptRules { remove_semicolons: true, replace_characters: map(&french), ..base.clone() },
        PromptRules {
            pad_with_spaces_for_short_inputs: true,
            append_terminal_punctuation: false,
            capitalize_first_letter: false,
            ..base.clone()
        },
        PromptRules { replace_characters: map(&[('’', "'"), ('‘', "'"), ('&', " and ")]), ..base },
    ]
}

#[test]
fn agrees_with_the_package() {
    let rules = rule_sets();
    let mut tokenizers = HashMap::new();
    let mut chunks_seen = 0;
    for line in std::fs::read_to_string(fixture("prompt.jsonl")).unwrap().lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let text = record["t"].as_str().unwrap();
        let rules = &rules[record["r"].as_u64().unwrap() as usize];
        let file = record["k"].as_str().unwrap().to_owned();
        let tokenizer =
            tokenizers.entry(file).or_insert_with_key(|file| Tokenizer::from_file(fixture(file)).unwrap());
        let Some(expected) = record["p"].as_str() else {
            assert_eq!(prepare(rules, text).unwrap_err(), TextError::Empty, "{text:?}");
            assert_eq!(split_into_chunks(tokenizer, rules, text, 50).unwrap_err(), TextError::Empty);
            continue;
        };
        let prepared = prepare(rules, text).unwrap();
        assert_eq!(prepared.text, expected, "{line}");
        assert_eq!(u64::from(prepared.frames_after_eos_guess), record["g"].as_u64().unwrap(), "{line}");
        let max_tokens = record["m"].as_u64().unwrap() as usize;
        let expected: Vec<&str> =
            record["c"].as_array().unwrap().iter().map(|chunk| chunk.as_str().unwrap()).collect();
        let expected: Vec<&str> = expected.into_iter().filter(|chunk| !chunk.is_empty()).collect();
        let chunks = split_into_chunks(tokenizer, rules, text, max_tokens).unwrap();
        assert_eq!(chunks, expected, "{line}");
        chunks_seen += chunks.len();
    }
    assert!(chunks_seen > 800, "{chunks_seen}");
}

#[test]
fn a_megabyte_without_a_full_stop_is_cut() {
    let rules = PromptRules::default();
    for file in ["pocket.json", "unigram_nfkc.model"] {
        let tokenizer = Tokenizer::from_file(fixture(file)).unwrap();
        let texts = [
            "station river ".repeat(70_000),
            "x".repeat(1_000_000),
            "😀".repeat(100_000),
            "3.5 ".repeat(250_000),
        ];
        for text in texts {
            let chunks = split_into_chunks(&tokenizer, &rules, &text, 50).unwrap();
            // A cut word may take a token or two more on its own than it did in its context.
            assert!(chunks.iter().all(|chunk| tokenizer.encode(chunk).len() <= HARD_LIMIT_TOKENS + 8));
            let joined: String = chunks.concat().split_whitespace().collect();
            let wanted: String = text.split_whitespace().collect();
            assert_eq!(joined.trim_end_matches('.').to_lowercase(), wanted.trim_end_matches('.'), "{file}");
        }
        let commas = "one river, ".repeat(50_000);
        assert!(split_into_chunks(&tokenizer, &rules, &commas, 50).unwrap().len() > 1000);
    }
}

#[test]
fn the_hard_limit_cuts_between_words() {
    let tokenizer = Tokenizer::from_file(fixture("pocket.json")).unwrap();
    let text = "the river follows the station and the garden ".repeat(20);
    let whole = split_into_chunks(&tokenizer, &PromptRules::default(), &text, 50).unwrap();
    assert_eq!(whole.len(), 1);
    let cut = split_into_chunks_limited(&tokenizer, &PromptRules::default(), &text, 20, 30).unwrap();
    assert!(cut.len() > 5);
    assert!(cut.iter().all(|chunk| tokenizer.encode(chunk).len() <= 30));
    assert_eq!(cut.join(" "), whole[0]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_panics(text in "\\PC{0,80}", which in 0usize..5, max_tokens in 0usize..60) {
        let rules = &rule_sets()[which];
        let tokenizer = Tokenizer::from_file(fixture("bpe_rules.model")).unwrap();
        if let Ok(chunks) = split_into_chunks_limited(&tokenizer, rules, &text, max_tokens, 10) {
            prop_assert!(chunks.iter().all(|chunk| !chunk.is_empty()));
        }
    }
}
