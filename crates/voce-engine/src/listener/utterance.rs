//! A stream's text: tokens become words and utterances, by rules that look at decoded frames only. Each token is spelled when
//! it is new, and not again.

use std::sync::Arc;

use voce_models::hearing::Token;

use super::event::{Alternative, EndReason, Word};
use super::told::{Piece, Spoken, Told};
use super::words::{Clock, Speller};

/// Tokens without the start of a word beyond which they are told all the same.
const LONGEST_WORD: usize = 1024;

/// When utterances end, in frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// The number of a pause that ends utterances when the model foresees it.
    pub pause: Option<usize>,
    pub silence: Option<usize>,
    pub longest: Option<usize>,
    /// Frames after which an utterance is cut between two words where no other rule has ended it.
    pub cut: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self { pause: None, silence: None, longest: None, cut: usize::MAX }
    }
}

/// The current utterance of a stream and how much of it was told.
pub(super) struct Utterance {
    speller: Arc<Speller>,
    rules: Rules,
    partials: bool,
    clock: Clock,
    /// Added to frames, so that they count from the stream's start.
    base: usize,
    /// Tokens that are certain.
    tokens: Vec<Token>,
    /// Tokens that a wider search may still change.
    tentative: Vec<Token>,
    /// Certain tokens that were spelled as whole words.
    told: usize,
    /// Those of them that the reader has; the others make no word, and go with the next.
    sent: usize,
    /// The last partial: how many tokens were spelled before it, and its own.
    shown: (usize, Vec<u32>),
    /// An utterance came before, in the same part of the stream.
    later: bool,
    /// Where the utterance before ended its last token, in seconds.
    spoken_before: Option<f64>,
    /// Utterances ended.
    pub ended: usize,
}

impl Utterance {
    pub(super) fn new(speller: Arc<Speller>, rules: Rules, partials: bool, frame_seconds: f64) -> Self {
        Self {
            speller,
            rules,
            partials,
            clock: Clock { frame: frame_seconds, offset: 0.0 },
            base: 0,
            tokens: Vec::new(),
            tentative: Vec::new(),
            told: 0,
            sent: 0,
            shown: (0, Vec::new()),
            later: false,
            spoken_before: None,
            ended: 0,
        }
    }

    pub(super) fn speller(&self) -> &Speller {
        &self.speller
    }

    /// A new part of the stream begins after this many seconds.
    pub(super) fn begin_part(&mut self, seconds: f64) {
        self.clock.offset = seconds;
        self.base = (seconds / self.clock.frame) as usize;
        self.later = false;
    }

    /// Frames of this part after which a rule may end the utterance, if nothing is said till then.
    pub(super) fn next_stop(&self) -> usize {
        let all = || self.tokens.iter().chain(&self.tentative);
        let (Some(first), Some(last)) = (all().next(), all().next_back()) else { return usize::MAX };
        let spoken = self.speller.end_of(last).max(last.frame + 1);
        let silence = self.rules.silence.map_or(usize::MAX, |n| spoken + n);
        let length = self.rules.longest.map_or(usize::MAX, |n| first.frame + n);
        silence.min(length)
    }

    /// The rule that ends the utterance now that `done` frames of this part are decoded.
    pub(super) fn end_at(&self, done: usize) -> Option<EndReason> {
        if done < self.next_stop() {
            return None;
        }
        let last = self.tokens.iter().chain(&self.tentative).next_back()?;
        let spoken = self.speller.end_of(last).max(last.frame + 1);
        let silent = self.rules.silence.is_some_and(|n| done >= spoken + n);
        Some(if silent { EndReason::Silence } else { EndReason::Length })
    }

    /// Whether there are words, and the last one is spelled.
    pub(super) fn is_between_words(&self) -> bool {
        !self.tokens.is_empty() && self.told == self.tokens.len() && self.tentative.is_empty()
    }

    /// Takes tokens that will not change. Each end token ends an utterance.
    pub(super) fn take(&mut self, certain: &[Token], told: &mut Vec<Told>) {
        for &token in certain {
            if Some(token.id) == self.speller.end_token {
                let at = self.clock.at(token.frame);
                self.end(at, EndReason::Token, Vec::new(), told);
                continue;
            }
            // What punctuates the utterance before must not begin this one.
            if self.later && self.tokens.is_empty() && self.speller.is_punctuation(token.id) {
                continue;
            }
            self.tokens.push(token);
        }
        self.tell_words(false, told);
    }

