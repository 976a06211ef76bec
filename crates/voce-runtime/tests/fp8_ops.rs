//! e4m3 on devices: codes, products and rings against exact arithmetic on the very values that are kept, which bounds the
//! kernels, and on the values as they were, which bounds the format.

mod suite;

use std::sync::Arc;

use suite::{Rng, arena, devices, error, wide};
use voce_runtime::cuda::Device;
use voce_runtime::{
    Activation, AttentionOp, Buffer, Exec, Format, Gate, KvCache, KvFormat, KvSpec, LinearOp, Matrix, Norm,
    Span, reference,
};

fn each_device(mut f: impl FnMut(&mut Exec, &str, &Arc<Device>)) {
    let mut devices = devices();
    if devices[0].1 == "emulated" {
        // Its products do not scale rows.
        devices.push((Device::emulated_as((8, 9)).unwrap(), "emulated Ada"));
    }
    for (device, name) in devices {
        let mut exec = Exec::on(&device).unwrap();
        f(&mut exec, name, &device);
        exec.finish();
        exec.status().unwrap();
    }
}

/// The values of e4m3 that are not negative, in order: by its definition.
fn codes() -> Vec<f64> {
    let value = |code: i32| {
        let (exponent, mantissa) = (code >> 3, f64::from(code & 7));
        if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7) }
    };
    (0..0x7f).map(value).collect()
}

/// The nearest value of e4m3, the even one of two that are as near.
fn rounded(codes: &[f64], x: f64) -> f64 {
    let size = x.abs().min(448.0);
    let above = codes.partition_point(|&c| c < size);
    let (low, high) = (codes[above.saturating_sub(1)], codes[above]);
    let near =
        if size - low < high - size || (size - low == high - size && above % 2 == 1) { low } else { high };
    near.copysign(x)
}

/// A row in e4m3 with `448 / top` for its largest value.
fn quantised(codes: &[f64], row: &[f64]) -> Vec<f64> {
    let top = row.iter().fold(0f32, |m, v| m.max(v.abs() as f32));
    let (scale, inverse) = ((top / 448.0) as f64, 448.0 / top);
    row.iter().map(|&v| rounded(codes, f64::from(v as f32 * inverse)) * scale).collect()
}

fn spec(head_dim: usize) -> KvSpec {
    KvSpec { layers: 1, slots: 2, kv_heads: 1, head_dim, capacity: 64, format: KvFormat::Fp8 }
}

#[test]
fn rings_keep_every_code_and_round_what_is_between() {
    let codes = codes();
    each_device(|exec, name, _| {
        // Every code of either sign, the middle between it and the next, and both sides of that; 448 keeps the row's power at 1.
        let between = codes.windows(2).flat_map(|c| {
            let middle = ((c[0] + c[1]) / 2.0) as f32;
            [c[0] as f32, middle, middle.next_up(), middle.next_down()]
        });
        let mut values: Vec<f32> = between.flat_map(|v| [v, -v]).collect();
        values.resize(values.len().next_multiple_of(31), 0.0);
        let rows: Vec<Vec<f32>> = values.chunks(31).map(|c| [c, &[448.0]].concat()).collect();
        for pair in rows.chunks(2) {
            let given = [&pair[0][..], &pair[pair.len() - 1][..]].concat();
            let mut cache = KvCache::new(spec(32));
            exec.write_cache(&mut cache, 1, 70..71, &given);
            let kept = exec.read_cache(&cache, 1, 70..71);
            for (kept, given) in kept.iter().zip(&given) {
                assert_eq!(f64::from(*kept), rounded(&codes, f64::from(*given)), "{name}: {given}");
            }
        }
    });
}

