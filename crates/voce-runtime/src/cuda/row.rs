//! Products of one row: see `kernels/row.cu`.

use super::driver::{Address, Shape};
use super::linear::{NORM_LAYER, NORM_RMS, NormArgs, StoreArgs};
use super::queue::Args;
use super::{Cuda, program};
use crate::matrix::{Format, Matrix};

/// Warps of a block, between which the row is cut.
const WARPS: usize = 16;
/// Values that a warp takes at once.
const PIECE: usize = 256;
/// Outputs of a warp from which a block is alone on its multiprocessor, and has more of them under way.
const MANY: usize = 12;

/// Arguments of `row_*`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RowArgs {
    norm: NormArgs,
    store: StoreArgs,
    x: Address,
    w: Address,
    k: u32,
    n: u32,
    pitch: u32,
    share: u32,
    slices: u32,
    gated: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for RowArgs {}

impl Cuda {
    /// Whether a product of one row goes to the kernels of this file.
    pub(super) fn takes_row(w: &Matrix, norm: &NormArgs, x: Address) -> bool {
        w.format == Format::Bf16
            && w.k.is_multiple_of(8)
            && w.k <= 2 * WARPS * PIECE
            && x.is_multiple_of(16)
            && matches!(norm.kind, 0 | NORM_LAYER | NORM_RMS)
            && norm.shift == 0
            && norm.scale == 0
    }

    /// One row by a matrix. `gated` halves of the outputs become one.
    pub(super) fn row(&mut self, w: &Matrix, norm: NormArgs, x: Address, store: StoreArgs, gated: bool) {
        let device = w.device.as_ref().expect("weights are on the device");
        let n = if gated { w.n / 2 } else { w.n };
        let share = n.div_ceil(self.device().info().processors as usize);
        let pieces = w.k.div_ceil(PIECE);
        let long = pieces.div_ceil(WARPS);
        let slices = pieces.div_ceil(long);
        let outputs = if gated { 2 * share } else { share };
        let kernel = match (long, outputs.div_ceil(WARPS / slices) > MANY) {
            (1, false) => program::ROW_BF16,
            (1, true) => program::ROW_MANY_BF16,
            _ => program::ROW_LONG_BF16,
        };
        let args = RowArgs {
            norm,
            store,
            x,
            w: device.at(),
            k: w.k as u32,
            n: n as u32,
            pitch: (device.stride / 8) as u32,
            share: share as u32,
            slices: slices as u32,
            gated: u32::from(gated),
        };
        let shape = Shape {
            grid: [n.div_ceil(share) as u32, 1, 1],
            block: 32 * WARPS as u32,
            shared: (outputs * slices * 4) as u32,
        };
        self.queue.launch(kernel, shape, &args);
    }
}
