//! Products: few rows by one kernel with everything around them, many by the library between two kernels.

use super::driver::{Address, Product, ProductKind, Shape};
use super::fp8::SIXTEEN;
use super::queue::Args;
use super::row::FewRows;
use super::{Cuda, program};
use crate::exec::{Buffer, Gate, LinearOp, Norm, Pending};
use crate::matrix::Format;
use crate::simd::Activation;

/// Rows up to which a product is one kernel.
pub(super) const FEW_ROWS: usize = 8;
/// Rows up to which that kernel is the one that leaves most room for others.
const ONE_ROWS: usize = 2;
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

/// Norms whose numbers take sums over a row: as in `common.cuh`.
pub(super) const NORM_LAYER: u32 = 2;
pub(super) const NORM_RMS: u32 = 3;

/// The device's form of a norm: see `common.cuh`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct NormArgs {
    weight: Address,
    bias: Address,
    pub shift: Address,
    pub scale: Address,
    pub kind: u32,
    act: u32,
    shift_stride: u32,
    scale_stride: u32,
    eps: f32,
    pad: u32,
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

/// Rows that a product begins with: f32, or bf16 that was kept for it, perhaps still to be scaled by row and column.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub x: Address,
    pub stride: u32,
    pub narrow: bool,
    pub row_scales: Address,
    pub col_scales: Address,
}

/// Four-value pieces that each lane of a warp has of a row it holds: as many as a kernel is made for.
pub(super) fn row_pieces(k: usize) -> usize {
    if k.is_multiple_of(4) { k.div_ceil(128).next_power_of_two().max(4) } else { usize::MAX }
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

    pub(crate) fn linear(&mut self, op: &LinearOp<'_>, out: &mut Buffer) {
        let (rows, w) = (op.rows, op.w);
        let device = self.weights(w);
        let out_stride = out.cols() as u32;
        let pending = *op.x.buffer.twin.pending.lock().unwrap_or_else(|e| e.into_inner());
        let (x, norm) = match pending {
            None => (self.view(&op.x), self.norm(&op.norm)),
            // The gate was applied where its halves were made.
            Some(Pending::Gated) => {
                assert!(matches!(op.norm, Norm::SwiGlu), "what was gated is read as such");
                (self.place(op.x.buffer) + 4 * op.x.cols.start as u64, NormArgs::default())
            }
            Some(Pending::Narrow { act, bias, .. }) => {
                let x = self.place(op.x.buffer) + 2 * op.x.cols.start as u64;
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
            out: self.write(out),
            bias: self.optional(op.bias),
            gate,
            out_stride,
            gate_stride,
            act: activation(op.act),
            store: how,
        };
        let x_stride = op.x.stride() as u32;
        let kept = matches!(pending, Some(Pending::Narrow { .. }));
        let few = FewRows { x, stride: op.x.stride(), rows };
        if !kept && self.takes_rows(w, &norm, &few) {
            let gated = op.gated && how == 0 && op.act == Activation::None && op.bias.is_none();
            if gated {
                *out.twin.pending.get_mut().unwrap_or_else(|e| e.into_inner()) = Some(Pending::Gated);
            }
            return self.rows(w, norm, few, store, gated);
        }
        if !kept && self.is_few(w, rows) {
            return self.few_rows(w, norm, x, op.x.stride(), rows, store);
        }
        // Rows that are already as the product takes them.
        let ready = match pending {
            None | Some(Pending::Gated) => w.format == Format::F32,
            Some(Pending::Narrow { act, bias, .. }) => w.format == Format::Bf16 && (act, bias) == (0, 0),
        };
        let plain = (norm.kind == 0 || matches!(op.norm, Norm::None)) && ready;
        // Whoever reads it, whole or as the halves of a gated unit, reads eight values at a time.
        let narrow = op.narrow && how == 0 && out_stride.is_multiple_of(16);
        let narrow = narrow
            && match w.format {
                Format::Bf16 => true,
                Format::Fp8 => w.n.is_multiple_of(SIXTEEN),
                Format::F32 | Format::Int8 | Format::Int4 => false,
            };
        // A result that stays bf16 leaves half of its place empty: its rows' scales wait there for whoever reads it.
        let kept_scales = if narrow { store.out + 2 * (rows as u64) * u64::from(out_stride) } else { 0 };
        let prepared = if plain && device.stride == w.k && x.is_multiple_of(ALIGNED) {
            Rows { a: x, stride: op.x.stride(), scales: 0 }
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
            let left = Pending::Narrow { act: store.act, bias: store.bias, scales };
            (store.act, store.bias) = (0, 0);
            *out.twin.pending.get_mut().unwrap_or_else(|e| e.into_inner()) = Some(left);
        }
        self.product(w, prepared, rows, store, narrow);
    }

    /// Whether a product of so many rows is one kernel: few of them, and they fit into shared memory.
    pub(super) fn is_few(&self, w: &crate::Matrix, rows: usize) -> bool {
        rows <= FEW_ROWS && rows.next_power_of_two() * w.kp * 4 <= self.device().info().shared as usize - 2048
    }

    /// A product of few rows by one kernel.
    pub(super) fn few_rows(
        &mut self,
        w: &crate::Matrix,
        norm: NormArgs,
        x: Address,
        x_stride: usize,
        rows: usize,
        store: StoreArgs,
    ) {
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
        let kernel = match (w.format, rows <= ONE_ROWS) {
            (Format::F32, true) => program::LINEAR_ONE_F32,
            (Format::F32, false) => program::LINEAR_F32,
            (Format::Bf16, true) => program::LINEAR_ONE_BF16,
            (Format::Bf16, false) => program::LINEAR_BF16,
            (Format::Int8 | Format::Int4, true) => program::LINEAR_ONE_INT8,
            (Format::Int8 | Format::Int4, false) => program::LINEAR_INT8,
            (Format::Fp8, true) => program::LINEAR_ONE_FP8,
            (Format::Fp8, false) => program::LINEAR_FP8,
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
            let pieces = row_pieces(k);
            let kernel = match pieces {
                _ if !sums => Some(program::NARROW_ROWS),
                4 => Some(program::NORM_NARROW_4),
                8 => Some(program::NORM_NARROW_8),
                16 => Some(program::NORM_NARROW_16),
                _ => None,
            };
            if let Some(kernel) = kernel {
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
        // Later pieces of a convolution may begin anywhere.
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
        let fours = [store.out_stride, store.gate_stride, n].iter().all(|v| v.is_multiple_of(4))
            && [store.out, store.gate].iter().all(|at| at.is_multiple_of(16));
        let (kernel, grid) = if fours {
            (program::EPILOGUE4, [(count as u32 * (n / 4)).div_ceil(THREADS), 1, 1])
        } else {
            (program::EPILOGUE, [n.div_ceil(THREADS), count.min(MAX_ROW_BLOCKS) as u32, 1])
        };
        self.queue.launch(kernel, Shape { grid, block: THREADS, shared: 0 }, &args);
    }
}
