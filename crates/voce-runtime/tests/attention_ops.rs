//! The op suite's part for causal attention: rings, spans, rotation, norms of heads, and pasts that are copied.

mod suite;

use suite::{Rng, each_exec, error, wide};
use voce_runtime::{
    AttentionOp, Buffer, Exec, HeadNormOp, HeadNorms, KvCache, KvFormat, KvIndex, KvSpec, Rope, RopeStyle,
    Span, reference,
};

/// How keys and values are kept, and what that may cost of an attention's largest value, with values in -1..1; fp8 is on
/// devices alone.
fn kv_formats(exec: &Exec) -> &'static [(KvFormat, f64)] {
    let all = &[(KvFormat::F32, 1e-5), (KvFormat::Bf16, 2e-2), (KvFormat::Fp8, 9e-2)];
    if exec.device().is_some() { all } else { &all[..2] }
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
        let op = AttentionOp {
            qkv: &part,
            spans: &spans,
            cache: &mut cache,
            layer: 1,
            heads,
            window,
            norms: None,
            rope,
        };
        exec.attention(op, &mut out);
        cache.advance(slot, rows);
        exec.fetch(&mut out, rows);
        outs.extend((0..rows).map(|r| out.row(r).to_vec()));
        at += rows;
    }
    outs
}

