//! Codecs by themselves: recordings to codes, codes to samples, and files of codes.
//!
//! ```no_run
//! use voce_engine::codec::Codec;
//! use voce_engine::store::Store;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut codec = Codec::open(&Store::from_env()?, "qwen3-tts", &Default::default())?;
//! let codes = codec.encode(&[0.0; 24_000])?;
//! let mut samples = Vec::new();
//! codec.decode(&codes, |piece| {
//!     samples.extend_from_slice(piece);
//!     true
//! })?;
//! # Ok(())
//! # }
//! ```

use std::path::Path;
use std::sync::Arc;

use voce_models::codec;
use voce_models::speech::{Frame, Vocoder, VocoderRoom};
use voce_nn::weights::SafetensorsFile;
use voce_nn::{Precision, Weights as _};
use voce_runtime::{Exec, Span};

use crate::device::{Place, Placement, has_room};
use crate::lane::default_threads;
use crate::{EngineError, family, store::Store};

pub use voce_models::codec::{CodecError, CodecInfo, Codes};

/// The tensor of a file of codes.
const CODES: &str = "codes";

/// How a codec is to run.
#[derive(Clone, Debug, Default)]
pub struct CodecOptions {
    /// Precision of the weights; none is f32, with which codes are those of the published package (on a GPU: of one whose
    /// products may not round to TF32).
    pub precision: Option<Precision>,
    /// Where it runs.
    pub device: Placement,
    /// Threads of a CPU; 0 chooses.
    pub threads: usize,
    /// Codebooks to use of those it has, the first ones; none is all of them.
    pub codebooks: Option<usize>,
}

/// A loaded codec, on the caller's thread.
pub struct Codec {
    codec: Arc<dyn codec::Codec>,
    exec: Exec,
    place: Place,
}

impl Codec {
    /// Opens the codec of a model, or a codec by itself, all of whose files are here.
    pub fn open(store: &Store, reference: &str, options: &CodecOptions) -> Result<Self, EngineError> {
        let place = Place::new(&options.device, None)?;
        let threads = if options.threads == 0 { default_threads() } else { options.threads };
        let precision = options.precision.unwrap_or(Precision::F32);
        let codec = family::open_codec(store, reference, &place, precision, options.codebooks)?;
        Ok(Self { codec, exec: place.exec(threads)?, place })
    }

    /// Mimi, of its published size, with random weights.
    pub fn random(seed: u64, options: &CodecOptions) -> Result<Self, EngineError> {
        let place = Place::new(&options.device, None)?;
        let threads = if options.threads == 0 { default_threads() } else { options.threads };
        let precision = options.precision.unwrap_or(Precision::F32);
        let codec = family::random_codec(seed, &place, precision, options.codebooks)?;
        Ok(Self { codec, exec: place.exec(threads)?, place })
    }

    /// What the codec is.
    pub fn info(&self) -> &CodecInfo {
        self.codec.info()
    }

    /// The codes of a mono recording at [`CodecInfo::input_rate`].
    pub fn encode(&mut self, samples: &[f32]) -> Result<Codes, EngineError> {
        let codes = self.codec.encode(&mut self.exec, samples)?;
        self.exec.status()?;
        Ok(codes)
    }

    /// As [`Codec::encode`], of a recording that comes in blocks: `more` appends the next one, and returns false when
    /// there are none.
    pub fn encode_from(&mut self, mut more: impl FnMut(&mut Vec<f32>) -> bool) -> Result<Codes, EngineError> {
        let codes = self.codec.encode_from(&mut self.exec, &mut more)?;
        self.exec.status()?;
        Ok(codes)
    }

    /// A decoder for frames as they come, with state of its own over the same weights.
    pub fn frames(&self, threads: usize) -> Result<FrameDecoder, EngineError> {
        let room = VocoderRoom { slots: 1, frames: 1, slot_frames: 1 };
        let (vocoder, info) = (self.codec.vocoder(room), self.codec.info().clone());
        let whole = || CodecError::Samples(format!("{} decodes whole recordings alone", info.title));
        let mut vocoder = vocoder.ok_or_else(whole)?;
        let mut exec = self.place.exec(threads.max(1))?;
        has_room(vocoder.reserve(&mut exec)?, 1)?;
        vocoder.start(&mut exec, 0, None);
        Ok(FrameDecoder { vocoder, exec, info })
    }

    /// The samples of codes, given in order and in pieces until `give` returns false.
    pub fn decode(&mut self, codes: &Codes, mut give: impl FnMut(&[f32]) -> bool) -> Result<(), EngineError> {
        self.codec.decode(&mut self.exec, codes, &mut give)?;
        Ok(self.exec.status()?)
    }
}

/// Decodes one stream, a frame at a time, on the caller's thread.
pub struct FrameDecoder {
    vocoder: Box<dyn Vocoder>,
    exec: Exec,
    info: CodecInfo,
}

impl FrameDecoder {
    /// What the codec is.
    pub fn info(&self) -> &CodecInfo {
        &self.info
    }

    /// The samples of the next frame, which has a code of each codebook.
    pub fn decode(&mut self, codes: &[u32]) -> Result<&[f32], EngineError> {
        self.info.check(&codes.iter().map(|&code| vec![code]).collect())?;
        let frame = [Frame::Codes(codes.to_vec())];
        self.vocoder.step(&mut self.exec, &[Span { slot: 0, rows: 1 }], &frame);
        let samples = self.vocoder.fetch(&mut self.exec);
        self.exec.status()?;
        Ok(samples)
    }

    /// Begins a new stream.
    pub fn reset(&mut self) {
        self.vocoder.start(&mut self.exec, 0, None);
    }
}

/// Codes as the bytes of a safetensors file: `codes`, 32-bit integers, codebooks by frames.
pub fn to_bytes(codes: &Codes) -> Result<Vec<u8>, EngineError> {
    let frames = codes.first().map_or(0, Vec::len);
    let data: Vec<u8> = codes.iter().flatten().flat_map(|code| code.to_le_bytes()).collect();
    let failed = |e: safetensors::SafeTensorError| EngineError::NoCodes {
        path: "codes".into(),
        reason: e.to_string(),
    };
    let shape = vec![codes.len(), frames];
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::I32, shape, &data).map_err(failed)?;
    safetensors::serialize([(CODES, view)], None).map_err(failed)
}

/// Reads what [`to_bytes`] gave, from a file.
pub fn read_file(path: &Path) -> Result<Codes, EngineError> {
    let no_codes = |reason: &str| EngineError::NoCodes { path: path.to_owned(), reason: reason.to_owned() };
    if !path.is_file() {
        return Err(no_codes("no such file"));
    }
    let file = SafetensorsFile::open(path).map_err(|_| no_codes("not a whole safetensors file"))?;
    let shape = file.shape(CODES).ok_or_else(|| no_codes("it has no tensor 'codes'"))?;
    let &[codebooks, frames] = &shape[..] else {
        return Err(no_codes(&format!("its codes have shape {shape:?}")));
    };
    let values = file.integers(CODES).map_err(|_| no_codes("its codes are no integers"))?;
    let values = values.unwrap_or_default();
    if values.len() != codebooks * frames {
        return Err(no_codes("its codes are cut short"));
    }
    let codes: Option<Vec<u32>> = values.into_iter().map(|code| u32::try_from(code).ok()).collect();
    let codes = codes.ok_or_else(|| no_codes("some of its codes are negative or beyond any codebook"))?;
    Ok((0..codebooks).map(|book| codes[book * frames..][..frames].to_vec()).collect())
}
