//! The text machine: which text token each step sees, given that the model only says when a word may start.
//!
//! The model draws "a word starts" or anything else, which means "not yet". The machine holds words back while the tokens
//! of the last one are still going in, forces one when the model has waited long enough, and keeps a second text some
//! words ahead for models that read one. [`Machine::outlook`] says what both answers would lead to, so that a device can
//! go on before the host has seen the draw; [`Machine::take`] then takes the answer.

use std::collections::VecDeque;

use crate::kyutai::lm::NONE;
use crate::kyutai::{Branch, TextPair};

/// Tokens and lengths that the machine works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineRules {
    /// A word starts.
    pub new_word: u32,
    /// Nothing happens.
    pub pad: u32,
    /// Words that the second text is ahead; 0 for models without one.
    pub ahead: usize,
    /// Steps that the model may wait with the next word.
    pub max_padding: usize,
    /// Steps before the first word.
    pub initial_padding: usize,
}

/// One word to speak, or a break.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The word; empty for a break.
    pub text: String,
    /// Its tokens; none for a break.
    pub tokens: Vec<u32>,
    /// Steps before the next word may start, those of the tokens included.
    pub padding: usize,
}

/// An entry that was taken, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The word; empty for a break.
    pub text: String,
    /// The step.
    pub step: usize,
}

/// What an answer means, once the rules have had their say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    Pad,
    Word,
}

/// The machine of one stream.
#[derive(Clone, Debug)]
pub struct Machine {
    rules: MachineRules,
    entries: VecDeque<Entry>,
    /// Entries that have tokens.
    words: usize,
    remaining: usize,
    forced: usize,
    queued: VecDeque<u32>,
    second: VecDeque<u32>,
    end: Option<usize>,
}

impl Machine {
    /// A machine without text.
    pub fn new(rules: MachineRules) -> Self {
        Self {
            rules,
            entries: VecDeque::new(),
            words: 0,
            remaining: rules.initial_padding,
            forced: rules.initial_padding,
            queued: VecDeque::new(),
            second: VecDeque::new(),
            end: None,
        }
    }

    /// Adds text.
    pub fn push(&mut self, entry: Entry) {
        self.words += usize::from(!entry.tokens.is_empty());
        self.entries.push_back(entry);
    }

    /// Whether a step could take a word without knowing what comes after it.
    pub fn is_short(&self) -> bool {
        !self.must_pad() && self.words <= self.rules.ahead
    }

    /// The step at which a word was asked for and none was left.
    pub fn end(&self) -> Option<usize> {
        self.end
    }

    fn must_pad(&self) -> bool {
        !self.queued.is_empty() || self.forced > 0
    }

    fn moved(&self, drawn: u32) -> Move {
        match () {
            () if self.must_pad() => Move::Pad,
            () if self.remaining == 0 || drawn == self.rules.new_word => Move::Word,
            () => Move::Pad,
        }
    }

    /// What the next step will see of the text for each answer, and which token is the answer that starts a word.
    pub fn outlook(&self) -> Branch {
        let key = self.rules.new_word;
        let (then, otherwise) = (self.moved(key), self.moved(self.rules.pad));
        Branch { then: self.seen(then), otherwise: self.seen(otherwise), key, free: then != otherwise }
    }

    fn seen(&self, moved: Move) -> TextPair {
        let MachineRules { new_word, pad, ahead, .. } = self.rules;
        let padded =
            [self.queued.front().copied().unwrap_or(pad), self.second.front().copied().unwrap_or(NONE)];
        let first = match (moved, self.entries.front()) {
            (Move::Pad, _) => return padded,
            (Move::Word, Some(entry)) => match entry.tokens.first() {
                Some(first) => *first,
                None => return padded,
            },
            (Move::Word, None) if ahead > 0 && self.end.is_none() => pad,
            (Move::Word, None) => return padded,
        };
        if ahead > 0 { [first, new_word] } else { [new_word, NONE] }
    }

    /// Takes the model's answer of a step. Gives what the next step sees, and the entry that was taken, if one was.
    pub fn take(&mut self, step: usize, drawn: u32) -> (TextPair, Option<Taken>) {
        let moved = self.moved(drawn);
        let pair = self.seen(moved);
        let (mut taken, mut word) = (None, false);
        if moved == Move::Word {
            match self.entries.pop_front() {
                Some(entry) => {
                    taken = Some(Taken { text: entry.text, step });
                    self.forced = entry.padding;
                    if !entry.tokens.is_empty() {
                        word = true;
                        self.words -= 1;
                        self.queued.extend(entry.tokens);
                        self.remaining = self.rules.max_padding;
                        if let Some(next) = self.word_ahead() {
                            let next = next.clone();
                            self.second.extend(next);
                        }
                    }
                }
                None => {
                    word = self.rules.ahead > 0 && self.end.is_none();
                    self.end.get_or_insert(step);
                }
            }
        }
        if word {
            // The mark stands in the second text, where there is one, and leaves the first to the word.
            if self.rules.ahead > 0 {
                self.queued.pop_front();
            }
        } else {
            self.remaining = self.remaining.saturating_sub(1);
            self.forced = self.forced.saturating_sub(1);
            self.queued.pop_front();
            self.second.pop_front();
        }
        (pair, taken)
    }

