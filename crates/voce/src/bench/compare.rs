//! Other programs: a command timed on the same text, and the peers' runner.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::ValueEnum;
use serde_json::json;

use super::Subject;
use super::args::BenchSayArgs;
use super::measure::{Runs, deviation, mean};
use super::texts::Text;
use crate::console::{Console, round};
use crate::failure::{Failure, Outcome};
use crate::interrupt;

/// Where the peers' runner lies below the project's folder.
const RUNNER: &str = "bench/peers/run_peers.py";

/// Times the command to compare with on a text, from its start to its end, and compares it with `voce say` timed the same way.
pub(super) fn command(
    console: Console,
    args: &BenchSayArgs,
    subject: &Subject,
    text: &Text,
    runs: &Runs,
) -> Outcome {
    let command = args.compare.as_deref().unwrap_or_default();
    let repeat = args.repeat.unwrap_or(3).max(1);
    let line = command.replace("{text}", &quoted(text.text));
    let theirs = timed(repeat, || {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(&line);
        shell
    })?;
    let (ours, how) = match subject {
        Subject::Model(model) => (timed(repeat, || own(args, model, text.text))?, "voce say as a process"),
        // Random weights cannot be had from a process of their own: only speaking is timed.
        Subject::Shape(_) => (runs.each(|r| r.wall), "speaking alone, without start and loading"),
    };
    let ratio = mean(&theirs) / mean(&ours).max(1e-9);
    if console.json {
        return console.json(&json!({
            "text": text.name, "words": text.words(), "command": command, "against": how,
            "command_ms": round(mean(&theirs) * 1e3, 3), "command_sd_ms": round(deviation(&theirs) * 1e3, 3),
            "voce_ms": round(mean(&ours) * 1e3, 3), "voce_sd_ms": round(deviation(&ours) * 1e3, 3),
            "ratio": round(ratio, 3),
        }));
    }
    console.result(&format!(
        "{}: {command}: {:.0} ± {:.0} ms; voce ({how}): {:.0} ± {:.0} ms; voce is {ratio:.2} times as fast",
        text.name,
        mean(&theirs) * 1e3,
        deviation(&theirs) * 1e3,
        mean(&ours) * 1e3,
        deviation(&ours) * 1e3,
    ))
}

fn own(args: &BenchSayArgs, model: &str, text: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "voce".into()));
    command.args(["say", "-q", "--model", model, "-o", "/dev/null", "--format", "wav", "--seed", "1"]);
    command.args(["--lockstep", &args.lockstep.to_string()]);
    // Several settings are compared one by one; the command is timed against the first of each.
    if let Some(precision) = args.precision.first() {
        let value = precision.to_possible_value().expect("no precision is hidden");
        command.args(["--precision", value.get_name()]);
    }
    if let super::args::Threads::Fixed(threads) = args.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    if let Some(voice) = &args.voice {
        command.args(["--voice", voice]);
    }
    command.args(["--", text]);
    command
}

/// Seconds of each run after one to warm up; a run that fails is an error.
fn timed(repeat: usize, make: impl Fn() -> Command) -> Outcome<Vec<f64>> {
    let mut seconds = Vec::new();
    for run in 0..=repeat {
        let mut command = make();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        let status = command.status();
        interrupt::check()?;
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => {
                return Err(Failure::failed(format!("{command:?} ended with {status}: try it by itself")));
            }
            Err(e) => return Err(Failure::failed(format!("cannot run {command:?}: {e}"))),
        }
        if run > 0 {
            seconds.push(begun.elapsed().as_secs_f64());
        }
    }
    Ok(seconds)
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Runs the peers' benchmark, which starts this binary among the others.
pub(super) fn peers(console: Console, args: &BenchSayArgs, subject: &Subject, python: &Path) -> Outcome {
    let Subject::Model(model) = subject else {
        return Err(Failure::usage("--peer needs --model DIR: the others cannot make random weights"));
    };
    let runner = runner().ok_or_else(|| {
        Failure::failed(format!("{RUNNER} was not found: run this inside a checkout of the project"))
    })?;
    let exe =
        std::env::current_exe().map_err(|e| Failure::failed(format!("cannot find this program: {e}")))?;
    let mut command = Command::new(python);
    command.arg(&runner).args(["--model", model]).arg("--voce").arg(exe).arg("--peer-python").arg(python);
    if let Some(frames) = args.frames {
        command.args(["--frames", &frames.to_string()]);
    }
    if let Some(repeat) = args.repeat {
        command.args(["--repeats", &repeat.to_string()]);
    }
    console.note(&format!("running {}", runner.display()));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::failed(format!("{} ended with {status}", runner.display()))),
        Err(e) => Err(Failure::failed(format!("cannot run {}: {e}", python.display()))),
    }
}

/// The runner in this folder, in one above it, or above the binary.
fn runner() -> Option<PathBuf> {
    let starts = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let mut folders = starts.iter().flatten().flat_map(|start| start.ancestors());
    folders.find_map(|folder| Some(folder.join(RUNNER)).filter(|path| path.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_survives_a_shell() {
        let text = "it's \"$HOME\" `x` \\ end";
        let out = Command::new("sh").arg("-c").arg(format!("printf %s {}", quoted(text))).output().unwrap();
        assert_eq!(String::from_utf8(out.stdout).unwrap(), text);
    }
}
