//! Residual units of periodic activations on the device: two convolutions and the sum in one kernel.

use super::Cuda;
use super::choice::{self, Unit};
use super::driver::{Address, Shape};
use super::queue::Args;
use super::streams::StreamArgs;
use crate::exec::{Buffer, ConvState, ResidualOp, Snake};

/// Values beyond a row's own between rows in shared memory: as in `unit.cu`.
const PAD: usize = 8;

/// Arguments of `unit_*`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UnitArgs {
    stream: StreamArgs,
    out: Address,
    first: Address,
    first_bias: Address,
    second: Address,
    second_bias: Address,
    rate: Address,
    gain: Address,
    first_stride: u32,
    second_stride: u32,
    taps: u32,
    dilation: u32,
    tiles: u32,
    blocks: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for UnitArgs {}

impl Cuda {
    /// Runs a unit in one kernel if there is one for it; nothing has happened if not.
    pub(super) fn unit_of_snakes(
        &mut self,
        op: &ResidualOp<'_>,
        [before, between]: [Snake<'_>; 2],
        state: &mut ConvState,
        out: &mut Buffer,
    ) -> bool {
        let (width, history) = (op.x.cols(), state.spec.history);
        if self.queue.rehearsal.is_some() && !choice::always_unit(width) {
            // Fewer rows are the library's, which takes more memory.
            return false;
        }
        let rows: usize = op.spans.iter().map(|s| s.rows).sum();
        let formats = [op.first.format, op.second.format];
        let (processors, most) =
            (self.device().info().processors as usize, self.device().info().shared as usize);
        let unit = Self::unit(op.spans) as usize;
        let Some(Unit { kernel, rows: tile, chunk, threads }) =
            choice::unit(formats, width, op.first.n, [rows, unit], processors)
        else {
            return false;
        };
        let shared = 2 * ((tile + history) * (width + PAD) + 2 * width * (chunk + PAD));
        let [first, second] = [op.first, op.second].map(|w| self.weights(w));
        let eights = [first.stride, second.stride].iter().all(|stride| stride.is_multiple_of(8));
        if shared > most || !eights {
            return false;
        }
        let out = self.write(out);
        let (first_bias, second_bias) = (self.optional(op.first_bias), self.optional(op.second_bias));
        let stream = self
            .streams(op.x, op.spans, 1, op.pre, state)
            .snaked(self.constant(before.rate), self.constant(before.gain));
        let tiles = stream.unit.div_ceil(tile as u32);
        let blocks = rows as u32 / stream.unit * tiles;
        let args = UnitArgs {
            stream,
            out,
            first: first.at(),
            first_bias,
            second: second.at(),
            second_bias,
            rate: self.constant(between.rate),
            gain: self.constant(between.gain),
            first_stride: first.stride as u32,
            second_stride: second.stride as u32,
            taps: op.taps as u32,
            dilation: op.dilation as u32,
            tiles,
            blocks,
        };
        let grid = [blocks + stream.keep_blocks_of(threads), 1, 1];
        self.queue.launch(kernel, Shape { grid, block: threads, shared: shared as u32 }, &args);
        true
    }
}
