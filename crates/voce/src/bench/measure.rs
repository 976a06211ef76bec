//! One timed run after another, and what they amount to.

use std::time::{Duration, Instant};

use voce_engine::speaker::SpeakStats;
use voce_engine::{SpeakRequest, Speaker};

use crate::failure::Outcome;
use crate::interrupt;

/// One run.
pub(super) struct Run {
    /// Seconds from the request to its last audio.
    pub(super) wall: f64,
    /// Seconds of audio.
    pub(super) audio: f64,
    /// Seconds to the first audio.
    pub(super) first: f64,
    /// Milliseconds a frame, by the audio that arrived together; the first frame is left out.
    pub(super) frames: Vec<f64>,
    /// What the engine counted.
    pub(super) stats: SpeakStats,
}

/// Speaks `text` once.
pub(super) fn once(speaker: &Speaker, text: &str, request: &SpeakRequest) -> Outcome<Run> {
    let info = speaker.info();
    let frame = (info.sample_rate as f64 / info.frame_rate).max(1.0);
    let begun = Instant::now();
    let mut stream = speaker.speak(text, request)?;
    let mut last: Option<Instant> = None;
    let mut frames = Vec::new();
    for chunk in stream.by_ref() {
        let samples = chunk?.samples.len();
        let now = Instant::now();
        let n = (samples as f64 / frame).round().max(1.0);
        if let Some(last) = last {
            let each = (now - last).as_secs_f64() * 1e3 / n;
            frames.extend(std::iter::repeat_n(each, n as usize));
        }
        last = Some(now);
        interrupt::check()?;
    }
    let stats = stream.stats();
    Ok(Run {
        wall: last.map_or(begun.elapsed(), |l| l - begun).as_secs_f64(),
        audio: stats.samples as f64 / info.sample_rate as f64,
        first: stats.first_audio.unwrap_or_default().as_secs_f64(),
        frames,
        stats,
    })
}

/// Runs of the same text.
pub(super) struct Runs(pub(super) Vec<Run>);

impl Runs {
    /// One run to warm up, then `repeat` that count.
    pub(super) fn take(
        speaker: &Speaker,
        text: &str,
        request: &SpeakRequest,
        repeat: usize,
    ) -> Outcome<Self> {
        once(speaker, text, request)?;
        (0..repeat.max(1)).map(|_| once(speaker, text, request)).collect::<Outcome<Vec<_>>>().map(Runs)
    }

    /// A figure of each run.
    pub(super) fn each(&self, f: impl Fn(&Run) -> f64) -> Vec<f64> {
        self.0.iter().map(f).collect()
    }

    /// Mean seconds of a stage.
    pub(super) fn stage(&self, f: impl Fn(&SpeakStats) -> Duration) -> f64 {
        mean(&self.each(|r| f(&r.stats).as_secs_f64()))
    }

    /// Every frame's milliseconds.
    pub(super) fn frame_ms(&self) -> Vec<f64> {
        self.0.iter().flat_map(|r| r.frames.iter().copied()).collect()
    }
}

/// The mean; 0 of nothing.
pub(super) fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The sample's standard deviation; 0 of fewer than two.
pub(super) fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let m = mean(values);
    (values.iter().map(|v| (v - m) * (v - m)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}

/// How much each value differs from the one before.
pub(super) fn differences(values: &[f64]) -> Vec<f64> {
    values.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect()
}

/// The value that a share `q` of the values does not pass; 0 of nothing.
pub(super) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (q * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics() {
        let values = [3.0, 1.0, 2.0, 5.0, 4.0];
        assert_eq!(mean(&values), 3.0);
        assert!((deviation(&values) - 2.5f64.sqrt()).abs() < 1e-12);
        assert_eq!(quantile(&values, 0.5), 3.0);
        assert_eq!(quantile(&values, 0.99), 5.0);
        assert_eq!(differences(&values), [2.0, 1.0, 3.0, 1.0]);
        assert_eq!(mean(&differences(&[4.0])), 0.0);
        assert_eq!((mean(&[]), deviation(&[1.0]), quantile(&[], 0.5)), (0.0, 0.0, 0.0));
    }
}
