//! The op suite of front ends: spectrograms on devices, and columns brought to mean 0 and deviation 1.

mod suite;

use suite::{Rng, devices, each_exec, error};
use voce_runtime::{Buffer, Exec, FrameSpan, MelFilters, MelOp, MelSpan, Staging, reference};

const GUARD: f32 = 5.960_464_5e-8;

/// Filters that overlap, from narrow to wide, and what they are made of.
struct Shape {
    window: Vec<f32>,
    hop: usize,
    fft: usize,
    bands: Vec<(usize, Vec<f32>)>,
    filters: MelFilters,
}

impl Shape {
    fn new(rng: &mut Rng, bins: usize, length: usize, hop: usize, fft: usize) -> Self {
        let window: Vec<f32> = rng.vec(length).iter().map(|v| 0.6 + 0.4 * v).collect();
        let last = fft / 2 + 1;
        let bands: Vec<(usize, Vec<f32>)> = (0..bins)
            .map(|b| {
                let first = b * b * (last - 1) / (bins * bins);
                let count = (1 + 2 * b * last / (bins * bins)).min(last - first);
                (first, rng.vec(count).iter().map(|v| 0.5 + 0.5 * v).collect())
            })
            .collect();
        let filters =
            MelFilters::new(window.clone(), hop, fft, GUARD, bands.iter().map(|(f, w)| (*f, &w[..])));
        Self { window, hop, fft, bands, filters }
    }

    fn run(&self, exec: &mut Exec, staging: &mut Staging, parts: &[&[f32]], out: &mut Buffer) {
        let rows = |s: &[f32]| (s.len() - self.window.len()) / self.hop + 1;
        let mut to = 0;
        let spans: Vec<MelSpan> = parts
            .iter()
            .map(|p| {
                let span = MelSpan { rows: rows(p), to };
                to += span.rows;
                span
            })
            .collect();
        let samples: Vec<f32> = parts.concat();
        exec.stage(staging, samples.len()).copy_from_slice(&samples);
        exec.mel(&MelOp { filters: &self.filters, samples: staging, spans: &spans }, out);
    }

    fn want(&self, samples: &[f32]) -> Vec<f64> {
        reference::log_mel(samples, &self.window, self.hop, self.fft, f64::from(GUARD), &self.bands)
    }
}

#[test]
fn spectrograms_agree_and_a_row_does_not_depend_on_its_neighbours() {
    for (device, name) in devices() {
        let mut exec = Exec::on(&device).unwrap();
        let mut rng = Rng(5);
        let shapes =
            [(80, 400, 160, 512), (128, 400, 160, 512), (7, 25, 9, 32), (3, 4, 4, 4), (40, 600, 100, 1024)];
        for (bins, length, hop, fft) in shapes {
            let shape = Shape::new(&mut rng, bins, length, hop, fft);
            assert_eq!(shape.filters.bins(), bins);
            let mut staging = Staging::default();
            let counts = [5usize, 1, 9, 2];
            let parts: Vec<Vec<f32>> = counts
                .iter()
                .enumerate()
                .map(|(i, &n)| {
                    let loud = [1.0, 1e-3, 0.1, 0.0][i];
                    rng.vec(shape.filters.samples(n)).iter().map(|v| v * loud).collect()
                })
                .collect();
            let rows: usize = counts.iter().sum();
            let mut all = Buffer::new(rows, bins);
            let slices: Vec<&[f32]> = parts.iter().map(|p| &p[..]).collect();
            shape.run(&mut exec, &mut staging, &slices, &mut all);
            exec.fetch(&mut all, rows);
            let want: Vec<f64> = parts.iter().flat_map(|p| shape.want(p)).collect();
            let e = error(all.head(rows), &want);
            assert!(e < 2e-5, "{name} {bins} {length} {fft}: {e:e}");
            // Alone, and cut in two.
            let mut at = 0;
            for (p, &n) in parts.iter().zip(&counts) {
                let cut = n.div_ceil(2);
                let (first, second) = (&p[..shape.filters.samples(cut)], &p[cut * hop..]);
                let pieces: &[&[f32]] = if cut < n { &[first, second] } else { &[first] };
                let mut made = Vec::new();
                for piece in pieces {
                    let count = (piece.len() - length) / hop + 1;
                    let mut out = Buffer::new(count, bins);
                    shape.run(&mut exec, &mut staging, &[piece], &mut out);
                    exec.fetch(&mut out, count);
                    made.extend_from_slice(out.head(count));
                }
                assert_eq!(made, all.head(rows)[at * bins..(at + n) * bins], "{name}: {n} rows");
                at += n;
            }
        }
        exec.status().unwrap();
    }
}

