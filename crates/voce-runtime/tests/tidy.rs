//! Rules of the workspace that the compiler does not know: headers, sizes, arrows, `unsafe`, channels, paths.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What each crate may depend on, lowest first. Arrows point down only.
const ARROWS: [(&str, &[&str]); 12] = [
    ("voce-runtime", &[]),
    ("voce-nn", &["voce-runtime"]),
    ("voce-text", &[]),
    ("voce-audio", &[]),
    ("voce-models", &["voce-runtime", "voce-nn", "voce-text", "voce-audio"]),
    ("voce-engine", &["voce-runtime", "voce-nn", "voce-text", "voce-audio", "voce-models"]),
    ("voce-jobs", &["voce-audio", "voce-engine"]),
    (
        "voce-server",
        &["voce-runtime", "voce-nn", "voce-text", "voce-audio", "voce-models", "voce-engine", "voce-jobs"],
    ),
    ("voce-nano", &["voce-audio", "voce-engine"]),
    (
        "voce",
        &[
            "voce-runtime",
            "voce-nn",
            "voce-text",
            "voce-audio",
            "voce-models",
            "voce-engine",
            "voce-jobs",
            "voce-server",
            "voce-nano",
        ],
    ),
    ("voce-c", &["voce-engine", "voce-nano"]),
    ("voce-python", &["voce-runtime", "voce-audio", "voce-engine", "voce-nano", "voce"]),
];

/// Crates that may use `unsafe`, with a SAFETY line for each block: kernels, and the boundary to C.
const UNSAFE_CRATES: [&str; 2] = ["voce-runtime", "voce-c"];

/// Past this a source file is two things.
const MAX_LINES: usize = 700;

/// The command that the README gives for testing and that continuous integration runs.
const TEST_COMMAND: &str = "cargo test --workspace";

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the workspace is there")
}

struct File {
    /// Relative to the workspace, with `/` between its parts.
    name: String,
    text: String,
}

