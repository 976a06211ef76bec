//! Depthwise convolution with its norm and activation.

use super::conv::{ConvState, remember};
use super::{Buffer, Exec, Output, RowNorm, Shared, Span, Target, Vector};
use crate::pool::share;
use crate::simd::{Activation, Taps};

/// Taps that a depthwise convolution has at most.
const MAX_TAPS: usize = 64;

/// A depthwise convolution.
pub struct DepthwiseOp<'a> {
    /// Input rows.
    pub x: &'a Buffer,
    /// Whose rows they are.
    pub spans: &'a [Span],
    /// `[taps][channels]`.
    pub kernel: &'a Vector,
    /// Added.
    pub bias: Option<&'a Vector>,
    /// Rows after the current one that the kernel sees; the span then is all there is, and zeros follow.
    pub ahead: usize,
    /// Layer norm of the result.
    pub norm: Option<RowNorm<'a>>,
    /// Applied last.
    pub act: Activation,
}

impl Exec {
    /// Depthwise convolution: each channel by itself, one output row per input row.
    pub fn depthwise(&mut self, op: &DepthwiseOp<'_>, state: &mut ConvState, out: &mut impl Target) {
        self.depthwise_to(op, state, out.output());
    }

    fn depthwise_to(&mut self, op: &DepthwiseOp<'_>, state: &mut ConvState, output: Output<'_>) {
        let out = &*output.buffer;
        let channels = op.x.cols;
        let taps = op.kernel.len() / channels;
        assert!(op.kernel.len() == taps * channels && taps <= MAX_TAPS, "kernel shape");
        let history = taps - 1 - op.ahead;
        assert_eq!((state.spec.history, state.spec.channels), (history, channels), "state shape");
        let rows: usize = op.spans.iter().map(|s| s.rows).sum();
        assert!(rows <= op.x.rows && rows <= out.rows && channels <= out.cols, "rows fit");
        self.scratch.marks.check(state.spec.slots, op.spans.iter().map(|s| s.slot));
        if let Some(b) = op.bias {
            assert_eq!(b.len(), channels, "bias length");
        }
        let norm = op.norm.map(|n| n.kernel(channels));
        if rows == 0 {
            return;
        }
        if let Some(cuda) = &mut self.cuda {
            return cuda.depthwise(op, rows, state, output);
        }
        let out = output.buffer;
        let norm = norm.as_ref().map(|n| Shared(std::ptr::from_ref(n).cast_mut()));
        let (threads, kernels) = (self.pool.threads(), self.kernels);
        let (to, cols) = (Shared(out.data.as_mut_ptr()), out.cols);
        let past = &*state;
        self.pool.run(|id| {
            let null = std::ptr::null();
            let mut first = 0;
            for s in op.spans {
                let kept = past.slot(s.slot);
                for t in share(s.rows, 1, id, threads) {
                    let mut taken = [null; MAX_TAPS];
                    for (tap, row) in taken[..taps].iter_mut().enumerate() {
                        let r = t + tap;
                        *row = if r < history {
                            kept[r * channels..].as_ptr()
                        } else if r - history < s.rows {
                            op.x.row(first + r - history).as_ptr()
                        } else {
                            null
                        };
                    }
                    let input = Taps {
                        rows: &taken[..taps],
                        weights: op.kernel.as_ptr(),
                        bias: op.bias.map_or(null, |b| b.as_ptr()),
                    };
                    // SAFETY: rows of `out` are split by worker; shapes were checked above.
                    unsafe {
                        let out = to.get().add((first + t) * cols);
                        match norm {
                            Some(norm) => {
                                (kernels.depthwise)(&input, channels, Activation::None, out);
                                (kernels.norm)(out, channels, &*norm.get(), out);
                                (kernels.map)(out, channels, op.act, out);
                            }
                            None => (kernels.depthwise)(&input, channels, op.act, out),
                        }
                    }
                }
                first += s.rows;
            }
        });
        remember(op.x, op.spans, state, |row, to| to.copy_from_slice(row));
    }
}
