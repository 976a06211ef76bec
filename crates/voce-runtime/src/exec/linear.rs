//! Norm, product and epilogue as one op.

use std::ops::Range;

use super::{Exec, Input, Output, Shared, Target, Vector, View};
use crate::matrix::{Format, Matrix};
use crate::pool::{Parts, share};
use crate::simd::gemm::Gemm;
use crate::simd::lanes::LANES;
use crate::simd::quant::GROUP;
use crate::simd::{Activation, ByteRows, Epilogue, Kernels, NormRow, Rows, Store, split_row_bytes};

/// Panels per block of products.
const BLOCK_PANELS: usize = 4;
/// Rows per block of products.
const BLOCK_ROWS: usize = 64;
/// Values up to which every worker prepares the operand for itself instead of meeting the others.
const PREPARE_ALONE: usize = 8 * 1024;

/// Shift and scale of an adaptive norm, per row.
#[derive(Clone)]
pub struct Modulation<'a> {
    /// Added.
    pub shift: View<'a>,
    /// `1 + scale` is multiplied in.
    pub scale: View<'a>,
}

/// What happens to a row before the product.
#[derive(Clone, Default)]
pub enum Norm<'a> {
    /// Nothing.
    #[default]
    None,
    /// An activation.
    Activation(Activation),
    /// `silu(x[..k]) * x[k..]` of rows of `2 k` values: what a gated MLP has between its products.
    SwiGlu,
    /// Layer norm.
    Layer {
        /// Multiplied in, if present.
        weight: Option<&'a Vector>,
        /// Added, if present.
        bias: Option<&'a Vector>,
        /// Added to the variance.
        eps: f32,
        /// Adaptive shift and scale after the affine part.
        modulation: Option<Modulation<'a>>,
    },
    /// Root-mean-square norm.
    Rms {
        /// Multiplied in.
        weight: &'a Vector,
        /// Added to the mean square.
        eps: f32,
    },
}

/// How the result meets the output.
#[derive(Clone, Default)]
pub enum Gate<'a> {
    /// `out = v`.
    #[default]
    Set,
    /// `out += v`.
    Add,
    /// `out += gate * v`.
    Gated(View<'a>),
}

/// `out <gate>= act(norm(x) W^T + bias)` over `rows` rows.
pub struct LinearOp<'a> {
    /// Input rows.
    pub x: Input<'a>,
    /// How many.
    pub rows: usize,
    /// Applied to each input row.
    pub norm: Norm<'a>,
    /// Weights.
    pub w: &'a Matrix,
    /// Added to the product.
    pub bias: Option<&'a Vector>,
    /// Applied after the bias.
    pub act: Activation,
    /// How the result meets `out`.
    pub gate: Gate<'a>,
}

impl<'a> LinearOp<'a> {
    /// A plain product.
    pub fn new(x: impl Into<Input<'a>>, rows: usize, w: &'a Matrix) -> Self {
        Self { x: x.into(), rows, norm: Norm::None, w, bias: None, act: Activation::None, gate: Gate::Set }
    }
}

/// Where product rows come from and go to; shared with convolution.
pub(super) struct Product<'a> {
    pub w: &'a Matrix,
    pub operand: Operand,
    pub rows: usize,
    pub bias: Option<&'a Vector>,
    pub act: Activation,
    pub store: Store,
    pub gate: Option<(Shared<f32>, usize)>,
    /// Workers write disjoint parts of it.
    pub out: *mut f32,
    pub out_stride: usize,
}

/// Prepared input rows of a product.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub a: *const u8,
    pub lda: usize,
    pub scales: *const f32,
    pub sums: *const i32,
}

// SAFETY: read-only while an op runs.
unsafe impl Sync for Operand {}
// SAFETY: as above.
unsafe impl Send for Operand {}

impl Exec {
    /// Runs a fused linear op into the first columns of `out`.
    pub fn linear(&mut self, op: &LinearOp<'_>, out: &mut impl Target) {
        self.linear_to(op, out.output());
    }

