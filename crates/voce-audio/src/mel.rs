//! Log-mel features as NeMo's `AudioToMelSpectrogramPreprocessor` makes them for FastConformer: 16 kHz,
//! 25 ms symmetric Hann window every 10 ms, 512-point FFT, Slaney mel bands, natural log. In pieces or whole,
//! the numbers are the same.

use std::sync::Arc;

use realfft::num_complex::Complex32;
use realfft::{RealFftPlanner, RealToComplex};

/// The rate the front end takes.
pub const MEL_RATE: u32 = 16_000;
/// Samples between frames.
pub const MEL_HOP: usize = 160;

/// Points of the transform.
pub const MEL_FFT: usize = 512;
/// Added before the log: 2^-24, so that silence is -16.64.
pub const LOG_GUARD: f32 = 5.960_464_5e-8;
/// Added to the deviation in [`normalise_per_feature`].
pub const DEVIATION_GUARD: f32 = 1e-5;

const WINDOW: usize = 400;
const PRE_EMPHASIS: f32 = 0.97;

/// One mel band: its first FFT bin and the weights from there on.
#[derive(Clone, Debug)]
pub(crate) struct Band {
    pub(crate) first: usize,
    pub(crate) weights: Vec<f32>,
}

/// What turns windows into frames: the numbers, for whoever computes with them.
#[derive(Clone, Debug)]
pub struct MelTables {
    bands: Vec<Band>,
    window: Vec<f32>,
}

impl MelTables {
    /// Tables with `bins` mel bands, 80 or 128 for published models.
    pub fn new(bins: usize) -> Self {
        let hann = |i: usize| {
            let phase = std::f64::consts::TAU * i as f64 / (WINDOW - 1) as f64;
            (0.5 - 0.5 * phase.cos()) as f32
        };
        Self { bands: slaney_bands(bins, MEL_RATE, MEL_FFT), window: (0..WINDOW).map(hann).collect() }
    }

    /// The same with window and filters rounded to bf16, as some checkpoints keep them.
    pub fn with_bf16_filters(mut self) -> Self {
        let weights = self.bands.iter_mut().flat_map(|b| &mut b.weights);
        self.window.iter_mut().chain(weights).for_each(|w| *w = round_bf16(*w));
        self
    }

    /// Factors of a window's samples, which are in the middle of [`MEL_FFT`] points.
    pub fn window(&self) -> &[f32] {
        &self.window
    }

    /// The first frequency of each band, and the weights from there on.
    pub fn bands(&self) -> impl ExactSizeIterator<Item = (usize, &[f32])> {
        self.bands.iter().map(|b| (b.first, &b.weights[..]))
    }
}

/// Cuts a stream of samples into the windows of its frames, which overlap: what of them is new comes out,
/// pre-emphasised, [`MEL_HOP`] values a frame.
#[derive(Clone, Debug)]
pub struct MelWindows {
    /// Pre-emphasised samples from half a window before the next frame's centre.
    pending: Vec<f32>,
    /// Whether the values that the next window shares with the one before it have come out.
    begun: bool,
    last: f32,
    taken: usize,
    made: usize,
}

impl Default for MelWindows {
    fn default() -> Self {
        Self { pending: vec![0.0; WINDOW / 2], begun: false, last: 0.0, taken: 0, made: 0 }
    }
}

impl MelWindows {
    /// Values that the windows of neighbouring frames share; they come out before the first frame of an utterance.
    pub const OVERLAP: usize = WINDOW - MEL_HOP;

    /// Goes on where another stands that was given the same samples: what its windows share comes out once more.
    pub fn resumed(mut self) -> Self {
        self.begun = false;
        self
    }

    /// Takes samples, appends what is new in every window they complete, and returns how many these are.
    pub fn process(&mut self, samples: &[f32], out: &mut Vec<f32>) -> usize {
        self.take(samples);
        self.cut(usize::MAX, |windows, begun| out.extend_from_slice(&windows[Self::skip(begun)..]))
    }

