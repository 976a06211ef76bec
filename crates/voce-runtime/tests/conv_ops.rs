//! The op suite of streaming convolutions: whatever the cuts, the neighbours and the slot, the stream is the same.

mod suite;

use suite::{Rng, arena, each_cpu, each_exec, error, wide};
use voce_runtime::{
    Activation, Buffer, ConvOp, ConvState, ConvStateSpec, DepthwiseOp, Exec, Format, LinearOp, Matrix,
    ResidualOp, RowNorm, Span, UpsampleOp, WeightArena, reference,
};

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
        (32, 1, 7, 1, 1),
    ];
    each_exec(|exec, name| {
        let arena = arena(exec);
        let mut rng = Rng(17);
        for (cin, n, taps, stride, dilation) in cases {
            let (steps, add) = (24, taps == 3);
            let before = if add { 0.25 } else { 0.0 };
            let x = rng.buffer(steps, cin);
            let (weights, bias) = (rng.vec(n * taps * cin), rng.vector(n));
            // Devices have no convolutions in int8.
            let formats = &[Format::F32, Format::Bf16, Format::Int8];
            for &format in &formats[..if exec.device().is_some() { 2 } else { 3 }] {
                let w = Matrix::pack(&arena, format, n, taps * cin, &weights).unwrap();
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
                        out.head_mut(rows / stride + 1).fill(0.25);
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
                            add,
                        };
                        exec.conv(&op, &mut state, &mut out);
                        exec.fetch(&mut out, rows / stride + 1);
                        got.extend((0..rows / stride).flat_map(|r| out.row(1 + r).to_vec()));
                        at += rows;
                    }
                    runs.push(got);
                }
                // On devices few rows have another kernel than many.
                assert!(
                    exec.device().is_some() || runs.iter().all(|r| *r == runs[0]),
                    "{name} cuts change {cin} {taps} {stride} {dilation}"
                );
                let want: Vec<f64> = want
                    .iter()
                    .flat_map(|row| row.iter().zip(bias.iter()).map(|(v, &b)| before + v + b as f64))
                    .collect();
                for run in &runs {
                    let e = error(run, &want);
                    assert!(e < reference::tolerance(format), "{name} {format:?} {cin} {n} {taps}: {e:e}");
                }
            }
        }
    });
}

#[test]
fn an_int8_convolution_is_the_product_of_its_windows_with_the_same_bits_everywhere() {
    // (channels in, outputs, taps, stride, dilation, rows): in place, gathered, and by phases.
    let cases = [
        (64, 40, 3, 1, 1, 30),
        (33, 17, 4, 2, 1, 36),
        (24, 50, 3, 1, 3, 20),
        (24, 50, 3, 1, 3, 200),
        (96, 16, 1, 1, 1, 5),
        // Both sides of where AVX2 lists double steps.
        (64, 256, 3, 1, 1, 23),
        (64, 255, 3, 1, 1, 24),
        (64, 256, 3, 1, 1, 24),
        (24, 256, 3, 1, 3, 200),
    ];
    let weight_arena = WeightArena::new();
    for (cin, n, taps, stride, dilation, steps) in cases {
        let mut rng = Rng(29);
        let k = taps * cin;
        let w = Matrix::pack(&weight_arena, Format::Int8, n, k, &rng.vec(n * k)).unwrap();
        let x = rng.buffer(steps, cin);
        let history = ConvOp::history(taps, stride, dilation);
        let outputs = steps / stride;
        let mut windows = Buffer::new(outputs, k);
        for (t, tap) in (0..outputs).flat_map(|t| (0..taps).map(move |tap| (t, tap))) {
            if let Some(row) = (t * stride + tap * dilation).checked_sub(history) {
                windows.row_mut(t)[tap * cin..(tap + 1) * cin].copy_from_slice(x.row(row));
            }
        }
        let mut want: Option<Vec<f32>> = None;
        each_cpu(|exec, name| {
            let mut product = Buffer::new(outputs, n);
            exec.linear(&LinearOp::new(&windows, outputs, &w), &mut product);
            let want = want.get_or_insert_with(|| product.head(outputs).to_vec());
            let spec = ConvStateSpec { slots: 1, history, channels: cin, replicate: false };
            let mut out = Buffer::new(outputs, n);
            let op = ConvOp {
                x: &x,
                spans: &[Span { slot: 0, rows: steps }],
                pre: Activation::None,
                w: &w,
                bias: None,
                taps,
                stride,
                dilation,
                act: Activation::None,
                add: false,
            };
            exec.conv(&op, &mut ConvState::new(spec), &mut out);
            assert_eq!(product.head(outputs), &want[..], "{name}: the product");
            assert_eq!(out.head(outputs), &want[..], "{name}: {cin} {n} {taps} {stride} {dilation}");
        });
    }
}

