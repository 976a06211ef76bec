//! A unit of work: one recording to hear or one text to speak, and the settings it is done with.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use voce_engine::SpeakRequest;
use voce_engine::listener::{Endpointing, Hotword, ListenRequest};

use crate::formats::TextFormat;

/// The kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Audio becomes text.
    Hear,
    /// Text becomes audio.
    Say,
}

/// What a unit starts from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Input {
    /// A recording, or a part of it.
    Audio {
        /// The file.
        path: PathBuf,
        /// Seconds at its start that are left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offset: Option<f64>,
        /// Seconds that are heard from there on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duration: Option<f64>,
    },
    /// A text.
    Text {
        /// What is spoken.
        text: String,
        /// By whom; the settings' voice where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        voice: Option<String>,
        /// Seed of the noise; made of the settings' seed and the id where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seed: Option<u64>,
    },
}

/// One piece of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    /// Its name, which no other unit of a list has.
    pub id: String,
    /// What it starts from.
    pub input: Input,
    /// Seconds of audio that the list promises.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// All fields of its line, for formats that hand them on.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
}

impl Unit {
    /// A recording, which is called by its path.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let id = path.to_string_lossy().into_owned();
        let input = Input::Audio { path, offset: None, duration: None };
        Self { id, input, seconds: None, fields: Map::new() }
    }

    /// The readable part of its output's name.
    pub fn stem(&self) -> String {
        let name = match &self.input {
            Input::Audio { path, .. } if self.id == path.to_string_lossy() => {
                path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
            }
            _ => {
                let name = Path::new(&self.id).file_name().unwrap_or_default();
                name.to_string_lossy().into_owned()
            }
        };
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
        let stem: String = name.chars().take(MAX_STEM).map(plain).collect();
        if stem.is_empty() { "unit".into() } else { stem }
    }

    /// The recording's path, of units that are heard.
    pub fn path(&self) -> Option<&Path> {
        match &self.input {
            Input::Audio { path, .. } => Some(path),
            Input::Text { .. } => None,
        }
    }
}

/// Letters of an id that an output's name repeats.
const MAX_STEM: usize = 64;

/// How units are done: all that a result depends on besides the unit and the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "lowercase")]
pub enum Settings {
    /// Audio becomes text.
    Hear(HearSettings),
    /// Text becomes audio.
    Say(SaySettings),
}

impl Settings {
    /// The kind of work that these are for.
    pub fn task(&self) -> Task {
        match self {
            Settings::Hear(_) => Task::Hear,
            Settings::Say(_) => Task::Say,
        }
    }

    /// What the names of outputs end in.
    pub fn extension(&self) -> &str {
        match self {
            Settings::Hear(hear) => hear.format.extension(),
            Settings::Say(say) => say.extension(),
        }
    }
}

/// How recordings are heard; the names are those of the command line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HearSettings {
    /// How the text is written.
    pub format: TextFormat,
    /// Milliseconds a chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<u32>,
    /// Hypotheses side by side; 0 and 1 are greedy.
    pub beam: usize,
    /// Readings to tell.
    pub nbest: usize,
    /// Phrases to prefer, and their weights.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hotwords: Vec<(String, f32)>,
    /// Language, one of those that the model hears.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Milliseconds of silence that end an utterance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint_ms: Option<u32>,
    /// How freely tokens are drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Seed of the draws.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl HearSettings {
    /// What they ask of the engine.
    pub fn request(&self) -> ListenRequest {
        let hotword = |(phrase, weight): &(String, f32)| Hotword { phrase: phrase.clone(), weight: *weight };
        ListenRequest::default()
            .with_chunk_ms(self.chunk)
            .with_beam(self.beam.max(1))
            .with_nbest(self.nbest)
            .with_hotwords(self.hotwords.iter().map(hotword).collect())
            .with_language(self.language.clone())
            .with_temperature(self.temperature)
            .with_seed(self.seed)
            .with_endpoint(Endpointing::default().with_silence_ms(self.endpoint_ms))
    }
}

/// How texts are spoken; the names are those of the command line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SaySettings {
    /// Audio format by name; WAV where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The voice; the model's own where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voice: Option<String>,
    /// Language, for models that are told one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// How to speak, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruct: Option<String>,
    /// Sampling temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Makes the units' own seeds, together with their ids.
    pub seed: u64,
    /// Leave numbers, dates and abbreviations as they are.
    pub no_normalize: bool,
}

impl SaySettings {
    fn extension(&self) -> &str {
        match self.format.as_deref() {
            None => "wav",
            Some("wav-f32") => "wav",
            Some(name) => name,
        }
    }

    /// What they ask of the engine; voice and seed are the unit's.
    pub fn request(&self) -> SpeakRequest {
        SpeakRequest::default()
            .with_language(self.language.clone())
            .with_instruct(self.instruct.clone())
            .with_temperature(self.temperature)
            .with_normalize(!self.no_normalize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stems_are_file_names_anywhere() {
        assert_eq!(Unit::file("/a/b/talk one.mp3").stem(), "talk_one");
        let unit = Unit { id: "../../etc/passwd".into(), ..Unit::file("x.wav") };
        assert_eq!(unit.stem(), "passwd");
        let unit = Unit { id: "ü".repeat(100), ..Unit::file("x.wav") };
        assert_eq!(unit.stem(), "_".repeat(MAX_STEM));
        assert_eq!(Unit { id: "/".into(), ..Unit::file("x.wav") }.stem(), "unit");
    }

    #[test]
    fn settings_go_through_json_and_refuse_what_they_do_not_know() {
        let hear = HearSettings { beam: 4, language: Some("de".into()), ..Default::default() };
        let text = serde_json::to_string(&Settings::Hear(hear.clone())).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), Settings::Hear(hear));
        assert!(serde_json::from_str::<HearSettings>(r#"{"beem": 4}"#).is_err());
    }
}
