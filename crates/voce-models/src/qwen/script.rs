//! Text as Qwen3-TTS takes it: as it is, in passages of whole sentences; text that arrives goes to the slot that speaks.

use voce_text::{PauseBudget, Segment, SentenceStream, TextError, Tokenizer, parse_pauses_within};

use crate::speech::{Line, Passage, Script, TextMode};

/// Text that waits for the end of a pause tag: a longer one is none.
const MAX_TAG: usize = 64;
/// Arriving text without an end of a word is taken as it is from this size on.
const MAX_WORD: usize = 4096;

/// How the text of one request becomes passages.
pub(super) struct QwenScript {
    pub tokenizer: Tokenizer,
    pub max_tokens: usize,
    pub mode: TextMode,
    pub sentences: SentenceStream,
    /// The pauses that the rest of the text may ask for.
    pub pauses: PauseBudget,
    /// Text that arrived and may still change its tokens.
    pub pending: String,
    /// Tokens of the passage that takes arriving text; none before it begins.
    pub open: Option<usize>,
}

impl QwenScript {
    fn passages(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        for segment in parse_pauses_within(text, &mut self.pauses)? {
            match segment {
                Segment::Pause(d) => out.push(Passage::Pause(d)),
                Segment::Text(t) => self.lines(&t, out),
            }
        }
        Ok(())
    }

    /// The lines of a text that is all there.
    fn lines(&self, text: &str, out: &mut Vec<Passage>) {
        let text = text.trim();
        let tokens = self.tokenizer.encode(text);
        if tokens.len() <= self.max_tokens {
            if !tokens.is_empty() {
                out.push(Passage::New(Line { text: text.into(), tokens, ..Line::default() }));
            }
            return;
        }
        let mut from = 0;
        for end in self.cuts(text) {
            let piece = text[from..end].trim();
            if !piece.is_empty() {
                let tokens = self.tokenizer.encode(piece);
                out.push(Passage::New(Line { text: piece.into(), tokens, ..Line::default() }));
            }
            from = end;
        }
    }

    /// Where a long text is cut: after as many sentences as fit a passage, and inside of one that does not.
    fn cuts(&self, text: &str) -> Vec<usize> {
        let mut sentences = SentenceStream::new();
        let (mut at, mut ends) = (0, Vec::new());
        for sentence in sentences.push(text).into_iter().chain(sentences.finish()) {
            // Sentences are pieces of the text, in order.
            let Some(found) = text[at..].find(&sentence) else { continue };
            let start = at + found;
            at = start + sentence.len();
            self.halve(text, start, at, &mut ends);
        }
        let (mut cuts, mut from, mut last) = (Vec::new(), 0, 0);
        for end in ends {
            if last > from && self.tokenizer.encode(text[from..end].trim()).len() > self.max_tokens {
                cuts.push(last);
                from = last;
            }
            last = end;
        }
        cuts.push(text.len());
        cuts
    }

    /// Ends of pieces that fit a passage, cut between words as near to the middle as can be.
    fn halve(&self, text: &str, start: usize, end: usize, ends: &mut Vec<usize>) {
        let piece = &text[start..end];
        if self.tokenizer.encode(piece.trim()).len() <= self.max_tokens || piece.chars().count() < 2 {
            return ends.push(end);
        }
        let middle = piece.len() / 2;
        let near = |at: &usize| at.abs_diff(middle);
        let space = piece.char_indices().filter(|(_, c)| c.is_whitespace()).map(|(at, _)| at);
        let letter = piece.char_indices().map(|(at, _)| at).filter(|at| *at > 0);
        let space = space.filter(|at| *at > 0).min_by_key(near).filter(|at| near(at) < piece.len() / 3);
        let cut = start + space.or_else(|| letter.min_by_key(near)).unwrap_or(middle);
        self.halve(text, start, cut, ends);
        self.halve(text, cut, end, ends);
    }

    /// Takes the arrived text up to where its tokens are certain.
    fn settle(&mut self, out: &mut Vec<Passage>) -> Result<(), TextError> {
        let mut end = self.pending.len();
        // Neither a pause tag nor a token with a name is cut in two.
        loop {
            end = self.tokenizer.settled(&self.pending[..open_tag(&self.pending[..end]).unwrap_or(end)]);
            if open_tag(&self.pending[..end]).is_none() {
                break;
            }
        }
        if end == 0 && self.pending.len() > MAX_WORD {
            end = self.pending.len();
        }
        let text: String = self.pending.drain(..end).collect();
        self.arrived(&text, out)
    }

    /// Text whose tokens are certain, for the passage that takes it.
    fn arrived(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        if text.is_empty() {
            return Ok(());
        }
        for segment in parse_pauses_within(text, &mut self.pauses)? {
            let text = match segment {
                Segment::Pause(d) => {
                    self.open = None;
                    out.push(Passage::Pause(d));
                    continue;
                }
                Segment::Text(text) => text,
            };
            let begun = self.open.is_some();
            let text = if begun { &*text } else { text.trim_start() };
            let tokens = self.tokenizer.encode(text);
            if tokens.is_empty() {
                continue;
            }
            let count = self.open.unwrap_or(0) + tokens.len();
            let line = Line { text: text.into(), tokens, open: true, ..Line::default() };
            out.push(if begun { Passage::More(line) } else { Passage::New(line) });
            // A passage that has enough ends with the sentence.
            let full = count >= self.max_tokens
                || 2 * count >= self.max_tokens && text.trim_end().ends_with(SENTENCE_ENDS);
            self.open = (!full).then_some(count);
        }
        Ok(())
    }
}