    /// The word of the newest certain token has all its tokens; its end may move.
    pub(super) fn spell_word(&mut self, told: &mut Vec<Told>) {
        self.tell_words(true, told);
    }

    /// The word of the newest certain token is over at a frame.
    pub(super) fn end_word(&mut self, frame: usize, told: &mut Vec<Told>) {
        let was_told = self.told == self.tokens.len();
        if let Some(last) = self.tokens.last_mut() {
            last.duration = frame.saturating_sub(last.frame).max(1);
            if was_told {
                let end = self.clock.at(last.frame + last.duration);
                told.push(Told::Ended { end });
            }
            self.tell_words(true, told);
        }
    }

    /// Takes the tokens after the certain ones that are the best guess now.
    pub(super) fn guess(&mut self, tentative: &[Token]) {
        self.tentative.clear();
        self.tentative.extend_from_slice(tentative);
    }

    /// Tells words that are complete; at the end all are.
    fn tell_words(&mut self, all: bool, told: &mut Vec<Told>) {
        loop {
            let rest = &self.tokens[self.told..];
            let length = self.speller.word_length(rest);
            let is_open = length == rest.len() && !all && length < LONGEST_WORD;
            if rest.is_empty() || is_open {
                return;
            }
            let mut words = Vec::new();
            self.speller.words(&rest[..length], self.clock, &mut words);
            self.told += length;
            if !words.is_empty() {
                self.send(words, told);
            }
        }
    }

    /// Tells words, with the tokens that were not yet told.
    fn send(&mut self, words: Vec<Word>, told: &mut Vec<Told>) {
        let tokens = self.spoken(&self.tokens[self.sent..self.told]);
        told.push(Told::More(Piece { words, tokens }));
        self.sent = self.told;
    }

    /// Tells the tokens that made no word, before an utterance ends.
    fn send_rest(&mut self, told: &mut Vec<Told>) {
        if self.sent < self.told {
            self.send(Vec::new(), told);
        }
    }

    /// Tokens as words.
    fn piece(&self, tokens: &[Token]) -> Piece {
        let mut piece = Piece { words: Vec::new(), tokens: self.spoken(tokens) };
        self.speller.words(tokens, self.clock, &mut piece.words);
        piece
    }

    fn spoken(&self, tokens: &[Token]) -> Vec<Spoken> {
        let base = self.base;
        tokens.iter().map(|t| Spoken { id: t.id, frame: t.frame + base, duration: t.duration }).collect()
    }

    /// Tells the utterance so far if it has changed.
    pub(super) fn tell_partial(&mut self, told: &mut Vec<Told>) {
        if !self.partials {
            return;
        }
        let open: Vec<Token> = self.tokens[self.told..].iter().chain(&self.tentative).copied().collect();
        let ids = open.iter().map(|t| t.id);
        if self.shown.0 == self.told && ids.clone().eq(self.shown.1.iter().copied()) {
            return;
        }
        self.shown = (self.told, ids.collect());
        if self.told > 0 || !open.is_empty() {
            let mut piece = self.piece(&open);
            piece.tokens.splice(..0, self.spoken(&self.tokens[self.sent..self.told]));
            told.push(Told::Partial(piece));
        }
    }

    /// Ends the utterance for a reason: an endpoint, and the utterance unless it is empty and nobody asked.
    pub(super) fn end(&mut self, at: f64, reason: EndReason, nbest: Vec<Alternative>, told: &mut Vec<Told>) {
        self.settle(told);
        told.push(Told::Endpoint { at, reason });
        if !self.tokens.is_empty() || reason == EndReason::Forced {
            told.push(Told::Final { nbest });
        }
        self.clear();
    }

    /// Ends the stream.
    pub(super) fn finish(&mut self, nbest: Vec<Alternative>, told: &mut Vec<Told>) {
        self.settle(told);
        if !self.tokens.is_empty() {
            told.push(Told::Final { nbest });
        }
        self.clear();
    }

    /// Cuts an utterance that is too long after its last whole word; the search goes on as if nothing had happened.
    /// Returns how many certain tokens are left of it, if it was cut.
    pub(super) fn cut(&mut self, told: &mut Vec<Told>) -> Option<usize> {
        let (first, last) = (self.tokens.first()?, self.tokens[..self.told].last()?);
        if last.frame - first.frame.min(last.frame) < self.rules.cut {
            return None;
        }
        let at = self.clock.at(self.speller.end_of(last).max(last.frame + 1));
        self.send_rest(told);
        told.push(Told::Endpoint { at, reason: EndReason::Length });
        told.push(Told::Final { nbest: Vec::new() });
        self.tokens.drain(..self.told);
        (self.told, self.sent) = (0, 0);
        self.shown = (0, Vec::new());
        self.ended += 1;
        Some(self.tokens.len())
    }

