//! Where texts go: standard output, a file, or a folder with a file for each; and how they are written there.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use voce_audio::decode::{holds_audio, names_audio};
use voce_engine::listener::{ListenRequest, Listener};

use super::args::{Format, HearArgs};
use super::inputs::Input;
use super::live::Shown;
use super::transcript::{How, Transcript};
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::whole_file;

/// The place for each input's text.
#[derive(Debug)]
pub(super) enum Outputs {
    /// Standard output; with names where there is more than one text.
    Stdout { named: bool },
    /// Files, in the order of the inputs.
    Files(Vec<PathBuf>),
}

impl Outputs {
    /// Chooses by the flags; folders are made. What would be written over a recording is refused.
    pub(super) fn choose(args: &HearArgs, inputs: &[Input], json: bool) -> Outcome<(Self, Format)> {
        let Some(output) = args.output.as_deref().filter(|o| o.as_os_str() != "-") else {
            return Self::stdout(args, inputs, json);
        };
        if output.is_dir() || ends_as_folder(output) {
            let format = format(args, json, None)?;
            return Ok((Self::folder(output, inputs, format)?, format));
        }
        if inputs.len() > 1 {
            let name = output.display();
            return Err(Failure::usage(if output.exists() {
                format!("{name}: give a folder, there are several files to hear")
            } else {
                format!(
                    "{name}: no such folder, and there are several files to hear: give {name}/ to make it"
                )
            }));
        }
        let format = format(args, json, Some(output))?;
        if names_audio(output) {
            return Err(Failure::usage(format!(
                "{}: a recording's name, and the result is text: give -o {} (or .srt, .vtt, .json)",
                output.display(),
                output.with_extension("txt").display()
            )));
        }
        protect(std::slice::from_ref(&output.to_owned()), inputs)?;
        Ok((Outputs::Files(vec![output.to_owned()]), format))
    }

    fn stdout(args: &HearArgs, inputs: &[Input], json: bool) -> Outcome<(Self, Format)> {
        let format = format(args, json, None)?;
        let subtitles = matches!(format, Format::Srt | Format::Vtt);
        let name = format.name();
        if subtitles && inputs.len() > 1 {
            return Err(Failure::usage("subtitles of several files need a folder: give -o FOLDER/"));
        }
        if subtitles && (args.stream || args.mic) {
            return Err(Failure::usage(format!(
                "--format {name} is written when all was heard: give -o FILE.{name} as well, or leave --stream out"
            )));
        }
        Ok((Outputs::Stdout { named: inputs.len() > 1 }, format))
    }

    fn folder(output: &Path, inputs: &[Input], format: Format) -> Outcome<Self> {
        if inputs.is_empty() {
            let text = "a folder, and the microphone has no name for a file in it: give -o FILE";
            return Err(Failure::usage(format!("{}: {text}", output.display())));
        }
        let mut stems: HashMap<String, usize> = HashMap::new();
        for input in inputs {
            *stems.entry(input.stem()).or_default() += 1;
        }
        let mut used: HashMap<String, usize> = HashMap::new();
        let mut name = |input: &Input| {
            // Recordings that differ by extension or folder only must not overwrite each other's text.
            let stem = input.stem();
            let stem = match input {
                Input::File(path) if stems[&stem] > 1 => {
                    path.file_name().map_or(stem, |n| n.to_string_lossy().into_owned())
                }
                _ => stem,
            };
            let times = used.entry(stem.clone()).or_default();
            *times += 1;
            let suffix = if *times > 1 { format!("-{times}") } else { String::new() };
            output.join(format!("{stem}{suffix}.{}", format.extension()))
        };
        let paths: Vec<PathBuf> = inputs.iter().map(&mut name).collect();
        protect(&paths, inputs)?;
        std::fs::create_dir_all(output)
            .map_err(|e| Failure::failed(format!("{}: cannot make this folder: {e}", output.display())))?;
        Ok(Outputs::Files(paths))
    }

