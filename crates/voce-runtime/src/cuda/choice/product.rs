//! Which kernels multiply few rows, and which stand around products of the library.

use crate::cuda::linear::{EpilogueArgs, LinearArgs, NORM_LAYER, NORM_RMS, NarrowArgs};
use crate::cuda::pointwise::{GluArgs, NormalizeArgs, SnakeArgs};
use crate::cuda::program::{self, KernelOf};
use crate::cuda::row::RowArgs;
use crate::matrix::Format;

/// Rows up to which one kernel multiplies them in any format. From three on it waits for shared memory, and the library's
/// tensor cores are faster with a kernel before and one after them: a step of eight streams on an H200 took 1.5 to 3.7 times
/// as long, in every format.
pub(in crate::cuda) const FEW_ROWS: usize = 2;
/// Shared memory that a kernel of few rows has beside the rows.
const FEW_SHARED: usize = 2048;
/// Warps of a block of the kernels for one to four rows, between which a row is cut, and values that a warp takes at once.
pub(in crate::cuda) const ROW_WARPS: usize = 16;
pub(in crate::cuda) const ROW_PIECE: usize = 256;
/// Weights up to which three and four rows are the kernels' own: what gains there is a launch, not the multiplying.
const ROW_WEIGHTS: usize = 9_000_000;
/// Outputs of a warp from which its block is alone on its multiprocessor, and has more of them under way.
const ROW_MANY: usize = 12;

/// A product, and the device it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct ProductShape {
    pub format: Format,
    pub rows: usize,
    pub n: usize,
    pub k: usize,
    /// Inputs as they are stored.
    pub stride: usize,
    /// Address and distance of the rows.
    pub x: u64,
    pub x_stride: usize,
    /// The kernels' number of the norm, and whether it is modulated by row.
    pub norm: u32,
    pub modulated: bool,
    pub processors: usize,
    pub shared: usize,
}

/// How it is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cuda) enum ProductWay {
    /// One to four rows by the kernels made for them.
    Rows,
    /// Few rows by one kernel.
    Few(KernelOf<LinearArgs>),
    /// By the library, between two kernels.
    Library,
}

impl ProductShape {
    pub(in crate::cuda) fn way(&self) -> ProductWay {
        let most = match self.k.div_ceil(ROW_PIECE).div_ceil(ROW_WARPS) {
            1 => 4,
            2 => 2,
            3 => 1,
            _ => 0,
        };
        let rows = self.format == Format::Bf16
            && self.k.is_multiple_of(8)
            && self.rows <= most
            && (self.rows <= 2 || self.n * self.k <= ROW_WEIGHTS)
            && self.rows * row_share(self.n, self.processors) <= 32 * ROW_WARPS
            && self.x.is_multiple_of(16)
            && (self.rows == 1 || self.x_stride.is_multiple_of(4))
            && matches!(self.norm, 0 | NORM_LAYER | NORM_RMS)
            && !self.modulated;
        if rows {
            return ProductWay::Rows;
        }
        few_rows(self.format, self.rows, self.stride, self.shared)
            .map_or(ProductWay::Library, ProductWay::Few)
    }
}

/// The one kernel of a product of few rows that fit into shared memory.
pub(in crate::cuda) fn few_rows(
    format: Format,
    rows: usize,
    stride: usize,
    shared: usize,
) -> Option<KernelOf<LinearArgs>> {
    if rows > FEW_ROWS || rows.next_power_of_two() * stride * 4 > shared - FEW_SHARED {
        return None;
    }
    Some(match format {
        Format::F32 => program::LINEAR_F32,
        Format::Bf16 => program::LINEAR_BF16,
        Format::Int8 | Format::Int4 => program::LINEAR_INT8,
        Format::Fp8 => program::LINEAR_FP8,
    })
}

/// Outputs of a block of the kernels for one to four rows: every multiprocessor has one.
pub(in crate::cuda) fn row_share(n: usize, processors: usize) -> usize {
    n.div_ceil(processors)
}

