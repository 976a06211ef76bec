//! The writer's side: a folder a day, a file a stream under another name until it is whole, and the oldest files removed where
//! there are too many bytes.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use voce_audio::wav::{WavSample, wav_header};

use super::JournalOptions;
use super::ring::{Item, Ring};
use super::salvage::salvage;
use crate::core::metrics::{Metrics, OutcomeLabel, WhatLabel};

/// Bytes of one file.
const MAX_FILE: u64 = 256 << 20;
/// How often the log hears of a disk that fails.
const COMPLAIN: Duration = Duration::from_secs(60);
/// What the name of a file ends with until it is whole.
const UNFINISHED: &str = "part";

/// Where bytes of a file go.
pub(super) trait Sink: Write + Seek + Send {}
impl<T: Write + Seek + Send> Sink for T {}

/// Makes a file.
pub(super) type Create = Box<dyn FnMut(&Path) -> io::Result<Box<dyn Sink>> + Send>;

/// Writes what streams leave.
pub(super) struct Writer {
    tokens: Option<Folder>,
    audio: Option<Folder>,
    create: Create,
    open: HashMap<u64, Entry>,
    metrics: Metrics,
    complained: Option<Instant>,
}

/// The files of one stream.
struct Entry {
    name: String,
    rate: u32,
    tokens: Kept,
    audio: Kept,
}

/// One file of a stream.
enum Kept {
    /// Nothing has come yet.
    Not,
    Open {
        file: Box<dyn Sink>,
        path: PathBuf,
        bytes: u64,
    },
    /// It could not be written.
    Failed,
}

/// A folder and the whole files that are in it, oldest first.
struct Folder {
    root: PathBuf,
    limit: u64,
    files: VecDeque<(PathBuf, u64)>,
    bytes: u64,
}

impl Writer {
    pub(super) fn new(options: JournalOptions, metrics: Metrics) -> Self {
        let create = |path: &Path| -> io::Result<Box<dyn Sink>> {
            if let Some(folder) = path.parent() {
                make_folder(folder)?;
            }
            Ok(Box::new(BufWriter::new(new_file(path)?)))
        };
        Self::with(options, metrics, Box::new(create))
    }

    pub(super) fn with(options: JournalOptions, metrics: Metrics, create: Create) -> Self {
        let folder = |root: PathBuf| Folder::open(root, options.limit);
        Self {
            tokens: options.tokens.map(folder),
            audio: options.audio.map(folder),
            create,
            open: HashMap::new(),
            metrics,
            complained: None,
        }
    }

    /// Whether it keeps tokens, and audio.
    pub(super) fn keeps(&self) -> (bool, bool) {
        (self.tokens.is_some(), self.audio.is_some())
    }

    /// Writes until nothing more comes.
    pub(super) fn run(mut self, ring: &Ring) {
        while let Some(items) = ring.take() {
            for item in items {
                self.write(item);
            }
        }
        let rest: Vec<u64> = self.open.keys().copied().collect();
        rest.into_iter().for_each(|id| self.write(Item::Close { id }));
    }

    fn write(&mut self, item: Item) {
        match item {
            Item::Open { id, kind, model, rate, unix } => {
                let entry =
                    Entry { name: name(id, kind, &model, unix), rate, tokens: Kept::Not, audio: Kept::Not };
                self.open.insert(id, entry);
            }
            Item::Line { id, text } => self.append(id, false, text.as_bytes()),
            Item::Audio { id, bytes } => self.append(id, true, &bytes),
            Item::Close { id } => {
                let Some(Entry { rate, tokens, audio, .. }) = self.open.remove(&id) else { return };
                self.finish(tokens, None);
                self.finish(audio, Some(rate));
            }
        }
    }

    fn append(&mut self, id: u64, is_audio: bool, bytes: &[u8]) {
        let (folder, end) = if is_audio { (&self.audio, "wav") } else { (&self.tokens, "jsonl") };
        let (Some(folder), Some(entry)) = (folder, self.open.get_mut(&id)) else { return };
        let kept = if is_audio { &mut entry.audio } else { &mut entry.tokens };
        if matches!(kept, Kept::Not) {
            let path = folder.root.join(format!("{}.{end}.{UNFINISHED}", entry.name));
            let header = if is_audio { wav_header(entry.rate, WavSample::S16, Some(0)) } else { Vec::new() };
            let made = (self.create)(&path).and_then(|mut file| file.write_all(&header).map(|()| file));
            *kept = match made {
                Ok(file) => Kept::Open { file, path, bytes: header.len() as u64 },
                Err(error) => {
                    let _ = fs::remove_file(&path);
                    complain(&mut self.complained, &path, &error);
                    Kept::Failed
                }
            };
        }
        self.extend(id, is_audio, bytes);
    }

