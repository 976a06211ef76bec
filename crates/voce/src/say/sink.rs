//! Where the audio goes: a file that appears when whole, standard output, the sound card.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use voce_audio::decode::names_audio;
use voce_audio::encode::{FORMATS, sink_to};
use voce_audio::output::Pipe;
use voce_audio::wav::WavSample;
use voce_audio::{AudioError, AudioFormat, AudioSink, open_sink};

use crate::args::SayArgs;
use crate::failure::{Failure, Outcome};

const NO_DEVICE: &str = "this build has no sound card: build with `cargo install --features device`, or write a file with -o FILE";

/// What was asked for.
pub(crate) struct Target {
    output: Option<(PathBuf, AudioFormat)>,
    play: bool,
}

impl Target {
    /// Chooses by the arguments; without an output it is the sound card.
    pub(super) fn choose(args: &SayArgs) -> Outcome<Self> {
        if args.output.is_none() && !args.play && !cfg!(feature = "device") {
            return Err(Failure::usage(
                "no output: give -o FILE (hello.wav, hello.mp3), or listen through a pipe, `-o - | aplay`: this build has no \
                 sound card",
            ));
        }
        Self::new(args.output.as_deref(), args.format.as_deref(), args.play || args.output.is_none())
    }

    /// A file, a pipe, the sound card, some of them or none; refuses what cannot work before a model is loaded.
    pub(crate) fn new(output: Option<&Path>, format: Option<&str>, play: bool) -> Outcome<Self> {
        if play && !cfg!(feature = "device") {
            return Err(Failure::usage(NO_DEVICE));
        }
        let Some(path) = output else { return Ok(Self { output: None, play }) };
        let format = self::format(path, format)?;
        if is_stdout(path) && std::io::stdout().is_terminal() {
            return Err(Failure::usage(
                "standard output is a terminal: pipe the audio into a program, or use -o FILE",
            ));
        }
        Ok(Self { output: Some((path.to_owned(), format)), play })
    }

    /// Whether somebody may be listening while the audio is being made.
    pub(crate) fn live(&self) -> bool {
        self.play || self.on_stdout() || self.output.as_ref().is_some_and(|(path, _)| is_special(path))
    }

    /// Whether the audio takes standard output.
    pub(crate) fn on_stdout(&self) -> bool {
        self.output.as_ref().is_some_and(|(path, _)| is_stdout(path))
    }

    /// The output's name, for reports.
    pub(crate) fn name(&self) -> Option<String> {
        self.output.as_ref().map(|(path, _)| path.display().to_string())
    }

    /// Opens everything.
    pub(crate) fn open(&self, rate: u32) -> Outcome<Box<dyn AudioSink>> {
        let mut sinks: Vec<Box<dyn AudioSink>> = Vec::new();
        if let Some((path, format)) = &self.output {
            sinks.push(if is_stdout(path) {
                sink_to(Pipe::named(std::io::stdout(), "standard output"), *format, rate)?
            } else {
                open_sink(path, *format, rate)?
            });
        }
        if self.play {
            sinks.push(player(rate)?);
        }
        Ok(if sinks.len() == 1 { sinks.remove(0) } else { Box::new(All(sinks)) })
    }
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// The format by name, else by extension, which must not contradict each other; pipes and devices without either get WAV.
fn format(path: &Path, name: Option<&str>) -> Outcome<AudioFormat> {
    if let Some(name) = name {
        let unknown = || Failure::usage(format!("unknown audio format '{name}': use {FORMATS}"));
        let format = AudioFormat::from_name(name).ok_or_else(unknown)?;
        if !fits(format, path) {
            return Err(Failure::usage(format!(
                "{}: its extension is of another format than --format {name}: give one of them",
                path.display()
            )));
        }
        return Ok(format);
    }
    match (AudioFormat::from_path(path), path.extension()) {
        (Some(format), _) => Ok(format),
        (None, None) => Ok(AudioFormat::Wav(WavSample::S16)),
        (None, Some(extension)) => Err(Failure::usage(format!(
            "cannot tell the audio format from '.{}': use a known extension or --format with {FORMATS}",
            extension.display()
        ))),
    }
}

/// Whether a file of this format may have this name. Samples without a header have several.
fn fits(format: AudioFormat, path: &Path) -> bool {
    let plain =
        path.extension().is_some_and(|e| e.eq_ignore_ascii_case("raw") || e.eq_ignore_ascii_case("pcm"));
    match (AudioFormat::from_path(path), format) {
        (Some(AudioFormat::Wav(_)), AudioFormat::Wav(_)) => true,
        (Some(AudioFormat::Raw(_)), AudioFormat::Raw(_)) if plain => true,
        (Some(by_name), format) => by_name == format,
        (None, _) => !names_audio(path),
    }
}

#[cfg(feature = "device")]
fn player(rate: u32) -> Result<Box<dyn AudioSink>, AudioError> {
    Ok(Box::new(voce_audio::device::Player::open(rate)?))
}

#[cfg(not(feature = "device"))]
fn player(_: u32) -> Result<Box<dyn AudioSink>, AudioError> {
    Err(AudioError::NoDevice { what: "output", detail: NO_DEVICE.into() })
}

/// Several sinks at once.
struct All(Vec<Box<dyn AudioSink>>);

impl AudioSink for All {
    fn write(&mut self, samples: &[f32]) -> Result<(), AudioError> {
        self.0.iter_mut().try_for_each(|s| s.write(samples))
    }
    fn flush(&mut self) -> Result<(), AudioError> {
        self.0.iter_mut().try_for_each(|s| s.flush())
    }
    fn finish(&mut self) -> Result<(), AudioError> {
        self.0.iter_mut().try_for_each(|s| s.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_fits_the_name_of_its_file() {
        let chosen = |path: &str, name: Option<&str>| format(Path::new(path), name);
        for (path, name) in [
            ("x.wav", "wav-f32"),
            ("x.pcm", "mulaw"),
            ("x.raw", "f32"),
            ("x.ogg", "opus"),
            ("x.WAV", "wav"),
            ("-", "mp3"),
            ("x", "flac"),
            ("x.bin", "pcm"),
        ] {
            let want = AudioFormat::from_name(name);
            assert_eq!(chosen(path, Some(name)).ok(), want, "{path} {name}");
        }
        for (path, name) in
            [("x.wav", "flac"), ("x.wav", "pcm"), ("x.f32", "pcm"), ("x.mp3", "wav"), ("x.m4a", "wav")]
        {
            let said = chosen(path, Some(name)).unwrap_err().message().unwrap_or_default();
            assert!(said.contains(path) && said.contains(&format!("--format {name}")), "{said}");
        }
        assert!(chosen("x.txt", None).is_err());
    }
}
