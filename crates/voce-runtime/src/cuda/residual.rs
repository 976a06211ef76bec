//! Residual blocks on the device: two convolutions and the sum in one kernel.

use super::driver::{Address, Shape};
use super::pointwise::THREADS;
use super::queue::Args;
use super::streams::StreamArgs;
use super::{Cuda, choice};
use crate::exec::{Buffer, ConvState, ResidualOp};

/// Width up to which a block keeps the weights in shared memory: as in `residual.cu`.
const RESIDUAL_NEAR: usize = 64;

/// Arguments of `residual_*`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ResidualArgs {
    pub(super) stream: StreamArgs,
    out: Address,
    pub(super) first: Address,
    first_bias: Address,
    pub(super) second: Address,
    second_bias: Address,
    first_stride: u32,
    second_stride: u32,
    taps: u32,
    dilation: u32,
    tiles: u32,
    pub(super) blocks: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for ResidualArgs {}

impl Cuda {
    /// Runs a block in one kernel if there is one for it; nothing has happened if not.
    pub(crate) fn residual(&mut self, op: &ResidualOp<'_>, state: &mut ConvState, out: &mut Buffer) -> bool {
        if let Some(snakes) = op.snakes {
            return self.unit_of_snakes(op, snakes, state, out);
        }
        let (width, history) = (op.x.cols(), state.spec.history);
        let (formats, hidden) = ([op.first.format, op.second.format], op.first.n);
        let rows = [Self::unit(op.spans) as usize, op.spans.iter().map(|s| s.rows).sum()];
        let processors = self.device().info().processors as usize;
        let Some((kernel, tile)) = choice::residual(op.pre, formats, width, hidden, rows, processors) else {
            return false;
        };
        let near = hidden * (op.taps * width + 8) + width * (hidden + 8);
        let near = if width <= RESIDUAL_NEAR { near } else { 0 };
        let shared = 2 * ((tile + history) * (width + 8) + tile * (hidden + 8) + near);
        if shared > self.device().info().shared as usize {
            return false;
        }
        let args = self.residual_args(op, state, out, tile);
        let grid = [args.blocks + args.stream.keep_blocks(), 1, 1];
        self.queue.launch(kernel, Shape { grid, block: THREADS, shared: shared as u32 }, &args);
        true
    }

    /// The arguments of a block whose rows are taken in tiles of `tile`; the streams go on by their spans.
    pub(super) fn residual_args(
        &mut self,
        op: &ResidualOp<'_>,
        state: &mut ConvState,
        out: &mut Buffer,
        tile: usize,
    ) -> ResidualArgs {
        let [first, second] = [op.first, op.second].map(|w| self.weights(w));
        let out = self.write(out);
        let (first_bias, second_bias) = (self.optional(op.first_bias), self.optional(op.second_bias));
        let stream = self.streams(op.x, op.spans, 1, op.pre, state);
        let rows: usize = op.spans.iter().map(|s| s.rows).sum();
        let tiles = stream.unit.div_ceil(tile as u32);
        ResidualArgs {
            stream,
            out,
            first: first.at(),
            first_bias,
            second: second.at(),
            second_bias,
            first_stride: first.stride as u32,
            second_stride: second.stride as u32,
            taps: op.taps as u32,
            dilation: op.dilation as u32,
            tiles,
            blocks: rows as u32 / stream.unit * tiles,
        }
    }
}
