//! Sampling, embeddings and norms of heads: what a decoder has besides its products and attention.

mod suite;

use suite::{Rng, arena, each_cpu, each_exec, error};
use voce_runtime::{
    Buffer, EmbedOp, EmbedPart, EveryRow, Exec, Format, HeadNormOp, HeadNorms, KvCache, KvFormat, KvSpec,
    Rope, RopeStyle, SampleOp, SampleRow, SampledRows, Sampling, SentTokens, Span, Table, Tokens, Vector,
};

/// Logits of a few deviations, as models have them.
fn logits(rng: &mut Rng, rows: usize, n: usize) -> Buffer {
    let mut x = rng.buffer(rows, n);
    x.head_mut(rows).iter_mut().for_each(|v| *v = *v * 4.0 + *v * *v * *v * 6.0);
    x
}

fn sample(exec: &mut Exec, x: &Buffer, rows: &[SampleRow], history: Option<&mut Tokens>) -> Vec<u32> {
    let mut tokens = Tokens::new(rows.iter().map(|r| r.slot + 1).max().unwrap_or(1), 2, 77);
    let op = SampleOp { logits: x.into(), rows, column: 1, history, next: None };
    exec.sample(op, &mut tokens);
    exec.fetch_tokens(&mut tokens);
    assert!(rows.iter().all(|r| tokens.row(r.slot)[0] == 77), "other columns stay");
    rows.iter().map(|r| tokens.row(r.slot)[1]).collect()
}

/// Probabilities in the published order of steps: penalty, what is allowed, temperature, best `k`, share `p`.
fn probabilities(x: &[f32], s: &Sampling, seen: &[usize]) -> Vec<f64> {
    let mut v: Vec<f64> = x.iter().map(|&x| x as f64).collect();
    for &i in seen {
        v[i] = if v[i] < 0.0 { v[i] * s.penalty as f64 } else { v[i] / s.penalty as f64 };
    }
    for (i, v) in v.iter_mut().enumerate() {
        let allowed = i < s.below as usize || s.also == Some(i as u32);
        *v = if allowed && !v.is_nan() { *v / s.temperature as f64 } else { f64::NEG_INFINITY };
    }
    let mut order: Vec<usize> = (0..v.len()).filter(|&i| v[i] > f64::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| v[b].total_cmp(&v[a]));
    if s.top_k > 0 {
        order.truncate(s.top_k);
    }
    let weight = |i: usize| (v[i] - v[order[0]]).exp();
    let total: f64 = order.iter().map(|&i| weight(i)).sum();
    let mut kept = vec![0.0; v.len()];
    let mut before = 0.0;
    for &i in &order {
        if before == 0.0 || before < s.top_p as f64 * total {
            kept[i] = weight(i);
        }
        before += weight(i);
    }
    let total: f64 = kept.iter().sum();
    kept.iter().map(|w| w / total).collect()
}

fn settings() -> Vec<Sampling> {
    let base = Sampling { temperature: 0.9, seed: 0x1234_5678_9abc, ..Sampling::default() };
    vec![
        base,
        Sampling { top_k: 50, ..base },
        Sampling { top_k: 1, ..base },
        Sampling { top_k: 600, top_p: 0.95, ..base },
        Sampling { top_p: 0.5, temperature: 1.7, ..base },
        Sampling { top_p: 0.0, ..base },
        Sampling { top_k: 50, top_p: 0.8, penalty: 1.05, below: 20, also: Some(31), ..base },
        Sampling { top_k: 1 << 20, below: 0, also: Some(2), ..base },
        Sampling { seed: u64::MAX, temperature: 0.3, ..base },
        Sampling::default(),
    ]
}

