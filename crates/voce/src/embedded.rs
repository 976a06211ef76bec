//! The voice that comes inside the binary, so that a fresh installation speaks without a download.
//!
//! It is an ordinary model: at its first use it is laid out as a folder among the user's own models.

use std::path::Path;

use voce_engine::store::Store;

use crate::failure::{Failure, Outcome};
use crate::whole_file;

/// The name of the embedded voice.
pub(crate) const NAME: &str = "nano-voice";

#[cfg(feature = "nano")]
const FILES: [(&str, &[u8]); 5] = [
    ("config.yaml", include_bytes!("../../../models/nano-voice/config.yaml")),
    ("model.safetensors", include_bytes!("../../../models/nano-voice/model.safetensors")),
    ("tokenizer.model", include_bytes!("../../../models/nano-voice/tokenizer.model")),
    ("voice.safetensors", include_bytes!("../../../models/nano-voice/voice.safetensors")),
    ("MODEL_CARD.md", include_bytes!("../../../models/nano-voice/MODEL_CARD.md")),
];
#[cfg(not(feature = "nano"))]
const FILES: [(&str, &[u8]); 0] = [];

/// Whether this build carries the voice.
pub(crate) fn is_there() -> bool {
    !FILES.is_empty()
}

/// Bytes of the voice in the binary.
pub(crate) fn bytes() -> u64 {
    FILES.iter().map(|(_, data)| data.len() as u64).sum()
}

/// Lays the voice out if `reference` names it and its folder is not yet whole.
pub(crate) fn provide(store: &Store, reference: &str) -> Outcome {
    if reference != NAME || FILES.is_empty() {
        return Ok(());
    }
    let dir = store.models_dir().join(NAME);
    let same = |path: &Path, data: &[u8]| path.metadata().is_ok_and(|m| m.len() == data.len() as u64);
    if FILES.iter().all(|(name, data)| same(&dir.join(name), data)) {
        return Ok(());
    }
    std::fs::create_dir_all(&dir).map_err(|e| {
        Failure::failed(format!("{}: {e}: set VOCE_HOME to a folder that can be written", dir.display()))
    })?;
    FILES.iter().try_for_each(|(name, data)| whole_file::write(&dir.join(name), data))
}
