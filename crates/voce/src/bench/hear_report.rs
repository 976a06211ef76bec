//! What `voce bench hear` prints.

use serde::Serialize;
use voce_engine::listener::Histogram;
use voce_engine::stage::Per;

use super::hear::{Case, Run, Subject};
use super::hear_window::Steady;
use super::limits::{ByStage, KernelTime, Rates, Stage, kernel_times, print_kernels};
use super::measure::quantile;
use crate::console::{Console, milliseconds, round};
use crate::failure::Outcome;
use crate::machine;

#[derive(Debug, Serialize)]
struct ChunkMs {
    p50: f64,
    p99: f64,
    p999: f64,
}

/// The object; scripts rely on the names.
#[derive(Debug, Serialize)]
pub(super) struct HearReport {
    streams_per_core: Option<f64>,
    /// Streams that would keep up with live audio: seconds of audio over seconds.
    live_streams: f64,
    chunk_ms: ChunkMs,
    rtf: f64,
    peak_rss_mb: Option<f64>,
    streams: usize,
    /// Of each stream, one after the other.
    utterances: usize,
    /// Model threads that share the streams: times of stages are sums over them, and a step of one may wait for the other's kernels.
    lanes: usize,
    chunk: Option<u32>,
    beam: usize,
    burst: bool,
    audio_seconds: f64,
    wall_seconds: f64,
    cpu_seconds: Option<f64>,
    first_word_ms: Option<f64>,
    words: usize,
    /// The part after the seconds of `--warm`; steps, shares, stages and kernels are then of this part.
    #[serde(skip_serializing_if = "Option::is_none")]
    steady: Option<Steady>,
    steps: usize,
    frames_per_step: f64,
    /// Where the time went: shares of model thread and front end together.
    shares: ByStage<f64>,
    /// What a step's frames took in each stage, against its limit.
    stages: ByStage<Stage>,
    rates: Rates,
    state_bytes_per_stream: usize,
    model: String,
    head: &'static str,
    precision: &'static str,
    threads: usize,
    cpu: String,
    isa: &'static str,
    device: Option<String>,
    load_ms: f64,
    /// What kernels took, with `--cuda-events on`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<KernelTime>,
}

impl HearReport {
    pub(super) fn new(subject: &Subject<'_>, case: Case, run: &Run, seconds: f64, peak: Option<f64>) -> Self {
        let (args, info) = (subject.args, subject.listener.info());
        let rest = subject.device.map(kernel_times).unwrap_or_default();
        let seen = run.seen.as_ref();
        let kernels = seen.map_or(rest, |seen| seen.kernels.clone());
        let s = seen.map_or(&run.stats, |seen| &seen.stats);
        let frame = f64::from(info.frame_ms) / 1e3;
        let of_chunk = case.chunk.or(info.default_chunk_ms).map_or(frame, |ms| f64::from(ms) / 1e3);
        let steady = seen.map(|s| s.steady(args.warm.unwrap_or(0.0), case.streams, frame, of_chunk));
        let steps = s.steps.max(1) as f64;
        let frames = s.frames as f64 / steps;
        let all = seconds * case.streams as f64;
        // The senders' part of a window is its part of all frames.
        let part = s.frames as f64 / (run.frames() as f64).max(1.0);
        let mel = run.mel.as_secs_f64() * part;
        let [front, total] = [s.front, s.total].map(|d| d.as_secs_f64());
        let share = |name: &str, part: f64| (name.to_owned(), round(part / (total + mel).max(1e-9), 4));
        // Labels have no time of their own: they are found within a stage of frames.
        let timed = info.stages.iter().filter(|stage| stage.per == Per::Frame);
        let timed: Vec<_> = timed.map(|stage| (stage, s.stage(stage.name).as_secs_f64())).collect();
        let known: f64 = timed.iter().map(|(_, took)| took).sum();
        let shares = std::iter::once(share("mel", mel + front))
            .chain(timed.iter().map(|(stage, took)| share(stage.name, *took)))
            .chain([share("rest", (total - front - known).max(0.0))]);
        let limit = |stage| subject.rates.limit(stage, 1.0, frames);
        let stages =
            timed.iter().map(|(stage, took)| (stage.name.to_owned(), Stage::new(took / steps, limit(stage))));
        let quantiles = |h: &Histogram| {
            let ms = |q| milliseconds(h.quantile(q));
            ChunkMs { p50: ms(0.5), p99: ms(0.99), p999: ms(0.999) }
        };
        Self {
            streams_per_core: run.cpu.map(|cpu| round(all / cpu.max(1e-9), 3)),
            live_streams: round(all / run.wall.max(1e-9), 1),
            chunk_ms: quantiles(&s.step_times),
            rtf: round(run.wall / all.max(1e-9), 6),
            peak_rss_mb: peak,
            streams: case.streams,
            utterances: args.utterances,
            lanes: info.lanes,
            chunk: case.chunk.or(info.default_chunk_ms),
            beam: case.beam,
            burst: args.burst,
            audio_seconds: round(all, 3),
            wall_seconds: round(run.wall, 4),
            cpu_seconds: run.cpu.map(|c| round(c, 4)),
            first_word_ms: (!run.first_words.is_empty())
                .then(|| round(quantile(&run.first_words, 0.5) * 1e3, 3)),
            words: run.words,
            steady,
            steps: s.steps,
            frames_per_step: round(frames, 2),
            shares: ByStage(shares.collect()),
            stages: ByStage(stages.collect()),
            rates: subject.rates.clone(),
            state_bytes_per_stream: info.state_bytes,
            model: info.id.clone(),
            head: info.head,
            precision: info.precision.name(),
            threads: info.threads,
            cpu: machine::cpu_name(),
            isa: info.isa.name(),
            device: info.device.clone(),
            load_ms: milliseconds(subject.load),
            kernels,
        }
    }