#[test]
fn every_executor_draws_the_same_tokens_from_what_may_be_drawn() {
    let mut rng = Rng(5);
    for n in [1, 33, 700, 3072] {
        let all = settings();
        let rows: Vec<SampleRow> = (0..2 * all.len())
            .map(|i| SampleRow { slot: (i * 7) % 20, step: i as u32 / 3, sampling: all[i % all.len()] })
            .collect();
        let mut x = logits(&mut rng, rows.len(), n);
        if n > 100 {
            // What is not a number is never drawn; equal values are drawn alike.
            (x.row_mut(1)[3], x.row_mut(1)[4], x.row_mut(3)[40]) = (f32::NAN, f32::NEG_INFINITY, f32::NAN);
            (0..40).for_each(|i| x.row_mut(2)[i * 2] = 9.5);
            x.row_mut(9).fill(0.25);
        }
        let mut first: Option<Vec<u32>> = None;
        each_exec(|exec, name| {
            let mut history = Tokens::history(20, n);
            let seen: Vec<u32> = (0..n as u32).filter(|i| i % 3 == 0).collect();
            let mut bits = vec![0u32; n.div_ceil(32)];
            seen.iter().for_each(|&t| bits[t as usize / 32] |= 1 << (t % 32));
            (0..20).for_each(|slot| exec.set_tokens(&mut history, &[slot], 0, &bits));
            let got = sample(exec, &x, &rows, Some(&mut history));
            match &first {
                Some(first) => assert_eq!(&got, first, "{name} n {n}"),
                None => first = Some(got.clone()),
            }
            exec.fetch_tokens(&mut history);
            for (r, (&token, row)) in got.iter().zip(&rows).enumerate() {
                let bit = history.row(row.slot)[token as usize / 32] >> (token % 32) & 1;
                assert_eq!(bit, 1, "{name}: the drawn token is noted");
                let s = row.sampling;
                let lone = s.below == 0 && n <= 2;
                if s.temperature == 0.0 || lone {
                    continue;
                }
                let seen: Vec<usize> = (0..n).filter(|i| i % 3 == 0).collect();
                // Of values that are equal at the limit the reference takes the first ones only.
                if !(n > 100 && (r == 2 || r == 9)) {
                    let p = probabilities(x.row(r), &s, &seen)[token as usize];
                    assert!(p > 0.0, "{name} n {n} row {r}: {token} may not be drawn");
                }
            }
        });
    }
}

#[test]
fn rows_of_a_large_vocabulary_are_drawn_alike_wherever_their_keys_are_kept() {
    // Keys alone fit into the shared memory of a device, keys and weights do not.
    let base = Sampling { temperature: 0.7, seed: 3, top_k: 25, ..Sampling::default() };
    for (sampling, step) in [(base, 1), (Sampling { top_p: 0.9, ..base }, 2), (Sampling::default(), 3)] {
        let x = logits(&mut Rng(17), 2, 32_000);
        let rows = [1, 0].map(|slot| SampleRow { slot, step, sampling });
        let mut first: Option<Vec<u32>> = None;
        each_exec(|exec, name| {
            let got = sample(exec, &x, &rows, None);
            assert_eq!(&got, first.get_or_insert(got.clone()), "{name} {sampling:?}");
        });
    }
}

#[test]
fn a_row_is_drawn_alike_alone_and_among_others() {
    let mut rng = Rng(8);
    let s = Sampling { temperature: 1.0, top_k: 40, top_p: 0.9, seed: 3, ..Sampling::default() };
    let x = logits(&mut rng, 3, 500);
    each_exec(|exec, name| {
        let rows: Vec<_> = (0..3).map(|i| SampleRow { slot: 2 - i, step: i as u32, sampling: s }).collect();
        let together = sample(exec, &x, &rows, None);
        for (r, &want) in together.iter().enumerate() {
            let mut one = Buffer::new(1, 500);
            one.row_mut(0).copy_from_slice(x.row(r));
            assert_eq!(sample(exec, &one, &rows[r..=r], None), [want], "{name}");
        }
    });
}