    /// Appends the windows that the end completes, `samples / 160` in all, and starts afresh.
    pub fn finish(&mut self, out: &mut Vec<f32>) -> usize {
        let made = self.end(|windows, begun| out.extend_from_slice(&windows[Self::skip(begun)..]));
        *self = Self::default();
        made
    }

    fn skip(begun: bool) -> usize {
        if begun { Self::OVERLAP } else { 0 }
    }

    fn take(&mut self, samples: &[f32]) {
        let (Some(&first), Some(&last)) = (samples.first(), samples.last()) else { return };
        self.pending.push(first - PRE_EMPHASIS * self.last);
        self.pending.extend(samples.windows(2).map(|s| s[1] - PRE_EMPHASIS * s[0]));
        self.last = last;
        self.taken += samples.len();
    }

    /// Gives all complete windows as one slice, and whether there were any before.
    fn cut(&mut self, total: usize, give: impl FnOnce(&[f32], bool)) -> usize {
        let whole = (self.pending.len() - Self::OVERLAP.min(self.pending.len())) / MEL_HOP;
        let frames = whole.min(total - self.made);
        if frames > 0 {
            give(&self.pending[..frames * MEL_HOP + Self::OVERLAP], self.begun);
            self.pending.drain(..frames * MEL_HOP);
            self.begun = true;
            self.made += frames;
        }
        frames
    }

    fn end(&mut self, give: impl FnOnce(&[f32], bool)) -> usize {
        self.pending.resize(self.pending.len() + WINDOW, 0.0);
        self.cut(self.taken / MEL_HOP, give)
    }
}

/// Makes mel frames from a stream of samples.
#[derive(Clone)]
pub struct MelStream {
    tables: MelTables,
    windows: MelWindows,
    transform: Transform,
}

/// A transform and what it works in.
#[derive(Clone)]
struct Transform {
    fft: Arc<dyn RealToComplex<f32>>,
    frame: Vec<f32>,
    spectrum: Vec<Complex32>,
    scratch: Vec<Complex32>,
}

impl MelStream {
    /// A front end with `bins` mel bands, 80 or 128 for published models.
    pub fn new(bins: usize) -> Self {
        Self::with_tables(MelTables::new(bins))
    }

    /// A front end with these tables.
    pub fn with_tables(tables: MelTables) -> Self {
        let fft = RealFftPlanner::new().plan_fft_forward(MEL_FFT);
        let transform = Transform {
            frame: fft.make_input_vec(),
            spectrum: fft.make_output_vec(),
            scratch: fft.make_scratch_vec(),
            fft,
        };
        Self { tables, windows: MelWindows::default(), transform }
    }

    /// The same front end with window and filters rounded to bf16, as some checkpoints keep them.
    pub fn with_bf16_filters(self) -> Self {
        Self { tables: self.tables.with_bf16_filters(), ..self }
    }

    /// Mel bands per frame.
    pub fn bins(&self) -> usize {
        self.tables.bands.len()
    }

    /// Takes samples, appends every frame they complete, and returns how many.
    pub fn process(&mut self, samples: &[f32], out: &mut Vec<f32>) -> usize {
        self.windows.take(samples);
        self.windows.cut(usize::MAX, |windows, _| self.transform.run(&self.tables, windows, out))
    }

    /// Appends the frames that the end completes, `samples / 160` in all, and starts afresh.
    pub fn finish(&mut self, out: &mut Vec<f32>) -> usize {
        let frames = self.windows.end(|windows, _| self.transform.run(&self.tables, windows, out));
        self.windows = MelWindows::default();
        frames
    }
}

