//! Where the text comes from: arguments, a file, or a stream that is spoken while it arrives.

use std::fs::File;
use std::io::{IsTerminal as _, Read};
use std::path::Path;
use std::sync::mpsc::SyncSender;

use voce_engine::speaker::TextSender;
use voce_text::Utf8Stream;

use super::Heard;
use crate::args::SayArgs;
use crate::failure::{Failure, Outcome};

/// The most text that a file may hold.
pub(crate) const MAX_FILE: u64 = 64 << 20;
/// Bytes of a stream read at once.
const PIECE: usize = 4096;

/// The text.
pub(super) enum Source {
    /// All of it is here.
    Whole(String),
    /// It is still being written.
    Live(Box<dyn Read + Send>),
}

impl Source {
    /// Chooses by the arguments and by what standard input is.
    pub(super) fn choose(args: &SayArgs) -> Outcome<Self> {
        if let Some(path) = &args.file {
            return if path.as_os_str() == "-" { Ok(stdin()) } else { file(path) };
        }
        match args.text.as_slice() {
            [] if std::io::stdin().is_terminal() => {
                Err(Failure::usage("no text: give it as an argument, with --file, or through a pipe"))
            }
            [] => Ok(stdin()),
            [dash] if dash == "-" => Ok(stdin()),
            words => Ok(Source::Whole(words.join(" "))),
        }
    }

    /// Whether there is enough text for many chunks side by side.
    pub(super) fn is_long(&self) -> bool {
        matches!(self, Source::Whole(text) if text.len() > LONG_TEXT)
    }
}

/// Bytes of about eight chunks of text.
const LONG_TEXT: usize = 1_600;

fn stdin() -> Source {
    Source::Live(Box::new(std::io::stdin()))
}

fn file(path: &Path) -> Outcome<Source> {
    let fail = |e: std::io::Error| {
        Failure::failed(format!("cannot read {}: {e}: check the path given with --file", path.display()))
    };
    let file = File::open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    if metadata.is_dir() {
        return Err(Failure::usage(format!("{} is a folder: give a text file", path.display())));
    }
    if !metadata.is_file() {
        return Ok(Source::Live(Box::new(file)));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE {
        let text = format!("{} is larger than {MAX_FILE} bytes: split it, or pipe it in", path.display());
        return Err(Failure::usage(text));
    }
    let mut decoder = Utf8Stream::new();
    let text = decoder.push(&bytes)?;
    decoder.finish()?;
    Ok(Source::Whole(text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned)))
}

/// Feeds a stream of bytes to the speaker, sentence by sentence; trouble is told to the writer.
pub(super) fn feed(mut reader: Box<dyn Read + Send>, mut text: TextSender, sender: &SyncSender<Heard>) {
    let mut decoder = Utf8Stream::new();
    let mut piece = [0; PIECE];
    let failed = loop {
        match reader.read(&mut piece) {
            Ok(0) => break decoder.finish().err().map(Failure::from),
            Ok(n) => match decoder.push(&piece[..n]) {
                // An error means that nobody listens, and then nobody needs to be told.
                Ok(new) if text.push(&new).is_err() => return,
                Ok(_) => {}
                Err(error) => break Some(error.into()),
            },
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => break Some(Failure::failed(format!("cannot read the text: {e}"))),
        }
    };
    match failed {
        Some(failure) => {
            let _ = sender.send(Heard::BadText(failure));
        }
        None => {
            let _ = text.finish();
        }
    }
}