    /// The tokens of the word that the second text is at.
    fn word_ahead(&self) -> Option<&Vec<u32>> {
        let nth = self.rules.ahead.checked_sub(1)?;
        self.entries.iter().map(|e| &e.tokens).filter(|t| !t.is_empty()).nth(nth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/kyutai/");

    fn number(value: &serde_json::Value) -> usize {
        value.as_u64().unwrap() as usize
    }

    /// Every step of every run that the published package has logged.
    #[test]
    fn every_step_is_the_packages() {
        let (mut steps, mut known) = (0, 0);
        for case in ["tts", "tts_prefix"] {
            let text = std::fs::read_to_string(format!("{FIXTURES}{case}/trace.json")).unwrap();
            let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
            let rules = MachineRules {
                new_word: 0,
                pad: 3,
                ahead: number(&trace["second_stream_ahead"]),
                max_padding: number(&trace["max_padding"]),
                initial_padding: number(&trace["initial_padding"]),
            };
            let card = number(&trace["card"]) as i64 + 1;
            for run in trace["runs"].as_array().unwrap() {
                for (stream, entries) in run["entries"].as_array().unwrap().iter().enumerate() {
                    let mut machine = Machine::new(rules);
                    for e in entries.as_array().unwrap() {
                        let tokens =
                            e["tokens"].as_array().unwrap().iter().map(|t| number(t) as u32).collect();
                        let text = e["text"].as_str().unwrap().to_owned();
                        machine.push(Entry { text, tokens, padding: number(&e["padding"]) });
                    }
                    let (mut words, mut times) = (Vec::new(), Vec::new());
                    for (step, logged) in run["text"][stream].as_array().unwrap().iter().enumerate() {
                        let (drawn, next) = (number(&logged[0]) as u32, logged[1].as_i64().unwrap());
                        if next < 0 {
                            continue; // a voice's codes are still going in
                        }
                        let branch = machine.outlook();
                        let (pair, taken) = machine.take(step, drawn);
                        let foreseen = if drawn == branch.key { branch.then } else { branch.otherwise };
                        assert_eq!(pair, foreseen, "{case}: step {step}");
                        assert!(branch.free || branch.then == branch.otherwise);
                        known += usize::from(!branch.free);
                        let second = if pair[1] == NONE { -1 } else { i64::from(pair[1]) };
                        let muxed =
                            i64::from(pair[0]) + if rules.ahead > 0 { (second + 1) * card } else { 0 };
                        assert_eq!(muxed, next, "{case}: step {step} of stream {stream}");
                        if let Some(taken) = taken {
                            times.push(taken.step);
                            if !taken.text.is_empty() {
                                words.push((taken.text, taken.step));
                            }
                        }
                        steps += 1;
                    }
                    let expected = run["transcripts"][stream].as_array().unwrap();
                    let expected: Vec<(String, usize)> =
                        expected.iter().map(|w| (w[0].as_str().unwrap().to_owned(), number(&w[1]))).collect();
                    assert_eq!(words, expected);
                    assert_eq!(
                        times,
                        run["times"][stream].as_array().unwrap().iter().map(number).collect::<Vec<_>>()
                    );
                    assert_eq!(machine.end(), Some(number(&run["end_steps"][stream])));
                }
            }
        }
        assert!(steps > 300 && known > 100 && known < steps, "{known} of {steps}");
    }

    #[test]
    fn a_machine_is_short_until_it_knows_what_comes_after_the_next_word() {
        let rules = MachineRules { new_word: 0, pad: 3, ahead: 2, max_padding: 8, initial_padding: 1 };
        let mut machine = Machine::new(rules);
        let word = |tokens: &[u32]| Entry { text: "w".into(), tokens: tokens.to_vec(), padding: 0 };
        assert!(!machine.is_short(), "the first steps have no word");
        machine.take(0, 0);
        for _ in 0..2 {
            assert!(machine.is_short());
            machine.push(word(&[7, 8]));
        }
        machine.push(Entry { padding: 3, ..Entry::default() });
        assert!(machine.is_short(), "a break is no word");
        machine.push(word(&[9]));
        assert!(!machine.is_short());
        assert_eq!(machine.take(1, 0).0, [7, 0]);
        assert!(!machine.is_short(), "tokens of a word are still going in");
        assert_eq!(machine.take(2, 0).0, [8, 9]);
        assert!(machine.is_short());
    }
}
