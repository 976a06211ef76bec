//! What slots and steps take of a device's memory, by the model's shape alone.

use voce_nn::Formats;
use voce_runtime::{KvFormat, KvSpec};

use super::config::{Attention, FastConformerConfig};
use crate::hearing::{EarRoom, Footprint};

/// Positions that a ring is a multiple of.
const RING: usize = 32;
/// Bytes of an f32.
const F32: usize = 4;
/// Logits that searches look at together, several buffers of their size, and tables.
const FIXED: usize = 512 << 20;

/// The memory of an ear.
pub(super) fn of(config: &FastConformerConfig, formats: Formats, room: EarRoom) -> Footprint {
    Footprint { slot: slot(config, formats.kv, room.slot_frames), frame: frame(config), fixed: FIXED }
}

fn slot(config: &FastConformerConfig, kv: KvFormat, frames: usize) -> usize {
    let e = &config.encoder;
    let (layers, capacity, format) = match &e.attention {
        Attention::Full => (1, frames, if kv == KvFormat::Fp8 { KvFormat::Bf16 } else { kv }),
        Attention::Chunked { left, .. } => (e.layers, left + frames, kv),
    };
    let capacity = capacity.next_multiple_of(RING);
    let spec = KvSpec { layers, slots: 1, kv_heads: e.heads, head_dim: e.dim / e.heads, capacity, format };
    // Past rows are there twice: one half is read while the other is written.
    let convolutions = 2 * e.layers * (e.conv_kernel - 1) * e.dim * F32;
    let (mut bins, mut channels, mut subsampling) = (config.mel.bins, 1, 0);
    for _ in 0..e.subsampling_factor.ilog2() {
        subsampling += 2 * 2 * bins * channels * F32;
        bins = if e.causal { bins / 2 + 1 } else { bins.div_ceil(2) };
        channels = e.subsampling_channels;
    }
    // Lanes of predictors double when they grow.
    let predictor = config.predictor().map_or(0, |p| 2 * (2 * p.layers * p.hidden + p.joint) * F32);
    spec.bytes() + convolutions + subsampling + predictor
}

fn frame(config: &FastConformerConfig) -> usize {
    let e = &config.encoder;
    let rows = e.subsampling_factor;
    // Mel rows grow by powers of two; their samples travel beside them.
    let mel = 2 * rows * config.mel.bins * F32 + 2 * rows * 160 * F32;
    let halved = |bins: usize| if e.causal { bins / 2 + 1 } else { bins.div_ceil(2) };
    let (once, twice) = (halved(config.mel.bins), halved(halved(config.mel.bins)));
    let subsampling = (rows / 2 * once + rows / 4 * twice) * e.subsampling_channels * F32;
    // A product's operand in the weights' format, and its result before scales.
    let operand = (rows / 4 * twice * e.subsampling_channels).max(e.ff_dim) * (2 + F32);
    let layers = (2 * e.ff_dim.max(3 * e.dim) + 4 * e.dim) * F32;
    let prompt = config.prompt.as_ref().map_or(0, |p| p.hidden * F32);
    let joint = 3 * config.predictor().map_or(config.classes(), |p| p.joint) * F32;
    mel + subsampling + operand + layers + prompt + joint
}
