//! Kernels and the table that holds one set of them per instruction set.
//!
//! Kernels are written once over sixteen lanes and instantiated per instruction set; integer products are
//! written over a register of sums, and only tile products by hand. The table is chosen once, so no call branches on the CPU.

// Register blocks are indexed by row and panel on both sides of an assignment.
#![allow(clippy::needless_range_loop)]

#[cfg(target_arch = "x86_64")]
pub mod amx;
pub mod attention;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod dots;
pub mod gemm;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod integer;
pub mod lanes;
#[cfg(target_arch = "aarch64")]
pub mod neon;
#[cfg(target_arch = "aarch64")]
pub mod neon_dots;
#[cfg(target_arch = "aarch64")]
pub mod neon_products;
pub mod quant;
pub mod select;
pub mod snake;
#[cfg(target_arch = "x86_64")]
pub mod split;
pub mod taps;
pub mod vector;
#[cfg(target_arch = "x86_64")]
pub mod x86;
#[cfg(target_arch = "x86_64")]
pub mod x86_dots;
#[cfg(target_arch = "x86_64")]
pub mod x86_products;

use gemm::{Bf16Panels, F32Panels, Gemm};
use lanes::Portable;

use crate::Isa;

/// Point-wise functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// Identity.
    #[default]
    None,
    /// max(x, 0).
    Relu,
    /// x * sigmoid(x).
    Silu,
    /// x for x > 0, else e^x - 1.
    Elu,
    /// GELU, tanh approximation.
    GeluTanh,
    /// GELU, exact.
    GeluErf,
}

/// How a product meets its output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// `out = v`.
    #[default]
    Set,
    /// `out += v`.
    Add,
    /// `out += gate * v`.
    AddGated,
}

/// Parameters of one row's norm; null pointers mean absent.
#[derive(Clone, Copy)]
pub struct NormRow {
    /// Subtract the mean (layer norm) or not (RMS norm).
    pub centred: bool,
    /// Added to the variance.
    pub eps: f32,
    /// Multiplied in.
    pub weight: *const f32,
    /// Added.
    pub bias: *const f32,
    /// Modulation: `v * (1 + scale) + shift`.
    pub shift: *const f32,
    /// See `shift`; both or none.
    pub scale: *const f32,
}

/// A pointer to rows and the distance between them, in values.
#[derive(Clone, Copy)]
pub struct Rows<P> {
    /// The first row.
    pub at: P,
    /// From one row to the next.
    pub stride: usize,
}

/// Parameters of an epilogue; null pointers mean absent.
#[derive(Clone, Copy)]
pub struct Epilogue {
    /// Added before the activation.
    pub bias: *const f32,
    /// Applied after the bias.
    pub act: Activation,
    /// How the result meets the output.
    pub store: Store,
    /// For [`Store::AddGated`].
    pub gate: Rows<*const f32>,
}

/// Input rows of one output row of a depthwise convolution; null rows are zeros, a null bias is absent.
pub struct Taps<'a> {
    /// A row per tap.
    pub rows: &'a [*const f32],
    /// `[taps][channels]`.
    pub weights: *const f32,
    /// Added.
    pub bias: *const f32,
}

/// Input of one output time row of a 3 x 3 convolution with stride 2; null rows are zeros.
pub struct Taps2d {
    /// Three time rows.
    pub rows: [*const f32; 3],
    /// Input bins per row.
    pub bins: usize,
    /// Output bins.
    pub out_bins: usize,
    /// Zero bins before the first.
    pub left: usize,
    /// Output channels.
    pub channels: usize,
    /// `[3][3][channels]`: time, frequency.
    pub weights: *const f32,
    /// Added; null when absent.
    pub bias: *const f32,
}

/// What `quantize_int8` writes and int8 products read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRows {
    /// Bytes with 128 added: for products of unsigned by signed bytes.
    Biased,
    /// Signed bytes.
    Signed,
    /// Signed bytes, and behind them what was taken from pairs that are too large for 16 bits.
    Split,
}

/// Epilogue of `m` rows by `n` values.
pub type EpilogueFn = unsafe fn(Rows<*const f32>, usize, usize, &Epilogue, Rows<*mut f32>);

