//! A model that does units of work: a recogniser or a voice, and which revision of it.

use serde_json::Value;
use voce_engine::listener::Listener;
use voce_engine::{EngineError, Speaker};

use crate::error::JobError;
use crate::folder::PartFile;
use crate::formats::{Heard, render};
use crate::hear::{Watch, hear, open_audio};
use crate::say::{Said, say};
use crate::slots::Slots;
use crate::unit::{Settings, Task, Unit};

/// An open model.
pub enum Model {
    /// It hears.
    Ear(Box<Listener>),
    /// It speaks.
    Voice(Box<Speaker>),
}

/// What came of a unit.
#[derive(Clone, Debug, PartialEq)]
pub enum Made {
    /// What was heard; it is written by whoever asked.
    Heard(Heard),
    /// What was spoken; it is where it belongs.
    Said(Said),
}

impl Made {
    /// Seconds of audio.
    pub fn seconds(&self) -> f64 {
        match self {
            Made::Heard(heard) => heard.seconds,
            Made::Said(said) => said.seconds,
        }
    }

    /// What was heard, as a file of the settings' format; none of speech, which is a file already.
    pub fn render(&self, unit: &Unit, settings: &Settings, model: &str) -> Option<String> {
        match (self, settings) {
            (Made::Heard(heard), Settings::Hear(hear)) => Some(render(heard, unit, hear.format, model)),
            _ => None,
        }
    }

    /// As a line of JSON for those who read results from a pipe.
    pub fn json(&self, unit: &Unit, model: &str) -> Value {
        match self {
            Made::Heard(heard) => heard.json(unit, model),
            Made::Said(said) => {
                serde_json::json!({"id": unit.id, "audio_seconds": said.seconds, "model": model})
            }
        }
    }
}

impl Model {
    /// The reference it was opened by.
    pub fn id(&self) -> &str {
        match self {
            Model::Ear(listener) => &listener.info().id,
            Model::Voice(speaker) => &speaker.info().id,
        }
    }

    /// What it does.
    pub fn task(&self) -> Task {
        match self {
            Model::Ear(_) => Task::Hear,
            Model::Voice(_) => Task::Say,
        }
    }

    /// Streams that run side by side.
    pub fn slots(&self) -> usize {
        match self {
            Model::Ear(listener) => listener.info().slots,
            Model::Voice(speaker) => speaker.info().slots,
        }
    }

    /// Samples a second of the audio that it hears or makes.
    pub fn sample_rate(&self) -> usize {
        match self {
            Model::Ear(listener) => listener.info().sample_rate,
            Model::Voice(speaker) => speaker.info().sample_rate,
        }
    }

    /// What results depend on besides the files of the model: the precision of its weights.
    pub fn precision(&self) -> &'static str {
        match self {
            Model::Ear(listener) => listener.info().precision.name(),
            Model::Voice(speaker) => speaker.info().precision.name(),
        }
    }

    /// Whether its threads live.
    pub fn is_alive(&self) -> bool {
        match self {
            Model::Ear(listener) => listener.pulse().is_alive(),
            Model::Voice(speaker) => speaker.pulse().is_alive(),
        }
    }

    /// Does a unit. The input is opened before a slot is waited for, and the slot is free again before the result is
    /// kept. Speech goes to what `open` gives.
    pub fn run(
        &self,
        unit: &Unit,
        settings: &Settings,
        slots: &Slots,
        watch: &dyn Watch,
        open: impl FnOnce() -> Result<PartFile, JobError>,
    ) -> Result<Made, JobError> {
        let slot = || slots.take(|| watch.stop()).ok_or(JobError::Stopped);
        match (self, settings) {
            (Model::Ear(listener), Settings::Hear(how)) => {
                let audio = open_audio(unit, listener.info().sample_rate as u32)?;
                let _slot = slot()?;
                hear(listener, unit, &how.request(), audio, watch).map(Made::Heard)
            }
            (Model::Voice(speaker), Settings::Say(how)) => {
                // Requests wait in the engine, in order.
                say(speaker, unit, how, watch, open).map(Made::Said)
            }
            (Model::Ear(_), Settings::Say(_)) => Err(self.other_task("speaks")),
            (Model::Voice(_), Settings::Hear(_)) => Err(self.other_task("hears")),
        }
    }

    fn other_task(&self, wanted: &str) -> JobError {
        JobError::Refused(format!("'{}' is no model that {wanted}", self.id()))
    }

    /// Refuses settings that no unit could be done with.
    pub fn check(&self, settings: &Settings) -> Result<(), JobError> {
        match (self, settings) {
            (Model::Ear(listener), Settings::Hear(how)) => {
                // A stream that nobody feeds takes a slot for a moment.
                match listener.listen(&how.request()) {
                    Ok(_) | Err(EngineError::Busy(_)) => Ok(()),
                    Err(e) => Err(e.into()),
                }
            }
            (Model::Voice(speaker), Settings::Say(how)) => {
                if let Some(voice) = &how.voice {
                    speaker.voice(voice)?;
                }
                Ok(())
            }
            (Model::Ear(_), _) => Err(self.other_task("speaks")),
            (Model::Voice(_), _) => Err(self.other_task("hears")),
        }
    }
}
