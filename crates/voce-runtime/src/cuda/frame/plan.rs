//! From commands to phases: which runs of a recording become programs, and what every phase of these is.

use std::collections::HashMap;
use std::ops::Range;

use super::product::{self, GROUP, PRODUCT, PRODUCT_TWO, SEGMENT, with_exchanges};
use super::rows::{Rows, TableRow, Version};
use super::{CHUNK, FEWEST_SLOTS, FIXED, NAPS, Phase, Row, SLOTS};
use crate::cuda::attention::AttendArgs;
use crate::cuda::driver::{Address, Command};
use crate::cuda::program::{self, KernelOf};
use crate::cuda::queue::Args;
use crate::cuda::row::RowArgs;
use crate::cuda::sampling::SampleArgs;
use crate::cuda::tokens::{EmbedArgs, HeadNormArgs};

const EMBED: u32 = 1;
const NORM: u32 = 2;
const ATTEND: u32 = 3;
const ATTEND_SHORT: u32 = 4;
const SAMPLE: u32 = 5;

/// Products from which a program is worth a launch of its own kind.
const WORTH: usize = 8;
/// The largest vocabulary that is drawn from here, and tokens of it that a draw lists: as in `block.cuh`.
const LARGEST_DRAW: usize = 8 * SEGMENT;
const LISTED: usize = 512;
/// Positions of a ring that every block keeps, and bytes between rows of their keys beyond their own.
const SHORT: u32 = 64;
const KEY_PAD: usize = 16;
/// Values of a head that a block makes at most.
const MOST_VALUES: usize = 32;
/// Where the parts of attention are exchanged: no row is there.
const PARTS: Address = Address::MAX;

/// A program, and the memory that it runs in.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) phases: Vec<Phase>,
    /// Values of the exchange.
    pub(super) exchanged: usize,
    /// Chunks of a block's ring of weights.
    pub(super) slots: usize,
    /// Bytes of shared memory beside the ring: rows of products, sums of outputs, rings that blocks keep.
    pub(super) rest: usize,
    pub(super) x_bytes: usize,
    pub(super) red_bytes: usize,
    /// Whether some chunks are not full.
    pub(super) blank: bool,
    /// Whether drawn tokens are marked.
    pub(super) remembers: bool,
}

/// A command that a program can have.
enum Op {
    Product(RowArgs),
    Embed(EmbedArgs),
    /// A row's norm in place, and where else it goes.
    Norm(HeadNormArgs, Option<Address>),
    Attend(Attend),
    Sample(SampleArgs),
}

/// Attention of one row, or of several rows of one slot.
struct Attend {
    args: AttendArgs,
    rows: usize,
    /// Norms and rotation that another command applies before.
    before: Option<HeadNormArgs>,
    /// Keys and values were there before, and all are seen.
    cross: bool,
}

/// A command's arguments, if it launches this kernel.
fn args_of<A: Args>(kernel: KernelOf<A>, command: &Command, args: &[u8]) -> Option<A> {
    let Command::Launch { kernel: id, args: at, len, .. } = command else { return None };
    if *id != kernel.id() || *len != size_of::<A>() {
        return None;
    }
    // SAFETY: the queue recorded a value of this type there, for this kernel.
    Some(unsafe { args[*at..*at + *len].as_ptr().cast::<A>().read_unaligned() })
}

fn grid(command: &Command) -> [u32; 3] {
    match command {
        Command::Launch { shape, .. } => shape.grid,
        _ => [0; 3],
    }
}

