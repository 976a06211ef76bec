//! Products of e4m3 by the library: rows are quantised before them, and what comes out is scaled back.

use super::driver::{Address, Product, ProductKind, Shape};
use super::linear::{NormArgs, Rows, Source, StoreArgs};
use super::queue::Args;
use super::{Cuda, choice, program};

/// Values of a row that a thread holds, and threads of a block at most.
const HELD: usize = 16;
const MOST_THREADS: usize = 512;
/// Threads of a block of the epilogue.
const THREADS: usize = 256;
/// Alignment that the library's products count on.
const ALIGNED: u64 = 256;
/// The library wants outputs and inputs in multiples of this; weights are stored padded to it.
pub(super) const SIXTEEN: usize = 16;

/// Arguments of `quantise`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct QuantiseArgs {
    norm: NormArgs,
    x: Address,
    out: Address,
    scales: Address,
    row_scales: Address,
    col_scales: Address,
    x_stride: u32,
    k: u32,
    out_stride: u32,
    narrow: u32,
}

/// Arguments of `epilogue_fp8`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ScaledArgs {
    store: StoreArgs,
    products: Address,
    row_scales: Address,
    col_scales: Address,
    stride: u32,
    n: u32,
    rows: u32,
    narrow: u32,
    fours: u32,
    pad: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for QuantiseArgs {}
// SAFETY: as above.
unsafe impl Args for ScaledArgs {}

impl Cuda {
    /// Norms rows and quantises them to `out`, their scales to `scales`; whether the kernel takes such rows.
    pub(super) fn quantise(
        &mut self,
        norm: NormArgs,
        from: Source,
        rows: usize,
        [k, stride]: [usize; 2],
        [out, scales]: [Address; 2],
    ) -> bool {
        let Source { x, stride: x_stride, narrow, row_scales, col_scales } = from;
        let value = if narrow { 2 } else { 4 };
        if !(k.is_multiple_of(4) && x_stride.is_multiple_of(4) && x.is_multiple_of(4 * value)) {
            return false;
        }
        let (k32, out_stride) = (k as u32, stride as u32);
        let narrow = u32::from(narrow);
        let args = QuantiseArgs {
            norm,
            x,
            out,
            scales,
            row_scales,
            col_scales,
            x_stride,
            k: k32,
            out_stride,
            narrow,
        };
        let block = k.div_ceil(HELD).next_multiple_of(32).min(MOST_THREADS) as u32;
        let shape = Shape { grid: [rows as u32, 1, 1], block, shared: 0 };
        self.queue.launch(program::QUANTISE, shape, &args);
        true
    }

    /// Writes the product of quantised rows to its place: directly when the library scales it and nothing follows. With
    /// `narrow` the result stays bf16 there; where the library does not scale, the next product does.
    pub(super) fn product_fp8(
        &mut self,
        w: &crate::Matrix,
        rows: Rows,
        count: usize,
        store: StoreArgs,
        narrow: bool,
    ) {
        let device = self.weights(w);
        let stride = w.n.next_multiple_of(SIXTEEN);
        let scaling = self.device().scales_products();
        let plain = store.act == 0 && store.store != 2 && store.bias == 0 && stride == w.n;
        let plain = plain && store.out_stride.is_multiple_of(4) && store.out.is_multiple_of(ALIGNED);
        let straight = narrow || (scaling && plain);
        // A term of a sum may come as bf16: the sum is as exact as its other term.
        let halves = narrow || (store.store != 0 && !straight);
        let (out, out_stride) = if straight {
            (store.out, store.out_stride)
        } else {
            let bytes = count * stride * if halves { 2 } else { 4 };
            (self.queue.reserve(&mut self.scratch.products, bytes), stride as u32)
        };
        self.queue.product(Product {
            kind: ProductKind::Fp8,
            m: count as u32,
            n: stride as u32,
            k: device.stride as u32,
            a: rows.a,
            w: device.at(),
            out,
            a_stride: rows.stride as u32,
            w_stride: device.stride as u32,
            out_stride,
            bias: 0,
            accumulate: straight && store.store == 1,
            narrow: halves,
            scales: if straight && scaling { [rows.scales, device.scales()] } else { [0; 2] },
        });
        if straight {
            return;
        }
        let fours =
            choice::fours(&[store.out_stride, store.gate_stride, w.n as u32], &[store.out, store.gate]);
        let args = ScaledArgs {
            store,
            products: out,
            row_scales: rows.scales,
            col_scales: device.scales(),
            stride: stride as u32,
            n: w.n as u32,
            rows: count as u32,
            narrow: u32::from(halves),
            fours: u32::from(fours),
            pad: 0,
        };
        let grid = [(count * w.n.div_ceil(4)).div_ceil(THREADS) as u32, 1, 1];
        let shape = Shape { grid, block: THREADS as u32, shared: 0 };
        self.queue.launch(program::EPILOGUE_FP8, shape, &args);
    }
}
