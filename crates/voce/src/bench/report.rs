//! What `voce bench say` prints: a table for people, a line of JSON for scripts.

use std::time::Duration;

use serde::Serialize;
use voce_engine::Speaker;
use voce_engine::speaker::SpeakerInfo;
use voce_engine::stage::StageInfo;

use super::clone::Cloned;
use super::limits::{ByStage, KernelTime, PREFILL, Rates, Stage, print_kernels};
use super::measure::{Runs, deviation, differences, mean, quantile};
use crate::console::{Console, bytes, milliseconds, round, table};
use crate::failure::Outcome;
use crate::machine;

/// What was measured, on what.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Head {
    model: String,
    voice: Option<String>,
    precision: &'static str,
    threads: usize,
    cpu: String,
    isa: &'static str,
    device: Option<String>,
    overlapped: bool,
    load_ms: f64,
    /// What cloning its voice took, with `--clone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    clone: Option<Cloned>,
}

impl Head {
    pub(super) fn new(
        speaker: &Speaker,
        voice: Option<String>,
        load: Duration,
        clone: Option<Cloned>,
    ) -> Self {
        let info = speaker.info();
        Self {
            model: info.id.clone(),
            voice,
            precision: info.precision.name(),
            threads: info.threads,
            cpu: machine::cpu_name(),
            isa: info.isa.name(),
            device: info.device.clone(),
            overlapped: info.beside,
            load_ms: milliseconds(load),
            clone,
        }
    }

    pub(super) fn line(&self) -> String {
        let voice = self.voice.as_deref().unwrap_or("none");
        let way = if self.overlapped { "codec beside the model" } else { "codec and model in turn" };
        let place = match &self.device {
            Some(device) => device.clone(),
            None => format!("{} with {}", self.cpu, self.isa),
        };
        let cloned =
            self.clone.as_ref().map_or_else(String::new, |clone| format!("\n{}", clone.line().trim_end()));
        format!(
            "{} ({}, {} threads, {way}, voice: {voice}) on {place}; loaded in {:.0} ms{cloned}",
            self.model, self.precision, self.threads, self.load_ms
        )
    }
}

#[derive(Debug, Serialize)]
struct FrameMs {
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
    /// Mean difference between one frame and the next.
    jitter: f64,
}

impl FrameMs {
    fn new(runs: &Runs) -> Self {
        let frames = runs.frame_ms();
        let at = |share: f64| round(quantile(&frames, share), 4);
        let jitter = mean(&runs.0.iter().flat_map(|run| differences(&run.frames)).collect::<Vec<_>>());
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0), jitter: round(jitter, 4) }
    }
}

/// The result of `--frames N`.
#[derive(Debug, Serialize)]
pub(super) struct FramesReport {
    rtf: f64,
    rtf_p50: f64,
    rtf_best: f64,
    frame_ms: FrameMs,
    first_audio_ms: f64,
    peak_rss_mb: Option<f64>,
    frames: usize,
    tokens: usize,
    repeat: usize,
    audio_seconds: f64,
    wall_ms: f64,
    wall_sd_ms: f64,
    stages: ByStage<Stage>,
    rates: Rates,
    /// What kernels took, with `--cuda-events on`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<KernelTime>,
    #[serde(flatten)]
    head: Head,
}

impl FramesReport {
    pub(super) fn new(
        head: Head,
        runs: &Runs,
        stages: ByStage<Stage>,
        rates: Rates,
        peak: Option<f64>,
        kernels: Vec<KernelTime>,
    ) -> Self {
        let rtf = runs.each(|r| r.wall / r.audio.max(1e-9));
        let wall = runs.each(|r| r.wall * 1e3);
        let p50 = round(quantile(&rtf, 0.5), 5);
        let first = &runs.0[0];
        Self {
            rtf: p50,
            rtf_p50: p50,
            rtf_best: round(quantile(&rtf, 0.0), 5),
            frame_ms: FrameMs::new(runs),
            first_audio_ms: round(quantile(&runs.each(|r| r.first * 1e3), 0.5), 3),
            peak_rss_mb: peak,
            frames: first.stats.frames,
            tokens: first.stats.tokens,
            repeat: runs.0.len(),
            audio_seconds: first.audio,
            wall_ms: round(mean(&wall), 3),
            wall_sd_ms: round(deviation(&wall), 3),
            stages,
            rates,
            kernels,
            head,
        }
    }

    pub(super) fn print(&self, console: Console) -> Outcome {
        if console.json {
            return console.json(self);
        }
        let memory = self.peak_rss_mb.map_or_else(|| "?".into(), |mb| format!("{mb:.0}"));
        let text = format!(
            "{}\n{} frames from {} tokens, {} runs: {:.4}x real time (best {:.4}), {:.2} ms a frame (p99 {:.2}, \
             p99.9 {:.2}, jitter {:.2}), \
             first audio after {:.1} ms, {memory} MB\n{}",
            self.head.line(),
            self.frames,
            self.tokens,
            self.repeat,
            self.rtf_p50,
            self.rtf_best,
            self.frame_ms.p50,
            self.frame_ms.p99,
            self.frame_ms.p999,
            self.frame_ms.jitter,
            self.first_audio_ms,
            limit_table(&self.stages, &self.rates),
        );
        console.result(&text)?;
        print_kernels(console, &self.kernels)
    }
}