/// The op that the next commands are, and how many they are.
fn op(commands: &[Command], args: &[u8]) -> Option<(Op, usize)> {
    use program::*;
    let first = commands.first()?;
    let products = [
        ROW_BF16,
        ROW_LONG_BF16,
        ROW_LONGEST_BF16,
        ROW_TWO_BF16,
        ROW_TWO_LONG_BF16,
        ROW_FOUR_BF16,
        ROW_MANY_BF16,
    ];
    if let Some(a) = products.into_iter().find_map(|k| args_of(k, first, args)) {
        return Some((Op::Product(a), 1));
    }
    let single = [
        DECODE_ALONE_64,
        DECODE_ALONE_128,
        DECODE_ALONE_PAIR_64,
        DECODE_ALONE_PAIR_128,
        DECODE_FEW_BF16,
        DECODE_FEW_PAIR_BF16,
        DECODE_BF16,
        DECODE_PAIR_BF16,
    ];
    if let Some(a) = single.into_iter().find_map(|k| args_of(k, first, args)) {
        let one = grid(first)[0] == a.kv_heads;
        return one.then_some((Op::Attend(Attend { args: a, rows: 1, before: None, cross: false }), 1));
    }
    if let Some(a) = args_of(EMBED, first, args) {
        return (grid(first)[0] == 1).then_some((Op::Embed(a), 1));
    }
    if let Some(a) = args_of(SAMPLE, first, args) {
        // Rows whose probabilities are summed have more memory.
        let counted = matches!(first, Command::Launch { shape, .. } if shape.shared == 4 * a.n);
        return (grid(first)[0] == 1 && counted).then_some((Op::Sample(a), 1));
    }
    if let Some(a) = args_of(HEAD_NORM, first, args) {
        if a.kv_heads > 0 {
            let (attend, taken) = several(&commands[1..], args)?;
            return Some((Op::Attend(Attend { before: Some(a), ..attend }), taken + 1));
        }
        if a.heads != 1 || a.rows != 1 || a.rope != 0 {
            return None;
        }
        let copied = match commands.get(1) {
            Some(Command::Copy { from, to, bytes }) if *from == a.x && *bytes == 4 * a.dim as usize => {
                Some(*to)
            }
            _ => None,
        };
        return Some((Op::Norm(a, copied), 1 + usize::from(copied.is_some())));
    }
    if let Some(attend) = cross(first, args) {
        return Some((Op::Attend(attend), 1));
    }
    several(commands, args).map(|(attend, taken)| (Op::Attend(attend), taken))
}

/// Attention of several rows of one slot: they go to the ring first.
fn several(commands: &[Command], args: &[u8]) -> Option<(Attend, usize)> {
    let first = commands.first()?;
    let few = args_of(program::FEW_ROWS_64, first, args);
    if let Some(a) = few.or_else(|| args_of(program::FEW_ROWS_128, first, args)) {
        let one = grid(first) == [a.kv_heads, 1, 1];
        return one.then_some((Attend { args: a, rows: a.tile as usize, before: None, cross: false }, 1));
    }
    let [put, tile, ..] = commands else { return None };
    args_of(program::PUT_KV_BF16, put, args)?;
    let [tasks, rows, _] = grid(put);
    let a = args_of(program::TILE_BF16, tile, args)?;
    (tasks == 1 && grid(tile) == [a.kv_heads, 1, 1])
        .then_some((Attend { args: a, rows: rows as usize, before: None, cross: false }, 2))
}

/// Attention to what a slot was given, if it is of one task; how many rows that has, the product before it says.
fn cross(command: &Command, args: &[u8]) -> Option<Attend> {
    let a = args_of(program::TILE_BF16, command, args)?;
    let one = grid(command) == [a.kv_heads, 1, 1] && a.causal == 0 && a.distances == 0;
    one.then_some(Attend { args: a, rows: 1, before: None, cross: true })
}

/// The runs of a recording that become programs. A run ends where a command cannot be planned.
pub(super) fn plans(
    commands: &[Command],
    args: &[u8],
    blocks: usize,
    shared: usize,
) -> Vec<(Range<usize>, Plan)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < commands.len() {
        let mut builder = Builder::new(blocks);
        let mut ops = Vec::new();
        let mut end = at;
        while let Some((op, taken)) = op(&commands[end..], args) {
            if builder.add(&op).is_none() {
                // It may have left something behind.
                builder = Builder::new(blocks);
                ops.iter().for_each(|op| builder.add(op).unwrap_or_default());
                break;
            }
            ops.push(op);
            end += taken;
        }
        match builder.finish(shared) {
            Some(plan) => found.push((at..end, plan)),
            None => end = at,
        }
        at = end.max(at + 1);
    }
    found
}

