//! Which kernels attend, and which move keys and values.

use crate::cuda::attention::AttendArgs;
use crate::cuda::kv::KvMoveArgs;
use crate::cuda::program::{self, KernelOf};
use crate::exec::KvFormat;

/// Queries of a tile's block, and of one for whole utterances.
pub(in crate::cuda) const TILE_QUERIES: usize = 16;
const WHOLE_QUERIES: usize = 32;
/// Dimensions of the heads that some kernels are made for.
const USUAL_HEAD: usize = 128;
/// Query heads of a key head up to which rows that are alone have kernels of their own.
pub(in crate::cuda) const DECODE_QUERIES: usize = 4;
/// Blocks per multiprocessor from which reading is not split further.
pub(in crate::cuda) const BLOCKS: usize = 2;
/// Positions that a block reads at once where reading is split.
pub(in crate::cuda) const SHORT_PART: usize = 64;
/// Positions up to which a few rows alone have a block per key head that reads them all.
const ALONE: usize = 128;
/// Warps of its block: as in `attention_row.cu`.
pub(in crate::cuda) const ALONE_WARPS: usize = 16;
/// Positions up to which many rows have a warp per key head, and the warps of its block.
const SHORT: usize = 32;
pub(in crate::cuda) const SHORT_HEADS: usize = 4;

/// Queries of a block for a few rows, and warps of the block: as in `attention_few.cu`.
const FEW_QUERIES: usize = 8;
pub(in crate::cuda) const FEW_WARPS: usize = 4;

/// Rows that are alone in their slots, and the rings that they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Singles {
    pub format: KvFormat,
    pub head_dim: usize,
    /// Query heads that share a key head.
    pub group: usize,
    /// Rows times key heads.
    pub blocks: usize,
    /// Positions that the row sees which sees most.
    pub longest: usize,
    pub processors: usize,
}

/// How they attend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cuda) enum Decode {
    /// A block per key head reads a whole short ring.
    Alone(KernelOf<AttendArgs>),
    /// A warp per key head does.
    Short(KernelOf<AttendArgs>),
    /// Few rows: `splits` blocks share a ring.
    Few { kernel: KernelOf<AttendArgs>, splits: usize },
    /// Many rows: a block per key head, on tensor cores.
    Together(KernelOf<AttendArgs>),
    /// The same by plain products.
    Many(KernelOf<AttendArgs>),
}

impl Singles {
    /// Queries that a block takes together.
    pub(in crate::cuda) fn queries(&self) -> usize {
        let pair = self.group == 2 && self.format != KvFormat::F32;
        if self.group == 1 || pair { self.group } else { DECODE_QUERIES }
    }

    /// Kernels of whole heads in registers: many warps a key head, and one.
    fn by_head(&self) -> Option<[KernelOf<AttendArgs>; 2]> {
        use program::*;
        Some(match (self.head_dim, self.group) {
            (64, 1) => [DECODE_ALONE_64, DECODE_SHORT_64],
            (128, 1) => [DECODE_ALONE_128, DECODE_SHORT_128],
            (64, 2) => [DECODE_ALONE_PAIR_64, DECODE_SHORT_PAIR_64],
            (128, 2) => [DECODE_ALONE_PAIR_128, DECODE_SHORT_PAIR_128],
            _ => return None,
        })
    }

    /// By which kernel.
    pub(in crate::cuda) fn decode(&self) -> Decode {
        use KvFormat::{Bf16, F32, Fp8};
        let few = self.blocks < BLOCKS * self.processors;
        if self.format == Bf16
            && let Some([alone, short]) = self.by_head()
        {
            match self.longest {
                ..=ALONE if few => return Decode::Alone(alone),
                ..=SHORT if !few && self.blocks.is_multiple_of(SHORT_HEADS) => return Decode::Short(short),
                _ => {}
            }
        }
        if few {
            let kernel = match (self.format, self.queries()) {
                (F32, 1) => program::DECODE_FEW_F32,
                (F32, _) => program::DECODE_FEW_GROUP_F32,
                (Bf16, 1) => program::DECODE_FEW_BF16,
                (Bf16, 2) => program::DECODE_FEW_PAIR_BF16,
                (Bf16, _) => program::DECODE_FEW_GROUP_BF16,
                (Fp8, 1) => program::DECODE_FEW_FP8,
                (Fp8, 2) => program::DECODE_FEW_PAIR_FP8,
                (Fp8, _) => program::DECODE_FEW_GROUP_FP8,
            };
            return Decode::Few { kernel, splits: splits(self.longest) };
        }
        // A query that has its keys to itself is read for as fast by plain products, which round less.
        if self.group > 1
            && let Some(kernel) = few_tile(self.format, self.head_dim, self.group)
        {
            return Decode::Together(kernel);
        }
        Decode::Many(match (self.format, self.queries()) {
            (F32, 1) => program::DECODE_F32,
            (F32, _) => program::DECODE_GROUP_F32,
            (Bf16, 1) => program::DECODE_BF16,
            (Bf16, 2) => program::DECODE_PAIR_BF16,
            (Bf16, _) => program::DECODE_GROUP_BF16,
            (Fp8, 1) => program::DECODE_FP8,
            (Fp8, 2) => program::DECODE_PAIR_FP8,
            (Fp8, _) => program::DECODE_GROUP_FP8,
        })
    }
}