#[test]
fn without_a_temperature_the_best_is_taken() {
    each_exec(|exec, name| {
        let mut x = Buffer::new(4, 70);
        for r in 0..4 {
            x.row_mut(r).iter_mut().enumerate().for_each(|(i, v)| *v = -(i as f32 - 35.0).abs());
        }
        (x.row_mut(0)[69], x.row_mut(0)[0]) = (f32::NAN, f32::NAN);
        x.row_mut(1)[60] = 5.0;
        x.row_mut(1)[50] = 5.0;
        x.row_mut(3).fill(f32::NAN);
        let s = Sampling::default();
        let some = Sampling { below: 20, also: Some(34), ..s };
        let rows = [s, s, some, s].map(|sampling| SampleRow { slot: 0, step: 0, sampling });
        let rows: Vec<_> = rows.into_iter().enumerate().map(|(slot, r)| SampleRow { slot, ..r }).collect();
        assert_eq!(sample(exec, &x, &rows, None), [35, 50, 34, 0], "{name}");
        // Alone and among rows that are drawn they are the same.
        for (r, want) in [35, 50, 34, 0].into_iter().enumerate() {
            let mut one = Buffer::new(1, 70);
            one.row_mut(0).copy_from_slice(x.row(r));
            assert_eq!(sample(exec, &one, &rows[r..r + 1], None), [want], "{name}");
        }
        let drawn = Sampling { temperature: 0.7, ..s };
        let mut mixed = rows.clone();
        mixed[0].sampling = drawn;
        assert_eq!(sample(exec, &x, &mixed, None)[1..], [50, 34, 0], "{name}");
        // The history notes what was taken even if the penalty is 1.
        let mut history = Tokens::history(4, 70);
        assert_eq!(sample(exec, &x, &rows, Some(&mut history)), [35, 50, 34, 0], "{name}");
        exec.fetch_tokens(&mut history);
        assert_eq!((history.row(1)[1], history.row(3)[0]), (1 << 18, 1), "{name}");
        x.row_mut(2).fill(f32::INFINITY);
        x.row_mut(3)[7] = f32::NEG_INFINITY;
        assert_eq!(sample(exec, &x, &rows, None)[2..], [0, 0], "{name}");
    });
}

#[test]
fn a_penalty_moves_the_choice_on_and_can_be_forgotten() {
    each_exec(|exec, name| {
        let x: Vec<f32> = vec![1.0, 0.98, -0.5, 0.97];
        let mut row = Buffer::new(1, 4);
        row.row_mut(0).copy_from_slice(&x);
        let mut history = Tokens::history(3, 4);
        let sampling = Sampling { penalty: 1.05, ..Sampling::default() };
        let rows = [SampleRow { slot: 2, step: 0, sampling }];
        let draws: Vec<u32> = (0..4).map(|_| sample(exec, &row, &rows, Some(&mut history))[0]).collect();
        assert_eq!(draws, [0, 1, 3, 0], "{name}");
        exec.forget(&mut history, 2);
        assert_eq!(sample(exec, &row, &rows, Some(&mut history)), [0], "{name}");
        exec.fetch_tokens(&mut history);
        assert_eq!((history.row(2), history.row(0)), (&[1u32][..], &[0u32][..]), "{name}");
        // Below 0 it multiplies: the best of two bad ones changes as well.
        row.row_mut(0).copy_from_slice(&[-1.0, -1.02, -2.0, -3.0]);
        assert_eq!(sample(exec, &row, &rows, Some(&mut history)), [1], "{name}");
    });
}

/// Draws are as frequent as their probabilities: a chi-squared sum within what one in ten thousand exceeds, for one
/// seed and many steps, and for many seeds and one step.
#[test]
fn draws_follow_the_probabilities() {
    let x = [2.0f32, 1.5, 0.3, 0.0, -0.4, 1.1, -3.0, 0.9, 0.2, -1.0];
    let base = Sampling { temperature: 0.8, seed: 42, ..Sampling::default() };
    let cases = [
        (base, 10),
        (Sampling { top_k: 5, ..base }, 5),
        (Sampling { top_p: 0.8, ..base }, 4),
        (Sampling { top_k: 6, top_p: 0.9, penalty: 1.3, ..base }, 5),
        (Sampling { temperature: 3.0, below: 4, also: Some(9), ..base }, 5),
    ];
    let mut exec = Exec::new(2).unwrap();
    const DRAWS: usize = 20_000;
    for (case, (s, classes)) in cases.into_iter().enumerate() {
        let seen = [0, 5];
        let p = probabilities(&x, &s, &seen);
        for by_seed in [false, true] {
            let rows: Vec<SampleRow> = (0..DRAWS)
                .map(|i| {
                    let seed = if by_seed { i as u64 * 3 } else { s.seed };
                    let step = if by_seed { 7 } else { i as u32 };
                    SampleRow { slot: i, step, sampling: Sampling { seed, ..s } }
                })
                .collect();
            let mut all = Buffer::new(DRAWS, x.len());
            (0..DRAWS).for_each(|r| all.row_mut(r).copy_from_slice(&x));
            let mut history = Tokens::history(DRAWS, x.len());
            let slots: Vec<usize> = (0..DRAWS).collect();
            exec.set_tokens(&mut history, &slots, 0, &vec![0b10_0001; DRAWS]);
            let mut counts = [0f64; 10];
            sample(&mut exec, &all, &rows, Some(&mut history))
                .iter()
                .for_each(|&t| counts[t as usize] += 1.0);
            let mut chi = 0.0;
            for (i, (&n, &p)) in counts.iter().zip(&p).enumerate() {
                assert!(p > 0.0 || n == 0.0, "case {case}: {i} may not be drawn");
                if p > 0.0 {
                    chi += (n - p * DRAWS as f64).powi(2) / (p * DRAWS as f64);
                }
            }
            assert_eq!(p.iter().filter(|p| **p > 0.0).count(), classes, "case {case}: {p:?}");
            // Wilson and Hilferty's approximation of the quantile at 3.7 deviations.
            let f = classes as f64 - 1.0;
            let most = f * (1.0 - 2.0 / (9.0 * f) + 3.7 * (2.0 / (9.0 * f)).sqrt()).powi(3);
            assert!(chi < most, "case {case} by seed {by_seed}: {chi} of {most}: {counts:?} {p:?}");
        }
    }
}

