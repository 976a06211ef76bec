//! Neural layers of Voce: what every model is made of, and weights by name.
#![forbid(unsafe_code)]

mod conv;
mod cross;
mod decoder;
mod embedding;
mod linear;
mod lstm;
mod packed_cache;
mod precision;
mod transformer;
pub mod weights;

pub use conv::{Conv1d, Conv1dConfig, ConvFormat, ConvIo, ConvTranspose1d, DepthwiseUpsample, Padding};
pub use cross::CrossState;
pub use decoder::{Decoder, DecoderConfig, DecoderNames, DecoderState};
pub use embedding::Embedding;
pub use linear::{LayerNorm, Linear};
pub use lstm::{Lstm, LstmScratch};
pub use packed_cache::PackedCache;
pub use precision::{Formats, Precision, UnknownPrecision};
pub use transformer::{Transformer, TransformerConfig, TransformerShape, TransformerState, Watch};
pub use weights::{Loader, WeightError, Weights};
