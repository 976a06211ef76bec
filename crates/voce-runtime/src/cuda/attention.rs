//! Attention over rings in device memory: rows alone and a few rows of a slot by kernels of their own, more of them in tiles.

use super::choice::{
    self, ALONE_WARPS, BLOCKS, DECODE_QUERIES, Decode, FEW_ROWS, FEW_WARPS, SHORT_HEADS, SHORT_PART, Singles,
    TILE_QUERIES,
};
use super::driver::{Address, DeviceInfo, Shape};
use super::program::KernelOf;
use super::queue::Args;
use super::{Cuda, Plain};
use crate::exec::{
    AttentionKind, AttentionOp, AttentionShape, Buffer, CrossAttentionOp, HeadNorms, KvFormat, KvSpec,
    Output, Pending, RelativeAttentionOp, Rope, RopeStyle, Span,
};
use crate::matrix::Format;

/// Threads of a block of the kernel for single rows: where there are few rows, and where there are many.
const FEW_THREADS: u32 = 256;
const MANY_THREADS: u32 = 128;
/// Threads of a tile's block.
const TILE_THREADS: u32 = 256;
/// Positions that a block of the kernel for many single rows reads at once.
const LONG_PART: usize = 256;
/// The length of rows that are kept for products is a multiple of this, so that products can read them in place.
const KEPT: usize = 64;
/// Shared memory that a tile's block should not exceed, so that two fit.
const SHARED: usize = 112 << 10;

/// Some rows of one slot: see `attention.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Task {
    row: u32,
    rows: u32,
    slot: u32,
    position: u32,
    first: u32,
    end: u32,
    pad: [u32; 2],
}

// SAFETY: numbers without padding.
unsafe impl Plain for Task {}

impl Task {
    fn new(row: usize, rows: usize, slot: usize, position: usize, seen: (usize, usize)) -> Self {
        let [row, rows, slot, position, first, end] =
            [row, rows, slot, position, seen.0, seen.1].map(|v| v as u32);
        Self { row, rows, slot, position, first, end, pad: [0; 2] }
    }
}

/// Arguments of every kernel of `attention.cu`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct AttendArgs {
    pub(super) qkv: Address,
    pub(super) out: Address,
    pub(super) cache: Address,
    pub(super) tasks: Address,
    pub(super) rope_table: Address,
    pub(super) rope_freqs: Address,
    pub(super) partials: Address,
    pub(super) counters: Address,
    pub(super) distances: Address,
    pub(super) content: Address,
    pub(super) position: Address,
    pub(super) query_norm: Address,
    pub(super) key_norm: Address,
    pub(super) qkv_stride: u32,
    pub(super) out_stride: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) dim: u32,
    pub(super) width: u32,
    pub(super) capacity: u32,
    pub(super) window: u32,
    pub(super) rope: u32,
    pub(super) rope_rows: u32,
    pub(super) splits: u32,
    pub(super) tile: u32,
    pub(super) farthest: u32,
    pub(super) distance_stride: u32,
    pub(super) causal: u32,
    pub(super) scale: f32,
    pub(super) eps: f32,
    pub(super) narrow: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for AttendArgs {}

/// Keys of a tile, and the shared memory of its block of `queries` queries. Neither depends on the batch: sums over tiles
/// have to be the same in every one.
fn tile(spec: &KvSpec, farthest: Option<usize>, queries: usize) -> (usize, usize) {
    // Rings of e4m3 are multiplied as bf16.
    let value = spec.value_bytes().max(2);
    let (stride, once) = (spec.width() + 16 / value, usize::from(farthest.is_some()));
    let bytes = |tile: usize| {
        let rows = queries * (1 + once) + 2 * tile + once * (tile + queries);
        let scores = queries * (tile + 4 + once * (tile + queries + 4));
        (rows * stride + queries * (tile + 8)) * value + 4 * scores
    };
    // The keys of a short chunk are one tile; larger ones are worth it only where many blocks still fit.
    let one = farthest.is_some_and(|f| (64..96).contains(&f)).then_some((96, SHARED));
    let sizes = one.into_iter().chain([(128, SHARED / 2), (64, SHARED), (32, SHARED)]);
    let tile = sizes.into_iter().find(|&(t, most)| bytes(t) <= most).map_or(16, |(t, _)| t);
    (tile, bytes(tile))
}

