//! Which kernels convolve.

use crate::cuda::conv::{ConvArgs, DepthwiseArgs, SubsampleArgs, ThinConvArgs};
use crate::cuda::program::{self, KernelOf};
use crate::cuda::residual::ResidualArgs;
use crate::cuda::unit::UnitArgs;
use crate::matrix::Format;
use crate::simd::Activation;

/// Outputs up to which rows of a convolution are multiplied where they are instead of being gathered for a product.
const THIN: usize = 4;
/// Taps that `conv_line` and `conv_line_wide` have room for, and `depthwise4` asks for at once: as in `conv.cu`.
const LINE_TAPS: usize = 4;
const WIDE_TAPS: usize = 8;
const DEPTHWISE_TAPS: usize = 9;
/// Rows of a tile of `conv_line` and `conv_spread`: as in `conv.cu`.
const LINE_ROWS: usize = 256;
/// Values under the taps that `conv_spread` has room for, as in `conv.cu`, and outputs that its blocks share out.
const SPREAD_VALUES: usize = 8;
const SPREAD_OUTPUTS: std::ops::RangeInclusive<usize> = 16..=256;
/// Rows of a tile of a strided convolution, and its channels and outputs: as in `conv_tile.cu`.
const STRIDED_ROWS: usize = 128;
const STRIDED: [usize; 2] = [64, 128];
/// Rows that all spans are multiples of from which kernels take tiles of them.
const LEAST_UNIT: usize = 16;
/// Width up to which a few tiles of a unit are worth a kernel.
const NARROW_UNIT: usize = 192;
/// Threads of a block that shares out columns.
const THREADS: usize = 256;

/// A streaming convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct ConvShape {
    pub format: Format,
    pub outputs: usize,
    pub channels: usize,
    pub taps: usize,
    pub stride: usize,
    pub dilation: usize,
    /// Rows that all spans are multiples of.
    pub unit: usize,
    /// All output rows.
    pub rows: usize,
    /// Values between output rows.
    pub out_stride: usize,
    /// The activation before it, if the product's result is what is stored.
    pub plain: Option<Activation>,
    pub processors: usize,
    /// Bytes of shared memory that a block may have.
    pub shared: usize,
    /// Whether the product is one kernel.
    pub few: bool,
}

/// How it is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cuda) enum ConvWay {
    /// One output: tiles of rows, and the taps that there is room for.
    Line { kernel: KernelOf<ThinConvArgs>, taps: usize },
    /// Few values under the taps: tiles of rows.
    Spread(KernelOf<ThinConvArgs>),
    /// A stride: tiles of rows.
    Strided(KernelOf<ThinConvArgs>),
    /// Few outputs: a warp per row.
    Thin(KernelOf<ThinConvArgs>),
    /// Rows are gathered for a product, by eights in bf16 where that is so.
    Gathered { kernel: KernelOf<ConvArgs>, eights: bool, narrow: bool },
}

impl ConvShape {
    pub(in crate::cuda) fn way(&self) -> ConvWay {
        if self.outputs <= THIN {
            let line = self.outputs == 1 && self.stride == 1 && self.unit >= LEAST_UNIT;
            return match self.channels {
                16 | 32 | 64 | 128 if line && self.taps <= LINE_TAPS => {
                    ConvWay::Line { kernel: program::CONV_LINE, taps: LINE_TAPS }
                }
                48 | 96 | 192 if line && self.taps <= WIDE_TAPS => {
                    ConvWay::Line { kernel: program::CONV_LINE_WIDE, taps: WIDE_TAPS }
                }
                _ => ConvWay::Thin(program::CONV_THIN),
            };
        }
        let tiles = self.stride == 1 && self.dilation == 1 && self.unit >= LEAST_UNIT;
        let shared_out = self.outputs.is_power_of_two() && SPREAD_OUTPUTS.contains(&self.outputs);
        let spread = self.taps * self.channels <= SPREAD_VALUES && self.out_stride.is_multiple_of(4);
        if tiles && shared_out && spread && matches!(self.format, Format::F32 | Format::Bf16) {
            return ConvWay::Spread(program::CONV_SPREAD);
        }
        let fills =
            self.unit > 0 && self.rows / self.unit * self.unit.div_ceil(STRIDED_ROWS) >= self.processors;
        let fits = [self.channels, self.outputs] == STRIDED && self.stride > 1 && self.taps >= self.stride;
        let elu = self.plain == Some(Activation::Elu) && self.format == Format::Bf16;
        let fits = fits && self.strided_shared() <= self.shared;
        if elu && fits && fills && self.dilation == 1 && self.out_stride.is_multiple_of(2) {
            return ConvWay::Strided(program::CONV_STRIDED_64);
        }
        let narrow = !self.few && self.format == Format::Bf16;
        let eights = narrow && self.channels.is_multiple_of(8);
        let kernel = if eights { program::CONV_OPERAND8 } else { program::CONV_OPERAND };
        ConvWay::Gathered { kernel, eights, narrow }
    }
}

