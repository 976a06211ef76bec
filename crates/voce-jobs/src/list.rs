//! Lists of work: NeMo manifests, lists of files, folders, texts; read a line at a time, whatever their length.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use voce_audio::decode::is_recording;

use crate::shard::Shard;
use crate::unit::{Input, Task, Unit};

/// Bytes of a line at most.
pub const MAX_LINE: usize = 1 << 20;
/// Letters of a line that a complaint repeats.
const SHOWN: usize = 80;

/// What a list's lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// A JSON object a line.
    Json,
    /// A file's path, or a text to speak, a line.
    Plain,
    /// What the first line looks like.
    Guess,
}

/// A line that is no unit of work, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Where: `list.jsonl, line 7`.
    pub at: String,
    /// Why it cannot be read.
    pub reason: String,
}

/// What a line of a list is.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// Work.
    Unit(Box<Unit>),
    /// None, and the reason.
    Bad(BadLine),
}

enum Lines {
    Text { reader: Box<dyn BufRead + Send>, kind: ListKind },
    Files(std::vec::IntoIter<PathBuf>),
}

/// Reads a list; gives the entries of one part of it. Broken lines and ids that came before are entries as well.
pub struct List {
    lines: Lines,
    name: String,
    /// Where relative paths start that do not lead anywhere from here.
    base: Option<PathBuf>,
    task: Task,
    shard: Shard,
    line: u64,
    hasher: RandomState,
    /// Lines of the ids so far, by hash.
    seen: HashMap<u64, u64>,
    ended: bool,
}

impl List {
    /// Opens a file with a list, or a folder of audio; `-` is standard input. A single audio file is a list of one.
    pub fn open(path: &Path, task: Task, shard: Shard) -> std::io::Result<Self> {
        let name = path.display().to_string();
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
        if path.as_os_str() == "-" {
            let reader = Box::new(BufReader::new(std::io::stdin()));
            return Ok(Self::read(reader, ListKind::Guess, "standard input".into(), None, task, shard));
        }
        if task == Task::Hear && path.is_dir() {
            let mut files = Vec::new();
            folder(path, &mut files)?;
            return Ok(Self::of_files(files, name, shard));
        }
        if task == Task::Hear && is_recording(path) {
            std::fs::metadata(path)?;
            return Ok(Self::of_files(vec![path.to_owned()], name, shard));
        }
        let kind = match extension.as_str() {
            "jsonl" | "json" | "ndjson" => ListKind::Json,
            _ if task == Task::Say => ListKind::Plain,
            _ => ListKind::Guess,
        };
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(std::io::ErrorKind::IsADirectory.into());
        }
        let base = path.parent().map(Path::to_owned);
        Ok(Self::read(Box::new(BufReader::new(file)), kind, name, base, task, shard))
    }

    /// A list that is read from somewhere; `base` is where relative paths start that lead nowhere from here.
    pub fn read(
        reader: Box<dyn BufRead + Send>,
        kind: ListKind,
        name: String,
        base: Option<PathBuf>,
        task: Task,
        shard: Shard,
    ) -> Self {
        Self::new(Lines::Text { reader, kind }, name, base, task, shard)
    }

    fn of_files(files: Vec<PathBuf>, name: String, shard: Shard) -> Self {
        Self::new(Lines::Files(files.into_iter()), name, None, Task::Hear, shard)
    }

    fn new(lines: Lines, name: String, base: Option<PathBuf>, task: Task, shard: Shard) -> Self {
        let (hasher, seen) = (RandomState::new(), HashMap::new());
        Self { lines, name, base, task, shard, line: 0, hasher, seen, ended: false }
    }

    fn bad(&self, line: u64, reason: impl Into<String>) -> Entry {
        Entry::Bad(BadLine { at: format!("{}, line {line}", self.name), reason: reason.into() })
    }

    /// The next line as a unit; none for an empty one.
    fn next_unit(&mut self) -> Option<Result<Option<Unit>, String>> {
        match &mut self.lines {
            Lines::Files(files) => files.next().map(|path| {
                self.line += 1;
                Ok(Some(Unit::file(path)))
            }),
            Lines::Text { reader, kind } => {
                let mut bytes = Vec::new();
                let whole = match read_line(reader.as_mut(), &mut bytes) {
                    Ok(None) => return None,
                    Ok(Some(whole)) => whole,
                    Err(e) => {
                        self.ended = true;
                        self.line += 1;
                        return Some(Err(format!("cannot be read: {e}")));
                    }
                };
                self.line += 1;
                if !whole {
                    return Some(Err(format!("longer than {MAX_LINE} bytes")));
                }
                let Ok(text) = std::str::from_utf8(&bytes) else {
                    return Some(Err("not UTF-8".into()));
                };
                let text = text.trim_start_matches('\u{feff}').trim();
                if text.is_empty() {
                    return Some(Ok(None));
                }
                if *kind == ListKind::Guess {
                    *kind = if text.starts_with('{') { ListKind::Json } else { ListKind::Plain };
                }
                let unit = match (*kind, self.task) {
                    (ListKind::Json, task) => object(text, task, self.line),
                    (_, Task::Hear) => Ok(Unit::file(text)),
                    (_, Task::Say) => Ok(spoken_line(text, self.line)),
                };
                Some(unit.map(|unit| Some(self.settle(unit))))
            }
        }
    }

    /// Lets a relative path start at the list's folder where it leads to a file from there.
    fn settle(&self, mut unit: Unit) -> Unit {
        if let (Input::Audio { path, .. }, Some(base)) = (&mut unit.input, &self.base)
            && path.is_relative()
            && base.join(&*path).exists()
        {
            *path = base.join(&*path);
        }
        unit
    }
}

