//! What a stage could reach at best on this machine: bytes over bandwidth, multiply-adds over the product rate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use voce_engine::speaker::SpeakerInfo;
use voce_engine::stage::{Per, StageInfo, weight_bytes};
use voce_runtime::cuda::{CudaError, Device, Timing};
use voce_runtime::{Buffer, Exec, Format, Isa, LinearOp, Matrix, WeightArena};

use super::measure::Runs;
use crate::console::{Console, round, table};
use crate::failure::{Failure, Outcome};
use crate::machine;

/// What reports call the feeding of prompts.
pub(super) const PREFILL: &str = "prefill";
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
#[derive(Debug, Clone, Serialize)]
pub(super) struct Rates {
    /// Bytes a second that the threads read, over a buffer of the model's size.
    pub(super) read_gb_per_s: f64,
    /// Multiply-adds a second, by how weights are stored.
    pub(super) gmac_per_s: BTreeMap<&'static str, f64>,
}

impl Rates {
    /// Measures what a model with these stages could reach: on a device, or with its threads.
    pub(super) fn measure(
        stages: &[StageInfo],
        threads: usize,
        isa: Isa,
        device: Option<&Arc<Device>>,
    ) -> Outcome<Self> {
        let mut exec = Exec::with_isa(threads, isa)?;
        let mut rates = Self { read_gb_per_s: 0.0, gmac_per_s: BTreeMap::new() };
        for format in stages.iter().map(|stage| stage.format) {
            if rates.gmac_per_s.contains_key(format.name()) {
                continue;
            }
            let macs = match device {
                Some(device) => device_product_rate(device, format)?,
                None => product_rate(&mut exec, format),
            };
            rates.gmac_per_s.insert(format.name(), round(macs / 1e9, 1));
        }
        let read = match device {
            Some(device) => device.bandwidth().map_err(|e| Failure::failed(e.to_string()))?,
            None => machine::read_bandwidth(weight_bytes(stages), threads),
        };
        rates.read_gb_per_s = round(read / 1e9, 2);
        Ok(rates)
    }

    /// Seconds that `reads` of a stage's weights and the work of `runs` take at best.
    pub(super) fn limit(&self, stage: &StageInfo, reads: f64, runs: f64) -> f64 {
        let rate = self.gmac_per_s.get(stage.format.name()).copied().unwrap_or(f64::INFINITY);
        let read = stage.bytes as f64 * reads / (self.read_gb_per_s * 1e9);
        read.max(stage.macs as f64 * runs / (rate * 1e9))
    }

    /// The rates in words.
    pub(super) fn line(&self) -> String {
        let macs: Vec<String> =
            self.gmac_per_s.iter().map(|(format, rate)| format!("{rate:.0} in {format}")).collect();
        format!(
            "{:.1} GB/s read, G multiply-adds a second: {}; all measured here",
            self.read_gb_per_s,
            macs.join(", ")
        )
    }
}

/// One stage against its limit.
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

/// Figures by the names of stages, in the stages' order; JSON has them as an object.
#[derive(Debug, Clone)]
pub(super) struct ByStage<T>(pub(super) Vec<(String, T)>);

impl<T: Serialize> Serialize for ByStage<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, figure)| (name, figure)))
    }
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
    let macs = device_product_rate(device, format)?;
    Ok((macs, device.bandwidth().map_err(|e| Failure::failed(e.to_string()))?))
}

fn device_product_rate(device: &Arc<Device>, format: Format) -> Outcome<f64> {
    let n = DEVICE_PRODUCT;
    let weights: Vec<f32> = (0..n * n).map(|i| (i % 8191) as f32 / 8191.0 - 0.5).collect();
    let failed = |e: CudaError| Failure::failed(e.to_string());
    let matrix = Matrix::pack(&WeightArena::on(device.clone()), format, n, n, &weights).map_err(failed)?;
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
    exec.status().map_err(failed)?;
    let _ = device.timings();
    Ok((n * n * n) as f64 / best)
}

/// Multiply-adds a second of a product whose weights are in cache: the fastest of those timed.
pub(crate) fn product_rate(exec: &mut Exec, format: Format) -> f64 {
    let (n, rows) = (PRODUCT_WIDTH, PRODUCT_ROWS);
    let weights = bell(n * n);
    let arena = exec.arena();
    let matrix = exec.pack(&arena, format, n, n, &weights);
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

/// Values spread as those of a model are: most of them small, none above 1. Some instruction sets take longer over bytes
/// that are nearly all large.
fn bell(values: usize) -> Vec<f32> {
    let mut seed = 1u32;
    let mut even = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 24) as f32
    };
    (0..values).map(|_| (0..12).map(|_| even()).sum::<f32>() / 6.0 - 1.0).collect()
}

/// What the model's prompts and stages took in these runs, against their limits: prompts per run, the rest per frame.
pub(super) fn stages(info: &SpeakerInfo, runs: &Runs, rates: &Rates, steps: usize) -> ByStage<Stage> {
    let mean = |f: &dyn Fn(&super::measure::Run) -> usize| super::measure::mean(&runs.each(|r| f(r) as f64));
    let frames = mean(&|r| r.stats.frames).max(1.0);
    let (tokens, chunks) = (mean(&|r| r.stats.tokens), mean(&|r| r.stats.passages));
    let prompted = info.stages.iter().filter(|stage| stage.prompts);
    let prefill = prompted.map(|stage| rates.limit(stage, chunks, tokens)).sum();
    let mut all = vec![(PREFILL.to_owned(), Stage::new(runs.stage(|s| s.prefill_span.busy), prefill))];
    all.extend(info.stages.iter().map(|stage| {
        let each = match stage.per {
            Per::SamplerStep => steps as f64,
            _ => stage.per_second.unwrap_or(0.0) / info.frame_rate,
        };
        let limit = rates.limit(stage, each / stage.together.max(1) as f64, each);
        let took = runs.stage(|s| s.stage(stage.name)) / frames;
        (stage.name.to_owned(), Stage::new(took, limit))
    }));
    ByStage(all)
}
