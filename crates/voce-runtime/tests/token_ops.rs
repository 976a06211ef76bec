//! Tokens that a device decides about, sources that rows look at, guidance, and draws from long rows.

mod suite;

use suite::{Rng, each_cpu, each_exec, error};
use voce_runtime::{
    AttentionOp, BranchOp, Buffer, CrossAttentionOp, Exec, Guide, KvCache, KvFormat, KvSpec, MAX_SAMPLED,
    SampleOp, SampleRow, Sampling, Span, TokenMove, Tokens,
};

fn tokens(exec: &mut Exec, slots: usize, cols: usize) -> Tokens {
    let mut tokens = Tokens::new(slots, cols, 0);
    let all: Vec<usize> = (0..slots).collect();
    let values: Vec<u32> = (0..(slots * cols) as u32).collect();
    exec.set_tokens(&mut tokens, &all, 0, &values);
    tokens
}

#[test]
fn a_drawn_token_decides_what_stands_beside_it() {
    each_exec(|exec, name| {
        let mut tokens = tokens(exec, 4, 5);
        exec.set_tokens(&mut tokens, &[0, 2, 3], 4, &[7, 9, 7]);
        let (then, otherwise) = ([100, 101, 110, 111, 120, 121], [200, 201, 210, 211, 220, 221]);
        let op =
            BranchOp { slots: &[3, 2, 0], drawn: 4, key: 7, column: 1, then: &then, otherwise: &otherwise };
        exec.branch_tokens(&op, &mut tokens);
        exec.fetch_tokens(&mut tokens);
        assert_eq!(tokens.row(0), [0, 120, 121, 3, 7], "{name}");
        assert_eq!(tokens.row(1), [5, 6, 7, 8, 9], "{name}: not named");
        assert_eq!(tokens.row(2), [10, 210, 211, 13, 9], "{name}");
        assert_eq!(tokens.row(3), [15, 100, 101, 18, 7], "{name}");
    });
}

#[test]
fn tokens_move_between_lists_and_within_one() {
    each_exec(|exec, name| {
        let from = tokens(exec, 3, 4);
        let mut to = Tokens::new(2, 3, 50);
        let at = |from, to| TokenMove { from, to };
        exec.move_tokens(&from, &[at([2, 3], [0, 0]), at([0, 1], [1, 2])], &mut to);
        exec.copy_tokens(&[at([0, 0], [0, 1]), at([1, 2], [0, 2])], &mut to);
        exec.fetch_tokens(&mut to);
        assert_eq!((to.row(0), to.row(1)), (&[11, 11, 1][..], &[50, 50, 1][..]), "{name}");
    });
}

#[test]
fn tokens_out_of_range_are_refused() {
    each_cpu(|exec, name| {
        let mut tokens = Tokens::new(2, 2, 0);
        let refused =
            |f: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
        let bad = [TokenMove { from: [2, 0], to: [0, 0] }];
        assert!(refused(&mut || exec.copy_tokens(&bad, &mut tokens)), "{name}: a row");
        let own = BranchOp { slots: &[0], drawn: 1, key: 0, column: 0, then: &[1, 2], otherwise: &[3, 4] };
        assert!(refused(&mut || exec.branch_tokens(&own, &mut tokens)), "{name}: the drawn column");
    });
}

#[test]
fn rows_are_guided_away_from_others() {
    each_exec(|exec, name| {
        let before = Rng(3).buffer(5, 300);
        let mut x = before.clone();
        let guides = [Guide { row: 0, without: 4, by: 2.0 }, Guide { row: 2, without: 3, by: 1.0 }];
        exec.guide_rows(&guides, &mut x);
        exec.fetch(&mut x, 5);
        let row = |r: usize, w: usize, by: f64| -> Vec<f64> {
            let pairs = before.row(r).iter().zip(before.row(w));
            pairs.map(|(&a, &b)| f64::from(b) + (f64::from(a) - f64::from(b)) * by).collect()
        };
        assert!(error(x.row(0), &row(0, 4, 2.0)) < 1e-6, "{name}");
        assert!(error(x.row(2), &row(2, 3, 1.0)) < 1e-6, "{name}");
        for r in [1, 3, 4] {
            assert_eq!(x.row(r), before.row(r), "{name}: others stay");
        }
    });
}

