//! Whose voices there are: one that a client made belongs to its key; others are the operator's, for all to use and for no
//! client to remove. A file beside the voice names its owner, by a digest.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use voce_audio::output::{AtomicFile, Output as _};
use voce_engine::store::Store;
use voce_engine::store::voices::is_name;

use super::caller::Caller;
use super::error::ServerError;
use super::limits::Limits;

/// The ending of the files.
const ENDING: &str = "owner";
/// What stands in the file of a voice that was made where there are no keys.
const ANYONE: &str = "anyone";
/// Letters of a digest that are kept.
const DIGITS: usize = 32;

/// The owners of the voices in a store.
#[derive(Clone)]
pub(crate) struct Owners {
    store: Store,
}

/// Who owns a voice.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    /// The operator of the server.
    Operator,
    /// Whoever calls, where there are no keys.
    Anyone,
    /// A key, by its digest.
    Key(String),
}

impl Owner {
    fn of(caller: &Caller) -> Self {
        match caller.key {
            Some(_) => Self::Key(digest_of(caller, b"voce voice owner")),
            None => Self::Anyone,
        }
    }

    fn text(&self) -> &str {
        match self {
            Owner::Operator => "",
            Owner::Anyone => ANYONE,
            Owner::Key(digest) => digest,
        }
    }
}

/// Who a caller is as an owner of something, by a digest of its key that tells nothing of it; all callers are one where there
/// are no keys.
pub(crate) fn digest_of(caller: &Caller, purpose: &[u8]) -> String {
    let Some(key) = caller.key else { return ANYONE.into() };
    let digest = Sha256::new().chain_update(purpose).chain_update(key.0).finalize();
    let mut text: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    text.truncate(DIGITS);
    text
}

impl Owners {
    pub(crate) fn new(store: Store) -> Self {
        Self { store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.store.voices().dir().join(format!("{name}.{ENDING}"))
    }

    fn owner(&self, name: &str) -> Owner {
        match std::fs::read_to_string(self.path(name)) {
            Ok(text) if text.trim() == ANYONE => Owner::Anyone,
            // What cannot be read belongs to nobody who calls.
            Ok(text) => Owner::Key(text.trim().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Owner::Operator,
            Err(_) => Owner::Key(String::new()),
        }
    }

    /// Whether a caller may speak with a voice: its own, or one that is for all.
    pub(crate) fn may_use(&self, name: &str, caller: &Caller) -> bool {
        if !is_name(name) {
            // Names that no client can make are the model's own.
            return true;
        }
        match self.owner(name) {
            Owner::Operator | Owner::Anyone => true,
            key => key == Owner::of(caller),
        }
    }

    /// Whether a caller may remove a voice.
    pub(crate) fn may_remove(&self, name: &str, caller: &Caller) -> bool {
        is_name(name) && self.owner(name) == Owner::of(caller)
    }

    /// Refuses a caller whose quota, or that of all callers together, has no room for one more voice of this many bytes.
    pub(crate) fn check(&self, caller: &Caller, bytes: u64, limits: &Limits) -> Result<(), ServerError> {
        let me = Owner::of(caller);
        let (mut all, mut mine) = ((1, bytes), (1, bytes));
        for voice in self.store.voices().list() {
            let owner = self.owner(&voice.name);
            if owner == Owner::Operator {
                continue;
            }
            let add = |sum: (usize, u64)| (sum.0 + 1, sum.1.saturating_add(voice.bytes));
            all = add(all);
            if owner == me {
                mine = add(mine);
            }
        }
        let is_over = |has: (usize, u64), count, bytes| has.0 > count || has.1 > bytes;
        if is_over(mine, limits.voices_per_key, limits.voice_bytes_per_key) {
            Err(ServerError::Quota("this key has as many voices as it may: delete one first"))
        } else if is_over(all, limits.voices, limits.voice_bytes) {
            Err(ServerError::Quota("this server has as many cloned voices as it may: ask its operator"))
        } else {
            Ok(())
        }
    }

    /// Keeps a voice and whose it is. The owner is written first, so that nobody else's voice it is at any time.
    pub(crate) fn keep(&self, name: &str, voice: &[u8], caller: &Caller) -> Result<(), ServerError> {
        let path = self.store.voices().path(name).map_err(voce_engine::EngineError::from)?;
        let owner = self.path(name);
        write(&owner, Owner::of(caller).text().as_bytes())?;
        write(&path, voice).inspect_err(|_| drop(std::fs::remove_file(&owner)))
    }

    /// Removes a voice, and then who owned it.
    pub(crate) fn remove(&self, name: &str) -> Result<(), ServerError> {
        self.store.voices().remove(name).map_err(voce_engine::EngineError::from)?;
        let _ = std::fs::remove_file(self.path(name));
        Ok(())
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), ServerError> {
    let mut file = AtomicFile::create(path)?;
    file.put(bytes)?;
    Ok(file.commit()?)
}