impl Decode {
    /// The kernel.
    pub(in crate::cuda) fn kernel(self) -> KernelOf<AttendArgs> {
        match self {
            Self::Alone(kernel)
            | Self::Short(kernel)
            | Self::Together(kernel)
            | Self::Many(kernel)
            | Self::Few { kernel, .. } => kernel,
        }
    }
}

/// Blocks that share a ring of which `seen` positions are read: a power of two, so that few different launches come.
pub(in crate::cuda) fn splits(seen: usize) -> usize {
    seen.div_ceil(SHORT_PART).next_power_of_two()
}

/// The kernel of queries that share a ring, where there is one: a few rows of a slot, or one with its heads of a key head.
pub(in crate::cuda) fn few_tile(
    format: KvFormat,
    head_dim: usize,
    queries: usize,
) -> Option<KernelOf<AttendArgs>> {
    match head_dim {
        _ if format != KvFormat::Bf16 || queries > FEW_QUERIES => None,
        64 => Some(program::FEW_ROWS_64),
        128 => Some(program::FEW_ROWS_128),
        _ => None,
    }
}

/// The kernel of several rows of a slot, and the queries of its block.
pub(in crate::cuda) fn tile(format: KvFormat) -> (KernelOf<AttendArgs>, usize) {
    let kernel = match format {
        KvFormat::F32 => program::TILE_F32,
        KvFormat::Bf16 => program::TILE_BF16,
        KvFormat::Fp8 => program::TILE_FP8,
    };
    (kernel, TILE_QUERIES)
}

/// The same with relative positions: a matter of the model, of the width of its rows of `[q | k | v]`, and of whether
/// utterances are whole, but not of the batch.
pub(in crate::cuda) fn relative_tile(
    format: KvFormat,
    head_dim: usize,
    qkv: usize,
    whole: bool,
) -> (KernelOf<AttendArgs>, usize) {
    let usual = head_dim == USUAL_HEAD && qkv.is_multiple_of(4);
    match format {
        KvFormat::Bf16 if usual && whole => (program::TILE_WHOLE_BF16, WHOLE_QUERIES),
        KvFormat::Bf16 if usual => (program::TILE_CHUNK_BF16, TILE_QUERIES),
        _ => tile(format),
    }
}

/// The kernel that puts keys and values of tiles' rows into rings.
pub(in crate::cuda) fn put_kv(format: KvFormat) -> KernelOf<AttendArgs> {
    match format {
        KvFormat::F32 => program::PUT_KV_F32,
        KvFormat::Bf16 => program::PUT_KV_BF16,
        KvFormat::Fp8 => program::PUT_KV_FP8,
    }
}

