//! The op suite of conformers: relative attention, strided convolutions of spectrograms, gated units, norms.

mod suite;

use suite::{Rng, arena, each_exec, error, wide};
use voce_runtime::{
    Activation, Buffer, ChunkSpan, ConvState, ConvStateSpec, DepthwiseOp, Exec, Format, FrameSpan, KvCache,
    KvFormat, KvSpec, LinearOp, Matrix, RelativeAttentionOp, RelativePositions, RowNorm, Span, SubsampleOp,
    SubsampleSpec, SubsampleState, Vector, reference,
};

/// One head's worth of everything, and what attention over it gives.
struct Heads {
    heads: usize,
    dim: usize,
    farthest: usize,
    /// `[head][distance][dim]`, as the kernels see them.
    distances: Vec<Vec<f32>>,
    positions: RelativePositions,
    content: Vector,
    position: Vector,
}

impl Heads {
    fn new(
        exec: &Exec,
        rng: &mut Rng,
        heads: usize,
        dim: usize,
        farthest: usize,
        ahead: usize,
        format: Format,
    ) -> Self {
        let arena = arena(exec);
        let n = farthest + ahead + 1;
        let packed: Vec<Matrix> =
            (0..heads).map(|_| Matrix::pack(&arena, format, n, dim, &rng.vec(n * dim)).unwrap()).collect();
        Self {
            heads,
            dim,
            farthest,
            distances: packed.iter().map(Matrix::unpack).collect(),
            positions: RelativePositions { heads: packed, farthest },
            content: rng.vector(heads * dim),
            position: rng.vector(heads * dim),
        }
    }

    /// Naive result of the row at `t` of `qkv` that sees `first..end`.
    fn want(&self, qkv: &Buffer, t: usize, first: usize, end: usize) -> Vec<f64> {
        let (h, d) = (self.heads, self.dim);
        let mut out = Vec::new();
        for head in 0..h {
            let q = &qkv.row(t)[head * d..][..d];
            let scores: Vec<f64> = (first..end)
                .map(|j| {
                    let k = &qkv.row(j)[(h + head) * d..][..d];
                    let p = &self.distances[head][(self.farthest + j - t) * d..][..d];
                    let dot = |bias: &[f32], other: &[f32]| -> f64 {
                        (0..d).map(|i| (q[i] as f64 + bias[head * d + i] as f64) * other[i] as f64).sum()
                    };
                    (dot(&self.content, k) + dot(&self.position, p)) / (d as f64).sqrt()
                })
                .collect();
            let max = scores.iter().cloned().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            for i in 0..d {
                let v = |j: usize| qkv.row(j)[(2 * h + head) * d + i] as f64;
                out.push((first..end).map(|j| weights[j - first] * v(j)).sum::<f64>() / total);
            }
        }
        out
    }

    fn run(&self, exec: &mut Exec, qkv: &Buffer, spans: &[ChunkSpan], cache: &mut KvCache) -> Buffer {
        let rows = spans.iter().map(|s| s.rows).sum();
        let mut out = Buffer::new(rows, self.heads * self.dim);
        let op = RelativeAttentionOp {
            qkv,
            spans,
            cache,
            layer: 1,
            positions: &self.positions,
            content_bias: &self.content,
            position_bias: &self.position,
        };
        exec.relative_attention(op, &mut out);
        exec.fetch(&mut out, rows);
        for s in spans {
            cache.advance(s.slot, s.rows);
        }
        out
    }
}

fn cache(h: &Heads, capacity: usize, format: KvFormat) -> KvCache {
    KvCache::new(KvSpec { layers: 2, slots: 3, kv_heads: h.heads, head_dim: h.dim, capacity, format })
}

fn rows(from: &Buffer, range: std::ops::Range<usize>) -> Buffer {
    let mut part = Buffer::new(range.len(), from.cols());
    for (to, r) in range.enumerate() {
        part.row_mut(to).copy_from_slice(from.row(r));
    }
    part
}

