//! What slots and steps take of a device's memory, by the model's shape alone.

use voce_nn::Formats;
use voce_runtime::transducer::{BEAM_LANES, MAX_AHEAD};
use voce_runtime::{KvFormat, KvSpec};

use super::config::{Attention, FastConformerConfig};
use super::ear::{HELD_STEPS, HYPOTHESES, USUAL_BEAM};
use crate::hearing::{EarRoom, Footprint};
use crate::transducer::{LOGITS, MAX_BEAM};

/// Positions that a ring is a multiple of.
const RING: usize = 32;
/// Bytes of an f32.
const F32: usize = 4;
/// Bytes of tables and of what libraries work in.
const TABLES: usize = 8 << 20;
/// Most rows by which batches of a search are padded.
const PADDING: usize = 2047;

/// The memory of an ear.
pub(super) fn of(config: &FastConformerConfig, formats: Formats, room: EarRoom) -> Footprint {
    Footprint {
        slot: slot(config, formats.kv, room.slot_frames),
        frame: frame(config),
        fixed: search(config, room) + distances(config, formats.kv, room.slot_frames) + TABLES,
    }
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
    spec.bytes() + convolutions + subsampling
}

/// What searches of all slots hold between steps, and work in.
fn search(config: &FastConformerConfig, room: EarRoom) -> usize {
    let Some(p) = config.predictor() else { return 0 };
    let hypotheses = HYPOTHESES.min(room.slots * MAX_BEAM);
    let labels = room.slots.max(hypotheses);
    let lanes = (1 + room.slots + BEAM_LANES * hypotheses + labels.min(PADDING)).next_power_of_two();
    let looked = (MAX_AHEAD * room.slots).min(room.frames + PADDING).max(hypotheses);
    let classes = config.classes();
    let looked = looked.min(LOGITS / classes).next_power_of_two();
    // Sums and logits, and the sums once more as the product takes them.
    let joint = looked * (classes + 2 * p.joint) * F32;
    let predictor = labels.next_power_of_two() * (8 * p.hidden + 2 * p.joint) * F32;
    let held = (HELD_STEPS * room.slot_frames * room.slots.min(HYPOTHESES / USUAL_BEAM)).next_power_of_two();
    lanes * (2 * p.layers * p.hidden + p.joint) * F32 + held * p.joint * F32 + joint + predictor
}

/// Distances of whole utterances, projected by each layer.
fn distances(config: &FastConformerConfig, kv: KvFormat, frames: usize) -> usize {
    let e = &config.encoder;
    if e.attention != Attention::Full {
        return 0;
    }
    let value = if kv == KvFormat::F32 { F32 } else { 2 };
    2 * frames.next_power_of_two() * e.dim * (e.layers * value + 2 * F32)
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

#[cfg(test)]
mod tests {
    use super::*;
    use voce_nn::Precision;

    /// Memory of an H200, of which a part in 24 is left free.
    const H200: usize = (139usize << 30) / 24 * 23;
    const STREAMS: usize = 10_000;
    const LANES: usize = 2;
    /// Frames of a chunk of 560 ms.
    const CHUNK: usize = 7;

    #[test]
    fn ten_thousand_streams_of_nemotron_fit_an_h200() {
        let config = FastConformerConfig::named("nemotron-0.6b").unwrap();
        let weights = 2 * config.parameters() as usize;
        for (precision, slot_mb, step_streams) in [(Precision::Bf16, 12, 1_700), (Precision::Fp8, 7, 4_000)] {
            // Streams have rings for the longest chunk, whichever they choose.
            let room = EarRoom { slots: STREAMS / LANES, slot_frames: 14, frames: step_streams * CHUNK };
            let needs = of(&config, Formats::on_device(precision), room);
            assert!(needs.slot < slot_mb * 1_000_000, "{precision}: {needs:?}");
            let all = weights + LANES * needs.total(room);
            assert!(all < H200, "{precision}: {all} of {H200}");
            // A second and its chunk of all streams are several steps; each is large enough to fill the device.
            assert!(room.frames > 8_192);
        }
    }

    #[test]
    fn what_a_slot_takes_is_known() {
        let config = FastConformerConfig::named("nemotron-0.6b").unwrap();
        // 24 layers of 96 positions of keys and values of 1024 in two bytes; eight rows of 1024 of each convolution and the
        // last rows of the subsampling, twice.
        let rings = 24 * 96 * 2 * 1024 * 2;
        let convolutions = 2 * 24 * 8 * 1024 * 4;
        let subsampling = 2 * 2 * (128 + 65 * 256 + 33 * 256) * 4;
        assert_eq!(slot(&config, KvFormat::Bf16, 14), rings + convolutions + subsampling);
        assert_eq!(slot(&config, KvFormat::F32, 14), 2 * rings + convolutions + subsampling);
        let exponents = 24 * 2 * 8 * 96;
        assert_eq!(slot(&config, KvFormat::Fp8, 14), rings / 2 + exponents + convolutions + subsampling);
    }
}
