//! Why a unit of work has no result.

use std::path::PathBuf;

use voce_audio::AudioError;
use voce_engine::EngineError;

/// Why a unit of work has no result; [`JobError::code`] is stable, the text is for people.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The input is no audio that can be heard.
    #[error("{}", named(name, source))]
    Audio {
        /// The input.
        name: String,
        /// Why it cannot be used.
        source: AudioError,
    },
    /// The engine refused it or broke off.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The unit asks for what this worker does not do.
    #[error("{0}")]
    Refused(String),
    /// The result could not be kept.
    #[error("{path}: cannot keep this result: {source}: free some space or mend the folder, and run again")]
    Keep {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's word.
        source: std::io::Error,
    },
    /// The result could not be encoded or written.
    #[error("cannot write the audio: {0}")]
    Encode(AudioError),
    /// Somebody asked for an end.
    #[error("stopped")]
    Stopped,
}

/// The error as text, which names the input once.
fn named(name: &str, source: &AudioError) -> String {
    let text = source.to_string();
    if text.contains(name) { text } else { format!("{name}: {text}") }
}

impl JobError {
    /// A short name for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            JobError::Audio { source, .. } => source.code(),
            JobError::Engine(e) => e.code(),
            JobError::Refused(_) => "refused",
            JobError::Keep { .. } => "not_kept",
            JobError::Encode(e) => e.code(),
            JobError::Stopped => "stopped",
        }
    }

    /// Whether trying again, here or elsewhere, cannot help: the unit itself is at fault.
    pub fn is_lasting(&self) -> bool {
        match self {
            JobError::Audio { source, .. } => {
                !matches!(source, AudioError::NotFound { .. } | AudioError::Io { .. })
            }
            JobError::Engine(e) => matches!(
                e.code(),
                "bad_request"
                    | "bad_text"
                    | "bad_voice"
                    | "no_cloning"
                    | "unknown_voice"
                    | "no_room"
                    | "bad_codes"
            ),
            JobError::Refused(_) => true,
            JobError::Keep { .. } | JobError::Encode(_) | JobError::Stopped => false,
        }
    }

    /// Whether what follows would fail as well: results cannot be kept.
    pub fn is_about_the_place(&self) -> bool {
        match self {
            JobError::Keep { .. } => true,
            JobError::Encode(e) => matches!(e, AudioError::DiskFull { .. } | AudioError::Io { .. }),
            _ => false,
        }
    }
}