    /// Adds to a file that is there; what cannot be added is counted.
    fn extend(&mut self, id: u64, is_audio: bool, more: &[u8]) {
        let Some(entry) = self.open.get_mut(&id) else { return };
        let kept = if is_audio { &mut entry.audio } else { &mut entry.tokens };
        let what = if is_audio { "audio" } else { "tokens" };
        let failed = match kept {
            Kept::Open { file, bytes, .. } if *bytes + more.len() as u64 <= MAX_FILE => {
                match file.write_all(more) {
                    Ok(()) => {
                        *bytes += more.len() as u64;
                        return;
                    }
                    Err(error) => Some(error),
                }
            }
            _ => None,
        };
        self.metrics.journal_dropped.get_or_create(&WhatLabel { what }).inc();
        if let Some(error) = failed
            && let Kept::Open { path, .. } = std::mem::replace(kept, Kept::Failed)
        {
            let _ = fs::remove_file(&path);
            complain(&mut self.complained, &path, &error);
        }
    }

    /// Makes a file whole and gives it its name.
    fn finish(&mut self, kept: Kept, rate: Option<u32>) {
        let (mut file, path, bytes) = match kept {
            Kept::Not => return,
            Kept::Failed => return self.count("failed"),
            Kept::Open { file, path, bytes } => (file, path, bytes),
        };
        let mut settle = || {
            if let Some(rate) = rate {
                let header = wav_header(rate, WavSample::S16, Some(0)).len() as u64;
                let samples = u32::try_from(bytes.saturating_sub(header) / 2).unwrap_or(u32::MAX);
                file.seek(SeekFrom::Start(0))?;
                file.write_all(&wav_header(rate, WavSample::S16, Some(samples)))?;
            }
            file.flush()
        };
        let settled = settle();
        drop(file);
        let whole = path.with_extension("");
        match settled.and_then(|()| fs::rename(&path, &whole)) {
            Ok(()) => {
                self.count("written");
                let folder = if rate.is_some() { &mut self.audio } else { &mut self.tokens };
                if let Some(folder) = folder {
                    folder.add(whole, bytes);
                }
            }
            Err(error) => {
                let _ = fs::remove_file(&path);
                complain(&mut self.complained, &path, &error);
                self.count("failed");
            }
        }
    }

    fn count(&self, outcome: &'static str) {
        self.metrics.journal_files.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}

/// Says now and then that streams cannot be kept.
fn complain(complained: &mut Option<Instant>, path: &Path, error: &io::Error) {
    if complained.is_none_or(|at| at.elapsed() >= COMPLAIN) {
        *complained = Some(Instant::now());
        tracing::warn!(path = %path.display(), %error, "a stream could not be kept; streams go on");
    }
}

impl Folder {
    /// Finds what earlier runs have left.
    fn open(root: PathBuf, limit: u64) -> Self {
        let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path());
        let mut files = Vec::new();
        for day in entries(&root).filter(|p| is_day(p)) {
            files.extend(entries(&day).filter_map(|p| {
                if p.extension().is_some_and(|e| e == UNFINISHED) && is_ours(&p.with_extension("")) {
                    return salvage(&p);
                }
                let bytes = p.metadata().ok().filter(|_| is_ours(&p))?.len();
                Some((p, bytes))
            }));
        }
        // Names begin with the time.
        files.sort();
        let bytes = files.iter().map(|(_, n)| n).sum();
        let mut folder = Self { root, limit, files: files.into(), bytes };
        folder.shrink();
        folder
    }

    fn add(&mut self, path: PathBuf, bytes: u64) {
        self.bytes += bytes;
        self.files.push_back((path, bytes));
        self.shrink();
    }

    /// Removes the oldest files while there is too much.
    fn shrink(&mut self) {
        while self.bytes > self.limit
            && let Some((path, bytes)) = self.files.pop_front()
        {
            self.bytes -= bytes;
            let _ = fs::remove_file(&path);
            // A day's folder goes with its last file; one that is not empty stays.
            if let Some(day) = path.parent() {
                let _ = fs::remove_dir(day);
            }
        }
    }
}

fn is_day(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name.len() == 10 && name.bytes().all(|b| b.is_ascii_digit() || b == b'-')
}

fn is_ours(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "wav" || e == "jsonl")
}

/// `DAY/TIME-KIND-MODEL-PROCESS-NUMBER`.
fn name(id: u64, kind: &str, model: &str, unix: Duration) -> String {
    let (days, second) = (unix.as_secs() / 86_400, unix.as_secs() % 86_400);
    let (y, m, d) = civil(days as i64);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '_' { c } else { '-' };
    let model: String = model.chars().map(plain).take(40).collect();
    let process = std::process::id();
    let ms = unix.subsec_millis();
    format!("{y:04}-{m:02}-{d:02}/{hour:02}{minute:02}{second:02}.{ms:03}-{kind}-{model}-{process}-{id}")
}

/// Year, month and day of a count of days since 1970.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// What people say is nobody else's business on this machine.
#[cfg(unix)]
fn make_folder(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(not(unix))]
fn make_folder(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

fn new_file(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    // Until it is whole, the lock says that somebody writes it. Disks without locks do without.
    let _ = file.try_lock();
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_begin_with_their_time() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        let name = name(7, "speech", "a/b c", Duration::from_millis(951_827_696_789));
        assert!(name.starts_with("2000-02-29/123456.789-speech-a-b-c-"), "{name}");
        assert!(name.ends_with("-7"));
    }
}
