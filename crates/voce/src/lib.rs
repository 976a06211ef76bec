//! The `voce` program: parses arguments, wires the engine, prints. A library so that the Python package has the same command
//! line; nothing else is to be built on it.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod bulk;
mod codec;
mod console;
mod demo;
mod device;
mod doctor;
mod embedded;
mod failure;
mod hear;
mod interrupt;
#[cfg(feature = "nats")]
mod jobs;
mod kernels;
mod machine;
mod manual;
mod models;
mod pull;
mod route;
mod say;
mod serve;
mod show;
mod talk;
mod voices;
mod whole_file;
mod word_errors;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};

use clap::Parser as _;
use clap::error::ErrorKind;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use args::{Cli, Command, Talk};
use console::Console;
use failure::{Failure, Outcome};

/// Runs the command line `args`, the program's name first, in a process that does nothing else: signals are caught, and
/// large blocks of memory go back to the system. Returns the exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    voce_runtime::return_large_blocks();
    let outcome = parse(args).and_then(|cli| match cli {
        Some(cli) => run(cli),
        None => Ok(()),
    });
    // A host that ends the process in its own way does not write out what waits.
    let _ = std::io::stdout().flush();
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            if let Some(text) = failure.message() {
                console::error(&text);
            }
            failure.code()
        }
    }
}

/// The command line; `None` where help or the version was asked for and printed.
fn parse(args: impl IntoIterator<Item = OsString>) -> Outcome<Option<Cli>> {
    let error = match Cli::try_parse_from(args) {
        Ok(cli) => return Ok(Some(cli)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = error.render();
            let mut out = std::io::stdout().lock();
            if out.is_terminal() {
                write!(out, "{}", text.ansi())?
            } else {
                write!(out, "{text}")?
            }
            Ok(None)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            console::note(&error.render().to_string());
            Err(Failure::usage("a command is missing: see the list above"))
        }
        _ => {
            // The first paragraph says what is wrong; what follows is usage, which --help has as well.
            let text = error.render().to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            let first = first.strip_prefix("error: ").unwrap_or(first).trim_end();
            Err(Failure::usage(format!("{first}; see --help")))
        }
    }
}

fn run(cli: Cli) -> Outcome {
    // A server says what it does; commands are asked to.
    let level = match &cli.command {
        Command::Serve(args) | Command::Worker(args) if args.silent => Some("off"),
        Command::Serve(args) | Command::Worker(args) => Some(args.log.as_str()),
        Command::Route(_) => Some("info"),
        _ => None,
    };
    log(&cli.talk, level);
    interrupt::listen();
    let console = Console { quiet: cli.talk.quiet, json: cli.talk.json };
    match cli.command {
        Command::Say(args) => say::run(console, args),
        Command::Serve(args) => serve::run(console, *args),
        Command::Route(args) => route::run(console, args),
        Command::Hear(args) => hear::run(console, args),
        Command::Bulk(args) => bulk::run(console, *args),
        #[cfg(feature = "nats")]
        Command::Work(args) => jobs::work(console, *args),
        #[cfg(feature = "nats")]
        Command::Jobs(command) => jobs::run(console, command),
        Command::Talk(args) => talk::run(console, *args),
        Command::Worker(args) => serve::worker(console, *args),
        Command::Validate { configs } => serve::validate(console, &configs),
        Command::Configs { which } => serve::configs(&which),
        Command::Demo(args) => demo::run(console, args),
        Command::Voice(command) => voices::run(console, command),
        Command::Codec(command) => codec::run(console, command),
        Command::Pull(args) => pull::run(console, args),
        Command::List(args) => models::list(console, args),
        Command::Show(args) => show::run(console, args),
        Command::Rm(args) => models::remove(console, args),
        Command::Bench(command) => bench::run(console, command),
        Command::Doctor(args) => match &args.compile_kernels {
            Some(generations) => kernels::run(console, generations, args.into.as_deref()),
            None => doctor::run(console),
        },
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { dir } => manual::man(console, dir),
    }
}

/// Logs go to standard error: `VOCE_LOG` if set, else by how often `-v` was given.
fn log(talk: &Talk, wanted: Option<&str>) {
    let level = match (talk.quiet, talk.verbose) {
        (true, _) => "error",
        (_, 0) => wanted.unwrap_or("warn"),
        (_, 1) => "info",
        (_, 2) => "debug",
        _ => "trace",
    };
    let named = std::env::var("VOCE_LOG").unwrap_or_default();
    let (filter, error) = match (named.is_empty(), named.parse::<Targets>()) {
        (false, Ok(filter)) => (filter, None),
        (is_unset, read) => (level.parse().unwrap_or_default(), read.err().filter(|_| !is_unset)),
    };
    // Fails only where a logger is set already, and then that one will do.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time();
    let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
    if let Some(error) = error {
        tracing::warn!(%error, named, "VOCE_LOG is no filter such as `info` or `warn,voce_engine=debug`");
    }
}
