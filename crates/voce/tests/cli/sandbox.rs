//! A place of its own for each test: empty folders instead of the user's, and copies of models to damage.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::patience::output;
use crate::watchdog;

/// The folder of a small model.
pub(crate) fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/pocket").join(name)
}

pub(crate) struct Sandbox {
    dir: tempfile::TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("out")).unwrap();
        Self { dir }
    }

    /// A path in the folder for results.
    pub(crate) fn out(&self, name: &str) -> PathBuf {
        self.dir.path().join("out").join(name)
    }

    /// What is in the folder for results.
    pub(crate) fn results(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join("out")).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The binary, which sees nothing of the user's environment.
    pub(crate) fn command(&self, args: &[&str]) -> std::process::Command {
        watchdog::arm(None);
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("voce"));
        let variables = std::env::vars().map(|(name, _)| name);
        for name in variables.filter(|n| n.starts_with("VOCE_") || n.starts_with("HF_")) {
            command.env_remove(name);
        }
        command.env("HF_HOME", self.dir.path().join("hub")).env("VOCE_HOME", self.dir.path().join("home"));
        command.env("VOCE_THREADS", "1").args(args).stdin(std::process::Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        output(&mut self.command(args))
    }

    /// Runs to a good end and gives its JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Runs to a bad end: the exit code and the one line that was said.
    pub(crate) fn fails(&self, args: &[&str]) -> (i32, String) {
        failure(&self.run(args))
    }

    /// A copy of a model that a test may damage.
    pub(crate) fn copy(&self, name: &str) -> PathBuf {
        let to = self.dir.path().join(name);
        std::fs::create_dir_all(&to).unwrap();
        for file in ["config.yaml", "model.safetensors", "tokenizer.json", "voice.safetensors"] {
            std::fs::copy(model(name).join(file), to.join(file)).unwrap();
        }
        to
    }
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The exit code and message of a run that failed as it should: one line, no panic.
pub(crate) fn failure(output: &Output) -> (i32, String) {
    let said = stderr(output);
    assert!(!output.status.success(), "succeeded: {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let text = said.trim_end().strip_prefix("voce: error: ").unwrap_or_else(|| panic!("{said}"));
    (output.status.code().unwrap(), text.to_owned())
}

/// A path as an argument.
pub(crate) fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}