/// The kernel that attention of a shape runs by on a device.
pub(crate) fn attention_kernel(shape: &AttentionShape, device: &DeviceInfo) -> &'static str {
    let AttentionShape { kind, format, heads, kv_heads, head_dim, streams, rows, positions } = *shape;
    let group = heads / kv_heads.max(1);
    match kind {
        AttentionKind::Causal if rows == 1 && group <= DECODE_QUERIES => {
            let (blocks, processors) = (streams * kv_heads, device.processors as usize);
            Singles { format, head_dim, group, blocks, longest: positions, processors }
                .decode()
                .kernel()
                .name()
        }
        AttentionKind::Causal => {
            choice::few_tile(format, head_dim, rows * group).unwrap_or_else(|| choice::tile(format).0).name()
        }
        AttentionKind::Chunked | AttentionKind::Whole => {
            let qkv = (heads + 2 * kv_heads) * head_dim;
            choice::relative_tile(format, head_dim, qkv, kind == AttentionKind::Whole).0.name()
        }
    }
}

impl Cuda {
    fn rope(&mut self, rope: Option<&Rope>, args: &mut AttendArgs) {
        let Some(rope) = rope else { return };
        args.rope = match rope.style {
            RopeStyle::Interleaved => 1,
            RopeStyle::Halves => 2,
        };
        args.rope_rows = (rope.table.len() / (2 * rope.freqs.len()).max(1)) as u32;
        (args.rope_table, args.rope_freqs) = (self.constant(&rope.table), self.constant(&rope.freqs));
    }

    /// Whether attention of these rows norms their heads: where each is alone.
    pub(crate) fn norms_heads(spans: &[Span], group: usize) -> bool {
        group <= DECODE_QUERIES && spans.iter().all(|s| s.rows == 1)
    }

    /// Whether a result of `rows` rows is kept as products take it, which is then noted.
    pub(super) fn keeps_narrow(out: &mut Output<'_>, rows: usize) -> bool {
        let narrow = (out.is_for(Format::Bf16) || out.is_for(Format::Fp8))
            && rows > FEW_ROWS
            && out.buffer.cols().is_multiple_of(KEPT);
        if narrow {
            out.keep(Pending::Narrow { act: 0, bias: 0, scales: [0; 2] });
        }
        narrow
    }

    /// What all launches of an op over a layer of a cache share.
    fn attend_args(
        &mut self,
        spec: &KvSpec,
        layer: usize,
        qkv: &Buffer,
        out: &mut Output<'_>,
        rows: usize,
    ) -> AttendArgs {
        AttendArgs {
            qkv: self.read(qkv),
            out: self.write(out.buffer),
            narrow: u32::from(Self::keeps_narrow(out, rows)),
            cache: (layer * spec.bytes() / spec.layers) as u64,
            qkv_stride: qkv.cols() as u32,
            out_stride: out.buffer.cols() as u32,
            kv_heads: spec.kv_heads as u32,
            dim: spec.head_dim as u32,
            width: spec.width() as u32,
            capacity: spec.capacity as u32,
            scale: 1.0 / (spec.head_dim as f32).sqrt(),
            ..AttendArgs::default()
        }
    }