/// One text's figures.
#[derive(Debug, Serialize)]
pub(super) struct TextRow {
    text: &'static str,
    words: usize,
    wall_ms: f64,
    wall_sd_ms: f64,
    audio_seconds: f64,
    rtf: f64,
    frames: usize,
    frames_per_second: f64,
    first_audio_ms: f64,
    frame_ms: FrameMs,
    peak_rss_mb: Option<f64>,
    /// Shares of the time, by stage: prompts first.
    #[serde(flatten)]
    shares: ByStage<f64>,
    unended_chunks: usize,
}

impl TextRow {
    pub(super) fn new(
        text: &'static str,
        words: usize,
        info: &SpeakerInfo,
        runs: &Runs,
        peak: Option<f64>,
    ) -> Self {
        let wall = runs.each(|r| r.wall);
        let (seconds, audio) = (mean(&wall), mean(&runs.each(|r| r.audio)));
        let frames = mean(&runs.each(|r| r.stats.frames as f64));
        let share = |name: &str, took: f64| (format!("{name}_share"), round(took / seconds.max(1e-9), 4));
        let prompts = share(PREFILL, runs.stage(|s| s.prefill_span.busy));
        let stages = info.stages.iter().map(|stage| share(stage.name, runs.stage(|s| s.stage(stage.name))));
        Self {
            text,
            words,
            wall_ms: round(seconds * 1e3, 3),
            wall_sd_ms: round(deviation(&wall) * 1e3, 3),
            audio_seconds: round(audio, 4),
            rtf: round(seconds / audio.max(1e-9), 5),
            frames: frames.round() as usize,
            frames_per_second: round(frames / seconds.max(1e-9), 2),
            first_audio_ms: round(quantile(&runs.each(|r| r.first * 1e3), 0.5), 3),
            frame_ms: FrameMs::new(runs),
            peak_rss_mb: peak,
            shares: ByStage(std::iter::once(prompts).chain(stages).collect()),
            unended_chunks: runs.0.iter().map(|r| r.stats.unended).max().unwrap_or(0),
        }
    }

    fn cells(&self) -> Vec<String> {
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        let mut cells = vec![
            self.text.into(),
            self.words.to_string(),
            format!("{:.0} ± {:.0} ms", self.wall_ms, self.wall_sd_ms),
            format!("{:.2} s", self.audio_seconds),
            format!("{:.4}", self.rtf),
            format!("{:.0}", self.frames_per_second),
            format!("{:.1} ms", self.first_audio_ms),
            format!("{:.2}", self.frame_ms.p50),
            format!("{:.2}", self.frame_ms.p99),
            format!("{:.2}", self.frame_ms.p999),
            format!("{:.2}", self.frame_ms.jitter),
            self.peak_rss_mb.map_or_else(|| "?".into(), |mb| format!("{mb:.0} MB")),
        ];
        cells.extend(self.shares.0.iter().map(|(_, share)| percent(*share)));
        cells
    }
}

/// The result of the built-in texts.
#[derive(Debug, Serialize)]
pub(super) struct TextsReport {
    #[serde(flatten)]
    pub(super) head: Head,
    pub(super) lockstep: usize,
    pub(super) texts: Vec<TextRow>,
    pub(super) stages: Option<ByStage<Stage>>,
    pub(super) rates: Rates,
}

impl TextsReport {
    pub(super) fn print(&self, console: Console, info: &SpeakerInfo) -> Outcome {
        if console.json {
            return console.json(self);
        }
        let head = [
            "text",
            "words",
            "wall",
            "audio",
            "RTF",
            "frames/s",
            "first audio",
            "frame ms",
            "p99",
            "p99.9",
            "jitter",
            "peak",
            PREFILL,
        ];
        let head = head.into_iter().chain(info.stages.iter().map(|stage| stage.name));
        let head: Vec<String> = head.map(str::to_owned).collect();
        let right: Vec<usize> = (1..head.len()).collect();
        let mut rows = vec![head];
        rows.extend(self.texts.iter().map(TextRow::cells));
        let mut text = format!("{}\n\n{}\n", self.head.line(), table(&rows, &right));
        if self.texts.iter().any(|t| t.unended_chunks > 0) {
            text.push_str("No end was seen in some chunks, which ran to their frame limit: random weights never end.\n\n");
        }
        if let Some(stages) = &self.stages {
            text.push_str(&limit_table(stages, &self.rates));
        }
        let frame = 1e3 / info.frame_rate;
        let all = info.stages.iter().filter_map(StageInfo::bytes_per_second).sum::<f64>() / info.frame_rate;
        let ms = all / self.rates.read_gb_per_s / 1e6;
        text.push_str(&format!(
            "Bytes a frame: {} over {:.1} GB/s is {ms:.2} ms, {:.4}x real time.\n",
            bytes(all as u64),
            self.rates.read_gb_per_s,
            ms / frame
        ));
        console.result(&text)
    }
}

fn limit_table(stages: &ByStage<Stage>, rates: &Rates) -> String {
    let row = |name: &str, per: &str, s: &Stage| {
        let fraction = format!("{:.0}%", s.fraction * 100.0);
        vec![
            name.to_owned(),
            per.to_owned(),
            format!("{:.3} ms", s.ms),
            format!("{:.3} ms", s.limit_ms),
            fraction,
        ]
    };
    let mut rows = vec![["stage", "per", "took", "limit", "reached"].map(str::to_owned).to_vec()];
    rows.extend(stages.0.iter().map(|(name, s)| row(name, if name == PREFILL { "run" } else { "frame" }, s)));
    format!("{}Limits: {}.\n", table(&rows, &[2, 3, 4]), rates.line())
}
