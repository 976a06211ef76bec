//! `voce completions` and `voce man`: what shells and `man` read.

use std::io::Write as _;
use std::path::PathBuf;

use clap::CommandFactory as _;

use crate::args::Cli;
use crate::console::Console;
use crate::failure::{Failure, Outcome};

/// Prints a completion script.
pub(crate) fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "voce", &mut script);
    let mut out = std::io::stdout().lock();
    out.write_all(&script)?;
    Ok(out.flush()?)
}

/// Prints the page of `voce`, or writes a page for each command into a folder.
pub(crate) fn man(console: Console, dir: Option<PathBuf>) -> Outcome {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        let mut out = std::io::stdout().lock();
        out.write_all(&page)?;
        return Ok(out.flush()?);
    };
    let fail = |e: std::io::Error| Failure::failed(format!("cannot write pages into {}: {e}", dir.display()));
    std::fs::create_dir_all(&dir).map_err(fail)?;
    clap_mangen::generate_to(Cli::command(), &dir).map_err(fail)?;
    console.note(&format!("wrote the manual pages into {}", dir.display()));
    Ok(())
}
