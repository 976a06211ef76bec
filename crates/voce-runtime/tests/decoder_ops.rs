//! The op suite's part for decoders: LSTM cells, the joint's input and selection over rows of logits.

mod suite;

use suite::{Rng, each_exec, error, wide};
use voce_runtime::{AddReluOp, Buffer, Candidate, Choice, Confidence, LstmCellOp, MAX_TOP_K, reference};

#[test]
fn lstm_cells_agree_and_move_between_rows_of_state() {
    each_exec(|exec, name| {
        let mut rng = Rng(51);
        for hidden in [1, 16, 40, 640] {
            let rows = 30;
            let mut gates = rng.buffer(rows, 4 * hidden);
            gates.head_mut(rows).iter_mut().for_each(|v| *v *= 6.0);
            let (lanes, column) = (2 * rows, 3);
            let mut state = rng.buffer(lanes, column + 2 * hidden + 1);
            let before = state.clone();
            // The first half stays in place, the second half moves.
            let from: Vec<usize> = (0..rows).collect();
            let to: Vec<usize> = (0..rows).map(|r| if r < rows / 2 { r } else { rows + r }).collect();
            exec.lstm_cell(
                &LstmCellOp { gates: &gates, column, from: (&from).into(), to: (&to).into() },
                &mut state,
            );
            exec.fetch(&mut state, lanes);
            for r in 0..rows {
                let c = wide(&before.row(from[r])[column + hidden..column + 2 * hidden]);
                let (h, c) = reference::lstm_cell(&wide(gates.row(r)), &c);
                let got = state.row(to[r]);
                for (got, want) in got[column..].iter().zip(h.iter().chain(&c)) {
                    assert!(
                        (*got as f64 - want).abs() < 2e-6,
                        "{name} hidden {hidden} row {r}: {got} {want}"
                    );
                }
                assert_eq!(got[..column], before.row(to[r])[..column], "columns before stay");
                assert_eq!(got[column + 2 * hidden], before.row(to[r])[column + 2 * hidden], "columns after");
                if to[r] != from[r] {
                    assert_eq!(state.row(from[r]), before.row(from[r]), "the source of a move stays");
                }
            }
        }
    });
}

#[test]
fn lstm_cells_take_rows_in_order() {
    each_exec(|exec, name| {
        let (mut rng, hidden) = (Rng(52), 20);
        let gates = rng.buffer(5, 4 * hidden);
        let mut state = rng.buffer(4, 2 * hidden);
        let before = state.clone();
        // From where an earlier one went, to where an earlier one came from, twice to the same row.
        let (from, to) = ([0, 1, 2, 2, 3], [1, 2, 0, 3, 3]);
        exec.lstm_cell(
            &LstmCellOp { gates: &gates, column: 0, from: (&from).into(), to: (&to).into() },
            &mut state,
        );
        exec.fetch(&mut state, 4);
        let mut want: Vec<Vec<f64>> = (0..4).map(|r| wide(before.row(r))).collect();
        for r in 0..5 {
            let (h, c) = reference::lstm_cell(&wide(gates.row(r)), &want[from[r]][hidden..]);
            want[to[r]] = [h, c].concat();
        }
        for (r, want) in want.iter().enumerate() {
            assert!(error(state.row(r), want) < 1e-5, "{name} row {r}");
        }
    });
}

#[test]
fn add_relu_sums_the_rows_it_is_told() {
    each_exec(|exec, name| {
        let mut rng = Rng(53);
        for n in [1, 16, 70, 640] {
            let (a, b) = (rng.buffer(5, n), rng.buffer(3, n));
            let (ai, bi) = (vec![4, 0, 0, 2, 1, 1, 3], vec![2, 2, 1, 0, 1, 0, 0]);
            let mut out = rng.buffer(8, n);
            let before = out.clone();
            exec.add_relu(&AddReluOp { a: &a, a_rows: (&ai).into(), b: &b, b_rows: (&bi).into() }, &mut out);
            exec.fetch(&mut out, 8);
            for r in 0..7 {
                for i in 0..n {
                    let want = (a.row(ai[r])[i] + b.row(bi[r])[i]).max(0.0);
                    assert_eq!(out.row(r)[i], want, "{name} row {r}");
                }
            }
            assert_eq!(out.row(7), before.row(7));
        }
    });
}

/// Rows with ties, infinities and NaN among ordinary ones.
fn logit_rows(n: usize) -> Buffer {
    let mut rng = Rng(57);
    let mut x = rng.buffer(9, n + 3);
    for r in 0..9 {
        let row = x.row_mut(r);
        row.iter_mut().for_each(|v| *v = (*v * 12.0).round() / if r < 2 { 1.0 } else { 1e-3 } * 1e-3);
        match r {
            3 => row.iter_mut().step_by(3).for_each(|v| *v = f32::NAN),
            4 => row[n / 2] = f32::INFINITY,
            5 => row.iter_mut().skip(1).step_by(2).for_each(|v| *v = f32::NEG_INFINITY),
            6 => row.fill(f32::NAN),
            7 => row.fill(2.5),
            8 => row.fill(f32::NEG_INFINITY),
            _ => {}
        }
    }
    x
}