/// Formats of distances, and of keys and values, and what they may cost of an attention's largest value, with values in
/// -1..1; fp8 is on devices alone.
fn formats(exec: &Exec) -> &'static [(Format, KvFormat, f64)] {
    let all = &[
        (Format::F32, KvFormat::F32, 1e-5),
        (Format::Bf16, KvFormat::Bf16, 2e-2),
        (Format::Bf16, KvFormat::Fp8, 9e-2),
    ];
    if exec.device().is_some() { all } else { &all[..2] }
}

#[test]
fn relative_attention_agrees_and_does_not_depend_on_how_many_chunks_come_at_once() {
    each_exec(|exec, name| {
        let mut rng = Rng(11);
        for &(format, kv, bound) in formats(exec) {
            for (heads, dim, chunk, left, total) in [
                (2, 16, 1, 5, 40),
                (2, 20, 4, 8, 70),
                (1, 64, 7, 70, 200),
                (3, 32, 14, 70, 150),
                (2, 48, 20, 40, 130),
                (1, 128, 7, 70, 84),
                (1, 128, 20, 20, 50),
            ] {
                let h = Heads::new(exec, &mut rng, heads, dim, left + chunk - 1, chunk - 1, format);
                let qkv = rng.buffer(total, 3 * heads * dim);
                let mut first: Option<Vec<f32>> = None;
                for at_once in [1, 3, 2] {
                    let mut cache = cache(&h, left + 3 * chunk, kv);
                    let mut got = Vec::new();
                    let mut at = 0;
                    while at < total {
                        let n = (chunk * at_once).min(total - at);
                        let span = ChunkSpan { slot: 2, rows: n, chunk, left };
                        let out = h.run(exec, &rows(&qkv, at..at + n), &[span], &mut cache);
                        got.extend_from_slice(out.head(n));
                        at += n;
                    }
                    for t in 0..total {
                        let start = t / chunk * chunk;
                        let want = h.want(&qkv, t, start.saturating_sub(left), (start + chunk).min(total));
                        let e = error(&got[t * heads * dim..][..heads * dim], &want);
                        assert!(e < bound, "{name} {kv:?} chunk {chunk} left {left} row {t}: {e:e}");
                    }
                    let same = first.get_or_insert_with(|| got.clone());
                    assert!(*same == got, "{name} {kv:?} chunk {chunk}: bits depend on the cut {at_once}");
                }
            }
        }
    });
}

#[test]
fn relative_attention_over_a_whole_utterance_sees_everything() {
    each_exec(|exec, name| {
        let mut rng = Rng(12);
        let shapes = [(24, 150), (128, 77), (128, 5)];
        for (&(format, kv, bound), (dim, total)) in formats(exec).iter().flat_map(|f| shapes.map(|s| (f, s)))
        {
            let h = Heads::new(exec, &mut rng, 2, dim, 199, 199, format);
            let qkv = rng.buffer(total, 3 * 2 * dim);
            let mut cache = cache(&h, 160, kv);
            let span = ChunkSpan { slot: 0, rows: total, chunk: usize::MAX, left: 0 };
            let out = h.run(exec, &qkv, &[span], &mut cache);
            for t in 0..total {
                let e = error(out.row(t), &h.want(&qkv, t, 0, total));
                assert!(e < bound, "{name} {kv:?} {dim} row {t}: {e:e}");
            }
        }
    });
}

#[test]
fn relative_attention_that_is_kept_for_products_is_the_same() {
    each_exec(|exec, name| {
        let mut rng = Rng(14);
        for (chunk, total) in [(usize::MAX, 40), (7, 21)] {
            let h = Heads::new(exec, &mut rng, 1, 128, 99, 99, Format::Bf16);
            let qkv = rng.buffer(total, 3 * 128);
            let span = ChunkSpan { slot: 1, rows: total, chunk, left: 14 };
            let want = h.run(exec, &qkv, &[span], &mut cache(&h, 80, KvFormat::Bf16));
            let mut buffer = Buffer::new(total, 128);
            let mut kept = buffer.for_products(Format::Bf16);
            let op = RelativeAttentionOp {
                qkv: &qkv,
                spans: &[span],
                cache: &mut cache(&h, 80, KvFormat::Bf16),
                layer: 1,
                positions: &h.positions,
                content_bias: &h.content,
                position_bias: &h.position,
            };
            exec.relative_attention(op, &mut kept);
            let one: Vec<f32> = (0..128 * 128).map(|i| f32::from(u8::from(i / 128 == i % 128))).collect();
            let one = Matrix::pack(&arena(exec), Format::Bf16, 128, 128, &one).unwrap();
            let mut got = Buffer::new(total, 128);
            exec.linear(&LinearOp::new(&kept, total, &one), &mut got);
            exec.fetch(&mut got, total);
            for t in 0..total {
                let want: Vec<f64> = want.row(t).iter().map(|v| f64::from(*v)).collect();
                let e = error(got.row(t), &want);
                assert!(e < 1e-2, "{name} row {t}: {e:e}");
            }
        }
    });
}

