//! Products: few rows by one kernel with everything around them, many by the library between two kernels.

use super::choice::{self, ProductShape, ProductWay};
use super::driver::{Address, Product, ProductKind, Shape};
use super::fp8::SIXTEEN;
use super::program::KernelOf;
use super::queue::Args;
use super::row::FewRows;
use super::{Cuda, program};
use crate::exec::{Gate, LinearOp, Norm, Output, Pending};
use crate::matrix::Format;
use crate::simd::Activation;

/// Threads of a block.
const THREADS: u32 = 256;
/// Blocks of the one kernel per multiprocessor: as many as there are registers for.
const FEW_BLOCKS: u32 = 4;
/// Outputs per block of the one kernel: a warp each.
const WARPS: u32 = THREADS / 32;
/// Alignment that the library's products count on.
const ALIGNED: u64 = 256;
/// Blocks along rows of point-wise kernels, which then take several each.
const MAX_ROW_BLOCKS: usize = 32_768;

/// The kernels' numbers of norms that take sums over a row: as in `common.cuh`.
pub(super) const NORM_LAYER: u32 = 2;
pub(super) const NORM_RMS: u32 = 3;

/// The device's form of a norm: see `common.cuh`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct NormArgs {
    pub(super) weight: Address,
    pub(super) bias: Address,
    pub shift: Address,
    pub scale: Address,
    pub kind: u32,
    pub(super) act: u32,
    pub(super) shift_stride: u32,
    pub(super) scale_stride: u32,
    pub(super) eps: f32,
    pub(super) pad: u32,
}

impl NormArgs {
    /// A layer norm with constants.
    pub(super) fn layer(weight: Address, bias: Address, eps: f32) -> Self {
        Self { kind: NORM_LAYER, weight, bias, eps, ..Self::default() }
    }
}

/// The device's form of what follows a product.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct StoreArgs {
    pub out: Address,
    pub bias: Address,
    pub gate: Address,
    pub out_stride: u32,
    pub gate_stride: u32,
    pub act: u32,
    pub store: u32,
}

/// Arguments of `prepare`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PrepareArgs {
    norm: NormArgs,
    x: Address,
    out: Address,
    scales: Address,
    x_stride: u32,
    k: u32,
    out_stride: u32,
    format: u32,
}

/// Arguments of `epilogue`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EpilogueArgs {
    store: StoreArgs,
    products: Address,
    row_scales: Address,
    col_scales: Address,
    stride: u32,
    n: u32,
    rows: u32,
    integer: u32,
}

/// Arguments of `linear_*`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LinearArgs {
    norm: NormArgs,
    store: StoreArgs,
    x: Address,
    w: Address,
    scales: Address,
    x_stride: u32,
    rows: u32,
    k: u32,
    n: u32,
    w_stride: u32,
    pad: u32,
}

/// Arguments of `narrow_rows` and `norm_narrow_*`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct NarrowArgs {
    norm: NormArgs,
    x: Address,
    out: Address,
    x_stride: u32,
    k: u32,
    out_stride: u32,
    rows: u32,
    narrow: u32,
    pad: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for NarrowArgs {}
// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for PrepareArgs {}
// SAFETY: as above.
unsafe impl Args for EpilogueArgs {}
// SAFETY: as above.
unsafe impl Args for LinearArgs {}

/// The kernels' number of an activation.
pub(super) fn activation(act: Activation) -> u32 {
    match act {
        Activation::None => 0,
        Activation::Relu => 1,
        Activation::Silu => 2,
        Activation::Elu => 3,
        Activation::GeluTanh => 4,
        Activation::GeluErf => 5,
    }
}

/// The kernels' number of an operand's format.
fn operand(format: Format) -> u32 {
    match format {
        Format::F32 => 0,
        Format::Bf16 => 1,
        Format::Int8 | Format::Int4 => 2,
        Format::Fp8 => 3,
    }
}

/// Bytes of one value of an operand.
fn value(format: Format) -> usize {
    match format {
        Format::F32 => 4,
        Format::Bf16 => 2,
        Format::Int8 | Format::Int4 | Format::Fp8 => 1,
    }
}

