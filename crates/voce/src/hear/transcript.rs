//! What was heard of one file, and how it is written.

use serde::Serialize;
use voce_engine::listener::subtitles::{cues, srt, vtt};
use voce_engine::listener::{Alternative, ListenStats, ListenerInfo, Segment, Word};

use super::args::{Format, ShownArgs};
use crate::console::{round, to_json};
use crate::failure::Outcome;
use crate::machine;

/// A file's utterances.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    pub(super) file: String,
    pub(super) segments: Vec<Segment>,
    /// Every token that was drawn, of models that draw one in every step.
    pub(super) drawn: Vec<u32>,
    pub(super) stats: ListenStats,
    /// Seconds from the first sample to the last word.
    pub(super) wall: f64,
}

#[derive(Serialize)]
struct WordJson<'a> {
    word: &'a str,
    start: f64,
    end: f64,
    confidence: f64,
}

#[derive(Serialize)]
struct SegmentJson<'a> {
    text: &'a str,
    start: f64,
    end: f64,
    words: usize,
}

#[derive(Serialize)]
struct ReadingJson {
    text: String,
    tokens: Vec<u32>,
    score: f64,
}

/// The object that `--format json` prints; scripts rely on the names.
#[derive(Serialize)]
struct TranscriptJson<'a> {
    text: String,
    words: Vec<WordJson<'a>>,
    tokens: Vec<u32>,
    frames: Vec<usize>,
    durations: Vec<usize>,
    segments: Vec<SegmentJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nbest: Option<Vec<ReadingJson>>,
    audio_seconds: f64,
    rtf: f64,
    wall_ms: f64,
    first_word_ms: Option<f64>,
    peak_rss_mb: Option<f64>,
    file: &'a str,
    model: &'a str,
    head: &'static str,
    frame_ms: u32,
    chunk_ms: Option<u32>,
    precision: &'static str,
    threads: usize,
    isa: &'static str,
}

impl Transcript {
    /// All of its text.
    pub(super) fn text(&self) -> String {
        let texts: Vec<&str> =
            self.segments.iter().map(|s| s.text.as_str()).filter(|t| !t.is_empty()).collect();
        texts.join(" ")
    }

    fn words(&self) -> impl Iterator<Item = &Word> {
        self.segments.iter().flat_map(|s| &s.words)
    }

    /// As it goes into a file or onto standard output.
    pub(super) fn render(
        &self,
        format: Format,
        shown: ShownArgs,
        model: &ListenerInfo,
        how: &How,
    ) -> Outcome<String> {
        let all = || self.words().cloned().collect::<Vec<_>>();
        Ok(match format {
            Format::Txt => self.plain(shown),
            Format::Json => to_json(&self.json(model, how))? + "\n",
            Format::Srt => srt(&cues(&all())),
            Format::Vtt => vtt(&cues(&all())),
            Format::Words => self.words().map(word_line).collect(),
        })
    }

    fn plain(&self, shown: ShownArgs) -> String {
        if !shown.timestamps && !shown.confidence {
            let text = self.text();
            return if text.is_empty() { text } else { text + "\n" };
        }
        self.segments.iter().map(|s| line(s, shown) + "\n").collect()
    }

    fn json<'a>(&'a self, model: &'a ListenerInfo, how: &How) -> TranscriptJson<'a> {
        let word = |w: &'a Word| WordJson {
            word: &w.text,
            start: w.start,
            end: w.end,
            confidence: round(f64::from(w.confidence), 4),
        };
        let segment =
            |s: &'a Segment| SegmentJson { text: &s.text, start: s.start, end: s.end, words: s.words.len() };
        // Models that draw a token in every step are told by all of them.
        let (tokens, frames, durations) = match &self.drawn[..] {
            [] => (
                self.segments.iter().flat_map(|s| &s.tokens).copied().collect(),
                self.segments.iter().flat_map(|s| &s.frames).copied().collect(),
                self.segments.iter().flat_map(|s| &s.durations).copied().collect(),
            ),
            drawn => (drawn.to_vec(), (0..drawn.len()).collect(), Vec::new()),
        };
        TranscriptJson {
            text: self.text(),
            words: self.words().map(word).collect(),
            tokens,
            frames,
            durations,
            segments: self.segments.iter().map(segment).collect(),
            nbest: (how.nbest > 0).then(|| self.readings(how.nbest)),
            audio_seconds: round(self.stats.audio, 4),
            rtf: round(self.wall / self.stats.audio.max(1e-9), 5),
            wall_ms: round(self.wall * 1e3, 3),
            first_word_ms: self.stats.first_word.map(|d| round(d.as_secs_f64() * 1e3, 3)),
            peak_rss_mb: machine::peak_rss_mb(),
            file: &self.file,
            model: &model.id,
            head: model.head,
            frame_ms: model.frame_ms,
            chunk_ms: how.chunk_ms,
            precision: model.precision.name(),
            threads: model.threads,
            isa: model.isa.name(),
        }
    }

    /// The readings of the whole: the k-th of each utterance after the other, the best where there is no k-th.
    fn readings(&self, count: usize) -> Vec<ReadingJson> {
        let most = self.segments.iter().map(|s| s.nbest.len()).max().unwrap_or(0).min(count);
        let nth = |k: usize| {
            let mut reading = ReadingJson { text: String::new(), tokens: Vec::new(), score: 0.0 };
            for s in &self.segments {
                let best = Alternative { text: s.text.clone(), tokens: s.tokens.clone(), score: 0.0 };
                let a = s.nbest.get(k).or(s.nbest.first()).unwrap_or(&best);
                if !reading.text.is_empty() && !a.text.is_empty() {
                    reading.text.push(' ');
                }
                reading.text.push_str(&a.text);
                reading.tokens.extend(&a.tokens);
                reading.score += f64::from(a.score);
            }
            reading
        };
        (0..most).map(nth).collect()
    }
}

/// A word as a line.
pub(super) fn word_line(w: &Word) -> String {
    format!("{:.2}\t{:.2}\t{:.3}\t{}\n", w.start, w.end, w.confidence, w.text)
}

/// How it was heard.
pub(super) struct How {
    pub(super) nbest: usize,
    pub(super) chunk_ms: Option<u32>,
}

/// An utterance as a line.
pub(super) fn line(s: &Segment, shown: ShownArgs) -> String {
    let mut line = String::new();
    if shown.timestamps {
        line.push_str(&format!("[{} - {}] ", clock(s.start), clock(s.end)));
    }
    if shown.confidence {
        let sum: f32 = s.words.iter().map(|w| w.confidence).sum();
        line.push_str(&format!("({:.2}) ", sum / s.words.len().max(1) as f32));
    }
    line + &s.text
}

fn clock(seconds: f64) -> String {
    let hundredths = (seconds * 100.0).round() as u64;
    let (h, m, s) = (hundredths / 360_000, hundredths / 6_000 % 60, hundredths / 100 % 60);
    format!("{h:02}:{m:02}:{s:02}.{:02}", hundredths % 100)
}