impl ConvShape {
    /// Shared memory of a strided convolution's block: rows a stride apart side by side, eight values more than each has.
    fn strided_shared(&self) -> usize {
        let kind = STRIDED_ROWS + (self.taps - self.stride).div_ceil(self.stride);
        2 * self.stride * kind * (self.channels + 8)
    }

    /// The kernel of a way without a product, the rows of its tiles, 0 where a warp has a row, and the shared memory of a block.
    pub(in crate::cuda) fn at_once(
        &self,
        way: ConvWay,
        history: usize,
    ) -> Option<(KernelOf<ThinConvArgs>, usize, usize)> {
        let seen = LINE_ROWS + history;
        match way {
            ConvWay::Line { kernel, taps } => Some((kernel, LINE_ROWS, 4 * taps * (seen + self.channels))),
            ConvWay::Spread(kernel) => Some((kernel, LINE_ROWS, 4 * (seen * self.channels + SPREAD_VALUES))),
            ConvWay::Strided(kernel) => Some((kernel, STRIDED_ROWS, self.strided_shared())),
            ConvWay::Thin(kernel) => Some((kernel, 0, 0)),
            ConvWay::Gathered { .. } => None,
        }
    }
}

/// Rows of a residual block's tile times values of a hidden row, and rows of a tile where there are few: as in `residual.cu`.
const RESIDUAL_VALUES: usize = 8192;
const RESIDUAL_FEW: usize = 16;

/// The kernel of a whole residual block of ELUs in bf16, if there is one, and the rows of its tiles. Of `rows` the first says
/// how many all spans are multiples of, the second how many there are: short tiles where long ones leave multiprocessors
/// idle.
pub(in crate::cuda) fn residual(
    pre: Activation,
    formats: [Format; 2],
    width: usize,
    hidden: usize,
    rows: [usize; 2],
    processors: usize,
) -> Option<(KernelOf<ResidualArgs>, usize)> {
    let [unit, all] = rows;
    if pre != Activation::Elu || formats != [Format::Bf16; 2] || 2 * hidden != width || unit < LEAST_UNIT {
        return None;
    }
    let [long, short] = match width {
        32 => [program::RESIDUAL_32, program::RESIDUAL_FEW_32],
        64 => [program::RESIDUAL_64, program::RESIDUAL_FEW_64],
        128 => [program::RESIDUAL_128, program::RESIDUAL_FEW_128],
        256 => [program::RESIDUAL_256, program::RESIDUAL_FEW_256],
        _ => return None,
    };
    let tile = RESIDUAL_VALUES / hidden;
    let fills = all / unit * unit.div_ceil(tile) >= processors;
    Some(if fills { (long, tile) } else { (short, RESIDUAL_FEW) })
}

/// The kernel of a whole unit of periodic activations: rows of a tile, inputs of a chunk of weights, threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cuda) struct Unit {
    pub kernel: KernelOf<UnitArgs>,
    pub rows: usize,
    pub chunk: usize,
    pub threads: u32,
}

/// The same by products of warpgroups: how many of them a block has, the outputs of the second product at a time, and whether all
/// weights stay in shared memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cuda) struct UnitGroups {
    pub kernel: KernelOf<UnitArgs>,
    pub groups: usize,
    pub part: usize,
    pub whole: bool,
}

/// Rows of a tile of a warpgroup, and past rows and taps that its kernel has room for: as in `unit_groups.cu`.
pub(in crate::cuda) const GROUP_ROWS: usize = 64;
const MOST_PAST: usize = 64;
const MOST_TAPS: usize = 16;
/// Bytes of its marks, of a chunk of weights where they come through a ring, and chunks that a ring has at least: a chunk is given
/// back only after the next one has been multiplied.
const GROUP_MARKS: usize = 256;
const GROUP_CHUNK: usize = 12 << 10;
const FEWEST_CHUNKS: usize = 3;