/// Input rows of a product: f32, or bf16 that was kept for it and may have to be scaled by row and column.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub x: Address,
    pub stride: u32,
    pub narrow: bool,
    pub row_scales: Address,
    pub col_scales: Address,
}

/// Prepared rows of a product: where they are and, for int8 and fp8, their scales.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub a: Address,
    pub stride: usize,
    pub scales: Address,
}

impl Cuda {
    pub(super) fn norm(&mut self, norm: &Norm<'_>) -> NormArgs {
        match norm {
            Norm::None => NormArgs::default(),
            Norm::SwiGlu => NormArgs { kind: 4, ..NormArgs::default() },
            Norm::Activation(act) => NormArgs { kind: 1, act: activation(*act), ..NormArgs::default() },
            Norm::Layer { weight, bias, eps, modulation } => {
                let mut args = NormArgs::layer(self.optional(*weight), self.optional(*bias), *eps);
                if let Some(m) = modulation {
                    (args.shift, args.shift_stride) = (self.view(&m.shift), m.shift.stride() as u32);
                    (args.scale, args.scale_stride) = (self.view(&m.scale), m.scale.stride() as u32);
                }
                args
            }
            Norm::Rms { weight, eps } => {
                NormArgs { kind: NORM_RMS, eps: *eps, weight: self.constant(weight), ..NormArgs::default() }
            }
        }
    }

    pub(crate) fn linear(&mut self, op: &LinearOp<'_>, mut out: Output<'_>) {
        let (rows, w, from) = (op.rows, op.w, &op.x.view);
        let device = self.weights(w);
        let out_stride = out.buffer.cols() as u32;
        let pending = op.x.pending();
        let (x, norm) = match pending {
            None => (self.view(from), self.norm(&op.norm)),
            // The gate was applied where its halves were made.
            Some(Pending::Gated) => (self.place(from.buffer), NormArgs::default()),
            Some(Pending::Narrow { act, bias, .. }) => {
                let x = self.place(from.buffer);
                let plain = act == 0 && bias == 0;
                let norm = match op.norm {
                    Norm::None => NormArgs { kind: 1, act, bias, ..NormArgs::default() },
                    Norm::Activation(_) | Norm::SwiGlu if plain => self.norm(&op.norm),
                    _ => panic!("an activation that is pending comes alone"),
                };
                (x, norm)
            }
        };
        let (gate, gate_stride, how) = match &op.gate {
            Gate::Set => (0, 0, 0),
            Gate::Add => (0, 0, 1),
            Gate::Gated(v) => (self.view(v), v.stride() as u32, 2),
        };
        let mut store = StoreArgs {
            out: self.write(out.buffer),
            bias: self.optional(op.bias),
            gate,
            out_stride,
            gate_stride,
            act: activation(op.act),
            store: how,
        };
        let x_stride = from.stride() as u32;
        let kept = matches!(pending, Some(Pending::Narrow { .. }));
        let shape = ProductShape {
            format: w.format,
            rows,
            n: w.n,
            k: w.k,
            stride: device.stride,
            x,
            x_stride: from.stride(),
            norm: norm.kind,
            modulated: (norm.shift, norm.scale) != (0, 0),
            processors: self.device().info().processors as usize,
            shared: self.device().info().shared as usize,
        };
        match shape.way() {
            _ if kept => {}
            ProductWay::Rows => {
                let gated = out.kept.as_ref().is_some_and(|k| k.gated);
                let gated = gated && how == 0 && op.act == Activation::None && op.bias.is_none();
                if gated {
                    out.keep(Pending::Gated);
                }
                return self.rows(w, norm, FewRows { x, stride: from.stride(), rows }, store, gated);
            }
            ProductWay::Few(kernel) => {
                return self.few_rows(kernel, w, norm, FewRows { x, stride: from.stride(), rows }, store);
            }
            ProductWay::Library => {}
        }
        // Rows that are already as the product takes them.
        let ready = match pending {
            None | Some(Pending::Gated) => w.format == Format::F32,
            Some(Pending::Narrow { act, bias, .. }) => w.format == Format::Bf16 && (act, bias) == (0, 0),
        };
        let plain = (norm.kind == 0 || matches!(op.norm, Norm::None)) && ready;
        // The next product reads eight values at a time, whole rows or the halves of a gated unit.
        let narrow = out.is_for(w.format) && how == 0 && out_stride.is_multiple_of(16);
        // Halves of a gated unit take no bias or activation of their own with them.
        let gated = out.kept.as_ref().is_some_and(|k| k.gated);
        let narrow = narrow
            && (!gated || (store.act, store.bias) == (0, 0))
            && match w.format {
                Format::Bf16 => true,
                Format::Fp8 => w.n.is_multiple_of(SIXTEEN),
                Format::F32 | Format::Int8 | Format::Int4 => false,
            };
        // A result that stays bf16 fills half of its buffer; the other half keeps the scales of its rows for the next product.
        let kept_scales = if narrow { store.out + 2 * (rows as u64) * u64::from(out_stride) } else { 0 };
        let prepared = if plain && device.stride == w.k && x.is_multiple_of(ALIGNED) {
            Rows { a: x, stride: from.stride(), scales: 0 }
        } else {
            let [row_scales, col_scales] = match pending {
                Some(Pending::Narrow { scales, .. }) => scales,
                None | Some(Pending::Gated) => [0; 2],
            };
            let from = Source { x, stride: x_stride, narrow: kept, row_scales, col_scales };
            self.prepare(norm, from, rows, w.k, device.stride, w.format, kept_scales)
        };
        if narrow {
            let mut scales = [0; 2];
            if w.format == Format::Fp8 && !self.device().scales_products() {
                scales = [prepared.scales, device.scales()];
            }
            out.keep(Pending::Narrow { act: store.act, bias: store.bias, scales });
            (store.act, store.bias) = (0, 0);
        }
        self.product(w, prepared, rows, store, narrow);
    }