/// Attention of a query over rows of keys and values, in f64.
fn attended(q: &[f32], kv: &Buffer, (first, positions): (usize, usize), head: usize, dim: usize) -> Vec<f64> {
    let heads = kv.cols() / 3 / dim;
    let part = |r: usize, which: usize| &kv.row(first + r)[(which * heads + head) * dim..][..dim];
    let scores: Vec<f64> = (0..positions)
        .map(|r| {
            q.iter().zip(part(r, 1)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
                / (dim as f64).sqrt()
        })
        .collect();
    let top = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    let value = |d: usize| (0..positions).map(|r| weights[r] * f64::from(part(r, 2)[d])).sum::<f64>() / total;
    (0..dim).map(value).collect()
}

#[test]
fn rows_look_at_sources_and_leave_them_as_they_are() {
    each_exec(|exec, name| {
        for (format, dim, tolerance) in
            [(KvFormat::F32, 16, 1e-5), (KvFormat::F32, 64, 1e-5), (KvFormat::Bf16, 32, 2e-2)]
        {
            let (heads, lengths) = (3, [37, 1]);
            let spec = KvSpec { layers: 2, slots: 2, kv_heads: heads, head_dim: dim, capacity: 40, format };
            let mut rng = Rng(11);
            let mut cache = KvCache::new(spec);
            let kv = rng.buffer(38, 3 * heads * dim);
            let mut out = Buffer::new(38, heads * dim);
            let spans: Vec<Span> =
                lengths.iter().enumerate().map(|(slot, &rows)| Span { slot, rows }).collect();
            let op = AttentionOp {
                qkv: &kv,
                spans: &spans,
                cache: &mut cache,
                layer: 1,
                heads,
                window: None,
                norms: None,
                rope: None,
            };
            exec.attention(op, &mut out);
            spans.iter().for_each(|s| cache.advance(s.slot, s.rows));
            let q = rng.buffer(24, heads * dim);
            // The first source is looked at by many, before and after the other.
            let looks = [Span { slot: 0, rows: 20 }, Span { slot: 1, rows: 1 }, Span { slot: 0, rows: 3 }];
            let mut seen = Buffer::new(24, heads * dim);
            let op = CrossAttentionOp { q: &q, spans: &looks, cache: &mut cache, layer: 1, heads };
            exec.cross_attention(op, &mut seen);
            exec.fetch(&mut seen, 24);
            for r in 0..24 {
                let source = if r == 20 { (37, 1) } else { (0, 37) };
                for h in 0..heads {
                    let want = attended(&q.row(r)[h * dim..][..dim], &kv, source, h, dim);
                    let e = error(&seen.row(r)[h * dim..][..dim], &want);
                    assert!(e < tolerance, "{name} {format:?} row {r} head {h}: {e:e}");
                }
            }
            // A row alone gives the bits that it gives among others, and what was looked at is still there.
            let mut one = Buffer::new(1, heads * dim);
            one.head_mut(1).copy_from_slice(q.row(22));
            let mut alone = Buffer::new(1, heads * dim);
            let span = [Span { slot: 0, rows: 1 }];
            let op = CrossAttentionOp { q: &one, spans: &span, cache: &mut cache, layer: 1, heads };
            exec.cross_attention(op, &mut alone);
            exec.fetch(&mut alone, 1);
            assert_eq!(alone.row(0), seen.row(22), "{name} {format:?}");
            assert_eq!((cache.position(0), cache.position(1)), (37, 1));
        }
    });
}

#[test]
fn tokens_are_drawn_from_rows_of_any_length_up_to_the_longest() {
    let mut rng = Rng(8);
    for n in [12_288, 12_289, 32_000, MAX_SAMPLED] {
        let mut x = rng.buffer(3, n);
        x.head_mut(3).iter_mut().for_each(|v| *v *= 5.0);
        let hot = Sampling { temperature: 0.7, top_k: 25, seed: 3, ..Sampling::default() };
        let of = [hot, Sampling::default(), Sampling { top_k: 0, top_p: 0.4, ..hot }];
        let rows: Vec<SampleRow> =
            of.iter().enumerate().map(|(slot, s)| SampleRow { slot, step: 9, sampling: *s }).collect();
        let mut drawn: Option<Vec<u32>> = None;
        each_exec(|exec, name| {
            let mut tokens = Tokens::new(3, 1, 0);
            let op = SampleOp { logits: (&x).into(), rows: &rows, column: 0, history: None, next: None };
            exec.sample(op, &mut tokens);
            exec.fetch_tokens(&mut tokens);
            let got: Vec<u32> = (0..3).map(|slot| tokens.row(slot)[0]).collect();
            let best = (0..n).max_by(|a, b| x.row(1)[*a].total_cmp(&x.row(1)[*b])).unwrap();
            assert_eq!(got[1] as usize, best, "{name}: {n}");
            assert_eq!(*drawn.get_or_insert_with(|| got.clone()), got, "{name}: {n}");
        });
    }
}

#[test]
fn a_row_that_is_too_long_is_refused() {
    each_cpu(|exec, name| {
        let x = Buffer::new(1, MAX_SAMPLED + 1);
        let rows = [SampleRow { slot: 0, step: 0, sampling: Sampling::default() }];
        let mut tokens = Tokens::new(1, 1, 0);
        let op = SampleOp { logits: x.view(), rows: &rows, column: 0, history: None, next: None };
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| exec.sample(op, &mut tokens)));
        assert!(refused.is_err(), "{name}");
    });
}
