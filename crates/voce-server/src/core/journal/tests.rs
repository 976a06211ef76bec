//! The journal against good disks and bad ones.

use std::fs;
use std::io::{self, Cursor};
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::*;
use crate::core::metrics::{OutcomeLabel, WhatLabel};

fn options(root: &Path) -> JournalOptions {
    JournalOptions { tokens: Some(root.join("tokens")), audio: Some(root.join("audio")), limit: 1 << 20 }
}

fn dropped(metrics: &Metrics, what: &'static str) -> u64 {
    metrics.journal_dropped.get_or_create(&WhatLabel { what }).get()
}

fn files(metrics: &Metrics, outcome: &'static str) -> u64 {
    metrics.journal_files.get_or_create(&OutcomeLabel { outcome }).get()
}

/// The files below a folder, with their contents.
fn below(root: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for day in fs::read_dir(root).into_iter().flatten().flatten() {
        for file in fs::read_dir(day.path()).unwrap().flatten() {
            found.push((file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_stream_is_two_whole_files() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    let journal = Journal::start(&options(dir.path()), &metrics).unwrap().unwrap();
    let mut tap = journal.stream(Kind::Hearing, "ear", 16_000).unwrap();
    tap.audio(&[0.5; 40_000]);
    tap.line(&json!({"final": "hello"}));
    journal.flush();
    // What is not whole has another name.
    assert!(below(&dir.path().join("audio")).iter().all(|(name, _)| name.ends_with(".wav.part")));
    tap.audio(&[-0.5; 10]);
    tap.summary(json!({"end": true}));
    drop(tap);
    journal.flush();
    let audio = below(&dir.path().join("audio"));
    assert!(audio.len() == 1 && audio[0].0.ends_with(".wav"), "{:?}", audio[0].0);
    assert_eq!(audio[0].1.len(), 44 + 2 * 40_010);
    assert_eq!(
        audio[0].1[..44],
        voce_audio::wav::wav_header(16_000, voce_audio::wav::WavSample::S16, Some(40_010))
    );
    let tokens = below(&dir.path().join("tokens"));
    let lines: Vec<Value> = std::str::from_utf8(&tokens[0].1)
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!((&lines[0]["kind"], &lines[0]["model"]), (&json!("recognition"), &json!("ear")));
    assert_eq!(lines[1..], [json!({"final": "hello"}), json!({"end": true, "dropped": 0})]);
    assert_eq!((files(&metrics, "written"), dropped(&metrics, "audio")), (2, 0));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let day = fs::read_dir(dir.path().join("tokens")).unwrap().next().unwrap().unwrap();
        assert_eq!(day.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let file = fs::read_dir(day.path()).unwrap().next().unwrap().unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn the_oldest_files_go_first_and_strangers_stay() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    let root = dir.path().join("audio");
    fs::create_dir_all(root.join("2001-01-01")).unwrap();
    fs::write(root.join("2001-01-01/000000.000-x.wav"), [0; 900]).unwrap();
    fs::write(root.join("2001-01-01/notes.txt"), [0; 900]).unwrap();
    fs::write(root.join("mine.wav"), [0; 900]).unwrap();
    let options = JournalOptions { tokens: None, audio: Some(root.clone()), limit: 2_000 };
    let journal = Journal::start(&options, &metrics).unwrap().unwrap();
    for _ in 0..4 {
        let mut tap = journal.stream(Kind::Speech, "voice", 24_000).unwrap();
        tap.audio(&[0.1; 400]);
        drop(tap);
        journal.flush();
    }
    let names: Vec<String> = below_all(&root);
    let kept: Vec<&String> = names.iter().filter(|n| n.contains("voice")).collect();
    assert_eq!(kept.len(), 2, "{names:?}");
    assert!(kept.iter().all(|n| n.ends_with("-3.wav") || n.ends_with("-4.wav")), "{kept:?}");
    assert!(names.iter().any(|n| n.ends_with("notes.txt")) && names.iter().any(|n| n.ends_with("mine.wav")));
    assert!(!names.iter().any(|n| n.ends_with("-x.wav")));
}

fn below_all(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(below_all(&entry.path()));
        } else {
            found.push(entry.path().to_string_lossy().into_owned());
        }
    }
    found
}

/// A disk that takes the bytes of its second field and is then full.
struct Full(Cursor<Vec<u8>>, usize);

impl io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.1 < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.1 -= bytes.len();
        self.0.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for Full {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

#[test]
fn a_full_disk_costs_pieces_and_no_stream() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    let create =
        |_: &Path| -> io::Result<Box<dyn files::Sink>> { Ok(Box::new(Full(Cursor::default(), 50_000))) };
    let options = JournalOptions { tokens: None, ..options(dir.path()) };
    let writer = Writer::with(options, metrics.clone(), Box::new(create));
    let journal = Journal::with(writer, &metrics, RING_BYTES).unwrap();
    let mut tap = journal.stream(Kind::Hearing, "ear", 16_000).unwrap();
    for _ in 0..4 {
        tap.audio(&[0.0; 16_384]);
    }
    drop(tap);
    journal.flush();
    assert_eq!(
        (dropped(&metrics, "audio"), files(&metrics, "failed"), files(&metrics, "written")),
        (3, 1, 0)
    );
    assert!(below_all(dir.path()).is_empty());
}

#[test]
fn a_folder_that_cannot_be_written_costs_pieces_and_no_stream() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    // A file stands where the folder should be: not even the superuser can write into it.
    fs::write(dir.path().join("audio"), "").unwrap();
    fs::write(dir.path().join("tokens"), "").unwrap();
    let journal = Journal::start(&options(dir.path()), &metrics).unwrap().unwrap();
    let mut tap = journal.stream(Kind::Speech, "voice", 24_000).unwrap();
    tap.audio(&[0.0; 20_000]);
    drop(tap);
    journal.flush();
    assert_eq!((files(&metrics, "failed"), files(&metrics, "written")), (2, 0));
    assert!(dropped(&metrics, "audio") > 0 && dropped(&metrics, "tokens") > 0);
}

/// A disk whose writes wait for the test.
struct Slow(Arc<Mutex<Receiver<()>>>);

impl io::Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.lock().unwrap().recv();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for Slow {
    fn seek(&mut self, _: io::SeekFrom) -> io::Result<u64> {
        Ok(0)
    }
}

#[test]
fn a_slow_disk_costs_pieces_and_no_time() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    let (go, wait) = sync_channel(1);
    let wait = Arc::new(Mutex::new(wait));
    let create = move |_: &Path| -> io::Result<Box<dyn files::Sink>> { Ok(Box::new(Slow(wait.clone()))) };
    let options = JournalOptions { tokens: None, ..options(dir.path()) };
    let writer = Writer::with(options, metrics.clone(), Box::new(create));
    // Room for three pieces beside those that the writer has taken.
    let journal = Journal::with(writer, &metrics, 3 * (PIECE + 256)).unwrap();
    let mut tap = journal.stream(Kind::Hearing, "ear", 16_000).unwrap();
    // The writer waits for the disk all the while, and this returns all the same.
    for _ in 0..100 {
        tap.audio(&[0.0; PIECE / 2]);
    }
    let lost = dropped(&metrics, "audio");
    assert!((90..=97).contains(&lost), "{lost}");
    drop(tap);
    drop(go);
    journal.flush();
}

#[test]
fn what_a_killed_server_left_is_made_whole_and_what_is_written_stays() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    let day = dir.path().join("audio/2026-11-16");
    let lines = dir.path().join("tokens/2026-11-16");
    fs::create_dir_all(&day).unwrap();
    fs::create_dir_all(&lines).unwrap();
    let header = |n| voce_audio::wav::wav_header(24_000, voce_audio::wav::WavSample::S16, Some(n));
    // 100 samples and half of one more; a header alone; two lines and a torn one; half a line.
    let torn = [header(0), vec![7; 201]].concat();
    fs::write(day.join("120000.000-speech-x-1-1.wav.part"), torn).unwrap();
    fs::write(day.join("120000.000-speech-x-1-2.wav.part"), header(0)).unwrap();
    fs::write(day.join("somebody's.part"), "else").unwrap();
    fs::write(lines.join("120000.000-speech-x-1-1.jsonl.part"), "{}\n{\"a\":1}\n{\"b").unwrap();
    fs::write(lines.join("120000.000-speech-x-1-2.jsonl.part"), "{\"b").unwrap();
    // A stream of another server that runs.
    let other = Journal::start(&options(dir.path()), &metrics).unwrap().unwrap();
    let mut tap = other.stream(Kind::Hearing, "ear", 16_000).unwrap();
    tap.audio(&[0.5; 20_000]);
    other.flush();
    let parts = |files: &[(String, Vec<u8>)]| files.iter().filter(|(n, _)| n.ends_with(".part")).count();
    assert_eq!(parts(&below(&dir.path().join("audio"))), 2, "the running one, and the stranger's");
    drop(Journal::start(&options(dir.path()), &metrics).unwrap().unwrap());
    let audio = below(&dir.path().join("audio"));
    assert_eq!(parts(&audio), 2);
    let saved = audio.iter().find(|(n, _)| n == "120000.000-speech-x-1-1.wav").unwrap();
    assert_eq!(saved.1, [header(100), vec![7; 200]].concat());
    assert!(!audio.iter().any(|(n, _)| n.contains("1-2.wav")));
    let tokens = below(&dir.path().join("tokens"));
    let saved = tokens.iter().find(|(n, _)| n == "120000.000-speech-x-1-1.jsonl").unwrap();
    assert_eq!(saved.1, b"{}\n{\"a\":1}\n");
    assert!(!tokens.iter().any(|(n, _)| n.contains("1-2.jsonl")));
    // The stream that ran comes to its end as if nothing had been.
    drop(tap);
    other.flush();
    assert_eq!(parts(&below(&dir.path().join("audio"))), 1);
}
