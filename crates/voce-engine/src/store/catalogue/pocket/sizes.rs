//! The sizes in which Pocket TTS models were published.

use super::shape::{CodecSide, HeadType, PocketShape};

const BIG_CODEC: CodecSide = CodecSide {
    dimension: 512,
    n_filters: 64,
    kernel_size: 7,
    d_model: 512,
    num_heads: 8,
    num_layers: 2,
    context: 250,
    dim_feedforward: 2048,
};
const SMALL_DECODER: CodecSide = CodecSide {
    dimension: 128,
    n_filters: 32,
    kernel_size: 3,
    d_model: 128,
    num_heads: 4,
    num_layers: 12,
    context: 50,
    dim_feedforward: 384,
};

pub(super) const BIG: PocketShape = PocketShape {
    d_model: 1024,
    attn_dim: None,
    num_heads: 16,
    num_kv_heads: None,
    num_layers: 6,
    hidden_scale: 4,
    dim_feedforward: None,
    flow_depth: 6,
    flow_dim: 512,
    flow_type: HeadType::Lsd,
    z_dim: None,
    n_bins: 4000,
    rank: None,
    insert_bos_before_voice: true,
    inner_dim: 32,
    outer_dim: 512,
    encoder: BIG_CODEC,
    decoder: None,
};
pub(super) const BIG_24L: PocketShape = PocketShape { num_layers: 24, ..BIG };
pub(super) const BIG_DRIFTING: PocketShape = PocketShape { flow_type: HeadType::Drifting, ..BIG };
pub(super) const BIG_2026_01: PocketShape =
    PocketShape { insert_bos_before_voice: false, inner_dim: 512, ..BIG };
pub(super) const M18: PocketShape = PocketShape {
    d_model: 512,
    num_heads: 8,
    num_layers: 8,
    hidden_scale: 1,
    flow_depth: 4,
    flow_dim: 192,
    flow_type: HeadType::Drifting,
    z_dim: Some(64),
    outer_dim: 128,
    decoder: Some(SMALL_DECODER),
    ..BIG
};
pub(super) const M7: PocketShape =
    PocketShape { d_model: 224, attn_dim: Some(512), num_kv_heads: Some(2), rank: Some(64), ..M18 };
pub(super) const M2: PocketShape = PocketShape {
    d_model: 112,
    attn_dim: Some(192),
    num_heads: 3,
    num_kv_heads: Some(1),
    dim_feedforward: Some(96),
    flow_dim: 64,
    flow_type: HeadType::Pointwise,
    rank: Some(32),
    decoder: Some(CodecSide { n_filters: 24, num_layers: 4, ..SMALL_DECODER }),
    ..M18
};
