//! Faster and slower speech at the same pitch, piece by piece: overlapping windows, each taken where it best continues
//! the one before (WSOLA). Silence, pitch and timbre stay; only the time changes.

/// Slowest and fastest.
pub const SPEEDS: std::ops::RangeInclusive<f32> = 0.25..=4.0;
/// Length of a window, in seconds: a few periods of a low voice.
const WINDOW: f64 = 0.03;
/// How far a window may move to fit, in seconds: a period of a low voice.
const REACH: f64 = 0.0075;

/// Changes the speed of a mono stream.
///
/// The result is the same however the input is cut into pieces, and is `input / speed` samples long.
pub struct Stretch {
    speed: f64,
    /// Half a window: windows overlap by so much.
    half: usize,
    reach: usize,
    /// A rising half of a Hann window.
    rise: Vec<f32>,
    /// Input not yet done with, whose first sample has the index `first`.
    input: Vec<f32>,
    first: usize,
    given: usize,
    /// Windows so far, and where the last one was taken.
    windows: usize,
    last: usize,
    /// The falling half of the last window.
    tail: Vec<f32>,
    made: usize,
}

impl Stretch {
    /// At this speed, held within [`SPEEDS`]; 1 passes samples through as they are.
    pub fn new(sample_rate: u32, speed: f32) -> Self {
        let speed = if speed.is_nan() { 1.0 } else { speed.clamp(*SPEEDS.start(), *SPEEDS.end()) };
        let half = ((f64::from(sample_rate) * WINDOW / 2.0) as usize).max(8);
        let rise = (0..half)
            .map(|i| {
                let phase = std::f64::consts::PI * (i as f64 + 0.5) / half as f64;
                (0.5 - 0.5 * phase.cos()) as f32
            })
            .collect();
        Self {
            speed: f64::from(speed),
            half,
            reach: (f64::from(sample_rate) * REACH) as usize,
            rise,
            input: Vec::new(),
            first: 0,
            given: 0,
            windows: 0,
            last: 0,
            tail: Vec::new(),
            made: 0,
        }
    }

    /// Takes input and appends what it determines.
    pub fn process(&mut self, input: &[f32], out: &mut Vec<f32>) {
        if self.speed == 1.0 {
            out.extend_from_slice(input);
            return;
        }
        self.input.extend_from_slice(input);
        self.given += input.len();
        while self.window(out, None) {}
        self.forget();
    }

    /// Appends the rest.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        if self.speed == 1.0 {
            return;
        }
        let total = (self.given as f64 / self.speed).round() as usize;
        let padding = self.needed().saturating_sub(self.first + self.input.len()) + 2 * self.half;
        let pad_to = self.input.len() + padding + (self.speed * 2.0 * self.half as f64) as usize + self.reach;
        self.input.resize(pad_to, 0.0);
        while self.made < total {
            if !self.window(out, Some(total)) {
                self.input.resize(self.input.len() + 2 * self.half, 0.0);
            }
        }
    }

    /// Where the next window lies if nothing fits better.
    fn nominal(&self) -> usize {
        (self.windows as f64 * self.half as f64 * self.speed).round() as usize
    }

    /// Input that must be there for the next window.
    fn needed(&self) -> usize {
        (self.nominal() + self.reach + 2 * self.half).max(self.last + 3 * self.half)
    }

    /// Makes half a window of output, cut at `total`; false when there is too little input.
    fn window(&mut self, out: &mut Vec<f32>, total: Option<usize>) -> bool {
        if self.first + self.input.len() < self.needed() {
            return false;
        }
        let half = self.half;
        let at = if self.windows == 0 { 0 } else { self.best() };
        let x = &self.input[at - self.first..][..2 * half];
        if self.windows == 0 {
            self.tail = (0..half).map(|i| x[i] * (1.0 - self.rise[i])).collect();
        }
        let room = total.map_or(half, |t| t.saturating_sub(self.made).min(half));
        out.extend((0..room).map(|i| self.tail[i] + x[i] * self.rise[i]));
        self.made += room;
        for i in 0..half {
            self.tail[i] = x[half + i] * (1.0 - self.rise[i]);
        }
        self.last = at;
        self.windows += 1;
        true
    }

    /// Where the next window looks most like what followed the last one.
    fn best(&self) -> usize {
        let half = self.half;
        let wanted = &self.input[self.last + half - self.first..][..half];
        let nominal = self.nominal();
        let from = nominal.saturating_sub(self.reach).max(self.first);
        let (mut best, mut best_score) = (nominal, f32::NEG_INFINITY);
        for at in from..=nominal + self.reach {
            let x = &self.input[at - self.first..][..half];
            let dot: f32 = x.iter().zip(wanted).map(|(a, b)| a * b).sum();
            let energy: f32 = x.iter().map(|a| a * a).sum();
            let score = dot / (energy + 1e-6).sqrt();
            if score > best_score {
                (best, best_score) = (at, score);
            }
        }
        best
    }

    /// Drops input that no later window can reach.
    fn forget(&mut self) {
        let keep = self.nominal().saturating_sub(self.reach).min(self.last + self.half);
        let done = keep.saturating_sub(self.first).min(self.input.len());
        self.input.drain(..done);
        self.first += done;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(n: usize, hz: f32) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * hz * std::f32::consts::TAU / 24_000.0).sin() * 0.5).collect()
    }

    fn run(input: &[f32], speed: f32, piece: usize) -> Vec<f32> {
        let mut stretch = Stretch::new(24_000, speed);
        let mut out = Vec::new();
        for part in input.chunks(piece) {
            stretch.process(part, &mut out);
        }
        stretch.finish(&mut out);
        out
    }

    fn crossings(x: &[f32]) -> usize {
        x.windows(2).filter(|w| w[0] < 0.0 && w[1] >= 0.0).count()
    }

    #[test]
    fn length_follows_speed_and_pitch_does_not() {
        let input = tone(48_000, 200.0);
        for speed in [0.25, 0.5, 0.9, 1.25, 2.0, 4.0] {
            let out = run(&input, speed, 1920);
            assert_eq!(out.len(), (48_000.0 / speed).round() as usize, "{speed}");
            // The last window fades into the silence after the input.
            let body = &out[..out.len() - 2000];
            let hz = crossings(body) as f32 * 24_000.0 / body.len() as f32;
            assert!((hz - 200.0).abs() < 6.0, "{speed}: {hz} Hz");
            let rms = (body.iter().map(|x| x * x).sum::<f32>() / body.len() as f32).sqrt();
            assert!((rms - 0.3536).abs() < 0.02, "{speed}: {rms}");
        }
    }

    #[test]
    fn pieces_do_not_matter() {
        let input: Vec<f32> =
            tone(20_000, 313.0).iter().zip(tone(20_000, 97.0)).map(|(a, b)| a + b).collect();
        let whole = run(&input, 1.5, input.len());
        for piece in [1, 7, 1920, 5000] {
            assert_eq!(run(&input, 1.5, piece), whole, "{piece}");
        }
    }

    #[test]
    fn speed_one_changes_nothing() {
        let input = tone(1000, 440.0);
        assert_eq!(run(&input, 1.0, 99), input);
    }

    #[test]
    fn short_and_empty_input() {
        assert!(run(&[], 2.0, 1).is_empty());
        for n in [1, 10, 500] {
            assert_eq!(run(&tone(n, 200.0), 0.5, 64).len(), 2 * n);
        }
    }
}
