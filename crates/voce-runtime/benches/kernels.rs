//! Kernels at the shapes of Pocket TTS 100M, on every instruction set: `cargo bench -p voce-runtime`.
//!
//! Bytes per second are weights read; items per second are multiply-adds.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use voce_runtime::{
    Activation, AttentionOp, Buffer, ConvOp, ConvState, ConvStateSpec, Exec, Format, Isa, KvCache, KvFormat,
    KvSpec, LinearOp, Matrix, Norm, Rope, RopeStyle, Span, WeightArena,
};

fn main() {
    divan::main();
}

/// Values spread as those of a model are: most of them small.
fn values(n: usize) -> Vec<f32> {
    let mut seed = 1u32;
    let mut even = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 24) as f32
    };
    (0..n).map(|_| (0..12).map(|_| even()).sum::<f32>() / 6.0 - 1.0).collect()
}

fn buffer(rows: usize, cols: usize) -> Buffer {
    let mut b = Buffer::new(rows, cols);
    b.head_mut(rows).copy_from_slice(&values(rows * cols));
    b
}

/// One pass over as many matrices as leave the second-level cache, so that weights come from where a
/// model's come from.
fn linear(bencher: Bencher<'_, '_>, isa: Isa, format: Format, rows: usize) {
    let norm = Norm::Layer { weight: None, bias: None, eps: 1e-5, modulation: None };
    linear_of(bencher, isa, format, &buffer(rows, 1024), norm);
}

fn linear_of(bencher: Bencher<'_, '_>, isa: Isa, format: Format, x: &Buffer, norm: Norm<'_>) {
    let (n, k, rows) = (4096, 1024, x.rows());
    let arena = WeightArena::new();
    let weights = values(n * k);
    let copies = 6;
    let layers: Vec<Matrix> =
        (0..copies).map(|_| Matrix::pack(&arena, format, n, k, &weights).unwrap()).collect();
    let mut out = Buffer::new(rows, n);
    let mut exec = Exec::with_isa(1, isa).expect("supported");
    bencher
        .counter(BytesCount::new(copies * layers[0].bytes()))
        .counter(ItemsCount::new(copies * n * k * rows))
        .bench_local(|| {
            for w in &layers {
                let mut op = LinearOp::new(x, rows, w);
                (op.norm, op.act) = (norm.clone(), Activation::GeluTanh);
                exec.linear(&op, black_box(&mut out));
            }
        });
}

#[divan::bench(args = Isa::available())]
fn gemv_f32(bencher: Bencher<'_, '_>, isa: Isa) {
    linear(bencher, isa, Format::F32, 1);
}

#[divan::bench(args = Isa::available())]
fn gemv_bf16(bencher: Bencher<'_, '_>, isa: Isa) {
    linear(bencher, isa, Format::Bf16, 1);
}

#[divan::bench(args = Isa::available())]
fn gemv_int8(bencher: Bencher<'_, '_>, isa: Isa) {
    linear(bencher, isa, Format::Int8, 1);
}

#[divan::bench(args = Isa::available())]
fn gemv_int4(bencher: Bencher<'_, '_>, isa: Isa) {
    linear(bencher, isa, Format::Int4, 1);
}

#[divan::bench(args = Isa::available())]
fn gemm_f32_16_rows(bencher: Bencher<'_, '_>, isa: Isa) {
    linear(bencher, isa, Format::F32, 16);
}

#[divan::bench(args = Isa::available())]
fn gemm_bf16_16_rows(bencher: Bencher<'_, '_>, isa: Isa) {
    linear(bencher, isa, Format::Bf16, 16);
}

#[divan::bench(args = Isa::available())]
fn gemm_int8_16_rows(bencher: Bencher<'_, '_>, isa: Isa) {
    linear(bencher, isa, Format::Int8, 16);
}

#[divan::bench(args = Isa::available())]
fn gemm_f32_64_rows(bencher: Bencher<'_, '_>, isa: Isa) {
    linear(bencher, isa, Format::F32, 64);
}

#[divan::bench(args = Isa::available())]
fn gemm_int4_64_rows(bencher: Bencher<'_, '_>, isa: Isa) {
    linear(bencher, isa, Format::Int4, 64);
}

