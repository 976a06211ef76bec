//! Residual units of periodic activations on the device: two convolutions and the sum in one kernel.

use super::Cuda;
use super::choice::{self, GROUP_ROWS, Unit, UnitGroups};
use super::driver::{Address, Shape};
use super::matrix::Panels;
use super::queue::Args;
use super::residual::ResidualArgs;
use crate::exec::{Buffer, ConvState, ResidualOp, Snake};

/// Values beyond a row's own between rows in shared memory: as in `unit.cu`.
const PAD: usize = 8;

/// Threads of a block of `unit_groups_*`.
const GROUPS_THREADS: u32 = 384;

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
        if let Some(found) = self.groups_for(op, history) {
            return self.unit_by_groups(op, [before, between], state, out, found);
        }
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

    /// The kernel by products of warpgroups with its shared memory, if the device has them and it is worth it for these rows.
    fn groups_for(&self, op: &ResidualOp<'_>, history: usize) -> Option<(UnitGroups, usize)> {
        let info = self.device().info();
        if !info.has_warpgroups() || history != (op.taps - 1) * op.dilation {
            return None;
        }
        let rows: usize = op.spans.iter().map(|s| s.rows).sum();
        let unit = Self::unit(op.spans) as usize;
        let tiles = rows / unit * unit.div_ceil(GROUP_ROWS);
        let (formats, width) = ([op.first.format, op.second.format], op.x.cols());
        let found =
            choice::unit_groups(formats, width, op.first.n, history, tiles, info.processors as usize)?;
        Some((found, found.shared(width, op.taps, history, info.shared as usize)?))
    }

    /// Runs a unit by products of warpgroups: each has a run of tiles, and keeps the past rows of spans that end in them.
    fn unit_by_groups(
        &mut self,
        op: &ResidualOp<'_>,
        [before, between]: [Snake<'_>; 2],
        state: &mut ConvState,
        out: &mut Buffer,
        (UnitGroups { kernel, groups, part, .. }, shared): (UnitGroups, usize),
    ) -> bool {
        let (width, processors) = (op.x.cols(), self.device().info().processors);
        let orders = [Panels { part: width, by_thread: false }, Panels { part, by_thread: true }];
        let made = [(op.first, orders[0]), (op.second, orders[1])]
            .map(|(w, order)| self.weights(w).panels(width, order));
        let [Ok(first), Ok(second)] = made else {
            // Lack of memory is this executor's error, as it is for any op.
            made.into_iter().filter_map(Result::err).for_each(|e| self.queue.fail(e));
            return false;
        };
        if self.queue.rehearsal.is_some() && !choice::always_unit(width) {
            // Fewer rows are the library's, which takes more memory.
            return false;
        }
        let mut block = self.residual_args(op, state, out, GROUP_ROWS);
        block.stream = block.stream.snaked(self.constant(before.rate), self.constant(before.gain));
        (block.first, block.second) = (first, second);
        let args = UnitArgs { block, rate: self.constant(between.rate), gain: self.constant(between.gain) };
        let grid = [block.blocks.div_ceil(groups as u32).min(processors), 1, 1];
        self.queue.launch(kernel, Shape { grid, block: GROUPS_THREADS, shared: shared as u32 }, &args);
        true
    }
}
