//! What was heard, and how it is written: the same bytes for the same words, whoever heard them and when.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use voce_engine::listener::subtitles::{cues, srt, vtt};
use voce_engine::listener::{Segment, Word};

use crate::unit::Unit;

/// How the text of a recording is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TextFormat {
    /// Plain text.
    #[default]
    Txt,
    /// One JSON object.
    Json,
    /// SubRip subtitles.
    Srt,
    /// WebVTT subtitles.
    Vtt,
    /// A word a line: start, end, confidence, word.
    Words,
    /// A word a line, as NIST's tools read it.
    Ctm,
    /// An utterance a line, as NIST's tools read it.
    Rttm,
    /// The line of the manifest with `pred_text`.
    Nemo,
}

impl TextFormat {
    /// What the names of such files end in.
    pub fn extension(self) -> &'static str {
        match self {
            TextFormat::Txt => "txt",
            TextFormat::Json => "json",
            TextFormat::Srt => "srt",
            TextFormat::Vtt => "vtt",
            TextFormat::Words => "tsv",
            TextFormat::Ctm => "ctm",
            TextFormat::Rttm => "rttm",
            TextFormat::Nemo => "jsonl",
        }
    }
}

/// A word.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeardWord {
    /// As the model spells it.
    pub word: String,
    /// Start, in seconds of the recording.
    pub start: f64,
    /// End.
    pub end: f64,
    /// How sure the model is, 0 to 1.
    pub confidence: f64,
}

/// An utterance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeardSegment {
    /// Its text.
    pub text: String,
    /// Start, in seconds of the recording.
    pub start: f64,
    /// End.
    pub end: f64,
    /// Its words.
    pub words: Vec<HeardWord>,
    /// Other readings where they were asked for, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nbest: Vec<String>,
}

impl HeardSegment {
    /// An utterance of a recording whose first `offset` seconds were left out.
    pub fn new(segment: Segment, offset: f64) -> Self {
        let word = |w: Word| HeardWord {
            word: w.text,
            start: round(w.start + offset),
            end: round(w.end + offset),
            confidence: round(f64::from(w.confidence)),
        };
        Self {
            text: segment.text,
            start: round(segment.start + offset),
            end: round(segment.end + offset),
            words: segment.words.into_iter().map(word).collect(),
            nbest: segment.nbest.into_iter().map(|n| n.text).collect(),
        }
    }
}

/// What was heard of a recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heard {
    /// The utterances.
    pub segments: Vec<HeardSegment>,
    /// Seconds of audio.
    pub seconds: f64,
}

impl Heard {
    /// All of the text, a space between utterances.
    pub fn text(&self) -> String {
        let texts: Vec<&str> =
            self.segments.iter().map(|s| s.text.as_str()).filter(|t| !t.is_empty()).collect();
        texts.join(" ")
    }

    fn words(&self) -> impl Iterator<Item = &HeardWord> {
        self.segments.iter().flat_map(|s| &s.words)
    }

    /// As the engine's subtitles want them.
    fn engine_words(&self) -> Vec<Word> {
        let word = |w: &HeardWord| Word {
            text: w.word.clone(),
            start: w.start,
            end: w.end,
            confidence: w.confidence as f32,
        };
        self.words().map(word).collect()
    }

    /// As a JSON object, of the unit with this name.
    pub fn json(&self, unit: &Unit, model: &str) -> Value {
        let words: Vec<&HeardWord> = self.words().collect();
        let segments: Vec<Value> = self
            .segments
            .iter()
            .map(|s| {
                let mut value =
                    json!({"text": s.text, "start": s.start, "end": s.end, "words": s.words.len()});
                if !s.nbest.is_empty() {
                    value["nbest"] = json!(s.nbest);
                }
                value
            })
            .collect();
        json!({
            "id": unit.id,
            "text": self.text(),
            "segments": segments,
            "words": words,
            "audio_seconds": round(self.seconds),
            "model": model,
        })
    }
}

