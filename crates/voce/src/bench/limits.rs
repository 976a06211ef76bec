//! What a stage could reach at best on this machine: bytes over bandwidth, multiply-adds over the product rate.

use std::time::{Duration, Instant};

use serde::Serialize;
use voce_engine::speaker::SpeakerInfo;
use voce_nn::Formats;
use voce_runtime::{Buffer, Exec, Format, LinearOp, Matrix, WeightArena};

use super::measure::Runs;
use crate::console::round;
use crate::failure::Outcome;
use crate::machine;

/// Frames that the codec decodes together once it is ahead: its weights are read once for all of them.
const CODEC_GROUP: f64 = 4.0;
/// Width of the product that is timed; its weights stay in a core's cache.
const PRODUCT_WIDTH: usize = 512;
/// Rows of it.
const PRODUCT_ROWS: usize = 64;
/// How long a product is timed.
const PRODUCT_TIME: Duration = Duration::from_millis(150);

/// Measured rates.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Rates {
    /// Bytes a second that the threads read, over a buffer of the model's size.
    pub(super) read_gb_per_s: f64,
    /// Multiply-adds a second of linear layers.
    pub(super) linear_gmac_per_s: f64,
    /// Multiply-adds a second of convolutions.
    pub(super) conv_gmac_per_s: f64,
}

/// One stage against its limit; milliseconds per frame, prefill per run.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Stage {
    pub(super) ms: f64,
    pub(super) limit_ms: f64,
    pub(super) fraction: f64,
}

impl Stage {
    pub(super) fn new(seconds: f64, limit: f64) -> Self {
        let fraction = if seconds > 0.0 { limit / seconds } else { 0.0 };
        Self { ms: round(seconds * 1e3, 4), limit_ms: round(limit * 1e3, 4), fraction: round(fraction, 3) }
    }
}

/// All stages.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Stages {
    pub(super) prefill: Stage,
    pub(super) backbone: Stage,
    pub(super) head: Stage,
    pub(super) codec: Stage,
}

/// Measures this machine with the speaker's threads and formats.
pub(super) fn rates(info: &SpeakerInfo) -> Outcome<Rates> {
    let formats = Formats::new(info.precision, info.isa);
    let bytes = info.backbone_bytes + info.head_bytes + info.codec_bytes;
    let mut exec = Exec::with_isa(info.threads, info.isa)?;
    let linear = product_rate(&mut exec, formats.backbone);
    let conv = if formats.conv == formats.backbone { linear } else { product_rate(&mut exec, formats.conv) };
    Ok(Rates {
        read_gb_per_s: round(machine::read_bandwidth(bytes, info.threads) / 1e9, 2),
        linear_gmac_per_s: round(linear / 1e9, 1),
        conv_gmac_per_s: round(conv / 1e9, 1),
    })
}

/// Multiply-adds a second of a product whose weights are in cache: the fastest of those timed.
pub(crate) fn product_rate(exec: &mut Exec, format: Format) -> f64 {
    let (n, rows) = (PRODUCT_WIDTH, PRODUCT_ROWS);
    let weights: Vec<f32> = (0..n * n).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
    let matrix = Matrix::pack(&WeightArena::new(), format, n, n, &weights);
    let mut x = Buffer::new(rows, n);
    for i in 0..rows {
        x.row_mut(i).copy_from_slice(&weights[i..i + n]);
    }
    let mut out = Buffer::new(rows, n);
    let begun = Instant::now();
    let mut best = f64::INFINITY;
    while begun.elapsed() < PRODUCT_TIME || best.is_infinite() {
        let start = Instant::now();
        exec.linear(&LinearOp::new(&x, rows, &matrix), &mut out);
        best = best.min(start.elapsed().as_secs_f64());
    }
    (rows * n * n) as f64 / best.max(1e-9)
}

/// The stages of these runs against their limits.
pub(super) fn stages(info: &SpeakerInfo, runs: &Runs, rates: &Rates, steps: usize) -> Stages {
    let (read, linear, conv) =
        (rates.read_gb_per_s * 1e9, rates.linear_gmac_per_s * 1e9, rates.conv_gmac_per_s * 1e9);
    let limit = |bytes: f64, macs: f64, rate: f64| (bytes / read).max(macs / rate);
    let mean = |f: &dyn Fn(&super::measure::Run) -> usize| super::measure::mean(&runs.each(|r| f(r) as f64));
    let frames = mean(&|r| r.stats.frames).max(1.0);
    let (tokens, chunks) = (mean(&|r| r.stats.tokens), mean(&|r| r.stats.chunks));
    let [backbone, head, codec] = info.macs.map(|m| m as f64);
    let backbone_bytes = info.backbone_bytes as f64;
    Stages {
        prefill: Stage::new(
            runs.stage(|s| s.prefill),
            limit(backbone_bytes * chunks, backbone * tokens, linear),
        ),
        backbone: Stage::new(runs.stage(|s| s.backbone) / frames, limit(backbone_bytes, backbone, linear)),
        head: Stage::new(
            runs.stage(|s| s.head) / frames,
            limit((info.head_bytes * steps) as f64, head * steps as f64, linear),
        ),
        codec: Stage::new(
            runs.stage(|s| s.codec) / frames,
            limit(info.codec_bytes as f64 / CODEC_GROUP, codec, conv),
        ),
    }
}
