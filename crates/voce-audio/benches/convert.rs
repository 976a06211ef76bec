//! Conversions of samples, a second of audio each: `cargo bench -p voce-audio`.
//!
//! Items per second are samples in. The loops are plain, for the compiler to vectorise.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use voce_audio::encode::encode_raw;
use voce_audio::{RawEncoding, Resampler};

fn main() {
    divan::main();
}

/// Samples of a second.
const SECOND: usize = 24_000;

fn noise(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 2_654_435_761) % 2003) as f32 / 1001.5 - 1.0).collect()
}

const ENCODINGS: [RawEncoding; 4] =
    [RawEncoding::S16le, RawEncoding::F32le, RawEncoding::Mulaw, RawEncoding::Alaw];

#[divan::bench(args = ENCODINGS)]
fn bytes_to_samples(bencher: Bencher<'_, '_>, encoding: RawEncoding) {
    let mut bytes = Vec::new();
    encode_raw(&noise(SECOND), encoding, &mut bytes);
    let mut samples = Vec::with_capacity(SECOND);
    bencher.counter(ItemsCount::new(SECOND)).bench_local(|| {
        samples.clear();
        encoding.decode_into(black_box(&bytes), &mut samples);
        black_box(samples.len())
    });
}

#[divan::bench(args = ENCODINGS)]
fn samples_to_bytes(bencher: Bencher<'_, '_>, encoding: RawEncoding) {
    let samples = noise(SECOND);
    let mut bytes = Vec::with_capacity(4 * SECOND);
    bencher.counter(ItemsCount::new(SECOND)).bench_local(|| {
        bytes.clear();
        encode_raw(black_box(&samples), encoding, &mut bytes);
        black_box(bytes.len())
    });
}

/// What a server hears and speaks at: telephones, microphones, voices.
#[divan::bench(args = [(8_000, 16_000), (24_000, 16_000), (44_100, 16_000), (48_000, 16_000), (24_000, 8_000), (24_000, 48_000)])]
fn resample(bencher: Bencher<'_, '_>, (from, to): (u32, u32)) {
    let samples = noise(from as usize);
    let mut resampler = Resampler::new(from, to);
    let mut out = Vec::with_capacity(2 * to as usize);
    bencher.counter(ItemsCount::new(from as usize)).bench_local(|| {
        out.clear();
        resampler.process(black_box(&samples), &mut out);
        black_box(out.len())
    });
}
