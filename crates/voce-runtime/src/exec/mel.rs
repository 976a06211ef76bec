//! Log-mel spectrograms of samples that wait on the host, and their bands brought to mean 0 and deviation 1.

use super::{Buffer, Exec, FrameSpan, Shared, Staging, Vector};
use crate::pool::share;

/// Bins that a worker takes at a time.
const BINS: usize = 16;

/// How windows of samples become rows.
#[derive(Clone, Debug)]
pub struct MelFilters {
    /// Factors of a window's samples, which are in the middle of a transform.
    pub(crate) window: Vector,
    /// Roots of unity, the transform's and half of it in order.
    pub(crate) roots: Vector,
    /// Per band, and once after the last: its first frequency and the index of its first weight, as whole numbers.
    pub(crate) bands: Vector,
    pub(crate) weights: Vector,
    pub(crate) fft: usize,
    pub(crate) hop: usize,
    pub(crate) guard: f32,
}

impl MelFilters {
    /// Windows of `window.len()` samples every `hop`, transforms of `fft` points (a power of two), and the logarithm
    /// of each band's energy and `guard`. A band is its first frequency and the weights from there on.
    pub fn new<'b>(
        window: Vec<f32>,
        hop: usize,
        fft: usize,
        guard: f32,
        filters: impl IntoIterator<Item = (usize, &'b [f32])>,
    ) -> Self {
        assert!(fft.is_power_of_two() && fft >= 4 && window.len() <= fft, "a transform that holds a window");
        assert!(hop > 0 && hop <= window.len(), "windows that leave no sample out");
        let (mut bands, mut weights) = (Vec::new(), Vec::new());
        for (first, values) in filters {
            assert!(first + values.len() <= fft / 2 + 1, "frequencies of the transform");
            bands.extend([first as f32, weights.len() as f32]);
            weights.extend_from_slice(values);
        }
        bands.extend([0.0, weights.len() as f32]);
        let root = |k: usize| {
            let (sin, cos) = (-std::f64::consts::TAU * k as f64 / fft as f64).sin_cos();
            [cos as f32, sin as f32]
        };
        let roots = (0..=fft / 2).flat_map(root).collect();
        Self { window: window.into(), roots, bands: bands.into(), weights: weights.into(), fft, hop, guard }
    }

    /// Bands.
    pub fn bins(&self) -> usize {
        self.bands.len() / 2 - 1
    }

    /// Samples that `rows` rows of one stream are made of.
    pub fn samples(&self, rows: usize) -> usize {
        if rows == 0 { 0 } else { (rows - 1) * self.hop + self.window.len() }
    }
}

/// Rows of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MelSpan {
    /// How many, at least one.
    pub rows: usize,
    /// The row of the output that the first becomes.
    pub to: usize,
}

/// Spectrograms of some streams.
pub struct MelOp<'a> {
    /// How they are made.
    pub filters: &'a MelFilters,
    /// [`MelFilters::samples`] of each span, one after the other, staged for this op.
    pub samples: &'a Staging,
    /// Whose samples they are; no two have rows of the output in common.
    pub spans: &'a [MelSpan],
}

impl Exec {
    /// Makes rows of log-mel bands on a device. CPUs have no form of it: the host's front end is in another crate.
    pub fn mel(&mut self, op: &MelOp<'_>, out: &mut Buffer) {
        let (rows, values) =
            op.spans.iter().fold((0, 0), |(r, v), s| (r + s.rows, v + op.filters.samples(s.rows)));
        assert!(out.cols == op.filters.bins() && values <= op.samples.len, "samples and bands fit");
        assert!(op.spans.iter().all(|s| s.rows > 0 && s.to + s.rows <= out.rows), "rows fit");
        let cuda = self.cuda.as_mut().expect("spectrograms are made here on devices only");
        if rows > 0 {
            cuda.mel(op, rows, values, out);
        }
    }

    /// Brings each column of each span's rows to mean 0 and deviation 1; `guard` is added to the deviation.
    pub fn standardise(&mut self, x: &mut Buffer, spans: &[FrameSpan], guard: f32) {
        let (bins, rows) = (x.cols, spans.iter().map(|s| s.rows).sum::<usize>());
        assert!(rows <= x.rows, "rows fit");
        if let Some(cuda) = &mut self.cuda {
            return cuda.standardise(x, spans, guard);
        }
        let groups = bins.div_ceil(BINS);
        let threads = self.pool.threads();
        let to = Shared(x.head_mut(rows).as_mut_ptr());
        self.pool.run(|id| {
            let mine = share(spans.len() * groups, 1, id, threads);
            let mut begin = 0;
            for (i, span) in spans.iter().enumerate() {
                for part in (0..groups).filter(|part| mine.contains(&(i * groups + part))) {
                    let first = part * BINS;
                    // SAFETY: spans and groups of bins are split by worker, and all of them are inside of `x`.
                    unsafe {
                        let at = to.get().add(begin * bins + first);
                        standardise_bins(at, span.rows, bins, BINS.min(bins - first), guard);
                    }
                }
                begin += span.rows;
            }
        });
    }
}

/// Brings up to [`BINS`] columns to mean 0 and deviation 1.
///
/// # Safety
/// `x` has `rows` rows of `count` values that are `stride` apart, and nobody else uses them.
unsafe fn standardise_bins(x: *mut f32, rows: usize, stride: usize, count: usize, guard: f32) {
    // SAFETY: the caller's promise.
    let row = |r: usize| unsafe { std::slice::from_raw_parts_mut(x.add(r * stride), count) };
    let (mut means, mut variances) = ([0f64; BINS], [0f64; BINS]);
    for r in 0..rows {
        means.iter_mut().zip(row(r)).for_each(|(m, v)| *m += f64::from(*v));
    }
    means.iter_mut().for_each(|m| *m /= rows as f64);
    for r in 0..rows {
        for ((sum, mean), v) in variances.iter_mut().zip(&means).zip(row(r)) {
            *sum += (f64::from(*v) - mean).powi(2);
        }
    }
    let scales = variances.map(|v| 1.0 / ((v / (rows.max(2) - 1) as f64).sqrt() as f32 + guard));
    for r in 0..rows {
        for ((v, mean), scale) in row(r).iter_mut().zip(&means).zip(&scales) {
            *v = (*v - *mean as f32) * scale;
        }
    }
}
