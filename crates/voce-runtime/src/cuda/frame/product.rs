//! Products as phases: which ones the kernel has code for, and how it is to run them.

use super::{Phase, Row};
use crate::cuda::linear::{NORM_LAYER, NORM_RMS};
use crate::cuda::row::RowArgs;

pub(super) const PRODUCT: u32 = 0;
pub(super) const PRODUCT_TWO: u32 = 6;

/// Outputs that a block takes at once, and inputs of a chunk of weights.
pub(super) const GROUP: usize = 8;
pub(super) const SEGMENT: usize = 1024;
/// Inputs of a product are a multiple of this, up to a limit: copies are of 16 bytes.
const PIECE: usize = 8;
const LONGEST_ROW: usize = 12 * SEGMENT;
/// Inputs of a row whose mean has to be known before it is multiplied.
const LONGEST_LAYER: usize = 6 * SEGMENT;
/// Segments of a row whose inputs stay in registers.
const KEPT: usize = 3;
/// The activation that a product may end with: as in `common.cuh`.
const ACT_SILU: u32 = 2;

/// What a product does besides multiplying: bits of `number[6]`, as in `product.cu`.
pub(super) mod does {
    pub(in super::super) const GATE: u32 = 1;
    pub(in super::super) const RMS: u32 = 2;
    pub(in super::super) const LAYER: u32 = 4;
    pub(in super::super) const BIAS: u32 = 8;
    pub(in super::super) const ACT: u32 = 16;
    pub(in super::super) const ADD: u32 = 32;
    /// Of the first row; the second row's is the next bit.
    pub(in super::super) const OLD_EXCHANGED: u32 = 64;
    pub(in super::super) const IN_EXCHANGED: u32 = 256;
    /// All but what [`hold`] says.
    pub(in super::super) const NOT_HELD: u32 = 0xffff;
    /// Segments and chunks at a time of rows that are kept in registers.
    pub(in super::super) fn hold(segments: usize, chunks: usize) -> u32 {
        (16 * segments + chunks) as u32 * (1 << 16)
    }
}

/// How many chunks may be under way, and the clocks between them. Narrow layers have more exchanges for their bytes,
/// which copies hold up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    fly: u32,
    pace: u32,
}

impl Share {
    const WIDE: Share = Share { fly: 4, pace: 0 };
    const NARROW: Share = Share { fly: 2, pace: 700 };
    const NARROW_WIDTH: usize = 1024;

    fn of(n: usize, k: usize) -> Self {
        if n.min(k) <= Self::NARROW_WIDTH { Self::NARROW } else { Self::WIDE }
    }
}

/// How many chunks a product takes at once, of those that its kernel has code for: all of its `parts`, or such as leave no rest.
fn held(segments: usize, parts: usize) -> usize {
    match segments {
        1 if parts <= 2 => 2,
        1 if parts.is_multiple_of(6) || parts == 5 => 6,
        2 if parts == 1 => 2,
        3 => 3,
        _ => 4,
    }
}

/// Chunks of every segment that a block has at most.
pub(super) fn parts(a: &RowArgs, blocks: usize) -> usize {
    (a.n as usize).div_ceil(GROUP).div_ceil(blocks) * if a.gated != 0 { 2 } else { 1 }
}

/// The norm that the kernel applies to a product's rows; none where it has no code for it.
fn norm(a: &RowArgs) -> Option<u32> {
    let n = &a.norm;
    match n.kind {
        0 => Some(0),
        NORM_RMS if n.bias == 0 && n.weight != 0 => Some(does::RMS),
        NORM_LAYER if n.shift == 0 && n.scale == 0 && n.weight != 0 && n.bias != 0 => {
            (a.k as usize <= LONGEST_LAYER).then_some(does::LAYER)
        }
        _ => None,
    }
}

/// A product as a phase of `blocks` blocks, its rows aside; none where the kernel has no code for it.
pub(super) fn phase(a: &RowArgs, blocks: usize) -> Option<Phase> {
    let (n, k, rows) = (a.n as usize, a.k as usize, a.rows as usize);
    let norm = norm(a)?;
    let fits = k.is_multiple_of(PIECE)
        && k <= LONGEST_ROW
        && n.div_ceil(GROUP) >= blocks
        && rows <= 2
        && [a.w, a.x, a.norm.weight, a.norm.bias].iter().all(|at| at.is_multiple_of(16))
        && a.x_stride.is_multiple_of(4)
        && a.store.store <= 1
        && matches!(a.store.act, 0 | ACT_SILU);
    if !fits {
        return None;
    }
    let segments = k.div_ceil(SEGMENT);
    let share = Share::of(n, k);
    let mut mode = norm;
    if segments <= KEPT && norm != does::LAYER {
        mode |= does::hold(segments, held(segments, parts(a, blocks)));
    }
    for (bit, wanted) in [
        (does::GATE, a.gated != 0),
        (does::BIAS, a.store.bias != 0 && a.gated == 0),
        (does::ACT, a.store.act != 0),
        (does::ADD, a.store.store == 1),
    ] {
        if wanted {
            mode |= bit;
        }
    }
    Some(Phase {
        kind: if rows == 1 { PRODUCT } else { PRODUCT_TWO },
        fly: share.fly,
        pace: share.pace,
        w: a.w,
        pitch: a.pitch * 16,
        k: a.k,
        n: a.n,
        gated: a.gated,
        rows: a.rows,
        norm: if norm == 0 { 0 } else { a.norm.weight },
        eps: a.norm.eps,
        bias: a.store.bias,
        segments: segments as u32,
        address: [a.norm.bias, 0, 0, 0, 0, 0],
        number: [0, 0, 0, 0, 0, (1.0 / k as f32).to_bits(), mode, 0],
        ..Phase::default()
    })
}

/// What a product does, with which of its rows come from other blocks: where one does not, none is kept in registers.
pub(super) fn with_exchanges(mode: u32, phase: &Phase) -> u32 {
    let bit = |row: &Row, bit: u32| if row.is_exchanged() { bit } else { 0 };
    let old = bit(&phase.old[0], does::OLD_EXCHANGED) | bit(&phase.old[1], 2 * does::OLD_EXCHANGED);
    let rows = phase.rows as usize;
    match phase.input[..rows].iter().all(Row::is_exchanged) {
        true => mode | old | (does::IN_EXCHANGED * ((1 << rows) - 1)),
        false => {
            let [first, second] = [0, 1].map(|r| bit(&phase.input[r], does::IN_EXCHANGED << r));
            mode & does::NOT_HELD | old | first | second
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_taken_by_counts_that_the_kernel_knows() {
        let table = [
            (1, 1, 2),
            (1, 2, 2),
            (1, 3, 4),
            (1, 4, 4),
            (1, 5, 6),
            (1, 6, 6),
            (1, 8, 4),
            (1, 12, 6),
            (2, 1, 2),
            (2, 2, 4),
            (2, 24, 4),
            (3, 1, 3),
            (6, 2, 4),
        ];
        for (segments, parts, expected) in table {
            assert_eq!(held(segments, parts), expected, "{segments} segments, {parts} parts");
        }
    }
}
