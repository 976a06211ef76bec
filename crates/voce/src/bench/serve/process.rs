//! The server under test: a process of its own, and what it uses.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::args::BenchServeArgs;
use crate::failure::{Failure, Outcome};

/// A server that runs.
pub(super) struct Served {
    base: String,
    process: Option<Child>,
    /// Streams it takes, where it is known.
    pub(super) capacity: Option<usize>,
}

impl Served {
    /// Starts a server, or names the one that runs.
    pub(super) fn start(args: &BenchServeArgs) -> Outcome<Self> {
        if let Some(url) = &args.url {
            let base = url.replacen("http", "ws", 1).trim_end_matches('/').to_owned();
            return Ok(Self { base, process: None, capacity: None });
        }
        let program =
            std::env::current_exe().map_err(|e| Failure::failed(format!("cannot find myself: {e}")))?;
        let capacity = args.streams;
        let mut command = Command::new(program);
        command.args([
            "--quiet",
            "--json",
            "serve",
            "--port",
            "0",
            "--no-speak",
            "--log",
            "warn",
            "--hear-slots",
        ]);
        command.arg(capacity.to_string());
        match &args.model {
            Some(model) => command.args(["--hear", model]),
            None => command.arg("--null-model"),
        };
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|e| Failure::failed(format!("cannot start the server: {e}")))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(|e| Failure::failed(e.to_string()))?;
        }
        let address = serde_json::from_str::<serde_json::Value>(&line)
            .ok()
            .and_then(|v| v["url"].as_str().map(str::to_owned));
        let Some(address) = address else {
            let _ = child.kill();
            return Err(Failure::failed("the server did not say where it listens"));
        };
        let base = address.replacen("http", "ws", 1).trim_end_matches('/').to_owned();
        Ok(Self { base, process: Some(child), capacity: Some(capacity) })
    }

    /// Where streams connect.
    pub(super) fn listen_url(&self) -> String {
        format!("{}/v1/listen?encoding=linear16&sample_rate=16000&channels=1", self.base)
    }

    /// Processor time so far.
    pub(super) fn cpu(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.as_ref()?.id())).ok()?;
        // Fields 14 and 15, counted behind the name, which may hold anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        // A tick is 10 ms wherever Linux runs.
        Some(Duration::from_millis(10 * ticks))
    }

    /// Resident bytes.
    pub(super) fn rss(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.as_ref()?.id())).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(child) = &mut self.process {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