    /// A product of few rows by one kernel.
    pub(super) fn few_rows(
        &mut self,
        kernel: KernelOf<LinearArgs>,
        w: &crate::Matrix,
        norm: NormArgs,
        from: FewRows,
        store: StoreArgs,
    ) {
        let FewRows { x, stride: x_stride, rows } = from;
        let device = self.weights(w);
        let args = LinearArgs {
            norm,
            store,
            x,
            w: device.at(),
            scales: device.scales(),
            x_stride: x_stride as u32,
            rows: rows as u32,
            k: w.k as u32,
            n: w.n as u32,
            w_stride: device.stride as u32,
            pad: 0,
        };
        // A launch has rows of one power of two: the kernel rounds up.
        let shared = (rows.next_power_of_two() * device.stride * 4) as u32;
        // Enough blocks to fill the device; each takes several outputs when there are more.
        let most = FEW_BLOCKS * self.device().info().processors;
        let grid = [(w.n as u32).div_ceil(WARPS).min(most), 1, 1];
        let shape = Shape { grid, block: THREADS, shared };
        self.queue.launch(kernel, shape, &args);
    }

    /// Norms rows and puts them into the format that a product takes; scales go to `kept_scales` if that is not 0.
    #[allow(clippy::too_many_arguments)]
    fn prepare(
        &mut self,
        norm: NormArgs,
        from: Source,
        rows: usize,
        k: usize,
        stride: usize,
        format: Format,
        kept_scales: Address,
    ) -> Rows {
        let a = self.queue.reserve(&mut self.scratch.operand, rows * stride * value(format));
        let Source { x, stride: x_stride, narrow, .. } = from;
        if format == Format::Fp8 {
            let scales = match kept_scales {
                0 => self.queue.reserve(&mut self.scratch.scales, rows * 4),
                kept => kept,
            };
            if self.quantise(norm, from, rows, [k, stride], [a, scales]) {
                return Rows { a, stride, scales };
            }
        }
        assert!(from.row_scales == 0, "products of fp8 alone read what one left to be scaled");
        let whole = k == stride && x_stride.is_multiple_of(8) && x.is_multiple_of(16);
        if format == Format::Bf16 && whole {
            let sums = matches!(norm.kind, NORM_LAYER | NORM_RMS);
            if let Some(kernel) = choice::narrow(k, sums) {
                let args = NarrowArgs {
                    norm,
                    x,
                    out: a,
                    x_stride,
                    k: k as u32,
                    out_stride: stride as u32,
                    rows: rows as u32,
                    narrow: u32::from(narrow),
                    pad: 0,
                };
                // A warp has a row: blocks as small as it takes to have one for every multiprocessor.
                let processors = self.device().info().processors as usize;
                let warps = (rows / processors).clamp(1, WARPS as usize).next_power_of_two();
                let (blocks, block) = match sums {
                    true => (rows.div_ceil(warps), 32 * warps as u32),
                    false => ((rows * stride / 8).div_ceil(THREADS as usize), THREADS),
                };
                let shape = Shape { grid: [blocks as u32, 1, 1], block, shared: 0 };
                self.queue.launch(kernel, shape, &args);
                return Rows { a, stride, scales: 0 };
            }
        }
        assert!(!narrow, "what is kept for products is read by them whole");
        let scales = match kept_scales {
            0 => self.queue.reserve(&mut self.scratch.scales, rows * 4),
            kept => kept,
        };
        let args = PrepareArgs {
            norm,
            x,
            out: a,
            scales,
            x_stride,
            k: k as u32,
            out_stride: stride as u32,
            format: operand(format),
        };
        let shape = Shape { grid: [rows as u32, 1, 1], block: THREADS, shared: 0 };
        self.queue.launch(program::PREPARE, shape, &args);
        Rows { a, stride, scales }
    }