/// What a phase reads and writes, before it is known where.
#[derive(Default)]
struct Draft {
    phase: Phase,
    input: [Option<Version>; 2],
    old: [Option<Version>; 2],
    out: [Option<Version>; 2],
}

struct Builder {
    blocks: usize,
    drafts: Vec<Draft>,
    rows: Rows,
    draws: usize,
    products: usize,
    /// Where the last op put its result, if it was a product of one row.
    single: Option<Address>,
    naps: HashMap<(u32, u32, u32, u32), u32>,
    /// Rings that blocks keep, by where they are: where they are kept.
    rings: HashMap<Address, usize>,
    kept: usize,
    /// Rings that have had their row.
    long: Vec<Address>,
    x_bytes: usize,
    red_bytes: usize,
    blank: bool,
    remembers: bool,
}

impl Builder {
    fn new(blocks: usize) -> Self {
        Self {
            blocks,
            drafts: Vec::new(),
            rows: Rows::default(),
            draws: 0,
            products: 0,
            single: None,
            naps: HashMap::new(),
            rings: HashMap::new(),
            kept: 0,
            long: Vec::new(),
            x_bytes: 0,
            red_bytes: 0,
            blank: false,
            remembers: false,
        }
    }

    /// The number of the phase under way; the first is 1.
    fn number(&self) -> usize {
        self.drafts.len() + 1
    }

    /// Adds an op as a phase; none where it cannot be one, and the program is spoilt.
    fn add(&mut self, op: &Op) -> Option<()> {
        let mut draft = match op {
            Op::Product(a) => self.product(a)?,
            Op::Embed(a) => self.embed(a)?,
            Op::Norm(a, copied) => self.norm(a, *copied)?,
            Op::Attend(a) => self.attend(a)?,
            Op::Sample(a) => self.sample(a)?,
        };
        self.single = match op {
            Op::Product(a) if a.rows == 1 => Some(a.store.out),
            _ => None,
        };
        let p = &draft.phase;
        let key = (p.kind, p.n, p.k, p.rows);
        let next = 2 * self.naps.len() as u32;
        draft.phase.nap = (*self.naps.entry(key).or_insert(next)).min(NAPS as u32 - 2);
        self.drafts.push(draft);
        Some(())
    }

    fn read(&mut self, at: Address, len: usize, whole: bool) -> Option<Version> {
        let (phase, draws) = (self.number(), self.draws);
        self.rows.read(at, len, phase, draws, whole)
    }

    fn write(&mut self, at: Address, len: usize) -> Option<Version> {
        let phase = self.number();
        self.rows.write(at, len, phase)
    }

    fn product(&mut self, a: &RowArgs) -> Option<Draft> {
        let (n, k, rows) = (a.n as usize, a.k as usize, a.rows as usize);
        let phase = product::phase(a, self.blocks)?;
        let parts = product::parts(a, self.blocks);
        let mut draft = Draft::default();
        for r in 0..rows {
            let (from, to) = (
                a.x + 4 * r as u64 * u64::from(a.x_stride),
                a.store.out + 4 * r as u64 * u64::from(a.store.out_stride),
            );
            draft.input[r] = Some(self.read(from, k, true)?);
            if a.store.store == 1 {
                draft.old[r] = Some(self.rows.own(to, n, self.draws)?);
            }
        }
        for r in 0..rows {
            let to = a.store.out + 4 * r as u64 * u64::from(a.store.out_stride);
            draft.out[r] = Some(self.write(to, n)?);
        }
        draft.phase = phase;
        let segments = k.div_ceil(SEGMENT);
        self.x_bytes = self.x_bytes.max(rows * 2 * (2 * SEGMENT * segments + 64));
        self.red_bytes = self.red_bytes.max(parts * GROUP * rows * 64);
        self.blank |= !k.is_multiple_of(SEGMENT) || !n.is_multiple_of(GROUP);
        self.products += 1;
        Some(draft)
    }