#[test]
fn rows_go_where_they_are_told() {
    for (device, name) in devices() {
        let mut exec = Exec::on(&device).unwrap();
        let mut rng = Rng(6);
        let shape = Shape::new(&mut rng, 5, 25, 9, 32);
        let samples = rng.vec(shape.filters.samples(2) + shape.filters.samples(3));
        // Many, so that host memory is locked and sent by itself, twice from the same place.
        let mut staging = Staging::default();
        let (mut out, mut before) = (Buffer::new(8, 5), Vec::new());
        for (round, len) in [samples.len(), 1 << 19, samples.len()].into_iter().enumerate() {
            let to = exec.stage(&mut staging, len);
            to.fill(0.0);
            to[..samples.len()].copy_from_slice(&samples);
            let spans = [MelSpan { rows: 2, to: 4 }, MelSpan { rows: 3, to: 0 }];
            exec.mel(&MelOp { filters: &shape.filters, samples: &staging, spans: &spans }, &mut out);
            exec.set_rows(&mut out, &[3, 6, 7], &[-7.0; 15]);
            exec.fetch(&mut out, 8);
            let (first, second) = samples.split_at(shape.filters.samples(2));
            let want = [shape.want(second), vec![-7.0; 5], shape.want(first), vec![-7.0; 10]].concat();
            let e = error(out.head(8), &want);
            assert!(e < 2e-5, "{name}: {e:e}");
            if round > 0 {
                assert_eq!(out.head(8), before, "{name}: round {round}");
            }
            before = out.head(8).to_vec();
        }
    }
}

#[test]
fn columns_are_standardised_span_by_span() {
    each_exec(|exec, name| {
        let mut rng = Rng(7);
        for (columns, counts) in [(80, vec![100, 1, 37]), (128, vec![64]), (5, vec![3, 0, 2, 700])] {
            let rows: usize = counts.iter().sum();
            let mut x = rng.buffer(rows + 1, columns);
            // A loud column, one around a large mean, and one of silence.
            for r in 0..rows {
                x.row_mut(r)[0] *= 100.0;
                x.row_mut(r)[1] -= 16.0;
                x.row_mut(r)[2] = -16.635_532;
            }
            let before = x.head(rows + 1).to_vec();
            let spans: Vec<FrameSpan> =
                counts.iter().map(|&rows| FrameSpan { slot: 0, rows, last: true }).collect();
            exec.standardise(&mut x, &spans, 1e-5);
            exec.fetch(&mut x, rows + 1);
            let mut at = 0;
            for &n in &counts {
                let part = at * columns..(at + n) * columns;
                let wide: Vec<f64> = before[part.clone()].iter().map(|&v| f64::from(v)).collect();
                let want = reference::standardise(&wide, columns, 1e-5);
                if n > 0 {
                    let e = error(&x.head(rows)[part], &want);
                    assert!(e < 1e-5, "{name} {columns} x {n}: {e:e}");
                    assert!((at..at + n).all(|r| x.row(r)[2] == 0.0), "{name}: silence stays silent");
                }
                at += n;
            }
            assert_eq!(x.row(rows), &before[rows * columns..], "{name}: rows of nobody");
        }
    });
}
