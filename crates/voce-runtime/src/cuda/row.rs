//! Products of one row and of up to four: see `kernels/row.cu`.

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
    rows: u32,
    x_stride: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for RowArgs {}

/// The rows of a product.
pub(super) struct FewRows {
    pub x: Address,
    pub stride: usize,
    pub rows: usize,
}

impl Cuda {
    /// Whether a product goes to the kernels of this file: few rows, not too long, with a norm that they know.
    pub(super) fn takes_rows(&self, w: &Matrix, norm: &NormArgs, from: &FewRows) -> bool {
        let pieces = w.k.div_ceil(PIECE);
        let most = match pieces.div_ceil(WARPS) {
            1 => 4,
            2 => 2,
            _ => 0,
        };
        w.format == Format::Bf16
            && w.k.is_multiple_of(8)
            && from.rows <= most
            && from.rows * self.share(w.n) <= 32 * WARPS
            && from.x.is_multiple_of(16)
            && (from.rows == 1 || from.stride.is_multiple_of(4))
            && matches!(norm.kind, 0 | NORM_LAYER | NORM_RMS)
            && norm.shift == 0
            && norm.scale == 0
    }

    /// Outputs of a block: every multiprocessor has one.
    fn share(&self, n: usize) -> usize {
        n.div_ceil(self.device().info().processors as usize)
    }

    /// Few rows by a matrix. `gated` halves of the outputs become one.
    pub(super) fn rows(&mut self, w: &Matrix, norm: NormArgs, from: FewRows, store: StoreArgs, gated: bool) {
        let device = self.weights(w);
        let n = if gated { w.n / 2 } else { w.n };
        let share = self.share(n);
        let pieces = w.k.div_ceil(PIECE);
        let long = pieces.div_ceil(WARPS);
        let slices = pieces.div_ceil(long);
        let outputs = if gated { 2 * share } else { share };
        let many = outputs.div_ceil(WARPS / slices) > MANY;
        let (kernel, rows) = match (from.rows, long) {
            (1, 1) if many => (program::ROW_MANY_BF16, 1),
            (1, 1) => (program::ROW_BF16, 1),
            (1, _) => (program::ROW_LONG_BF16, 1),
            (2, 1) => (program::ROW_TWO_BF16, 2),
            (2, _) => (program::ROW_TWO_LONG_BF16, 2),
            _ => (program::ROW_FOUR_BF16, 4),
        };
        let args = RowArgs {
            norm,
            store,
            x: from.x,
            w: device.at(),
            k: w.k as u32,
            n: n as u32,
            pitch: (device.stride / 8) as u32,
            share: share as u32,
            slices: slices as u32,
            gated: u32::from(gated),
            rows: from.rows as u32,
            x_stride: from.stride as u32,
        };
        let shape = Shape {
            grid: [n.div_ceil(share) as u32, 1, 1],
            block: 32 * WARPS as u32,
            shared: (rows * outputs * slices * 4) as u32,
        };
        self.queue.launch(kernel, shape, &args);
    }
}
