//! The op suite of audio decoders: the periodic activation, and dilated convolutions of many rows.

mod suite;

use suite::{Rng, arena, devices, each_exec, error, wide};
use voce_runtime::{
    Activation, Buffer, ConvOp, ConvState, ConvStateSpec, Exec, Format, Gate, Isa, LinearOp, Matrix,
    ResidualOp, Snake, Span, reference,
};

#[test]
fn the_periodic_activation_agrees_for_small_and_large_arguments() {
    each_exec(|exec, name| {
        let mut rng = Rng(71);
        for n in [1, 16, 37, 96, 260] {
            for reach in [0.5f32, 4.0, 300.0, 9000.0] {
                let rows = 9;
                let rate: Vec<f32> = rng.vec(n).iter().map(|v| v.exp()).collect();
                let gain: Vec<f32> = rng.vec(n).iter().map(|v| v.exp()).collect();
                let mut x = rng.buffer(rows, n);
                x.head_mut(rows).iter_mut().for_each(|v| *v *= reach);
                let want: Vec<f64> = (0..rows * n)
                    .map(|i| reference::snake(x.head(rows)[i], rate[i % n], gain[i % n]))
                    .collect();
                let (rate, gain) = (rate.into(), gain.into());
                let snake = Snake { rate: &rate, gain: &gain };
                let mut out = Buffer::new(rows, n);
                exec.snake(snake, &x, rows, &mut out);
                exec.snake_in_place(snake, &mut x, rows - 1);
                exec.fetch(&mut out, rows);
                exec.fetch(&mut x, rows);
                // The sum rounds to its own digits; the activation itself is good to a millionth.
                let worst =
                    out.head(rows).iter().zip(&want).map(|(g, w)| (*g as f64 - w).abs()).fold(0.0, f64::max);
                let bound = 1.5e-6 + f64::from(reach) * 1e-7;
                assert!(worst < bound, "{name} {n} {reach}: {worst:e}");
                assert_eq!(x.head(rows - 1), out.head(rows - 1), "{name} in place");
                assert_ne!(x.row(rows - 1), out.row(rows - 1), "{name} rows that were not asked for");
            }
        }
        // Beyond any use: bounded all the same.
        let (rate, gain) = (vec![1e6f32; 16].into(), vec![1f32; 16].into());
        let mut x = Buffer::new(1, 16);
        x.head_mut(1).fill(3e20);
        exec.snake_in_place(Snake { rate: &rate, gain: &gain }, &mut x, 1);
        exec.fetch(&mut x, 1);
        assert!(x.row(0).iter().all(|v| (v - 3e20).abs() < 1e15), "{name}");
    });
}

#[test]
fn the_periodic_activation_has_the_same_bits_on_every_instruction_set_with_fused_sums() {
    let mut rng = Rng(73);
    let n = 37;
    let (rate, gain) = (rng.vector(n), rng.vector(n));
    let mut runs: Vec<(Isa, Vec<f32>)> = Vec::new();
    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Scalar) {
        let mut rng = Rng(74);
        let mut exec = Exec::with_isa(2, isa).unwrap();
        let mut x = rng.buffer(50, n);
        x.head_mut(50).iter_mut().for_each(|v| *v *= 40.0);
        exec.snake_in_place(Snake { rate: &rate, gain: &gain }, &mut x, 50);
        runs.push((isa, x.head(50).to_vec()));
    }
    for pair in runs.windows(2) {
        assert!(pair[0].1 == pair[1].1, "{} and {}", pair[0].0, pair[1].0);
    }
}