#[test]
fn streams_of_different_chunks_do_not_meet() {
    each_exec(|exec, name| {
        let mut rng = Rng(13);
        for &(format, kv, _) in formats(exec) {
            let h = Heads::new(exec, &mut rng, 2, 32, 40, 20, format);
            let inputs: Vec<Buffer> = (0..3).map(|_| rng.buffer(42, 3 * 2 * 32)).collect();
            let shapes = [(1, 6), (7, 14), (14, 14)];
            let alone: Vec<Vec<f32>> = (0..3)
                .map(|slot| {
                    let mut cache = cache(&h, 64, kv);
                    let (chunk, left) = shapes[slot];
                    let mut got = Vec::new();
                    for at in (0..42).step_by(chunk) {
                        let span = ChunkSpan { slot, rows: chunk, chunk, left };
                        let out = h.run(exec, &rows(&inputs[slot], at..at + chunk), &[span], &mut cache);
                        got.extend_from_slice(out.head(chunk));
                    }
                    got
                })
                .collect();
            let mut cache = cache(&h, 64, kv);
            let mut got = vec![Vec::new(); 3];
            let mut at = [0; 3];
            for step in 0..42 {
                let live: Vec<usize> = (0..3).filter(|&s| step % (s + 1) == 0 && at[s] < 42).collect();
                let mut qkv = Buffer::new(64, 3 * 2 * 32);
                let (mut spans, mut row) = (Vec::new(), 0);
                for &slot in &live {
                    let (chunk, left) = shapes[slot];
                    for r in 0..chunk {
                        qkv.row_mut(row + r).copy_from_slice(inputs[slot].row(at[slot] + r));
                    }
                    spans.push(ChunkSpan { slot, rows: chunk, chunk, left });
                    row += chunk;
                }
                let out = h.run(exec, &qkv, &spans, &mut cache);
                let mut row = 0;
                for s in &spans {
                    (0..s.rows).for_each(|r| got[s.slot].extend_from_slice(out.row(row + r)));
                    row += s.rows;
                    at[s.slot] += s.rows;
                }
            }
            for slot in 0..3 {
                assert!(
                    !got[slot].is_empty() && alone[slot][..got[slot].len()] == got[slot],
                    "{name} slot {slot}"
                );
            }
        }
    });
}

/// Naive strided convolution of `[time][bins][channels]`.
fn subsampled(
    x: &[f64],
    shape: (usize, usize, usize),
    left: usize,
    kernel: &[f32],
    bias: &[f32],
) -> Vec<f64> {
    let (time, bins, channels) = shape;
    let out_channels = bias.len();
    let (out_time, out_bins) = ((time + left - 2) / 2 + 1, (bins + left - 2) / 2 + 1);
    let mut out = Vec::new();
    for t in 0..out_time {
        for f in 0..out_bins {
            for c in 0..out_channels {
                let mut sum = bias[c] as f64;
                for dt in 0..3 {
                    for df in 0..3 {
                        let (tt, ff) = ((2 * t + dt).wrapping_sub(left), (2 * f + df).wrapping_sub(left));
                        if tt < time && ff < bins {
                            let cc = if channels == 1 { 0 } else { c };
                            sum += x[(tt * bins + ff) * channels + cc]
                                * kernel[(3 * dt + df) * out_channels + c] as f64;
                        }
                    }
                }
                out.push(sum.max(0.0));
            }
        }
    }
    out
}