#[test]
fn rows_of_any_size_are_kept_and_stay_as_they_are_when_kept_again() {
    each_device(|exec, name, _| {
        let mut rng = Rng(5);
        for size in [1e-30f32, 1e-7, 0.02, 1.0, 300.0, 1e6, 1e30] {
            let given: Vec<f32> = rng.vec(2 * 80).iter().map(|v| v * size).collect();
            let mut cache = KvCache::new(spec(80));
            exec.write_cache(&mut cache, 0, 3..4, &given);
            let kept = exec.read_cache(&cache, 0, 3..4);
            for (kept, given) in kept.iter().zip(&given) {
                assert!(
                    (kept - given).abs() <= given.abs() / 16.0 + size * 1e-5,
                    "{name}: {kept} for {given}"
                );
            }
            exec.write_cache(&mut cache, 1, 9..10, &kept);
            assert_eq!(exec.read_cache(&cache, 1, 9..10), kept, "{name} {size:e}");
        }
        let (zeros, mut cache) = (vec![0f32; 160], KvCache::new(spec(80)));
        exec.write_cache(&mut cache, 0, 0..1, &zeros);
        assert_eq!(exec.read_cache(&cache, 0, 0..1), zeros);
        let bytes = |format| KvSpec { head_dim: 128, format, ..spec(0) }.bytes() as f64;
        let part = bytes(KvFormat::Fp8) / bytes(KvFormat::Bf16);
        assert!((0.5..0.51).contains(&part), "a ring takes {part} of bf16's");
    });
}

/// What `case` does to a row before the product.
fn normed(case: usize, row: &[f64], weight: &[f32]) -> Vec<f64> {
    match case {
        1 => row.iter().map(|&v| reference::activate(Activation::Silu, v)).collect(),
        2 => reference::norm(row, 1e-5, false).iter().zip(weight).map(|(v, &w)| v * f64::from(w)).collect(),
        3 => reference::norm(row, 1e-5, true),
        4 => {
            let (gate, up) = row.split_at(row.len() / 2);
            gate.iter()
                .map(|&v| reference::activate(Activation::Silu, v))
                .zip(up)
                .map(|(g, u)| g * u)
                .collect()
        }
        _ => row.to_vec(),
    }
}

#[test]
fn products_are_those_of_the_codes() {
    let codes = codes();
    // Few rows as they are, many as codes: of rows that threads hold, that they read twice, and that are no whole pieces.
    let shapes = [(1, 64, 40), (2, 96, 33), (3, 96, 40), (20, 260, 48), (12, 37, 19), (9, 8200, 16)];
    each_device(|exec, name, _| {
        let arena = arena(exec);
        let mut rng = Rng(29);
        for (rows, k, n) in shapes {
            let weights = rng.vec(n * k);
            let w = Matrix::pack(&arena, Format::Fp8, n, k, &weights).unwrap();
            let seen = w.unpack();
            let exact: Vec<f64> = weights.chunks(k).flat_map(|r| quantised(&codes, &wide(r))).collect();
            assert!(error(&seen, &exact) < 1e-6, "{name}: weights are codes with a scale per output");
            let outputs = n.next_multiple_of(16);
            let parts = [outputs * k.next_multiple_of(16), 4 * outputs];
            assert_eq!(w.bytes(), parts.map(|b| b.next_multiple_of(256)).iter().sum());
            let (bias, weight) = (rng.vector(n), rng.vector(k));
            for case in 0..5 {
                let x = rng.buffer(rows, if case == 4 { 2 * k } else { k });
                let mut out = rng.buffer(rows, n);
                let before = out.clone();
                let mut op = LinearOp::new(&x, rows, &w);
                let rms = Norm::Rms { weight: &weight, eps: 1e-5 };
                let layer = Norm::Layer { weight: None, bias: None, eps: 1e-5, modulation: None };
                let add = case == 2;
                match case {
                    1 => (op.norm, op.bias) = (Norm::Activation(Activation::Silu), Some(&bias)),
                    2 => (op.norm, op.gate) = (rms, Gate::Add),
                    3 => op.norm = layer,
                    4 => op.norm = Norm::SwiGlu,
                    _ => {}
                }
                exec.linear(&op, &mut out);
                exec.fetch(&mut out, rows);
                let biased = case == 1;
                for r in 0..rows {
                    let y = normed(case, &wide(x.row(r)), &weight);
                    let want = |y: &[f64], w: &[f32]| -> Vec<f64> {
                        let product = reference::product(y, w, n);
                        let bias = |i: usize| if biased { f64::from(bias[i]) } else { 0.0 };
                        let old = |i: usize| if add { f64::from(before.row(r)[i]) } else { 0.0 };
                        product.iter().enumerate().map(|(i, p)| p + bias(i) + old(i)).collect()
                    };
                    let kept = if rows > 2 { quantised(&codes, &y) } else { y.clone() };
                    let close = error(out.row(r), &want(&kept, &seen));
                    // A value that f32 puts on the other side of a middle than f64 is a code apart, and where the library
                    // does not scale, what is added comes as bf16.
                    let bound = if rows > 2 { 4e-3 } else { 1e-5 };
                    assert!(close < bound, "{name} {rows}x{k}x{n} case {case} row {r}: {close:e}");
                    let far = error(out.row(r), &want(&y, &weights));
                    assert!(far < 8e-2, "{name} {rows}x{k}x{n} case {case} row {r}: {far:e} of the format");
                }
            }
        }
    });
}

