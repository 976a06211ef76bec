//! How far a list is: a bar on a terminal, a line a minute elsewhere, a summary at the end.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use voce_jobs::bulk::Tally;

use crate::console::Console;

/// How often a log that is no terminal gets a line.
const LOGGED: Duration = Duration::from_secs(60);

/// What a list holds, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Total {
    pub(super) units: u64,
    /// Seconds of audio, where every line promises some.
    pub(super) seconds: Option<f64>,
}

/// The bar.
pub(super) struct Show {
    console: Console,
    bar: ProgressBar,
    begun: Instant,
    logged: Instant,
    total: Option<Total>,
}

impl Show {
    pub(super) fn new(console: Console, bar: ProgressBar, total: Option<Total>) -> Self {
        if let (Some(total), Ok(style)) = (total, ProgressStyle::with_template("{spinner} [{bar:24}] {msg}"))
        {
            bar.set_length(total.units.max(1));
            bar.set_style(style.progress_chars("=> "));
        }
        let begun = Instant::now();
        Self { console, bar, begun, logged: begun, total }
    }

    /// Shows the counts.
    pub(super) fn tick(&mut self, tally: &Tally) {
        let hidden = self.bar.is_hidden();
        if hidden && (self.console.quiet || self.logged.elapsed() < LOGGED) {
            return;
        }
        let count = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        let counts = Counts {
            done: count(&tally.done),
            skipped: count(&tally.skipped) + count(&tally.failed_before),
            failed: count(&tally.failed),
            audio: count(&tally.audio_ms) as f64 / 1e3,
            skipped_audio: count(&tally.skipped_ms) as f64 / 1e3,
        };
        let line = counts.line(self.total, self.begun.elapsed().as_secs_f64());
        if hidden {
            self.logged = Instant::now();
            self.console.note(&line);
        } else {
            self.bar.set_position(counts.over());
            self.bar.set_message(line);
        }
    }

    /// Says something above the bar.
    pub(super) fn above(&self, say: impl FnOnce()) {
        self.bar.suspend(say);
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    done: u64,
    skipped: u64,
    failed: u64,
    audio: f64,
    skipped_audio: f64,
}

impl Counts {
    fn over(&self) -> u64 {
        self.done + self.skipped + self.failed
    }

    /// `120 of 1000, 1.25 h of audio, 0.50 h/min, 8 min left, 2 failed`.
    fn line(&self, total: Option<Total>, wall: f64) -> String {
        let of = total.map_or(String::new(), |t| format!(" of {}", t.units));
        let (hours, minutes) = (self.audio / 3600.0, (wall / 60.0).max(1e-9));
        let mut line = format!("{}{of}, {hours:.2} h of audio, {:.2} h/min", self.over(), hours / minutes);
        if let Some(left) = self.left(total, wall) {
            line += &format!(", {} left", clock(left));
        }
        if self.failed > 0 {
            line += &format!(", {} failed", self.failed);
        }
        line
    }

    /// Seconds that are left: by the audio where all of it is known, else by the number of units.
    fn left(&self, total: Option<Total>, wall: f64) -> Option<f64> {
        let total = total?;
        if let Some(seconds) = total.seconds
            && self.audio > 0.0
        {
            let left = (seconds - self.skipped_audio - self.audio).max(0.0);
            return Some(left / self.audio * wall);
        }
        let made = self.done + self.failed;
        (made > 0).then(|| total.units.saturating_sub(self.over()) as f64 / made as f64 * wall)
    }
}

/// `1 h 05 min`, `12 min`, `40 s`.
pub(super) fn clock(seconds: f64) -> String {
    let s = seconds.round() as u64;
    match s {
        0..90 => format!("{s} s"),
        90..5400 => format!("{} min", (s + 30) / 60),
        _ => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_rate_and_time_left() {
        let counts = Counts { done: 10, skipped: 5, failed: 1, audio: 3600.0, skipped_audio: 1800.0 };
        let total = Some(Total { units: 100, seconds: Some(9000.0) });
        let want = "16 of 100, 1.00 h of audio, 0.50 h/min, 2 min left, 1 failed";
        assert_eq!(counts.line(total, 120.0), want);
        // Without lengths by the number of units: eleven in two minutes.
        let total = Some(Total { units: 104, seconds: None });
        assert_eq!(counts.left(total, 110.0), Some(880.0));
        assert_eq!(counts.left(None, 110.0), None);
        assert_eq!(Counts::default().left(Some(Total { units: 9, seconds: None }), 5.0), None);
        assert_eq!(
            (clock(40.0), clock(720.0), clock(3900.0 * 2.0)),
            ("40 s".into(), "12 min".into(), "2 h 10 min".into())
        );
    }
}
