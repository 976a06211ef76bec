//! The kernels: their sources, their names, and what their arguments are.

use std::marker::PhantomData;

use super::driver::KernelId;
use crate::exec::transducer;

/// The sources, in the order they are compiled as one.
pub(crate) const SOURCES: &[(&str, &str)] = &[
    ("common.cuh", include_str!("kernels/common.cuh")),
    ("fp8.cuh", include_str!("kernels/fp8.cuh")),
    ("linear.cu", include_str!("kernels/linear.cu")),
    ("row.cu", include_str!("kernels/row.cu")),
    ("linear_fp8.cu", include_str!("kernels/linear_fp8.cu")),
    ("rows.cu", include_str!("kernels/rows.cu")),
    ("attention.cu", include_str!("kernels/attention.cu")),
    ("attention_row.cu", include_str!("kernels/attention_row.cu")),
    ("attention_tile.cu", include_str!("kernels/attention_tile.cu")),
    ("attention_few.cu", include_str!("kernels/attention_few.cu")),
    ("kv.cu", include_str!("kernels/kv.cu")),
    ("conv.cu", include_str!("kernels/conv.cu")),
    ("conv_tile.cu", include_str!("kernels/conv_tile.cu")),
    ("residual.cu", include_str!("kernels/residual.cu")),
    ("unit.cu", include_str!("kernels/unit.cu")),
    ("unit_groups.cu", include_str!("kernels/unit_groups.cu")),
    ("pointwise.cu", include_str!("kernels/pointwise.cu")),
    ("select.cu", include_str!("kernels/select.cu")),
    ("greedy.cu", include_str!("kernels/transducer/greedy.cu")),
    ("beams.cu", include_str!("kernels/transducer/beams.cu")),
    ("sampling.cu", include_str!("kernels/sampling.cu")),
    ("tokens.cu", include_str!("kernels/tokens.cu")),
    ("head_norm.cu", include_str!("kernels/head_norm.cu")),
    ("mel.cu", include_str!("kernels/mel.cu")),
    ("block.cuh", include_str!("kernels/frame/block.cuh")),
    ("product.cu", include_str!("kernels/frame/product.cu")),
    ("attend.cu", include_str!("kernels/frame/attend.cu")),
    ("draw.cu", include_str!("kernels/frame/draw.cu")),
    ("frame.cu", include_str!("kernels/frame/frame.cu")),
];

/// A kernel's name and the bytes of its arguments.
pub(crate) struct Kernel {
    pub name: &'static str,
    pub args: usize,
}

/// A kernel that takes arguments of one type.
pub(crate) struct KernelOf<A> {
    id: KernelId,
    args: PhantomData<fn(A)>,
}

impl<A> KernelOf<A> {
    /// Its place in [`KERNELS`].
    pub(crate) fn id(self) -> KernelId {
        self.id
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        KERNELS[self.id as usize].name
    }
}

impl<A> Clone for KernelOf<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for KernelOf<A> {}

impl<A> PartialEq for KernelOf<A> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl<A> std::fmt::Debug for KernelOf<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Writes the table of kernels and a constant per kernel with its place in it.
macro_rules! kernels {
    ($($id:ident = $name:literal ($args:ty)),+ $(,)?) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[repr(u16)]
        enum Index { $($id),+ }
        $(pub(crate) const $id: KernelOf<$args> = KernelOf { id: Index::$id as u16, args: PhantomData };)+
        /// Every kernel.
        pub(crate) const KERNELS: &[Kernel] = &[$(Kernel { name: $name, args: size_of::<$args>() }),+];
    };
}

