//! What `voce bench hear` prints.

use std::sync::Arc;

use serde::Serialize;
use voce_engine::listener::{Histogram, Listener};
use voce_nn::Formats;
use voce_runtime::Exec;
use voce_runtime::cuda::Device;

use super::hear::{Case, Run, Subject};
use super::limits::{KernelTime, Stage, device_rates, kernel_times, print_kernels, product_rate};
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

/// Where the time went: shares of model thread and front end together.
#[derive(Debug, Serialize)]
struct Shares {
    mel: f64,
    encoder: f64,
    search: f64,
    rest: f64,
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
    steps: usize,
    frames_per_step: f64,
    shares: Shares,
    /// The encoder's step against its limit.
    encoder: Stage,
    read_gb_per_s: f64,
    linear_gmac_per_s: f64,
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

/// What the machine reaches: multiply-adds and bytes a second.
#[derive(Clone, Copy)]
pub(super) struct Rates {
    linear: f64,
    read: f64,
}

/// Measures the machine with the listener's format and threads, or its device.
pub(super) fn hear_rates(listener: &Listener, device: Option<&Arc<Device>>) -> Outcome<Rates> {
    let info = listener.info();
    if let Some(device) = device {
        let (linear, read) = device_rates(device, Formats::on_device(info.precision).backbone)?;
        return Ok(Rates { linear, read });
    }
    let formats = Formats::new(info.precision, info.isa);
    let mut exec = Exec::with_isa(info.threads, info.isa)?;
    let linear = product_rate(&mut exec, formats.backbone);
    Ok(Rates { linear, read: machine::read_bandwidth(info.encoder_bytes, info.threads) })
}

impl HearReport {
    pub(super) fn new(subject: &Subject<'_>, case: Case, run: &Run, seconds: f64, peak: Option<f64>) -> Self {
        let (args, info) = (subject.args, subject.listener.info());
        let Rates { linear, read } = subject.rates;
        let kernels = subject.device.map(kernel_times).unwrap_or_default();
        let s = &run.stats;
        let steps = s.steps.max(1) as f64;
        let frames = s.frames as f64 / steps;
        let limit = (info.encoder_bytes as f64 / read).max(info.encoder_macs as f64 * frames / linear);
        let all = seconds * case.streams as f64;
        let [mel, front, encoder, search, total] =
            [run.mel, s.front, s.encoder, s.search, s.total].map(|d| d.as_secs_f64());
        let share = |part: f64| round(part / (total + mel).max(1e-9), 4);
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
            steps: s.steps,
            frames_per_step: round(frames, 2),
            shares: Shares {
                mel: share(mel + front),
                encoder: share(encoder),
                search: share(search),
                rest: share((total - front - encoder - search).max(0.0)),
            },
            encoder: Stage::new(encoder / steps, limit),
            read_gb_per_s: round(read / 1e9, 2),
            linear_gmac_per_s: round(linear / 1e9, 1),
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
        console.result(&format!(
            "{} ({}, {}, {} threads{lanes}) on {place}; loaded in {:.0} ms\n\
             {} streams{times}, {chunk}, beam {}: {core} streams a core, {:.1} live streams at this pace, {memory} MB\n\
             a step of {:.1} frames takes {:.2} ms (p99 {:.2}, p99.9 {:.2}): front end {}, encoder {}, search {}, rest {}\n\
             encoder: {:.3} ms a step, limit {:.3} ms, {} reached ({:.1} GB/s read, {:.0} G multiply-adds a second)",
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
            percent(self.shares.mel),
            percent(self.shares.encoder),
            percent(self.shares.search),
            percent(self.shares.rest),
            self.encoder.ms,
            self.encoder.limit_ms,
            percent(self.encoder.fraction),
            self.read_gb_per_s,
            self.linear_gmac_per_s,
        ))?;
        print_kernels(console, &self.kernels)
    }
}
