//! A band-limited polyphase resampler for any pair of rates: windowed sinc, whole or in pieces, with the
//! same samples either way. Passband to 90 % of the lower Nyquist frequency, images and aliases below -90 dB.

use std::f64::consts::PI;
use std::sync::{Arc, Mutex, PoisonError};

/// Zero crossings of the sinc on each side, at the lower of the two rates.
const ZERO_CROSSINGS: f64 = 64.0;
/// Middle of the transition band, as a fraction of the lower Nyquist frequency.
const CUTOFF: f64 = 0.95;
/// Kaiser window shape, for about 100 dB of stopband.
const KAISER_BETA: f64 = 10.06;
/// Rates that need more phases than this interpolate linearly between stored ones.
const MAX_PHASES: u64 = 1024;
/// Filters that are kept for the next resampler of the same rates, and the largest of them.
const KEPT_TABLES: usize = 16;
/// Most taps of a filter that is kept.
const KEPT_TAPS: usize = 64 * 1024;
/// Terms of the Bessel series that a window's argument needs: the rest is below the last bit.
const BESSEL_TERMS: usize = 32;

/// `1 / (k!)^2`.
const BESSEL: [f64; BESSEL_TERMS] = {
    let mut terms = [1.0; BESSEL_TERMS];
    let mut k = 1;
    while k < BESSEL_TERMS {
        terms[k] = terms[k - 1] / ((k * k) as f64);
        k += 1;
    }
    terms
};

/// The Kaiser window at `w` of its half width.
fn kaiser(w: f64) -> f64 {
    let q = KAISER_BETA * KAISER_BETA * (1.0 - w * w).max(0.0) / 4.0;
    BESSEL.iter().rev().fold(0.0, |sum, term| sum * q + term)
}

/// A filter: `phases + 1` rows of `2 * half` taps.
fn table(phases: u64, half: usize, scale: f64) -> Arc<[f32]> {
    type Kept = ((u64, usize, u64), Arc<[f32]>);
    static TABLES: Mutex<Vec<Kept>> = Mutex::new(Vec::new());
    let key = (phases, half, scale.to_bits());
    let mut kept = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = kept.iter().position(|(k, _)| *k == key) {
        // The one that was not asked for the longest is the first to go.
        let found = kept.remove(at);
        let table = found.1.clone();
        kept.push(found);
        return table;
    }
    drop(kept);
    let mut table = Vec::with_capacity((phases as usize + 1) * 2 * half);
    for phase in 0..=phases {
        let frac = phase as f64 / phases as f64;
        let row: Vec<f64> = (0..2 * half)
            .map(|j| {
                let t = j as f64 + 1.0 - half as f64 - frac;
                let x = PI * t * CUTOFF * scale;
                let sinc = if x == 0.0 { 1.0 } else { x.sin() / x };
                sinc * kaiser(t / half as f64)
            })
            .collect();
        let sum: f64 = row.iter().sum();
        table.extend(row.iter().map(|h| (h / sum) as f32));
    }
    let table: Arc<[f32]> = table.into();
    if table.len() <= KEPT_TAPS {
        let mut kept = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT_TABLES {
            kept.remove(0);
        }
        kept.push((key, table.clone()));
    }
    table
}