#[test]
fn selection_agrees_with_a_sorted_row_whatever_is_in_it() {
    each_exec(|exec, name| {
        for n in [1, 5, 16, 41, 64, 65, 1025, 1030] {
            let x = logit_rows(n);
            let cols = 2..n + 2;
            let (mut best, mut choices) = ([7u32; 9], [Choice::default(); 9]);
            exec.argmax(&x, 9, cols.clone(), &mut best);
            let (more, mut seconds) = (n / 2..n + 3, [7u32; 9]);
            let pair = [cols.clone(), more.clone()];
            exec.choose_pair(&x, 9, pair.clone(), Confidence::MaxProb, &mut choices, &mut seconds);
            for (r, &second) in seconds.iter().enumerate() {
                let want = reference::ranked(&x.row(r)[more.clone()]).first().copied().unwrap_or(0);
                assert_eq!(second as usize, want, "{name} n {n} row {r}");
            }
            let mut alone = [Choice::default(); 9];
            exec.choose(&x, 9, cols.clone(), Confidence::MaxProb, &mut alone);
            for (a, b) in alone.iter().zip(&choices) {
                assert_eq!((a.index, a.log_sum, a.confidence), (b.index, b.log_sum, b.confidence), "{name}");
            }
            for k in [1, 4, 9, MAX_TOP_K] {
                let (mut sums, mut top) = (vec![0f32; 9], vec![Candidate::default(); 9 * k]);
                exec.top_k(&x, 9, cols.clone(), k, &mut sums, &mut top);
                let (mut facts, mut same) = (vec![0f32; 9 * (1 + more.len())], top.clone());
                same.fill(Candidate::default());
                exec.top_k_with(&x, 9, pair.clone(), k, &mut facts, &mut same);
                assert_eq!(same, top, "{name} n {n}");
                for (r, facts) in facts.chunks_exact(1 + more.len()).enumerate() {
                    let want = [&sums[r..r + 1], &x.row(r)[more.clone()]].concat();
                    assert!(facts.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{name} n {n}");
                }
                for r in 0..9 {
                    let row = &x.row(r)[cols.clone()];
                    let order = reference::ranked(row);
                    let first = order.first().copied().unwrap_or(0);
                    assert_eq!(best[r] as usize, first, "{name} n {n} row {r}");
                    assert_eq!(choices[r].index as usize, first, "{name} n {n} row {r}");
                    let lse = reference::log_sum_exp(row);
                    for (i, c) in top[r * k..(r + 1) * k].iter().enumerate() {
                        match order.get(i) {
                            Some(&want) => {
                                assert_eq!(c.index as usize, want, "{name} n {n} row {r} place {i}")
                            }
                            None => {
                                assert_eq!(*c, Candidate { index: u32::MAX, logit: f32::NEG_INFINITY })
                            }
                        }
                        if lse.is_finite() && c.index != u32::MAX {
                            assert_eq!(c.logit, row[c.index as usize], "{name} n {n} row {r} place {i}");
                            assert!((sums[r] as f64 - lse).abs() < 2e-5);
                        }
                    }
                    if lse.is_finite() {
                        let want = row[first] as f64 - lse;
                        assert!((choices[r].log_prob() as f64 - want).abs() < 2e-5, "{name} n {n} row {r}");
                        assert!(
                            (choices[r].confidence as f64 - want.exp()).abs() < 1e-5,
                            "{name} n {n} row {r}"
                        );
                    } else {
                        assert_eq!(choices[r].confidence, 0.0);
                    }
                }
            }
        }
    });
}

#[test]
fn confidences_agree_with_their_definitions() {
    each_exec(|exec, name| {
        let (mut rng, n) = (Rng(59), 203);
        let mut x = rng.buffer(4, n);
        for r in 0..4 {
            x.row_mut(r).iter_mut().for_each(|v| *v *= [0.0, 1.0, 5.0, 40.0][r]);
        }
        for confidence in [Confidence::Gibbs, Confidence::Tsallis(0.33), Confidence::Renyi(0.5)] {
            let mut out = [Choice::default(); 4];
            exec.choose(&x, 4, 0..n, confidence, &mut out);
            for (r, choice) in out.iter().enumerate() {
                let (row, v) = (x.row(r), n as f64);
                let lse = reference::log_sum_exp(row);
                let lp: Vec<f64> = row.iter().map(|&z| z as f64 - lse).collect();
                let power = |a: f64| lp.iter().map(|l| (l * a).exp()).sum::<f64>();
                let want = match confidence {
                    Confidence::Tsallis(a) => {
                        let a = a as f64;
                        let flat = ((1.0 - v.powf(1.0 - a)) / (1.0 - a)).exp();
                        (((1.0 - power(a)) / (1.0 - a)).exp() - flat) / (1.0 - flat)
                    }
                    Confidence::Renyi(a) => {
                        (power(a as f64).powf(1.0 / (a as f64 - 1.0)) * v - 1.0) / (v - 1.0)
                    }
                    _ => (lp.iter().map(|l| l * l.exp()).sum::<f64>().exp() * v - 1.0) / (v - 1.0),
                };
                let got = choice.confidence as f64;
                assert!((f64::from(confidence.of(row)) - want).abs() < 1e-4, "{confidence:?} row {r}");
                assert!((got - want).abs() < 1e-4, "{name} {confidence:?} row {r}: {got} {want}");
            }
        }
    });
}
