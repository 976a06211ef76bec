//! `voce bench talk`: how long a frame of conversations side by side takes, heard and answered, with random weights of
//! full size.

use std::time::Instant;

use clap::Args;
use serde::Serialize;
use voce_engine::store::Task;
use voce_engine::talker::{TalkRequest, TalkerOptions};

use super::SEED;
use super::args::{Threads, shape_help, threads};
use super::measure::quantile;
use crate::args::PrecisionArg;
use crate::console::{Console, round};
use crate::device::{self, DeviceArgs};
use crate::failure::{Failure, Outcome};
use crate::interrupt;

/// Frames that warm caches, buffers and graphs up.
const WARM_UP: usize = 5;
/// Frames that a run may ask for at most.
const MOST: usize = 1 << 20;
/// Conversations side by side at most.
const MOST_STREAMS: usize = 1024;

/// Arguments of `voce bench talk`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  voce bench talk --shape moshi-7b --device cuda --streams 1,16 --json
  voce bench talk --shape moshi-7b --precision int4 --frames 20

A frame is 80 ms: it is encoded, the language model and its depth transformer answer, and the answer is decoded. All
conversations step together, without the engine's threads. Build with --release to measure.")]
pub(crate) struct BenchTalkArgs {
    /// Random weights of a published shape
    #[arg(long, env = "VOCE_BENCH_SHAPE", default_value = "moshi-7b", help = shape_help(Task::Dialogue))]
    shape: String,
    /// Conversations side by side; several numbers are measured one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', env = "VOCE_BENCH_STREAMS", default_value = "1")]
    streams: Vec<usize>,
    /// Frames that are timed
    #[arg(long, value_name = "F", env = "VOCE_BENCH_FRAMES", default_value_t = 60)]
    frames: usize,
    /// Sampling temperature of audio and text; 0 takes the best
    #[arg(long, value_name = "T", env = "VOCE_TEMPERATURE")]
    temperature: Option<f32>,
    /// Threads: a number, or `sweep` for one to all cores
    #[arg(long, env = "VOCE_THREADS", default_value = "0", value_parser = threads)]
    threads: Threads,
    /// Precisions to measure
    #[arg(long, value_enum, value_delimiter = ',', env = "VOCE_PRECISION", default_value = "auto")]
    precision: Vec<PrecisionArg>,
    #[command(flatten)]
    device: DeviceArgs,
}

/// The object; scripts rely on the names.
#[derive(Debug, Serialize)]
struct TalkReport {
    model: String,
    streams: usize,
    frames: usize,
    /// Milliseconds of a frame of all conversations.
    frame_ms: f64,
    best_ms: f64,
    p99_ms: f64,
    /// The part of it from a frame heard until its text and codes are drawn, and from there until it can be played.
    think_ms: f64,
    speak_ms: f64,
    /// How many times faster than it is spoken.
    real_time: f64,
    weight_bytes: usize,
    load_ms: f64,
    precision: &'static str,
    threads: usize,
    device: Option<String>,
}

/// Runs the command.
pub(super) fn run(console: Console, args: &BenchTalkArgs) -> Outcome {
    if !(1..=MOST).contains(&args.frames) || args.streams.iter().any(|n| !(1..=MOST_STREAMS).contains(n)) {
        return Err(Failure::usage(format!("frames are 1 to {MOST}, streams 1 to {MOST_STREAMS}")));
    }
    let device = args.device.open()?;
    for precision in &args.precision {
        let counts = if device.is_some() { vec![1] } else { args.threads.counts() };
        for threads in counts {
            let precision = device::precision(*precision, device.as_ref());
            let options = TalkerOptions::default()
                .with_precision(Some(precision))
                .with_device(device.clone().into())
                .with_threads(threads);
            let begun = Instant::now();
            let (dialogue, mut exec) = voce_engine::talker::random_dialogue(&args.shape, SEED, &options)?;
            let load = begun.elapsed();
            let info = dialogue.info();
            let request = TalkRequest::default().with_seed(SEED).with_temperature(args.temperature);
            dialogue.check(&request).map_err(|e| Failure::usage(e.to_string()))?;
            for &streams in &args.streams {
                let mut partner = dialogue.partner(streams);
                let live: Vec<usize> = (0..streams).collect();
                live.iter().for_each(|&slot| partner.start(&mut exec, slot, &request));
                let (mut noise, mut times, mut said) = (SEED as u32 | 1, Vec::new(), Vec::new());
                let mut stages = [Vec::new(), Vec::new()];
                for frame in 0..WARM_UP + args.frames {
                    interrupt::check()?;
                    let samples: Vec<f32> = (0..streams * info.frame_size)
                        .map(|_| {
                            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                            (noise >> 8) as f32 / (1 << 25) as f32 - 0.25
                        })
                        .collect();
                    let begun = Instant::now();
                    said.clear();
                    partner.step(&mut exec, &live, &samples);
                    let parts = partner.fetch(&mut exec, &live, &mut said);
                    let took = begun.elapsed();
                    exec.status().map_err(|e| Failure::failed(e.to_string()))?;
                    if frame >= WARM_UP {
                        times.push(took.as_secs_f64() * 1e3);
                        // Decoding is the last of them.
                        let ms: Vec<f64> = parts.iter().map(|p| p.1.as_secs_f64() * 1e3).collect();
                        let (speak, think) = ms.split_last().map_or((0.0, &[][..]), |(s, t)| (*s, t));
                        stages[0].push(think.iter().sum());
                        stages[1].push(speak);
                    }
                }
                let frame_ms = quantile(&times, 0.5);
                let seconds = info.frame_size as f64 / info.sample_rate as f64;
                let report = TalkReport {
                    model: args.shape.clone(),
                    streams,
                    frames: args.frames,
                    frame_ms: round(frame_ms, 3),
                    best_ms: round(quantile(&times, 0.0), 3),
                    p99_ms: round(quantile(&times, 0.99), 3),
                    think_ms: round(quantile(&stages[0], 0.5), 3),
                    speak_ms: round(quantile(&stages[1], 0.5), 3),
                    real_time: round(seconds * 1e3 / frame_ms.max(1e-9), 3),
                    weight_bytes: info.stages.iter().map(|s| s.bytes).sum(),
                    load_ms: round(load.as_secs_f64() * 1e3, 1),
                    precision: precision.name(),
                    threads,
                    device: device.as_ref().map(|d| d.info().to_string()),
                };
                report.show(console)?;
            }
        }
    }
    Ok(())
}

impl TalkReport {
    fn show(&self, console: Console) -> Outcome {
        if console.json {
            return console.json(self);
        }
        let Self { model, streams, frame_ms, best_ms, p99_ms, real_time, precision, .. } = self;
        console.result(&format!(
            "{model}, {streams} conversations, {precision}: {frame_ms} ms a frame (best {best_ms}, p99 {p99_ms}), \
             {real_time}x real time"
        ))
    }
}
