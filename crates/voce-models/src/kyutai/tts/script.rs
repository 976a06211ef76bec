//! Text as Kyutai's models take it: word by word, breaks as steps without words, turns by a mark.

use std::sync::LazyLock;

use regex::Regex;
use voce_text::normalize::{Signs, read_addresses};
use voce_text::{PauseBudget, Segment, TextError, Tokenizer, parse_pauses_within};

use crate::speech::{Line, LineWord, Passage, Script};

/// Text that waits for the end of a tag: a longer one is none.
const MAX_TAG: usize = 64;
/// Arriving text without an end of a word is taken as it is from this size on.
const MAX_WORD: usize = 4096;
/// Tokens of a text after which the other speaker goes on: those of the first and of the second.
const SPEAKERS: [u32; 2] = [1, 2];

static TURN: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?i)<\s*turn\s*/?>").expect("a fixed pattern"));

/// How the text of one request becomes passages.
pub(super) struct KyutaiScript {
    pub tokenizer: Tokenizer,
    /// Tokens of a passage at most.
    pub max_tokens: usize,
    /// Whether the model knows two speakers.
    pub turns: bool,
    /// Steps that are forced between words.
    pub between: usize,
    pub frame_rate: f64,
    /// How web addresses are read out; as they are when absent.
    pub signs: Option<Signs>,
    /// The pauses that the rest of the text may ask for.
    pub pauses: PauseBudget,
    pub state: ScriptState,
}

/// What a text has come to.
#[derive(Default)]
pub(super) struct ScriptState {
    /// Text that arrived and may still go on with the next.
    pending: String,
    /// Tokens of the passage that takes arriving text; none before it starts.
    open: Option<usize>,
    /// Which speaker's turn it is, and whose token was said last.
    turn: usize,
    last: Option<usize>,
    /// A turn whose first word has not come.
    fresh: bool,
    begun: bool,
}

/// Text without the marks that the models were not trained with.
fn plain(text: &str) -> String {
    text.chars()
        .filter_map(|c| match c {
            '’' => Some('\''),
            ':' => Some(' '),
            '(' | ')' | '–' => None,
            other => Some(other),
        })
        .collect()
}

impl KyutaiScript {
    /// Text that is certain, for the passage that takes it.
    fn arrived(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        let mut line = Line { open: true, ..Line::default() };
        let mut from = 0;
        for tag in TURN.find_iter(text) {
            self.segments(&text[from..tag.start()], &mut line, out)?;
            self.state.turn += 1;
            self.state.fresh = true;
            from = tag.end();
        }
        self.segments(&text[from..], &mut line, out)?;
        self.give(line, out);
        Ok(())
    }

    fn segments(&mut self, text: &str, line: &mut Line, out: &mut Vec<Passage>) -> Result<(), TextError> {
        for segment in parse_pauses_within(text, &mut self.pauses)? {
            match segment {
                Segment::Pause(d) => {
                    let pause = (d.as_secs_f64() * self.frame_rate).round_ties_even() as usize;
                    line.words.push(LineWord { text: String::new(), tokens: 0, pause });
                }
                Segment::Text(text) => {
                    let text = match self.signs {
                        Some(signs) => read_addresses(&text, signs),
                        None => text.as_str().into(),
                    };
                    for word in plain(&text).split_whitespace() {
                        self.word(word, line, out);
                    }
                }
            }
        }
        Ok(())
    }

    fn word(&mut self, word: &str, line: &mut Line, out: &mut Vec<Passage>) {
        let mut tokens = self.tokenizer.encode(word);
        let state = &mut self.state;
        if std::mem::take(&mut state.fresh) || !std::mem::replace(&mut state.begun, true) {
            let speaker = state.turn % SPEAKERS.len();
            if self.turns && state.last != Some(speaker) {
                state.last = Some(speaker);
                tokens.insert(0, SPEAKERS[speaker]);
            }
        }
        if tokens.is_empty() {
            return;
        }
        let so_far = state.open.unwrap_or(0) + line.tokens.len();
        if so_far > 0 && so_far.saturating_add(tokens.len()) > self.max_tokens {
            let full = std::mem::replace(line, Line { open: true, ..Line::default() });
            self.give(full, out);
            self.state.open = None;
        }
        let pause = if self.between > 0 { self.between + tokens.len() - 1 } else { 0 };
        if !line.text.is_empty() {
            line.text.push(' ');
        }
        line.text.push_str(word);
        line.words.push(LineWord { text: word.to_owned(), tokens: tokens.len(), pause });
        line.tokens.append(&mut tokens);
    }

    fn give(&mut self, line: Line, out: &mut Vec<Passage>) {
        if line.words.is_empty() {
            return;
        }
        let count = line.tokens.len();
        out.push(match self.state.open {
            Some(_) => Passage::More(line),
            None => Passage::New(line),
        });
        self.state.open = Some(self.state.open.unwrap_or(0) + count);
    }
}

