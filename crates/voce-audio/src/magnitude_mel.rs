//! Log-mel features as vocoders and the speaker encoder of Qwen3-TTS take them: 24 kHz, a periodic Hann window of 1024
//! samples every 256, magnitudes instead of powers, Slaney mel bands, natural log.

use realfft::RealFftPlanner;

use crate::mel::slaney_bands;

/// The rate the front end takes.
pub const MAGNITUDE_MEL_RATE: u32 = 24_000;
/// Samples that a signal has at least: its ends are mirrored.
pub const MAGNITUDE_MEL_SAMPLES: usize = EDGE + 1;

const FFT: usize = 1024;
const HOP: usize = 256;
/// Mirrored samples before and after the signal.
const EDGE: usize = (FFT - HOP) / 2;
/// Added under the root of a magnitude.
const ROOT_GUARD: f32 = 1e-9;
/// What the log sees at least.
const FLOOR: f32 = 1e-5;

/// The mel frames of a signal, `samples / 256` rows of `bins`; none of one that is shorter than
/// [`MAGNITUDE_MEL_SAMPLES`].
pub fn magnitude_mel(samples: &[f32], bins: usize) -> Vec<f32> {
    let n = samples.len();
    if n < MAGNITUDE_MEL_SAMPLES {
        return Vec::new();
    }
    let before = (1..=EDGE).rev().map(|i| samples[i]);
    let after = (1..=EDGE).map(|i| samples[n - 1 - i]);
    let padded: Vec<f32> = before.chain(samples.iter().copied()).chain(after).collect();
    let hann = |i: usize| (0.5 - 0.5 * (std::f64::consts::TAU * i as f64 / FFT as f64).cos()) as f32;
    let window: Vec<f32> = (0..FFT).map(hann).collect();
    let bands = slaney_bands(bins, MAGNITUDE_MEL_RATE, FFT);
    let fft = RealFftPlanner::<f32>::new().plan_fft_forward(FFT);
    let (mut frame, mut spectrum) = (fft.make_input_vec(), fft.make_output_vec());
    let mut magnitudes = vec![0f32; spectrum.len()];
    let mut out = Vec::with_capacity(n / HOP * bins);
    for samples in padded.windows(FFT).step_by(HOP) {
        frame.iter_mut().zip(samples).zip(&window).for_each(|((f, s), w)| *f = s * w);
        // The buffers come from the plan itself, so their lengths fit.
        let done = fft.process(&mut frame, &mut spectrum);
        debug_assert!(done.is_ok());
        magnitudes.iter_mut().zip(&spectrum).for_each(|(m, x)| *m = (x.norm_sqr() + ROOT_GUARD).sqrt());
        out.extend(bands.iter().map(|band| {
            let inside = &magnitudes[band.first..band.first + band.weights.len()];
            let sum: f32 = inside.iter().zip(&band.weights).map(|(m, w)| m * w).sum();
            sum.max(FLOOR).ln()
        }));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_row_for_each_hop_and_silence_is_the_floor() {
        for (samples, rows) in [(385, 1), (512, 2), (767, 2), (768, 3), (24_000, 93)] {
            let mel = magnitude_mel(&vec![0.0; samples], 128);
            assert_eq!(mel.len(), rows * 128, "{samples}");
        }
        assert!(magnitude_mel(&[0.1; MAGNITUDE_MEL_SAMPLES - 1], 128).is_empty());
        let quiet = magnitude_mel(&[0.0; 2000], 128);
        // The root's guard times a band's area is what silence has.
        assert!(quiet.iter().all(|v| *v >= FLOOR.ln() && *v < -5.0));
    }
}
