//! `voce bench decode`: how long a frame of a decoder-only model takes, against what the machine could do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use voce_engine::EngineError;
use voce_models::decoder::{
    FrameConfig, FrameDecoder, FrameRow, FrameShape, FrameState, SHAPES, random_weights,
};
use voce_nn::{DecoderNames, Formats, Loader, Precision};
use voce_runtime::cuda::{CudaError, Device};
use voce_runtime::{Exec, Isa, Sampling, SentTokens};

use super::SEED;
use super::decode_args::BenchDecodeArgs;
use super::limits::{KernelTime, Stage, device_rates, kernel_times, print_kernels, product_rate};
use super::measure::quantile;
use crate::console::{Console, bytes, milliseconds, round};
use crate::device::Switch;
use crate::failure::{Failure, Outcome};
use crate::{device, interrupt, machine};

/// Frames that warm caches, buffers and graphs up.
const WARM_UP: usize = 8;
/// Context of models that see everything.
const CONTEXT: usize = 300;
/// Seconds of a frame of the models here.
const FRAME_SECONDS: f64 = 0.08;
/// Most of each that a run may ask for.
const MOST: usize = 1 << 20;

/// Runs the command.
pub(super) fn run(console: Console, args: &BenchDecodeArgs) -> Outcome {
    let Some(config) = FrameConfig::named(&args.shape) else {
        let known = SHAPES.join(", ");
        return Err(Failure::usage(format!("no shape '{}': use one of {known}", args.shape)));
    };
    let mut sizes = args.streams.clone();
    sizes.extend([args.frames, args.context.unwrap_or(1)]);
    if sizes.iter().any(|n| !(1..=MOST).contains(n)) {
        return Err(Failure::usage(format!("streams, frames and context are 1 to {MOST}")));
    }
    let device = args.device.open()?;
    for precision in &args.precision {
        // A GPU's products do not run on these threads.
        let counts = if device.is_some() { vec![1] } else { args.threads.counts() };
        for threads in counts {
            let precision = device::precision(*precision, device.as_ref());
            one(console, args, &config, precision, threads, device.as_ref())?;
        }
    }
    Ok(())
}

/// The object; scripts rely on the names.
#[derive(Debug, Serialize)]
struct DecodeReport {
    shape: String,
    frame_ms: FrameMs,
    streams: usize,
    context: usize,
    frames: usize,
    /// Seconds of speech over seconds, all streams together.
    times_real_time: f64,
    /// The median against the limit.
    frame: Stage,
    /// Bytes that a frame reads, of which weights.
    frame_bytes: usize,
    weight_bytes: usize,
    frame_gmac: f64,
    gb_per_s: f64,
    tmac_per_s: f64,
    read_gb_per_s: f64,
    linear_gmac_per_s: f64,
    cache_bytes: usize,
    precision: &'static str,
    threads: usize,
    device: Option<String>,
    cuda_graphs: bool,
    cpu: String,
    load_ms: f64,
    fill_ms: f64,
    peak_rss_mb: Option<f64>,
    /// What kernels took, with `--cuda-events on`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<KernelTime>,
}

#[derive(Debug, Serialize)]
struct FrameMs {
    p50: f64,
    p95: f64,
    least: f64,
}

fn one(
    console: Console,
    args: &BenchDecodeArgs,
    config: &FrameConfig,
    precision: Precision,
    threads: usize,
    device: Option<&Arc<Device>>,
) -> Outcome {
    match device {
        Some(_) if precision == Precision::Int4 => {
            return Err(Failure::usage("int4 has no kernels on a GPU: use f32, bf16, fp8 or int8"));
        }
        Some(device) if precision == Precision::Fp8 && !device.info().has_fp8() => {
            return Err(Failure::usage(CudaError::NoFp8(device.info().name.clone()).to_string()));
        }
        None if precision == Precision::Fp8 => {
            return Err(Failure::usage(EngineError::NoFp8.to_string()));
        }
        _ => {}
    }
    let failed = |e: voce_runtime::cuda::CudaError| Failure::failed(e.to_string());
    let progress = console.progress();
    progress.set_message(format!("making {} in {precision}", args.shape));
    machine::reset_peak_rss();
    let begun = Instant::now();
    let (mut exec, formats) = match device {
        Some(device) => (Exec::on(device)?, Formats::on_device(precision)),
        None => (Exec::new(threads)?, Formats::new(precision, Isa::from_env()?)),
    };
    let model = random(&mut exec, config, formats, device)?;
    exec.status().map_err(failed)?;
    let load = begun.elapsed();
    interrupt::check()?;

    progress.set_message("measuring the machine");
    let (linear, read) = match device {
        Some(device) => device_rates(device, formats.backbone)?,
        None => {
            let rate = product_rate(&mut exec, formats.backbone);
            (rate, machine::read_bandwidth(model.bytes(1).min(1 << 30), threads))
        }
    };
    progress.finish_and_clear();
    let subject = Subject { args, config, model: &model, precision, threads, device, linear, read, load };
    args.streams.iter().try_for_each(|&streams| subject.measure(console, &mut exec, streams))
}

