//! Arguments of `voce hear`.

use std::path::{Path, PathBuf};

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use voce_audio::{RawEncoding, RawFormat};

use crate::args::PrecisionArg;
use crate::device::DeviceArgs;

/// How the text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Plain text
    Txt,
    /// One JSON object a file
    Json,
    /// SubRip subtitles
    Srt,
    /// WebVTT subtitles
    Vtt,
    /// A word a line: start, end, confidence, word
    Words,
}

impl Format {
    /// What a file's extension asks for.
    pub(super) fn from_path(path: &Path) -> Option<Self> {
        Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "txt" => Format::Txt,
            "json" => Format::Json,
            "srt" => Format::Srt,
            "vtt" => Format::Vtt,
            "tsv" => Format::Words,
            _ => return None,
        })
    }

    /// Its name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Format::Words => "words",
            other => other.extension(),
        }
    }

    pub(super) fn extension(self) -> &'static str {
        match self {
            Format::Txt => "txt",
            Format::Json => "json",
            Format::Srt => "srt",
            Format::Vtt => "vtt",
            Format::Words => "tsv",
        }
    }
}

/// Arguments of `voce hear`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  voce hear talk.mp3                                  print the text
  voce hear -o talk.srt talk.mp3                      subtitles
  voce hear -o texts/ recordings/                     every audio file of a folder, several at once
  arecord -f S16_LE -r 16000 | voce hear --stream -   live, from a pipe
  voce hear --hotwords names.txt --beam 4 call.wav    prefer names: a phrase a line, a tab and a weight if wanted

Any of wav, mp3, flac, ogg vorbis, ogg opus, m4a, webm, at any rate and with any channels; --raw for headerless samples.
Offline models hear files longer than 41 s in overlapped windows. --chunk selects streaming, where the model can.")]
pub(crate) struct HearArgs {
    /// Audio files, folders of them, or `-` (or nothing, with a pipe) for standard input
    pub(crate) files: Vec<PathBuf>,
    /// Where the text goes: a file, or a folder (one that is there, or NAME/ to make it), which several files need.
    /// Recordings are never written over
    #[arg(short, long, env = "VOCE_OUTPUT")]
    pub(crate) output: Option<PathBuf>,
    /// How the text is written [default: by the extension of -o (.txt, .json, .srt, .vtt, .tsv for words), else txt]
    #[arg(long, value_enum, env = "VOCE_HEAR_FORMAT")]
    pub(crate) format: Option<Format>,
    /// Recogniser: a folder, a .nemo file, a catalogue name, owner/repo or hf://... [default: nemotron or parakeet if
    /// pulled, else the built-in nano-ear]
    #[arg(short, long, env = "VOCE_HEAR_MODEL")]
    pub(crate) model: Option<String>,
    /// Precision of the weights
    #[arg(long, value_enum, env = "VOCE_PRECISION", default_value = "auto")]
    pub(crate) precision: PrecisionArg,
    /// Threads; 0 chooses
    #[arg(long, env = "VOCE_THREADS", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Keep each thread on a core of its own (Linux)
    #[arg(long, env = "VOCE_PIN", value_parser = FalseyValueParser::new())]
    pub(crate) pin: bool,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Streaming in chunks of this many milliseconds: 80, 160, 320, 560 or 1120, by the model
    #[arg(long, value_name = "MS", env = "VOCE_CHUNK")]
    pub(crate) chunk: Option<u32>,
    /// Files that are heard side by side
    #[arg(long, value_name = "N", env = "VOCE_HEAR_STREAMS", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) streams: u16,
    #[command(flatten)]
    pub(crate) search: SearchArgs,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
    /// Language, in any spelling: one of those that the model hears
    #[arg(short, long, env = "VOCE_HEAR_LANGUAGE")]
    pub(crate) language: Option<String>,
    /// Milliseconds of silence that end an utterance (800 with --stream and --mic, else none)
    #[arg(long, value_name = "MS", env = "VOCE_ENDPOINT_MS")]
    pub(crate) endpoint_ms: Option<u32>,
    /// Hear soft speech as soft as it is: raise none before recognition
    #[arg(long, env = "VOCE_NO_HEAR_GAIN", value_parser = FalseyValueParser::new())]
    pub(crate) no_hear_gain: bool,
    /// Show what is heard at once: partial text as a line that changes, utterances as lines; Ctrl-C ends a pipe with
    /// what was said last
    #[arg(long, env = "VOCE_STREAM", value_parser = FalseyValueParser::new())]
    pub(crate) stream: bool,
    /// Listen to the microphone, as --stream does to a file
    #[arg(long, conflicts_with_all = ["files", "raw"])]
    pub(crate) mic: bool,
    /// Headerless samples: s16, f32, mulaw or alaw, then rate and channels if not 16000 and 1 (mulaw:8000, s16:48000:2)
    #[arg(long, value_name = "FORMAT", env = "VOCE_RAW", value_parser = raw)]
    pub(crate) raw: Option<RawFormat>,
}