    fn settle(&mut self, told: &mut Vec<Told>) {
        self.tokens.append(&mut self.tentative);
        self.tell_words(true, told);
        self.send_rest(told);
    }

    /// Where the newest token ended, in seconds.
    pub(super) fn spoken_until(&self) -> Option<f64> {
        let last = self.tentative.last().or(self.tokens.last());
        last.map(|t| self.clock.at(self.speller.end_of(t).max(t.frame + 1))).or(self.spoken_before)
    }

    fn clear(&mut self) {
        self.spoken_before = self.spoken_until();
        self.tokens.clear();
        (self.told, self.sent) = (0, 0);
        self.shown = (0, Vec::new());
        self.later = true;
        self.ended += 1;
    }

    /// Seconds of a frame of this part.
    pub(super) fn seconds(&self, frame: usize) -> f64 {
        self.clock.at(frame)
    }

    /// What a snapshot keeps.
    pub(super) fn save(&self) -> Saved {
        Saved {
            tokens: self.tokens.clone(),
            told: self.told,
            shown: self.shown.clone(),
            later: self.later,
            seconds: self.clock.offset,
            ended: self.ended,
        }
    }

    /// Goes on from a snapshot; the reader is told what its predecessor was.
    pub(super) fn restore(&mut self, saved: Saved, told: &mut Vec<Told>) {
        self.begin_part(saved.seconds);
        self.told = saved.told.min(saved.tokens.len());
        self.sent = self.told;
        self.tokens = saved.tokens;
        self.shown = saved.shown;
        self.later = saved.later;
        self.ended = saved.ended;
        if self.told > 0 {
            told.push(Told::Before(self.piece(&self.tokens[..self.told])));
        }
    }
}

/// An utterance under way.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Saved {
    pub tokens: Vec<Token>,
    pub told: usize,
    pub shown: (usize, Vec<u32>),
    pub later: bool,
    pub seconds: f64,
    pub ended: usize,
}

#[cfg(test)]
mod tests {
    use super::super::double::Double;
    use super::super::event::ListenEvent;
    use super::super::told::Scribe;
    use super::*;

    /// `▁a`, `b`, `?`, `▁c`, `<EOU>` are tokens 1 to 5.
    fn speller() -> Arc<Speller> {
        Arc::new(Speller::new(Double::new(0)))
    }

    fn tokens(list: &[(u32, usize)]) -> Vec<Token> {
        let token =
            |&(id, frame): &(u32, usize)| Token { id, frame, duration: 1, log_prob: -0.1, confidence: 0.5 };
        list.iter().map(token).collect()
    }

    fn utterance(rules: Rules) -> Utterance {
        Utterance::new(speller(), rules, true, 0.08)
    }

    /// What a reader makes of what was told.
    fn read(told: Vec<Told>) -> Vec<ListenEvent> {
        let mut scribe = Scribe::new(speller());
        let mut events = Vec::new();
        for told in told {
            events.extend(scribe.take(told));
            events.extend(std::iter::from_fn(|| scribe.next_word()));
        }
        events
    }

    fn texts(told: &[Told]) -> Vec<String> {
        let events = read(told.to_vec());
        let text = |e: &ListenEvent| match e {
            ListenEvent::Partial(s) => format!("({})", s.text),
            ListenEvent::Word(w) => w.text.clone(),
            ListenEvent::Final(s) => format!("[{}]", s.text),
            ListenEvent::Endpoint { reason, .. } => reason.name().to_owned(),
            ListenEvent::Progress { .. } => "progress".to_owned(),
            ListenEvent::Pause { .. } => "pause".to_owned(),
            ListenEvent::WordEnd { .. } => "end".to_owned(),
            ListenEvent::Drawn(_) => "drawn".to_owned(),
        };
        events.iter().map(text).collect()
    }

