//! Text as Pocket TTS wants it: pause tags taken out, numbers read out, passages of a few dozen tokens.

use std::sync::Arc;

use voce_text::normalize::{Signs, read_addresses};
use voce_text::{
    PauseBudget, PromptRules, Segment, SentenceStream, TextError, Tokenizer, in_alphabet, normalize_english,
    parse_pauses_within, prepare, split_into_chunks,
};

use super::EXTRA_FRAMES_AFTER_EOS;
use crate::speech::{Line, Passage, Script};

/// How the text of one request becomes passages.
pub(super) struct PocketScript {
    pub tokenizer: Tokenizer,
    pub rules: Arc<PromptRules>,
    pub max_tokens: usize,
    /// The language of the model, where known.
    pub speaks: Option<String>,
    /// Whether numbers and abbreviations are read out in English.
    pub english: bool,
    /// How addresses are read out in other languages.
    pub signs: Option<Signs>,
    /// Frames after EOS, unless each passage's guess is to be used.
    pub frames_after_eos: Option<usize>,
    pub sentences: SentenceStream,
    /// The pauses that the rest of the text may ask for.
    pub pauses: PauseBudget,
}

impl PocketScript {
    fn passages(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        for segment in parse_pauses_within(text, &mut self.pauses)? {
            match segment {
                Segment::Pause(d) => out.push(Passage::Pause(d)),
                Segment::Text(t) => self.lines(&t, out)?,
            }
        }
        Ok(())
    }

    fn lines(&self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        let text = match self.signs {
            _ if self.english => normalize_english(text),
            Some(signs) => read_addresses(text, signs),
            None => text.into(),
        };
        let text = in_alphabet(&self.tokenizer, &self.rules, &text, self.speaks.as_deref())?;
        let chunks = match split_into_chunks(&self.tokenizer, &self.rules, &text, self.max_tokens) {
            Err(TextError::Empty) => return Ok(()),
            other => other?,
        };
        for chunk in chunks {
            let prepared = prepare(&self.rules, &chunk)?;
            // Marks alone are noise to a model.
            if !prepared.text.contains(char::is_alphanumeric) {
                continue;
            }
            let guess = prepared.frames_after_eos_guess as usize + EXTRA_FRAMES_AFTER_EOS;
            out.push(Passage::New(Line {
                tokens: self.tokenizer.encode(&prepared.text),
                text: prepared.text,
                tail: self.frames_after_eos.unwrap_or(guess),
                ..Line::default()
            }));
        }
        Ok(())
    }
}

impl Script for PocketScript {
    fn whole(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        self.passages(text, out)
    }

    fn push(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        let sentences = self.sentences.push(text);
        sentences.iter().try_for_each(|sentence| self.passages(sentence, out))
    }

    fn finish(&mut self, out: &mut Vec<Passage>) -> Result<(), TextError> {
        let sentences = self.sentences.finish();
        sentences.iter().try_for_each(|sentence| self.passages(sentence, out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(max_tokens: usize) -> PocketScript {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../voce-text/tests/fixtures/pocket.json");
        PocketScript {
            tokenizer: Tokenizer::from_file(fixtures).unwrap(),
            rules: Arc::default(),
            max_tokens,
            speaks: None,
            english: true,
            signs: None,
            frames_after_eos: None,
            sentences: SentenceStream::new(),
            pauses: PauseBudget::default(),
        }
    }

    #[test]
    fn text_without_stops_is_no_longer_than_asked_whole_and_as_it_arrives() {
        let text = "the river follows the station and the garden ".repeat(60);
        let tokenizer = script(40).tokenizer;
        let words = |out: &[Passage]| {
            let mut said = Vec::new();
            for passage in out {
                let Passage::New(line) = passage else { panic!("{passage:?}") };
                // What was counted is without the capital and the full stop that are added.
                let line = line.text.to_lowercase();
                let line = line.trim_end_matches('.');
                assert!(tokenizer.encode(line).len() <= 40, "{line}");
                said.extend(line.split_whitespace().map(str::to_owned));
            }
            said
        };
        let want: Vec<&str> = text.split_whitespace().collect();
        let mut out = Vec::new();
        script(40).whole(&text, &mut out).unwrap();
        assert_eq!(words(&out), want);
        let (mut live, mut script) = (Vec::new(), script(40));
        text.as_bytes().chunks(7).for_each(|piece| {
            script.push(std::str::from_utf8(piece).unwrap(), &mut live).unwrap();
        });
        assert!(!live.is_empty(), "it does not wait for the end");
        script.finish(&mut live).unwrap();
        assert_eq!(words(&live), want);
    }

    #[test]
    fn marks_alone_are_no_passage() {
        let mut out = Vec::new();
        script(50).whole("... !", &mut out).unwrap();
        script(50).whole("\u{2665} \u{2192}", &mut out).unwrap();
        assert_eq!(out, []);
        script(50).whole("Привет.", &mut out).unwrap_err();
    }

    #[test]
    fn pauses_of_a_text_that_arrives_count_together() {
        let mut script = script(50);
        let mut out = Vec::new();
        for _ in 0..10 {
            script.push("Hi. [pause:30s]\n\n", &mut out).unwrap();
        }
        assert_eq!(out.iter().filter(|p| matches!(p, Passage::Pause(_))).count(), 10);
        script.push("One more. [pause:1ms]\n\n", &mut out).unwrap_err();
    }
}
