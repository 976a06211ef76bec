//! Residual blocks of convolutions, where an executor has a kernel for the whole of one.

use super::{Buffer, ConvOp, ConvState, Exec, Snake, Span, Vector};
use crate::matrix::Matrix;
use crate::simd::Activation;

/// `x + second(pre(first(pre(x))))`: a streaming convolution to as many values or half of them, and one of a single tap back.
pub struct ResidualOp<'a> {
    /// Input rows of all spans.
    pub x: &'a Buffer,
    /// Whose rows they are.
    pub spans: &'a [Span],
    /// Applied to the input of both convolutions.
    pub pre: Activation,
    /// Applied instead, where there are any: to the first one's input, and to the second one's.
    pub snakes: Option<[Snake<'a>; 2]>,
    /// `[hidden][taps * channels]`.
    pub first: &'a Matrix,
    /// Added to the first product.
    pub first_bias: Option<&'a Vector>,
    /// Kernel size of the first convolution.
    pub taps: usize,
    /// Distance between its taps.
    pub dilation: usize,
    /// `[channels][hidden]`.
    pub second: &'a Matrix,
    /// Added to the second product.
    pub second_bias: Option<&'a Vector>,
}

impl Exec {
    /// Runs a residual block in one pass, if this executor can; otherwise nothing happens, and the caller runs its two
    /// convolutions. `state` is that of the first one; the second has none.
    pub fn residual(&mut self, op: &ResidualOp<'_>, state: &mut ConvState, out: &mut Buffer) -> bool {
        let (width, rows) = (op.x.cols, op.spans.iter().map(|s| s.rows).sum::<usize>());
        assert_eq!((op.first.k, op.second.k), (op.taps * width, op.first.n), "kernel widths");
        assert_eq!((op.second.n, out.cols), (width, width), "as wide as it was");
        assert_eq!(state.spec.channels, width, "state channels");
        assert_eq!(state.spec.history, ConvOp::history(op.taps, 1, op.dilation), "state history");
        assert!(rows <= op.x.rows && rows <= out.rows, "rows fit");
        self.scratch.marks.check(state.spec.slots, op.spans.iter().map(|s| s.slot));
        assert!(op.first_bias.is_none_or(|b| b.len() == op.first.n), "bias length");
        assert!(op.second_bias.is_none_or(|b| b.len() == width), "bias length");
        let lengths = |s: &Snake<'_>, n: usize| (s.rate.len(), s.gain.len()) == (n, n);
        assert!(
            op.snakes.is_none_or(|[a, b]| lengths(&a, width) && lengths(&b, op.first.n)),
            "parameters of every value"
        );
        match &mut self.cuda {
            Some(cuda) if rows > 0 => cuda.residual(op, state, out),
            _ => false,
        }
    }
}
