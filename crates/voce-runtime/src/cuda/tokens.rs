//! Tokens on the device, their embeddings, and the norms of heads.

use super::driver::{Address, Shape};
use super::queue::Args;
use super::rows::numbers;
use super::{Cuda, Plain, bytes, program};
use crate::exec::{
    BranchOp, Buffer, EmbedOp, EmbedPart, HeadNormOp, Rope, RopeStyle, TokenMove, Tokens, Vector,
};

/// Threads of a block that takes tokens or heads.
const THREADS: u32 = 256;

/// Arguments of `put_tokens`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PutTokensArgs {
    values: Address,
    slots: Address,
    tokens: Address,
    columns: u32,
    column: u32,
    each: u32,
    count: u32,
}

/// Arguments of `branch_tokens`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BranchTokensArgs {
    then: Address,
    otherwise: Address,
    slots: Address,
    tokens: Address,
    columns: u32,
    drawn: u32,
    key: u32,
    column: u32,
    each: u32,
    count: u32,
}

/// Arguments of `move_tokens`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MoveTokensArgs {
    moves: Address,
    from: Address,
    to: Address,
    count: u32,
    pad: u32,
}

/// A table: see `tokens.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Part {
    rows: Address,
    count: u32,
    stride: u32,
    column: u32,
    narrow: u32,
}

/// Arguments of `embed`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EmbedArgs {
    pub(super) parts: Address,
    pub(super) slots: Address,
    pub(super) tokens: Address,
    pub(super) out: Address,
    pub(super) count: u32,
    pub(super) columns: u32,
    pub(super) dim: u32,
    pub(super) out_stride: u32,
    pub(super) first: u32,
    pub(super) every: u32,
}

/// Arguments of `head_norm`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct HeadNormArgs {
    pub(super) x: Address,
    pub(super) query: Address,
    pub(super) key: Address,
    pub(super) positions: Address,
    pub(super) rope_table: Address,
    pub(super) rope_freqs: Address,
    pub(super) stride: u32,
    pub(super) rows: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) dim: u32,
    pub(super) rope: u32,
    pub(super) rope_rows: u32,
    pub(super) eps: f32,
}

// SAFETY: numbers without padding.
unsafe impl Plain for Part {}
// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for PutTokensArgs {}
// SAFETY: as above.
unsafe impl Args for BranchTokensArgs {}
// SAFETY: as above.
unsafe impl Args for MoveTokensArgs {}
// SAFETY: as above.
unsafe impl Args for EmbedArgs {}
// SAFETY: as above.
unsafe impl Args for HeadNormArgs {}

impl Cuda {
    /// Where tokens are on the device, with what the host had when they came there.
    pub(super) fn tokens(&mut self, tokens: &Tokens) -> Address {
        if let Some(memory) = tokens.device.get() {
            self.queue.own(memory);
            return memory.at;
        }
        let stored = self.queue.store(bytes(tokens.host()), std::ptr::from_ref(tokens) as usize);
        stored.map_or(0, |memory| tokens.device.get_or_init(|| memory).at)
    }

    /// Where tokens are, for an op that writes them.
    pub(super) fn written_tokens(&mut self, tokens: &mut Tokens) -> Address {
        tokens.make_stale();
        self.tokens(tokens)
    }

    pub(crate) fn set_tokens(&mut self, tokens: &Tokens, slots: &[usize], column: usize, values: &[u32]) {
        let each = (values.len() / slots.len()) as u32;
        let args = PutTokensArgs {
            tokens: self.tokens(tokens),
            values: self.queue.table(values),
            slots: self.queue.table(&numbers(slots)),
            columns: tokens.cols() as u32,
            column: column as u32,
            each,
            count: slots.len() as u32,
        };
        let grid = [(values.len() as u32).div_ceil(THREADS), 1, 1];
        self.queue.launch(program::PUT_TOKENS, Shape { grid, block: THREADS, shared: 0 }, &args);
    }

    pub(crate) fn move_tokens(&mut self, from: &Tokens, moves: &[TokenMove], to: &Tokens) {
        let place = |tokens: &Tokens, [row, column]: [usize; 2]| (row * tokens.cols() + column) as u32;
        let places: Vec<u32> = moves.iter().flat_map(|m| [place(from, m.from), place(to, m.to)]).collect();
        let args = MoveTokensArgs {
            moves: self.queue.table(&places),
            from: self.tokens(from),
            to: self.tokens(to),
            count: moves.len() as u32,
            pad: 0,
        };
        let grid = [(moves.len() as u32).div_ceil(THREADS), 1, 1];
        self.queue.launch(program::MOVE_TOKENS, Shape { grid, block: THREADS, shared: 0 }, &args);
    }