#[test]
fn embeddings_of_several_tables_are_summed() {
    let mut rng = Rng(11);
    let dim = 70;
    let values: Vec<Vec<f32>> = [5, 9, 4].map(|rows| rng.vec(rows * dim)).to_vec();
    each_exec(|exec, name| {
        for (format, tolerance) in [(Format::F32, 1e-6), (Format::Bf16, 0.01)] {
            let arena = arena(exec);
            let tables: Vec<Table> =
                values.iter().map(|v| Table::new(&arena, format, v.len() / dim, dim, v).unwrap()).collect();
            let mut tokens = Tokens::new(4, 3, 0);
            // The third token of slot 3 is one that its table lacks.
            exec.set_tokens(&mut tokens, &[3, 1], 0, &[4, 8, 4, 0, 2, 3]);
            exec.set_tokens(&mut tokens, &[1], 1, &[7]);
            let parts: Vec<EmbedPart<'_>> =
                tables.iter().enumerate().map(|(column, table)| EmbedPart { table, column }).collect();
            let mut out = Buffer::new(6, dim);
            out.head_mut(6).fill(9.0);
            let place = EveryRow { first: 1, step: 3 };
            exec.embed(&EmbedOp { parts: &parts, tokens: &tokens, slots: &[1, 3], place }, &mut out);
            exec.fetch(&mut out, 6);
            let row = |t: usize, r: usize, d: usize| values[t][r * dim + d] as f64;
            let want: Vec<f64> = (0..dim).map(|d| row(0, 0, d) + row(1, 7, d) + row(2, 3, d)).collect();
            assert!(error(out.row(1), &want) < tolerance, "{name} {format:?}");
            let want: Vec<f64> = (0..dim).map(|d| row(0, 4, d) + row(1, 8, d)).collect();
            assert!(error(out.row(4), &want) < tolerance, "{name} {format:?}");
            assert!([0, 2, 3, 5].iter().all(|&r| out.row(r).iter().all(|v| *v == 9.0)), "{name}: other rows");
        }
    });
}

#[test]
fn what_was_drawn_is_looked_up_at_once() {
    let mut rng = Rng(12);
    let (dim, vocab) = (40, 64);
    let values = rng.vec(vocab * dim);
    let x = logits(&mut rng, 2, vocab);
    each_exec(|exec, name| {
        for (format, temperature) in [(Format::F32, 1.0), (Format::Bf16, 1.0), (Format::F32, 0.0)] {
            let table = Table::new(&arena(exec), format, vocab, dim, &values).unwrap();
            let (mut tokens, mut out) = (Tokens::new(2, 1, 0), Buffer::new(4, dim));
            let sampling = Sampling { temperature, seed: 1, ..Sampling::default() };
            let rows = [1, 0].map(|slot| SampleRow { slot, step: 9, sampling });
            let place = EveryRow { first: 1, step: 2 };
            let next = Some(SampledRows { table: &table, out: &mut out, place, less: false });
            exec.sample(
                SampleOp { logits: x.view(), rows: &rows, column: 0, history: None, next },
                &mut tokens,
            );
            // Once more, off what the first draw has left.
            let again = rows.map(|row| SampleRow { step: 4, ..row });
            let mut left = Buffer::new(4, dim);
            exec.copy_head(&out, 0, &mut left, 4);
            let mut more = Tokens::new(2, 1, 0);
            let next = Some(SampledRows { table: &table, out: &mut left, place, less: true });
            exec.sample(
                SampleOp { logits: x.view(), rows: &again, column: 0, history: None, next },
                &mut more,
            );
            exec.fetch_tokens(&mut more);
            exec.fetch(&mut left, 4);
            exec.fetch_tokens(&mut tokens);
            exec.fetch(&mut out, 4);
            for (r, row) in rows.iter().enumerate() {
                let at = tokens.row(row.slot)[0] as usize * dim;
                let want: Vec<f64> = values[at..at + dim].iter().map(|&v| v as f64).collect();
                assert!(error(out.row(2 * r + 1), &want) < 0.005, "{name} {format:?}");
                let off = more.row(row.slot)[0] as usize * dim;
                let want: Vec<f64> = want.iter().zip(&values[off..]).map(|(w, v)| w - *v as f64).collect();
                assert!(error(left.row(2 * r + 1), &want) < 0.01, "{name} {format:?}");
                assert!(out.row(2 * r).iter().all(|v| *v == 0.0), "{name}");
            }
        }
    });
}