    fn embed(&mut self, a: &EmbedArgs) -> Option<Draft> {
        let dim = a.dim as usize;
        if !dim.is_multiple_of(2 * self.blocks) || dim / self.blocks > 256 {
            return None;
        }
        let out = self.write(a.out + 4 * u64::from(a.first) * u64::from(a.out_stride), dim)?;
        self.red_bytes = self.red_bytes.max(a.count as usize * dim / self.blocks * 4);
        let phase = Phase {
            kind: EMBED,
            k: a.dim,
            rows: 1,
            address: [a.parts, a.slots, a.tokens, 0, 0, 0],
            number: [a.count, a.columns, 0, 0, 0, 0, 0, 0],
            ..Phase::default()
        };
        Some(Draft { phase, out: [Some(out), None], ..Draft::default() })
    }

    fn norm(&mut self, a: &HeadNormArgs, copied: Option<Address>) -> Option<Draft> {
        let dim = a.dim as usize;
        if !dim.is_multiple_of(4 * self.blocks) || dim / self.blocks > 32 {
            return None;
        }
        let input = self.read(a.x, dim, true)?;
        let mut out = [Some(self.write(a.x, dim)?), None];
        if let Some(to) = copied {
            out[1] = Some(self.write(to, dim)?);
        }
        let rows = 1 + u32::from(copied.is_some());
        let phase = Phase { kind: NORM, k: a.dim, norm: a.query, eps: a.eps, rows, ..Phase::default() };
        Some(Draft { phase, input: [Some(input), None], out, ..Draft::default() })
    }

    fn attend(&mut self, attend: &Attend) -> Option<Draft> {
        let (a, rows) = (&attend.args, attend.rows);
        let (heads, kv_heads, dim) = (a.heads as usize, a.kv_heads as usize, a.dim as usize);
        let [rope, rope_rows, table, freqs] = match &attend.before {
            Some(n) => [u64::from(n.rope), u64::from(n.rope_rows), n.rope_table, n.rope_freqs],
            None => [u64::from(a.rope), u64::from(a.rope_rows), a.rope_table, a.rope_freqs],
        };
        let (query, key, eps) = match &attend.before {
            Some(n) => (n.query, n.key, n.eps),
            None => (a.query_norm, a.key_norm, a.eps),
        };
        // What was turned before is not turned again, and the other way round.
        let once = attend.before.as_ref().is_none_or(|n| a.rope == 0 || n.rope == 0);
        let fits = matches!(dim, 64 | 128)
            && a.width == a.dim
            && a.narrow == 0
            && heads.is_multiple_of(kv_heads)
            && heads / kv_heads <= 2
            && self.blocks.is_multiple_of(kv_heads);
        if !fits || !once || rows > 2 || a.causal != u32::from(!attend.cross) {
            return None;
        }
        // How many rows a task has is not among the arguments.
        if attend.cross && (self.single != Some(a.qkv) || rope != 0 || query != 0) {
            return None;
        }
        let (group, each) = (heads / kv_heads, self.blocks / kv_heads);
        let values = group * dim / each;
        if values * each != group * dim
            || !each.is_power_of_two()
            || !values.is_power_of_two()
            || values > MOST_VALUES
            || !dim.is_multiple_of(values)
        {
            return None;
        }
        let width = if attend.cross { heads } else { heads + 2 * kv_heads } * dim;
        let mut draft = Draft::default();
        for r in 0..rows {
            draft.input[r] = Some(self.read(a.qkv + 4 * r as u64 * u64::from(a.qkv_stride), width, false)?);
        }
        let short = a.capacity <= SHORT && !attend.cross;
        let mut fresh = 0;
        let mut ring = 0;
        if short {
            let bytes = a.capacity as usize * (2 * dim + KEY_PAD + 4 * values);
            let kept = self.kept;
            ring = *self.rings.entry(a.cache).or_insert(kept);
            if ring == kept {
                self.kept += bytes.next_multiple_of(16);
                fresh = 1;
            }
        } else {
            // The ring's other rows were there before this launch.
            if rows > 1 || each > 32 || self.long.contains(&a.cache) {
                return None;
            }
            if !attend.cross {
                self.long.push(a.cache);
            }
            self.red_bytes = self.red_bytes.max(8 * group * dim * 4);
        }
        for r in 0..rows {
            let out = a.out + 4 * r as u64 * u64::from(a.out_stride);
            draft.out[r] = Some(self.write(out, heads * dim)?);
        }
        if !short {
            draft.out[1] = Some(self.write(PARTS, kv_heads * each * each * (values + 2))?);
        }
        let (rope, rope_rows, cross) = (rope as u32, rope_rows as u32, u32::from(attend.cross));
        let number = [a.kv_heads, a.capacity, rope, rope_rows, a.window, a.scale.to_bits(), fresh, cross];
        draft.phase = Phase {
            kind: if short { ATTEND_SHORT } else { ATTEND },
            n: a.heads,
            k: a.dim,
            // Powers of two by their bits: a division takes longer than all that is done before the row is there.
            gated: group as u32,
            segments: each.ilog2(),
            pitch: values.ilog2(),
            rows: rows as u32,
            eps,
            ring: ring as u32,
            address: [a.cache, a.tasks, table, freqs, query, key],
            number,
            ..Phase::default()
        };
        Some(draft)
    }