kernels! {
    PREPARE = "prepare" (super::linear::PrepareArgs),
    NARROW_ROWS = "narrow_rows" (super::linear::NarrowArgs),
    NORM_NARROW_4 = "norm_narrow_4" (super::linear::NarrowArgs),
    NORM_NARROW_8 = "norm_narrow_8" (super::linear::NarrowArgs),
    NORM_NARROW_16 = "norm_narrow_16" (super::linear::NarrowArgs),
    EPILOGUE = "epilogue" (super::linear::EpilogueArgs),
    EPILOGUE4 = "epilogue4" (super::linear::EpilogueArgs),
    LINEAR_F32 = "linear_f32" (super::linear::LinearArgs),
    LINEAR_BF16 = "linear_bf16" (super::linear::LinearArgs),
    COPY_ROWS = "copy_rows" (super::rows::CopyRowsArgs),
    GUIDE_ROWS = "guide_rows" (super::rows::GuideRowsArgs),
    ADD_SCALED = "add_scaled" (super::rows::AddScaledArgs),
    LINEAR_INT8 = "linear_int8" (super::linear::LinearArgs),
    ROW_BF16 = "row_bf16" (super::row::RowArgs),
    ROW_LONG_BF16 = "row_long_bf16" (super::row::RowArgs),
    ROW_LONGEST_BF16 = "row_longest_bf16" (super::row::RowArgs),
    ROW_TWO_BF16 = "row_two_bf16" (super::row::RowArgs),
    ROW_TWO_LONG_BF16 = "row_two_long_bf16" (super::row::RowArgs),
    ROW_FOUR_BF16 = "row_four_bf16" (super::row::RowArgs),
    ROW_MANY_BF16 = "row_many_bf16" (super::row::RowArgs),
    LINEAR_FP8 = "linear_fp8" (super::linear::LinearArgs),
    QUANTISE = "quantise" (super::fp8::QuantiseArgs),
    EPILOGUE_FP8 = "epilogue_fp8" (super::fp8::ScaledArgs),
    PUT_KV_F32 = "put_kv_f32" (super::attention::AttendArgs),
    PUT_KV_BF16 = "put_kv_bf16" (super::attention::AttendArgs),
    PUT_KV_FP8 = "put_kv_fp8" (super::attention::AttendArgs),
    DECODE_FP8 = "decode_fp8" (super::attention::AttendArgs),
    DECODE_PAIR_FP8 = "decode_pair_fp8" (super::attention::AttendArgs),
    DECODE_GROUP_FP8 = "decode_group_fp8" (super::attention::AttendArgs),
    DECODE_FEW_FP8 = "decode_few_fp8" (super::attention::AttendArgs),
    DECODE_FEW_PAIR_FP8 = "decode_few_pair_fp8" (super::attention::AttendArgs),
    DECODE_FEW_GROUP_FP8 = "decode_few_group_fp8" (super::attention::AttendArgs),
    DECODE_F32 = "decode_f32" (super::attention::AttendArgs),
    DECODE_BF16 = "decode_bf16" (super::attention::AttendArgs),
    DECODE_PAIR_BF16 = "decode_pair_bf16" (super::attention::AttendArgs),
    DECODE_GROUP_F32 = "decode_group_f32" (super::attention::AttendArgs),
    DECODE_GROUP_BF16 = "decode_group_bf16" (super::attention::AttendArgs),
    DECODE_FEW_F32 = "decode_few_f32" (super::attention::AttendArgs),
    DECODE_FEW_BF16 = "decode_few_bf16" (super::attention::AttendArgs),
    DECODE_FEW_PAIR_BF16 = "decode_few_pair_bf16" (super::attention::AttendArgs),
    DECODE_FEW_GROUP_F32 = "decode_few_group_f32" (super::attention::AttendArgs),
    DECODE_FEW_GROUP_BF16 = "decode_few_group_bf16" (super::attention::AttendArgs),
    DECODE_ALONE_64 = "decode_alone_64" (super::attention::AttendArgs),
    DECODE_ALONE_128 = "decode_alone_128" (super::attention::AttendArgs),
    DECODE_ALONE_PAIR_64 = "decode_alone_pair_64" (super::attention::AttendArgs),
    DECODE_ALONE_PAIR_128 = "decode_alone_pair_128" (super::attention::AttendArgs),
    DECODE_SHORT_64 = "decode_short_64" (super::attention::AttendArgs),
    DECODE_SHORT_128 = "decode_short_128" (super::attention::AttendArgs),
    DECODE_SHORT_PAIR_64 = "decode_short_pair_64" (super::attention::AttendArgs),
    DECODE_SHORT_PAIR_128 = "decode_short_pair_128" (super::attention::AttendArgs),
    FEW_ROWS_64 = "few_rows_64" (super::attention::AttendArgs),
    FEW_ROWS_128 = "few_rows_128" (super::attention::AttendArgs),
    TILE_F32 = "tile_f32" (super::attention::AttendArgs),
    TILE_BF16 = "tile_bf16" (super::attention::AttendArgs),
    TILE_CHUNK_BF16 = "tile_chunk_bf16" (super::attention::AttendArgs),
    TILE_WHOLE_BF16 = "tile_whole_bf16" (super::attention::AttendArgs),
    TILE_FP8 = "tile_fp8" (super::attention::AttendArgs),
    MOVE_KV_F32 = "move_kv_f32" (super::kv::KvMoveArgs),
    MOVE_KV_BF16 = "move_kv_bf16" (super::kv::KvMoveArgs),
    MOVE_KV_FP8 = "move_kv_fp8" (super::kv::KvMoveArgs),
    COPY_KV = "copy_kv" (super::kv::KvCopyArgs),
    CONV_OPERAND = "conv_operand" (super::conv::ConvArgs),
    CONV_OPERAND8 = "conv_operand8" (super::conv::ConvArgs),
    CONV_THIN = "conv_thin" (super::conv::ThinConvArgs),
    CONV_LINE = "conv_line" (super::conv::ThinConvArgs),
    CONV_LINE_WIDE = "conv_line_wide" (super::conv::ThinConvArgs),
    CONV_SPREAD = "conv_spread" (super::conv::ThinConvArgs),
    CONV_STRIDED_64 = "conv_strided_64" (super::conv::ThinConvArgs),
    UNIT_96 = "unit_96" (super::unit::UnitArgs),
    UNIT_192 = "unit_192" (super::unit::UnitArgs),
    UNIT_96_FEW = "unit_96_few" (super::unit::UnitArgs),
    UNIT_96_SOME = "unit_96_some" (super::unit::UnitArgs),
    UNIT_192_FEW = "unit_192_few" (super::unit::UnitArgs),
    UNIT_192_SOME = "unit_192_some" (super::unit::UnitArgs),
    UNIT_384 = "unit_384" (super::unit::UnitArgs),
    UNIT_GROUPS_96 = "unit_groups_96" (super::unit::UnitArgs),
    UNIT_GROUPS_192 = "unit_groups_192" (super::unit::UnitArgs),
    UNIT_GROUPS_384 = "unit_groups_384" (super::unit::UnitArgs),
    RESIDUAL_32 = "residual_32" (super::residual::ResidualArgs),
    RESIDUAL_64 = "residual_64" (super::residual::ResidualArgs),
    RESIDUAL_128 = "residual_128" (super::residual::ResidualArgs),
    RESIDUAL_256 = "residual_256" (super::residual::ResidualArgs),
    RESIDUAL_FEW_32 = "residual_few_32" (super::residual::ResidualArgs),
    RESIDUAL_FEW_64 = "residual_few_64" (super::residual::ResidualArgs),
    RESIDUAL_FEW_128 = "residual_few_128" (super::residual::ResidualArgs),
    RESIDUAL_FEW_256 = "residual_few_256" (super::residual::ResidualArgs),
    UPSAMPLE = "upsample" (super::conv::UpsampleArgs),
    DEPTHWISE = "depthwise" (super::conv::DepthwiseArgs),
    DEPTHWISE4 = "depthwise4" (super::conv::DepthwiseArgs),
    SUBSAMPLE4 = "subsample4" (super::conv::SubsampleArgs),
    SUBSAMPLE = "subsample" (super::conv::SubsampleArgs),
    GLU = "glu" (super::pointwise::GluArgs),
    GLU4 = "glu4" (super::pointwise::GluArgs),
    SNAKE = "snake" (super::pointwise::SnakeArgs),
    SNAKE4 = "snake4" (super::pointwise::SnakeArgs),
    NORMALIZE_4 = "normalize_4" (super::pointwise::NormalizeArgs),
    NORMALIZE_8 = "normalize_8" (super::pointwise::NormalizeArgs),
    NORMALIZE_16 = "normalize_16" (super::pointwise::NormalizeArgs),
    NORMALIZE = "normalize" (super::pointwise::NormalizeArgs),
    LSTM_CELL = "lstm_cell" (super::pointwise::LstmCellArgs),
    ADD_RELU = "add_relu" (super::pointwise::AddReluArgs),
    ARGMAX = "argmax" (super::select::SelectArgs),
    CHOOSE = "choose" (super::select::SelectArgs),
    TOP_K = "top_k" (super::select::SelectArgs),
    GREEDY_BEGIN = "greedy_begin" (super::transducer::GreedyArgs),
    GREEDY_DECIDE = "greedy_decide" (super::transducer::GreedyArgs),
    BEAM_BEGIN = "beam_begin" (super::transducer::BeamArgs),
    BEAM_DECIDE = "beam_decide" (super::transducer::BeamArgs),
    SAMPLE = "sample" (super::sampling::SampleArgs),
    SAMPLE_BEST = "sample_best" (super::sampling::SampleArgs),
    PUT_TOKENS = "put_tokens" (super::tokens::PutTokensArgs),
    BRANCH_TOKENS = "branch_tokens" (super::tokens::BranchTokensArgs),
    MOVE_TOKENS = "move_tokens" (super::tokens::MoveTokensArgs),
    EMBED = "embed" (super::tokens::EmbedArgs),
    HEAD_NORM = "head_norm" (super::tokens::HeadNormArgs),
    MEL = "mel" (super::mel::MelArgs),
    STANDARDISE = "standardise" (super::mel::StandardiseArgs),
    FRAME = "frame" (super::frame::FrameArgs),
}