#[test]
fn many_rows_of_a_convolution_agree() {
    each_exec(|exec, name| {
        let arena = arena(exec);
        let mut rng = Rng(19);
        let (cin, taps, n, spans) = (64, 4, 6, [700, 800]);
        let x = rng.buffer(1500, cin);
        let w = Matrix::pack(&arena, Format::F32, n, taps * cin, &rng.vec(n * taps * cin)).unwrap();
        let spec = ConvStateSpec { slots: 2, history: taps - 1, channels: cin, replicate: false };
        let mut out = Buffer::new(1500, n);
        let op = ConvOp {
            x: &x,
            spans: &[Span { slot: 1, rows: spans[0] }, Span { slot: 0, rows: spans[1] }],
            pre: Activation::None,
            w: &w,
            bias: None,
            taps,
            stride: 1,
            dilation: 1,
            act: Activation::None,
            add: false,
        };
        exec.conv(&op, &mut ConvState::new(spec), &mut out);
        exec.fetch(&mut out, 1500);
        let mut first = 0;
        for rows in spans {
            let stream: Vec<Vec<f64>> = (first..first + rows).map(|r| wide(x.row(r))).collect();
            let want = reference::conv(&stream, &w.unpack(), n, taps, 1, 1).concat();
            let e = error(&out.head(first + rows)[first * n..], &want);
            assert!(e < reference::tolerance(Format::F32), "{name} {rows} rows: {e:e}");
            first += rows;
        }
    });
}

#[test]
fn replicate_padding_repeats_the_first_row() {
    each_exec(|exec, name| {
        let arena = arena(exec);
        let w = Matrix::pack(&arena, Format::F32, 1, 4, &[1.0; 4]).unwrap();
        let spec = ConvStateSpec { slots: 1, history: 2, channels: 1, replicate: true };
        let mut state = ConvState::new(spec);
        for round in 0..4 {
            if round == 2 {
                state.reset(0);
            }
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
            exec.fetch(&mut out, 1);
            assert_eq!(out.row(0)[0], [14.0, 16.0][round % 2], "{name}");
        }
    });
}