    /// The library's product of prepared rows, to its place: straight there when nothing follows it.
    pub(super) fn product(
        &mut self,
        w: &crate::Matrix,
        rows: Rows,
        count: usize,
        store: StoreArgs,
        narrow: bool,
    ) {
        let device = self.weights(w);
        let kind = match w.format {
            Format::Fp8 => return self.product_fp8(w, rows, count, store, narrow),
            Format::F32 if self.tf32 => ProductKind::Tf32,
            Format::F32 => ProductKind::F32,
            Format::Bf16 => ProductKind::Bf16,
            Format::Int8 | Format::Int4 => ProductKind::Int8,
        };
        let plain = store.act == 0 && store.store != 2 && kind != ProductKind::Int8;
        // The second and later pieces of a convolution may be at any address.
        let plain = plain && store.out.is_multiple_of(ALIGNED);
        let n = w.n as u32;
        let mut product = Product {
            kind,
            m: count as u32,
            // See `DeviceMatrix::store`.
            n: if kind == ProductKind::Int8 { n.next_multiple_of(4) } else { n },
            k: device.stride as u32,
            a: rows.a,
            w: device.at(),
            out: store.out,
            a_stride: rows.stride as u32,
            w_stride: device.stride as u32,
            out_stride: store.out_stride,
            bias: store.bias,
            accumulate: store.store == 1,
            narrow,
            scales: [0; 2],
        };
        if plain {
            return self.queue.product(product);
        }
        assert!(!narrow, "what is kept for products comes straight from one");
        let stride = n.next_multiple_of(4);
        let products = self.queue.reserve(&mut self.scratch.products, count * stride as usize * 4);
        (product.out, product.out_stride, product.accumulate) = (products, stride, false);
        product.bias = 0;
        self.queue.product(product);
        let args = EpilogueArgs {
            store,
            products,
            row_scales: rows.scales,
            col_scales: device.scales(),
            stride,
            n,
            rows: count as u32,
            integer: u32::from(kind == ProductKind::Int8),
        };
        let (kernel, fours) =
            choice::epilogue(&[store.out_stride, store.gate_stride, n], &[store.out, store.gate]);
        let grid = if fours {
            [(count as u32 * (n / 4)).div_ceil(THREADS), 1, 1]
        } else {
            [n.div_ceil(THREADS), count.min(MAX_ROW_BLOCKS) as u32, 1]
        };
        self.queue.launch(kernel, Shape { grid, block: THREADS, shared: 0 }, &args);
    }
}
