//! What a stage could reach at best on this machine: bytes over bandwidth, multiply-adds over the product rate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use voce_engine::speaker::SpeakerInfo;
use voce_nn::Formats;
use voce_runtime::cuda::{Device, Timing};
use voce_runtime::{Buffer, Exec, Format, LinearOp, Matrix, WeightArena};

use super::measure::Runs;
use crate::console::{Console, round, table};
use crate::failure::{Failure, Outcome};
use crate::machine;

/// Frames that the codec decodes together once it is ahead: its weights are read once for all of them.
const CODEC_GROUP: f64 = 4.0;
/// Width of the product that is timed; its weights stay in a core's cache.
const PRODUCT_WIDTH: usize = 512;
/// Rows of it.
const PRODUCT_ROWS: usize = 64;
/// Width, inputs and rows of a GPU's product.
const DEVICE_PRODUCT: usize = 8192;
/// Products that are enqueued together.
const DEVICE_ROUNDS: usize = 10;
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
pub(super) fn rates(info: &SpeakerInfo, device: Option<&Arc<Device>>) -> Outcome<Rates> {
    if let Some(device) = device {
        let (linear, read) = device_rates(device, Formats::on_device(info.precision).backbone)?;
        let linear = round(linear / 1e9, 1);
        let read_gb_per_s = round(read / 1e9, 2);
        return Ok(Rates { read_gb_per_s, linear_gmac_per_s: linear, conv_gmac_per_s: linear });
    }
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

/// What one kernel, or products of one shape, took on a GPU.
#[derive(Debug, Clone, Serialize)]
pub(super) struct KernelTime {
    pub(super) name: String,
    pub(super) runs: usize,
    pub(super) ms: f64,
    /// Of products: 1e12 multiply-adds a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tmac_per_s: Option<f64>,
}

/// What kernels took since this was last asked.
pub(super) fn kernel_times(device: &Arc<Device>) -> Vec<KernelTime> {
    let row = |t: Timing| {
        let seconds = t.time.as_secs_f64();
        let tmac_per_s = (t.macs > 0).then(|| round(t.macs as f64 / seconds.max(1e-9) / 1e12, 1));
        KernelTime { name: t.name, runs: t.runs, ms: round(seconds * 1e3, 3), tmac_per_s }
    };
    device.timings().into_iter().map(row).collect()
}

/// Prints kernels' times, the longest first.
pub(super) fn print_kernels(console: Console, kernels: &[KernelTime]) -> Outcome {
    if kernels.is_empty() {
        return Ok(());
    }
    let mut rows = vec![["kernel", "runs", "ms", "us each", "T multiply-adds/s"].map(str::to_owned).to_vec()];
    rows.extend(kernels.iter().map(|k| {
        let rate = k.tmac_per_s.map_or_else(String::new, |r| format!("{r:.1}"));
        let each = k.ms * 1e3 / k.runs.max(1) as f64;
        vec![k.name.clone(), k.runs.to_string(), format!("{:.3}", k.ms), format!("{each:.1}"), rate]
    }));
    console.result(&table(&rows, &[1, 2, 3, 4]))
}

/// Multiply-adds and bytes a second that a GPU reaches: a large product, and a copy of much memory.
pub(super) fn device_rates(device: &Arc<Device>, format: Format) -> Outcome<(f64, f64)> {
    let n = DEVICE_PRODUCT;
    let weights: Vec<f32> = (0..n * n).map(|i| (i % 8191) as f32 / 8191.0 - 0.5).collect();
    let matrix = Matrix::pack(&WeightArena::on(device.clone()), format, n, n, &weights);
    let mut exec = Exec::on(device)?;
    let mut x = Buffer::new(n, n);
    (0..n).for_each(|i| x.row_mut(i).copy_from_slice(&weights[i * n..(i + 1) * n]));
    let mut out = Buffer::new(n, n);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        (0..DEVICE_ROUNDS).for_each(|_| exec.linear(&LinearOp::new(&x, n, &matrix), &mut out));
        exec.finish();
        best = best.min(start.elapsed().as_secs_f64() / DEVICE_ROUNDS as f64);
    }
    exec.status().map_err(|e| Failure::failed(e.to_string()))?;
    let _ = device.timings();
    let bytes = device.bandwidth().map_err(|e| Failure::failed(e.to_string()))?;
    Ok(((n * n * n) as f64 / best, bytes))
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