#[test]
fn a_row_beside_another_has_the_bits_of_the_row_alone() {
    each_device(|exec, name, _| {
        let arena = arena(exec);
        let mut rng = Rng(31);
        let (k, n) = (192, 90);
        let w = Matrix::pack(&arena, Format::Fp8, n, k, &rng.vec(n * k)).unwrap();
        let x = rng.buffer(2, k);
        let mut run = |x: &Buffer, rows| {
            let mut out = Buffer::new(rows, n);
            exec.linear(&LinearOp::new(x, rows, &w), &mut out);
            exec.fetch(&mut out, rows);
            out
        };
        let both = run(&x, 2);
        for r in 0..2 {
            let mut one = Buffer::new(1, k);
            one.row_mut(0).copy_from_slice(x.row(r));
            assert_eq!(run(&one, 1).row(0), both.row(r), "{name} row {r}");
        }
    });
}

/// Attention of one query.
fn attend(q: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
    let score = |k: &Vec<f64>| q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() / (q.len() as f64).sqrt();
    let scores: Vec<f64> = keys.iter().map(score).collect();
    let top = scores.iter().cloned().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    let sum = |d: usize| weights.iter().zip(values).map(|(w, v)| w * v[d]).sum::<f64>() / total;
    (0..q.len()).map(sum).collect()
}