    fn sample(&mut self, a: &SampleArgs) -> Option<Draft> {
        let n = a.n as usize;
        if n > LARGEST_DRAW || !n.is_multiple_of(4) || (a.history != 0 && self.remembers) || a.less != 0 {
            return None;
        }
        let input = self.read(a.logits, n, true)?;
        // A key for each token, and listed tokens with theirs.
        self.x_bytes = self.x_bytes.max(n.next_multiple_of(SEGMENT) * 4 + LISTED * 8);
        self.draws += 1;
        self.remembers |= a.history != 0;
        if a.next != 0 {
            let whole = a.table_rows >= a.n && a.table_stride.is_multiple_of(4);
            let table =
                TableRow { at: a.table, stride: a.table_stride, narrow: a.table_bf16 != 0, draw: self.draws };
            let to = a.next + 4 * u64::from(a.first) * u64::from(a.next_stride);
            whole.then(|| self.rows.name(to, a.dim as usize, table))??;
        }
        let phase = Phase {
            kind: SAMPLE,
            n: a.n,
            rows: 1,
            address: [a.rows, a.tokens, a.history, 0, 0, 0],
            number: [a.columns, a.column, a.words, 0, 0, 0, 0, 0],
            ..Phase::default()
        };
        Some(Draft { phase, input: [Some(input), None], ..Draft::default() })
    }