    fn linear_to(&mut self, op: &LinearOp<'_>, output: Output<'_>) {
        let (rows, w, x, out) = (op.rows, op.w, &op.x.view, &*output.buffer);
        let gates = matches!(op.norm, Norm::SwiGlu);
        assert_eq!(x.width(), if gates { 2 } else { 1 } * w.k, "input width");
        assert!(
            op.x.kept.is_none_or(|k| k.gated == gates),
            "rows of gated units are read as such, and no others"
        );
        assert!(op.x.kept.is_none_or(|k| k.format == w.format), "rows for products of this format");
        assert!(rows <= x.rows() && rows <= out.rows, "rows fit");
        assert!(w.n <= out.cols, "outputs fit");
        w.expect_place(self.cuda.is_some());
        if rows == 0 {
            return;
        }
        match &op.gate {
            Gate::Gated(v) => assert!(v.width() == w.n && v.rows() >= rows, "gate shape"),
            Gate::Set | Gate::Add => {}
        }
        assert!(op.bias.is_none_or(|b| b.len() == w.n), "bias length");
        let kind = OperandKind::of(w.format, self.kernels);
        let prepare = Prepare::new(op, kind);
        if let Some(cuda) = &mut self.cuda {
            return cuda.linear(op, output);
        }
        let out = output.buffer;
        let (threads, work) = (self.pool.threads(), rows * w.kp * w.n);
        let direct = kind == OperandKind::F32 && w.kp == w.k && matches!(op.norm, Norm::None);
        // Each worker prepares its own copy when that is cheaper than a meeting.
        let alone = !direct && (threads == 1 || rows * w.k <= PREPARE_ALONE);
        let copies = if alone { threads } else { 1 };
        let layout = OperandLayout::new(kind, rows, w);
        self.scratch.operand.reserve_zeroed(copies * layout.bytes + 64);
        self.scratch.scales.reserve_zeroed(copies * rows);
        self.scratch.sums.reserve_zeroed(copies * rows * layout.groups);
        for s in &mut self.scratch.rows {
            s.reserve_zeroed(w.k.next_multiple_of(LANES));
        }
        self.reserve_products(rows);

        let operand = Shared(self.scratch.operand.as_mut_ptr());
        let scales = Shared(self.scratch.scales.as_mut_ptr());
        let sums = Shared(self.scratch.sums.as_mut_ptr());
        let temp: Shared<_> = Shared(self.scratch.rows.as_mut_ptr());
        let products = Shared(self.scratch.products.as_mut_ptr());
        let kernels = self.kernels;
        let place = |copy: usize| {
            // SAFETY: `copies` of each were reserved above.
            unsafe {
                Place {
                    a: operand.get().add(copy * layout.bytes),
                    scales: scales.get().add(copy * rows),
                    sums: sums.get().add(copy * rows * layout.groups),
                }
            }
        };
        let (store, gate) = match &op.gate {
            Gate::Set => (Store::Set, None),
            Gate::Add => (Store::Add, None),
            Gate::Gated(v) => (Store::AddGated, Some((Shared(v.ptr().cast_mut()), v.stride()))),
        };
        let (out, out_stride) = (Shared(out.data.as_mut_ptr()), out.cols);
        let (x_stride, x) = (x.stride(), Shared(x.ptr().cast_mut()));
        let product = |place: &Place| {
            let operand = if direct {
                Operand {
                    a: x.get().cast(),
                    lda: x_stride * 4,
                    scales: std::ptr::null(),
                    sums: std::ptr::null(),
                }
            } else {
                Operand { a: place.a, lda: layout.row, scales: place.scales, sums: place.sums }
            };
            Product { w, operand, rows, bias: op.bias, act: op.act, store, gate, out: out.get(), out_stride }
        };
        if !direct && !alone {
            self.pool.run_parts(work, |id, s, parts| {
                let place = place(0);
                for r in parts.of(share(rows, 1, s, threads), 1).flatten() {
                    // SAFETY: rows are split by worker; scratch was reserved above.
                    unsafe { prepare.row(kernels, r, &layout, &place, (*temp.get().add(id)).as_mut_ptr()) };
                }
            });
        }
        self.pool.run_parts(work, |id, s, parts| {
            let place = place(if alone { id } else { 0 });
            // The first share that a worker comes to is its own.
            if alone && s == id {
                for r in 0..rows {
                    // SAFETY: this worker's own copy.
                    unsafe { prepare.row(kernels, r, &layout, &place, (*temp.get().add(id)).as_mut_ptr()) };
                }
            }
            // SAFETY: each worker takes its own outputs and its own block of products.
            unsafe {
                let products = (*products.get().add(id)).as_mut_ptr();
                run_product(kernels, &product(&place), (s, threads), parts, products);
            }
        });
    }

    pub(super) fn reserve_products(&mut self, rows: usize) {
        let len = rows.min(BLOCK_ROWS).next_multiple_of(16) * BLOCK_PANELS * LANES;
        for p in &mut self.scratch.products {
            p.reserve_zeroed(len);
        }
    }
}

/// What a product's kernel takes as A.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OperandKind {
    F32,
    Bf16,
    /// As the kernels quantise them for int8 weights, one for each input.
    Bytes,
    SplitBytes,
    /// With a sum for each group, for int4 weights.
    SignedBytes,
}