impl UnitGroups {
    /// Shared memory of a block for units of `width` columns, of at most `most` bytes; none where that is too little.
    pub(in crate::cuda) fn shared(
        &self,
        width: usize,
        taps: usize,
        history: usize,
        most: usize,
    ) -> Option<usize> {
        let rows = GROUP_ROWS + history;
        let pitch = match self.part == width {
            true => (rows + 3) / 8 * 8 + 4,
            false => (rows + 1) / 4 * 4 + 2,
        };
        let before = GROUP_MARKS + 6 * 4 * width + self.groups * width / 8 * pitch * 16;
        let weights = if self.whole { 2 * (taps + 1) * width * width } else { FEWEST_CHUNKS * GROUP_CHUNK };
        let fits = taps < MOST_TAPS && before + weights <= most;
        // A ring takes all that there is.
        fits.then_some(if self.whole { before + weights } else { most })
    }
}

/// The kernel of a unit whose products are those of warpgroups, where a device has them and there are enough `tiles`.
pub(in crate::cuda) fn unit_groups(
    formats: [Format; 2],
    width: usize,
    hidden: usize,
    history: usize,
    tiles: usize,
    processors: usize,
) -> Option<UnitGroups> {
    if formats != [Format::Bf16; 2] || hidden != width || history > MOST_PAST || tiles < processors {
        return None;
    }
    match width {
        96 => Some(UnitGroups { kernel: program::UNIT_GROUPS_96, groups: 3, part: 96, whole: true }),
        192 => Some(UnitGroups { kernel: program::UNIT_GROUPS_192, groups: 2, part: 192, whole: false }),
        384 => Some(UnitGroups { kernel: program::UNIT_GROUPS_384, groups: 2, part: 64, whole: false }),
        _ => None,
    }
}

/// The kernel of a unit in bf16 whose hidden rows are as wide as the others, if there is one; `rows` are all of them, and what all
/// spans are multiples of.
pub(in crate::cuda) fn unit(
    formats: [Format; 2],
    width: usize,
    hidden: usize,
    rows: [usize; 2],
    processors: usize,
) -> Option<Unit> {
    if formats != [Format::Bf16; 2] || hidden != width || rows[1] < LEAST_UNIT {
        return None;
    }
    let tiles = |tile: usize| rows[0] / rows[1] * rows[1].div_ceil(tile);
    let found = match width {
        96 if tiles(16) <= processors => {
            Unit { kernel: program::UNIT_96_FEW, rows: 16, chunk: 96, threads: 192 }
        }
        96 if tiles(32) <= 2 * processors => {
            Unit { kernel: program::UNIT_96_SOME, rows: 32, chunk: 96, threads: 192 }
        }
        96 => Unit { kernel: program::UNIT_96, rows: 128, chunk: 96, threads: 192 },
        192 if tiles(16) <= processors => {
            Unit { kernel: program::UNIT_192_FEW, rows: 16, chunk: 192, threads: 384 }
        }
        192 if tiles(32) <= processors => {
            Unit { kernel: program::UNIT_192_SOME, rows: 32, chunk: 192, threads: 384 }
        }
        192 => Unit { kernel: program::UNIT_192, rows: 128, chunk: 32, threads: 192 },
        384 => Unit { kernel: program::UNIT_384, rows: 64, chunk: 32, threads: 384 },
        _ => return None,
    };
    // A tile of wide rows takes long: where there are few of them, the library spreads the work further.
    (always_unit(width) || tiles(found.rows) >= processors).then_some(found)
}

/// Whether a unit of this width does not depend on how many rows there are.
pub(in crate::cuda) fn always_unit(width: usize) -> bool {
    width <= NARROW_UNIT
}

/// A depthwise convolution: whether a thread has four channels.
pub(in crate::cuda) fn depthwise(
    channels: usize,
    taps: usize,
    out_stride: usize,
) -> (KernelOf<DepthwiseArgs>, bool) {
    let fours = channels.is_multiple_of(4)
        && channels <= 4 * THREADS
        && taps <= DEPTHWISE_TAPS
        && out_stride.is_multiple_of(4);
    (if fours { program::DEPTHWISE4 } else { program::DEPTHWISE }, fours)
}

