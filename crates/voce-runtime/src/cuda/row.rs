//! Products of one row and of up to four: see `kernels/row.cu`.

use super::Cuda;
use super::choice::{self, ROW_PIECE, ROW_WARPS};
use super::driver::{Address, Shape};
use super::linear::{NormArgs, StoreArgs};
use super::queue::Args;
use crate::matrix::Matrix;

/// Arguments of `row_*`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RowArgs {
    pub(super) norm: NormArgs,
    pub(super) store: StoreArgs,
    pub(super) x: Address,
    pub(super) w: Address,
    pub(super) k: u32,
    pub(super) n: u32,
    pub(super) pitch: u32,
    pub(super) share: u32,
    pub(super) slices: u32,
    pub(super) gated: u32,
    pub(super) rows: u32,
    pub(super) x_stride: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for RowArgs {}

/// The rows of a product.
#[derive(Clone, Copy)]
pub(super) struct FewRows {
    pub x: Address,
    pub stride: usize,
    pub rows: usize,
}

impl Cuda {
    /// Few rows by a matrix. `gated` halves of the outputs become one.
    pub(super) fn rows(&mut self, w: &Matrix, norm: NormArgs, from: FewRows, store: StoreArgs, gated: bool) {
        let device = self.weights(w);
        let n = if gated { w.n / 2 } else { w.n };
        let share = choice::row_share(n, self.device().info().processors as usize);
        let pieces = w.k.div_ceil(ROW_PIECE);
        let long = pieces.div_ceil(ROW_WARPS);
        let slices = pieces.div_ceil(long);
        let outputs = if gated { 2 * share } else { share };
        let (kernel, rows) = choice::row(from.rows, long, outputs.div_ceil(ROW_WARPS / slices));
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
            block: 32 * ROW_WARPS as u32,
            shared: (rows * outputs * slices * 4) as u32,
        };
        self.queue.launch(kernel, shape, &args);
    }
}
