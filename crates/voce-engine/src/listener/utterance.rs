//! A stream's text: tokens become words and utterances, by rules that look at decoded frames only.

use std::sync::Arc;

use voce_models::hearing::Token;

use super::event::{Alternative, EndReason, ListenEvent, Segment};
use super::words::{Clock, Speller};

/// When utterances end, in frames.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    pub silence: Option<usize>,
    pub longest: Option<usize>,
}

/// The current utterance of a stream and how much of it was told.
pub(super) struct Utterance {
    speller: Arc<Speller>,
    rules: Rules,
    partials: bool,
    clock: Clock,
    /// Added to frames, so that they count from the stream's begin.
    base: usize,
    /// Tokens that are certain.
    tokens: Vec<Token>,
    /// Tokens that a wider search may still change.
    tentative: Vec<Token>,
    /// Certain tokens whose words were told.
    told: usize,
    /// Tokens of the last partial.
    shown: Vec<u32>,
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
            shown: Vec::new(),
            later: false,
            spoken_before: None,
            ended: 0,
        }
    }

    pub(super) fn speller(&self) -> &Speller {
        &self.speller
    }

    /// A new part of the stream begins after so many seconds.
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

    /// Takes tokens that will not change. Each end token ends an utterance.
    pub(super) fn take(&mut self, certain: &[Token], events: &mut Vec<ListenEvent>) {
        for &token in certain {
            if Some(token.id) == self.speller.end_token {
                let at = self.clock.at(token.frame);
                self.end(at, EndReason::Token, Vec::new(), events);
                continue;
            }
            // What punctuates the utterance before must not begin this one.
            if self.later && self.tokens.is_empty() && self.speller.is_punctuation(token.id) {
                continue;
            }
            self.tokens.push(token);
        }
        self.tell_words(false, events);
    }

    /// The word of the newest certain token is over at a frame.
    pub(super) fn end_word(&mut self, frame: usize, events: &mut Vec<ListenEvent>) {
        if let Some(last) = self.tokens.last_mut() {
            last.duration = frame.saturating_sub(last.frame).max(1);
            self.tell_words(true, events);
        }
    }

    /// Takes the tokens after the certain ones that are the best guess now.
    pub(super) fn guess(&mut self, tentative: &[Token]) {
        self.tentative.clear();
        self.tentative.extend_from_slice(tentative);
    }

    /// Tells words that are complete; at the end all are.
    fn tell_words(&mut self, all: bool, events: &mut Vec<ListenEvent>) {
        loop {
            let rest = &self.tokens[self.told..];
            let length = self.speller.word_length(rest);
            if rest.is_empty() || (length == rest.len() && !all) {
                return;
            }
            events.extend(self.speller.word(&rest[..length], self.clock).map(ListenEvent::Word));
            self.told += length;
        }
    }

    /// Tells the utterance so far if it has changed.
    pub(super) fn tell_partial(&mut self, events: &mut Vec<ListenEvent>) {
        if !self.partials {
            return;
        }
        let ids = || self.tokens.iter().chain(&self.tentative).map(|t| t.id);
        if ids().eq(self.shown.iter().copied()) {
            return;
        }
        self.shown = ids().collect();
        if !self.shown.is_empty() {
            events.push(ListenEvent::Partial(self.segment(Vec::new())));
        }
    }

    /// Ends the utterance for a reason: an endpoint, and the utterance unless it is empty and nobody asked.
    pub(super) fn end(
        &mut self,
        at: f64,
        reason: EndReason,
        nbest: Vec<Alternative>,
        events: &mut Vec<ListenEvent>,
    ) {
        self.settle(events);
        events.push(ListenEvent::Endpoint { at, reason });
        if !self.tokens.is_empty() || reason == EndReason::Forced {
            events.push(ListenEvent::Final(self.segment(nbest)));
        }
        self.clear();
    }

    /// Ends the stream.
    pub(super) fn finish(&mut self, nbest: Vec<Alternative>, events: &mut Vec<ListenEvent>) {
        self.settle(events);
        if !self.tokens.is_empty() {
            events.push(ListenEvent::Final(self.segment(nbest)));
        }
        self.clear();
    }

    fn settle(&mut self, events: &mut Vec<ListenEvent>) {
        self.tokens.append(&mut self.tentative);
        self.tell_words(true, events);
    }

    /// Where the newest token ended, in seconds.
    pub(super) fn spoken(&self) -> Option<f64> {
        let last = self.tentative.last().or(self.tokens.last());
        last.map(|t| self.clock.at(self.speller.end_of(t).max(t.frame + 1))).or(self.spoken_before)
    }

    fn clear(&mut self) {
        self.spoken_before = self.spoken();
        self.tokens.clear();
        self.told = 0;
        self.shown.clear();
        self.later = true;
        self.ended += 1;
    }

    /// Seconds of a frame of this part.
    pub(super) fn seconds(&self, frame: usize) -> f64 {
        self.clock.at(frame)
    }

    fn segment(&self, nbest: Vec<Alternative>) -> Segment {
        let tokens: Vec<Token> = self.tokens.iter().chain(&self.tentative).copied().collect();
        let mut words = Vec::new();
        self.speller.words(&tokens, self.clock, &mut words);
        let ids: Vec<u32> = tokens.iter().map(|t| t.id).collect();
        let durations = if self.speller.has_durations() { &tokens[..] } else { &[] };
        Segment {
            text: self.speller.text(&ids),
            start: words.first().map_or(0.0, |w| w.start),
            end: words.last().map_or(0.0, |w| w.end),
            words,
            frames: tokens.iter().map(|t| t.frame + self.base).collect(),
            durations: durations.iter().map(|t| t.duration).collect(),
            tokens: ids,
            nbest,
        }
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

    /// Goes on from a snapshot.
    pub(super) fn restore(&mut self, saved: Saved) {
        self.begin_part(saved.seconds);
        self.told = saved.told.min(saved.tokens.len());
        self.tokens = saved.tokens;
        self.shown = saved.shown;
        self.later = saved.later;
        self.ended = saved.ended;
    }
}