    pub(crate) fn attention(&mut self, op: AttentionOp<'_>, mut out: Output<'_>) {
        let spec = *op.cache.spec();
        let rows = op.spans.iter().map(|s| s.rows).sum();
        let mut args = self.attend_args(&spec, op.layer, op.qkv, &mut out, rows);
        args.cache += self.cache(op.cache);
        self.rope(op.rope, &mut args);
        if let Some(HeadNorms { query, key, eps }) = op.norms {
            (args.query_norm, args.key_norm, args.eps) = (self.constant(query), self.constant(key), eps);
        }
        (args.heads, args.causal) = (op.heads as u32, op.cache.frame() as u32);
        args.window = op.window.unwrap_or(0) as u32;
        let group = op.heads / spec.kv_heads;
        let few_of = |rows: usize| choice::few_tile(spec.format, spec.head_dim, rows * group);
        let (mut singles, mut few, mut tiles) = (Vec::new(), Vec::new(), Vec::new());
        let (mut row, mut longest) = (0, 0);
        for span in op.spans {
            let start = op.cache.position(span.slot);
            let first = |p: usize| op.cache.first_seen(op.window, p);
            if span.rows == 1 && group <= DECODE_QUERIES {
                longest = longest.max(start + 1 - first(start));
                singles.push(Task::new(row, 1, span.slot, start, (first(start), start + 1)));
            } else if few_of(span.rows).is_some() {
                few.push(Task::new(row, span.rows, span.slot, start, (first(start), start + span.rows)));
            } else {
                let step = (TILE_QUERIES / group).max(1);
                for part in (0..span.rows).step_by(step) {
                    let (at, rows) = (start + part, step.min(span.rows - part));
                    tiles.push(Task::new(row + part, rows, span.slot, at, (first(at), at + rows)));
                }
            }
            row += span.rows;
        }
        let (count, few_count) = (singles.len(), few.len());
        let alone = Singles {
            format: spec.format,
            head_dim: spec.head_dim,
            group,
            blocks: count * spec.kv_heads,
            longest,
            processors: self.device().info().processors as usize,
        };
        if self.queue.rehearsal.is_some() && group <= DECODE_QUERIES {
            // A later step of fewer rows, which see more, may split rings where this one does not.
            let seen = op.window.unwrap_or(spec.capacity).min(spec.capacity);
            let blocks = BLOCKS * alone.processors;
            self.share_rings(&spec, alone.queries(), blocks, choice::splits(seen), &mut args);
        }
        let most = few.iter().map(|t| t.rows).max().unwrap_or(0);
        singles.append(&mut few);
        singles.append(&mut tiles);
        args.tasks = self.queue.table(&singles);
        if count > 0 {
            self.attended.note(alone.decode().kernel().name(), &spec, op.heads);
            self.decode(&spec, &alone, &mut args);
        }
        args.tasks += (count * size_of::<Task>()) as u64;
        if let Some(kernel) = few_of(most as usize)
            && few_count > 0
        {
            self.attended.note(kernel.name(), &spec, op.heads);
            self.few(kernel, few_count * spec.kv_heads, most, &args);
        }
        args.tasks += (few_count * size_of::<Task>()) as u64;
        let tiles = &singles[count + few_count..];
        self.put_kv(&spec, &args, tiles);
        self.tiles(&spec, &args, tiles.len(), choice::tile(spec.format));
    }

    /// Attention of tasks of up to `rows` rows by a kernel for a few.
    fn few(&mut self, kernel: KernelOf<AttendArgs>, blocks: usize, rows: u32, args: &AttendArgs) {
        // Tasks say how many rows they have; who reads the launch alone finds the most of them in `tile`.
        let args = AttendArgs { tile: rows, splits: 0, partials: 0, counters: 0, ..*args };
        let shape = Shape { grid: [blocks as u32, 1, 1], block: 32 * FEW_WARPS as u32, shared: 0 };
        self.queue.launch(kernel, shape, &args);
    }

    /// Memory for the partial results of blocks that share a ring.
    fn share_rings(
        &mut self,
        spec: &KvSpec,
        queries: usize,
        blocks: usize,
        splits: usize,
        args: &mut AttendArgs,
    ) {
        let record = queries * (spec.width() + 2) * 4;
        args.partials = self.queue.reserve(&mut self.scratch.partials, blocks * splits * record);
        args.counters = self.queue.reserve(&mut self.scratch.counters, blocks * 4);
    }

    /// Attention of rows that are alone in their slots.
    fn decode(&mut self, spec: &KvSpec, rows: &Singles, args: &mut AttendArgs) {
        let blocks = rows.blocks as u32;
        (args.splits, args.partials, args.counters) = (0, 0, 0);
        let (kernel, block, part) = match rows.decode() {
            Decode::Alone(kernel) => {
                let shared = (ALONE_WARPS * rows.group * spec.head_dim * 4) as u32;
                let shape = Shape { grid: [blocks, 1, 1], block: 32 * ALONE_WARPS as u32, shared };
                return self.queue.launch(kernel, shape, args);
            }
            Decode::Short(kernel) => {
                let grid = [blocks / SHORT_HEADS as u32, 1, 1];
                let shape = Shape { grid, block: 32 * SHORT_HEADS as u32, shared: 0 };
                return self.queue.launch(kernel, shape, args);
            }
            Decode::Together(kernel) => return self.few(kernel, rows.blocks, 1, args),
            Decode::Few { kernel, splits } => {
                args.splits = splits as u32;
                if splits > 1 {
                    self.share_rings(spec, rows.queries(), rows.blocks, splits, args);
                }
                (kernel, FEW_THREADS, SHORT_PART)
            }
            Decode::Many(kernel) => (kernel, MANY_THREADS, LONG_PART),
        };
        let own = 2 * spec.width() * spec.value_bytes();
        let held = 2 + block as usize / 32;
        let shared = (rows.queries() * (held * spec.width() + part) * 4 + own) as u32;
        let shape = Shape { grid: [blocks, args.splits.max(1), 1], block, shared };
        self.queue.launch(kernel, shape, args);
    }