impl Transform {
    fn run(&mut self, tables: &MelTables, windows: &[f32], out: &mut Vec<f32>) {
        let edge = (MEL_FFT - WINDOW) / 2;
        for window in windows.windows(WINDOW).step_by(MEL_HOP) {
            self.frame.fill(0.0);
            for ((f, s), w) in self.frame[edge..].iter_mut().zip(window).zip(&tables.window) {
                *f = s * w;
            }
            // The buffers come from the plan itself, so their lengths fit.
            let done = self.fft.process_with_scratch(&mut self.frame, &mut self.spectrum, &mut self.scratch);
            debug_assert!(done.is_ok());
            for band in &tables.bands {
                let bins = &self.spectrum[band.first..band.first + band.weights.len()];
                let power: f32 = bins.iter().zip(&band.weights).map(|(x, w)| x.norm_sqr() * w).sum();
                out.push((power + LOG_GUARD).ln());
            }
        }
    }
}

/// The nearest number of eight significant bits, the even one of two.
fn round_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// The mel frames of a whole signal, `samples / 160` rows of `bins`.
pub fn log_mel(samples: &[f32], bins: usize) -> Vec<f32> {
    let mut stream = MelStream::new(bins);
    let mut out = Vec::with_capacity(samples.len() / MEL_HOP * bins);
    stream.process(samples, &mut out);
    stream.finish(&mut out);
    out
}

/// Brings each band to mean 0 and deviation 1 over all frames, as offline Parakeet models want.
pub fn normalise_per_feature(mel: &mut [f32], bins: usize) {
    let frames = mel.len() / bins.max(1);
    for bin in 0..if frames == 0 { 0 } else { bins } {
        let band = || mel.iter().skip(bin).step_by(bins).map(|&v| f64::from(v));
        let mean = band().sum::<f64>() / frames as f64;
        let variance = band().map(|v| (v - mean).powi(2)).sum::<f64>() / (frames.max(2) - 1) as f64;
        let scale = 1.0 / (variance.sqrt() as f32 + DEVIATION_GUARD);
        for v in mel.iter_mut().skip(bin).step_by(bins) {
            *v = (*v - mean as f32) * scale;
        }
    }
}

/// Triangles evenly spaced on the Slaney mel scale from 0 Hz to half the rate, each of unit area.
pub(crate) fn slaney_bands(bins: usize, rate: u32, fft: usize) -> Vec<Band> {
    let nyquist = f64::from(rate) / 2.0;
    let top = hz_to_mel(nyquist);
    let edges: Vec<f64> = (0..bins + 2).map(|i| mel_to_hz(top * i as f64 / (bins + 1) as f64)).collect();
    edges
        .windows(3)
        .map(|e| {
            let weight = |bin: usize| {
                let hz = bin as f64 * f64::from(rate) / fft as f64;
                let triangle = ((hz - e[0]) / (e[1] - e[0])).min((e[2] - hz) / (e[2] - e[1]));
                (triangle.max(0.0) * 2.0 / (e[2] - e[0])) as f32
            };
            let inside = |&bin: &usize| weight(bin) > 0.0;
            let first = (0..=fft / 2).find(inside).unwrap_or(0);
            let weights = (first..=fft / 2).take_while(inside).map(weight).collect();
            Band { first, weights }
        })
        .collect()
}

/// Slaney's scale: linear to 1 kHz, then logarithmic.
const LINEAR_HZ_PER_MEL: f64 = 200.0 / 3.0;
const LOG_FROM_HZ: f64 = 1000.0;
const LOG_FROM_MEL: f64 = LOG_FROM_HZ / LINEAR_HZ_PER_MEL;

fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

fn hz_to_mel(hz: f64) -> f64 {
    if hz < LOG_FROM_HZ {
        hz / LINEAR_HZ_PER_MEL
    } else {
        LOG_FROM_MEL + (hz / LOG_FROM_HZ).ln() / log_step()
    }
}

fn mel_to_hz(mel: f64) -> f64 {
    if mel < LOG_FROM_MEL {
        mel * LINEAR_HZ_PER_MEL
    } else {
        LOG_FROM_HZ * ((mel - LOG_FROM_MEL) * log_step()).exp()
    }
}
