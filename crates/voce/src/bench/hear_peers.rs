//! Other recognisers on the same model, in the same run: transformers, and sherpa-onnx where it was exported.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use voce_engine::listener::ListenerInfo;
use voce_engine::store::Store;

use super::hear_args::BenchHearArgs;
use crate::console::{Console, round};
use crate::failure::{Failure, Outcome};

/// Times the peers with as many streams, threads and seconds, and says how they compare to `ours` streams a core.
pub(super) fn compare(
    console: Console,
    args: &BenchHearArgs,
    info: &ListenerInfo,
    python: &Path,
    ours: Option<f64>,
) -> Outcome {
    let Some(model) = &args.model else {
        return Err(Failure::usage(
            "--peer needs --model DIR: the others cannot make the same random weights",
        ));
    };
    // Each family keeps the programs that it is compared with beside its reference.
    let family = Store::from_env()?.identify(model)?.family;
    let name = format!("reference/{family}/bench_peers.py");
    let runner = runner(&name).ok_or_else(|| {
        Failure::failed(format!("{name} was not found: run this inside a checkout of the project"))
    })?;
    let chunk = args.chunk.first().copied().or(info.default_chunk_ms);
    let mode = if chunk.is_some() { "stream" } else { "offline" };
    let look_ahead = chunk.map_or(6, |ms| (ms / info.frame_ms).saturating_sub(1));
    let run = |peer: &[&str]| {
        let mut command = Command::new(python);
        command.arg(&runner).args(peer).args(["--mode", mode]);
        command.args([
            "--lookahead",
            &look_ahead.to_string(),
            "--batch",
            &args.streams.first().copied().unwrap_or(1).to_string(),
        ]);
        command.args(["--threads", &info.threads.to_string(), "--seconds", &args.seconds.to_string()]);
        command.args(["--repeat", &args.repeat.max(2).to_string()]);
        lines(command)
    };
    console.note(&format!("running {}", runner.display()));
    let mut peers = run(&["transformers", "--model", model])?;
    if let Some(onnx) = &args.peer_onnx {
        peers.extend(run(&["sherpa", "--onnx", &onnx.display().to_string()])?);
    }
    for mut peer in peers {
        let theirs = peer["streams_per_core"].as_f64();
        let times = ours.zip(theirs).map(|(a, b)| round(a / b.max(1e-9), 2));
        if console.json {
            peer["times_as_fast"] = json!(times);
            console.json(&peer)?;
            continue;
        }
        let number = |v: Option<f64>| v.map_or_else(|| "?".into(), |v| format!("{v:.2}"));
        console.result(&format!(
            "{} {}: {} streams a core; voce hears {} times as many",
            peer["peer"].as_str().unwrap_or_default(),
            peer["dtype"].as_str().unwrap_or_default(),
            number(theirs),
            number(times),
        ))?;
    }
    Ok(())
}

/// The objects that a program prints, one a line.
fn lines(mut command: Command) -> Outcome<Vec<Value>> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| Failure::failed(format!("cannot run {command:?}: {e}")))?;
    if !output.status.success() {
        let text = format!("{command:?} ended with {}: try it by itself", output.status);
        return Err(Failure::failed(text));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// The runner in this folder, in one above it, or above the binary.
fn runner(name: &str) -> Option<PathBuf> {
    let starts = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let mut folders = starts.iter().flatten().flat_map(|start| start.ancestors());
    folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))
}