/// A model that was made, and what the machine can do.
struct Subject<'a> {
    args: &'a BenchDecodeArgs,
    config: &'a FrameConfig,
    model: &'a FrameDecoder,
    precision: Precision,
    threads: usize,
    device: Option<&'a Arc<Device>>,
    linear: f64,
    read: f64,
    load: Duration,
}

impl Subject<'_> {
    /// Times frames of `streams` at once.
    fn measure(&self, console: Console, exec: &mut Exec, streams: usize) -> Outcome {
        let Subject { args, config, model, device, linear, read, .. } = *self;
        let failed = |e: voce_runtime::cuda::CudaError| Failure::failed(e.to_string());
        let progress = console.progress();
        machine::reset_peak_rss();
        let context = args.context.or(config.decoder.window).unwrap_or(CONTEXT);
        let positions = context + WARM_UP + args.frames;
        let mut state = model.state(FrameShape { slots: streams, positions, prefill: 1 });
        progress.set_message(format!("{} of keys and values", bytes(state.cache_bytes() as u64)));
        let begun = Instant::now();
        state.reserve(exec).map_err(failed)?;
        (0..streams).for_each(|slot| state.start(exec, slot));
        state.fill(exec, context);
        let fill = begun.elapsed();

        progress.set_message(format!("{} frames of {} streams", args.frames, streams));
        let rows = rows(config, streams);
        let mut given = Given::new(config, streams);
        let mut times = Vec::with_capacity(args.frames);
        // A device has the next frame before it is done with one, as streams that speak give it.
        let (frames, ahead) = (WARM_UP + args.frames, usize::from(!exec.shares_memory()));
        let (mut sent, mut last) = (SentTokens::default(), Instant::now());
        for frame in 0..frames + ahead {
            interrupt::check()?;
            if frame == WARM_UP {
                let _ = device.map(|d| d.timings());
            }
            if frame < frames {
                given.next(exec, &mut state);
                exec.hold_back(frame > 0);
                model.step(exec, &mut state, &rows);
                exec.hold_back(false);
                state.send(exec, &mut sent);
            }
            if frame >= ahead {
                exec.receive_tokens(&mut sent);
                times.push(last.elapsed().as_secs_f64());
                last = Instant::now();
            }
        }
        exec.status().map_err(failed)?;
        let times = times.split_off(WARM_UP);
        let kernels = device.map(kernel_times).unwrap_or_default();
        let cache_bytes = state.cache_bytes();
        let peak = machine::peak_rss_mb();
        drop(state);

        progress.finish_and_clear();
        let seen = config.decoder.window.map_or(context + WARM_UP + args.frames / 2, |w| w.min(context));
        let weight_bytes = model.bytes(streams);
        let frame_bytes = weight_bytes + streams * model.past_bytes(seen);
        let macs = (streams * (model.macs() + model.attention_macs(seen))) as f64;
        let median = quantile(&times, 0.5);
        let ms = |q| round(quantile(&times, q) * 1e3, 4);
        let report = DecodeReport {
            shape: args.shape.clone(),
            frame_ms: FrameMs { p50: ms(0.5), p95: ms(0.95), least: ms(0.0) },
            streams,
            context,
            frames: args.frames,
            times_real_time: round(streams as f64 * FRAME_SECONDS / median.max(1e-9), 2),
            frame: Stage::new(median, (frame_bytes as f64 / read).max(macs / linear)),
            frame_bytes,
            weight_bytes,
            frame_gmac: round(macs / 1e9, 3),
            gb_per_s: round(frame_bytes as f64 / median.max(1e-9) / 1e9, 1),
            tmac_per_s: round(macs / median.max(1e-9) / 1e12, 3),
            read_gb_per_s: round(read / 1e9, 2),
            linear_gmac_per_s: round(linear / 1e9, 1),
            cache_bytes,
            precision: self.precision.name(),
            threads: self.threads,
            device: device.map(|d| d.info().to_string()),
            cuda_graphs: device.is_some() && args.device.cuda_graphs == Switch::On,
            cpu: machine::cpu_name(),
            load_ms: milliseconds(self.load),
            fill_ms: milliseconds(fill),
            peak_rss_mb: peak,
            kernels,
        };
        report.print(console)
    }
}