/// An utterance under way.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Saved {
    pub tokens: Vec<Token>,
    pub told: usize,
    pub shown: Vec<u32>,
    pub later: bool,
    pub seconds: f64,
    pub ended: usize,
}

#[cfg(test)]
mod tests {
    use super::super::double::Double;
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

    fn texts(events: &[ListenEvent]) -> Vec<String> {
        let text = |e: &ListenEvent| match e {
            ListenEvent::Partial(s) => format!("({})", s.text),
            ListenEvent::Word(w) => w.text.clone(),
            ListenEvent::Final(s) => format!("[{}]", s.text),
            ListenEvent::Endpoint { reason, .. } => reason.name().to_owned(),
            ListenEvent::Progress { .. } => "progress".to_owned(),
            ListenEvent::Pause { .. } => "pause".to_owned(),
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
        let ListenEvent::Word(w) = &events[1] else { panic!() };
        assert_eq!((w.start, w.end, w.confidence), (0.24, 0.48, 0.5));
    }

    #[test]
    fn the_model_may_end_an_utterance_itself() {
        let (mut u, mut events) = (utterance(Rules::default()), Vec::new());
        u.take(&tokens(&[(1, 3), (5, 6), (3, 6), (4, 7), (5, 9), (5, 10)]), &mut events);
        assert_eq!(texts(&events), ["a", "token", "[a]", "c", "token", "[c]", "token"]);
        assert!(events.contains(&ListenEvent::Endpoint { at: 0.48, reason: EndReason::Token }));
    }

    #[test]
    fn punctuation_does_not_leak_into_the_next_utterance() {
        let rules = Rules { silence: Some(10), longest: None };
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
        let rules = Rules { silence: Some(50), longest: Some(20) };
        let (mut u, mut events) = (utterance(rules), Vec::new());
        u.take(&tokens(&[(1, 100), (4, 119)]), &mut events);
        assert_eq!((u.next_stop(), u.end_at(119)), (120, None));
        assert_eq!(u.end_at(120), Some(EndReason::Length));
        u.begin_part(2.0);
        assert_eq!(u.seconds(10), 2.8);
    }
}
