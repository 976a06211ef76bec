//! The op suite: one table of cases per op, run on every instruction set this CPU has, against the
//! naive references.

mod suite;

use suite::{Rng, arena, each_cpu, each_exec, error, formats, wide};
use voce_runtime::{
    Activation, Buffer, Format, Gate, LinearOp, Matrix, Modulation, Norm, WeightArena, reference,
};

#[test]
fn what_is_kept_for_products_reaches_them() {
    each_exec(|exec, name| {
        let arena = arena(exec);
        let mut rng = Rng(11);
        let shapes = [
            (1, 64, 128),
            (1, 1000, 24),
            (2, 64, 128),
            (3, 64, 128),
            (20, 64, 128),
            (20, 64, 24),
            (20, 64, 40),
            (33, 512, 1024),
        ];
        let formats: &[_] =
            if exec.device().is_some() { &[Format::Bf16, Format::Fp8] } else { &[Format::Bf16] };
        for ((rows, k, wide), &format) in shapes.into_iter().flat_map(|s| formats.iter().map(move |f| (s, f)))
        {
            let up = Matrix::pack(&arena, format, wide, k, &rng.vec(wide * k)).unwrap();
            let down = Matrix::pack(&arena, format, k, wide, &rng.vec(k * wide)).unwrap();
            let half = Matrix::pack(&arena, format, k, wide / 2, &rng.vec(k * wide / 2)).unwrap();
            let (x, bias) = (rng.buffer(rows, k), rng.vector(wide));
            for (gated, biased) in [(false, true), (true, false), (true, true)] {
                let run = |exec: &mut voce_runtime::Exec, narrow: bool| {
                    let (mut hidden, mut out) = (Buffer::new(rows, wide), Buffer::new(rows, k));
                    let mut op = LinearOp::new(&x, rows, &up);
                    if biased {
                        op.bias = Some(&bias);
                    }
                    if !gated {
                        op.act = Activation::Silu;
                    }
                    let kept;
                    let mut op = if narrow {
                        let mut rows_of = hidden.for_products(format);
                        if gated {
                            rows_of = rows_of.gated();
                        }
                        exec.linear(&op, &mut rows_of);
                        kept = rows_of;
                        LinearOp::new(&kept, rows, if gated { &half } else { &down })
                    } else {
                        exec.linear(&op, &mut hidden);
                        LinearOp::new(&hidden, rows, if gated { &half } else { &down })
                    };
                    if gated {
                        op.norm = Norm::SwiGlu;
                    }
                    exec.linear(&op, &mut out);
                    exec.fetch(&mut out, rows);
                    out.head(rows).to_vec()
                };
                let (plain, narrow) = (run(exec, false), run(exec, true));
                // Rounding to bf16 on the way takes some values to another code of e4m3.
                let bound = if format == Format::Fp8 { 4e-2 } else { 2e-2 };
                let size = plain.iter().fold(0f32, |m, v| m.max(v.abs()));
                for (a, b) in plain.iter().zip(&narrow) {
                    assert!(
                        (a - b).abs() <= bound * size,
                        "{name}, {format:?}, {rows} rows of {k} by {wide}, gated {gated}: {a} {b} of {size}"
                    );
                }
            }
        }
    });
}