/// Random weights of a shape.
fn random(
    exec: &mut Exec,
    config: &FrameConfig,
    formats: Formats,
    device: Option<&Arc<Device>>,
) -> Outcome<FrameDecoder> {
    let loader = Loader::new(random_weights(SEED));
    let loader = match device {
        Some(device) => loader.on(device.clone()),
        None => loader,
    };
    let mut given = Vec::new();
    if config.decoder.names == DecoderNames::Qwen3 {
        let width = config.decoder.hidden;
        for (i, &rows) in config.given.iter().enumerate() {
            let table = loader.sub("given").sub(i).table("weight", rows, width, formats.embedding);
            given.push(table.map_err(|e| Failure::failed(e.to_string()))?);
        }
    }
    FrameDecoder::load(exec, &loader, config, given, formats).map_err(|e| Failure::failed(e.to_string()))
}

/// Sampling as the published packages do it by default: Qwen's talker and predictor draw, Kyutai's recogniser takes
/// the best.
fn rows(config: &FrameConfig, streams: usize) -> Vec<FrameRow> {
    let row = |slot: usize| {
        let seed = SEED + slot as u64;
        if config.decoder.names == DecoderNames::Moshi {
            return FrameRow { slot, first: Sampling::default(), rest: Sampling::default() };
        }
        let rest = Sampling { temperature: 0.9, top_k: 50, seed, ..Sampling::default() };
        // Values above the codebook's are for the beginning and the end of a text.
        let below = config.predictor.as_ref().map_or(u32::MAX, |p| p.vocab as u32);
        FrameRow { slot, first: Sampling { penalty: 1.05, below, ..rest }, rest }
    };
    (0..streams).map(row).collect()
}

/// What comes from outside with each frame: text, or a codec's tokens.
struct Given {
    slots: Vec<usize>,
    column: usize,
    sizes: Vec<usize>,
    values: Vec<u32>,
    state: u32,
}

impl Given {
    fn new(config: &FrameConfig, streams: usize) -> Self {
        let sizes = config.given.clone();
        let values = vec![0; streams * sizes.len()];
        Self { slots: (0..streams).collect(), column: config.drawn(), sizes, values, state: 0x2545_f491 }
    }

    fn next(&mut self, exec: &mut Exec, state: &mut FrameState) {
        for (i, value) in self.values.iter_mut().enumerate() {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 17;
            self.state ^= self.state << 5;
            *value = self.state % self.sizes[i % self.sizes.len()] as u32;
        }
        state.give(exec, &self.slots, self.column, &self.values);
    }
}

impl DecodeReport {
    fn print(&self, console: Console) -> Outcome {
        if console.json {
            return console.json(self);
        }
        let place = match &self.device {
            Some(device) => device.clone(),
            None => format!("{}, {} threads", self.cpu, self.threads),
        };
        console.result(&format!(
            "{} ({}) on {place}; made in {:.0} ms, {} of keys and values\n\
             {} streams at a context of {}: {:.3} ms a frame (p95 {:.3}), {:.1}x real time\n\
             a frame reads {} and has {:.2} G multiply-adds: {:.0} GB/s, {:.2} T multiply-adds a second\n\
             limit {:.3} ms, {:.1}% reached ({:.0} GB/s read, {:.0} G multiply-adds a second)",
            self.shape,
            self.precision,
            self.load_ms,
            bytes(self.cache_bytes as u64),
            self.streams,
            self.context,
            self.frame_ms.p50,
            self.frame_ms.p95,
            self.times_real_time,
            bytes(self.frame_bytes as u64),
            self.frame_gmac,
            self.gb_per_s,
            self.tmac_per_s,
            self.frame.limit_ms,
            self.frame.fraction * 100.0,
            self.read_gb_per_s,
            self.linear_gmac_per_s,
        ))?;
        print_kernels(console, &self.kernels)
    }
}