#[test]
fn dilated_convolutions_of_many_rows_agree_and_have_the_bits_of_few() {
    // (channels in, outputs, taps, dilation, rows)
    let cases = [(12, 20, 7, 3, 200), (16, 16, 7, 9, 460), (8, 24, 3, 2, 97), (33, 5, 2, 5, 251)];
    each_exec(|exec, name| {
        let arena = arena(exec);
        let mut rng = Rng(72);
        for (cin, n, taps, dilation, steps) in cases {
            let x = rng.buffer(steps, cin);
            let (weights, bias) = (rng.vec(n * taps * cin), rng.vector(n));
            let history = ConvOp::history(taps, 1, dilation);
            for format in [Format::F32, Format::Bf16] {
                let w = Matrix::pack(&arena, format, n, taps * cin, &weights).unwrap();
                let active: Vec<Vec<f64>> = (0..steps).map(|t| wide(x.row(t))).collect();
                let mut want = reference::conv(&active, &w.unpack(), n, taps, 1, dilation);
                want.iter_mut().for_each(|row| row.iter_mut().zip(&*bias).for_each(|(v, b)| *v += *b as f64));
                let want: Vec<f64> = want.concat();
                let mut runs: Vec<Vec<f32>> = Vec::new();
                for cut in [steps, steps - 7, 40] {
                    let spec = ConvStateSpec { slots: 2, history, channels: cin, replicate: false };
                    let mut state = ConvState::new(spec);
                    let (mut at, mut got) = (0, Vec::new());
                    while at < steps {
                        // Behind a neighbour of three rows.
                        let rows = cut.min(steps - at);
                        let mut part = Buffer::new(rows + 3, cin);
                        part.head_mut(3).copy_from_slice(&rng.vec(3 * cin));
                        (0..rows).for_each(|r| part.row_mut(3 + r).copy_from_slice(x.row(at + r)));
                        let spans = [Span { slot: 0, rows: 3 }, Span { slot: 1, rows }];
                        let mut out = Buffer::new(rows + 3, n);
                        let op = ConvOp {
                            x: &part,
                            spans: &spans,
                            pre: Activation::None,
                            w: &w,
                            bias: Some(&bias),
                            taps,
                            stride: 1,
                            dilation,
                            act: Activation::None,
                            add: false,
                        };
                        exec.conv(&op, &mut state, &mut out);
                        exec.fetch(&mut out, rows + 3);
                        got.extend_from_slice(&out.head(rows + 3)[3 * n..]);
                        at += rows;
                    }
                    let e = error(&got, &want);
                    assert!(e < reference::tolerance(format), "{name} {cin} {taps} {dilation}: {e:e}");
                    runs.push(got);
                }
                if exec.shares_memory() {
                    assert!(
                        runs.windows(2).all(|r| r[0] == r[1]),
                        "{name} cuts change {cin} {taps} {dilation}"
                    );
                }
            }
        }
    });
}

#[test]
fn a_convolution_of_activated_rows_is_the_two_ops_where_an_executor_has_it() {
    // (channels in, outputs, taps, dilation): gathered by eights and by fours, of odd widths, and to few outputs.
    let cases = [(16, 24, 7, 3), (12, 20, 7, 9), (5, 8, 3, 1), (24, 1, 7, 1), (32, 1, 3, 1)];
    let mut fused = 0;
    each_exec(|exec, name| {
        let arena = arena(exec);
        let mut rng = Rng(75);
        for (cin, n, taps, dilation) in cases {
            for format in [Format::F32, Format::Bf16] {
                let w = Matrix::pack(&arena, format, n, taps * cin, &rng.vec(n * taps * cin)).unwrap();
                let (rate, gain, bias) = (rng.vector(cin), rng.vector(cin), rng.vector(n));
                let snake = Snake { rate: &rate, gain: &gain };
                let history = ConvOp::history(taps, 1, dilation);
                let spec = ConvStateSpec { slots: 2, history, channels: cin, replicate: false };
                let mut states = [ConvState::new(spec), ConvState::new(spec)];
                for rows in [40, 3, 16] {
                    let x = rng.buffer(rows, cin);
                    let (mut one, mut two) = (Buffer::new(rows, n), Buffer::new(rows, n));
                    let mut active = Buffer::new(rows, cin);
                    let spans = [Span { slot: 1, rows }];
                    let op = |x| ConvOp {
                        x,
                        spans: &spans,
                        pre: Activation::None,
                        w: &w,
                        bias: Some(&bias),
                        taps,
                        stride: 1,
                        dilation,
                        act: Activation::None,
                        add: false,
                    };
                    if !exec.conv_snaked(&op(&x), snake, &mut states[0], &mut one) {
                        assert!(exec.shares_memory(), "{name}");
                        continue;
                    }
                    fused += 1;
                    exec.snake(snake, &x, rows, &mut active);
                    exec.conv(&op(&active), &mut states[1], &mut two);
                    exec.fetch(&mut one, rows);
                    exec.fetch(&mut two, rows);
                    let e = error(one.head(rows), &wide(two.head(rows)));
                    assert!(e < 1e-5, "{name} {cin} {n} {taps} {dilation} {rows}: {e:e}");
                }
            }
        }
    });
    assert!(fused >= 30 || devices().is_empty(), "{fused} convolutions");
}

