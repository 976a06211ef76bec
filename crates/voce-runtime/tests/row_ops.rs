//! The op suite of rows that go from buffer to buffer.

mod suite;

use suite::{Rng, each_exec};
use voce_runtime::Buffer;

#[test]
fn rows_are_gathered_scattered_and_set() {
    each_exec(|exec, name| {
        let mut rng = Rng(5);
        for cols in [1, 7, 64] {
            let x = rng.buffer(9, cols + 3);
            let rows = [8, 0, 3, 3];
            let mut got = rng.buffer(6, cols);
            let rest = got.row(5).to_vec();
            exec.gather_rows(&x, &rows, 2, &mut got);
            let mut placed = rng.buffer(9, cols);
            let before = placed.clone();
            exec.scatter_rows(&got, &[4, 1], &mut placed);
            let values = rng.vec(2 * cols);
            exec.set_rows(&mut placed, &[8, 0], &values);
            let mut head = Buffer::new(3, cols);
            exec.copy_head(&placed, 4, &mut head, 2);
            let mut moved = Buffer::new(4, cols);
            exec.copy_rows(&placed, &[0, 8], &mut moved, &[3, 1]);
            exec.fetch(&mut moved, 4);
            assert_eq!(moved.row(3), &values[cols..], "{name} {cols}");
            assert_eq!(moved.row(1), &values[..cols], "{name} {cols}");
            assert!(moved.row(0).iter().chain(moved.row(2)).all(|&v| v == 0.0), "{name} {cols}");
            let mut parts = Buffer::new(3, cols);
            let wide = rng.vec(2 * (cols + 3));
            exec.set_row_parts(&mut parts, &[2, 0], &wide, cols + 3, 2);
            exec.fetch(&mut parts, 3);
            assert_eq!(parts.row(2), &wide[2..2 + cols], "{name} {cols}");
            assert_eq!(parts.row(0), &wide[cols + 5..2 * cols + 5], "{name} {cols}");
            exec.fetch(&mut got, 6);
            exec.fetch(&mut placed, 9);
            exec.fetch(&mut head, 3);
            for (r, &row) in rows.iter().enumerate() {
                assert_eq!(got.row(r), &x.row(row)[2..2 + cols], "{name} {cols} row {r}");
            }
            assert_eq!(got.row(5), rest, "{name}: rows past the list stay");
            let want = [&values[cols..], got.row(1), before.row(2), before.row(3), got.row(0)];
            for (r, want) in want.into_iter().enumerate() {
                assert_eq!(placed.row(r), want, "{name} {cols} row {r}");
            }
            assert_eq!(placed.row(8), &values[..cols], "{name} {cols}");
            assert_eq!(head.row(0), placed.row(4), "{name} {cols}");
            assert_eq!(head.row(1), placed.row(5), "{name} {cols}");
        }
    });
}

#[test]
fn scaled_rows_are_added() {
    each_exec(|exec, name| {
        let mut rng = Rng(6);
        let (x, mut to) = (rng.buffer(5, 33), rng.buffer(5, 33));
        let before = to.clone();
        exec.add_scaled(&x, 0.25, 4, &mut to);
        exec.fetch(&mut to, 5);
        for r in 0..5 {
            for i in 0..33 {
                let more = if r < 4 { 0.25 * x.row(r)[i] } else { 0.0 };
                assert_eq!(to.row(r)[i], before.row(r)[i] + more, "{name} {r} {i}");
            }
        }
    });
}
