//! The op suite: one table of cases per op, run on every instruction set this CPU has, against the
//! naive references.

mod suite;

use suite::{Rng, each_exec, error, wide};
use voce_runtime::{
    Activation, AttentionOp, Buffer, ConvOp, ConvState, ConvStateSpec, DepthwiseOp, Exec, Format, Gate, Isa,
    KvCache, KvFormat, KvSpec, LinearOp, Matrix, Modulation, Norm, Rope, RopeStyle, Span, UpsampleOp,
    WeightArena, reference,
};

#[test]
fn linear_agrees_for_every_format_norm_and_store() {
    let shapes =
        [(1, 1, 1), (1, 64, 48), (1, 130, 1000), (2, 33, 17), (5, 100, 70), (17, 256, 96), (40, 96, 272)];
    each_exec(|exec, name| {
        let arena = WeightArena::new();
        let mut rng = Rng(7);
        for (rows, k, n) in shapes {
            let weights = rng.vec(n * k);
            let x = rng.buffer(rows, k);
            let (bias, nw, nb) = (rng.vec(n), rng.vec(k), rng.vec(k));
            let modulation = rng.buffer(rows, 2 * k + 3);
            let gate = rng.buffer(rows, n);
            for format in Format::ALL {
                let w = Matrix::pack(&arena, format, n, k, &weights);
                let seen = w.unpack();
                for case in 0..6 {
                    let mut op = LinearOp::new(&x, rows, &w);
                    let mut out = rng.buffer(rows + 1, n + 5);
                    let before = out.clone();
                    match case {
                        0 => {}
                        1 => (op.norm, op.bias) = (Norm::Activation(Activation::Silu), Some(&bias[..])),
                        2 => {
                            op.norm = Norm::Layer {
                                weight: Some(&nw),
                                bias: Some(&nb),
                                eps: 1e-5,
                                modulation: None,
                            };
                            op.act = Activation::GeluTanh;
                        }
                        3 => {
                            let m = Modulation {
                                shift: modulation.columns(1..k + 1),
                                scale: modulation.columns(k + 2..2 * k + 2),
                            };
                            op.norm =
                                Norm::Layer { weight: None, bias: None, eps: 1e-6, modulation: Some(m) };
                            op.gate = Gate::Gated(gate.view());
                        }
                        4 => (op.norm, op.gate) = (Norm::Rms { weight: &nw, eps: 1e-5 }, Gate::Add),
                        _ => (op.bias, op.act, op.gate) = (Some(&bias[..]), Activation::Elu, Gate::Add),
                    }
                    exec.linear(&op, &mut out);
                    for r in 0..rows {
                        let raw = wide(x.row(r));
                        let y: Vec<f64> = match case {
                            1 => raw.iter().map(|&v| reference::activate(Activation::Silu, v)).collect(),
                            2 => reference::norm(&raw, 1e-5, true)
                                .iter()
                                .enumerate()
                                .map(|(i, v)| v * nw[i] as f64 + nb[i] as f64)
                                .collect(),
                            3 => reference::norm(&raw, 1e-6, true)
                                .iter()
                                .enumerate()
                                .map(|(i, v)| {
                                    let m = modulation.row(r);
                                    v * (1.0 + m[k + 2 + i] as f64) + m[1 + i] as f64
                                })
                                .collect(),
                            4 => reference::norm(&raw, 1e-5, false)
                                .iter()
                                .enumerate()
                                .map(|(i, v)| v * nw[i] as f64)
                                .collect(),
                            _ => raw,
                        };
                        let product = reference::product(&y, &seen, n);
                        let want: Vec<f64> = product
                            .iter()
                            .enumerate()
                            .map(|(i, &p)| {
                                let old = before.row(r)[i] as f64;
                                match case {
                                    1 => p + bias[i] as f64,
                                    2 => reference::activate(Activation::GeluTanh, p),
                                    3 => old + gate.row(r)[i] as f64 * p,
                                    4 => old + p,
                                    5 => old + reference::activate(Activation::Elu, p + bias[i] as f64),
                                    _ => p,
                                }
                            })
                            .collect();
                        let e = error(&out.row(r)[..n], &want);
                        // A single product has nothing to average the rounding over.
                        let bound = reference::tolerance(format) * if k < 4 { 3.0 } else { 1.0 };
                        assert!(e < bound, "{name} {format:?} {rows}x{k}x{n} case {case} row {r}: {e:e}");
                        assert_eq!(out.row(r)[n..], before.row(r)[n..], "columns past the outputs stay");
                    }
                    assert_eq!(out.row(rows), before.row(rows), "rows past the batch stay");
                }
            }
        }
    });
}

