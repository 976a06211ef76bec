//! `voce bench say --streams N`: many requests at once, as a server has them.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use serde::Serialize;
use voce_engine::{SpeakRequest, Speaker};
use voce_runtime::cuda::Device;

use super::args::BenchSayArgs;
use super::limits::{KernelTime, kernel_times, print_kernels};
use super::measure::quantile;
use super::report::Head;
use crate::console::{Console, round};
use crate::failure::Outcome;
use crate::{interrupt, machine};

/// How long to wait when no stream has audio.
const PAUSE: Duration = Duration::from_micros(200);

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Crowd {
    /// Seconds of audio over seconds, of the best run.
    times_real_time: f64,
    streams: usize,
    /// Seconds over which their requests came.
    within_seconds: f64,
    frames: usize,
    tokens: u32,
    /// Milliseconds that a frame of all streams took, prefill included.
    frame_ms: f64,
    first_audio_ms_p50: f64,
    first_audio_ms_p99: f64,
    audio_seconds: f64,
    wall_seconds: f64,
    /// Seconds in which the model's thread fed prompts to slots, made frames, and did neither.
    prompt_seconds: f64,
    step_seconds: f64,
    between_seconds: f64,
    /// Seconds in which the codec worked, beside the model's thread or in line with it.
    codec_seconds: f64,
    repeat: usize,
    peak_rss_mb: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<KernelTime>,
    #[serde(flatten)]
    head: Head,
}

/// One run of all streams.
#[derive(Default)]
struct Run {
    seconds: f64,
    samples: usize,
    /// Seconds to each stream's first audio.
    first: Vec<f64>,
    /// Seconds of all streams' shares in a stage.
    prompts: f64,
    steps: f64,
    codec: f64,
}

/// Lets all streams speak, each after its share of the time within which they come.
fn once(
    speaker: &Speaker,
    text: &str,
    request: &SpeakRequest,
    streams: usize,
    within: Duration,
) -> Outcome<Run> {
    let begun = Instant::now();
    let mut speaking = Vec::with_capacity(streams);
    let mut next = 0;
    let mut run = Run::default();
    let mut cx = Context::from_waker(Waker::noop());
    while next < streams || !speaking.is_empty() {
        interrupt::check()?;
        while next < streams && begun.elapsed() >= within.mul_f64(next as f64 / streams as f64) {
            speaking.push(speaker.speak(text, &request.clone().with_seed(request.seed + next as u64))?);
            next += 1;
        }
        let mut any = false;
        let mut at = 0;
        while at < speaking.len() {
            match speaking[at].poll_next(&mut cx) {
                Poll::Ready(Some(chunk)) => {
                    run.samples += chunk?.samples.len();
                    any = true;
                }
                Poll::Ready(None) => {
                    let stats = speaking.swap_remove(at).stats();
                    run.first.extend(stats.first_audio.map(|d| d.as_secs_f64()));
                    run.prompts += stats.prefill_span.busy.as_secs_f64();
                    run.steps += stats.synth_span.busy.as_secs_f64();
                    run.codec += stats.codec_span.busy.as_secs_f64();
                }
                Poll::Pending => at += 1,
            }
        }
        if !any {
            std::thread::sleep(PAUSE);
        }
    }
    run.seconds = begun.elapsed().as_secs_f64();
    Ok(run)
}

impl Crowd {
    /// One run to warm up, then those that count; the fastest is told.
    pub(super) fn measure(
        speaker: &Speaker,
        text: &str,
        request: &SpeakRequest,
        args: &BenchSayArgs,
        streams: usize,
        device: Option<&Arc<Device>>,
        head: Head,
    ) -> Outcome<Self> {
        let repeat = args.repeat.unwrap_or(3).max(1);
        let once = || once(speaker, text, request, streams, Duration::from_secs_f64(args.within));
        once()?;
        let _ = device.map(|d| d.timings());
        let mut best = once()?;
        let kernels = device.map(kernel_times).unwrap_or_default();
        for _ in 1..repeat {
            let run = once()?;
            if run.seconds < best.seconds {
                best = run;
            }
        }
        let Run { seconds: wall, first, .. } = &best;
        let audio = best.samples as f64 / speaker.info().sample_rate as f64;
        let frames = args.frames.unwrap_or(1);
        Ok(Self {
            times_real_time: round(audio / wall.max(1e-9), 1),
            streams,
            within_seconds: args.within,
            frames,
            tokens: args.tokens,
            frame_ms: round(wall * 1e3 / frames as f64, 4),
            first_audio_ms_p50: round(quantile(first, 0.5) * 1e3, 3),
            first_audio_ms_p99: round(quantile(first, 0.99) * 1e3, 3),
            audio_seconds: round(audio, 3),
            wall_seconds: round(*wall, 4),
            prompt_seconds: round(best.prompts, 4),
            step_seconds: round(best.steps, 4),
            between_seconds: round(wall - best.prompts - best.steps, 4),
            codec_seconds: round(best.codec, 4),
            repeat,
            peak_rss_mb: machine::peak_rss_mb(),
            kernels,
            head,
        })
    }

    pub(super) fn print(&self, console: Console) -> Outcome {
        if console.json {
            return console.json(self);
        }
        console.result(&format!(
            "{}\n{} streams of {} frames: {:.1} times real time, {:.2} ms a frame of all, first audio {:.1} ms (p99 {:.1})\nof {:.3} s: prompts {:.3}, frames {:.3}, neither {:.3}; codec {:.3}",
            self.head.line(),
            self.streams,
            self.frames,
            self.times_real_time,
            self.frame_ms,
            self.first_audio_ms_p50,
            self.first_audio_ms_p99,
            self.wall_seconds,
            self.prompt_seconds,
            self.step_seconds,
            self.between_seconds,
            self.codec_seconds,
        ))?;
        print_kernels(console, &self.kernels)
    }
}