/// Where a tag starts that the text has not ended.
fn open_tag(text: &str) -> Option<usize> {
    let at = text.rfind(['[', '<'])?;
    (text.len() - at <= MAX_TAG && !text[at..].contains([']', '>'])).then_some(at)
}

/// Marks that end sentences.
const SENTENCE_ENDS: [char; 7] = ['.', '!', '?', '…', '。', '！', '？'];

impl Script for QwenScript {
    fn whole(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        self.passages(text, out)
    }

    fn push(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        match self.mode {
            TextMode::Whole => {
                let sentences = self.sentences.push(text);
                sentences.iter().try_for_each(|sentence| self.passages(sentence, out))
            }
            TextMode::Streaming => {
                self.pending.push_str(text);
                self.settle(out)
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<Passage>) -> Result<(), TextError> {
        match self.mode {
            TextMode::Whole => {
                let sentences = self.sentences.finish();
                sentences.iter().try_for_each(|sentence| self.passages(sentence, out))
            }
            TextMode::Streaming => {
                let text = std::mem::take(&mut self.pending);
                self.arrived(text.trim_end(), out)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(mode: TextMode, max_tokens: usize) -> QwenScript {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen/custom_0b6");
        QwenScript {
            tokenizer: Tokenizer::from_folder(folder).unwrap(),
            max_tokens,
            mode,
            sentences: SentenceStream::new(),
            pauses: PauseBudget::default(),
            pending: String::new(),
            open: None,
        }
    }

    fn tokens(passages: &[Passage]) -> Vec<u32> {
        let line = |passage: &Passage| match passage {
            Passage::New(line) | Passage::More(line) => line.tokens.clone(),
            Passage::Pause(_) => Vec::new(),
        };
        passages.iter().flat_map(line).collect()
    }

    #[test]
    fn arriving_text_has_the_tokens_of_the_whole_however_it_is_cut() {
        let text =
            "Hello there, it's a tiny test: naïve café 你好，世界 42! And <|im_end|> [not a tag] the user's";
        let want = script(TextMode::Streaming, 400).tokenizer.encode(text);
        for step in [1, 2, 3, 7, 200] {
            let mut script = script(TextMode::Streaming, 400);
            let (mut out, letters) = (Vec::new(), text.chars().collect::<Vec<_>>());
            for piece in letters.chunks(step) {
                script.push(&piece.iter().collect::<String>(), &mut out).unwrap();
            }
            script.finish(&mut out).unwrap();
            assert_eq!(tokens(&out), want, "{step}");
            assert!(matches!(out[0], Passage::New(_)));
            assert!(out[1..].iter().all(|passage| matches!(passage, Passage::More(_))));
        }
    }

    #[test]
    fn arriving_text_pauses_at_tags_and_turns_to_new_passages_at_sentences() {
        let mut script = script(TextMode::Streaming, 40);
        let mut out = Vec::new();
        for piece in ["One two. [pau", "se:1s] Three is ", "here. Four is there. Five is nowhere. Six ", "is"]
        {
            script.push(piece, &mut out).unwrap();
        }
        script.finish(&mut out).unwrap();
        assert_eq!(out.iter().filter(|p| matches!(p, Passage::Pause(_))).count(), 1, "{out:?}");
        let new = out.iter().filter(|p| matches!(p, Passage::New(_))).count();
        assert!((3..=4).contains(&new), "{out:?}");
        // A word without an end does not wait for ever, and what is left of a tag is text.
        let mut long = self::script(TextMode::Streaming, 400);
        let mut out = Vec::new();
        long.push(&"a".repeat(MAX_WORD), &mut out).unwrap();
        assert!(out.is_empty());
        long.push("a", &mut out).unwrap();
        assert!(!out.is_empty());
    }

    #[test]
    fn long_texts_are_cut_at_sentences_and_no_passage_is_longer_than_asked() {
        let text = "One is here. Two is there! 三在这里。四在那里。 A sentence that is much longer than a passage, and has no end";
        for most in [1, 8, 20, 60, 400] {
            let mut script = script(TextMode::Whole, most);
            let mut out = Vec::new();
            script.whole(text, &mut out).unwrap();
            let lines: Vec<&Line> = out
                .iter()
                .map(|passage| match passage {
                    Passage::New(line) => line,
                    other => panic!("{other:?}"),
                })
                .collect();
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            assert_eq!(lines.iter().map(|line| letters(&line.text)).collect::<String>(), letters(text));
            // A letter of three bytes may be three tokens.
            assert!(lines.iter().all(|line| line.tokens.len() <= most.max(3) && !line.open), "{most}");
            assert_eq!(lines.len() == 1, most == 400);
        }
    }
}
