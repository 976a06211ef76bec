//! The last messages of a client, which another machine may need: bounded in age and bytes, numbered from the stream's start.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

/// Messages of one stream, as they are on the wire.
pub(super) struct Held {
    messages: VecDeque<(Instant, Bytes)>,
    /// Number of the first one that is held.
    first: u64,
    /// Number of the first one that a saved stream lacks: it is not dropped for its age.
    needed: Option<u64>,
    bytes: usize,
    time: Duration,
    most: usize,
    /// When old ones were last looked for.
    looked: Option<Instant>,
}

/// Old messages are looked for this often in the time that they are held, and go together.
const LOOKS: u32 = 16;

impl Held {
    /// Holds messages for `time`, and at most `most` bytes of them.
    pub(super) fn new(time: Duration, most: usize) -> Self {
        Self { messages: VecDeque::new(), first: 0, needed: None, bytes: 0, time, most, looked: None }
    }

    /// Numbers messages from this one on: others had those before.
    pub(super) fn after(mut self, first: u64) -> Self {
        self.first = first;
        self
    }

    /// Number of the next message.
    pub(super) fn end(&self) -> u64 {
        self.first + self.messages.len() as u64
    }

    /// Whether the stream's first message is held.
    pub(super) fn is_whole(&self) -> bool {
        self.first == 0
    }

    /// Holds a message, and lets go of what is too old or too much; never of those from `unsent` on.
    pub(super) fn push(&mut self, message: Bytes, now: Instant, unsent: u64) {
        self.bytes += message.len();
        self.messages.push_back((now, message));
        let is_early = |looked: Instant| now.saturating_duration_since(looked) < self.time / LOOKS;
        if self.bytes <= self.most && self.looked.is_some_and(is_early) {
            return;
        }
        self.looked = Some(now);
        while let Some((since, _)) = self.messages.front() {
            let is_old = now.saturating_duration_since(*since) > self.time
                && self.needed.is_none_or(|needed| self.first < needed);
            if self.first >= unsent || !(is_old || self.bytes > self.most) {
                break;
            }
            self.drop_first();
        }
    }

    /// A saved stream has all before this one.
    pub(super) fn saved(&mut self, needed: u64) {
        while self.first < needed && !self.messages.is_empty() {
            self.drop_first();
        }
        self.needed = Some(needed);
    }

    fn drop_first(&mut self) {
        if let Some((_, message)) = self.messages.pop_front() {
            self.bytes -= message.len();
            self.first += 1;
        }
    }

    /// A message by its number.
    pub(super) fn get(&self, number: u64) -> Option<&Bytes> {
        let at = number.checked_sub(self.first)?;
        self.messages.get(usize::try_from(at).ok()?).map(|(_, message)| message)
    }

    /// Whether all from this one on are held.
    pub(super) fn reaches(&self, number: u64) -> bool {
        (self.first..=self.end()).contains(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_seconds_are_held() {
        let mut held = Held::new(Duration::from_secs(10), 100);
        let start = Instant::now();
        for second in 0..30u64 {
            held.push(vec![second as u8; 2].into(), start + Duration::from_secs(second), second + 1);
        }
        assert_eq!((held.first, held.end()), (19, 30));
        assert!(held.reaches(19) && held.reaches(30) && !held.reaches(18) && !held.reaches(31));
        assert_eq!(held.get(25), Some(&Bytes::from(vec![25; 2])));
        assert!(held.get(18).is_none() && held.get(30).is_none() && !held.is_whole());
    }

    #[test]
    fn bytes_are_bounded_and_what_was_not_sent_stays() {
        let mut held = Held::new(Duration::from_secs(10), 100);
        let now = Instant::now();
        for n in 0..20 {
            held.push(vec![0; 10].into(), now, n + 1);
        }
        assert_eq!((held.first, held.bytes), (10, 100));
        // Nothing has been sent since: all of it is needed.
        for _ in 0..5 {
            held.push(vec![0; 10].into(), now, 20);
        }
        assert_eq!((held.first, held.end(), held.bytes), (15, 25, 100));
        let mut slow = Held::new(Duration::from_secs(10), 100);
        (0..20).for_each(|_| slow.push(vec![0; 10].into(), now, 0));
        assert!(slow.is_whole());
    }

    #[test]
    fn a_saved_stream_needs_what_came_since() {
        let mut held = Held::new(Duration::from_secs(1), 1000);
        let start = Instant::now();
        held.push("a".into(), start, 1);
        held.push("b".into(), start, 2);
        held.saved(1);
        assert_eq!(held.first, 1);
        held.push("c".into(), start + Duration::from_secs(60), 3);
        assert!(held.reaches(1) && !held.reaches(0), "however old it is");
        held.saved(3);
        assert!(held.reaches(3) && held.bytes == 0);
    }
}