/// Rows of few frames at once over rings that have come round.
#[test]
fn a_few_rows_of_a_slot_see_long_pasts() {
    // Heads, key heads, their dimensions, rows at once.
    let cases = [
        (2, 2, 64, 2),
        (2, 2, 64, 8),
        (4, 2, 64, 4),
        (8, 1, 64, 1),
        (2, 2, 64, 9),
        (2, 1, 128, 2),
        (3, 1, 128, 1),
    ];
    for (heads, kv_heads, dim, cut) in cases {
        each_exec(|exec, name| {
            let (window, steps) = (150, 360 / cut * cut);
            let qkv = Rng(3 + cut as u64).buffer(steps, (heads + 2 * kv_heads) * dim);
            let rope = Rope::new(RopeStyle::Interleaved, dim, 10_000.0, 64);
            let (format, capacity) = (KvFormat::Bf16, window + cut - 1);
            let spec = KvSpec { layers: 2, slots: 2, kv_heads, head_dim: dim, capacity, format };
            let cuts = vec![cut; steps / cut];
            let got = attend(exec, spec, heads, Some(window), Some(&rope), &qkv, &cuts, 1);
            let pick = |offset: usize, turn: bool| -> Vec<Vec<f64>> {
                let row = |t: usize| {
                    let mut v = qkv.row(t)[offset * dim..][..dim].to_vec();
                    if turn {
                        rope.rotate(t, &mut v);
                    }
                    wide(&v)
                };
                (0..steps).map(row).collect()
            };
            for h in 0..heads {
                let kv = h * kv_heads / heads;
                let (q, k) = (pick(h, true), pick(heads + kv, true));
                let v = pick(heads + kv_heads + kv, false);
                let want = reference::attention(&q, &k, &v, Some(window));
                for (t, want) in want.iter().enumerate() {
                    let e = error(&got[t][h * dim..(h + 1) * dim], want);
                    assert!(e < 2e-2, "{name} {heads}/{kv_heads} of {dim} cut {cut} head {h} t {t}: {e:e}");
                }
            }
        });
    }
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
        (20, 1, 8, Some(12), RopeStyle::Halves),
        (1, 1, 256, None, RopeStyle::Interleaved),
        (4, 2, 64, None, RopeStyle::Halves),
        (2, 1, 128, Some(9), RopeStyle::Interleaved),
        (2, 2, 128, None, RopeStyle::Interleaved),
    ];
    each_exec(|exec, name| {
        let mut rng = Rng(11);
        for (heads, kv_heads, dim, window, style) in cases {
            let steps = 21;
            let qkv = rng.buffer(steps, (heads + 2 * kv_heads) * dim);
            let rope = Rope::new(style, dim, 10_000.0, 8);
            for &(format, bound) in kv_formats(exec) {
                let capacity = window.map_or(steps, |w| w + 6);
                let spec = KvSpec { layers: 2, slots: 2, kv_heads, head_dim: dim, capacity, format };
                let whole = attend(exec, spec, heads, window, Some(&rope), &qkv, &[7, 7, 7], 1);
                let single = attend(exec, spec, heads, window, Some(&rope), &qkv, &[1; 21], 0);
                if exec.device().is_none() {
                    assert_eq!(whole, single, "{name} cuts change the result");
                }
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
                    for (t, want) in want.iter().enumerate() {
                        let part = h * dim..(h + 1) * dim;
                        let e = error(&whole[t][part.clone()], want).max(error(&single[t][part], want));
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
fn two_rows_of_a_stream_that_has_heard_much_are_as_one_after_the_other() {
    const STEPS: usize = 180;
    each_exec(|exec, name| {
        let mut rng = Rng(12);
        for (heads, kv_heads, dim, window) in [(2, 2, 64, Some(150)), (2, 1, 128, Some(70)), (3, 1, 16, None)]
        {
            let qkv = rng.buffer(STEPS, (heads + 2 * kv_heads) * dim);
            let rope = Rope::new(RopeStyle::Interleaved, dim, 10_000.0, 64);
            for &(format, bound) in kv_formats(exec) {
                // The ring goes round under the windows.
                let capacity = window.map_or(STEPS, |w| w + 2);
                let spec = KvSpec { layers: 2, slots: 2, kv_heads, head_dim: dim, capacity, format };
                let pairs = attend(exec, spec, heads, window, Some(&rope), &qkv, &[2; STEPS / 2], 1);
                let single = attend(exec, spec, heads, window, Some(&rope), &qkv, &[1; STEPS], 1);
                for (t, (pair, one)) in pairs.iter().zip(&single).enumerate() {
                    let e = error(pair, &wide(one));
                    assert!(e < bound, "{name} {format:?} heads {heads}/{kv_heads} dim {dim} t {t}: {e:e}");
                }
            }
        }
    });
}

/// Attention over one layer, with norms of heads and rotation or without both.
fn alone<'a>(
    qkv: &'a Buffer,
    spans: &'a [Span],
    cache: &'a mut KvCache,
    heads: usize,
    with: Option<(HeadNorms<'a>, &'a Rope)>,
) -> AttentionOp<'a> {
    let (norms, rope) = with.unzip();
    AttentionOp { qkv, spans, cache, layer: 0, heads, window: None, norms, rope }
}

#[test]
fn many_rows_that_see_little_are_as_each_of_them_alone() {
    let slots = 140;
    each_exec(|exec, name| {
        let mut rng = Rng(19);
        for (heads, kv_heads, dim) in [(2, 2, 64), (4, 2, 64), (2, 2, 128), (4, 2, 128)] {
            let rope = Rope::new(RopeStyle::Halves, dim, 1e4, 14);
            let (query, key) = (rng.vector(dim), rng.vector(dim));
            let norms = HeadNorms { query: &query, key: &key, eps: 1e-6 };
            let spec =
                KvSpec { layers: 1, slots, kv_heads, head_dim: dim, capacity: 20, format: KvFormat::Bf16 };
            let (mut many, mut few) = (KvCache::new(spec), KvCache::new(spec));
            let all: Vec<Span> = (0..slots).map(|slot| Span { slot, rows: 1 }).collect();
            for step in 0..3 {
                let qkv = rng.buffer(slots, (heads + 2 * kv_heads) * dim);
                let mut got = Buffer::new(slots, heads * dim);
                if !exec.norms_heads(&all, heads / kv_heads) {
                    assert!(exec.shares_memory(), "{name}");
                    return;
                }
                exec.attention(alone(&qkv, &all, &mut many, heads, Some((norms, &rope))), &mut got);
                exec.fetch(&mut got, slots);
                for slot in [0, 1, 77, slots - 1] {
                    let mut row = Buffer::new(1, qkv.cols());
                    row.row_mut(0).copy_from_slice(qkv.row(slot));
                    let (spans, mut want) = ([Span { slot, rows: 1 }], Buffer::new(1, heads * dim));
                    exec.attention(alone(&row, &spans, &mut few, heads, Some((norms, &rope))), &mut want);
                    exec.fetch(&mut want, 1);
                    few.advance(slot, 1);
                    let e = error(got.row(slot), &wide(want.row(0)));
                    assert!(e < 1e-5, "{name} {heads}/{kv_heads} dim {dim} step {step} slot {slot}: {e:e}");
                }
                (0..slots).for_each(|slot| many.advance(slot, 1));
            }
            assert!(exec.attended().iter().any(|a| a.kernel.starts_with("decode_short")), "{name}");
        }
    });
}

#[test]
fn heads_normed_on_the_way_are_as_normed_before() {
    each_exec(|exec, name| {
        let mut rng = Rng(17);
        for (heads, kv_heads, dim) in [(2, 2, 64), (2, 1, 128), (4, 2, 64), (3, 1, 64), (1, 1, 128)] {
            let (query, key) = (rng.vector(dim), rng.vector(dim));
            let qkv = rng.buffer(20, (heads + 2 * kv_heads) * dim);
            // The table ends before the last rows.
            let rope = Rope::new(RopeStyle::Halves, dim, 1e4, 14);
            let spec =
                KvSpec { layers: 1, slots: 2, kv_heads, head_dim: dim, capacity: 20, format: KvFormat::Bf16 };
            let (mut fused, mut apart) = (KvCache::new(spec), KvCache::new(spec));
            let norms = HeadNorms { query: &query, key: &key, eps: 1e-6 };
            for t in 0..qkv.rows() {
                let mut row = Buffer::new(1, qkv.cols());
                row.row_mut(0).copy_from_slice(qkv.row(t));
                let spans = [Span { slot: 1, rows: 1 }];
                let mut got = [Buffer::new(1, heads * dim), Buffer::new(1, heads * dim)];
                if exec.norms_heads(&spans, heads / kv_heads) {
                    exec.attention(alone(&row, &spans, &mut fused, heads, Some((norms, &rope))), &mut got[0]);
                    exec.fetch(&mut got[0], 1);
                    fused.advance(1, 1);
                }
                exec.head_norm(
                    &HeadNormOp { spans: &spans, cache: &apart, heads, norms, rope: Some(&rope) },
                    &mut row,
                );
                exec.attention(alone(&row, &spans, &mut apart, heads, None), &mut got[1]);
                exec.fetch(&mut got[1], 1);
                apart.advance(1, 1);
                if exec.norms_heads(&spans, heads / kv_heads) {
                    let e = error(got[0].row(0), &wide(got[1].row(0)));
                    // Values near the middle between two bf16 may fall to either.
                    assert!(e < 5e-3, "{name} {heads}/{kv_heads} x {dim} row {t}: {e:e}");
                }
            }
        }
    });
}

/// A row's attention over `past` and itself (the last of `keys` and `values`), per query head.
fn attend_over(q: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>]) -> Vec<f64> {
    let dim = q.len();
    let scores: Vec<f64> = keys
        .iter()
        .map(|k| q.iter().zip(k).map(|(a, b)| (a * b) as f64).sum::<f64>() / (dim as f64).sqrt())
        .collect();
    let top = scores.iter().cloned().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..dim).map(|d| weights.iter().zip(values).map(|(w, v)| w * v[d] as f64).sum::<f64>() / total).collect()
}

#[test]
fn a_long_past_is_read_whole_alone_and_among_many() {
    let (past, slots, heads, kv_heads) = (700, 9, 4, 2);
    each_exec(|exec, name| {
        let mut rng = Rng(61);
        let windows = |&(format, bound)| {
            [(40, None), (40, Some(300)), (64, None), (128, Some(300))].map(|w| (format, w, bound))
        };
        for (format, (dim, window), bound) in kv_formats(exec).iter().flat_map(windows) {
            let capacity = window.unwrap_or(past + 1);
            let spec = KvSpec { layers: 2, slots, kv_heads, head_dim: dim, capacity, format };
            let seen = window.unwrap_or(past + 1) - 1;
            let values = rng.vec(2 * 2 * kv_heads * seen * dim);
            let qkv = rng.buffer(slots, (heads + 2 * kv_heads) * dim);
            // The last slot's row, alone and behind rows of every other slot.
            let mut got = Vec::new();
            for first in [slots - 1, 0] {
                let mut cache = KvCache::new(spec);
                exec.reserve_cache(&mut cache).unwrap();
                exec.write_cache(&mut cache, slots - 1, past - seen..past, &values);
                cache.advance(slots - 1, past);
                let spans: Vec<Span> = (first..slots).map(|slot| Span { slot, rows: 1 }).collect();
                let mut part = Buffer::new(spans.len(), qkv.cols());
                (0..spans.len()).for_each(|r| part.row_mut(r).copy_from_slice(qkv.row(first + r)));
                let mut out = Buffer::new(spans.len(), heads * dim);
                let op = AttentionOp {
                    qkv: &part,
                    spans: &spans,
                    cache: &mut cache,
                    layer: 1,
                    heads,
                    window,
                    norms: None,
                    rope: None,
                };
                exec.attention(op, &mut out);
                exec.fetch(&mut out, spans.len());
                got.push(out.row(spans.len() - 1).to_vec());
                // Half a unit of the last place; the smallest codes of e4m3 are further apart.
                let step = if format == KvFormat::Fp8 { 1.0 / 16.0 } else { 1.0 / 256.0 };
                let kept = exec.read_cache(&cache, slots - 1, past - seen + 3..past);
                let given = values.chunks_exact(2 * seen * dim).flat_map(|v| &v[6 * dim..]);
                assert!(
                    kept.iter().zip(given).all(|(a, b)| (a - b).abs() <= b.abs() * step + 1e-5),
                    "{name} rows kept"
                );
            }
            // A device reads in shorter parts when it has few rows.
            let room = if exec.device().is_some() { 1e-5 } else { 0.0 };
            let apart = got[0].iter().zip(&got[1]).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(apart <= room, "{name} {format:?}: neighbours change a row by {apart}");
            let row = qkv.row(slots - 1);
            for h in 0..heads {
                let kv = h / (heads / kv_heads);
                let own = |offset: usize| row[(offset + kv) * dim..][..dim].to_vec();
                let kept = |which: usize| {
                    let ring = &values[(kv_heads + kv) * 2 * seen * dim..];
                    (0..seen).map(move |p| ring[(2 * p + which) * dim..][..dim].to_vec())
                };
                let keys: Vec<_> = kept(0).chain([own(heads)]).collect();
                let held: Vec<_> = kept(1).chain([own(heads + kv_heads)]).collect();
                let want = attend_over(&row[h * dim..][..dim], &keys, &held);
                let e = error(&got[0][h * dim..][..dim], &want);
                assert!(e < bound, "{name} {format:?} {window:?} head {h}: {e:e}");
            }
        }
    });
}

#[test]
fn rows_together_after_a_long_past_agree_with_rows_alone() {
    let (past, heads, dim, steps) = (400, 2, 64, 5);
    each_exec(|exec, name| {
        let mut rng = Rng(71);
        for &(format, bound) in kv_formats(exec) {
            for window in [None, Some(290)] {
                let capacity = window.map_or(past + steps, |w| w + steps);
                let spec = KvSpec { layers: 1, slots: 1, kv_heads: heads, head_dim: dim, capacity, format };
                let kept = window.unwrap_or(past) - 1;
                let values = rng.vec(2 * heads * kept * dim);
                let qkv = rng.buffer(steps, 3 * heads * dim);
                let mut runs = [Vec::new(), Vec::new()];
                for (got, rows) in runs.iter_mut().zip([steps, 1]) {
                    let mut cache = KvCache::new(spec);
                    exec.write_cache(&mut cache, 0, past - kept..past, &values);
                    cache.advance(0, past);
                    for at in (0..steps).step_by(rows) {
                        let mut part = Buffer::new(rows, qkv.cols());
                        (0..rows).for_each(|r| part.row_mut(r).copy_from_slice(qkv.row(at + r)));
                        let mut out = Buffer::new(rows, heads * dim);
                        let (qkv, spans) = (&part, &[Span { slot: 0, rows }]);
                        let op = AttentionOp {
                            qkv,
                            spans,
                            cache: &mut cache,
                            layer: 0,
                            heads,
                            window,
                            norms: None,
                            rope: None,
                        };
                        exec.attention(op, &mut out);
                        exec.fetch(&mut out, rows);
                        cache.advance(0, rows);
                        got.extend_from_slice(out.head(rows));
                    }
                }
                let e = error(&runs[0], &wide(&runs[1]));
                assert!(e < bound, "{name} {format:?} {window:?}: {e:e}");
            }
        }
    });
}

#[test]
fn spans_of_one_attention_do_not_meet() {
    let (heads, kv_heads, dim, window) = (4, 2, 24, Some(11));
    let rounds = [[1, 5, 1, 20, 0], [2, 1, 1, 17, 3], [1, 1, 1, 1, 1]];
    let rope = Rope::new(RopeStyle::Interleaved, dim, 10_000.0, 30);
    each_exec(|exec, name| {
        for &(format, _) in kv_formats(exec) {
            let mut rng = Rng(67);
            let spec = KvSpec { layers: 1, slots: 5, kv_heads, head_dim: dim, capacity: 32, format };
            let (mut together, mut alone) = (KvCache::new(spec), KvCache::new(spec));
            for rows in rounds {
                let spans: Vec<Span> =
                    rows.iter().enumerate().map(|(slot, &rows)| Span { slot, rows }).collect();
                let qkv = rng.buffer(rows.iter().sum(), (heads + 2 * kv_heads) * dim);
                let mut run = |qkv: &Buffer, spans: &[Span], cache: &mut KvCache| {
                    let rows = spans.iter().map(|s| s.rows).sum();
                    let mut out = Buffer::new(rows, heads * dim);
                    let rope = Some(&rope);
                    exec.attention(
                        AttentionOp { qkv, spans, cache, layer: 0, heads, window, norms: None, rope },
                        &mut out,
                    );
                    exec.fetch(&mut out, rows);
                    spans.iter().for_each(|s| cache.advance(s.slot, s.rows));
                    out
                };
                let all = run(&qkv, &spans, &mut together);
                let mut at = 0;
                for span in spans.iter().filter(|s| s.rows > 0) {
                    let mut part = Buffer::new(span.rows, qkv.cols());
                    (0..span.rows).for_each(|r| part.row_mut(r).copy_from_slice(qkv.row(at + r)));
                    let own = run(&part, &[*span], &mut alone);
                    for r in 0..span.rows {
                        assert_eq!(
                            own.row(r),
                            all.row(at + r),
                            "{name} {format:?} slot {} row {r}",
                            span.slot
                        );
                    }
                    at += span.rows;
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
fn a_prefix_copied_from_another_cache_continues_the_stream() {
    let spec =
        |slots, capacity, format| KvSpec { layers: 2, slots, kv_heads: 2, head_dim: 16, capacity, format };
    let qkv = Rng(41).buffer(10, 6 * 16);
    let step = |exec: &mut Exec, cache: &mut KvCache, slot, from: usize, rows| {
        let mut part = Buffer::new(rows, 6 * 16);
        (0..rows).for_each(|r| part.row_mut(r).copy_from_slice(qkv.row(from + r)));
        let mut out = Buffer::new(rows, 32);
        let spans = [Span { slot, rows }];
        let op = AttentionOp {
            qkv: &part,
            spans: &spans,
            cache,
            layer: 0,
            heads: 2,
            window: None,
            norms: None,
            rope: None,
        };
        exec.attention(op, &mut out);
        exec.fetch(&mut out, rows);
        out.row(rows - 1).to_vec()
    };
    each_exec(|exec, name| {
        for &(format, _) in kv_formats(exec) {
            let mut whole = KvCache::new(spec(1, 10, format));
            let want = step(exec, &mut whole, 0, 0, 10);
            let mut short = KvCache::new(spec(1, 6, format));
            step(exec, &mut short, 0, 0, 6);
            let mut other = KvCache::new(spec(3, 40, format));
            exec.copy_prefix(&mut other, 2, &short, 0, 6);
            assert_eq!(other.position(2), 6);
            assert_eq!(step(exec, &mut other, 2, 6, 4), want, "{name}");
            // A cache that the host has made, moved as a whole or copied from.
            let mut made = KvCache::new(spec(2, 8, format));
            let values = exec.read_cache(&other, 2, 0..6);
            let rows = values.chunks_exact(16).enumerate();
            for (i, row) in rows {
                let (kv, position, ring) = (i % 2, i / 2 % 6, i / 2 / 6);
                let at = KvIndex { layer: ring / 2, slot: 1, head: ring % 2, position };
                made.write(at, kv, row);
            }
            let mut copied = KvCache::new(spec(1, 20, format));
            exec.copy_prefix(&mut copied, 0, &made, 1, 6);
            assert_eq!(step(exec, &mut copied, 0, 6, 4), want, "{name}");
            let mut moved = KvCache::new(spec(1, 64, format));
            exec.reserve_cache(&mut made).unwrap();
            assert_eq!(exec.read_cache(&made, 1, 0..6), values);
            exec.copy_prefix(&mut moved, 0, &made, 1, 6);
            assert_eq!(step(exec, &mut moved, 0, 6, 4), want, "{name}");
        }
    });
}