impl OperandKind {
    pub(super) fn of(format: Format, kernels: &Kernels) -> Self {
        match format {
            Format::F32 => OperandKind::F32,
            Format::Bf16 if kernels.bf16_activations => OperandKind::Bf16,
            Format::Bf16 | Format::Fp8 => OperandKind::F32,
            Format::Int8 if kernels.byte_rows == ByteRows::Split => OperandKind::SplitBytes,
            Format::Int8 => OperandKind::Bytes,
            Format::Int4 => OperandKind::SignedBytes,
        }
    }
}

pub(super) struct OperandLayout {
    /// Bytes per row.
    pub(super) row: usize,
    /// Bytes of one copy.
    pub(super) bytes: usize,
    /// Group sums per row.
    groups: usize,
}

impl OperandLayout {
    pub(super) fn new(kind: OperandKind, rows: usize, w: &Matrix) -> Self {
        let row = match kind {
            OperandKind::F32 => w.kp * 4,
            OperandKind::Bf16 => w.kp * 2,
            OperandKind::Bytes | OperandKind::SignedBytes => w.kp,
            OperandKind::SplitBytes => split_row_bytes(w.kp),
        }
        .next_multiple_of(64);
        // Rows a multiple of a cache way's size apart would all want the same lines of the cache.
        let row = if row.is_multiple_of(512) { row + 64 } else { row };
        let groups = if kind == OperandKind::SignedBytes { w.kp / GROUP } else { 0 };
        Self { row, bytes: rows * row, groups }
    }
}

struct Place {
    a: *mut u8,
    scales: *mut f32,
    sums: *mut i32,
}

/// How one input row becomes one operand row.
struct Prepare {
    x: *const f32,
    x_stride: usize,
    k: usize,
    kp: usize,
    kind: OperandKind,
    act: Activation,
    swiglu: bool,
    norm: Option<NormRow>,
    modulation_stride: usize,
}

// SAFETY: read-only pointers into buffers that outlive the op.
unsafe impl Sync for Prepare {}

impl Prepare {
    fn new(op: &LinearOp<'_>, kind: OperandKind) -> Self {
        let null = std::ptr::null();
        let mut p = Prepare {
            x: op.x.view.ptr(),
            x_stride: op.x.view.stride(),
            k: op.w.k,
            kp: op.w.kp,
            kind,
            act: Activation::None,
            swiglu: matches!(op.norm, Norm::SwiGlu),
            norm: None,
            modulation_stride: 0,
        };
        let check = |v: &Vector| {
            assert_eq!(v.len(), op.w.k, "norm parameters");
            v.as_ptr()
        };
        match &op.norm {
            Norm::None | Norm::SwiGlu => {}
            Norm::Activation(act) => p.act = *act,
            Norm::Layer { weight, bias, eps, modulation } => {
                let mut row = NormRow {
                    centred: true,
                    eps: *eps,
                    weight: weight.map_or(null, check),
                    bias: bias.map_or(null, check),
                    shift: null,
                    scale: null,
                };
                if let Some(m) = modulation {
                    assert!(m.shift.width() == op.w.k && m.scale.width() == op.w.k, "modulation width");
                    assert!(m.shift.rows() >= op.rows && m.scale.rows() >= op.rows, "modulation rows");
                    assert_eq!(m.shift.stride(), m.scale.stride(), "modulation of one buffer");
                    (row.shift, row.scale) = (m.shift.ptr(), m.scale.ptr());
                    p.modulation_stride = m.shift.stride();
                }
                p.norm = Some(row);
            }
            Norm::Rms { weight, eps } => {
                p.norm = Some(NormRow {
                    centred: false,
                    eps: *eps,
                    weight: check(weight),
                    bias: null,
                    shift: null,
                    scale: null,
                });
            }
        }
        p
    }

    /// Prepares row `r`. `temp` has room for a row.
    unsafe fn row(&self, kn: &Kernels, r: usize, layout: &OperandLayout, place: &Place, temp: *mut f32) {
        // SAFETY: row r of the input and of the operand; sizes were checked when the op began.
        unsafe {
            let mut x = self.x.add(r * self.x_stride);
            let a = place.a.add(r * layout.row);
            let f32_out = self.kind == OperandKind::F32;
            if self.swiglu {
                let to = if f32_out { a.cast() } else { temp };
                (kn.swiglu)(x, self.k, to);
                x = to;
            } else if let Some(mut norm) = self.norm {
                if !norm.scale.is_null() {
                    norm.shift = norm.shift.add(r * self.modulation_stride);
                    norm.scale = norm.scale.add(r * self.modulation_stride);
                }
                let to = if f32_out { a.cast() } else { temp };
                (kn.norm)(x, self.k, &norm, to);
                x = to;
            } else if self.act != Activation::None && self.kind != OperandKind::Bf16 {
                let to = if f32_out { a.cast() } else { temp };
                (kn.map)(x, self.k, self.act, to);
                x = to;
            } else if f32_out {
                std::ptr::copy_nonoverlapping(x, a.cast(), self.k);
            }
            match self.kind {
                OperandKind::F32 => {
                    std::slice::from_raw_parts_mut(a.cast::<f32>().add(self.k), self.kp - self.k).fill(0.0);
                }
                OperandKind::Bf16 => {
                    let act = if self.norm.is_some() { Activation::None } else { self.act };
                    (kn.map_bf16)(x, self.k, act, a.cast());
                    std::slice::from_raw_parts_mut(a.cast::<u16>().add(self.k), self.kp - self.k).fill(0);
                }
                OperandKind::Bytes | OperandKind::SplitBytes => {
                    *place.scales.add(r) = (kn.quantize_int8)(x, self.k, self.kp, a);
                }
                OperandKind::SignedBytes => {
                    let sums = place.sums.add(r * layout.groups);
                    *place.scales.add(r) = (kn.quantize_i8)(x, self.k, self.kp, a, sums);
                }
            }
        }
    }
}

