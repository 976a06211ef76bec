//! A tokeniser for models with random weights.

use voce_text::Tokenizer;

/// A tokeniser of letters and bytes for random weights, whose text means nothing.
pub(crate) fn plain_tokenizer(tokens: usize) -> Tokenizer {
    let mut vocab: Vec<(String, f32)> = vec![("<unk>".into(), 0.0)];
    vocab.extend((0..256).map(|b| (format!("<0x{b:02X}>"), 0.0)));
    // Words of one to four letters cover text with about four letters a token, as trained ones do.
    vocab.push(("\u{2581}".into(), -3.0));
    for punctuation in [".", ",", "!", "?", ";", ":", "'", "-"] {
        vocab.push((punctuation.into(), -3.0));
    }
    let letters: Vec<char> = ('a'..='z').collect();
    vocab.extend(letters.iter().map(|c| (c.to_string(), -6.0)));
    vocab.extend(letters.iter().map(|c| (c.to_uppercase().to_string(), -6.0)));
    for a in &letters {
        for b in &letters {
            vocab.push((format!("{a}{b}"), -7.0));
            vocab.push((format!("\u{2581}{a}{b}"), -7.5));
        }
    }
    for a in "etaoinshrdlu".chars() {
        for b in "etaoinshrdlu".chars() {
            for c in "etaoinshrdlu".chars() {
                vocab.push((format!("{a}{b}{c}"), -8.0));
            }
        }
    }
    vocab.truncate(tokens);
    while vocab.len() < tokens {
        vocab.push((format!("<pad{}>", vocab.len()), -99.0));
    }
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": false},
        "post_processor": null,
        "decoder": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": false},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": true, "vocab": vocab},
    });
    Tokenizer::from_json_bytes(json.to_string().as_bytes()).expect("the plain tokeniser is valid")
}