#[test]
fn a_transposed_convolution_folds_into_rows() {
    // stride 3, kernel 6: out[3 t + j] = x[t] w[j] + x[t - 1] w[3 + j]
    each_exec(|exec, name| {
        let arena = arena(exec);
        let mut rng = Rng(23);
        let (cin, cout, stride) = (10, 7, 3);
        let kernel = rng.vector(cin * cout * 2 * stride); // [cin][cout][k]
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
        let w = Matrix::pack(&arena, Format::F32, stride * cout, 2 * cin, &packed).unwrap();
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
        exec.fetch(&mut out, 4 * stride);
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
        let (kernel, bias) = (rng.vector(taps * channels), rng.vector(channels));
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
                exec.fetch(&mut out, rows);
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
fn many_rows_of_a_depthwise_convolution_are_as_few_of_them() {
    each_exec(|exec, name| {
        let mut rng = Rng(59);
        for taps in [9, 7] {
            let channels = 48;
            let (kernel, bias) = (rng.vector(taps * channels), rng.vector(channels));
            let (scale, shift) = (rng.vector(channels), rng.vector(channels));
            let spec = ConvStateSpec { slots: 4, history: taps - 1, channels, replicate: false };
            let spans = [(2, 5), (0, 40), (3, 1), (1, 60)].map(|(slot, rows)| Span { slot, rows });
            let total = spans.iter().map(|s| s.rows).sum();
            let mut run = |x: &Buffer, spans: &[Span], state: &mut ConvState| {
                let rows = spans.iter().map(|s| s.rows).sum();
                let mut out = Buffer::new(rows, channels);
                let norm = Some(RowNorm { weight: &scale, bias: Some(&shift), eps: 1e-5 });
                let (kernel, bias, act) = (&kernel, Some(&bias), Activation::Silu);
                let op = DepthwiseOp { x, spans, kernel, bias, ahead: 0, norm, act };
                exec.depthwise(&op, state, &mut out);
                exec.fetch(&mut out, rows);
                out
            };
            let (mut together, mut alone) = (ConvState::new(spec), ConvState::new(spec));
            for _ in 0..2 {
                let x = rng.buffer(total, channels);
                let all = run(&x, &spans, &mut together);
                let mut at = 0;
                for span in spans {
                    let mut part = Buffer::new(span.rows, channels);
                    (0..span.rows).for_each(|r| part.row_mut(r).copy_from_slice(x.row(at + r)));
                    let own = run(&part, &[span], &mut alone);
                    for r in 0..span.rows {
                        assert_eq!(all.row(at + r), own.row(r), "{name} slot {} row {r}", span.slot);
                    }
                    at += span.rows;
                }
            }
        }
    });
}

#[test]
fn upsampling_agrees_with_the_sum_over_taps() {
    each_exec(|exec, name| {
        let mut rng = Rng(31);
        let (channels, stride) = (9, 4);
        let kernel = rng.vector(2 * stride * channels);
        let mut state = ConvState::new(ConvStateSpec { slots: 2, history: 1, channels, replicate: false });
        let x = rng.buffer(5, channels);
        for cuts in [vec![5], vec![1, 3, 1]] {
            let mut first = 0;
            state.reset(1);
            for rows in cuts {
                let mut part = Buffer::new(rows, channels);
                (0..rows).for_each(|r| part.row_mut(r).copy_from_slice(x.row(first + r)));
                let mut out = Buffer::new(rows * stride, channels);
                let op = UpsampleOp { x: &part, spans: &[Span { slot: 1, rows }], kernel: &kernel, stride };
                exec.upsample(&op, &mut state, &mut out);
                exec.fetch(&mut out, rows * stride);
                for t in first..first + rows {
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
                        let got = out.row((t - first) * stride + j);
                        assert!(error(got, &want) < 1e-6, "{name} row {t}");
                    }
                }
                first += rows;
            }
        }
    });
}

#[test]
fn a_saved_past_continues_the_stream_in_another_slot() {
    each_exec(|exec, name| {
        let arena = arena(exec);
        let mut rng = Rng(37);
        let (channels, taps, steps) = (6, 5, 12);
        let w = Matrix::pack(&arena, Format::F32, 4, taps * channels, &rng.vec(4 * taps * channels)).unwrap();
        let x = rng.buffer(steps, channels);
        let spec = ConvStateSpec { slots: 3, history: taps - 1, channels, replicate: false };
        let step = |exec: &mut Exec, state: &mut ConvState, slot: usize, first: usize, rows: usize| {
            let mut part = Buffer::new(rows, channels);
            (0..rows).for_each(|r| part.row_mut(r).copy_from_slice(x.row(first + r)));
            let mut out = Buffer::new(rows, 4);
            let op = ConvOp {
                x: &part,
                spans: &[Span { slot, rows }],
                pre: Activation::None,
                w: &w,
                bias: None,
                taps,
                stride: 1,
                dilation: 1,
                act: Activation::None,
                add: false,
            };
            exec.conv(&op, state, &mut out);
            exec.fetch(&mut out, rows);
            out.head(rows).to_vec()
        };
        let mut state = ConvState::new(spec);
        assert_eq!(exec.save_conv(&state, 1), vec![0.0; state.slot_len()]);
        // Fewer rows than are kept, then more.
        step(exec, &mut state, 1, 0, 3);
        step(exec, &mut state, 1, 3, 5);
        let saved = exec.save_conv(&state, 1);
        assert_eq!(saved, x.head(8)[4 * channels..], "{name}");
        let want = step(exec, &mut state, 1, 8, 4);
        let mut other = ConvState::new(spec);
        for state in [&mut state, &mut other] {
            exec.restore_conv(state, 2, &saved);
            assert_eq!(exec.save_conv(state, 2), saved);
            assert_eq!(step(exec, state, 2, 8, 4), want, "{name}");
        }
        state.reset(1);
        assert_eq!(exec.save_conv(&state, 1), vec![0.0; state.slot_len()]);
        let again = step(exec, &mut state, 1, 0, 3);
        assert_eq!(again, step(exec, &mut ConvState::new(spec), 0, 0, 3), "{name}");
    });
}

/// Rows of a stream and of a neighbour before it, as one batch.
fn behind_a_neighbour(rng: &mut Rng, x: &Buffer, rows: std::ops::Range<usize>, neighbour: usize) -> Buffer {
    let mut part = Buffer::new(neighbour + rows.len(), x.cols());
    part.head_mut(neighbour).copy_from_slice(&rng.vec(neighbour * x.cols()));
    for (to, from) in rows.enumerate() {
        part.row_mut(neighbour + to).copy_from_slice(x.row(from));
    }
    part
}

fn elu(rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let row = |r: &Vec<f64>| r.iter().map(|&v| reference::activate(Activation::Elu, v)).collect();
    rows.iter().map(row).collect()
}

#[test]
fn whole_residual_blocks_agree_where_there_is_a_kernel_for_them() {
    // (width, dilation, rows of each step): whole tiles, several tiles, and parts of one.
    let cases = [
        (32, 1, vec![32, 48]),
        (64, 1, vec![16, 272, 16]),
        (64, 2, vec![48, 16]),
        (128, 1, vec![16, 144]),
        (256, 1, vec![80, 16]),
    ];
    each_exec(|exec, name| {
        let arena = arena(exec);
        let mut rng = Rng(29);
        for (width, dilation, steps) in &cases {
            let (width, dilation, hidden, taps) = (*width, *dilation, width / 2, 3);
            let total = steps.iter().sum();
            let x = rng.buffer(total, width);
            let small = |v: Vec<f32>, by: usize| v.into_iter().map(|w| w / (by as f32).sqrt()).collect();
            let first: Vec<f32> = small(rng.vec(hidden * taps * width), taps * width);
            let second: Vec<f32> = small(rng.vec(width * hidden), hidden);
            let first = Matrix::pack(&arena, Format::Bf16, hidden, taps * width, &first).unwrap();
            let second = Matrix::pack(&arena, Format::Bf16, width, hidden, &second).unwrap();
            let (first_bias, second_bias) = (rng.vector(hidden), rng.vector(width));
            let history = ConvOp::history(taps, 1, dilation);
            let spec = ConvStateSpec { slots: 3, history, channels: width, replicate: false };
            let mut state = ConvState::new(spec);
            let (mut at, mut got) = (0, Vec::new());
            for &rows in steps {
                let part = behind_a_neighbour(&mut rng, &x, at..at + rows, 16);
                let mut out = Buffer::new(16 + rows, width);
                // Few rows are taken in short tiles, many in long ones.
                let op = ResidualOp {
                    x: &part,
                    spans: &[Span { slot: 0, rows: 16 }, Span { slot: 2, rows }],
                    pre: Activation::Elu,
                    snakes: None,
                    first: &first,
                    first_bias: Some(&first_bias),
                    taps,
                    dilation,
                    second: &second,
                    second_bias: Some(&second_bias),
                };
                let ran = exec.residual(&op, &mut state, &mut out);
                assert_eq!(ran, exec.device().is_some(), "{name} {width}");
                if !ran {
                    return;
                }
                exec.fetch(&mut out, 16 + rows);
                got.extend((0..rows).flat_map(|r| out.row(16 + r).to_vec()));
                at += rows;
            }
            let stream: Vec<Vec<f64>> = (0..total).map(|r| wide(x.row(r))).collect();
            let add = |rows: Vec<Vec<f64>>, bias: &[f32]| -> Vec<Vec<f64>> {
                let row = |r: Vec<f64>| r.iter().zip(bias).map(|(v, &b)| v + b as f64).collect();
                rows.into_iter().map(row).collect()
            };
            let made = reference::conv(&elu(&stream), &first.unpack(), hidden, taps, 1, dilation);
            let made =
                reference::conv(&elu(&add(made, &first_bias)), &second.unpack(), width, 1, 1, 1).concat();
            let before = stream.concat();
            let want: Vec<f64> = made
                .iter()
                .zip(&before)
                .enumerate()
                .map(|(i, (v, x))| v + x + second_bias[i % width] as f64)
                .collect();
            let e = error(&got, &want);
            assert!(e < reference::tolerance(Format::Bf16), "{name} {width} {dilation}: {e:e}");
        }
    });
}

#[test]
fn convolutions_to_and_from_samples_agree_over_tiles_of_rows() {
    each_exec(|exec, name| {
        let arena = arena(exec);
        let mut rng = Rng(31);
        for (width, outputs, taps, dilation, format) in [
            (64, 1, 3, 1, Format::Bf16),
            (16, 1, 4, 1, Format::F32),
            (128, 1, 2, 3, Format::Bf16),
            (1, 64, 7, 1, Format::F32),
            (2, 16, 4, 1, Format::Bf16),
        ] {
            let steps = [288, 16, 32];
            let total = steps.iter().sum();
            let x = rng.buffer(total, width);
            let w = Matrix::pack(&arena, format, outputs, taps * width, &rng.vec(outputs * taps * width));
            let (w, bias) = (w.unwrap(), rng.vector(outputs));
            let history = ConvOp::history(taps, 1, dilation);
            let spec = ConvStateSpec { slots: 2, history, channels: width, replicate: false };
            let mut state = ConvState::new(spec);
            let (mut at, mut got) = (0, Vec::new());
            for rows in steps {
                let part = behind_a_neighbour(&mut rng, &x, at..at + rows, 32);
                let mut out = Buffer::new(32 + rows, outputs);
                let op = ConvOp {
                    x: &part,
                    spans: &[Span { slot: 1, rows: 32 }, Span { slot: 0, rows }],
                    pre: Activation::Elu,
                    w: &w,
                    bias: Some(&bias),
                    taps,
                    stride: 1,
                    dilation,
                    act: Activation::None,
                    add: false,
                };
                exec.conv(&op, &mut state, &mut out);
                exec.fetch(&mut out, 32 + rows);
                got.extend_from_slice(&out.head(32 + rows)[32 * outputs..]);
                at += rows;
            }
            let stream: Vec<Vec<f64>> = (0..total).map(|r| wide(x.row(r))).collect();
            let want = reference::conv(&elu(&stream), &w.unpack(), outputs, taps, 1, dilation).concat();
            let want: Vec<f64> = want.iter().enumerate().map(|(i, v)| v + bias[i % outputs] as f64).collect();
            let e = error(&got, &want);
            assert!(e < reference::tolerance(format), "{name} {width} {outputs} {taps} {format:?}: {e:e}");
        }
    });
}

#[test]
fn strided_convolutions_agree_over_tiles_of_rows() {
    each_exec(|exec, name| {
        let arena = arena(exec);
        let mut rng = Rng(37);
        let (width, outputs) = (64, 128);
        // As many rows as fill a device, a long tile with a part of one, and so few that rows are gathered.
        let steps = [16 * exec.device().map_or(2, |d| d.info().processors as usize), 272, 16];
        for (taps, stride) in [(8, 4), (10, 5)] {
            let total = stride * steps.iter().sum::<usize>();
            let x = rng.buffer(total, width);
            let values: Vec<f32> = rng.vec(outputs * taps * width).iter().map(|w| w / 16.0).collect();
            let w = Matrix::pack(&arena, Format::Bf16, outputs, taps * width, &values).unwrap();
            let bias = rng.vector(outputs);
            let history = ConvOp::history(taps, stride, 1);
            let mut state =
                ConvState::new(ConvStateSpec { slots: 2, history, channels: width, replicate: false });
            let (mut at, mut got) = (0, Vec::new());
            for rows in steps {
                let beside = if rows == 272 { rows } else { 16 };
                let part =
                    behind_a_neighbour(&mut rng, &x, at * stride..(at + rows) * stride, beside * stride);
                let mut out = Buffer::new(beside + rows, outputs);
                let op = ConvOp {
                    x: &part,
                    spans: &[Span { slot: 1, rows: beside * stride }, Span { slot: 0, rows: rows * stride }],
                    pre: Activation::Elu,
                    w: &w,
                    bias: Some(&bias),
                    taps,
                    stride,
                    dilation: 1,
                    act: Activation::None,
                    add: false,
                };
                exec.conv(&op, &mut state, &mut out);
                exec.fetch(&mut out, beside + rows);
                got.extend_from_slice(&out.head(beside + rows)[beside * outputs..]);
                at += rows;
            }
            let stream: Vec<Vec<f64>> = (0..total).map(|r| wide(x.row(r))).collect();
            let want = reference::conv(&elu(&stream), &w.unpack(), outputs, taps, stride, 1).concat();
            let want: Vec<f64> = want.iter().enumerate().map(|(i, v)| v + bias[i % outputs] as f64).collect();
            let e = error(&got, &want);
            assert!(e < reference::tolerance(Format::Bf16), "{name} {taps} {stride}: {e:e}");
        }
    });
}