/// Files under a folder of the workspace with one of these extensions.
fn files(folder: &str, extensions: &[&str]) -> Vec<File> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.map(|e| e.expect("a readable folder").path()) {
            let hidden = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
            if path.is_dir() && !hidden {
                folders.push(path);
            } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
                let name = path.strip_prefix(&root).expect("inside the workspace");
                let name = name.to_string_lossy().replace('\\', "/");
                let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
                found.push(File { name, text });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Rust files of the crates, this one left out: it names what it forbids.
fn rust() -> Vec<File> {
    let mut files = files("crates", &["rs"]);
    files.retain(|f| f.name != "crates/voce-runtime/tests/tidy.rs");
    assert!(files.len() > 100, "only {} files found", files.len());
    files
}

/// Rust files under `crates/*/src`.
fn sources() -> Vec<File> {
    let mut files = rust();
    files.retain(|f| f.name.split('/').nth(2) == Some("src"));
    files
}

/// Fails with every complaint, not only the first.
#[track_caller]
fn none(rule: &str, complaints: Vec<String>) {
    let mut text = String::new();
    for c in &complaints {
        let _ = write!(text, "\n  {c}");
    }
    assert!(complaints.is_empty(), "{rule}:{text}");
}

/// Lines that match, as `file:line: text`.
fn lines(files: &[File], matches: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for f in files {
        for (i, line) in f.text.lines().enumerate().filter(|(_, line)| matches(line)) {
            found.push(format!("{}:{}: {}", f.name, i + 1, line.trim()));
        }
    }
    found
}

/// Whether a line of code uses the keyword, as opposed to a word in a sentence.
fn is_unsafe(line: &str) -> bool {
    line.split("unsafe").skip(1).any(|rest| {
        let rest = rest.trim_start();
        rest.starts_with('{')
            || ["fn ", "impl ", "impl<", "trait ", "extern "].iter().any(|k| rest.starts_with(k))
    })
}

#[test]
fn every_source_file_says_what_it_is() {
    let silent = sources().into_iter().filter(|f| !f.text.starts_with("//!"));
    none("files begin with a `//!` line", silent.map(|f| f.name).collect());
}

#[test]
fn source_files_are_about_one_thing() {
    let long =
        sources().into_iter().map(|f| (f.text.lines().count(), f.name)).filter(|(n, _)| *n > MAX_LINES);
    none(&format!("files have at most {MAX_LINES} lines"), long.map(|(n, f)| format!("{f}: {n}")).collect());
}

#[test]
fn only_the_runtime_and_the_c_boundary_are_unsafe() {
    let mut files = rust();
    files.retain(|f| !UNSAFE_CRATES.iter().any(|krate| f.name.starts_with(&format!("crates/{krate}/"))));
    none(&format!("`unsafe` is only in {}", UNSAFE_CRATES.join(" and ")), lines(&files, is_unsafe));
    let roots = ARROWS.iter().filter(|(krate, _)| !UNSAFE_CRATES.contains(krate)).flat_map(|(krate, _)| {
        let own: Vec<&File> = files
            .iter()
            .filter(|f| ["lib.rs", "main.rs"].iter().any(|r| f.name == format!("crates/{krate}/src/{r}")))
            .collect();
        assert!(!own.is_empty(), "{krate} has no root");
        own
    });
    let open = roots.filter(|f| !f.text.contains("#![forbid(unsafe_code)]"));
    none("crate roots forbid unsafe code", open.map(|f| f.name.clone()).collect());
}

/// In the crate at the C boundary, pointers are looked behind in one file; its entries only hand them on to it.
#[test]
fn c_pointers_become_references_in_one_file() {
    let mut files = files("crates/voce-c/src", &["rs"]);
    files.retain(|f| f.name != "crates/voce-c/src/boundary.rs");
    assert!(!files.is_empty());
    let looks =
        ["from_raw", "from_ptr", ".read()", ".as_ref()", "copy_to", "copy_from", "transmute", "assume_init"];
    none(
        "boundary.rs looks behind pointers",
        lines(&files, |line| looks.iter().any(|look| line.contains(look))),
    );
}

#[test]
fn arrows_point_down() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for f in files("crates", &["toml"]).iter().filter(|f| f.name.ends_with("/Cargo.toml")) {
        let Some(krate) = f.name.strip_prefix("crates/").and_then(|n| n.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == krate) else {
            wrong.push(format!("{krate} is not in the table of this test"));
            continue;
        };
        seen += 1;
        let mut in_dependencies = false;
        for line in f.text.lines().map(str::trim) {
            if line.starts_with('[') {
                in_dependencies = line.ends_with("dependencies]");
            } else if in_dependencies && line.starts_with("voce") {
                let end = line.find(['.', ' ', '=']).unwrap_or(line.len());
                // A crate may name itself, to test with its own features.
                if &line[..end] != krate && !allowed.contains(&&line[..end]) {
                    wrong.push(format!("{krate} -> {}", &line[..end]));
                }
            }
        }
    }
    assert_eq!(seen, ARROWS.len(), "every crate of the table exists");
    none("crates depend only on those below them", wrong);
}

#[test]
fn channels_are_bounded() {
    let open = |line: &str| {
        ["unbounded", "mpsc::channel()", "mpsc::channel::<", "mpsc::{channel", ", channel}"]
            .iter()
            .any(|what| line.contains(what))
    };
    none("every channel has a limit", lines(&sources(), open));
}

#[test]
fn nothing_is_left_for_later() {
    let left =
        |line: &str| ["TODO", "FIXME", "todo!(", "unimplemented!("].iter().any(|what| line.contains(what));
    none("work is an issue, not a mark in the code", lines(&rust(), left));
}

#[test]
fn no_file_names_a_place_on_one_machine() {
    let root = root();
    let mut places = vec!["/home/".to_owned(), "/root/".to_owned(), "/Users/".to_owned()];
    // A root such as `/src` would match honest text.
    if root.components().count() > 2 {
        places.push(root.to_string_lossy().into_owned());
    }
    let mut all = rust();
    for folder in ["crates", "docs", "bench", "reference", "training"] {
        all.extend(files(folder, &["md", "py", "sh", "toml", "yaml"]));
    }
    all.extend(files("bench", &["jsonl"]));
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "Cargo.toml", ".ci/run"] {
        let text = fs::read_to_string(root.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        all.push(File { name: name.to_owned(), text });
    }
    none("paths are relative", lines(&all, |line| places.iter().any(|p| line.contains(p.as_str()))));
}

#[test]
fn the_readme_and_ci_test_alike() {
    for name in ["README.md", ".ci/run"] {
        let text = fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(text.lines().any(|l| l.trim() == TEST_COMMAND), "{name} has no line `{TEST_COMMAND}`");
    }
}
