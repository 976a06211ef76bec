//! After its first step a model allocates nothing: every op, every format, on every instruction set.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use voce_runtime::{
    Activation, AttentionOp, Buffer, ConvOp, ConvState, ConvStateSpec, Exec, Format, Gate, Isa, KvCache,
    KvFormat, KvSpec, LinearOp, Matrix, Modulation, Norm, Rope, RopeStyle, Snake, Span, UpsampleOp, Vector,
    WeightArena,
};

/// The system's allocator, counting what is asked of it while told to, on all threads.
struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicUsize = AtomicUsize::new(0);

fn note() {
    if COUNTING.load(Ordering::Relaxed) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        note();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocator calls while `f` runs.
fn calls(f: impl FnOnce()) -> usize {
    CALLS.store(0, Ordering::SeqCst);
    COUNTING.store(true, Ordering::SeqCst);
    f();
    COUNTING.store(false, Ordering::SeqCst);
    CALLS.load(Ordering::SeqCst)
}

const DIM: usize = 96;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const HEAD: usize = 16;
const QKV: usize = (HEADS + 2 * KV_HEADS) * HEAD;
const HIDDEN: usize = 200;
const SLOTS: usize = 3;
const ROWS: usize = 12;
const STRIDE: usize = 4;

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + 11) % 101) as f32 / 101.0 - 0.5).collect()
}

/// One transformer layer with an adaptive norm, an upsampling, and convolutions plain, dilated, strided and
/// transposed.
struct Stack {
    in_proj: Matrix,
    out_proj: Matrix,
    up: Matrix,
    down: Matrix,
    convs: [Matrix; 4],
    norm: Vector,
    bias: Vector,
    kernel: Vector,
    snake: Vector,
    rope: Rope,
    cache: KvCache,
    states: Vec<ConvState>,
    buffers: Vec<Buffer>,
}

impl Stack {
    fn new(format: Format, conv: Format, kv: KvFormat) -> Self {
        let arena = WeightArena::new();
        let pack = |format, n: usize, k: usize| Matrix::pack(&arena, format, n, k, &values(n * k)).unwrap();
        let state = |history, channels, replicate| {
            ConvState::new(ConvStateSpec { slots: SLOTS, history, channels, replicate })
        };
        let buffer = |rows, cols| {
            let mut b = Buffer::new(rows, cols);
            b.head_mut(rows).copy_from_slice(&values(rows * cols));
            b
        };
        Self {
            in_proj: pack(format, QKV, DIM),
            out_proj: pack(format, DIM, HEADS * HEAD),
            up: pack(format, HIDDEN, DIM),
            down: pack(format, DIM, HIDDEN),
            convs: [
                pack(conv, 32, 7 * DIM),
                pack(conv, 32, 3 * 32),
                pack(conv, 40, 2 * STRIDE * 32),
                pack(conv, 3 * 24, 2 * 40),
            ],
            norm: values(DIM).into(),
            bias: values(HIDDEN).into(),
            kernel: values(2 * STRIDE * DIM).into(),
            snake: values(40).into(),
            rope: Rope::new(RopeStyle::Interleaved, HEAD, 10_000.0, 64),
            cache: KvCache::new(KvSpec {
                layers: 1,
                slots: SLOTS,
                kv_heads: KV_HEADS,
                head_dim: HEAD,
                capacity: 16 + ROWS,
                format: kv,
            }),
            states: vec![
                state(1, DIM, false),
                state(ConvOp::history(7, 1, 1), DIM, true),
                state(ConvOp::history(3, 1, 2), 32, false),
                state(ConvOp::history(2 * STRIDE, STRIDE, 1), 32, false),
                state(1, 40, false),
            ],
            buffers: vec![
                buffer(ROWS, DIM),
                buffer(ROWS, QKV),
                buffer(ROWS, HEADS * HEAD),
                buffer(ROWS, HIDDEN),
                buffer(ROWS * STRIDE, DIM),
                buffer(ROWS * STRIDE, 32),
                buffer(ROWS * STRIDE, 32),
                buffer(ROWS, 40),
                buffer(3 * ROWS, 24),
                buffer(ROWS, 3 * DIM),
            ],
        }
    }