/// How labels are searched for.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Search")]
pub(crate) struct SearchArgs {
    /// Hypotheses side by side; 1 is greedy
    #[arg(long, value_name = "N", env = "VOCE_BEAM", default_value_t = 1)]
    pub(crate) beam: usize,
    /// Readings to tell, up to the beam
    #[arg(long, value_name = "K", env = "VOCE_NBEST", default_value_t = 0)]
    pub(crate) nbest: usize,
    /// Phrases to prefer: one a line, a tab and a weight if it is not 1
    #[arg(long, value_name = "FILE", env = "VOCE_HOTWORDS")]
    pub(crate) hotwords: Option<PathBuf>,
    /// Language model over the model's tokens
    #[arg(long, value_name = "FILE.arpa", env = "VOCE_LM")]
    pub(crate) lm: Option<PathBuf>,
    /// Weight of the language model
    #[arg(long, value_name = "W", env = "VOCE_LM_WEIGHT", default_value_t = 0.3)]
    pub(crate) lm_weight: f32,
    /// How freely tokens are drawn, of models that draw them; 0 takes the best [default: the model's own]
    #[arg(long, value_name = "T", env = "VOCE_HEAR_TEMPERATURE")]
    pub(crate) temperature: Option<f32>,
    /// Seed of the draws
    #[arg(long, value_name = "N", env = "VOCE_HEAR_SEED")]
    pub(crate) seed: Option<u64>,
}

/// What plain text shows besides words.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Text")]
pub(crate) struct ShownArgs {
    /// When each utterance was said
    #[arg(long, env = "VOCE_TIMESTAMPS", value_parser = FalseyValueParser::new())]
    pub(crate) timestamps: bool,
    /// How sure the model is of each utterance
    #[arg(long, env = "VOCE_CONFIDENCE", value_parser = FalseyValueParser::new())]
    pub(crate) confidence: bool,
}

/// `ENCODING[:RATE[:CHANNELS]]`.
fn raw(text: &str) -> Result<RawFormat, String> {
    let mut parts = text.split(':');
    let encoding = match parts.next() {
        Some("s16") => RawEncoding::S16le,
        Some("f32") => RawEncoding::F32le,
        Some("mulaw") => RawEncoding::Mulaw,
        Some("alaw") => RawEncoding::Alaw,
        _ => return Err("use s16, f32, mulaw or alaw".into()),
    };
    let mut number = |what: &str, default: usize| match parts.next() {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| format!("the {what} is no number")),
    };
    let rate = number("rate", 16_000)?;
    let channels = number("number of channels", 1)?;
    if parts.next().is_some() {
        return Err("use FORMAT:RATE:CHANNELS".into());
    }
    Ok(RawFormat { encoding, sample_rate: u32::try_from(rate).unwrap_or(u32::MAX), channels })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_formats() {
        let f = raw("mulaw:8000").unwrap();
        assert_eq!((f.encoding, f.sample_rate, f.channels), (RawEncoding::Mulaw, 8000, 1));
        let f = raw("s16:48000:2").unwrap();
        assert_eq!((f.sample_rate, f.channels), (48_000, 2));
        for bad in ["", "s24", "s16:x", "s16:1:2:3"] {
            assert!(raw(bad).is_err(), "{bad}");
        }
    }
}
