//! What travels: a job as it is published, and its state as everybody can read it.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::phase::Phase;
use crate::unit::{Settings, Unit};

/// The version of jobs that this build makes and takes.
pub const VERSION: u32 = 1;
/// Letters of a job's id.
const LETTERS: usize = 16;

/// A job as it is published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// See [`VERSION`].
    pub version: u32,
    /// A hash of what is asked for: the same job has the same id, whoever submits it.
    pub id: String,
    /// Jobs that were submitted together.
    pub batch: String,
    /// The model that does it, by the reference that its workers were started with.
    pub model: String,
    /// The only revision that may do it; any where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// How it is done.
    pub settings: Settings,
    /// The recording or the text.
    pub unit: Unit,
    /// The object of the inputs' bucket that holds the recording; its path counts where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

impl Job {
    /// A job of this version.
    pub fn new(batch: &str, model: &str, settings: &Settings, unit: Unit) -> Self {
        let mut hash = Sha256::new();
        for text in [model, &json(settings), &unit.id, &json(&unit.input)] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        Self {
            version: VERSION,
            id: hex[..LETTERS].to_owned(),
            batch: batch.to_owned(),
            model: model.to_owned(),
            revision: None,
            settings: settings.clone(),
            unit,
            object: None,
        }
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A job's state, under its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Where it is.
    pub phase: Phase,
    /// The job, so that it can be tried again.
    pub job: Job,
    /// How often a worker took it.
    #[serde(default)]
    pub tries: u64,
    /// How often it was asked for again.
    #[serde(default)]
    pub retries: u64,
    /// The worker that has it or had it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The name of its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Seconds of audio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_seconds: Option<f64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Seconds of audio heard so far, as of the last sign of life.
    #[serde(default)]
    pub heard: f64,
    /// When the job was handed in, in seconds since 1970.
    #[serde(default)]
    pub created: u64,
    /// When this was written, in seconds since 1970.
    pub updated: u64,
}

impl State {
    /// A job that waits.
    pub fn waiting(job: Job) -> Self {
        Self {
            phase: Phase::Waiting,
            job,
            tries: 0,
            retries: 0,
            worker: None,
            output: None,
            audio_seconds: None,
            error: None,
            heard: 0.0,
            created: now(),
            updated: now(),
        }
    }

    /// The same job in another phase, as of now.
    pub fn turned(&self, phase: Phase) -> Self {
        Self { phase, updated: now(), ..self.clone() }
    }
}

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HearSettings;

    #[test]
    fn the_same_job_has_one_id_and_survives_json() {
        let settings = Settings::Hear(HearSettings::default());
        let job = |batch: &str, file: &str| Job::new(batch, "nano-ear", &settings, Unit::file(file));
        assert_eq!(job("a", "x.wav").id, job("b", "x.wav").id);
        assert_ne!(job("a", "x.wav").id, job("a", "y.wav").id);
        let state = State::waiting(job("a", "x.wav"));
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
        // What waits is small: a job and its state.
        assert!(text.len() < 1024, "{}", text.len());
    }
}