    /// What a live source shows on standard output; a file beside it gets the format that was asked for.
    pub(super) fn shown(&self, format: Format, args: &HearArgs, console: Console) -> Shown {
        let beside = matches!(self, Outputs::Files(_));
        if console.json || args.format == Some(Format::Json) {
            Shown::Events
        } else if format == Format::Words && !beside {
            Shown::Words
        } else {
            Shown::Lines(args.shown)
        }
    }

    /// Writes the text of the input with this number.
    pub(super) fn write(&self, index: usize, input: &Input, format: Format, text: &str) -> Outcome {
        match self {
            Outputs::Files(paths) => whole_file::write(&paths[index], text.as_bytes()),
            Outputs::Stdout { named } => {
                let console = Console { quiet: false, json: false };
                match format {
                    Format::Txt | Format::Words if *named => {
                        console.result(&format!("{}:\n{}", input.name(), text.trim_end()))
                    }
                    // Silence is an empty text, not an empty line.
                    _ if text.is_empty() => Ok(()),
                    _ => console.result(text),
                }
            }
        }
    }

    /// Writes what was heard live, where a file was asked for.
    pub(super) fn live(
        &self,
        heard: &Transcript,
        format: Format,
        args: &HearArgs,
        listener: &Listener,
        request: &ListenRequest,
    ) -> Outcome {
        let Outputs::Files(paths) = self else { return Ok(()) };
        let how = How { nbest: request.nbest, chunk_ms: super::chunk(listener, request) };
        let text = heard.render(format, args.shown, listener.info(), &how)?;
        paths.first().map_or(Ok(()), |path| whole_file::write(path, text.as_bytes()))
    }
}

/// Whether the name says that a folder is meant, be it there or not.
fn ends_as_folder(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().last().is_some_and(|&b| std::path::is_separator(char::from(b)))
}

/// How the text is written: as the flags say, else as the extension of the one file does. They must not contradict each
/// other.
fn format(args: &HearArgs, json: bool, file: Option<&Path>) -> Outcome<Format> {
    // A live source tells events as JSON and may write a file of another format beside them.
    let all_json = json && !((args.stream || args.mic) && args.output.is_some());
    let asked = match (args.format, all_json) {
        (Some(format), true) if format != Format::Json => {
            let text = format!("--json asks for JSON and --format for {}: give one of them", format.name());
            return Err(Failure::usage(text));
        }
        (Some(format), _) => Some((format, "--format")),
        (None, true) => Some((Format::Json, "--json")),
        (None, false) => None,
    };
    let default = if json { Format::Json } else { Format::Txt };
    match (asked, file.and_then(Format::from_path).zip(file)) {
        (Some((format, flag)), Some((by_name, path))) if !fits(format, by_name) => {
            let (format, by_name) = (format.name(), by_name.name());
            Err(Failure::usage(format!(
                "{}: its extension asks for {by_name} and {flag} for {format}: give one of them",
                path.display()
            )))
        }
        (Some((format, _)), _) => Ok(format),
        (None, by_name) => Ok(by_name.map_or(default, |(format, _)| format)),
    }
}

/// Whether what is written in a format may have the name of another.
fn fits(format: Format, by_name: Format) -> bool {
    format == by_name || (format, by_name) == (Format::Words, Format::Txt)
}

/// Refuses paths at which there is a recording: one that is to be heard, or any other.
fn protect(paths: &[PathBuf], inputs: &[Input]) -> Outcome {
    let file = |input: &Input| match input {
        Input::File(path) => path.canonicalize().ok(),
        Input::Stdin => None,
    };
    let heard: HashSet<PathBuf> = inputs.iter().filter_map(file).collect();
    for path in paths {
        let Ok(target) = path.canonicalize() else { continue };
        let what = if heard.contains(&target) {
            "this is what is to be heard"
        } else if holds_audio(&target) {
            "there is a recording of this name"
        } else {
            continue;
        };
        let text = "text is not written over it: give -o another name";
        return Err(Failure::usage(format!("{}: {what}, and {text}", path.display())));
    }
    Ok(())
}