/// One worker's parts of a share of a product: of its panels, or of its rows when those are more.
///
/// # Safety
/// The operand and output of `p` are valid; `products` has room for a block; workers have distinct ids.
pub(super) unsafe fn run_product(
    kn: &Kernels,
    p: &Product<'_>,
    (id, threads): (usize, usize),
    parts: &mut Parts<'_>,
    products: *mut f32,
) {
    let panels = p.w.n.div_ceil(LANES);
    // SAFETY: as the caller vouches; parts are disjoint.
    unsafe {
        if panels < 4 * threads && p.rows >= 16 * threads {
            for rows in parts.of(share(p.rows, 32, id, threads), 32) {
                run_block(kn, p, rows, 0..panels, products);
            }
        } else {
            let grain = BLOCK_PANELS.min(panels.div_ceil(threads));
            for panels in parts.of(share(panels, grain, id, threads), grain) {
                run_block(kn, p, 0..p.rows, panels, products);
            }
        }
    }
    (kn.release)();
}

/// Some panels of some rows of a product.
///
/// # Safety
/// As for [`run_product`].
unsafe fn run_block(
    kn: &Kernels,
    p: &Product<'_>,
    rows: Range<usize>,
    panels: Range<usize>,
    products: *mut f32,
) {
    let gemm = match p.w.format {
        Format::F32 => kn.gemm_f32,
        Format::Bf16 => kn.gemm_bf16,
        Format::Int8 => kn.gemm_int8,
        Format::Int4 => kn.gemm_int4,
        Format::Fp8 => unreachable!("fp8 is never packed for a CPU"),
    };
    let (panel_bytes, data) = (p.w.panel_bytes(), p.w.data.bytes());
    let scales = p.w.scales.as_ref().map_or(std::ptr::null(), |s| s.bytes().as_ptr());
    let groups = p.w.kp / GROUP;
    let ldc = BLOCK_PANELS * LANES;
    let mut panel = panels.start;
    while panel < panels.end {
        let np = BLOCK_PANELS.min(panels.end - panel);
        let n0 = panel * LANES;
        let n = (np * LANES).min(p.w.n - n0);
        let mut row = rows.start;
        while row < rows.end {
            let m = BLOCK_ROWS.min(rows.end - row);
            // SAFETY: offsets follow the packed layout; rows and panels are in range.
            unsafe {
                let out = Rows { at: p.out.add(row * p.out_stride + n0), stride: p.out_stride };
                gemm(&Gemm {
                    a: p.operand.a.add(row * p.operand.lda),
                    lda: p.operand.lda,
                    m,
                    k: p.w.kp,
                    b: data.as_ptr().add(panel * panel_bytes),
                    panel: panel_bytes,
                    panels: np,
                    c: products,
                    ldc,
                    a_scale: p.operand.scales.wrapping_add(row),
                    b_scale: match p.w.format {
                        Format::Int8 => scales.add(n0 * 4),
                        Format::Int4 => scales.add(panel * groups * LANES * 2),
                        _ => scales,
                    },
                    b_sum: p.w.sums.as_ptr().wrapping_add(n0),
                    a_sums: p.operand.sums.wrapping_add(row * groups),
                    accumulate: false,
                    to: out.at,
                    ldt: out.stride,
                });
                let gate = match p.gate {
                    Some((g, stride)) => Rows { at: g.get().cast_const().add(row * stride + n0), stride },
                    None => Rows { at: std::ptr::null(), stride: 0 },
                };
                let e = Epilogue {
                    bias: p.bias.map_or(std::ptr::null(), |b| b.as_ptr().add(n0)),
                    act: p.act,
                    store: p.store,
                    gate,
                };
                (kn.epilogue)(Rows { at: products.cast_const(), stride: ldc }, m, n, &e, out);
            }
            row += m;
        }
        panel += np;
    }
}