#[test]
fn a_row_alone_has_the_bits_of_the_row_in_a_batch() {
    each_exec(|exec, name| {
        let arena = WeightArena::new();
        let mut rng = Rng(99);
        let (rows, k, n) = (37, 192, 90);
        let weights = rng.vec(n * k);
        let x = rng.buffer(rows, k);
        for format in Format::ALL {
            let w = Matrix::pack(&arena, format, n, k, &weights);
            let (mut batch, mut one) = (Buffer::new(rows, n), Buffer::new(1, n));
            exec.linear(&LinearOp::new(&x, rows, &w), &mut batch);
            for r in 0..rows {
                let mut row = Buffer::new(1, k);
                row.row_mut(0).copy_from_slice(x.row(r));
                exec.linear(&LinearOp::new(&row, 1, &w), &mut one);
                assert_eq!(one.row(0), batch.row(r), "{name} {format:?} row {r}");
            }
        }
    });
}

#[test]
fn quantised_products_have_the_same_bits_on_every_instruction_set() {
    let mut rng = Rng(3);
    let (rows, k, n) = (9, 320, 64);
    let weights = rng.vec(n * k);
    let x = rng.buffer(rows, k);
    let arena = WeightArena::new();
    for format in [Format::Int8, Format::Int4] {
        let w = Matrix::pack(&arena, format, n, k, &weights);
        let mut first: Option<Vec<f32>> = None;
        each_exec(|exec, name| {
            let mut out = Buffer::new(rows, n);
            exec.linear(&LinearOp::new(&x, rows, &w), &mut out);
            let got = out.head(rows).to_vec();
            assert_eq!(*first.get_or_insert_with(|| got.clone()), got, "{name} {format:?}");
        });
    }
}

#[test]
fn activations_agree() {
    let values: Vec<f32> =
        (-2000..2000).map(|i| i as f32 / 100.0).chain([-80.0, 80.0, 0.0, -1e-6, 1e-6]).collect();
    let n = values.len();
    let mut identity = vec![0f32; 1];
    identity[0] = 1.0;
    each_exec(|exec, name| {
        let arena = WeightArena::new();
        let w = Matrix::pack(&arena, Format::F32, 1, 1, &identity);
        let mut x = Buffer::new(n, 1);
        x.head_mut(n).copy_from_slice(&values);
        for act in
            [Activation::Relu, Activation::Silu, Activation::Elu, Activation::GeluTanh, Activation::GeluErf]
        {
            let mut out = Buffer::new(n, 1);
            let mut op = LinearOp::new(&x, n, &w);
            op.act = act;
            exec.linear(&op, &mut out);
            for (got, &v) in out.head(n).iter().zip(&values) {
                let want = reference::activate(act, v as f64);
                let e = (*got as f64 - want).abs() / want.abs().max(1.0);
                assert!(e < 1e-6, "{name} {act:?}({v}) = {got}, want {want}");
            }
        }
    });
}

/// Runs rows through a cache in the given cuts and returns the outputs.
#[allow(clippy::too_many_arguments)]
fn attend(
    exec: &mut Exec,
    spec: KvSpec,
    heads: usize,
    window: Option<usize>,
    rope: Option<&Rope>,
    qkv: &Buffer,
    cuts: &[usize],
    slot: usize,
) -> Vec<Vec<f32>> {
    let mut cache = KvCache::new(spec);
    let (mut at, mut outs) = (0, Vec::new());
    for &rows in cuts {
        let mut part = Buffer::new(rows, qkv.cols());
        (0..rows).for_each(|r| part.row_mut(r).copy_from_slice(qkv.row(at + r)));
        let mut out = Buffer::new(rows, heads * spec.head_dim);
        let spans = [Span { slot, rows }];
        let op = AttentionOp { qkv: &part, spans: &spans, cache: &mut cache, layer: 1, heads, window, rope };
        exec.attention(op, &mut out);
        cache.advance(slot, rows);
        outs.extend((0..rows).map(|r| out.row(r).to_vec()));
        at += rows;
    }
    outs
}