    fn step(&mut self, exec: &mut Exec, spans: &[Span], wide: &[Span]) {
        let rows = spans.iter().map(|s| s.rows).sum();
        let [x, qkv, attended, hidden, upsampled, a, b, c, out, modulation] = &mut self.buffers[..] else {
            unreachable!("ten buffers")
        };
        let mut op = LinearOp::new(&*x, rows, &self.in_proj);
        let (shift, scale) = (modulation.columns(0..DIM), modulation.columns(DIM..2 * DIM));
        op.norm = Norm::Layer {
            weight: Some(&self.norm),
            bias: Some(&self.norm),
            eps: 1e-5,
            modulation: Some(Modulation { shift, scale }),
        };
        exec.linear(&op, qkv);
        let attention = AttentionOp {
            qkv,
            spans,
            cache: &mut self.cache,
            layer: 0,
            heads: HEADS,
            window: Some(16),
            norms: None,
            rope: Some(&self.rope),
        };
        exec.attention(attention, attended);
        let mut op = LinearOp::new(&*attended, rows, &self.out_proj);
        op.gate = Gate::Gated(modulation.columns(2 * DIM..3 * DIM));
        exec.linear(&op, x);
        let mut op = LinearOp::new(&*x, rows, &self.up);
        op.norm = Norm::Rms { weight: &self.norm, eps: 1e-5 };
        (op.bias, op.act) = (Some(&self.bias), Activation::GeluTanh);
        exec.linear(&op, hidden);
        let mut op = LinearOp::new(&*hidden, rows, &self.down);
        (op.norm, op.gate) = (Norm::Activation(Activation::Silu), Gate::Add);
        exec.linear(&op, x);
        for s in spans {
            self.cache.advance(s.slot, s.rows);
        }
        let upsample = UpsampleOp { x, spans, kernel: &self.kernel, stride: STRIDE };
        exec.upsample(&upsample, &mut self.states[0], upsampled);
        let conv = |x, spans, w, taps, stride, dilation, add| ConvOp {
            x,
            spans,
            pre: Activation::Elu,
            w,
            bias: None,
            taps,
            stride,
            dilation,
            act: Activation::None,
            add,
        };
        exec.conv(&conv(&*upsampled, wide, &self.convs[0], 7, 1, 1, false), &mut self.states[1], a);
        exec.conv(&conv(&*a, wide, &self.convs[1], 3, 1, 2, true), &mut self.states[2], b);
        exec.conv(&conv(&*b, wide, &self.convs[2], 2 * STRIDE, STRIDE, 1, false), &mut self.states[3], c);
        exec.snake_in_place(Snake { rate: &self.snake, gain: &self.snake }, c, rows);
        exec.conv(&conv(&*c, spans, &self.convs[3], 2, 1, 1, false), &mut self.states[4], out);
    }
}

// One test in this file: the allocator counts for the whole process.
#[test]
fn nothing_is_allocated_after_the_first_step() {
    let spans = |rows: [usize; SLOTS], by: usize| -> Vec<Span> {
        let spans = rows.iter().enumerate().map(|(slot, r)| Span { slot, rows: r * by });
        spans.filter(|s| s.rows > 0).collect()
    };
    let shapes: Vec<(Vec<Span>, Vec<Span>)> = [[4, 4, 4], [1, 1, 1], [0, 1, 0], [0, 12, 0], [2, 0, 5]]
        .into_iter()
        .map(|rows| (spans(rows, 1), spans(rows, STRIDE)))
        .collect();
    // The counter counts.
    assert!(calls(|| drop(std::hint::black_box(vec![0u8; 100]))) >= 2);
    for isa in Isa::available() {
        for threads in [1, 3] {
            for format in Format::ON_CPU {
                let (conv, kv) = match format {
                    Format::F32 => (Format::F32, KvFormat::F32),
                    _ => (Format::Bf16, KvFormat::Bf16),
                };
                let mut exec = Exec::with_isa(threads, isa).unwrap();
                let mut stack = Stack::new(format, conv, kv);
                // Scratch is as large as the largest shapes: all slots, and one slot with all rows.
                stack.step(&mut exec, &shapes[0].0, &shapes[0].1);
                stack.step(&mut exec, &shapes[3].0, &shapes[3].1);
                let n = calls(|| {
                    for _ in 0..2 {
                        for (spans, wide) in &shapes {
                            stack.step(&mut exec, spans, wide);
                        }
                    }
                });
                assert_eq!(n, 0, "{isa} x{threads} {format:?}");
                let finite = stack.buffers[8].head(ROWS).iter().all(|v| v.is_finite());
                assert!(finite, "{isa} x{threads} {format:?}");
            }
        }
    }
}
