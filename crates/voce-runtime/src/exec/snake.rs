//! The periodic activation of audio decoders: `x + gain * sin(rate * x)^2`, each channel with its own rate and gain.

use super::{Buffer, Exec, Output, Shared, Target, Vector};
use crate::pool::share;

/// Parameters of the activation, a value per channel.
#[derive(Clone, Copy)]
pub struct Snake<'a> {
    /// What the input is multiplied by inside the sine.
    pub rate: &'a Vector,
    /// What the squared sine is multiplied by.
    pub gain: &'a Vector,
}

impl Exec {
    /// `out = x + gain * sin(rate * x)^2` of the first rows.
    pub fn snake(&mut self, snake: Snake<'_>, x: &Buffer, rows: usize, out: &mut impl Target) {
        self.snake_to(snake, x, rows, out.output());
    }

    fn snake_to(&mut self, snake: Snake<'_>, x: &Buffer, rows: usize, out: Output<'_>) {
        check(snake, x, rows);
        assert!(x.cols == out.buffer.cols && rows <= out.buffer.rows, "rows fit");
        if let Some(cuda) = &mut self.cuda {
            return cuda.snake(snake, Some(x), rows, out);
        }
        let (from, to) = (x.data.as_ptr(), out.buffer.data.as_mut_ptr());
        self.snake_rows(snake, from, rows, to);
    }

    /// The same in place.
    pub fn snake_in_place(&mut self, snake: Snake<'_>, x: &mut Buffer, rows: usize) {
        check(snake, x, rows);
        if let Some(cuda) = &mut self.cuda {
            return cuda.snake(snake, None, rows, x.output());
        }
        let to = x.data.as_mut_ptr();
        self.snake_rows(snake, to, rows, to);
    }

    fn snake_rows(&mut self, snake: Snake<'_>, from: *const f32, rows: usize, to: *mut f32) {
        let (n, threads, kernels) = (snake.rate.len(), self.pool.threads(), self.kernels);
        let (from, to) = (Shared(from.cast_mut()), Shared(to));
        self.pool.run(|id| {
            for r in share(rows, 1, id, threads) {
                // SAFETY: both have `rows` rows of `n` values, which are split by worker; the kernel reads a chunk before
                // it writes it.
                unsafe {
                    (kernels.snake)(
                        from.get().add(r * n),
                        n,
                        snake.rate.as_ptr(),
                        snake.gain.as_ptr(),
                        to.get().add(r * n),
                    );
                }
            }
        });
    }
}

fn check(snake: Snake<'_>, x: &Buffer, rows: usize) {
    assert!(snake.rate.len() == x.cols && snake.gain.len() == x.cols, "a rate and a gain per channel");
    assert!(rows <= x.rows, "rows fit");
}