/// Whether a kernel is for few rows alone.
pub(crate) fn of_few_rows(name: &str) -> bool {
    ["linear_", "row_", "decode_few_", "decode_alone_"].iter().any(|few| name.starts_with(few))
        || name == "sample"
}

/// The kernels that the sources declare: name and type of arguments of each.
pub(crate) fn declared() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = SOURCES.iter().flat_map(|(_, text)| text.lines());
    lines.filter_map(declares)
}

/// The parts that the kernels are compiled in, side by side: those of a file, or a share of them. What takes longest comes
/// first, so that the last ones are short; only the very last, [`Parts::Frame`], is another matter.
pub(crate) const UNITS: &[Unit] = &units();

/// Which parts are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// What any model may use.
    Usual,
    /// The kernel of a whole frame, which takes as long to compile as half of the others and is used when asked for.
    Frame,
}

impl Parts {
    /// Their places in [`UNITS`].
    pub(crate) fn units(self) -> std::ops::Range<usize> {
        match self {
            Self::Usual => 0..UNITS.len() - 1,
            Self::Frame => UNITS.len() - 1..UNITS.len(),
        }
    }
}

/// A part: every `shares`-th kernel of a file, from `share` on.
#[derive(Clone, Copy)]
pub(crate) struct Unit {
    file: &'static str,
    share: usize,
    shares: usize,
}