impl Iterator for List {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        while !self.ended {
            let read = self.next_unit()?;
            let line = self.line;
            let mine = self.shard.has(line - 1);
            match read {
                Ok(None) => {}
                Err(reason) if mine => return Some(self.bad(line, reason)),
                Err(_) => {}
                Ok(Some(unit)) => {
                    // Every part knows the ids of all lines, so that the first of two is the same for all.
                    let before = *self.seen.entry(self.hasher.hash_one(&unit.id)).or_insert(line);
                    if !mine {
                        continue;
                    }
                    if before != line {
                        let id: String = unit.id.chars().take(SHOWN).collect();
                        let reason =
                            format!("the id '{id}' is that of line {before}: give each line its own");
                        return Some(self.bad(line, reason));
                    }
                    return Some(Entry::Unit(Box::new(unit)));
                }
            }
        }
        None
    }
}

/// Reads up to the end of a line; false where it was too long for `bytes`. None at the end.
fn read_line(reader: &mut dyn BufRead, bytes: &mut Vec<u8>) -> std::io::Result<Option<bool>> {
    let read = reader.take(MAX_LINE as u64 + 1).read_until(b'\n', bytes)?;
    if read == 0 {
        return Ok(None);
    }
    if bytes.last() == Some(&b'\n') || read <= MAX_LINE {
        return Ok(Some(true));
    }
    bytes.clear();
    // The rest of the line goes by, a buffer at a time.
    loop {
        let buffer = reader.fill_buf()?;
        let (used, done) = match buffer.iter().position(|b| *b == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        reader.consume(used);
        if done {
            return Ok(Some(false));
        }
    }
}

fn spoken_line(text: &str, line: u64) -> Unit {
    let input = Input::Text { text: text.to_owned(), voice: None, seed: None };
    Unit { id: format!("line-{line:06}"), input, seconds: None, fields: Map::new() }
}

/// A unit out of a JSON object; what is missing or wrong is named.
fn object(text: &str, task: Task, line: u64) -> Result<Unit, String> {
    let fields: Map<String, Value> = serde_json::from_str(text).map_err(|e| {
        let start: String = text.chars().take(SHOWN).collect();
        format!("no JSON object ({e}): {start}")
    })?;
    let string = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(n)) if name == "id" => Ok(Some(n.to_string())),
        Some(_) => Err(format!("'{name}' is no text")),
    };
    let seconds = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(s) if s.is_finite() && s >= 0.0 => Ok(Some(s)),
            _ => Err(format!("'{name}' is no number of seconds")),
        },
    };
    let id = string("id")?.filter(|id| !id.is_empty());
    if task == Task::Say {
        let text = string("text")?.filter(|t| !t.trim().is_empty()).ok_or("'text' is missing or empty")?;
        let seed = match fields.get("seed") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_u64().ok_or("'seed' is no whole number")?),
        };
        let input = Input::Text { text, voice: string("voice")?, seed };
        let id = id.unwrap_or_else(|| format!("line-{line:06}"));
        return Ok(Unit { id, input, seconds: None, fields });
    }
    let path = match string("audio_filepath")? {
        Some(path) => path,
        None => string("audio")?.or(string("path")?).ok_or("'audio_filepath' is missing")?,
    };
    let (offset, duration) = (seconds("offset")?, seconds("duration")?);
    // Without an offset the whole file is meant, whatever its length was rounded to.
    let part = offset.and(duration);
    let id = id.unwrap_or_else(|| match offset {
        Some(offset) => format!("{path}@{offset}+{}", part.map_or("".into(), |d| d.to_string())),
        None => path.clone(),
    });
    let input = Input::Audio { path: PathBuf::from(path), offset, duration: part };
    Ok(Unit { id, input, seconds: duration, fields })
}

