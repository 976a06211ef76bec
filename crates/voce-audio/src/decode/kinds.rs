//! Telling recordings from other files, by their names and by their first bytes.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::source::{SNIFF_BYTES, id3_length};
use super::wav;
use crate::AudioFormat;

/// Extensions of recordings that folders are searched for.
pub const EXTENSIONS: [&str; 14] =
    ["wav", "mp3", "flac", "ogg", "oga", "opus", "m4a", "mp4", "aac", "webm", "mka", "mkv", "aiff", "caf"];

/// Whether the file's extension is one of [`EXTENSIONS`], in lower or upper case.
pub fn is_recording(path: &Path) -> bool {
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    extension.is_some_and(|e| EXTENSIONS.contains(&e.as_str()))
}

/// Whether a file of this name would hold sound: one of [`EXTENSIONS`], or a format that is written.
pub fn names_audio(path: &Path) -> bool {
    is_recording(path) || AudioFormat::from_path(path).is_some()
}

/// Whether a file is there whose first bytes are those of sound.
pub fn holds_audio(path: &Path) -> bool {
    if !std::fs::metadata(path).is_ok_and(|m| m.is_file()) {
        return false;
    }
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(SNIFF_BYTES as u64).read_to_end(&mut head));
    read.is_ok() && is_audio(&head)
}

fn is_audio(head: &[u8]) -> bool {
    let starts: [&[u8]; 4] = [b"fLaC", b"OggS", b"caff", &[0x1a, 0x45, 0xdf, 0xa3]];
    let is_aiff = head.starts_with(b"FORM") && matches!(head.get(8..12), Some(b"AIFF" | b"AIFC"));
    wav::is_wav(head)
        || is_aiff
        || (id3_length(head) > 0 && matches!(head.get(3), Some(2..=4)))
        || starts.iter().any(|m| head.starts_with(m))
        || head.get(4..8) == Some(b"ftyp")
        // A frame of MPEG audio; the two highest would be marks of UTF-16.
        || matches!(head, [0xff, 0xe0..=0xfd, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_told_from_texts() {
        for name in ["a.wav", "b.MP3", "c.pcm", "d.mkv", "e.WAVE"] {
            assert!(names_audio(Path::new(name)), "{name}");
        }
        for name in ["a.txt", "b.srt", "c", "d.json", "wav"] {
            assert!(!names_audio(Path::new(name)), "{name}");
        }
        let heads: [&[u8]; 9] = [
            b"RIFF\x24\0\0\0WAVEfmt ",
            b"ID3\x04\0\0\0\0\x10\0",
            b"\xff\xfb\x90\x64",
            b"\xff\xf1\x50\x80",
            b"OggS\0\x02",
            b"fLaC\0\0\0\x22",
            b"\0\0\0\x20ftypM4A ",
            b"\x1a\x45\xdf\xa3\x9f",
            b"FORM\0\0\0\x10AIFFCOMM",
        ];
        for head in heads {
            assert!(is_audio(head), "{head:?}");
        }
        let texts: [&[u8]; 6] =
            [b"", b"Hello.\n", b"FORMULAS AND MORE", b"ID3 is a tag", b"\xff\xfeH\0i\0", b"RIFF"];
        for text in texts {
            assert!(!is_audio(text), "{text:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(!holds_audio(dir.path()) && !holds_audio(&dir.path().join("none")));
        let file = dir.path().join("notes.txt");
        std::fs::write(&file, heads[0]).unwrap();
        assert!(holds_audio(&file));
    }
}