#[test]
fn attention_agrees_and_does_not_depend_on_the_cuts() {
    let cases = [
        (4, 4, 64, None, RopeStyle::Interleaved),
        (6, 2, 16, None, RopeStyle::Halves),
        (3, 1, 24, Some(5), RopeStyle::Interleaved),
        (2, 2, 32, Some(1), RopeStyle::Interleaved),
        (2, 1, 80, Some(9), RopeStyle::Halves),
        (1, 1, 128, None, RopeStyle::Halves),
    ];
    each_exec(|exec, name| {
        let mut rng = Rng(11);
        for (heads, kv_heads, dim, window, style) in cases {
            let steps = 21;
            let qkv = rng.buffer(steps, (heads + 2 * kv_heads) * dim);
            let rope = Rope::new(style, dim, 10_000.0, 8);
            for (format, bound) in [(KvFormat::F32, 1e-5), (KvFormat::Bf16, 2e-2)] {
                let capacity = window.map_or(steps, |w| w + 6);
                let spec = KvSpec { layers: 2, slots: 2, kv_heads, head_dim: dim, capacity, format };
                let whole = attend(exec, spec, heads, window, Some(&rope), &qkv, &[7, 7, 7], 1);
                let single = attend(exec, spec, heads, window, Some(&rope), &qkv, &[1; 21], 0);
                assert_eq!(whole, single, "{name} cuts change the result");
                for h in 0..heads {
                    let pick = |offset: usize, head: usize, turn: bool| -> Vec<Vec<f64>> {
                        (0..steps)
                            .map(|t| {
                                let mut v = qkv.row(t)[(offset + head) * dim..][..dim].to_vec();
                                if turn {
                                    rope.rotate(t, &mut v);
                                }
                                wide(&v)
                            })
                            .collect()
                    };
                    let kv = h / (heads / kv_heads);
                    let want = reference::attention(
                        &pick(0, h, true),
                        &pick(heads, kv, true),
                        &pick(heads + kv_heads, kv, false),
                        window,
                    );
                    for t in 0..steps {
                        let e = error(&whole[t][h * dim..(h + 1) * dim], &want[t]);
                        assert!(
                            e < bound,
                            "{name} {format:?} heads {heads}/{kv_heads} dim {dim} t {t}: {e:e}"
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn rotation_beyond_the_table_is_the_same_rotation() {
    let (short, long) =
        (Rope::new(RopeStyle::Halves, 32, 10_000.0, 2), Rope::new(RopeStyle::Halves, 32, 10_000.0, 600));
    let x = Rng(5).vec(32);
    for position in [0, 1, 2, 3, 599] {
        let (mut a, mut b) = (x.clone(), x.clone());
        short.rotate(position, &mut a);
        long.rotate(position, &mut b);
        assert_eq!(a, b);
    }
}

#[test]
fn convolution_agrees_and_does_not_depend_on_the_cuts_or_neighbours() {
    // (channels in, outputs, taps, stride, dilation)
    let cases = [
        (1, 8, 7, 1, 1),
        (12, 20, 3, 1, 1),
        (16, 16, 3, 1, 2),
        (8, 16, 8, 4, 1),
        (24, 48, 1, 1, 1),
        (5, 3, 4, 2, 3),
        (64, 32, 3, 1, 1),
    ];
    each_exec(|exec, name| {
        let arena = WeightArena::new();
        let mut rng = Rng(17);
        for (cin, n, taps, stride, dilation) in cases {
            let steps = 24;
            let x = rng.buffer(steps, cin);
            let (weights, bias) = (rng.vec(n * taps * cin), rng.vec(n));
            for format in [Format::F32, Format::Bf16] {
                let w = Matrix::pack(&arena, format, n, taps * cin, &weights);
                let active: Vec<Vec<f64>> = (0..steps)
                    .map(|t| {
                        x.row(t).iter().map(|&v| reference::activate(Activation::Elu, v as f64)).collect()
                    })
                    .collect();
                let want = reference::conv(&active, &w.unpack(), n, taps, stride, dilation);
                let history = ConvOp::history(taps, stride, dilation);
                let spec = ConvStateSpec { slots: 3, history, channels: cin, replicate: false };
                let mut runs: Vec<Vec<f32>> = Vec::new();
                for cuts in [vec![24], vec![12, 12], vec![4, 8, 4, 8]] {
                    let mut state = ConvState::new(spec);
                    let (mut at, mut got) = (0, Vec::new());
                    for rows in cuts {
                        // The stream sits in slot 2 behind a neighbour in slot 0.
                        let mut part = Buffer::new(rows + stride, cin);
                        part.head_mut(stride).copy_from_slice(&rng.vec(stride * cin));
                        (0..rows).for_each(|r| part.row_mut(stride + r).copy_from_slice(x.row(at + r)));
                        let spans = [Span { slot: 0, rows: stride }, Span { slot: 2, rows }];
                        let mut out = Buffer::new(rows / stride + 1, n);
                        let op = ConvOp {
                            x: &part,
                            spans: &spans,
                            pre: Activation::Elu,
                            w: &w,
                            bias: Some(&bias),
                            taps,
                            stride,
                            dilation,
                            act: Activation::None,
                            add: false,
                        };
                        exec.conv(&op, &mut state, &mut out);
                        got.extend((0..rows / stride).flat_map(|r| out.row(1 + r).to_vec()));
                        at += rows;
                    }
                    runs.push(got);
                }
                assert!(
                    runs.iter().all(|r| *r == runs[0]),
                    "{name} cuts change {cin} {taps} {stride} {dilation}"
                );
                let want: Vec<f64> =
                    want.iter().flat_map(|row| row.iter().zip(&bias).map(|(v, &b)| v + b as f64)).collect();
                let e = error(&runs[0], &want);
                assert!(e < reference::tolerance(format), "{name} {format:?} {cin} {n} {taps}: {e:e}");
            }
        }
    });
}

#[test]
fn replicate_padding_repeats_the_first_row() {
    each_exec(|exec, name| {
        let arena = WeightArena::new();
        let w = Matrix::pack(&arena, Format::F32, 1, 4, &[1.0; 4]);
        let spec = ConvStateSpec { slots: 1, history: 2, channels: 1, replicate: true };
        let mut state = ConvState::new(spec);
        for round in 0..2 {
            let mut x = Buffer::new(2, 1);
            x.head_mut(2).copy_from_slice(&[3.0, 5.0]);
            let mut out = Buffer::new(1, 1);
            let spans = [Span { slot: 0, rows: 2 }];
            let op = ConvOp {
                x: &x,
                spans: &spans,
                pre: Activation::None,
                w: &w,
                bias: None,
                taps: 4,
                stride: 2,
                dilation: 1,
                act: Activation::None,
                add: false,
            };
            exec.conv(&op, &mut state, &mut out);
            assert_eq!(out.row(0)[0], [14.0, 16.0][round], "{name}");
        }
        state.reset(0);
    });
}

#[test]
fn a_transposed_convolution_folds_into_rows() {
    // stride 3, kernel 6: out[3 t + j] = x[t] w[j] + x[t - 1] w[3 + j]
    each_exec(|exec, name| {
        let arena = WeightArena::new();
        let mut rng = Rng(23);
        let (cin, cout, stride) = (10, 7, 3);
        let kernel = rng.vec(cin * cout * 2 * stride); // [cin][cout][k]
        let mut packed = vec![0f32; stride * cout * 2 * cin];
        for j in 0..stride {
            for o in 0..cout {
                for tap in 0..2 {
                    for c in 0..cin {
                        let from = (c * cout + o) * 2 * stride + (1 - tap) * stride + j;
                        packed[((j * cout + o) * 2 + tap) * cin + c] = kernel[from];
                    }
                }
            }
        }
        let w = Matrix::pack(&arena, Format::F32, stride * cout, 2 * cin, &packed);
        let mut state =
            ConvState::new(ConvStateSpec { slots: 1, history: 1, channels: cin, replicate: false });
        let x = rng.buffer(4, cin);
        let mut out = Buffer::new(4 * stride, cout);
        let spans = [Span { slot: 0, rows: 4 }];
        let op = ConvOp {
            x: &x,
            spans: &spans,
            pre: Activation::None,
            w: &w,
            bias: None,
            taps: 2,
            stride: 1,
            dilation: 1,
            act: Activation::None,
            add: false,
        };
        exec.conv(&op, &mut state, &mut out);
        for t in 0..4 {
            for j in 0..stride {
                let want: Vec<f64> = (0..cout)
                    .map(|o| {
                        let at = |c: usize, i: usize| kernel[(c * cout + o) * 2 * stride + i] as f64;
                        (0..cin)
                            .map(|c| {
                                let past =
                                    if t > 0 { x.row(t - 1)[c] as f64 * at(c, stride + j) } else { 0.0 };
                                x.row(t)[c] as f64 * at(c, j) + past
                            })
                            .sum()
                    })
                    .collect();
                assert!(error(out.row(t * stride + j), &want) < 1e-5, "{name}");
            }
        }
    });
}

#[test]
fn depthwise_convolution_agrees_and_does_not_depend_on_the_cuts() {
    each_exec(|exec, name| {
        let mut rng = Rng(53);
        let (channels, taps, steps) = (19, 5, 14);
        let (kernel, bias) = (rng.vec(taps * channels), rng.vec(channels));
        let x = rng.buffer(steps, channels);
        let spec = ConvStateSpec { slots: 2, history: taps - 1, channels, replicate: false };
        for cuts in [vec![14], vec![1, 2, 3, 8], vec![7, 7]] {
            let mut state = ConvState::new(spec);
            let mut at = 0;
            for rows in cuts {
                let mut part = Buffer::new(rows, channels);
                (0..rows).for_each(|r| part.row_mut(r).copy_from_slice(x.row(at + r)));
                let mut out = Buffer::new(rows, channels);
                let spans = [Span { slot: 1, rows }];
                let op = DepthwiseOp {
                    x: &part,
                    spans: &spans,
                    kernel: &kernel,
                    bias: Some(&bias),
                    ahead: 0,
                    norm: None,
                    act: Activation::Silu,
                };
                exec.depthwise(&op, &mut state, &mut out);
                for r in 0..rows {
                    let want: Vec<f64> = (0..channels)
                        .map(|c| {
                            let sum: f64 = (0..taps)
                                .filter_map(|tap| Some((tap, (at + r + tap + 1).checked_sub(taps)?)))
                                .map(|(tap, t)| x.row(t)[c] as f64 * kernel[tap * channels + c] as f64)
                                .sum();
                            reference::activate(Activation::Silu, sum + bias[c] as f64)
                        })
                        .collect();
                    assert!(error(out.row(r), &want) < 1e-5, "{name} row {}", at + r);
                }
                at += rows;
            }
        }
    });
}

#[test]
fn upsampling_agrees_with_the_sum_over_taps() {
    each_exec(|exec, name| {
        let mut rng = Rng(31);
        let (channels, stride) = (9, 4);
        let kernel = rng.vec(2 * stride * channels);
        let mut state = ConvState::new(ConvStateSpec { slots: 2, history: 1, channels, replicate: false });
        let x = rng.buffer(5, channels);
        let mut out = Buffer::new(5 * stride, channels);
        let spans = [Span { slot: 1, rows: 5 }];
        exec.upsample(&UpsampleOp { x: &x, spans: &spans, kernel: &kernel, stride }, &mut state, &mut out);
        for t in 0..5 {
            for j in 0..stride {
                let want: Vec<f64> = (0..channels)
                    .map(|c| {
                        let past = if t > 0 {
                            x.row(t - 1)[c] as f64 * kernel[(stride + j) * channels + c] as f64
                        } else {
                            0.0
                        };
                        x.row(t)[c] as f64 * kernel[j * channels + c] as f64 + past
                    })
                    .collect();
                assert!(error(out.row(t * stride + j), &want) < 1e-6, "{name}");
            }
        }
    });
}

#[test]
fn a_prefix_copied_from_another_cache_continues_the_stream() {
    let spec = |slots, capacity| KvSpec {
        layers: 2,
        slots,
        kv_heads: 2,
        head_dim: 16,
        capacity,
        format: KvFormat::F32,
    };
    let mut rng = Rng(41);
    let qkv = rng.buffer(10, 6 * 16);
    let mut exec = Exec::with_isa(2, Isa::best()).unwrap();
    let step = |exec: &mut Exec, cache: &mut KvCache, slot, from: usize, rows| {
        let mut part = Buffer::new(rows, 6 * 16);
        (0..rows).for_each(|r| part.row_mut(r).copy_from_slice(qkv.row(from + r)));
        let mut out = Buffer::new(rows, 32);
        let spans = [Span { slot, rows }];
        let op =
            AttentionOp { qkv: &part, spans: &spans, cache, layer: 0, heads: 2, window: None, rope: None };
        exec.attention(op, &mut out);
        out.row(rows - 1).to_vec()
    };
    let mut whole = KvCache::new(spec(1, 10));
    let want = step(&mut exec, &mut whole, 0, 0, 10);
    let mut short = KvCache::new(spec(1, 6));
    step(&mut exec, &mut short, 0, 0, 6);
    let mut other = KvCache::new(spec(3, 20));
    other.copy_prefix(2, &short, 0, 6);
    assert_eq!(other.position(2), 6);
    assert_eq!(step(&mut exec, &mut other, 2, 6, 4), want);
}