#[test]
fn attention_is_that_of_the_rows_which_are_kept() {
    // A query head alone, two and four that share a key head, and more, which go by tiles; rows alone and several at once.
    let cases = [(2, 2, 64, 1), (4, 2, 128, 1), (4, 1, 40, 1), (6, 1, 32, 1), (2, 2, 64, 5), (4, 2, 256, 3)];
    each_device(|exec, name, _| {
        let mut rng = Rng(37);
        for (heads, kv_heads, dim, rows) in cases {
            let past = 300;
            let spec =
                KvSpec { layers: 2, slots: 3, kv_heads, head_dim: dim, capacity: 320, format: KvFormat::Fp8 };
            // Keys and values of very different sizes from position to position.
            let sizes: Vec<f32> = (0..past).map(|p| [1.0, 0.01, 3.0][p % 3]).collect();
            let mut given = rng.vec(2 * 2 * kv_heads * past * dim);
            for (i, row) in given.chunks_exact_mut(dim).enumerate() {
                row.iter_mut().for_each(|v| *v *= sizes[i / 2 % past]);
            }
            for company in [false, true] {
                let mut cache = KvCache::new(spec);
                exec.write_cache(&mut cache, 2, 0..past, &given);
                cache.advance(2, past);
                let slots = if company { 0..3 } else { 2..3 };
                let spans: Vec<Span> = slots.map(|slot| Span { slot, rows }).collect();
                let total = rows * spans.len();
                let qkv = rng.buffer(total, (heads + 2 * kv_heads) * dim);
                let mut out = Buffer::new(total, heads * dim);
                let (cache_of, spans, norms) = (&mut cache, &spans[..], None);
                let op = AttentionOp {
                    qkv: &qkv,
                    spans,
                    cache: cache_of,
                    layer: 1,
                    heads,
                    window: None,
                    norms,
                    rope: None,
                };
                exec.attention(op, &mut out);
                exec.fetch(&mut out, total);
                let kept = exec.read_cache(&cache, 2, 0..past + rows);
                let own = |which: usize, head: usize| {
                    let at = (heads + which * kv_heads + head) * dim;
                    (0..rows).map(move |r| (r, at))
                };
                for r in 0..rows {
                    let row = total - rows + r;
                    for h in 0..heads {
                        let kv = h / (heads / kv_heads);
                        let of = |which: usize| -> Vec<Vec<f64>> {
                            let ring = &kept[(kv_heads + kv) * 2 * (past + rows) * dim..];
                            (0..=past + r).map(|p| wide(&ring[(2 * p + which) * dim..][..dim])).collect()
                        };
                        let was = |which: usize| -> Vec<Vec<f64>> {
                            let ring = &given[(kv_heads + kv) * 2 * past * dim..];
                            let before = (0..past).map(|p| wide(&ring[(2 * p + which) * dim..][..dim]));
                            let now = own(which, kv).take(r + 1);
                            let now = now.map(|(r, at)| wide(&qkv.row(total - rows + r)[at..at + dim]));
                            before.chain(now).collect()
                        };
                        let q = wide(&qkv.row(row)[h * dim..][..dim]);
                        let got = &out.row(row)[h * dim..][..dim];
                        let (close, far) = (
                            error(got, &attend(&q, &of(0), &of(1))),
                            error(got, &attend(&q, &was(0), &was(1))),
                        );
                        // Tiles multiply in bf16.
                        let bound = if rows > 1 || heads / kv_heads > 4 { 2e-2 } else { 1e-5 };
                        assert!(close < bound, "{name} {heads}/{kv_heads}x{dim}, {rows} rows: {close:e}");
                        assert!(far < 9e-2, "{name} {heads}/{kv_heads}x{dim}, {rows} rows: {far:e}");
                    }
                }
            }
        }
    });
}

#[test]
fn what_is_kept_for_products_is_scaled_by_whoever_reads_it() {
    each_device(|exec, name, _| {
        let arena = arena(exec);
        let mut rng = Rng(41);
        let (rows, k, hidden) = (20, 64, 160);
        let up = Matrix::pack(&arena, Format::Fp8, hidden, k, &rng.vec(hidden * k)).unwrap();
        let down = Matrix::pack(&arena, Format::Fp8, k, hidden, &rng.vec(k * hidden)).unwrap();
        let half = Matrix::pack(&arena, Format::Fp8, k, hidden / 2, &rng.vec(k * hidden / 2)).unwrap();
        let other = Matrix::pack(&arena, Format::Fp8, 48, k, &rng.vec(48 * k)).unwrap();
        let (x, bias) = (rng.buffer(rows, k), rng.vector(hidden));
        for gated in [false, true] {
            let mut run = |narrow: bool| {
                let (mut kept, mut out) = (Buffer::new(rows, hidden), Buffer::new(rows, k));
                let mut op = LinearOp::new(&x, rows, &up);
                if !gated {
                    (op.bias, op.act) = (Some(&bias), Activation::Silu);
                }
                let w = if gated { &half } else { &down };
                let held;
                let mut op = if narrow {
                    let mut rows_of = kept.for_products(Format::Fp8);
                    if gated {
                        rows_of = rows_of.gated();
                    }
                    exec.linear(&op, &mut rows_of);
                    held = rows_of;
                    LinearOp::new(&held, rows, w)
                } else {
                    exec.linear(&op, &mut kept);
                    LinearOp::new(&kept, rows, w)
                };
                // Another product between the two has scales of its own.
                exec.linear(&LinearOp::new(&x, rows, &other), &mut Buffer::new(rows, 48));
                if gated {
                    op.norm = Norm::SwiGlu;
                }
                exec.linear(&op, &mut out);
                exec.fetch(&mut out, rows);
                out.head(rows).to_vec()
            };
            let (plain, narrow) = (run(false), run(true));
            let e = error(&narrow, &wide(&plain));
            assert!(e < 3e-2, "{name}, gated {gated}: {e:e}");
        }
    });
}