    pub(crate) fn branch_tokens(&mut self, op: &BranchOp<'_>, tokens: &Tokens, each: usize) {
        let args = BranchTokensArgs {
            then: self.queue.table(op.then),
            otherwise: self.queue.table(op.otherwise),
            slots: self.queue.table(&numbers(op.slots)),
            tokens: self.tokens(tokens),
            columns: tokens.cols() as u32,
            drawn: op.drawn as u32,
            key: op.key,
            column: op.column as u32,
            each: each as u32,
            count: op.slots.len() as u32,
        };
        let grid = [(op.then.len() as u32).div_ceil(THREADS), 1, 1];
        self.queue.launch(program::BRANCH_TOKENS, Shape { grid, block: THREADS, shared: 0 }, &args);
    }

    pub(crate) fn fetch_tokens(&mut self, tokens: &mut Tokens) {
        let at = self.tokens(tokens);
        self.queue.download(at, tokens.host_mut());
    }

    pub(crate) fn send_tokens(&mut self, tokens: &Tokens, to: &mut [u32]) -> usize {
        let at = self.tokens(tokens);
        self.queue.send(at, to)
    }

    pub(crate) fn send_rows(&mut self, rows: &Buffer, to: &mut [u32]) -> usize {
        let at = self.read(rows);
        self.queue.send(at, to)
    }

    pub(crate) fn embed(&mut self, op: &EmbedOp<'_>, out: &mut Buffer) {
        let dim = out.cols() as u32;
        let (tokens, out) = (self.tokens(op.tokens), self.write(out));
        let part = |p: &EmbedPart<'_>| {
            let rows = self.table_rows(p.table);
            Part {
                rows: rows.at(),
                count: p.table.rows() as u32,
                stride: rows.stride as u32,
                column: p.column as u32,
                narrow: u32::from(p.table.is_bf16()),
            }
        };
        let parts: Vec<Part> = op.parts.iter().map(part).collect();
        let args = EmbedArgs {
            parts: self.queue.table(&parts),
            slots: self.queue.table(&numbers(op.slots)),
            tokens,
            out,
            count: parts.len() as u32,
            columns: op.tokens.cols() as u32,
            dim,
            out_stride: dim,
            first: op.place.first as u32,
            every: op.place.step as u32,
        };
        let grid = [op.slots.len() as u32, dim.div_ceil(2 * THREADS), 1];
        self.queue.launch(program::EMBED, Shape { grid, block: THREADS, shared: 0 }, &args);
    }

    pub(crate) fn head_norm(&mut self, op: &HeadNormOp<'_>, qkv: &mut Buffer) {
        let spec = *op.cache.spec();
        let mut args = HeadNormArgs {
            x: 0,
            query: self.constant(op.norms.query),
            key: self.constant(op.norms.key),
            positions: 0,
            rope_table: 0,
            rope_freqs: 0,
            stride: qkv.cols() as u32,
            rows: op.spans.iter().map(|s| s.rows as u32).sum(),
            heads: op.heads as u32,
            kv_heads: spec.kv_heads as u32,
            dim: spec.head_dim as u32,
            rope: 0,
            rope_rows: 0,
            eps: op.norms.eps,
        };
        args.x = self.write(qkv);
        if let Some(rope) = op.rope {
            self.rotation(rope, &mut args);
        }
        let positions: Vec<u32> = op
            .spans
            .iter()
            .flat_map(|s| {
                let start = op.cache.position(s.slot);
                (start..start + s.rows).map(|p| p as u32)
            })
            .collect();
        args.positions = self.queue.table(&positions);
        self.norm_heads(&args);
    }

    fn rotation(&mut self, rope: &Rope, args: &mut HeadNormArgs) {
        args.rope = match rope.style {
            RopeStyle::Interleaved => 1,
            RopeStyle::Halves => 2,
        };
        args.rope_rows = (rope.table.len() / (2 * rope.freqs.len()).max(1)) as u32;
        (args.rope_table, args.rope_freqs) = (self.constant(&rope.table), self.constant(&rope.freqs));
    }

    pub(crate) fn rms_norm(&mut self, weight: &Vector, eps: f32, x: &mut Buffer, rows: usize) {
        let (weight, dim) = (self.constant(weight), x.cols() as u32);
        let args = HeadNormArgs {
            x: self.write(x),
            query: weight,
            key: weight,
            positions: 0,
            rope_table: 0,
            rope_freqs: 0,
            stride: dim,
            rows: rows as u32,
            heads: 1,
            kv_heads: 0,
            dim,
            rope: 0,
            rope_rows: 0,
            eps,
        };
        self.norm_heads(&args);
    }

    fn norm_heads(&mut self, args: &HeadNormArgs) {
        let warps = args.rows as u64 * u64::from(args.heads + args.kv_heads);
        let grid = [warps.div_ceil(u64::from(THREADS / 32)) as u32, 1, 1];
        self.queue.launch(program::HEAD_NORM, Shape { grid, block: THREADS, shared: 0 }, args);
    }
}