/// The kernel for one to four rows of which a warp has `long` pieces and `outputs` outputs, and the rows it is made for.
pub(in crate::cuda) fn row(rows: usize, long: usize, outputs: usize) -> (KernelOf<RowArgs>, usize) {
    match (rows, long) {
        (1, 1) if outputs > ROW_MANY => (program::ROW_MANY_BF16, 1),
        (1, 1) => (program::ROW_BF16, 1),
        (1, 2) => (program::ROW_LONG_BF16, 1),
        (1, _) => (program::ROW_LONGEST_BF16, 1),
        (2, 1) => (program::ROW_TWO_BF16, 2),
        (2, _) => (program::ROW_TWO_LONG_BF16, 2),
        _ => (program::ROW_FOUR_BF16, 4),
    }
}

/// Four-value pieces that each lane of a warp has of a row it holds: as many as a kernel is made for.
fn row_pieces(k: usize) -> usize {
    if k.is_multiple_of(4) { k.div_ceil(128).next_power_of_two().max(4) } else { usize::MAX }
}

/// The kernel that turns rows of `k` values into bf16, normed where that takes sums; none for rows too long to hold.
pub(in crate::cuda) fn narrow(k: usize, sums: bool) -> Option<KernelOf<NarrowArgs>> {
    match row_pieces(k) {
        _ if !sums => Some(program::NARROW_ROWS),
        4 => Some(program::NORM_NARROW_4),
        8 => Some(program::NORM_NARROW_8),
        16 => Some(program::NORM_NARROW_16),
        _ => None,
    }
}

/// The kernel of a layer norm in place, and rows of its block.
pub(in crate::cuda) fn normalize(n: usize) -> (KernelOf<NormalizeArgs>, usize) {
    match row_pieces(n) {
        4 => (program::NORMALIZE_4, 8),
        8 => (program::NORMALIZE_8, 8),
        16 => (program::NORMALIZE_16, 8),
        _ => (program::NORMALIZE, 1),
    }
}

/// What follows a product of the library: whether four values are taken at a time.
pub(in crate::cuda) fn epilogue(lengths: &[u32], addresses: &[u64]) -> (KernelOf<EpilogueArgs>, bool) {
    let fours = fours(lengths, addresses);
    (if fours { program::EPILOGUE4 } else { program::EPILOGUE }, fours)
}

/// Whether rows of these lengths at these addresses can be taken by fours.
pub(in crate::cuda) fn fours(lengths: &[u32], addresses: &[u64]) -> bool {
    lengths.iter().all(|v| v.is_multiple_of(4)) && addresses.iter().all(|at| at.is_multiple_of(16))
}

/// The periodic activation of rows of `n` values: how many a thread takes.
pub(in crate::cuda) fn snake(n: usize) -> (KernelOf<SnakeArgs>, usize) {
    if n.is_multiple_of(4) { (program::SNAKE4, 4) } else { (program::SNAKE, 1) }
}