/// Zeroth-order modified Bessel function of the first kind.
pub(crate) fn bessel_i0(x: f64) -> f64 {
    let q = x * x / 4.0;
    let (mut term, mut sum, mut k) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 {
        term *= q / (k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Converts a mono stream from one rate to another, piece by piece.
///
/// Output sample `k` lies at input time `k * from / to`, so there is no delay in the signal; it appears once
/// [`Resampler::lookahead`] further input samples have been seen.
pub struct Resampler {
    up: u64,
    down: u64,
    /// Taps on each side of an output sample.
    half: usize,
    /// `phases + 1` rows of `2 * half` taps.
    table: Arc<[f32]>,
    phases: u64,
    /// Input not yet done with; its first sample has index `first` (before the start: zeros).
    history: Vec<f32>,
    first: i64,
    given: u64,
    made: u64,
}

/// A resampler in the middle of a stream; [`Resampler::restore`] goes on from it, with the same samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResamplerState {
    /// Input not yet done with.
    pub history: Vec<f32>,
    /// Index of the first of it; negative before the start.
    pub first: i64,
    /// Input samples so far.
    pub given: u64,
    /// Output samples so far.
    pub made: u64,
}

impl Resampler {
    /// A resampler between two rates in Hz; a rate of 0 counts as 1.
    pub fn new(from: u32, to: u32) -> Self {
        let (from, to) = (u64::from(from.max(1)), u64::from(to.max(1)));
        let g = gcd(from, to);
        let (up, down) = (to / g, from / g);
        let scale = (up as f64 / down as f64).min(1.0);
        let half = if up == down { 0 } else { (ZERO_CROSSINGS / scale).ceil() as usize };
        let phases = up.min(MAX_PHASES);
        let before = half.saturating_sub(1);
        Self {
            up,
            down,
            half,
            table: table(phases, half, scale),
            phases,
            history: vec![0.0; before],
            first: -(before as i64),
            given: 0,
            made: 0,
        }
    }

    /// Where it is in its stream.
    pub fn state(&self) -> ResamplerState {
        let Self { history, first, given, made, .. } = self;
        ResamplerState { history: history.clone(), first: *first, given: *given, made: *made }
    }

    /// Goes on where another one of the same rates was; false, and nothing is changed, where the state is none of such.
    pub fn restore(&mut self, state: ResamplerState) -> bool {
        if self.half == 0 {
            return state.history.is_empty() && (state.given, state.made) == (0, 0);
        }
        let ResamplerState { history, first, given, made } = &state;
        let small = |n: u64| n < 1 << 50;
        // The history is never longer than one batch that is dropped together, plus the inputs of the next output.
        let most = 12 * self.half + 2 * (self.down / self.up) as usize + 2;
        if !small(*given) || !small(*made) || history.len() > most {
            return false;
        }
        let next =
            (u128::from(*made) * u128::from(self.down) / u128::from(self.up)) as i64 + 1 - self.half as i64;
        let is_whole = first.checked_add(history.len() as i64) == Some(*given as i64);
        if !is_whole
            || next < *first
            || *first < 1 - self.half as i64
            || history.iter().any(|s| !s.is_finite())
        {
            return false;
        }
        (self.history, self.first, self.given, self.made) =
            (state.history, state.first, state.given, state.made);
        true
    }

    /// Input samples that must follow an output sample's time before it can be made.
    pub fn lookahead(&self) -> usize {
        self.half
    }

    /// Takes input and appends every output sample that is now determined.
    pub fn process(&mut self, input: &[f32], out: &mut Vec<f32>) {
        if self.half == 0 {
            out.extend_from_slice(input);
            return;
        }
        self.history.extend_from_slice(input);
        self.given += input.len() as u64;
        self.run(u64::MAX, out);
    }

    /// Appends the rest of the output, `ceil(input * to / from)` samples in all, and starts afresh.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        if self.half == 0 {
            return;
        }
        let total = (self.given * self.up).div_ceil(self.down);
        self.history.resize(self.history.len() + self.half, 0.0);
        self.run(total, out);
        self.history.clear();
        self.history.resize(self.half - 1, 0.0);
        self.first = 1 - self.half as i64;
        (self.given, self.made) = (0, 0);
    }

    fn run(&mut self, total: u64, out: &mut Vec<f32>) {
        let taps = 2 * self.half;
        while self.made < total {
            let pos = self.made * self.down;
            let (whole, part) = ((pos / self.up) as i64, pos % self.up);
            let start = (whole + 1 - self.half as i64 - self.first) as usize;
            let Some(x) = self.history.get(start..start + taps) else { break };
            let scaled = part * self.phases;
            let row = (scaled / self.up) as usize * taps;
            let a = dot(x, &self.table[row..row + taps]);
            let rest = scaled % self.up;
            out.push(if rest == 0 {
                a
            } else {
                let b = dot(x, &self.table[row + taps..row + 2 * taps]);
                a + (b - a) * (rest as f32 / self.up as f32)
            });
            self.made += 1;
        }
        let next = (self.made * self.down / self.up) as i64 + 1 - self.half as i64;
        let done = ((next - self.first).max(0) as usize).min(self.history.len());
        // Dropping rarely keeps the cost of moving the rest small.
        if done > 4 * taps {
            self.history.drain(..done);
            self.first += done as i64;
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a8, ar) = a.as_chunks::<8>();
    let (b8, br) = b.as_chunks::<8>();
    let mut acc = [0.0f32; 8];
    for (x, y) in a8.iter().zip(b8) {
        for i in 0..8 {
            acc[i] += x[i] * y[i];
        }
    }
    let tail: f32 = ar.iter().zip(br).map(|(x, y)| x * y).sum();
    acc.iter().sum::<f32>() + tail
}

/// Resamples a whole mono signal.
pub fn resample(input: &[f32], from: u32, to: u32) -> Vec<f32> {
    let mut out =
        Vec::with_capacity((input.len() as u64 * u64::from(to) / u64::from(from.max(1))) as usize + 1);
    let mut resampler = Resampler::new(from, to);
    resampler.process(input, &mut out);
    resampler.finish(&mut out);
    out
}
