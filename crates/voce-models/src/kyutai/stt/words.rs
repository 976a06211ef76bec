//! Text tokens of steps as words and their times.
//!
//! A recogniser draws a token in every step. One of them stands for a pause between words, another for the start of the
//! next word; all others spell. Tokens come `delay` steps after their audio, and those before that mean nothing.

/// Where a stream's text stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// The token of pauses.
    padding: u32,
    /// The token before a word.
    end_padding: u32,
    /// Steps by which text comes after its audio, with the silence that stood before it.
    delay: usize,
    /// Steps of that silence.
    prefix: usize,
    /// Steps so far.
    step: usize,
    /// Tokens of the word under way.
    spelled: usize,
    /// A word was spelled, and no token said yet where it ends.
    unended: bool,
    /// Where the last word ended, in frames.
    stop: usize,
}

/// What a step's token says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// It spells, and this is the frame it is heard at: for the first token of a word where the word starts.
    pub frame: Option<usize>,
    /// The word before it is spelled.
    pub word: bool,
    /// The word before it ended at this frame.
    pub ended: Option<usize>,
}

impl Words {
    /// A stream before its first step, whose text comes `delay` steps after its audio and has `prefix` frames of silence
    /// before that.
    pub fn new(padding: u32, end_padding: u32, delay: usize, prefix: usize) -> Self {
        Self { padding, end_padding, delay, prefix, step: 0, spelled: 0, unended: false, stop: 0 }
    }

    /// Steps so far.
    pub fn steps(&self) -> usize {
        self.step
    }

    /// Takes the token of the next step.
    pub fn push(&mut self, token: u32) -> Heard {
        self.step += 1;
        let mut heard = Heard::default();
        let Some(now) = self.step.checked_sub(self.delay) else { return heard };
        let now = now.saturating_sub(self.prefix);
        if token != self.padding && token != self.end_padding {
            heard.frame = Some(if self.spelled == 0 { self.stop } else { now });
            self.spelled += 1;
            return heard;
        }
        if self.spelled > 0 {
            heard.word = true;
            (self.spelled, self.unended) = (0, true);
        }
        if token == self.end_padding {
            heard.ended = self.unended.then_some(now);
            (self.unended, self.stop) = (false, now);
        }
        heard
    }

    /// Everything that changes, for a snapshot: steps, tokens of the word under way, whether a word has no end yet, and
    /// where the last one ended.
    pub(super) fn state(&self) -> [usize; 4] {
        [self.step, self.spelled, usize::from(self.unended), self.stop]
    }

    /// Goes on where [`Words::state`] was called.
    pub(super) fn set_state(&mut self, [step, spelled, unended, stop]: [usize; 4]) {
        (self.step, self.spelled, self.unended, self.stop) = (step, spelled, unended != 0, stop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was heard: `+` a token with its frame, `w` a spelled word, `e` an end with its frame.
    fn run(words: &mut Words, tokens: &[u32]) -> String {
        let mut out = String::new();
        for &token in tokens {
            let heard = words.push(token);
            if heard.word {
                out += "w ";
            }
            if let Some(at) = heard.ended {
                out += &format!("e{at} ");
            }
            if let Some(at) = heard.frame {
                out += &format!("+{at} ");
            }
        }
        out
    }

    #[test]
    fn words_start_where_the_last_one_ended_and_end_where_the_next_starts() {
        let mut words = Words::new(3, 0, 2, 0);
        // Step 1 comes before the text's time.
        assert_eq!(run(&mut words, &[9, 3, 3, 0, 7, 8, 3, 3, 0, 9, 0]), "+2 +4 w e7 +7 w e9 ");
    }

    #[test]
    fn words_that_follow_each_other_and_words_without_an_end() {
        let mut words = Words::new(3, 0, 0, 0);
        assert_eq!(run(&mut words, &[0, 5, 0, 6, 3, 7, 3, 0, 0]), "+1 w e3 +3 w +3 w e8 ");
    }

    #[test]
    fn silence_before_the_audio_takes_no_time() {
        let mut words = Words::new(3, 0, 1, 3);
        assert_eq!(run(&mut words, &[3, 3, 0, 5, 3, 0, 6, 6, 0]), "+0 w e2 +2 +4 w e5 ");
        let mut again = Words::new(3, 0, 1, 3);
        again.set_state(words.state());
        assert_eq!(again, words);
    }
}