#[test]
fn activated_rows_that_products_alone_read_give_the_same_product() {
    each_exec(|exec, name| {
        let (arena, mut rng) = (arena(exec), Rng(76));
        for (rows, n) in [(3, 16), (40, 96), (70, 24), (40, 20)] {
            let x = rng.buffer(rows, n);
            let (rate, gain) = (rng.vector(n), rng.vector(n));
            let snake = Snake { rate: &rate, gain: &gain };
            for format in [Format::F32, Format::Bf16] {
                let w = Matrix::pack(&arena, format, 32, n, &rng.vec(32 * n)).unwrap();
                let (mut active, mut one, mut two) =
                    (Buffer::new(rows, n), Buffer::new(rows, 32), Buffer::new(rows, 32));
                exec.snake(snake, &x, rows, &mut active);
                exec.linear(&LinearOp::new(&active, rows, &w), &mut one);
                let mut kept = active.for_products(format);
                exec.snake(snake, &x, rows, &mut kept);
                exec.linear(&LinearOp::new(&kept, rows, &w), &mut two);
                drop(kept);
                exec.fetch(&mut one, rows);
                exec.fetch(&mut two, rows);
                let e = error(one.head(rows), &wide(two.head(rows)));
                assert!(e < reference::tolerance(format), "{name} {rows} {n}: {e:e}");
            }
        }
    });
}

#[test]
fn a_unit_of_periodic_activations_is_its_ops_where_an_executor_has_it() {
    // (width, dilation, rows of each step, and of another slot): whole tiles, several tiles and parts of one; rows so wide that few
    // are not worth it.
    let few = [
        (96, 1, vec![16, 272, 16], 16),
        (96, 9, vec![144, 32], 16),
        (192, 3, vec![80, 16], 16),
        (192, 9, vec![16, 48], 16),
        (384, 1, vec![208], 16),
    ];
    // A tile for every multiprocessor of a GPU: spans that are whole tiles, that are not, and a step that is shorter than the past.
    let many = [
        (96, 1, vec![4480, 4480], 4480),
        (96, 9, vec![8000, 48, 8000], 80),
        (192, 9, vec![6000, 6000], 3000),
        (192, 3, vec![4480, 16], 4480),
        (384, 9, vec![6400, 6400], 160),
        (384, 1, vec![4480], 4480),
    ];
    let taps = 7;
    each_exec(|exec, name| {
        let (arena, mut rng) = (arena(exec), Rng(77));
        let large = exec.processors().is_some_and(|p| p >= 64);
        for (width, dilation, steps, other) in few.iter().chain(many.iter().filter(|_| large)) {
            let (width, dilation, other) = (*width, *dilation, *other);
            let mut pack = |k: usize| {
                let w: Vec<f32> = rng.vec(width * k).iter().map(|w| w / (k as f32).sqrt()).collect();
                Matrix::pack(&arena, Format::Bf16, width, k, &w).unwrap()
            };
            let (first, second) = (pack(taps * width), pack(width));
            let [a, b, c, d, first_bias, second_bias] = std::array::from_fn(|_| rng.vector(width));
            let snakes = [Snake { rate: &a, gain: &b }, Snake { rate: &c, gain: &d }];
            let spec = ConvStateSpec {
                slots: 3,
                history: ConvOp::history(taps, 1, dilation),
                channels: width,
                replicate: false,
            };
            let mut states = [ConvState::new(spec), ConvState::new(spec)];
            for &rows in steps {
                let spans = [Span { slot: 2, rows: other }, Span { slot: 0, rows }];
                let rows = rows + other;
                let mut x = rng.buffer(rows, width);
                let [mut one, mut active, mut hidden] = std::array::from_fn(|_| Buffer::new(rows, width));
                let op = ResidualOp {
                    x: &x,
                    spans: &spans,
                    pre: Activation::None,
                    snakes: Some(snakes),
                    first: &first,
                    first_bias: Some(&first_bias),
                    taps,
                    dilation,
                    second: &second,
                    second_bias: Some(&second_bias),
                };
                if !exec.residual(&op, &mut states[0], &mut one) {
                    assert!(exec.shares_memory() || width > 192, "{name} {width}");
                    break;
                }
                exec.snake(snakes[0], &x, rows, &mut active);
                let conv = ConvOp {
                    x: &active,
                    spans: &spans,
                    pre: Activation::None,
                    w: &first,
                    bias: Some(&first_bias),
                    taps,
                    stride: 1,
                    dilation,
                    act: Activation::None,
                    add: false,
                };
                exec.conv(&conv, &mut states[1], &mut hidden);
                exec.snake_in_place(snakes[1], &mut hidden, rows);
                let mut product = LinearOp::new(&hidden, rows, &second);
                (product.bias, product.gate) = (Some(&second_bias), Gate::Add);
                exec.linear(&product, &mut x);
                exec.fetch(&mut one, rows);
                exec.fetch(&mut x, rows);
                let e = error(one.head(rows), &wide(x.head(rows)));
                assert!(e < reference::tolerance(Format::Bf16), "{name} {width} {dilation} {rows}: {e:e}");
            }
        }
    });
}