/// The kernel that takes keys and values to and from the host.
pub(in crate::cuda) fn move_kv(format: KvFormat) -> KernelOf<KvMoveArgs> {
    match format {
        KvFormat::F32 => program::MOVE_KV_F32,
        KvFormat::Bf16 => program::MOVE_KV_BF16,
        KvFormat::Fp8 => program::MOVE_KV_FP8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: usize = 132;

    #[test]
    fn single_rows_attend_by_the_kernel_of_their_shape() {
        use KvFormat::{Bf16, F32, Fp8};
        // Format, head, queries of a key head, rows times key heads, positions: kernel and blocks of a ring.
        let table = [
            (Bf16, 128, 2, 8, 1, "decode_alone_pair_128", 0),
            (Bf16, 128, 2, 8, 128, "decode_alone_pair_128", 0),
            (Bf16, 128, 2, 8, 129, "decode_few_pair_bf16", 4),
            (Bf16, 128, 2, 263, 300, "decode_few_pair_bf16", 8),
            (Bf16, 128, 2, 264, 300, "few_rows_128", 0),
            (Bf16, 128, 2, 264, 1, "decode_short_pair_128", 0),
            (Bf16, 128, 2, 264, 32, "decode_short_pair_128", 0),
            (Bf16, 128, 2, 264, 33, "few_rows_128", 0),
            (Bf16, 128, 2, 266, 16, "few_rows_128", 0),
            (Bf16, 64, 2, 264, 16, "decode_short_pair_64", 0),
            (Bf16, 128, 1, 264, 16, "decode_short_128", 0),
            (Bf16, 64, 1, 264, 16, "decode_short_64", 0),
            (Fp8, 128, 2, 264, 16, "decode_pair_fp8", 0),
            (Bf16, 128, 1, 1, 100, "decode_alone_128", 0),
            (Bf16, 64, 1, 1, 100, "decode_alone_64", 0),
            (Bf16, 64, 2, 1, 100, "decode_alone_pair_64", 0),
            (Bf16, 96, 1, 1, 100, "decode_few_bf16", 2),
            (Bf16, 64, 4, 1, 64, "decode_few_group_bf16", 1),
            (Bf16, 64, 3, 1, 65, "decode_few_group_bf16", 2),
            (Bf16, 64, 3, 10_000, 750, "few_rows_64", 0),
            (Bf16, 96, 3, 10_000, 750, "decode_group_bf16", 0),
            (Bf16, 96, 2, 10_000, 750, "decode_pair_bf16", 0),
            (Bf16, 64, 1, 10_000, 750, "decode_bf16", 0),
            (F32, 64, 1, 1, 10, "decode_few_f32", 1),
            (F32, 64, 2, 1, 10, "decode_few_group_f32", 1),
            (F32, 64, 1, 264, 10, "decode_f32", 0),
            (F32, 64, 2, 264, 10, "decode_group_f32", 0),
            (Fp8, 128, 1, 1, 10, "decode_few_fp8", 1),
            (Fp8, 128, 2, 1, 10, "decode_few_pair_fp8", 1),
            (Fp8, 128, 4, 1, 768, "decode_few_group_fp8", 16),
            (Fp8, 128, 1, 512, 768, "decode_fp8", 0),
            (Fp8, 128, 2, 512, 768, "decode_pair_fp8", 0),
            (Fp8, 128, 4, 512, 768, "decode_group_fp8", 0),
        ];
        for (format, head_dim, group, blocks, longest, kernel, splits) in table {
            let singles = Singles { format, head_dim, group, blocks, longest, processors: H200 };
            let got = match singles.decode() {
                Decode::Few { kernel, splits } => (kernel.name(), splits),
                other => (other.kernel().name(), 0),
            };
            assert_eq!(got, (kernel, splits), "{singles:?}");
        }
    }

    #[test]
    fn rows_of_one_slot_attend_in_tiles() {
        use KvFormat::{Bf16, F32, Fp8};
        for (format, name) in [(F32, "tile_f32"), (Bf16, "tile_bf16"), (Fp8, "tile_fp8")] {
            assert_eq!((tile(format).0.name(), tile(format).1), (name, 16));
        }
        let few = |format, head, queries| few_tile(format, head, queries).map(KernelOf::name);
        assert_eq!(few(Bf16, 64, 2), Some("few_rows_64"));
        assert_eq!(few(Bf16, 64, 8), Some("few_rows_64"));
        assert_eq!(few(Bf16, 128, 2), Some("few_rows_128"));
        assert_eq!([few(Bf16, 64, 9), few(Bf16, 96, 2), few(F32, 64, 2), few(Fp8, 64, 2)], [None; 4]);
        let table = [
            (Bf16, 128, 3072, true, "tile_whole_bf16", 32),
            (Bf16, 128, 3072, false, "tile_chunk_bf16", 16),
            (Bf16, 64, 3072, true, "tile_bf16", 16),
            (Bf16, 128, 3070, false, "tile_bf16", 16),
            (F32, 128, 3072, true, "tile_f32", 16),
            (Fp8, 128, 3072, false, "tile_fp8", 16),
        ];
        for (format, head, qkv, whole, name, queries) in table {
            let (kernel, q) = relative_tile(format, head, qkv, whole);
            assert_eq!((kernel.name(), q), (name, queries), "{format:?} {head} {qkv} {whole}");
        }
        let formats = [F32, Bf16, Fp8];
        assert_eq!(formats.map(|f| put_kv(f).name()), ["put_kv_f32", "put_kv_bf16", "put_kv_fp8"]);
        assert_eq!(formats.map(|f| move_kv(f).name()), ["move_kv_f32", "move_kv_bf16", "move_kv_fp8"]);
    }
}
