//! How a command ends when it does not end well: an exit code and one line for the user.

use std::io;

use voce_audio::AudioError;
use voce_engine::EngineError;
use voce_engine::store::StoreError;

/// Why a command stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A flag or an input value is no good: exit code 2.
    Usage(String),
    /// Something else failed: exit code 1.
    Failed(String),
    /// The reader of our output has gone: exit code 1, and nobody to tell.
    ClosedPipe,
    /// Ctrl-C or a request to end: exit code 130.
    Interrupted,
    /// All was done but for some of it, which was told: exit code 3.
    Partly(String),
    /// Only a new process can mend what is wrong, such as a GPU that was lost: exit code 70.
    Broken(String),
}

/// What commands return.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Failure::Usage(text.into())
    }

    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Failure::Failed(text.into())
    }

    /// The process's exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) | Failure::ClosedPipe => 1,
            Failure::Interrupted => 130,
            Failure::Partly(_) => 3,
            Failure::Broken(_) => 70,
        }
    }

    /// What to print, on one line; nothing for a closed pipe.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Failure::Usage(text) | Failure::Failed(text) | Failure::Partly(text) | Failure::Broken(text) => {
                Some(one_line(text))
            }
            Failure::Interrupted => Some("interrupted".into()),
            Failure::ClosedPipe => None,
        }
    }
}

/// A text with its line breaks and runs of spaces turned into single spaces.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let text = error.to_string();
        match error {
            StoreError::Cancelled if crate::interrupt::raised() => Failure::Interrupted,
            StoreError::BadReference { .. }
            | StoreError::UnknownModel { .. }
            | StoreError::UnknownFamily { .. }
            | StoreError::BadVoiceName { .. }
            | StoreError::UnknownVoice { .. }
            | StoreError::BadSetting { .. }
            | StoreError::OutsideStore { .. } => Failure::Usage(text),
            _ => Failure::Failed(text),
        }
    }
}

impl From<AudioError> for Failure {
    fn from(error: AudioError) -> Self {
        match error {
            AudioError::ClosedPipe { .. } => Failure::ClosedPipe,
            other => Failure::Failed(other.to_string()),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(inner) => inner.into(),
            EngineError::Text(_)
            | EngineError::UnknownVoice { .. }
            | EngineError::NoCloning { .. }
            | EngineError::BadRequest { .. }
            | EngineError::BadShape { .. }
            | EngineError::Speech(_)
            | EngineError::Dialogue(_)
            | EngineError::OtherTask { .. }
            | EngineError::NotYet { .. }
            | EngineError::OnlyAPart { .. }
            | EngineError::NoCodec { .. }
            | EngineError::Codebooks { .. }
            | EngineError::Codec(_)
            | EngineError::NoCodes { .. }
            | EngineError::Chunk { .. }
            | EngineError::Language { .. }
            | EngineError::NoFp8
            | EngineError::Search(_) => Failure::Usage(error.to_string()),
            other => Failure::Failed(other.to_string()),
        }
    }
}

impl From<voce_jobs::JobError> for Failure {
    fn from(error: voce_jobs::JobError) -> Self {
        use voce_jobs::JobError;
        match error {
            JobError::Stopped if crate::interrupt::raised() => Failure::Interrupted,
            JobError::Engine(inner) => inner.into(),
            JobError::Keep { source, .. } if source.kind() == io::ErrorKind::BrokenPipe => {
                Failure::ClosedPipe
            }
            JobError::Refused(text) => Failure::Usage(text),
            other => Failure::Failed(other.to_string()),
        }
    }
}

impl From<voce_text::TextError> for Failure {
    fn from(error: voce_text::TextError) -> Self {
        Failure::Usage(error.to_string())
    }
}

impl From<voce_runtime::RuntimeError> for Failure {
    fn from(error: voce_runtime::RuntimeError) -> Self {
        Failure::Usage(error.to_string())
    }
}

/// For writes to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::Failed(format!("cannot write to standard output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_lines() {
        assert_eq!(Failure::usage("a\n  b").message().as_deref(), Some("a b"));
        assert_eq!(Failure::usage("x").code(), 2);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).message(), None);
        assert_eq!(Failure::from(StoreError::BadVoiceName { name: "a b".into() }).code(), 2);
        assert_eq!(Failure::from(AudioError::DiskFull { name: "x".into() }).code(), 1);
        assert_eq!(Failure::Interrupted.code(), 130);
        assert_eq!(Failure::Partly("2 failed".into()).code(), 3);
        assert_eq!(Failure::Broken("the device was lost".into()).code(), 70);
    }
}