/// A strided convolution whose rows `lanes` threads share: whether a thread has four channels of several bins.
pub(in crate::cuda) fn subsample(channels: usize, lanes: usize) -> (KernelOf<SubsampleArgs>, bool) {
    let fours = channels.is_multiple_of(4) && channels <= 4 * lanes;
    (if fours { program::SUBSAMPLE4 } else { program::SUBSAMPLE }, fours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn convolutions_go_by_outputs_and_channels() {
        let one = ConvShape {
            format: Format::Bf16,
            outputs: 1,
            channels: 64,
            taps: 3,
            stride: 1,
            dilation: 1,
            unit: 480,
            rows: 512 * 480,
            out_stride: 64,
            plain: Some(Activation::Elu),
            processors: 132,
            shared: 227 << 10,
            few: false,
        };
        let strided = ConvShape { outputs: 128, taps: 8, stride: 4, out_stride: 128, ..one };
        let samples = ConvShape { format: Format::F32, outputs: 64, channels: 1, taps: 7, unit: 1920, ..one };
        let table = [
            (one, "conv_line"),
            (ConvShape { outputs: 2, ..one }, "conv_thin"),
            (ConvShape { outputs: 4, ..one }, "conv_thin"),
            (ConvShape { taps: 5, ..one }, "conv_thin"),
            (ConvShape { channels: 48, ..one }, "conv_line_wide"),
            (ConvShape { channels: 96, taps: 7, ..one }, "conv_line_wide"),
            (ConvShape { channels: 96, taps: 9, ..one }, "conv_thin"),
            (ConvShape { channels: 80, ..one }, "conv_thin"),
            (ConvShape { unit: 15, ..one }, "conv_thin"),
            (ConvShape { stride: 2, ..one }, "conv_thin"),
            (ConvShape { outputs: 5, ..one }, "conv_operand8"),
            (ConvShape { outputs: 5, few: true, ..one }, "conv_operand"),
            (ConvShape { outputs: 5, channels: 60, ..one }, "conv_operand"),
            (ConvShape { outputs: 5, format: Format::F32, ..one }, "conv_operand"),
            (strided, "conv_strided_64"),
            (ConvShape { rows: 33 * 480, ..strided }, "conv_strided_64"),
            (ConvShape { rows: 32 * 480, ..strided }, "conv_operand8"),
            (ConvShape { plain: None, ..strided }, "conv_operand8"),
            (ConvShape { plain: Some(Activation::Relu), ..strided }, "conv_operand8"),
            (ConvShape { format: Format::F32, ..strided }, "conv_operand"),
            (ConvShape { channels: 128, ..strided }, "conv_operand8"),
            (ConvShape { outputs: 256, ..strided }, "conv_operand8"),
            (ConvShape { dilation: 2, ..strided }, "conv_operand8"),
            (ConvShape { stride: 1, ..strided }, "conv_operand8"),
            (ConvShape { taps: 3, ..strided }, "conv_operand8"),
            (ConvShape { taps: 16, stride: 8, ..strided }, "conv_strided_64"),
            (ConvShape { taps: 16, stride: 8, shared: 99 << 10, ..strided }, "conv_operand8"),
            (ConvShape { taps: 40, stride: 20, ..strided }, "conv_operand8"),
            (samples, "conv_spread"),
            (ConvShape { format: Format::Bf16, channels: 2, taps: 4, ..samples }, "conv_spread"),
            (ConvShape { channels: 3, taps: 3, ..samples }, "conv_operand"),
            (ConvShape { outputs: 48, ..samples }, "conv_operand"),
            (ConvShape { outputs: 512, ..samples }, "conv_operand"),
            (ConvShape { stride: 2, ..samples }, "conv_operand"),
            (ConvShape { dilation: 2, ..samples }, "conv_operand"),
            (ConvShape { unit: 15, ..samples }, "conv_operand"),
            (ConvShape { out_stride: 65, ..samples }, "conv_operand"),
        ];
        for (shape, want) in table {
            let got = match shape.way() {
                ConvWay::Line { kernel, .. }
                | ConvWay::Spread(kernel)
                | ConvWay::Strided(kernel)
                | ConvWay::Thin(kernel) => kernel.name(),
                ConvWay::Gathered { kernel, .. } => kernel.name(),
            };
            assert_eq!(got, want, "{shape:?}");
        }
        let block = |format, width, hidden, unit, all| {
            let found = residual(Activation::Elu, [Format::Bf16, format], width, hidden, [unit, all], 132);
            found.map(|(kernel, rows)| (kernel.name(), rows))
        };
        // Width, rows of a span, all rows: kernel and rows of its tiles.
        for (width, unit, all, expected) in [
            (32, 512, 132 * 512, Some(("residual_32", 512))),
            (64, 1920, 17 * 1920, Some(("residual_64", 256))),
            (64, 1920, 16 * 1920, Some(("residual_few_64", 16))),
            (64, 1920, 1920, Some(("residual_few_64", 16))),
            (128, 480, 33 * 480, Some(("residual_128", 128))),
            (128, 480, 32 * 480, Some(("residual_few_128", 16))),
            (256, 96, 66 * 96, Some(("residual_256", 64))),
            (256, 96, 65 * 96, Some(("residual_few_256", 16))),
            (32, 16, 16, Some(("residual_few_32", 16))),
            (512, 16, 16, None),
            (64, 15, 15, None),
        ] {
            assert_eq!(block(Format::Bf16, width, width / 2, unit, all), expected, "{width} {unit} {all}");
        }
        assert_eq!(residual(Activation::Relu, [Format::Bf16; 2], 64, 32, [16, 16], 132), None);
        assert_eq!(block(Format::F32, 64, 32, 16, 16), None);
        assert_eq!(block(Format::Bf16, 64, 64, 16, 16), None);
        let wise = [(1024, 9, 1024), (1028, 9, 1028), (1024, 10, 1024), (1022, 9, 1024), (1024, 9, 1022)];
        let names = wise.map(|(channels, taps, stride)| depthwise(channels, taps, stride).0.name());
        assert_eq!(names, ["depthwise4", "depthwise", "depthwise", "depthwise", "depthwise"]);
        let halved = [(256, 64), (256, 32), (254, 64)].map(|(c, lanes)| subsample(c, lanes).0.name());
        assert_eq!(halved, ["subsample4", "subsample", "subsample"]);
    }

    #[test]
    fn units_go_by_width_and_by_how_many_tiles_there_are() {
        let both = [Format::Bf16; 2];
        // Width, hidden, all rows, rows of a span: kernel.
        let table = [
            (96, 96, 1920, 1920, Some("unit_96_few")),
            (96, 96, 4 * 1920, 4 * 1920, Some("unit_96_some")),
            (96, 96, 5 * 1920, 5 * 1920, Some("unit_96")),
            (96, 96, 64 * 1920, 1920, Some("unit_96")),
            (192, 192, 640, 640, Some("unit_192_few")),
            (192, 192, 4 * 640, 4 * 640, Some("unit_192_some")),
            (192, 192, 7 * 640, 7 * 640, Some("unit_192")),
            (192, 96, 640, 640, None),
            (128, 128, 640, 640, None),
            (96, 96, 15, 15, None),
            // Three tiles a span, and a multiprocessor for each.
            (384, 384, 43 * 160, 160, None),
            (384, 384, 44 * 160, 160, Some("unit_384")),
        ];
        for (width, hidden, rows, span, name) in table {
            let found = unit(both, width, hidden, [rows, span], 132).map(|u| u.kernel.name());
            assert_eq!(found, name, "{width} {hidden} {rows} {span}");
        }
        assert_eq!(unit([Format::Bf16, Format::F32], 96, 96, [1920, 1920], 132), None);
        assert!(always_unit(192) && !always_unit(384));
        // Width, hidden, past rows, tiles: kernel.
        let table = [
            (96, 96, 54, 132, Some("unit_groups_96")),
            (96, 96, 54, 131, None),
            (96, 96, 65, 1000, None),
            (192, 192, 6, 1000, Some("unit_groups_192")),
            (384, 384, 54, 192, Some("unit_groups_384")),
            (384, 192, 54, 192, None),
            (768, 768, 54, 192, None),
        ];
        for (width, hidden, history, tiles, name) in table {
            let found = unit_groups(both, width, hidden, history, tiles, 132).map(|u| u.kernel.name());
            assert_eq!(found, name, "{width} {hidden} {history} {tiles}");
        }
        // Width, taps, past rows: shared memory of 227 KiB at most.
        let table = [
            (96, 7, 6, Some(193_792)),
            (96, 7, 54, Some(221_440)),
            (96, 8, 54, None),
            (96, 16, 15, None),
            (192, 7, 64, Some(232_448)),
            (384, 7, 54, Some(232_448)),
            // Two chunks would fit: the kernel would wait for ever.
            (384, 7, 60, None),
        ];
        for (width, taps, history, bytes) in table {
            let found = unit_groups(both, width, width, history, 200, 132).unwrap();
            assert_eq!(found.shared(width, taps, history, 227 << 10), bytes, "{width} {taps} {history}");
        }
    }
}