#[test]
fn tokens_stay_on_the_device_until_they_are_fetched() {
    each_exec(|exec, name| {
        let mut tokens = Tokens::new(3, 2, 5);
        assert_eq!((tokens.slots(), tokens.cols(), tokens.row(2)), (3, 2, &[5, 5][..]), "{name}");
        exec.set_tokens(&mut tokens, &[2, 0], 1, &[8, 9]);
        if exec.device().is_some() {
            let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tokens.row(0)[0]));
            assert!(read.is_err(), "{name}: read before it was fetched");
        }
        exec.fetch_tokens(&mut tokens);
        assert_eq!([0, 1, 2].map(|s| tokens.row(s).to_vec()), [vec![5, 9], vec![5, 5], vec![5, 8]], "{name}");
    });
}

/// A head normed and turned in f64.
fn turned(x: &[f32], w: &[f32], eps: f64, style: RopeStyle, period: f64, position: usize) -> Vec<f64> {
    let n = x.len();
    let mean = x.iter().map(|&v| (v as f64).powi(2)).sum::<f64>() / n as f64;
    let mut v: Vec<f64> = x.iter().zip(w).map(|(&x, &w)| x as f64 * w as f64 / (mean + eps).sqrt()).collect();
    for i in 0..n / 2 {
        let (s, c) = (position as f64 * period.powf(-2.0 * i as f64 / n as f64)).sin_cos();
        let (a, b) = if style == RopeStyle::Halves { (i, i + n / 2) } else { (2 * i, 2 * i + 1) };
        (v[a], v[b]) = (v[a] * c - v[b] * s, v[a] * s + v[b] * c);
    }
    v
}

#[test]
fn heads_are_normed_and_turned_and_values_stay() {
    let mut rng = Rng(13);
    let (heads, kv_heads, dim) = (4, 2, 34);
    let (query, key): (Vector, Vector) = (rng.vector(dim), rng.vector(dim));
    let cols = (heads + 2 * kv_heads) * dim;
    let x = rng.buffer(5, cols);
    let spec = KvSpec { layers: 1, slots: 3, kv_heads, head_dim: dim, capacity: 64, format: KvFormat::F32 };
    each_exec(|exec, name| {
        for style in [RopeStyle::Halves, RopeStyle::Interleaved] {
            // The table ends before the last rows.
            let rope = Rope::new(style, dim, 1e4, 12);
            let mut cache = KvCache::new(spec);
            cache.advance(2, 10);
            let spans = [Span { slot: 2, rows: 4 }, Span { slot: 0, rows: 1 }];
            let mut got = x.clone();
            let op = HeadNormOp {
                spans: &spans,
                cache: &cache,
                heads,
                norms: HeadNorms { query: &query, key: &key, eps: 1e-6 },
                rope: Some(&rope),
            };
            exec.head_norm(&op, &mut got);
            exec.fetch(&mut got, 5);
            for (r, position) in [10, 11, 12, 13, 0].into_iter().enumerate() {
                for h in 0..heads + kv_heads {
                    let part = h * dim..(h + 1) * dim;
                    let w = if h < heads { &query } else { &key };
                    let want = turned(&x.row(r)[part.clone()], w, 1e-6, style, 1e4, position);
                    assert!(error(&got.row(r)[part], &want) < 1e-5, "{name} {style:?} row {r} head {h}");
                }
                let values = (heads + kv_heads) * dim..cols;
                assert_eq!(got.row(r)[values.clone()], x.row(r)[values], "{name}: values stay");
            }
        }
    });
}

