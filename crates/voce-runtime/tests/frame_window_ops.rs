//! Attention over windows that move by whole frames: the rows of a frame see no further back than its last one.

mod suite;

use suite::{Rng, each_exec};
use voce_runtime::{AttentionOp, Buffer, KvCache, KvFormat, KvSpec, Span};

/// How keys and values are kept, and how far results may be off.
const FORMATS: [(KvFormat, f64); 2] = [(KvFormat::F32, 1e-5), (KvFormat::Bf16, 3e-2)];

/// Attention of one head row by row, in f64.
fn naive(qkv: &Buffer, dim: usize, window: usize, frame: usize) -> Vec<Vec<f64>> {
    let part = |row: usize, i: usize| qkv.row(row)[i * dim..(i + 1) * dim].iter().map(|v| f64::from(*v));
    let rows = qkv.rows();
    (0..rows)
        .map(|p| {
            let end = (p / frame + 1) * frame;
            let first = end.saturating_sub(window).min(p);
            let scores: Vec<f64> = (first..=p)
                .map(|k| part(p, 0).zip(part(k, 1)).map(|(a, b)| a * b).sum::<f64>() / (dim as f64).sqrt())
                .collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut out = vec![0.0; dim];
            for (k, w) in (first..=p).zip(&weights) {
                out.iter_mut().zip(part(k, 2)).for_each(|(o, v)| *o += w / total * v);
            }
            out
        })
        .collect()
}

#[test]
fn a_frame_sees_no_further_than_its_last_row() {
    each_exec(|exec, name| {
        let mut rng = Rng(5);
        // Windows that are and are not whole frames, and one that is shorter than a frame.
        for (dim, window, frame) in [(16, 6, 2), (32, 7, 2), (16, 10, 3), (8, 2, 3), (64, 40, 2)] {
            let rows = 16 * frame;
            let qkv = rng.buffer(rows, 3 * dim);
            let want = naive(&qkv, dim, window, frame);
            for (format, bound) in FORMATS {
                let spec = KvSpec {
                    layers: 1,
                    slots: 1,
                    kv_heads: 1,
                    head_dim: dim,
                    capacity: window + 4 * frame,
                    format,
                };
                let mut whole: Option<Vec<f32>> = None;
                for frames in [1, 4] {
                    let mut cache = KvCache::new(spec).in_frames(frame);
                    let mut got = Vec::new();
                    let step = frames * frame;
                    for at in (0..rows).step_by(step) {
                        let mut part = Buffer::new(step, 3 * dim);
                        (0..step).for_each(|r| part.row_mut(r).copy_from_slice(qkv.row(at + r)));
                        let mut out = Buffer::new(step, dim);
                        let spans = [Span { slot: 0, rows: step }];
                        let op = AttentionOp {
                            qkv: &part,
                            spans: &spans,
                            cache: &mut cache,
                            layer: 0,
                            heads: 1,
                            window: Some(window),
                            norms: None,
                            rope: None,
                        };
                        exec.attention(op, &mut out);
                        cache.advance(0, step);
                        exec.fetch(&mut out, step);
                        got.extend_from_slice(out.head(step));
                    }
                    for (row, want) in got.chunks_exact(dim).zip(&want) {
                        for (g, w) in row.iter().zip(want) {
                            let e = (f64::from(*g) - w).abs();
                            assert!(e < bound, "{name} {format:?} {window}/{frame}: off by {e}");
                        }
                    }
                    if exec.device().is_none() {
                        let whole = whole.get_or_insert_with(|| got.clone());
                        assert_eq!(*whole, got, "{name} {format:?}: cuts change the result");
                    }
                }
            }
        }
    });
}
