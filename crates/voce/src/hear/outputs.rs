//! Where texts go: standard output, a file, or a folder with a file for each.

use std::collections::HashMap;
use std::path::PathBuf;

use voce_engine::listener::{ListenRequest, Listener};

use super::args::{Format, HearArgs};
use super::inputs::Input;
use super::transcript::{How, Transcript};
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::whole_file;

/// The place for each input's text.
pub(super) enum Outputs {
    /// Standard output; with names where there is more than one text.
    Stdout { named: bool },
    /// Files, in the order of the inputs.
    Files(Vec<PathBuf>),
}

impl Outputs {
    /// Chooses by the flags; folders are made.
    pub(super) fn choose(args: &HearArgs, inputs: &[Input], format: Format) -> Outcome<Self> {
        let Some(output) = args.output.as_ref().filter(|o| o.as_os_str() != "-") else {
            if inputs.len() > 1 && matches!(format, Format::Srt | Format::Vtt) {
                return Err(Failure::usage("subtitles of several files need a folder: give -o FOLDER"));
            }
            return Ok(Outputs::Stdout { named: inputs.len() > 1 });
        };
        if inputs.len() < 2 && !output.is_dir() {
            return Ok(Outputs::Files(vec![output.clone()]));
        }
        if output.exists() && !output.is_dir() {
            let text = format!("{}: give a folder, there are several files to hear", output.display());
            return Err(Failure::usage(text));
        }
        std::fs::create_dir_all(output)
            .map_err(|e| Failure::failed(format!("{}: cannot make this folder: {e}", output.display())))?;
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
        Ok(Outputs::Files(inputs.iter().map(&mut name).collect()))
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
