//! Plain lists of pieces, for models that were saved without their tokeniser.

use serde_json::{Value, json};

use super::SPACE_SYMBOL;
use crate::TokenizerError;

/// The list as a `tokenizer.json` of a Unigram model.
pub(crate) fn as_json(bytes: &[u8]) -> Result<Value, TokenizerError> {
    let text = std::str::from_utf8(bytes).map_err(|_| TokenizerError::broken("a vocabulary is not UTF-8"))?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return Err(TokenizerError::broken("a vocabulary without pieces"));
    }
    let scored = lines.iter().all(|line| line.contains('\t'));
    let marked = scored || lines.iter().any(|line| line.contains(SPACE_SYMBOL));
    let mut vocab: Vec<(String, f64)> = Vec::with_capacity(lines.len() + 1);
    let unknown = |piece: &str| piece == "<unk>" || piece == "<UNK>";
    for (rank, line) in lines.into_iter().enumerate() {
        let (piece, score) = line.split_once('\t').filter(|_| scored).unwrap_or((line, ""));
        let score = score.trim().parse().ok().filter(|s: &f64| s.is_finite()).unwrap_or(-(rank as f64));
        let piece = match piece.strip_prefix("##") {
            _ if marked || unknown(piece) => piece.to_owned(),
            Some(inside) if !inside.is_empty() => inside.to_owned(),
            _ => format!("{SPACE_SYMBOL}{piece}"),
        };
        vocab.push((piece, score));
    }
    // Lists of the second kind leave the unknown piece out, which is the first.
    let unk_id = match vocab.iter().position(|(piece, _)| unknown(piece)) {
        Some(at) => at,
        None => {
            vocab.insert(0, ("<unk>".into(), 0.0));
            0
        }
    };
    let metaspace = json!({
        "type": "Metaspace",
        "replacement": SPACE_SYMBOL.to_string(),
        "prepend_scheme": "always",
        "split": true,
    });
    Ok(json!({
        "version": "1.0",
        "added_tokens": [{"id": unk_id, "content": vocab[unk_id].0, "special": true}],
        "pre_tokenizer": metaspace,
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": unk_id, "vocab": vocab},
    }))
}

#[cfg(test)]
mod tests {
    use crate::Tokenizer;

    #[test]
    fn both_kinds_of_lists_decode() {
        let scored =
            Tokenizer::from_vocab_bytes("<unk>\t0\nhe\t-0\n▁t\t-1\n▁\t-2\ny\t-3\n".as_bytes()).unwrap();
        let plain = Tokenizer::from_vocab_bytes("##he\nt\n##x\n##y\n".as_bytes()).unwrap();
        for t in [&scored, &plain] {
            assert_eq!(t.vocab_size(), 5);
            assert_eq!(t.decode(&[2, 1, 2, 1, 4, 0]), "the they");
            let mut stream = t.detokenizer();
            let text: String = [2, 1, 2, 1, 4].iter().map(|&id| stream.push(id)).collect();
            assert_eq!(text + &stream.finish(), "the they");
        }
        assert_eq!(scored.encode("the"), [2, 1]);
    }

    #[test]
    fn an_empty_list_or_other_bytes_are_errors() {
        assert!(Tokenizer::from_vocab_bytes(b"\n\n").is_err());
        assert!(Tokenizer::from_vocab_bytes(&[0xff, 0xfe]).is_err());
    }
}
