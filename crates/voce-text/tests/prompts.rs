//! Text preparation and chunking against what the `pocket_tts` 4.0.1 package did (`reference/text`).

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::Value;
use voce_text::prompt::{cut_between_words, halve};
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
    let (mut chunks_seen, mut whole) = (0, 0);
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
        // What the package leaves longer than asked is cut between words here; all else is the same.
        let mut rest = chunks.iter();
        for want in expected {
            if tokenizer.encode(want).len() <= max_tokens {
                assert_eq!(rest.next().map(String::as_str), Some(want), "{line}");
                whole += 1;
                continue;
            }
            let pieces = cut_between_words(tokenizer, want, max_tokens);
            assert!(rest.by_ref().take(pieces.len()).eq(&pieces), "{line}");
        }
        assert_eq!(rest.next(), None, "{line}");
        chunks_seen += chunks.len();
    }
    assert!(chunks_seen > 800 && whole > 700, "{chunks_seen}, {whole}");
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
            assert!(chunks.iter().all(|chunk| tokenizer.encode(chunk).len() <= 50 + 8));
            let joined: String = chunks.concat().split_whitespace().collect();
            let wanted: String = text.split_whitespace().collect();
            assert_eq!(joined.trim_end_matches('.').to_lowercase(), wanted.trim_end_matches('.'), "{file}");
        }
        let commas = "one river, ".repeat(50_000);
        assert!(split_into_chunks(&tokenizer, &rules, &commas, 50).unwrap().len() > 1000);
    }
}

/// Words without a mark between them, some of them of the kind that leans on the next.
const UNSTOPPED: &str = "the old captain had told the men of his ship that there was no land to be seen from the mast for a week and \
                         that they would have to live on what was left of the bread until the wind turned to the west again";

#[test]
fn text_without_marks_is_cut_between_words_into_pieces_of_about_the_same_length() {
    for file in ["pocket.json", "unigram_nfkc.model", "../../../../models/nano-voice/tokenizer.model"] {
        let tokenizer = Tokenizer::from_file(fixture(file)).unwrap();
        let count = |text: &str| tokenizer.encode(text).len();
        // The small voice knows no capitals.
        let rules = PromptRules { capitalize_first_letter: false, ..PromptRules::default() };
        for (words, most) in [(12, 50), (30, 40), (41, 40), (41, 20), (400, 40), (400, 50)] {
            let words: Vec<&str> = UNSTOPPED.split_whitespace().cycle().take(words).collect();
            let text = words.join(" ");
            let chunks = split_into_chunks(&tokenizer, &rules, &text, most).unwrap();
            assert!(chunks.iter().all(|chunk| count(chunk) <= most), "{file} {most} {chunks:?}");
            let joined = chunks.join(" ");
            assert_eq!(joined.trim_end_matches('.'), text, "nothing is lost: {file}");
            let least = chunks.iter().map(|chunk| count(chunk)).min().unwrap();
            assert!(
                chunks.len() == 1 || least >= most / 3,
                "no tail of a word or two: {file} {most} {chunks:?}"
            );
            let fewest = count(&text).div_ceil(most);
            assert!(
                chunks.len() <= fewest + fewest.div_ceil(4),
                "{file} {most}: {} of {fewest}",
                chunks.len()
            );
            let leaning =
                chunks.iter().filter(|c| c.ends_with(" the") || c.ends_with(" of") || c.ends_with(" a"));
            assert!(leaning.count() * 5 <= chunks.len(), "{file} {most} {chunks:?}");
        }
    }
}

#[test]
fn clauses_are_tried_before_words() {
    let tokenizer = Tokenizer::from_file(fixture("pocket.json")).unwrap();
    let clause = "the river follows the station and the garden";
    let text = format!("{clause}, {clause}, {UNSTOPPED}, {clause}.");
    let chunks = split_into_chunks(&tokenizer, &PromptRules::default(), &text, 40).unwrap();
    assert_eq!(chunks[0].to_lowercase(), format!("{clause}, {clause},"));
    assert!(chunks.last().unwrap().starts_with(clause), "{chunks:?}");
    assert!(chunks.iter().all(|chunk| tokenizer.encode(chunk).len() <= 41), "{chunks:?}");
}

#[test]
fn a_word_that_is_too_long_is_cut_between_letters_and_loses_none() {
    let tokenizer = Tokenizer::from_file(fixture("pocket.json")).unwrap();
    let pieces = cut_between_words(&tokenizer, &format!("so {} it is", "é".repeat(400)), 40);
    assert!(pieces.len() > 2 && pieces.iter().all(|piece| !piece.is_empty()));
    assert_eq!(pieces.concat().matches('é').count(), 400);
    assert_eq!(cut_between_words(&tokenizer, "", 40), Vec::<String>::new());
}

#[test]
fn halves_are_halves() {
    let tokenizer = Tokenizer::from_file(fixture("pocket.json")).unwrap();
    let [first, second] = halve(&tokenizer, UNSTOPPED).unwrap();
    assert_eq!(format!("{first} {second}"), UNSTOPPED);
    let (a, b) = (tokenizer.encode(&first).len(), tokenizer.encode(&second).len());
    assert!(a.abs_diff(b) * 3 <= a + b, "{a} {b}");
    assert_eq!(halve(&tokenizer, "two words"), Some(["two".into(), "words".into()]));
    let long = format!("a {}", "station".repeat(20));
    assert_eq!(halve(&tokenizer, &long).unwrap()[0], "a");
    assert_eq!((halve(&tokenizer, "word"), halve(&tokenizer, " ")), (None, None));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_panics(text in "\\PC{0,80}", which in 0usize..5, max_tokens in 0usize..60) {
        let rules = &rule_sets()[which];
        let tokenizer = Tokenizer::from_file(fixture("bpe_rules.model")).unwrap();
        if let Ok(chunks) = split_into_chunks(&tokenizer, rules, &text, max_tokens) {
            prop_assert!(chunks.iter().all(|chunk| !chunk.is_empty()));
        }
    }
}