#[divan::bench(args = Isa::available())]
fn gemm_int8_64_rows(bencher: Bencher<'_, '_>, isa: Isa) {
    linear(bencher, isa, Format::Int8, 64);
}

/// Inputs as an activation leaves them, most of one sign.
#[divan::bench(args = Isa::available())]
fn gemm_int8_64_activated_rows(bencher: Bencher<'_, '_>, isa: Isa) {
    let mut x = buffer(64, 1024);
    x.head_mut(64).iter_mut().for_each(|v| *v *= 3.0);
    linear_of(bencher, isa, Format::Int8, &x, Norm::Activation(Activation::Silu));
}

/// Inputs that are spread evenly, of which the most have to be multiplied twice without VNNI.
#[divan::bench(args = Isa::available())]
fn gemm_int8_64_even_rows(bencher: Bencher<'_, '_>, isa: Isa) {
    let mut x = Buffer::new(64, 1024);
    let even = |i: usize| (i * 2_654_435_761 % 65_537) as f32 / 32_768.0 - 1.0;
    x.head_mut(64).iter_mut().enumerate().for_each(|(i, v)| *v = even(i));
    linear_of(bencher, isa, Format::Int8, &x, Norm::None);
}

fn attention(bencher: Bencher<'_, '_>, isa: Isa, rows: usize, window: Option<usize>) {
    let (heads, dim, past) = (8, 64, 250);
    let spec = KvSpec {
        layers: 1,
        slots: 1,
        kv_heads: heads,
        head_dim: dim,
        capacity: 1024,
        format: KvFormat::Bf16,
    };
    let mut cache = KvCache::new(spec);
    cache.advance(0, past);
    let rope = Rope::new(RopeStyle::Interleaved, dim, 10_000.0, 512);
    let (qkv, mut out) = (buffer(rows, 3 * heads * dim), Buffer::new(rows, heads * dim));
    let mut exec = Exec::with_isa(1, isa).expect("supported");
    let spans = [Span { slot: 0, rows }];
    bencher.counter(ItemsCount::new(2 * rows * heads * dim * past)).bench_local(|| {
        let op = AttentionOp {
            qkv: &qkv,
            spans: &spans,
            cache: &mut cache,
            layer: 0,
            heads,
            window,
            norms: None,
            rope: Some(&rope),
        };
        exec.attention(op, black_box(&mut out));
    });
}

#[divan::bench(args = Isa::available())]
fn attention_1_row_over_250(bencher: Bencher<'_, '_>, isa: Isa) {
    attention(bencher, isa, 1, None);
}

#[divan::bench(args = Isa::available())]
fn attention_16_rows_over_250(bencher: Bencher<'_, '_>, isa: Isa) {
    attention(bencher, isa, 16, Some(250));
}

fn conv(bencher: Bencher<'_, '_>, isa: Isa, rows: usize, cin: usize, n: usize, taps: usize) {
    let arena = WeightArena::new();
    let format = if isa == Isa::Amx { Format::Bf16 } else { Format::F32 };
    let w = Matrix::pack(&arena, format, n, taps * cin, &values(n * taps * cin)).unwrap();
    let mut state =
        ConvState::new(ConvStateSpec { slots: 1, history: taps - 1, channels: cin, replicate: false });
    let (x, mut out) = (buffer(rows, cin), Buffer::new(rows, n));
    let mut exec = Exec::with_isa(1, isa).expect("supported");
    let spans = [Span { slot: 0, rows }];
    bencher.counter(ItemsCount::new(rows * n * taps * cin)).bench_local(|| {
        let op = ConvOp {
            x: &x,
            spans: &spans,
            pre: Activation::Elu,
            w: &w,
            bias: None,
            taps,
            stride: 1,
            dilation: 1,
            act: Activation::None,
            add: false,
        };
        exec.conv(&op, &mut state, black_box(&mut out));
    });
}

#[divan::bench(args = Isa::available())]
fn conv_k7_512_to_512_16_rows(bencher: Bencher<'_, '_>, isa: Isa) {
    conv(bencher, isa, 16, 512, 512, 7);
}

#[divan::bench(args = Isa::available())]
fn conv_k3_64_to_32_1920_rows(bencher: Bencher<'_, '_>, isa: Isa) {
    conv(bencher, isa, 1920, 64, 32, 3);
}