/// Files with kernels, and in how many parts each is compiled.
const SHARES: [(&str, usize); 23] = [
    ("residual.cu", 2),
    ("attention.cu", 10),
    ("linear.cu", 4),
    ("conv.cu", 2),
    ("conv_tile.cu", 1),
    ("row.cu", 1),
    ("unit.cu", 3),
    ("unit_groups.cu", 3),
    ("attention_tile.cu", 2),
    ("attention_row.cu", 1),
    ("attention_few.cu", 1),
    ("linear_fp8.cu", 1),
    ("pointwise.cu", 1),
    ("beams.cu", 1),
    ("sampling.cu", 1),
    ("select.cu", 1),
    ("greedy.cu", 1),
    ("kv.cu", 1),
    ("mel.cu", 1),
    ("head_norm.cu", 1),
    ("rows.cu", 1),
    ("tokens.cu", 1),
    ("frame.cu", 1),
];

const fn unit_count() -> usize {
    let (mut count, mut at) = (0, 0);
    while at < SHARES.len() {
        count += SHARES[at].1;
        at += 1;
    }
    count
}

const fn units() -> [Unit; unit_count()] {
    let mut units = [Unit { file: "", share: 0, shares: 1 }; unit_count()];
    let (mut at, mut unit) = (0, 0);
    while at < SHARES.len() {
        let mut share = 0;
        while share < SHARES[at].1 {
            units[unit] = Unit { file: SHARES[at].0, share, shares: SHARES[at].1 };
            share += 1;
            unit += 1;
        }
        at += 1;
    }
    units
}

/// The kernel that a line of the sources declares.
fn declares(line: &str) -> Option<(&str, &str)> {
    let (how, rest) = line.strip_prefix("KERNEL")?.split_once('(')?;
    let mut parts = rest.split(',').map(str::trim);
    let known = ["", "_AHEAD", "_DENSE"].contains(&how);
    Some((parts.next()?, parts.next()?)).filter(|_| known)
}

/// The part that a kernel is in.
pub(crate) fn unit_of(kernel: &str) -> usize {
    let place = |(file, text): &(&'static str, &'static str)| {
        let at = text.lines().filter_map(declares).position(|(name, _)| name == kernel)?;
        UNITS.iter().position(|unit| unit.file == *file && unit.share == at % unit.shares)
    };
    SOURCES.iter().find_map(place).expect("a test places every kernel")
}