/// What was heard, as a file of a format.
pub fn render(heard: &Heard, unit: &Unit, format: TextFormat, model: &str) -> String {
    let stem = unit.stem();
    match format {
        TextFormat::Txt => {
            let text = heard.text();
            if text.is_empty() { text } else { text + "\n" }
        }
        TextFormat::Json => heard.json(unit, model).to_string() + "\n",
        TextFormat::Srt => srt(&cues(&heard.engine_words())),
        TextFormat::Vtt => vtt(&cues(&heard.engine_words())),
        TextFormat::Words => heard
            .words()
            .map(|w| format!("{:.2}\t{:.2}\t{:.3}\t{}\n", w.start, w.end, w.confidence, w.word))
            .collect(),
        TextFormat::Ctm => heard
            .words()
            .map(|w| {
                format!("{stem} 1 {:.2} {:.2} {} {:.3}\n", w.start, w.end - w.start, w.word, w.confidence)
            })
            .collect(),
        TextFormat::Rttm => heard
            .segments
            .iter()
            .filter(|s| !s.text.is_empty())
            .map(|s| {
                let length = s.end - s.start;
                format!("SPEAKER {stem} 1 {:.3} {length:.3} <NA> <NA> speech <NA> <NA>\n", s.start)
            })
            .collect(),
        TextFormat::Nemo => {
            let mut fields = unit.fields.clone();
            if let (true, Some(path)) = (fields.is_empty(), unit.path()) {
                fields.insert("audio_filepath".into(), path.to_string_lossy().into());
            }
            fields.entry("duration").or_insert_with(|| json!(round(heard.seconds)));
            fields.insert("pred_text".into(), heard.text().into());
            Value::Object(fields).to_string() + "\n"
        }
    }
}

/// Four decimals are more than any model knows.
fn round(x: f64) -> f64 {
    (x * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard() -> Heard {
        let word = |text: &str, start, end| Word { text: text.into(), start, end, confidence: 0.5 };
        let segment = Segment {
            text: "Hello there.".into(),
            words: vec![word("Hello", 0.5, 0.9), word("there.", 1.0, 1.5)],
            start: 0.5,
            end: 1.5,
            ..Default::default()
        };
        let segments = vec![HeardSegment::new(segment, 10.0), HeardSegment::default()];
        Heard { segments, seconds: 12.0 }
    }

    #[test]
    fn every_format() {
        let unit = Unit::file("a/talk.wav");
        let write = |format| render(&heard(), &unit, format, "m");
        assert_eq!(write(TextFormat::Txt), "Hello there.\n");
        assert_eq!(write(TextFormat::Ctm), "talk 1 10.50 0.40 Hello 0.500\ntalk 1 11.00 0.50 there. 0.500\n");
        assert_eq!(write(TextFormat::Rttm), "SPEAKER talk 1 10.500 1.000 <NA> <NA> speech <NA> <NA>\n");
        assert_eq!(write(TextFormat::Words), "10.50\t10.90\t0.500\tHello\n11.00\t11.50\t0.500\tthere.\n");
        assert!(write(TextFormat::Srt).contains("00:00:10,500 --> "));
        assert!(write(TextFormat::Vtt).starts_with("WEBVTT"));
        let json: Value = serde_json::from_str(&write(TextFormat::Json)).unwrap();
        assert_eq!((&json["text"], &json["words"][1]["start"]), (&json!("Hello there."), &json!(11.0)));
        let nemo: Value = serde_json::from_str(&write(TextFormat::Nemo)).unwrap();
        assert_eq!(
            (&nemo["audio_filepath"], &nemo["pred_text"]),
            (&json!("a/talk.wav"), &json!("Hello there."))
        );
        let silence = render(&Heard::default(), &unit, TextFormat::Txt, "m");
        assert_eq!(silence, "");
    }
}