#[test]
fn strided_convolution_agrees_and_does_not_depend_on_the_cuts() {
    each_exec(|exec, name| {
        let mut rng = Rng(14);
        for (time, bins, channels, outputs) in
            [(29, 20, 1, 24), (30, 11, 19, 19), (1, 7, 1, 16), (2, 6, 32, 32)]
        {
            for left in [1, 2] {
                let kernel = rng.vector(9 * outputs);
                let bias = rng.vector(outputs);
                let x = rng.buffer(time, bins * channels);
                let want = subsampled(&wide(x.head(time)), (time, bins, channels), left, &kernel, &bias);
                let spec = SubsampleSpec { slots: 2, bins, channels, left };
                let cuts: &[&[usize]] = if left == 1 {
                    &[&[100]]
                } else {
                    &[&[100], &[9, 8, 8, 100], &[1, 2, 3, 100], &[5, 0, 100]]
                };
                for cut in cuts {
                    let mut state = SubsampleState::new(spec);
                    let (mut at, mut got) = (0, Vec::new());
                    for &n in *cut {
                        let n = n.min(time - at);
                        let span = FrameSpan { slot: 1, rows: n, last: at + n == time };
                        let made = state.yields(1, n, span.last);
                        let mut out = Buffer::new(made.max(1) * spec.out_bins(), outputs);
                        let op = SubsampleOp {
                            x: &rows(&x, at..at + n),
                            spans: &[span],
                            kernel: &kernel,
                            bias: Some(&bias),
                            act: Activation::Relu,
                        };
                        exec.subsample(&op, &mut state, &mut out);
                        exec.fetch(&mut out, made * spec.out_bins());
                        got.extend_from_slice(out.head(made * spec.out_bins()));
                        at += n;
                        if span.last {
                            break;
                        }
                    }
                    let e = error(&got, &want);
                    assert!(e < 1e-5, "{name} {time}x{bins}x{channels} left {left} cut {cut:?}: {e:e}");
                }
            }
        }
    });
}

#[test]
fn strided_streams_do_not_meet_and_go_on_after_a_restart() {
    each_exec(|exec, name| {
        let mut rng = Rng(17);
        let (bins, outputs) = (9, 16);
        let (kernel, bias) = (rng.vector(9 * outputs), rng.vector(outputs));
        let inputs: Vec<Buffer> = (0..3).map(|_| rng.buffer(20, bins)).collect();
        let spec = SubsampleSpec { slots: 3, bins, channels: 1, left: 2 };
        let mut state = SubsampleState::new(spec);
        let (mut at, mut got) = ([0usize; 3], vec![Vec::new(); 3]);
        // Time rows of each stream in each step: odd ones, none, fewer than are kept.
        for (step, counts) in [[3, 1, 0], [1, 1, 5], [0, 4, 2], [9, 9, 9], [7, 5, 4]].iter().enumerate() {
            if step == 2 {
                // What was kept moves through the host; the slot is anew in between.
                let (seen, rows) = exec.save_subsample(&state, 1);
                state.reset(1);
                assert_eq!(exec.save_subsample(&state, 1), (0, vec![0.0; rows.len()]), "{name}");
                exec.restore_subsample(&mut state, 1, seen, &rows);
            }
            let spans: Vec<FrameSpan> = (0..3)
                .map(|slot| FrameSpan { slot, rows: counts[slot], last: at[slot] + counts[slot] == 20 })
                .collect();
            let mut x = Buffer::new(counts.iter().sum(), bins);
            let mut row = 0;
            for s in &spans {
                for r in 0..s.rows {
                    x.row_mut(row).copy_from_slice(inputs[s.slot].row(at[s.slot] + r));
                    row += 1;
                }
                at[s.slot] += s.rows;
            }
            let made: Vec<usize> = spans.iter().map(|s| state.yields(s.slot, s.rows, s.last)).collect();
            let rows = made.iter().sum::<usize>() * spec.out_bins();
            let mut out = Buffer::new(rows.max(1), outputs);
            let (kernel, bias) = (&kernel, Some(&bias));
            let op = SubsampleOp { x: &x, spans: &spans, kernel, bias, act: Activation::Relu };
            exec.subsample(&op, &mut state, &mut out);
            exec.fetch(&mut out, rows);
            let mut first = 0;
            for (slot, made) in made.iter().enumerate() {
                (first..first + made * spec.out_bins()).for_each(|r| got[slot].extend_from_slice(out.row(r)));
                first += made * spec.out_bins();
            }
        }
        for slot in 0..3 {
            let want = subsampled(&wide(inputs[slot].head(20)), (20, bins, 1), 2, &kernel, &bias);
            assert!(error(&got[slot], &want) < 1e-5, "{name} slot {slot}");
        }
    });
}