/// The sources with the kernels of one part, and checks that they fit the Rust side. Lines keep their numbers.
pub(crate) fn unit_source(unit: usize) -> String {
    let Unit { file, share, shares } = UNITS[unit];
    let mut out = String::new();
    for (name, text) in SOURCES {
        out += &format!("#line 1 \"{name}\"\n");
        let mut at = 0;
        for line in text.lines() {
            let kernel = declares(line).is_some();
            let skipped = kernel && !(*name == file && at % shares == share);
            at += usize::from(kernel);
            match line.split_once('(').filter(|_| skipped) {
                Some((_, arguments)) => out += &format!("SKIPPED({arguments}"),
                None => out += line,
            }
            out.push('\n');
        }
        out.push('\n');
    }
    out + "#line 1 \"sizes\"\n" + &size_checks()
}

/// Structs that kernels and Rust both know beside arguments, by their names in the kernels.
const SHARED_STRUCTS: &[(&str, usize)] = &[
    ("Norm", size_of::<super::linear::NormArgs>()),
    ("Store", size_of::<super::linear::StoreArgs>()),
    ("Stream", size_of::<super::streams::StreamArgs>()),
    ("StreamSpan", size_of::<super::streams::SpanWords>()),
    ("Taps", size_of::<super::conv::TapsArgs>()),
    ("AttendTask", size_of::<super::attention::Task>()),
    ("GuideWords", size_of::<super::rows::GuideWords>()),
    ("EmbedPart", size_of::<super::tokens::Part>()),
    ("SampleRow", size_of::<super::sampling::RowSettings>()),
    ("FramePhase", size_of::<super::frame::Phase>()),
    ("RowStats", 4 * super::select::STATS),
    ("Repeats", size_of::<transducer::Repeats>()),
    ("GreedyStream", size_of::<transducer::GreedyRun>()),
    ("GreedyLabel", 4 * transducer::FOUND_WORDS),
    ("BeamRun", 4 * transducer::BEAM_RUN_WORDS),
    ("BeamHyp", 4 * transducer::HYP_WORDS),
    ("BeamHeld", 4 * transducer::HELD_WORDS),
    ("BeamNode", 4 * transducer::NODE_WORDS),
];

/// Lines that do not compile where a struct of the kernels has another size than its twin in Rust.
fn size_checks() -> String {
    let of_kernel = |name: &str| KERNELS.iter().find(|k| k.name == name).map(|k| k.args);
    let args = declared().filter_map(|(name, args)| Some((args, of_kernel(name)?, name)));
    let structs = SHARED_STRUCTS.iter().map(|&(name, size)| (name, size, "tables"));
    args.chain(structs)
        .map(|(cpp, size, whose)| {
            format!(
                "static_assert(sizeof({cpp}) == {size}, \"{cpp} of {whose} has {size} bytes in Rust\");\n"
            )
        })
        .collect()
}

/// The sources as one text, with checks that they fit the Rust side.
#[cfg(any(test, feature = "cuda-emulator"))]
pub(crate) fn source() -> String {
    let sources = SOURCES.iter().map(|(name, text)| format!("#line 1 \"{name}\"\n{text}\n"));
    sources.chain(["#line 1 \"sizes\"\n".to_owned(), size_checks()]).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_sources_declare_the_kernels_of_the_table_and_each_is_checked() {
        let declared: BTreeSet<_> = declared().map(|(name, _)| name).collect();
        let table: BTreeSet<_> = KERNELS.iter().map(|k| k.name).collect();
        assert_eq!(declared, table);
        assert_eq!(table.len(), KERNELS.len(), "no name twice");
        let checks = size_checks();
        assert_eq!(checks.lines().count(), KERNELS.len() + SHARED_STRUCTS.len());
        let line = format!(
            "static_assert(sizeof(AddReluArgs) == {},",
            size_of::<super::super::pointwise::AddReluArgs>()
        );
        assert!(checks.contains(&line), "{checks}");
        assert!(source().ends_with(&checks));
    }

    #[test]
    fn every_kernel_is_in_one_part_and_no_part_is_empty() {
        let sources: Vec<String> = (0..UNITS.len()).map(unit_source).collect();
        let mut held = vec![0; UNITS.len()];
        for (name, _) in declared() {
            let declares = |line: &str| declares(line).is_some_and(|(own, _)| own == name);
            let holders: Vec<usize> =
                (0..UNITS.len()).filter(|unit| sources[*unit].lines().any(declares)).collect();
            assert_eq!(holders, [unit_of(name)], "{name}");
            held[unit_of(name)] += 1;
        }
        assert!(held.iter().all(|kernels| *kernels > 0), "{held:?}");
        assert_eq!(Parts::Frame.units(), unit_of(FRAME.name())..UNITS.len());
        assert_eq!(Parts::Usual.units(), 0..unit_of(FRAME.name()));
        assert!(sources.iter().all(|text| text.lines().count() == source().lines().count()));
    }
}
