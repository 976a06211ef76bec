//! A stream's text: tokens become words and utterances, by rules that look at decoded frames only. Each token is spelled when
//! it is new, and not again.

use std::sync::Arc;

use voce_models::hearing::Token;

use super::early::Early;
use super::event::{Alternative, EndReason, Word};
use super::quiet::Quiet;
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
    /// The least silence that ends an utterance, however little is asked for: the last word is told by then.
    pub settled: usize,
    /// How long nothing has to be said so that silence ends an utterance although the signal is not quiet.
    pub loud: usize,
    pub longest: Option<usize>,
    /// Frames after which an utterance is cut between two words where no other rule has ended it.
    pub cut: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self { pause: None, silence: None, settled: 0, loud: usize::MAX, longest: None, cut: usize::MAX }
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
    /// Words that were told before the stream came to them.
    early: Early,
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
            early: Early::default(),
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
        self.early = Early::default();
    }

    /// The first and the last frame of what is said, the latter as the frame after it.
    fn extent(&self) -> Option<(usize, usize)> {
        let all = || self.tokens.iter().chain(&self.tentative);
        let (first, last) = (all().next()?, all().next_back()?);
        Some((first.frame, self.speller.end_of(last).max(last.frame + 1)))
    }

    /// Whether nothing was said in the `frames` frames before a frame.
    pub(super) fn is_still(&self, before: usize, frames: usize) -> bool {
        self.extent().is_none_or(|(_, last)| last + frames <= before)
    }

    /// The first frame from `from` to `to` at which a rule ends the utterance, if nothing more is said till then. The signal
    /// is looked at up to the frame before: all of that has come wherever a frame was decoded.
    pub(super) fn stop(&self, from: usize, to: usize, quiet: &Quiet) -> Option<(usize, EndReason)> {
        let (first, last) = self.extent()?;
        let silence = self.rules.silence.and_then(|n| {
            let n = n.max(self.rules.settled);
            let is_over = |at: &usize| {
                quiet.before(at.saturating_sub(1)) >= n
                    || *at >= last.saturating_add(n).saturating_add(self.rules.loud)
            };
            (from.max(last + n)..=to).find(is_over).map(|at| (at, EndReason::Silence))
        });
        // An utterance that is too long goes on until a word is over.
        let length = self.rules.longest.filter(|_| self.told > 0).map(|n| from.max(first + n));
        let length = length.filter(|at| *at <= to).map(|at| (at, EndReason::Length));
        [silence, length].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Where a rule ends the utterance before a token of audio that is searched as a whole: between words alone.
    pub(super) fn end_before(&self, next: &Token) -> Option<(usize, EndReason)> {
        let (first, last) = self.extent()?;
        if !self.speller.begins_word(next.id) {
            return None;
        }
        let silence = self.rules.silence.map(|n| (last + n, EndReason::Silence));
        let length = self.rules.longest.map(|n| (first + n, EndReason::Length));
        [silence, length].into_iter().flatten().filter(|(at, _)| *at <= next.frame).min_by_key(|(at, _)| *at)
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
            if self.early.has_told(&token, &self.speller) {
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
        let mut early = self.early.clone();
        self.tentative.clear();
        self.tentative.extend(tentative.iter().filter(|t| !early.has_told(t, &self.speller)));
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
        Some(self.part(at, EndReason::Length, told))
    }

    /// Ends the utterance after its last word that is over; what has begun belongs to the next. Returns how many certain
    /// tokens these are.
    pub(super) fn part(&mut self, at: f64, reason: EndReason, told: &mut Vec<Told>) -> usize {
        self.send_rest(told);
        told.push(Told::Endpoint { at, reason });
        if self.told > 0 || reason == EndReason::Forced {
            told.push(Told::Final { nbest: Vec::new() });
        }
        if let Some(last) = self.tokens[..self.told].last() {
            self.spoken_before = Some(self.clock.at(self.speller.end_of(last).max(last.frame + 1)));
        }
        self.tokens.drain(..self.told);
        (self.told, self.sent) = (0, 0);
        self.shown = (0, Vec::new());
        self.later |= self.tokens.is_empty();
        self.ended += 1;
        self.tokens.len()
    }

    /// Ends the utterance with what a copy of the stream's state has heard ahead of it, up to a frame: all of that is told,
    /// and not told again.
    pub(super) fn end_early(&mut self, at: f64, heard: &[Token], until: usize, told: &mut Vec<Told>) {
        let heard: Vec<Token> =
            heard.iter().filter(|t| Some(t.id) != self.speller.end_token).copied().collect();
        self.guess(&heard);
        for token in &mut self.tentative {
            // Silence was put behind the audio, so that the last word comes out.
            token.frame = token.frame.min(until.saturating_sub(1));
        }
        let inside = !self.tokens.is_empty() || !heard.is_empty();
        self.end(at, EndReason::Forced, Vec::new(), told);
        self.early = Early::new(&heard, until, inside);
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

    /// The frame of this part before which `seconds` of the stream lie.
    pub(super) fn frame_of(&self, seconds: f64) -> usize {
        ((seconds - self.clock.offset).max(0.0) / self.clock.frame - 1e-6).ceil() as usize
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
            early: self.early.clone(),
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
        self.early = saved.early;
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
    pub early: Early,
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

    /// A signal that is loud and then quiet, in frames.
    fn signal(loud: usize, quiet: usize) -> Quiet {
        let mut signal = Quiet::default();
        signal.extend(std::iter::repeat_n(-20.0, loud).chain(std::iter::repeat_n(-90.0, quiet)));
        signal
    }

    #[test]
    fn punctuation_does_not_leak_into_the_next_utterance() {
        let rules = Rules { silence: Some(10), ..Rules::default() };
        let (mut u, mut events) = (utterance(rules), Vec::new());
        let signal = signal(3, 20);
        assert_eq!(u.stop(0, 99, &signal), None);
        u.take(&tokens(&[(3, 0), (1, 3)]), &mut events);
        assert_eq!(u.stop(0, 13, &signal), None);
        assert_eq!(u.stop(0, 99, &signal), Some((14, EndReason::Silence)));
        u.end(u.seconds(14), EndReason::Silence, Vec::new(), &mut events);
        u.take(&tokens(&[(3, 15), (4, 16)]), &mut events);
        u.finish(Vec::new(), &mut events);
        assert_eq!(texts(&events), ["?", "a", "silence", "[? a]", "c", "[c]"]);
    }

    #[test]
    fn silence_ends_an_utterance_where_the_signal_is_quiet_as_well() {
        let rules = Rules { silence: Some(1), settled: 3, loud: 20, ..Rules::default() };
        let (mut u, mut events) = (utterance(rules), Vec::new());
        u.take(&tokens(&[(1, 3)]), &mut events);
        // No token for a while, but the speaker goes on: the word may as well.
        assert_eq!(u.stop(4, 26, &signal(30, 0)), None);
        assert_eq!(u.stop(4, 99, &signal(30, 0)), Some((27, EndReason::Silence)), "music, or noise");
        // Quiet long enough; the newest frame may not have come as a whole.
        assert_eq!(u.stop(4, 99, &signal(8, 2)), Some((12, EndReason::Silence)));
        assert_eq!(u.stop(4, 11, &signal(8, 2)), None);
        assert_eq!(u.stop(4, 99, &signal(2, 9)), Some((7, EndReason::Silence)), "a token was late");
    }

    #[test]
    fn what_was_told_early_is_not_told_again_and_nothing_else_is_lost() {
        for (heard, later, want) in [
            // The same words, as late as they like; another reading of them; none at all.
            (&[(1, 4), (2, 5), (4, 7)][..], &[(1, 5), (2, 6), (4, 8), (1, 12)][..], "a"),
            (&[(1, 4), (4, 7)], &[(1, 5), (2, 6), (1, 7), (4, 12)], "c"),
            (&[(1, 4)], &[(4, 12), (2, 13)], "cb"),
            // A word that goes on beyond its report, and one that comes again.
            (&[(1, 4)], &[(1, 4), (2, 9), (4, 10)], "c"),
            (&[(1, 4)], &[(1, 9), (1, 10)], "a"),
            (&[], &[(4, 8)], "c"),
        ] {
            let (mut u, mut events) = (utterance(Rules::default()), Vec::new());
            u.end_early(0.64, &tokens(heard), 8, &mut events);
            events.clear();
            for token in tokens(later) {
                u.guess(&[token]);
                u.take(&[token], &mut events);
                u.guess(&[]);
            }
            u.finish(Vec::new(), &mut events);
            assert_eq!(texts(&events), [want, &format!("[{want}]")], "{heard:?} {later:?}");
        }
    }

    #[test]
    fn a_report_keeps_the_word_that_is_under_way() {
        let (mut u, mut events) = (utterance(Rules::default()), Vec::new());
        u.take(&tokens(&[(1, 0), (4, 5)]), &mut events);
        assert_eq!(u.part(0.5, EndReason::Forced, &mut events), 1);
        assert_eq!(u.part(0.6, EndReason::Forced, &mut events), 1);
        u.take(&tokens(&[(2, 6)]), &mut events);
        u.finish(Vec::new(), &mut events);
        assert_eq!(texts(&events), ["a", "forced", "[a]", "forced", "[]", "cb", "[cb]"]);
    }

    #[test]
    fn length_counts_from_the_first_token_and_cuts_no_word() {
        let rules = Rules { silence: Some(50), longest: Some(20), ..Rules::default() };
        let (mut u, mut events) = (utterance(rules), Vec::new());
        let signal = signal(200, 0);
        u.take(&tokens(&[(1, 100), (2, 119)]), &mut events);
        assert_eq!(u.stop(0, 130, &signal), None, "the only word is under way");
        u.take(&tokens(&[(4, 125)]), &mut events);
        assert_eq!(u.stop(0, 119, &signal), None);
        assert_eq!(u.stop(0, 200, &signal), Some((120, EndReason::Length)));
        assert_eq!(u.stop(126, 200, &signal), Some((126, EndReason::Length)));
        u.begin_part(2.0);
        assert_eq!((u.seconds(10), u.frame_of(2.8), u.frame_of(2.81)), (2.8, 10, 11));
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
