//! The user's own voices: `NAME.safetensors` files in Voce's folder.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::StoreError;

/// The longest name of a voice.
pub const MAX_NAME: usize = 64;

/// One voice of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Voice {
    /// Its name.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// The file's size.
    pub bytes: u64,
}

/// The folder of the user's voices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoiceDir {
    dir: PathBuf,
}

/// Whether `name` is 1 to 64 ASCII letters, digits, `_` and `-`.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
}

impl VoiceDir {
    /// The voices in `dir`, which need not exist.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the folder, for a voice to be written into it.
    pub fn create(&self) -> Result<(), StoreError> {
        fs::create_dir_all(&self.dir).map_err(StoreError::io("create", &self.dir))
    }

    /// The file of a voice, whether or not it is there.
    pub fn path(&self, name: &str) -> Result<PathBuf, StoreError> {
        if is_name(name) {
            Ok(self.dir.join(format!("{name}.safetensors")))
        } else {
            Err(StoreError::BadVoiceName { name: name.chars().take(80).collect() })
        }
    }

    /// The file of a voice that is there.
    pub fn find(&self, name: &str) -> Result<PathBuf, StoreError> {
        let path = self.path(name)?;
        if path.is_file() { Ok(path) } else { Err(self.unknown(name)) }
    }

    /// All voices, sorted by name; files with other names are left out.
    pub fn list(&self) -> Vec<Voice> {
        let mut voices: Vec<Voice> = fs::read_dir(&self.dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let path = entry.path();
                let name = path.file_name()?.to_str()?.strip_suffix(".safetensors")?.to_owned();
                let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
                is_name(&name).then_some(Voice { name, path, bytes: metadata.len() })
            })
            .collect();
        voices.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        voices
    }

    /// Deletes a voice.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        let path = self.path(name)?;
        match fs::remove_file(&path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(self.unknown(name)),
            Err(error) => Err(StoreError::io("remove", &path)(error)),
        }
    }

    fn unknown(&self, name: &str) -> StoreError {
        let known = self.list().into_iter().map(|voice| voice.name).collect();
        StoreError::UnknownVoice { name: name.to_owned(), known }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "Anna-2", "my_voice", &"x".repeat(MAX_NAME)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "a b", "../a", "a.b", "ä", "a/b", &"x".repeat(MAX_NAME + 1)] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn add_list_remove() {
        let root = tempfile::tempdir().unwrap();
        let voices = VoiceDir::new(root.path().join("voices"));
        assert!(voices.list().is_empty());
        assert_eq!(voices.find("anna").unwrap_err().code(), "unknown_voice");
        voices.create().unwrap();
        fs::write(voices.path("bert").unwrap(), "12345").unwrap();
        fs::write(voices.path("anna").unwrap(), "1").unwrap();
        fs::write(voices.dir().join("not a voice.safetensors"), "").unwrap();
        fs::write(voices.dir().join("other.wav"), "").unwrap();
        let list: Vec<_> = voices.list().into_iter().map(|voice| (voice.name, voice.bytes)).collect();
        assert_eq!(list, [("anna".to_owned(), 1), ("bert".to_owned(), 5)]);
        voices.remove("anna").unwrap();
        assert!(voices.remove("anna").unwrap_err().to_string().contains("known: bert"));
        assert_eq!(voices.remove("../bert").unwrap_err().code(), "bad_voice_name");
        assert_eq!(voices.find("bert").unwrap(), voices.dir().join("bert.safetensors"));
    }
}