    /// Seconds of audio over seconds of processor time.
    pub(super) fn streams_per_core(&self) -> Option<f64> {
        self.streams_per_core
    }

    pub(super) fn print(&self, console: Console) -> Outcome {
        if console.json {
            return console.json(self);
        }
        let chunk = self.chunk.map_or_else(|| "whole utterances".into(), |ms| format!("{ms} ms chunks"));
        let memory = self.peak_rss_mb.map_or_else(|| "?".into(), |mb| format!("{mb:.0}"));
        let core = self.streams_per_core.map_or_else(|| "?".into(), |n| format!("{n:.1}"));
        let place = match &self.device {
            Some(device) => device.clone(),
            None => format!("{} with {}", self.cpu, self.isa),
        };
        let lanes = if self.lanes > 1 { format!(", {} lanes", self.lanes) } else { String::new() };
        let times =
            if self.utterances > 1 { format!(" of {} utterances", self.utterances) } else { String::new() };
        let percent = |x: f64| format!("{:.1}%", x * 100.0);
        let shares: Vec<String> =
            self.shares.0.iter().map(|(name, share)| format!("{name} {}", percent(*share))).collect();
        let stage = |(name, s): &(String, Stage)| {
            let (took, limit, reached) = (s.ms, s.limit_ms, percent(s.fraction));
            format!("{name}: {took:.3} ms a step, limit {limit:.3} ms, {reached} reached\n")
        };
        let stages: Vec<String> = self.stages.0.iter().map(stage).collect();
        let steady = self.steady.as_ref().map(Steady::line).unwrap_or_default();
        console.result(&format!(
            "{} ({}, {}, {} threads{lanes}) on {place}; loaded in {:.0} ms\n\
             {} streams{times}, {chunk}, beam {}: {core} streams a core, {:.1} live streams at this pace, {memory} MB\n\
             a step of {:.1} frames takes {:.2} ms (p99 {:.2}, p99.9 {:.2}): {}\n\
             {steady}{}limits: {}",
            self.model,
            self.head,
            self.precision,
            self.threads,
            self.load_ms,
            self.streams,
            self.beam,
            self.live_streams,
            self.frames_per_step,
            self.chunk_ms.p50,
            self.chunk_ms.p99,
            self.chunk_ms.p999,
            shares.join(", "),
            stages.concat(),
            self.rates.line(),
        ))?;
        print_kernels(console, &self.kernels)
    }
}
