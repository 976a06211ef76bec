//! Which audio is heard: files, folders of files, standard input.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use voce_audio::decode::is_recording;
use voce_audio::{AudioError, DecodeLimits, Decoder, MonoStream, RawFormat, Source};

use crate::failure::{Failure, Outcome};

/// Files of a folder at most.
const MAX_FILES: usize = 100_000;

/// Something to hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    File(PathBuf),
    Stdin,
}

impl Input {
    /// What it is called.
    pub(super) fn name(&self) -> String {
        match self {
            Input::File(path) => path.display().to_string(),
            Input::Stdin => "-".into(),
        }
    }

    /// The file's name without its extension.
    pub(super) fn stem(&self) -> String {
        match self {
            Input::File(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            Input::Stdin => "stdin".into(),
        }
    }

    /// Opens it as mono samples at `rate`.
    pub(super) fn open(&self, raw: Option<RawFormat>, rate: u32) -> Result<MonoStream, AudioError> {
        let limits = DecodeLimits::local();
        let (source, hint) = match self {
            Input::File(path) => (Source::file(path)?, path.extension().and_then(|e| e.to_str())),
            Input::Stdin => (Source::reader(std::io::stdin()), None),
        };
        let decoder = match raw {
            Some(format) => Decoder::open_raw(source, format, &limits)?,
            None => Decoder::open(source, hint, &limits)?,
        };
        Ok(MonoStream::new(decoder, rate))
    }
}

/// What is to be heard where no file is named: a pipe, or with `mic` nothing.
pub(super) fn unnamed(mic: bool) -> Outcome<Vec<Input>> {
    match mic {
        true => Ok(Vec::new()),
        false if std::io::stdin().is_terminal() => Err(Failure::usage(
            "nothing to hear: give files or folders, pipe audio in, or use --mic for the microphone",
        )),
        false => Ok(vec![Input::Stdin]),
    }
}

/// The files that paths name; folders stand for the audio files in them and below, by name.
pub(super) fn expand(paths: &[PathBuf]) -> Outcome<Vec<Input>> {
    let mut inputs = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            if inputs.contains(&Input::Stdin) {
                return Err(Failure::usage("standard input can be heard once only"));
            }
            inputs.push(Input::Stdin);
        } else if path.is_dir() {
            let before = inputs.len();
            folder(path, &mut inputs)?;
            if inputs.len() == before {
                return Err(Failure::usage(format!("{}: no audio files in this folder", path.display())));
            }
        } else {
            inputs.push(Input::File(path.clone()));
        }
        if inputs.len() > MAX_FILES {
            return Err(Failure::usage(format!("more than {MAX_FILES} files: give fewer at once")));
        }
    }
    Ok(inputs)
}

fn folder(path: &Path, inputs: &mut Vec<Input>) -> Outcome {
    let entries = std::fs::read_dir(path)
        .and_then(|entries| entries.collect::<Result<Vec<_>, _>>())
        .map_err(|e| Failure::failed(format!("{}: {e}", path.display())))?;
    let mut paths: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).collect();
    paths.sort();
    for path in paths {
        // Links to folders are left out, so that there is an end.
        if path.is_dir() && !path.is_symlink() {
            folder(&path, inputs)?;
        } else if path.is_file() && is_recording(&path) {
            inputs.push(Input::File(path));
        }
        if inputs.len() > MAX_FILES {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_stand_for_their_audio() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        for name in ["b.WAV", "a.mp3", "notes.txt", "sub/c.flac"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        let names: Vec<_> =
            expand(&[dir.path().to_owned(), "-".into()]).unwrap().iter().map(Input::stem).collect();
        assert_eq!(names, ["a", "b", "c", "stdin"]);
        assert!(expand(&["-".into(), "-".into()]).is_err());
        assert!(expand(&[dir.path().join("none.wav")]).is_ok());
        let empty = tempfile::tempdir().unwrap();
        assert!(expand(&[empty.path().to_owned()]).is_err());
    }
}
