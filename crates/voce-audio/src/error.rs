//! The crate's one error: a closed set, each with a short code for the wire and a text that says what to do.

use std::io;

/// What can go wrong with audio; [`AudioError::code`] is stable, the text is for people.
#[derive(Debug, thiserror::Error)]
pub enum AudioError {
    /// No bytes at all.
    #[error("the audio is empty: send a file with sound in it")]
    Empty,
    /// Not a container or codec this crate reads.
    #[error(
        "unsupported audio format ({detail}): use wav, flac, mp3, ogg (vorbis or opus), m4a (aac-lc), webm or aiff"
    )]
    UnsupportedFormat {
        /// What was found instead.
        detail: String,
    },
    /// The file ends before its first sample.
    #[error("the audio is cut off before its first sample: upload or copy the file again")]
    Truncated,
    /// The bytes claim a known format but do not decode.
    #[error("the audio is damaged ({detail}): export it again, as wav if in doubt")]
    Corrupt {
        /// What the decoder said.
        detail: String,
    },
    /// More input bytes than allowed.
    #[error("the audio file is larger than {limit} bytes: send a shorter or more compressed file")]
    TooLarge {
        /// The limit that was passed.
        limit: u64,
    },
    /// One packet, or the headers before the first, with more bytes than allowed.
    #[error(
        "a packet or header of the audio has more than {limit} bytes: export it again, without pictures or attachments"
    )]
    PacketTooLarge {
        /// The limit that was passed.
        limit: u64,
    },
    /// A stream that brings bytes but no samples.
    #[error("{limit} bytes of the audio held no sound: send audio, from the start of its file or stream")]
    NoSound {
        /// The limit that was passed.
        limit: u64,
    },
    /// More seconds than allowed.
    #[error("the audio is longer than {limit} seconds: split it into parts")]
    TooLong {
        /// The limit that was passed.
        limit: u32,
    },
    /// More decoded bytes than allowed.
    #[error(
        "the audio decodes to more than {limit} bytes of samples: split it, or lower its rate or channels"
    )]
    TooManySamples {
        /// The limit that was passed.
        limit: u64,
    },
    /// A channel count outside the limits.
    #[error("the audio has {got} channels, 1 to {max} are accepted: mix it down")]
    Channels {
        /// Channels in the file.
        got: usize,
        /// Most channels accepted.
        max: usize,
    },
    /// A sample rate outside the limits.
    #[error(
        "the audio's sample rate is {got} Hz, {min} to {max} are accepted: resample it, or mend its header"
    )]
    SampleRate {
        /// Rate in the file.
        got: u32,
        /// Lowest rate accepted.
        min: u32,
        /// Highest rate accepted.
        max: u32,
    },
    /// Rate or channels change inside one file.
    #[error("the audio changes its sample rate or channels midway: convert it to one format first")]
    FormatChanged,
    /// A decoder panicked; the stream is dead, the process is not.
    #[error("the audio decoder failed on this file: convert it to wav and report the file")]
    DecoderFault,
    /// Audio that an encoder cannot take.
    #[error("cannot encode this audio ({detail}): choose another output format or sample rate")]
    Encode {
        /// What the encoder refused.
        detail: String,
    },
    /// The output cannot grow further in this format.
    #[error("the output passed the 4 GiB that a wav file can hold: write flac or raw pcm, or split it")]
    OutputFull,
    /// No space left for the output.
    #[error("no space left on the device for {name}: free some, or write elsewhere")]
    DiskFull {
        /// The output's name.
        name: String,
    },
    /// The reader of a pipe went away.
    #[error("the reader of {name} closed it before the audio ended")]
    ClosedPipe {
        /// The output's name.
        name: String,
    },
    /// The file is not there.
    #[error("no such file: {name}: check the path")]
    NotFound {
        /// The file's name.
        name: String,
    },
    /// Any other read or write failure.
    #[error("cannot {verb} {name}: {source}")]
    Io {
        /// `read` or `write`.
        verb: &'static str,
        /// The file's name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// No usable sound card.
    #[error("no usable sound {what}: {detail}; connect one, or use a file instead")]
    NoDevice {
        /// `output` or `input`.
        what: &'static str,
        /// What the system said.
        detail: String,
    },
}

impl AudioError {
    /// The short stable name of this error, for wire protocols and metric labels.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "empty_audio",
            Self::UnsupportedFormat { .. } => "unsupported_format",
            Self::Truncated => "truncated",
            Self::Corrupt { .. } => "corrupt",
            Self::TooLarge { .. } => "too_large",
            Self::PacketTooLarge { .. } => "packet_too_large",
            Self::NoSound { .. } => "no_sound",
            Self::TooLong { .. } => "too_long",
            Self::TooManySamples { .. } => "too_many_samples",
            Self::Channels { .. } => "unsupported_channels",
            Self::SampleRate { .. } => "unsupported_rate",
            Self::FormatChanged => "format_changed",
            Self::DecoderFault => "decoder_fault",
            Self::Encode { .. } => "encode_failed",
            Self::OutputFull => "output_full",
            Self::DiskFull { .. } => "disk_full",
            Self::ClosedPipe { .. } => "closed_pipe",
            Self::NotFound { .. } => "not_found",
            Self::Io { .. } => "io",
            Self::NoDevice { .. } => "no_device",
        }
    }

    pub(crate) fn reading(name: &str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { name: name.into() },
            _ => Self::Io { verb: "read", name: name.into(), source },
        }
    }

    pub(crate) fn writing(name: &str, source: io::Error) -> Self {
        let name = name.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { name },
            io::ErrorKind::BrokenPipe => Self::ClosedPipe { name },
            io::ErrorKind::NotFound => Self::NotFound { name },
            _ => Self::Io { verb: "write", name, source },
        }
    }

    pub(crate) fn unsupported(detail: impl Into<String>) -> Self {
        Self::UnsupportedFormat { detail: detail.into() }
    }

    pub(crate) fn corrupt(detail: impl Into<String>) -> Self {
        Self::Corrupt { detail: detail.into() }
    }
}