/// Audio files of a folder and below, by name; links to folders are left out, so that there is an end.
fn folder(path: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut paths = std::fs::read_dir(path)?.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() && !path.is_symlink() {
            folder(&path, files)?;
        } else if path.is_file() && is_recording(&path) {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: impl Into<Vec<u8>>, task: Task, shard: &str) -> Vec<Entry> {
        let reader = Box::new(std::io::Cursor::new(text.into()));
        List::read(reader, ListKind::Guess, "l".into(), None, task, shard.parse().unwrap()).collect()
    }

    fn ids(entries: &[Entry]) -> Vec<String> {
        let id = |e: &Entry| match e {
            Entry::Unit(unit) => unit.id.clone(),
            Entry::Bad(bad) => format!("{}: {}", bad.at, bad.reason),
        };
        entries.iter().map(id).collect()
    }

    #[test]
    fn manifests_of_nemo() {
        let text = r#"{"audio_filepath": "a.wav", "duration": 2.5, "text": "hi"}

{"audio_filepath": "a.wav", "offset": 1.5, "duration": 2}
{"id": 7, "audio_filepath": "b.wav"}
"#;
        let got = list(text, Task::Hear, "none");
        assert_eq!(ids(&got), ["a.wav", "a.wav@1.5+2", "7"]);
        let Entry::Unit(first) = &got[0] else { panic!() };
        assert_eq!((first.seconds, &first.fields["text"]), (Some(2.5), &Value::from("hi")));
        assert_eq!(first.input, Input::Audio { path: "a.wav".into(), offset: None, duration: None });
        let Entry::Unit(second) = &got[1] else { panic!() };
        assert_eq!(
            second.input,
            Input::Audio { path: "a.wav".into(), offset: Some(1.5), duration: Some(2.0) }
        );
    }

    #[test]
    fn what_is_broken_is_named_and_the_rest_runs() {
        let mut text = Vec::new();
        text.extend(b"{\"audio_filepath\": \"a.wav\"}\n{\"audio_filepath\": 3}\n{nonsense\n[1]\n");
        text.extend(
            b"{\"audio_filepath\": \"a.wav\"}\n{\"audio_filepath\": \"b\", \"duration\": -1}\n\xff\xfe\n{}\n",
        );
        text.extend(b"{\"audio_filepath\": \"c.wav\"}");
        let got = ids(&list(text, Task::Hear, "none"));
        assert_eq!(got.len(), 9);
        assert_eq!((got[0].as_str(), got[8].as_str()), ("a.wav", "c.wav"));
        for (i, part) in [
            (1, "line 2: 'audio_filepath' is no text"),
            (2, "line 3: no JSON object"),
            (3, "line 4: no JSON object"),
            (4, "line 5: the id 'a.wav' is that of line 1"),
            (5, "line 6: 'duration' is no number of seconds"),
            (6, "line 7: not UTF-8"),
            (7, "line 8: 'audio_filepath' is missing"),
        ] {
            assert!(got[i].contains(part), "{}", got[i]);
        }
    }

    #[test]
    fn parts_share_a_list_and_agree_on_doubles() {
        let text = "a\nb\na\nc\nb\nd\n";
        let all: Vec<String> = (0..3).flat_map(|i| ids(&list(text, Task::Hear, &format!("{i}/3")))).collect();
        let good: Vec<&String> = all.iter().filter(|id| id.len() == 1).collect();
        assert_eq!(all.len(), 6);
        assert_eq!(good, ["a", "c", "b", "d"]);
    }

    #[test]
    fn a_line_at_the_limit_and_one_past_it() {
        let line = |n: usize| format!("{}\nz\n", "x".repeat(n));
        assert_eq!(list(line(MAX_LINE - 1), Task::Hear, "none").len(), 2);
        let got = ids(&list(line(MAX_LINE), Task::Hear, "none"));
        assert_eq!(got[0].len(), MAX_LINE);
        let got = ids(&list(line(MAX_LINE + 1), Task::Hear, "none"));
        assert_eq!(got, ["l, line 1: longer than 1048576 bytes", "z"]);
    }

    #[test]
    fn texts_to_speak() {
        let got = list("Hello there.\n\nGood bye.\n", Task::Say, "none");
        assert_eq!(ids(&got), ["line-000001", "line-000003"]);
        let got = list(r#"{"id": "x", "text": "Hi.", "voice": "anna", "seed": 3}"#, Task::Say, "none");
        let Entry::Unit(unit) = &got[0] else { panic!() };
        let want = Input::Text { text: "Hi.".into(), voice: Some("anna".into()), seed: Some(3) };
        assert_eq!(unit.input, want);
        assert!(ids(&list(r#"{"text": " "}"#, Task::Say, "none"))[0].contains("'text' is missing or empty"));
    }

    #[test]
    fn folders_and_paths_beside_the_list() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        for name in ["b.WAV", "a.mp3", "notes.txt", "sub/c.flac"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        let files: Vec<Entry> = List::open(dir.path(), Task::Hear, Shard::WHOLE).unwrap().collect();
        assert_eq!(files.len(), 3);
        let manifest = dir.path().join("list.jsonl");
        std::fs::write(
            &manifest,
            "{\"audio_filepath\": \"sub/c.flac\"}\n{\"audio_filepath\": \"none.wav\"}\n",
        )
        .unwrap();
        let got: Vec<Entry> = List::open(&manifest, Task::Hear, Shard::WHOLE).unwrap().collect();
        let [Entry::Unit(a), Entry::Unit(b)] = &got[..] else { panic!("{got:?}") };
        // The id is as the list has it, wherever the list lies.
        assert_eq!((a.id.as_str(), a.path()), ("sub/c.flac", Some(dir.path().join("sub/c.flac").as_path())));
        assert_eq!(b.path(), Some(Path::new("none.wav")));
        assert!(List::open(&dir.path().join("gone.jsonl"), Task::Hear, Shard::WHOLE).is_err());
    }
}
