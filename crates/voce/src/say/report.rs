//! What `voce say` tells about its work: a progress line, a summary, a JSON object.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Serialize;
use voce_engine::speaker::SpeakStats;
use voce_engine::{Speaker, SpokenWord};

use crate::console::{self, Console, milliseconds, round, to_json};
use crate::failure::Outcome;
use crate::machine;

/// The line that a terminal shows while speaking.
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new(console: Console) -> Self {
        Self { bar: console.progress() }
    }

    pub(super) fn say(&self, text: &str) {
        self.bar.set_message(text.to_owned());
    }

    /// Seconds of audio made in so much time, the first of it after `first`.
    pub(super) fn audio(&mut self, seconds: f64, took: Duration, first: Duration) {
        if !self.bar.is_hidden() {
            let rtf = took.as_secs_f64() / seconds.max(1e-9);
            let first = milliseconds(first);
            self.bar.set_message(format!(
                "{seconds:.1} s of audio, {rtf:.3}x real time, first after {first:.0} ms"
            ));
        }
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// What a report needs to know besides what the engine counted.
pub(super) struct Circumstances {
    /// Samples of silence added at the end.
    pub(super) silence: usize,
    pub(super) seed: u64,
    pub(super) voice: Option<String>,
    /// How long the model took to load.
    pub(super) load: Duration,
    pub(super) output: Option<String>,
    /// Words and their times, where they were asked for.
    pub(super) words: Option<Vec<SpokenWord>>,
}

/// The facts of one `voce say`; scripts rely on the names.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    audio_seconds: f64,
    frames: usize,
    rtf: f64,
    first_audio_ms: Option<f64>,
    peak_rss_mb: Option<f64>,
    sample_rate: usize,
    samples: usize,
    seed: u64,
    model: String,
    voice: Option<String>,
    precision: &'static str,
    threads: usize,
    cpu: String,
    isa: &'static str,
    chunks: usize,
    tokens: usize,
    unended_chunks: usize,
    respoken_chunks: usize,
    load_ms: f64,
    wall_ms: f64,
    prefill_ms: f64,
    /// Milliseconds in each stage, by its name with `_ms` after it.
    #[serde(flatten)]
    stages: BTreeMap<String, f64>,
    output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<Vec<Word>>,
}

/// A word and when it is spoken, in seconds of audio.
#[derive(Debug, Serialize)]
struct Word {
    text: String,
    start: f64,
    end: f64,
}

impl Report {
    pub(super) fn new(speaker: &Speaker, stats: &SpeakStats, circumstances: Circumstances) -> Self {
        let Circumstances { silence, seed, voice, load, output, words } = circumstances;
        let word = |w: SpokenWord| Word { text: w.text, start: round(w.start, 3), end: round(w.end, 3) };
        let info = speaker.info();
        let seconds = |samples: usize| samples as f64 / info.sample_rate as f64;
        let samples = stats.samples + silence;
        Self {
            audio_seconds: seconds(samples),
            frames: stats.frames,
            rtf: round(stats.total.as_secs_f64() / seconds(stats.samples).max(1e-9), 5),
            first_audio_ms: stats.first_audio.map(milliseconds),
            peak_rss_mb: machine::peak_rss_mb(),
            sample_rate: info.sample_rate,
            samples,
            seed,
            model: info.id.clone(),
            voice,
            precision: info.precision.name(),
            threads: info.threads,
            cpu: machine::cpu_name(),
            isa: info.isa.name(),
            chunks: stats.passages,
            tokens: stats.tokens,
            unended_chunks: stats.unended,
            respoken_chunks: stats.respoken,
            load_ms: milliseconds(load),
            wall_ms: milliseconds(stats.total),
            prefill_ms: milliseconds(stats.prefill),
            stages: stats.stages.iter().map(|(n, time)| (format!("{n}_ms"), milliseconds(*time))).collect(),
            output,
            words: words.map(|words| words.into_iter().map(word).collect()),
        }
    }

    /// Prints the object or the summary; the object goes to standard error where audio has the output.
    pub(super) fn print(&self, console: Console, stdout_taken: bool) -> Outcome {
        if console.json {
            if !stdout_taken {
                return console.json(self);
            }
            console::note(&to_json(self)?);
            return Ok(());
        }
        for word in self.words.iter().flatten() {
            let line = format!("{:8.2} {:8.2}  {}", word.start, word.end, word.text);
            if stdout_taken { console::note(&line) } else { console.result(&line)? }
        }
        console.note(&self.summary());
        Ok(())
    }

    fn summary(&self) -> String {
        let first =
            self.first_audio_ms.map_or_else(String::new, |ms| format!(", first audio after {ms:.0} ms"));
        let memory = self.peak_rss_mb.map_or_else(String::new, |mb| format!(", {mb:.0} MB"));
        let to = self.output.as_deref().map_or_else(String::new, |o| format!("{o}: "));
        format!(
            "{to}{:.2} s of audio in {:.2} s ({:.3}x real time){first}{memory}, {} on {} threads",
            self.audio_seconds,
            self.wall_ms / 1e3,
            self.rtf,
            self.precision,
            self.threads,
        )
    }
}
