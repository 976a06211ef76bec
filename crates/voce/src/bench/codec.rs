//! `voce bench codec`: how long a frame of one stream takes to encode and to decode with Mimi, of full size and with random
//! weights.

use std::time::Instant;

use clap::Args;
use serde::Serialize;
use voce_engine::EngineError;
use voce_models::mimi::{KyutaiMimiConfig, Mimi, random_weights};
use voce_nn::{Formats, Loader, Precision};
use voce_runtime::{Exec, Isa, Span, Tokens};

use super::SEED;
use super::args::{Threads, threads};
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
/// Streams side by side at most.
const MOST_STREAMS: usize = 4096;

/// Arguments of `voce bench codec`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  voce bench codec --codebooks 8 --threads 1 --precision f32,int8 --json
  voce bench codec --streams 1,64 --device cuda --precision bf16

Random weights of Mimi's published size. A frame is 80 ms of audio: encoding goes from its samples to its codes on the
host, decoding from codes to samples. Build with --release to measure.")]
pub(crate) struct BenchCodecArgs {
    /// Codebooks of a frame
    #[arg(long, value_name = "N", env = "VOCE_CODEBOOKS", default_value_t = 8)]
    codebooks: usize,
    /// Streams side by side; several numbers are measured one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', env = "VOCE_BENCH_STREAMS", default_value = "1")]
    streams: Vec<usize>,
    /// Frames that are timed
    #[arg(long, value_name = "F", env = "VOCE_BENCH_FRAMES", default_value_t = 60)]
    frames: usize,
    /// Threads: a number, or `sweep` for one to all cores
    #[arg(long, env = "VOCE_THREADS", default_value = "1", value_parser = threads)]
    threads: Threads,
    /// Precisions to measure
    #[arg(long, value_enum, value_delimiter = ',', env = "VOCE_PRECISION", default_value = "f32")]
    precision: Vec<PrecisionArg>,
    #[command(flatten)]
    device: DeviceArgs,
}

/// The object; scripts rely on the names.
#[derive(Debug, Serialize)]
struct CodecReport {
    codec: &'static str,
    codebooks: usize,
    streams: usize,
    frames: usize,
    encode_ms: FrameMs,
    decode_ms: FrameMs,
    encode_bytes: usize,
    decode_bytes: usize,
    precision: &'static str,
    threads: usize,
    device: Option<String>,
}

/// Milliseconds of a frame of all streams.
#[derive(Debug, Serialize)]
struct FrameMs {
    best: f64,
    median: f64,
    p99: f64,
}

impl FrameMs {
    fn of(times: &[f64]) -> Self {
        let at = |q| round(quantile(times, q), 3);
        Self { best: at(0.0), median: at(0.5), p99: at(0.99) }
    }
}

/// Runs the command.
pub(super) fn run(console: Console, args: &BenchCodecArgs) -> Outcome {
    let has = KyutaiMimiConfig::published().quantizer.n_q;
    if !(1..=has).contains(&args.codebooks) {
        return Err(Failure::usage(format!("{} codebooks: use 1 to {has}", args.codebooks)));
    }
    if !(1..=MOST).contains(&args.frames) || args.streams.iter().any(|n| !(1..=MOST_STREAMS).contains(n)) {
        return Err(Failure::usage(format!("frames are 1 to {MOST}, streams 1 to {MOST_STREAMS}")));
    }
    let device = args.device.open()?;
    for precision in &args.precision {
        let counts = if device.is_some() { vec![1] } else { args.threads.counts() };
        for threads in counts {
            let precision = device::precision(*precision, device.as_ref());
            let (exec, formats) = match &device {
                Some(device) => (Exec::on(device)?, Formats::on_device(precision)),
                None => (Exec::new(threads)?, Formats::new(precision, Isa::from_env()?)),
            };
            let mut loader = Loader::new(random_weights(SEED));
            if let Some(device) = &device {
                loader = loader.on(device.clone());
            }
            let config = KyutaiMimiConfig::published();
            let mimi = Mimi::load(&loader, &config, args.codebooks, formats).map_err(EngineError::from)?;
            let mut bench = Bench { exec, mimi };
            for &streams in &args.streams {
                let report = bench.one(args, streams, precision, threads)?;
                report.show(console, device.as_ref().map(|d| d.info().to_string()))?;
            }
        }
    }
    Ok(())
}

struct Bench {
    exec: Exec,
    mimi: Mimi,
}

impl Bench {
    fn one(
        &mut self,
        args: &BenchCodecArgs,
        streams: usize,
        precision: Precision,
        threads: usize,
    ) -> Outcome<CodecReport> {
        let Self { exec, mimi } = self;
        let (tokenizer, decoder) = (mimi.tokenizer(), mimi.decoder());
        let mut encoding = tokenizer.state(streams, streams, 1);
        let mut decoding = decoder.state_for(streams, streams, 1);
        let mut tokens = Tokens::new(streams, args.codebooks, 0);
        let slots: Vec<usize> = (0..streams).collect();
        let spans: Vec<Span> = slots.iter().map(|&slot| Span { slot, rows: 1 }).collect();
        let mut noise = SEED as u32 | 1;
        let (mut encode, mut decode) = (Vec::new(), Vec::new());
        for frame in 0..WARM_UP + args.frames {
            interrupt::check()?;
            let samples: Vec<f32> = (0..streams * tokenizer.frame_size())
                .map(|_| {
                    noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (noise >> 8) as f32 / (1 << 25) as f32 - 0.25
                })
                .collect();
            let begun = Instant::now();
            tokenizer.encode(exec, &mut encoding, &spans, &samples, &slots, &mut tokens, 0);
            exec.fetch_tokens(&mut tokens);
            let codes: Vec<u32> = slots.iter().flat_map(|&slot| tokens.row(slot).to_vec()).collect();
            let encoded = begun.elapsed();
            let begun = Instant::now();
            let heard = decoder.decode_codes(exec, &mut decoding, &spans, &codes).len();
            let decoded = begun.elapsed();
            debug_assert_eq!(heard, samples.len());
            exec.status().map_err(|e| Failure::failed(e.to_string()))?;
            if frame >= WARM_UP {
                encode.push(encoded.as_secs_f64() * 1e3);
                decode.push(decoded.as_secs_f64() * 1e3);
            }
        }
        Ok(CodecReport {
            codec: "mimi",
            codebooks: args.codebooks,
            streams,
            frames: args.frames,
            encode_ms: FrameMs::of(&encode),
            decode_ms: FrameMs::of(&decode),
            encode_bytes: tokenizer.bytes(),
            decode_bytes: decoder.bytes(),
            precision: precision.name(),
            threads,
            device: None,
        })
    }
}

impl CodecReport {
    fn show(mut self, console: Console, device: Option<String>) -> Outcome {
        self.device = device;
        if console.json {
            return console.json(&self);
        }
        let Self { codebooks, streams, encode_ms: e, decode_ms: d, precision, threads, .. } = &self;
        console.result(&format!(
            "mimi, {codebooks} codebooks, {streams} streams, {precision}, {threads} threads: encode {} ms a frame (best {}, p99 {}), \
             decode {} ms (best {}, p99 {})",
            e.median, e.best, e.p99, d.median, d.best, d.p99
        ))
    }
}
