//! The speech tokenizer of Qwen3-TTS by itself, from files: a folder of its own, or the one inside a model's.

use std::path::Path;
use std::sync::Arc;

use voce_models::codec::Codec;
use voce_models::qwen::codec::SpeechTokenizer;
use voce_nn::{Loader, Precision};

use super::{CODEC, codec_config, weights};
use crate::EngineError;
use crate::device::Place;
use crate::store::Store;

/// Opens the codec of a model all of whose files are here.
pub(in crate::family) fn open(
    store: &Store,
    reference: &str,
    place: &Place,
    precision: Precision,
) -> Result<Arc<dyn Codec>, EngineError> {
    let located = store.find(reference)?;
    let root = located.config.as_deref().and_then(Path::parent).unwrap_or(&located.root);
    let inside = root.join(CODEC);
    let folder = if inside.is_dir() { &inside } else { root };
    let config = codec_config(&folder.join("config.json"))?;
    let (source, _) = weights(folder)?;
    let loader = place.loader(Loader::new(source));
    Ok(Arc::new(SpeechTokenizer::load(&loader, &config, place.formats(precision)?)?))
}
