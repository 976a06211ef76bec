//! Residual units of periodic activations on the device: two convolutions and the sum in one kernel.

use super::Cuda;
use super::choice::{self, Unit};
use super::driver::{Address, Shape};
use super::queue::Args;
use super::residual::ResidualArgs;
use crate::exec::{Buffer, ConvState, ResidualOp, Snake};

/// Values beyond a row's own between rows in shared memory: as in `unit.cu`.
const PAD: usize = 8;

/// Arguments of `unit_*`: those of a block, and the parameters of the activation between its convolutions.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UnitArgs {
    block: ResidualArgs,
    rate: Address,
    gain: Address,
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
        let eights = [op.first, op.second].map(|w| self.weights(w).stride.is_multiple_of(8));
        if shared > most || eights.contains(&false) {
            return false;
        }
        let mut block = self.residual_args(op, state, out, tile);
        block.stream = block.stream.snaked(self.constant(before.rate), self.constant(before.gain));
        let args = UnitArgs { block, rate: self.constant(between.rate), gain: self.constant(between.gain) };
        let grid = [block.blocks + block.stream.keep_blocks_of(threads), 1, 1];
        self.queue.launch(kernel, Shape { grid, block: threads, shared: shared as u32 }, &args);
        true
    }
}
