//! The runtime of Voce: memory, threads and kernels for streaming speech models.
//!
//! A model is plain Rust that issues fused ops into an [`Exec`]. Weights are [`Matrix`] values packed
//! once for the kernels of this CPU; activations are [`Buffer`]s; streaming state ([`KvCache`],
//! [`ConvState`]) has a slot axis and is owned by the session. After the first step nothing allocates.

pub mod cuda;
mod error;
mod exec;
mod fp8;
mod isa;
mod matrix;
mod memory;
pub mod pool;
mod pool_pin;
pub mod reference;
pub mod simd;

pub use error::RuntimeError;
pub use exec::transducer;
pub use exec::{AddReluOp, Candidate, Choice, Confidence, LstmCellOp, MAX_TOP_K, NO_ROW, RowList};
pub use exec::{Attended, AttentionKind, AttentionShape};
pub use exec::{
    AttentionOp, Buffer, ChunkSpan, ConvOp, ConvState, ConvStateSpec, CrossAttentionOp, DepthwiseOp, Exec,
    FrameSpan, Gate, KvCache, KvFormat, KvIndex, KvSpec, LinearOp, MAX_POSITION, Modulation, Norm,
    RelativeAttentionOp, RelativePositions, ResidualOp, Rope, RopeStyle, RowNorm, Span, SubsampleOp,
    SubsampleSpec, SubsampleState, UpsampleOp, Vector, View,
};
pub use exec::{
    BranchOp, EmbedOp, EmbedPart, EveryRow, Guide, HeadNormOp, HeadNorms, MAX_SAMPLED, SampleOp, SampleRow,
    SampledRows, Sampling, SentTokens, Table, TokenMove, Tokens,
};
pub use exec::{Input, Output, ProductRows, Target};
pub use exec::{MelFilters, MelOp, MelSpan, Snake, Staging};
pub use isa::{CPU_ENV, Isa};
pub use matrix::{Format, Matrix};
pub use memory::{AlignedVec, WeightArena, return_large_blocks};
pub use pool_pin::{Cores, allowed as allowed_cores};
pub use simd::Activation;