#[test]
fn linear_agrees_for_every_format_norm_and_store() {
    let alone = [
        (1, 1, 1),
        (1, 64, 48),
        (1, 130, 1000),
        (1, 264, 700),
        (1, 3336, 40),
        (1, 4600, 70),
        (1, 8200, 9),
        (1, 12_400, 5),
    ];
    let together =
        [(2, 33, 17), (2, 520, 70), (2, 4600, 33), (3, 1032, 50), (5, 100, 70), (17, 256, 96), (40, 96, 272)];
    let shapes: Vec<(usize, usize, usize)> = alone.into_iter().chain(together).collect();
    each_exec(|exec, name| {
        let arena = arena(exec);
        let mut rng = Rng(7);
        for &(rows, k, n) in &shapes {
            let weights = rng.vec(n * k);
            let (x, halves) = (rng.buffer(rows, k), rng.buffer(rows, 2 * k));
            let (bias, nw, nb) = (rng.vector(n), rng.vector(k), rng.vector(k));
            let modulation = rng.buffer(rows, 2 * k + 3);
            let gate = rng.buffer(rows, n);
            for &format in formats(exec) {
                let w = Matrix::pack(&arena, format, n, k, &weights).unwrap();
                let seen = w.unpack();
                for case in 0..7 {
                    let mut op = LinearOp::new(&x, rows, &w);
                    let mut out = rng.buffer(rows + 1, n + 5);
                    let before = out.clone();
                    match case {
                        0 => {}
                        1 => (op.norm, op.bias) = (Norm::Activation(Activation::Silu), Some(&bias)),
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
                        6 => (op.x, op.norm) = (halves.view().into(), Norm::SwiGlu),
                        _ => (op.bias, op.act, op.gate) = (Some(&bias), Activation::Elu, Gate::Add),
                    }
                    exec.linear(&op, &mut out);
                    exec.fetch(&mut out, rows + 1);
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
                            6 => {
                                let (gate, up) = halves.row(r).split_at(k);
                                let silu = |&v: &f32| reference::activate(Activation::Silu, v as f64);
                                gate.iter().map(silu).zip(up).map(|(g, &u)| g * u as f64).collect()
                            }
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
    each_cpu(|exec, name| {
        let arena = WeightArena::new();
        let mut rng = Rng(99);
        let (rows, k, n) = (37, 192, 90);
        let weights = rng.vec(n * k);
        let x = rng.buffer(rows, k);
        for format in Format::ON_CPU {
            let w = Matrix::pack(&arena, format, n, k, &weights).unwrap();
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
    let arena = WeightArena::new();
    let shapes = [
        (9, 320, 64),
        (1, 1, 1),
        (1, 1000, 37),
        (2, 65, 130),
        (3, 64, 16),
        (13, 129, 15),
        (70, 96, 50),
        // Both sides of where AVX2 lists double steps.
        (23, 192, 256),
        (24, 192, 255),
        (24, 192, 256),
        (90, 600, 271),
    ];
    for (rows, k, n) in shapes {
        let inputs = [
            rng.vec(rows * k),
            vec![1.0; rows * k],
            vec![-1.0; rows * k],
            (0..rows * k).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect(),
            (0..rows * k).map(|i| if i % 4 < 2 { 0.6 } else { -1.0 }).collect(),
            vec![0.0; rows * k],
        ];
        for weights in [rng.vec(n * k), vec![1.0; n * k], vec![-1.0; n * k]] {
            for (input, format) in inputs.iter().flat_map(|x| [(x, Format::Int8), (x, Format::Int4)]) {
                let mut x = Buffer::new(rows, k);
                x.head_mut(rows).copy_from_slice(input);
                let w = Matrix::pack(&arena, format, n, k, &weights).unwrap();
                let mut first: Option<Vec<f32>> = None;
                each_cpu(|exec, name| {
                    let mut out = Buffer::new(rows, n);
                    exec.linear(&LinearOp::new(&x, rows, &w), &mut out);
                    let got = out.head(rows).to_vec();
                    let case = format!("{name} {format:?} {rows}x{k}x{n}");
                    assert_eq!(*first.get_or_insert_with(|| got.clone()), got, "{case}");
                });
            }
        }
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
        let arena = arena(exec);
        let w = Matrix::pack(&arena, Format::F32, 1, 1, &identity).unwrap();
        let mut x = Buffer::new(n, 1);
        x.head_mut(n).copy_from_slice(&values);
        for act in
            [Activation::Relu, Activation::Silu, Activation::Elu, Activation::GeluTanh, Activation::GeluErf]
        {
            let mut out = Buffer::new(n, 1);
            let mut op = LinearOp::new(&x, n, &w);
            op.act = act;
            exec.linear(&op, &mut out);
            exec.fetch(&mut out, n);
            for (got, &v) in out.head(n).iter().zip(&values) {
                let want = reference::activate(act, v as f64);
                let e = (*got as f64 - want).abs() / want.abs().max(1.0);
                assert!(e < 1e-6, "{name} {act:?}({v}) = {got}, want {want}");
            }
        }
    });
}