/// Where the last word starts that may go on, or a tag that is not over by then.
fn settled(text: &str) -> usize {
    let last = text.char_indices().rev().find(|(_, c)| c.is_whitespace());
    let end = last.map_or(0, |(at, c)| at + c.len_utf8());
    let tag = text[..end].rfind(['[', '<']).filter(|&at| !text[at..end].contains([']', '>']));
    tag.filter(|&at| text.len() - at <= MAX_TAG || text[at..].contains([']', '>'])).unwrap_or(end)
}

impl Script for KyutaiScript {
    fn whole(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        self.state.pending.push_str(text);
        self.finish(out)
    }

    fn push(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        self.state.pending.push_str(text);
        let mut end = settled(&self.state.pending);
        if end == 0 && self.state.pending.len() > MAX_WORD {
            end = self.state.pending.len();
        }
        let ready: String = self.state.pending.drain(..end).collect();
        self.arrived(&ready, out)
    }

    fn finish(&mut self, out: &mut Vec<Passage>) -> Result<(), TextError> {
        let text = std::mem::take(&mut self.state.pending);
        self.arrived(&text, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script() -> KyutaiScript {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/kyutai/say/tokenizer.model");
        KyutaiScript {
            tokenizer: Tokenizer::from_file(file).unwrap(),
            max_tokens: usize::MAX,
            turns: true,
            between: 1,
            frame_rate: 12.5,
            signs: Signs::of("en"),
            pauses: PauseBudget::default(),
            state: ScriptState::default(),
        }
    }

    fn words(passages: &[Passage]) -> (Vec<LineWord>, Vec<u32>) {
        let lines = passages.iter().map(|p| match p {
            Passage::New(line) | Passage::More(line) => line.clone(),
            Passage::Pause(_) => panic!("breaks are entries"),
        });
        lines.fold(Default::default(), |(mut words, mut tokens), line| {
            words.extend(line.words);
            tokens.extend(line.tokens);
            (words, tokens)
        })
    }

    const TEXT: &str =
        "one two: <break time=\"0.4s\"/> three <turn/> the (lazy) dog<turn/>what’s a [pause:200ms] day.";

    #[test]
    fn arriving_text_is_the_whole_however_it_is_cut() {
        let mut out = Vec::new();
        script().whole(TEXT, &mut out).unwrap();
        let want = words(&out);
        let said: Vec<&str> = want.0.iter().map(|w| w.text.as_str()).collect();
        assert_eq!(said, ["one", "two", "", "three", "the", "lazy", "dog", "what's", "a", "", "day."]);
        assert_eq!((want.0[2].pause, want.0[9].pause), (5, 2), "halves go to the even step");
        let first = |n: usize| want.1[want.0[..n].iter().map(|w| w.tokens).sum::<usize>()];
        assert_eq!((first(0), first(4), first(7)), (1, 2, 1), "a turn starts with its speaker");
        assert_eq!(want.0[0].pause, want.0[0].tokens, "one step more than the tokens after the first");
        for step in [1, 2, 5, 11, 300] {
            let (mut script, mut out) = (script(), Vec::new());
            for piece in TEXT.chars().collect::<Vec<_>>().chunks(step) {
                script.push(&piece.iter().collect::<String>(), &mut out).unwrap();
            }
            script.finish(&mut out).unwrap();
            assert_eq!(words(&out), want, "{step}");
            assert!(matches!(out[0], Passage::New(_)));
            assert!(out[1..].iter().all(|p| matches!(p, Passage::More(_))));
        }
    }

    #[test]
    fn addresses_are_read_word_by_word() {
        let (mut script, mut out) = (script(), Vec::new());
        for piece in ["See https://exam", "ple.com/do", "cs now."] {
            script.push(piece, &mut out).unwrap();
        }
        script.finish(&mut out).unwrap();
        let said: Vec<String> = words(&out).0.into_iter().map(|word| word.text).collect();
        assert_eq!(said, ["See", "example", "dot", "com", "slash", "docs", "now."]);
    }

    #[test]
    fn passages_are_no_longer_than_asked_and_a_word_does_not_wait_for_ever() {
        let mut short = KyutaiScript { max_tokens: 6, ..script() };
        let mut out = Vec::new();
        short.whole("one two three four five six", &mut out).unwrap();
        let new = out.iter().filter(|p| matches!(p, Passage::New(_))).count();
        assert!(new > 1, "{out:?}");
        let mut long = script();
        out.clear();
        long.push(&"a".repeat(MAX_WORD), &mut out).unwrap();
        assert!(out.is_empty());
        long.push("a", &mut out).unwrap();
        assert_eq!(out.len(), 1);
        long.push(" <break time=\"99s\"/> b", &mut out).unwrap_err();
    }
}