    pub(crate) fn cross_attention(&mut self, op: CrossAttentionOp<'_>, mut out: Output<'_>) {
        let spec = *op.cache.spec();
        let rows = op.spans.iter().map(|s| s.rows).sum();
        let mut args = self.attend_args(&spec, op.layer, op.q, &mut out, rows);
        args.cache += self.cache(op.cache);
        args.heads = op.heads as u32;
        let step = (TILE_QUERIES / (op.heads / spec.kv_heads)).max(1);
        let (mut tasks, mut row) = (Vec::new(), 0);
        for span in op.spans {
            let seen = (0, op.cache.position(span.slot));
            for part in (0..span.rows).step_by(step) {
                tasks.push(Task::new(row + part, step.min(span.rows - part), span.slot, 0, seen));
            }
            row += span.rows;
        }
        args.tasks = self.queue.table(&tasks);
        self.tiles(&spec, &args, tasks.len(), choice::tile(spec.format));
    }

    pub(crate) fn relative_attention(&mut self, op: RelativeAttentionOp<'_>, mut out: Output<'_>) {
        let spec = *op.cache.spec();
        let rows = op.spans.iter().map(|s| s.rows).sum();
        let mut args = self.attend_args(&spec, op.layer, op.qkv, &mut out, rows);
        args.cache += self.cache(op.cache);
        args.heads = spec.kv_heads as u32;
        (args.content, args.position) = (self.constant(op.content_bias), self.constant(op.position_bias));
        args.farthest = op.positions.farthest as u32;
        let format = if spec.format == KvFormat::F32 { Format::F32 } else { Format::Bf16 };
        let mut distances = usize::MAX;
        let heads = op.positions.heads.iter();
        let addresses: Vec<u64> = heads
            .map(|m| {
                assert!(m.format == format && m.k == spec.head_dim, "distances as the cache");
                let matrix = self.weights(m);
                (distances, args.distance_stride) = (distances.min(m.n), matrix.stride as u32);
                matrix.at()
            })
            .collect();
        let whole = op.spans.iter().all(|s| s.chunk == usize::MAX);
        let (kernel, queries) = choice::relative_tile(spec.format, spec.head_dim, op.qkv.cols(), whole);
        let mut tasks = Vec::new();
        let mut row = 0;
        for span in op.spans {
            let start = op.cache.position(span.slot);
            let (mut at, end) = (start, start + span.rows);
            while at < end {
                // Rows of one chunk see the same: a block does not cross chunks.
                let rows = (span.chunk - at % span.chunk).min(end - at).min(queries);
                let seen = span.seen(at, end);
                assert!(
                    op.positions.farthest + seen.0 + 1 >= at + rows,
                    "the farthest distance is tabulated"
                );
                assert!(
                    op.positions.farthest + seen.1 - at <= distances,
                    "the nearest distance is tabulated"
                );
                tasks.push(Task::new(row, rows, span.slot, at, seen));
                (at, row) = (at + rows, row + rows);
            }
        }
        args.tasks = self.queue.table(&tasks);
        self.put_kv(&spec, &args, &tasks);
        args.distances = self.queue.table(&addresses);
        self.tiles(&spec, &args, tasks.len(), (kernel, queries));
    }

    /// Keys and values of tiles' rows to their rings.
    fn put_kv(&mut self, spec: &KvSpec, args: &AttendArgs, tasks: &[Task]) {
        let rows = tasks.iter().map(|t| t.rows).max().unwrap_or(0);
        let shape = Shape { grid: [tasks.len() as u32, rows, 1], block: 256, shared: 0 };
        self.queue.launch(choice::put_kv(spec.format), shape, args);
    }

    fn tiles(
        &mut self,
        spec: &KvSpec,
        args: &AttendArgs,
        tasks: usize,
        (kernel, queries): (KernelOf<AttendArgs>, usize),
    ) {
        if tasks > 0 {
            self.attended.note(kernel.name(), spec, args.heads as usize);
        }
        let farthest = (args.distances != 0).then_some(args.farthest as usize);
        let (keys, shared) = tile(spec, farthest, queries);
        let args = AttendArgs { tile: keys as u32, splits: 0, partials: 0, counters: 0, ..*args };
        let parts = (args.heads / args.kv_heads).div_ceil(queries as u32);
        let grid = [tasks as u32 * args.kv_heads, parts, 1];
        self.queue.launch(kernel, Shape { grid, block: TILE_THREADS, shared: shared as u32 }, &args);
    }
}