#[test]
fn centred_depthwise_convolution_with_a_norm_agrees() {
    each_exec(|exec, name| {
        let mut rng = Rng(15);
        let (channels, taps, steps) = (37, 9, 14);
        let (kernel, weight, bias) =
            (rng.vector(taps * channels), rng.vector(channels), rng.vector(channels));
        let x = rng.buffer(steps, channels);
        for normed in [false, true] {
            let mut state =
                ConvState::new(ConvStateSpec { slots: 1, history: taps / 2, channels, replicate: false });
            let mut out = Buffer::new(steps, channels);
            let norm = normed.then_some(RowNorm { weight: &weight, bias: Some(&bias), eps: 1e-5 });
            let op = DepthwiseOp {
                x: &x,
                spans: &[Span { slot: 0, rows: steps }],
                kernel: &kernel,
                bias: Some(&bias),
                ahead: taps / 2,
                norm,
                act: Activation::Silu,
            };
            exec.depthwise(&op, &mut state, &mut out);
            exec.fetch(&mut out, steps);
            for t in 0..steps {
                let mut row: Vec<f64> = (0..channels)
                    .map(|c| {
                        let tap = |i: usize| {
                            let at = (t + i).checked_sub(taps / 2).filter(|&at| at < steps)?;
                            Some(x.row(at)[c] as f64 * kernel[i * channels + c] as f64)
                        };
                        bias[c] as f64 + (0..taps).filter_map(tap).sum::<f64>()
                    })
                    .collect();
                if normed {
                    row = reference::norm(&row, 1e-5, true);
                    row.iter_mut().enumerate().for_each(|(c, v)| *v = *v * weight[c] as f64 + bias[c] as f64);
                }
                let want: Vec<f64> = row.iter().map(|&v| reference::activate(Activation::Silu, v)).collect();
                assert!(error(out.row(t), &want) < 1e-5, "{name} normed {normed} row {t}");
            }
        }
    });
}

#[test]
fn gated_units_and_norms_in_place_agree() {
    each_exec(|exec, name| {
        let mut rng = Rng(16);
        for n in [1, 16, 37, 128, 1300] {
            let x = rng.buffer(5, 2 * n);
            let mut out = Buffer::new(5, n);
            exec.glu(&x, 5, &mut out);
            exec.fetch(&mut out, 5);
            let (weight, bias) = (rng.vector(n), rng.vector(n));
            let mut normed = rows(&out, 0..5);
            exec.normalize(&RowNorm { weight: &weight, bias: Some(&bias), eps: 1e-5 }, &mut normed, 5);
            exec.fetch(&mut normed, 5);
            for r in 0..5 {
                let want: Vec<f64> =
                    (0..n).map(|i| x.row(r)[i] as f64 / (1.0 + (-x.row(r)[n + i] as f64).exp())).collect();
                assert!(error(out.row(r), &want) < 1e-5, "{name} glu {n}");
                let want: Vec<f64> = reference::norm(&wide(out.row(r)), 1e-5, true)
                    .iter()
                    .enumerate()
                    .map(|(i, v)| v * weight[i] as f64 + bias[i] as f64)
                    .collect();
                assert!(error(normed.row(r), &want) < 1e-4, "{name} norm {n}");
            }
        }
    });
}