/// One set of kernels. All functions require the CPU features of the table's instruction set.
pub struct Kernels {
    /// The instruction set.
    pub isa: Isa,
    /// Whether bf16 products take bf16 activations (AMX) or f32 ones.
    pub bf16_activations: bool,
    /// f32 weights.
    pub gemm_f32: unsafe fn(&Gemm),
    /// bf16 weights.
    pub gemm_bf16: unsafe fn(&Gemm),
    /// The rows that int8 products take.
    pub byte_rows: ByteRows,
    /// int8 weights, activations as `quantize_int8` writes them.
    pub gemm_int8: unsafe fn(&Gemm),
    /// int4 weights, signed-byte activations.
    pub gemm_int4: unsafe fn(&Gemm),
    /// Norm of one row.
    pub norm: unsafe fn(*const f32, usize, &NormRow, *mut f32),
    /// Activation of one row.
    pub map: unsafe fn(*const f32, usize, Activation, *mut f32),
    /// Activation of one row, to bf16.
    pub map_bf16: unsafe fn(*const f32, usize, Activation, *mut u16),
    /// Row of some values to bytes as `byte_rows` says, of which those behind the values stand for zeros; gives the scale.
    pub quantize_int8: unsafe fn(*const f32, usize, usize, *mut u8) -> f32,
    /// Row to signed bytes and group sums.
    pub quantize_i8: unsafe fn(*const f32, usize, usize, *mut u8, *mut i32) -> f32,
    /// Epilogue of a block of rows.
    pub epilogue: EpilogueFn,
    /// Gives back what a worker's kernels hold between calls; run at the end of its part of an op.
    pub release: fn(),
    /// Softmax of one row's window.
    pub softmax: unsafe fn(*mut f32, usize, usize, usize) -> f32,
    /// One row of a depthwise convolution.
    pub depthwise: unsafe fn(&Taps<'_>, usize, Activation, *mut f32),
    /// One time row of a strided 3 x 3 convolution.
    pub taps_2d: unsafe fn(&Taps2d, bool, Activation, *mut f32),
    /// Gated linear unit of one row.
    pub glu: unsafe fn(*const f32, usize, *mut f32),
    /// SiLU of the first half of a row times the second.
    pub swiglu: unsafe fn(*const f32, usize, *mut f32),
    /// Periodic activation of one row, with a rate and a gain per channel.
    pub snake: unsafe fn(*const f32, usize, *const f32, *const f32, *mut f32),
    /// Index and value of the largest number of a row.
    pub argmax: unsafe fn(*const f32, usize) -> (usize, f32),
    /// The best of a row and its sums.
    pub row_stats: unsafe fn(*const f32, usize, f32) -> select::RowStats,
    /// The best few of a row.
    pub top_k: unsafe fn(*const f32, usize, usize, *mut u32, *mut f32) -> usize,
    /// Sum of two rows, clipped below zero.
    pub add_relu: unsafe fn(*const f32, *const f32, usize, *mut f32),
    /// Point-wise half of an LSTM cell.
    pub lstm_cell: unsafe fn(&select::LstmRow, usize),
}

/// Instantiates every lane kernel for one vector type under its target features.
macro_rules! instantiate {
    ($module:ident, $lanes:ty $(, $features:literal)?) => {
        mod $module {
            #![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]
            use super::*;
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn gemm_f32(g: &Gemm) { unsafe { gemm::gemm::<$lanes, F32Panels>(g) } }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn gemm_bf16(g: &Gemm) { unsafe { gemm::gemm::<$lanes, Bf16Panels>(g) } }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn norm(x: *const f32, n: usize, p: &NormRow, out: *mut f32) {
                unsafe { vector::norm_row::<$lanes>(x, n, p, out) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn map(x: *const f32, n: usize, act: Activation, out: *mut f32) {
                unsafe { vector::map_row::<$lanes>(x, n, act, out) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn map_bf16(x: *const f32, n: usize, act: Activation, out: *mut u16) {
                unsafe { vector::map_row_bf16::<$lanes>(x, n, act, out) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn quantize_int8(x: *const f32, n: usize, kp: usize, out: *mut u8) -> f32 {
                unsafe { vector::quantize_u8::<$lanes>(x, n, kp, out) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn quantize_i8(x: *const f32, n: usize, kp: usize, out: *mut u8, sums: *mut i32) -> f32 {
                unsafe { vector::quantize_i8::<$lanes>(x, n, kp, out, sums) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn epilogue(
                c: Rows<*const f32>, m: usize, n: usize, e: &Epilogue, out: Rows<*mut f32>,
            ) {
                unsafe { vector::epilogue::<$lanes>(c, m, n, e, out) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn softmax(s: *mut f32, first: usize, end: usize, len: usize) -> f32 {
                unsafe { attention::softmax::<$lanes>(s, first, end, len) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn depthwise(t: &Taps<'_>, n: usize, act: Activation, out: *mut f32) {
                unsafe { taps::depthwise_row::<$lanes>(t, n, act, out) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn taps_2d(t: &Taps2d, spread: bool, act: Activation, out: *mut f32) {
                unsafe { taps::taps_2d::<$lanes>(t, spread, act, out) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn glu(x: *const f32, n: usize, out: *mut f32) {
                unsafe { taps::glu_row::<$lanes>(x, n, out) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn swiglu(x: *const f32, n: usize, out: *mut f32) {
                unsafe { taps::swiglu_row::<$lanes>(x, n, out) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn snake(x: *const f32, n: usize, rate: *const f32, gain: *const f32, out: *mut f32) {
                unsafe { snake::snake_row::<$lanes>(x, n, rate, gain, out) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn argmax(x: *const f32, n: usize) -> (usize, f32) {
                unsafe { select::argmax::<$lanes>(x, n) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn row_stats(x: *const f32, n: usize, alpha: f32) -> select::RowStats {
                unsafe { select::row_stats::<$lanes>(x, n, alpha) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn top_k(x: *const f32, n: usize, k: usize, index: *mut u32, value: *mut f32) -> usize {
                unsafe { select::top_k::<$lanes>(x, n, k, index, value) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn add_relu(a: *const f32, b: *const f32, n: usize, out: *mut f32) {
                unsafe { select::add_relu::<$lanes>(a, b, n, out) }
            }
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn lstm_cell(r: &select::LstmRow, n: usize) {
                unsafe { select::lstm_cell::<$lanes>(r, n) }
            }
        }
    };
}

instantiate!(portable, Portable);
#[cfg(target_arch = "x86_64")]
instantiate!(avx2, x86::Avx2, "avx2,fma");
#[cfg(target_arch = "x86_64")]
instantiate!(avx512, x86::Avx512, "avx512f,avx512bw,avx512dq,avx512vl");
#[cfg(target_arch = "aarch64")]
instantiate!(lanes_neon, neon::Neon, "neon");

macro_rules! table {
    ($isa:expr, $module:ident, $int8:expr, $int4:expr) => {
        Kernels {
            isa: $isa,
            bf16_activations: false,
            byte_rows: ByteRows::Biased,
            gemm_f32: $module::gemm_f32,
            gemm_bf16: $module::gemm_bf16,
            gemm_int8: $int8,
            gemm_int4: $int4,
            norm: $module::norm,
            map: $module::map,
            map_bf16: $module::map_bf16,
            quantize_int8: $module::quantize_int8,
            quantize_i8: $module::quantize_i8,
            epilogue: $module::epilogue,
            release: || (),
            softmax: $module::softmax,
            depthwise: $module::depthwise,
            taps_2d: $module::taps_2d,
            glu: $module::glu,
            swiglu: $module::swiglu,
            snake: $module::snake,
            argmax: $module::argmax,
            row_stats: $module::row_stats,
            top_k: $module::top_k,
            add_relu: $module::add_relu,
            lstm_cell: $module::lstm_cell,
        }
    };
}

static PORTABLE: Kernels = table!(Isa::Scalar, portable, quant::int8_portable, quant::int4_portable);
#[cfg(target_arch = "x86_64")]
static AVX2: Kernels = Kernels {
    byte_rows: ByteRows::Split,
    quantize_int8: split::quantize,
    ..table!(Isa::Avx2, avx2, x86_products::int8_avx2, x86_products::int4_avx2)
};
#[cfg(target_arch = "x86_64")]
static AVX_VNNI: Kernels =
    table!(Isa::AvxVnni, avx2, x86_products::int8_avx_vnni, x86_products::int4_avx_vnni);
#[cfg(target_arch = "x86_64")]
static AVX512BW: Kernels = Kernels {
    byte_rows: ByteRows::Split,
    quantize_int8: split::quantize,
    ..table!(Isa::Avx512Bw, avx512, x86_products::int8_avx512bw, x86_products::int4_avx512bw)
};
#[cfg(target_arch = "x86_64")]
static AVX512: Kernels = table!(Isa::Avx512, avx512, x86_products::int8_avx512, x86_products::int4_avx512);
#[cfg(target_arch = "x86_64")]
static AMX: Kernels = Kernels {
    isa: Isa::Amx,
    bf16_activations: true,
    gemm_bf16: amx::bf16,
    gemm_int8: amx::int8,
    release: amx::release,
    ..table!(Isa::Amx, avx512, x86_products::int8_avx512, x86_products::int4_avx512)
};

#[cfg(target_arch = "aarch64")]
macro_rules! neon_table {
    ($isa:expr, $int8:ident, $int4:ident) => {
        Kernels {
            byte_rows: ByteRows::Signed,
            quantize_int8: neon_products::quantize_signed,
            ..table!($isa, lanes_neon, neon_products::$int8, neon_products::$int4)
        }
    };
}

#[cfg(target_arch = "aarch64")]
static NEON: Kernels = neon_table!(Isa::Neon, int8_neon, int4_neon);
#[cfg(target_arch = "aarch64")]
static DOTPROD: Kernels = neon_table!(Isa::Dotprod, int8_dotprod, int4_dotprod);
#[cfg(target_arch = "aarch64")]
static I8MM: Kernels = neon_table!(Isa::I8mm, int8_i8mm, int4_i8mm);

/// Bytes of a split row of `k` inputs; no table outside x86-64 takes any.
pub fn split_row_bytes(k: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    return split::row_bytes(k);
    #[cfg(not(target_arch = "x86_64"))]
    k
}

/// The kernels for an instruction set that this CPU supports.
pub fn kernels(isa: Isa) -> &'static Kernels {
    assert!(isa.supported(), "{isa} is not supported by this CPU");
    match isa {
        Isa::Scalar => &PORTABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &AVX2,
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => &AVX_VNNI,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bw => &AVX512BW,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &AVX512,
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => &AMX,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &NEON,
        #[cfg(target_arch = "aarch64")]
        Isa::Dotprod => &DOTPROD,
        #[cfg(target_arch = "aarch64")]
        Isa::I8mm => &I8MM,
        // Levels of other architectures, which are never supported here.
        _ => &PORTABLE,
    }
}