    #[test]
    fn words_are_told_when_the_next_begins() {
        let (mut u, mut events) = (utterance(Rules::default()), Vec::new());
        u.take(&tokens(&[(1, 3), (2, 4)]), &mut events);
        u.tell_partial(&mut events);
        u.tell_partial(&mut events);
        assert_eq!(texts(&events), ["(ab)"]);
        u.take(&tokens(&[(3, 5), (4, 9)]), &mut events);
        u.tell_partial(&mut events);
        u.finish(Vec::new(), &mut events);
        assert_eq!(texts(&events), ["(ab)", "ab?", "(ab? c)", "c", "[ab? c]"]);
        let ListenEvent::Word(w) = &read(events)[1] else { panic!() };
        assert_eq!((w.start, w.end, w.confidence), (0.24, 0.48, 0.5));
    }

    #[test]
    fn the_model_may_end_an_utterance_itself() {
        let (mut u, mut events) = (utterance(Rules::default()), Vec::new());
        u.take(&tokens(&[(1, 3), (5, 6), (3, 6), (4, 7), (5, 9), (5, 10)]), &mut events);
        assert_eq!(texts(&events), ["a", "token", "[a]", "c", "token", "[c]", "token"]);
        assert!(read(events).contains(&ListenEvent::Endpoint { at: 0.48, reason: EndReason::Token }));
    }

    #[test]
    fn punctuation_does_not_leak_into_the_next_utterance() {
        let rules = Rules { silence: Some(10), ..Rules::default() };
        let (mut u, mut events) = (utterance(rules), Vec::new());
        assert_eq!(u.next_stop(), usize::MAX);
        u.take(&tokens(&[(3, 0), (1, 3)]), &mut events);
        assert_eq!((u.next_stop(), u.end_at(13)), (14, None));
        let reason = u.end_at(14).unwrap();
        u.end(u.seconds(14), reason, Vec::new(), &mut events);
        u.take(&tokens(&[(3, 15), (4, 16)]), &mut events);
        u.finish(Vec::new(), &mut events);
        assert_eq!(texts(&events), ["?", "a", "silence", "[? a]", "c", "[c]"]);
    }

    #[test]
    fn length_counts_from_the_first_token() {
        let rules = Rules { silence: Some(50), longest: Some(20), ..Rules::default() };
        let (mut u, mut events) = (utterance(rules), Vec::new());
        u.take(&tokens(&[(1, 100), (4, 119)]), &mut events);
        assert_eq!((u.next_stop(), u.end_at(119)), (120, None));
        assert_eq!(u.end_at(120), Some(EndReason::Length));
        u.begin_part(2.0);
        assert_eq!(u.seconds(10), 2.8);
    }
    #[test]
    fn an_utterance_without_end_is_cut_between_words() {
        let rules = Rules { cut: 10, ..Rules::default() };
        let (mut u, mut events) = (utterance(rules), Vec::new());
        u.take(&tokens(&[(1, 0), (2, 5), (1, 9)]), &mut events);
        assert_eq!(u.cut(&mut events), None, "the only whole word is short");
        u.take(&tokens(&[(2, 11), (4, 12)]), &mut events);
        assert_eq!(u.cut(&mut events), Some(1), "the word that has begun is the next utterance's");
        u.take(&tokens(&[(3, 13)]), &mut events);
        assert_eq!(u.cut(&mut events), None);
        u.finish(Vec::new(), &mut events);
        assert_eq!(texts(&events), ["ab", "ab", "length", "[ab ab]", "c?", "[c?]"]);
        assert_eq!(u.ended, 2);
    }

    #[test]
    fn every_token_is_spelled_once_however_often_interims_are_told() {
        const WORDS: usize = 500;
        let (mut u, mut events) = (utterance(Rules::default()), Vec::new());
        for i in 0..WORDS {
            u.take(&tokens(&[(1, 4 * i), (2, 4 * i + 1)]), &mut events);
            u.tell_partial(&mut events);
            u.take(&tokens(&[(3, 4 * i + 2)]), &mut events);
            u.tell_partial(&mut events);
            u.tell_partial(&mut events);
        }
        u.finish(Vec::new(), &mut events);
        // A word is spelled when it is complete, and in each of the two interims that show it growing.
        let spelled = u.speller().spelled();
        assert!(spelled <= 3 * 3 * WORDS, "{spelled} tokens were spelled for {}", 3 * WORDS);
        let all = read(events);
        let partials = all.iter().filter(|e| matches!(e, ListenEvent::Partial(_))).count();
        assert_eq!(partials, 2 * WORDS);
        let Some(ListenEvent::Final(last)) = all.last() else { panic!() };
        assert_eq!((last.words.len(), last.tokens.len()), (WORDS, 3 * WORDS));
    }
}