    /// The program, where it is worth a launch and there is shared memory for it.
    fn finish(self, shared: usize) -> Option<Plan> {
        let rest = self.x_bytes.next_multiple_of(128) + self.red_bytes.next_multiple_of(128) + self.kept;
        let slots = (shared.checked_sub(FIXED + rest)? / CHUNK).min(SLOTS);
        if self.products < WORTH || slots < FEWEST_SLOTS || !self.rows.are_stored() {
            return None;
        }
        let (places, exchanged) = self.rows.lay_out();
        let row = |v: &Option<Version>| v.map_or(Row::default(), |v| self.rows.resolve(v, &places));
        let phases = self
            .drafts
            .iter()
            .map(|d| {
                let mut phase = Phase {
                    input: [row(&d.input[0]), row(&d.input[1])],
                    old: [row(&d.old[0]), row(&d.old[1])],
                    out: [row(&d.out[0]), row(&d.out[1])],
                    ..d.phase
                };
                if matches!(phase.kind, PRODUCT | PRODUCT_TWO) {
                    phase.number[6] = with_exchanges(phase.number[6], &phase);
                }
                phase
            })
            .collect();
        Some(Plan {
            phases,
            exchanged,
            slots,
            rest,
            x_bytes: self.x_bytes.next_multiple_of(128),
            red_bytes: self.red_bytes.next_multiple_of(128),
            blank: self.blank,
            remembers: self.remembers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::product::does;
    use super::*;
    use crate::cuda::driver::Shape;
    use crate::cuda::linear::{NORM_LAYER, NORM_RMS, NormArgs, StoreArgs};

    const BLOCKS: usize = 4;
    const SHARED: usize = 227 << 10;
    const X: Address = 0x10000;
    const Y: Address = 0x20000;

    /// A product of one row from one place to another; `adds` to what is there.
    fn product(x: Address, out: Address, n: u32, k: u32, adds: bool) -> RowArgs {
        let norm = match adds {
            true => NormArgs::default(),
            false => NormArgs { kind: NORM_RMS, weight: 0x900, eps: 1e-6, ..NormArgs::default() },
        };
        let store = StoreArgs {
            out,
            bias: 0,
            gate: 0,
            out_stride: n,
            gate_stride: 0,
            act: 0,
            store: u32::from(adds),
        };
        RowArgs {
            norm,
            store,
            x,
            w: 0x100_0000,
            k,
            n,
            pitch: k / 8,
            share: 1,
            slices: 1,
            gated: 0,
            rows: 1,
            x_stride: k,
        }
    }

    #[derive(Default)]
    struct Recording {
        commands: Vec<Command>,
        args: Vec<u8>,
    }

    impl Recording {
        fn launch<A: Args>(&mut self, kernel: KernelOf<A>, blocks: u32, op: &A) {
            let (at, len) = (self.args.len(), size_of::<A>());
            let shape = Shape { grid: [blocks, 1, 1], block: 512, shared: 0 };
            self.commands.push(Command::Launch { kernel: kernel.id(), shape, args: at, len });
            // SAFETY: arguments have no padding.
            self.args.extend_from_slice(unsafe {
                std::slice::from_raw_parts(std::ptr::from_ref(op).cast::<u8>(), len)
            });
        }
    }

    fn record(ops: &[RowArgs]) -> (Vec<Command>, Vec<u8>) {
        let mut recording = Recording::default();
        ops.iter().for_each(|op| recording.launch(program::ROW_BF16, 1, op));
        (recording.commands, recording.args)
    }

    /// Layers of two products: out of the stream, and back into it.
    fn layers(count: usize) -> Vec<RowArgs> {
        let layer = [product(X, Y, 512, 1024, false), product(Y, X, 1024, 512, true)];
        std::iter::repeat_n(layer, count).flatten().collect()
    }

    #[test]
    fn a_run_of_products_becomes_one_program() {
        let (commands, args) = record(&layers(5));
        let plans = plans(&commands, &args, BLOCKS, SHARED);
        let [(range, plan)] = &plans[..] else { panic!("{plans:?}") };
        assert_eq!((range.clone(), plan.phases.len()), (0..10, 10));
        let [first, second, third, ..] = &plan.phases[..] else { panic!("ten phases") };
        // The stream is in memory at first, and exchanged from then on.
        assert_eq!((first.input[0].at, first.input[0].how & 3), (X, 0));
        assert_eq!((second.old[0].at, second.old[0].how & 3), (X, 0));
        assert_eq!((second.input[0].how & 3, second.input[0]), (1, first.out[0]));
        assert_eq!((third.input[0].how & 3, third.input[0]), (1, second.out[0]));
        assert_eq!(plan.phases[3].old[0], second.out[0]);
        assert_ne!(plan.phases[3].out[0].area, second.out[0].area, "two places in turn");
        assert_eq!((first.segments, first.norm), (1, 0x900));
        assert_eq!(first.number[6], does::RMS, "its row was there before");
        assert_eq!(second.number[6], does::ADD | does::IN_EXCHANGED | does::hold(1, 4));
        assert_eq!(plan.phases[3].number[6], second.number[6] | does::OLD_EXCHANGED);
        assert_eq!(first.nap, third.nap, "the same exchange");
        assert_ne!(first.nap, second.nap);
        // A row of 512 fills half of a chunk.
        assert!(plan.blank && plan.slots == SLOTS);
    }

    /// Layers that look at what a slot was given: a row that is shifted and scaled, its product, attention, and back.
    fn looking(count: usize, query_rows: u32) -> Recording {
        const Q: Address = 0x30000;
        const SEEN: Address = 0x40000;
        let mut recording = Recording::default();
        for layer in 0..count as u64 {
            let mut query = product(X, Q, 1024, 1024, false);
            query.norm = NormArgs { bias: 0xa00, ..query.norm };
            query.norm.kind = NORM_LAYER;
            query.rows = query_rows;
            let look = AttendArgs {
                qkv: Q,
                out: SEEN,
                cache: 0x200_0000 + 0x10000 * layer,
                tasks: 0x5000,
                qkv_stride: 1024,
                out_stride: 1024,
                heads: 8,
                kv_heads: 4,
                dim: 128,
                width: 128,
                capacity: 640,
                ..AttendArgs::default()
            };
            recording.launch(program::ROW_BF16, 1, &query);
            recording.launch(program::TILE_BF16, 4, &look);
            recording.launch(program::ROW_BF16, 1, &product(SEEN, X, 1024, 1024, true));
        }
        recording
    }

    #[test]
    fn attention_to_what_a_slot_was_given_is_part_of_a_program() {
        // A block has 32 values of a head at most.
        const BLOCKS: usize = 32;
        let whole = looking(4, 1);
        let plans_of = |r: &Recording| plans(&r.commands, &r.args, BLOCKS, SHARED);
        let found = plans_of(&whole);
        let [(range, plan)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((range.clone(), plan.phases.len()), (0..12, 12));
        let [query, look, ..] = &plan.phases[..] else { panic!("twelve phases") };
        assert_eq!((query.number[6] & 7, query.address[0]), (does::LAYER, 0xa00));
        assert_eq!((look.kind, look.number[7], look.input[0]), (ATTEND, 1, query.out[0]));
        // How many rows attend is not known by its arguments: two may.
        assert!(plans_of(&looking(4, 2)).is_empty());
    }

    #[test]
    fn a_few_rows_of_a_slot_are_planned_by_either_kernel() {
        let a = AttendArgs { heads: 16, kv_heads: 8, dim: 128, causal: 1, ..AttendArgs::default() };
        let mut tiles = Recording::default();
        tiles.launch(program::PUT_KV_BF16, 1, &a);
        if let Command::Launch { shape, .. } = &mut tiles.commands[0] {
            shape.grid = [1, 2, 1];
        }
        tiles.launch(program::TILE_BF16, 8, &a);
        let found = several(&tiles.commands, &tiles.args).map(|(attend, taken)| (attend.rows, taken));
        assert_eq!(found, Some((2, 2)));
        for kernel in [program::FEW_ROWS_64, program::FEW_ROWS_128] {
            let few = |blocks| {
                let mut recording = Recording::default();
                recording.launch(kernel, blocks, &AttendArgs { tile: 2, ..a });
                several(&recording.commands, &recording.args).map(|(attend, taken)| (attend.rows, taken))
            };
            assert_eq!(few(8), Some((2, 1)), "one slot");
            assert_eq!(few(16), None, "two slots");
        }
    }

    #[test]
    fn what_cannot_be_planned_ends_a_run() {
        let few = record(&layers(3));
        assert!(plans(&few.0, &few.1, BLOCKS, SHARED).is_empty(), "not worth it");
        let whole = record(&layers(5));
        assert!(plans(&whole.0, &whole.1, 128, SHARED).is_empty(), "fewer outputs than blocks have");
        assert!(plans(&whole.0, &whole.1, BLOCKS, 64 << 10).is_empty(), "no room for a ring");
        let mut ops = layers(5);
        ops.insert(4, product(X, Y, 512, 1004, false));
        ops.extend(layers(4));
        let (commands, args) = record(&ops);
        let found: Vec<Range<usize>> =
            plans(&commands, &args, BLOCKS, SHARED).into_iter().map(|p| p.0).collect();
        assert_eq!(found, std::slice::from_ref(&(5..19)));
    }
}