#[test]
fn whole_rows_are_normed() {
    let mut rng = Rng(14);
    let (w, x) = (rng.vector(100), rng.buffer(3, 100));
    each_exec(|exec, name| {
        let mut got = x.clone();
        exec.rms_norm(&w, 1e-5, &mut got, 2);
        exec.fetch(&mut got, 3);
        for r in 0..2 {
            let mean = x.row(r).iter().map(|&v| (v as f64).powi(2)).sum::<f64>() / 100.0;
            let scale = 1.0 / (mean + 1e-5).sqrt();
            let want: Vec<f64> =
                x.row(r).iter().zip(w.iter()).map(|(&x, &w)| x as f64 * w as f64 * scale).collect();
            assert!(error(got.row(r), &want) < 1e-6, "{name}");
        }
        assert_eq!(got.row(2), x.row(2), "{name}");
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    each_cpu(|exec, name| {
        let x = Buffer::new(1, 8);
        let rows = [SampleRow { slot: 1, step: 0, sampling: Sampling::default() }];
        let mut tokens = Tokens::new(1, 1, 0);
        let op = SampleOp { logits: x.view(), rows: &rows, column: 0, history: None, next: None };
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| exec.sample(op, &mut tokens)));
        assert!(refused.is_err(), "{name}: a slot without tokens");
    });
}

#[test]
fn tokens_that_were_sent_arrive_in_order_as_they_were_then() {
    each_exec(|exec, name| {
        let (mut tokens, mut sent) = (Tokens::new(3, 2, 7), SentTokens::default());
        assert!(exec.receive_tokens(&mut sent).is_empty(), "{name}: nothing is under way");
        exec.set_tokens(&mut tokens, &[1], 0, &[8]);
        exec.send_tokens(&tokens, &mut sent);
        for round in 0..4 {
            // The next words are there before the last ones are looked at.
            exec.set_tokens(&mut tokens, &[1, 2], 0, &[9 + round, 20 + round]);
            exec.send_tokens(&tokens, &mut sent);
            let before = if round == 0 { [7, 7, 8, 7, 7, 7] } else { [7, 7, 8 + round, 7, 19 + round, 7] };
            assert_eq!(exec.receive_tokens(&mut sent), before, "{name} round {round}");
        }
        assert_eq!(exec.receive_tokens(&mut sent), [7, 7, 12, 7, 23, 7], "{name}");
        exec.fetch_tokens(&mut tokens);
        assert_eq!(tokens.row(2), [23, 7], "{name}");
    });
}

#[test]
fn rows_that_were_sent_arrive_as_they_were_then() {
    each_exec(|exec, name| {
        let (mut x, mut sent) = (Buffer::new(3, 4), SentTokens::default());
        for round in 0..4 {
            let values: Vec<f32> = (0..8).map(|i| (round * 8 + i) as f32 - 9.5).collect();
            exec.set_rows(&mut x, &[0, 1], &values);
            // Fewer and more of them in turn: what was received before is used again where they fit.
            let rows = 2 - round % 2;
            exec.send_rows(&x, rows, &mut sent);
            // Written over while they are under way.
            exec.set_rows(&mut x, &[1, 2], &[77.0; 8]);
            let got: Vec<f32> = exec.receive_tokens(&mut sent).iter().map(|w| f32::from_bits(*w)).collect();
            assert_eq!(got, values[..4 * rows], "{name} round {round}");
        }
    });
}

#[test]
fn an_executor_that_follows_another_sees_what_that_one_wrote() {
    each_exec(|exec, name| {
        let Some(mut other) = exec.beside().unwrap() else { return };
        let mut tokens = Tokens::new(2, 2, 7);
        for round in 0..4 {
            other.set_tokens(&mut tokens, &[0, 1], 0, &[round, round + 1]);
            exec.follow(&mut other);
            exec.set_tokens(&mut tokens, &[1], 1, &[50 + round]);
            exec.fetch_tokens(&mut tokens);
            assert_eq!(tokens.row(0)[0], round, "{name}");
            assert_eq!(tokens.row(1), [round + 1, 50 + round], "{name}");
        }
    });
}