/// A gated linear unit of `n` outputs: whether four values are taken at a time.
pub(in crate::cuda) fn glu(n: usize, out_stride: usize) -> (KernelOf<GluArgs>, bool) {
    let fours = n.is_multiple_of(4) && out_stride.is_multiple_of(4);
    (if fours { program::GLU4 } else { program::GLU }, fours)
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: usize = 132;
    const SHARED: usize = 227 << 10;

    #[test]
    fn products_go_by_rows_and_format() {
        use Format::{Bf16, F32, Fp8, Int8};
        let usual = ProductShape {
            format: Bf16,
            rows: 1,
            n: 2048,
            k: 2048,
            stride: 2048,
            x: 256,
            x_stride: 2048,
            norm: NORM_RMS,
            modulated: false,
            processors: H200,
            shared: SHARED,
        };
        let (long, longer, longest) = (4096 + 8, 8192 + 8, 12_288 + 8);
        let table = [
            (usual, "rows"),
            (ProductShape { rows: 4, ..usual }, "rows"),
            (ProductShape { rows: 5, ..usual }, "library"),
            (ProductShape { x: 8, ..usual }, "linear_bf16"),
            (ProductShape { rows: 2, x_stride: 2050, ..usual }, "linear_bf16"),
            (ProductShape { rows: 3, x_stride: 2050, ..usual }, "library"),
            (ProductShape { norm: 1, ..usual }, "linear_bf16"),
            (ProductShape { modulated: true, norm: NORM_LAYER, ..usual }, "linear_bf16"),
            (ProductShape { norm: 0, ..usual }, "rows"),
            (ProductShape { k: 2052, stride: 2056, ..usual }, "linear_bf16"),
            (ProductShape { rows: 2, k: long, stride: long, ..usual }, "rows"),
            (ProductShape { rows: 3, k: long, stride: long, ..usual }, "library"),
            (ProductShape { k: longer, stride: longer, ..usual }, "rows"),
            (ProductShape { rows: 2, k: longer, stride: longer, ..usual }, "linear_bf16"),
            (ProductShape { k: longest, stride: longest, ..usual }, "linear_bf16"),
            (ProductShape { rows: 2, k: 32 << 10, stride: 32 << 10, ..usual }, "library"),
            (ProductShape { rows: 4, k: 512, stride: 512, n: H200 * 128, ..usual }, "rows"),
            (ProductShape { rows: 4, k: 512, stride: 512, n: H200 * 128 + 1, ..usual }, "library"),
            (ProductShape { rows: 4, n: 4394, ..usual }, "rows"),
            (ProductShape { rows: 3, n: 4395, ..usual }, "library"),
            (ProductShape { rows: 2, n: 4395, ..usual }, "rows"),
            (ProductShape { format: F32, ..usual }, "linear_f32"),
            (ProductShape { format: F32, rows: 2, ..usual }, "linear_f32"),
            (ProductShape { format: F32, rows: 3, ..usual }, "library"),
            (ProductShape { format: Int8, ..usual }, "linear_int8"),
            (ProductShape { format: Int8, rows: 2, ..usual }, "linear_int8"),
            (ProductShape { format: Int8, rows: 3, ..usual }, "library"),
            (ProductShape { format: Fp8, ..usual }, "linear_fp8"),
            (ProductShape { format: Fp8, rows: 2, ..usual }, "linear_fp8"),
            (ProductShape { format: Fp8, rows: 3, ..usual }, "library"),
        ];
        for (shape, want) in table {
            let got = match shape.way() {
                ProductWay::Rows => "rows",
                ProductWay::Few(kernel) => kernel.name(),
                ProductWay::Library => "library",
            };
            assert_eq!(got, want, "{shape:?}");
        }
        let rows = [
            ((1, 1, 12), "row_bf16", 1),
            ((1, 1, 13), "row_many_bf16", 1),
            ((1, 2, 40), "row_long_bf16", 1),
            ((1, 3, 40), "row_longest_bf16", 1),
            ((2, 1, 40), "row_two_bf16", 2),
            ((2, 2, 1), "row_two_long_bf16", 2),
            ((3, 1, 1), "row_four_bf16", 4),
            ((4, 1, 40), "row_four_bf16", 4),
        ];
        for ((rows, long, outputs), name, made_for) in rows {
            let (kernel, n) = row(rows, long, outputs);
            assert_eq!((kernel.name(), n), (name, made_for), "{rows} rows, {long} long");
        }
    }

    #[test]
    fn what_stands_around_products_goes_by_lengths() {
        let names = |sums| [512, 1024, 2048, 2052, 510].map(|k| narrow(k, sums).map(KernelOf::name));
        let normed = [Some("norm_narrow_4"), Some("norm_narrow_8"), Some("norm_narrow_16"), None, None];
        assert_eq!(names(true), normed);
        assert_eq!(names(false), [Some("narrow_rows"); 5]);
        let norms = [512, 513, 1024, 2048, 2052].map(|n| (normalize(n).0.name(), normalize(n).1));
        let want = [("normalize_4", 8), ("normalize", 1), ("normalize_8", 8), ("normalize_16", 8)];
        assert_eq!(norms, [want[0], want[1], want[2], want[3], want[1]]);
        assert_eq!(epilogue(&[8, 0, 12], &[16, 0]).0.name(), "epilogue4");
        assert_eq!(epilogue(&[8, 0, 13], &[16, 0]).0.name(), "epilogue");
        assert_eq!(epilogue(&[8, 0, 12], &[8, 0]).0.name(), "epilogue");
        assert_eq!([(8, 8), (6, 8), (8, 6)].map(|(n, s)| glu(n, s).0.name()), ["glu4", "glu", "glu"]);
        assert_eq!([8, 6].map(|n| snake(n).0.name()), ["snake4", "snake"]);
    }
}
