//! Convolutions over streams on the device: operand rows are gathered for a product, small kernels are run at once.

use super::choice::{self, ConvShape, ConvWay, FEW_ROWS};
use super::driver::{Address, Shape};
use super::linear::{NormArgs, Rows, StoreArgs, activation};
use super::pointwise::{THREADS, lanes};
use super::program::KernelOf;
use super::queue::Args;
use super::row::FewRows;
use super::streams::StreamArgs;
use super::{Cuda, program};
use crate::exec::{
    Buffer, ConvOp, ConvState, DepthwiseOp, Output, Snake, SubsampleOp, SubsampleState, UpsampleOp,
};
use crate::matrix::Format;
use crate::simd::Activation;

/// Bytes of gathered rows per multiprocessor that a product takes at a time, so that the cache holds them all.
const GATHERED: usize = 256 << 10;

/// The device's form of a convolution's shape.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct TapsArgs {
    taps: u32,
    stride: u32,
    dilation: u32,
    pad: u32,
}

/// Bins that a thread takes: as in `conv.cu`.
const SUBSAMPLE_BINS: usize = 8;

/// Arguments of `conv_operand` and `conv_operand8`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ConvArgs {
    stream: StreamArgs,
    shape: TapsArgs,
    out: Address,
    first: u32,
    rows: u32,
    out_stride: u32,
    narrow: u32,
    lanes: u32,
    row_blocks: u32,
}

/// Arguments of `conv_thin`, `conv_line`, `conv_spread` and `conv_strided_64`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ThinConvArgs {
    stream: StreamArgs,
    store: StoreArgs,
    shape: TapsArgs,
    w: Address,
    rows: u32,
    n: u32,
    w_stride: u32,
    narrow: u32,
    row_blocks: u32,
    tiles: u32,
}

/// Arguments of `upsample`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UpsampleArgs {
    stream: StreamArgs,
    kernel: Address,
    out: Address,
    rows: u32,
    taps: u32,
    stride: u32,
    out_stride: u32,
    lanes: u32,
    row_blocks: u32,
}

/// Arguments of `depthwise`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DepthwiseArgs {
    stream: StreamArgs,
    norm: NormArgs,
    kernel: Address,
    bias: Address,
    out: Address,
    rows: u32,
    taps: u32,
    act: u32,
    out_stride: u32,
    narrow: u32,
    /// Whether blocks of rows keep the past, and no others are there for it.
    keeps: u32,
}

/// Arguments of `subsample`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SubsampleArgs {
    stream: StreamArgs,
    kernel: Address,
    bias: Address,
    out: Address,
    rows: u32,
    bins: u32,
    out_bins: u32,
    left: u32,
    channels: u32,
    spread: u32,
    act: u32,
    lanes: u32,
    row_blocks: u32,
    pad: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for ConvArgs {}
// SAFETY: as above.
unsafe impl Args for ThinConvArgs {}
// SAFETY: as above.
unsafe impl Args for UpsampleArgs {}
// SAFETY: as above.
unsafe impl Args for DepthwiseArgs {}
// SAFETY: as above.
unsafe impl Args for SubsampleArgs {}

/// Blocks of rows that have `lanes` threads each.
fn row_blocks(rows: usize, lanes: u32) -> u32 {
    (rows as u32).div_ceil(THREADS / lanes)
}

impl Cuda {
    /// Gathers the rows under the taps and multiplies them: a cacheful at a time.
    pub(crate) fn conv(
        &mut self,
        op: &ConvOp<'_>,
        snake: Option<Snake<'_>>,
        rows: usize,
        state: &mut ConvState,
        out: &mut Buffer,
    ) {
        let device = self.weights(op.w);
        let (out_stride, k_stride) = (op.w.n.max(out.cols()), device.stride);
        let mut store = StoreArgs {
            out: self.write(out),
            bias: self.optional(op.bias),
            gate: 0,
            out_stride: out_stride as u32,
            gate_stride: 0,
            act: activation(op.act),
            store: u32::from(op.add),
        };
        let mut stream = self.streams(op.x, op.spans, op.stride, op.pre, state);
        if let Some(snake) = snake {
            stream = stream.snaked(self.constant(snake.rate), self.constant(snake.gain));
        }
        let [taps, stride, dilation] = [op.taps, op.stride, op.dilation].map(|v| v as u32);
        let shape = TapsArgs { taps, stride, dilation, pad: 0 };
        let few = choice::few_rows(op.w.format, rows, k_stride, self.device().info().shared as usize);
        let wanted = ConvShape {
            format: op.w.format,
            outputs: op.w.n,
            channels: op.x.cols(),
            taps: op.taps,
            stride: op.stride,
            dilation: op.dilation,
            unit: stream.unit as usize,
            rows,
            out_stride,
            plain: (op.act == Activation::None && !op.add && snake.is_none()).then_some(op.pre),
            processors: self.device().info().processors as usize,
            shared: self.device().info().shared as usize,
            few: few.is_some(),
        };
        let way = wanted.way();
        if let Some(launch) = wanted.at_once(way, stream.history as usize) {
            return self.conv_at_once(op, rows, stream, shape, store, launch);
        }
        let ConvWay::Gathered { kernel, eights, narrow } = way else { unreachable!("done above") };
        let row_bytes = k_stride * if narrow { 2 } else { 4 };
        let cached = GATHERED * self.device().info().processors as usize;
        let chunk = (cached / row_bytes).clamp(1, rows);
        // Fewer rows than these may be gathered in f32.
        let bytes = (chunk * row_bytes).max(FEW_ROWS * k_stride * 4);
        let operand = self.queue.reserve(&mut self.scratch.operand, bytes);
        let lanes = lanes(if eights { op.x.cols() / 8 } else { k_stride / 4 });
        for first in (0..rows).step_by(chunk) {
            let count = chunk.min(rows - first);
            let row_blocks = row_blocks(count, lanes);
            let args = ConvArgs {
                stream,
                shape,
                out: operand,
                first: first as u32,
                rows: count as u32,
                out_stride: k_stride as u32,
                narrow: u32::from(narrow),
                lanes,
                row_blocks,
            };
            let keep = if first == 0 { stream.keep_blocks() } else { 0 };
            let launch = Shape { grid: [row_blocks + keep, 1, 1], block: THREADS, shared: 0 };
            self.queue.launch(kernel, launch, &args);
            if let Some(kernel) = few {
                let from = FewRows { x: operand, stride: k_stride, rows: count };
                self.few_rows(kernel, op.w, NormArgs::default(), from, store);
            } else {
                let rows = Rows { a: operand, stride: k_stride, scales: 0 };
                self.product(op.w, rows, count, store, false);
            }
            store.out += (count * out_stride * 4) as u64;
        }
    }

    /// A convolution by one kernel: see [`ConvShape::at_once`].
    fn conv_at_once(
        &mut self,
        op: &ConvOp<'_>,
        rows: usize,
        stream: StreamArgs,
        shape: TapsArgs,
        store: StoreArgs,
        (kernel, tile, shared): (KernelOf<ThinConvArgs>, usize, usize),
    ) {
        let device = self.weights(op.w);
        let tiles = if tile > 0 { stream.unit.div_ceil(tile as u32) } else { 0 };
        let row_blocks = if tile > 0 { rows as u32 / stream.unit * tiles } else { row_blocks(rows, 32) };
        let args = ThinConvArgs {
            stream,
            store,
            shape,
            w: device.at(),
            rows: rows as u32,
            n: op.w.n as u32,
            w_stride: device.stride as u32,
            narrow: u32::from(op.w.format == Format::Bf16),
            row_blocks,
            tiles,
        };
        let blocks = row_blocks + stream.keep_blocks();
        let launch = Shape { grid: [blocks, 1, 1], block: THREADS, shared: shared as u32 };
        self.queue.launch(kernel, launch, &args);
    }

    pub(crate) fn upsample(
        &mut self,
        op: &UpsampleOp<'_>,
        rows: usize,
        state: &mut ConvState,
        out: &mut Buffer,
    ) {
        let (channels, out_stride) = (op.x.cols(), out.cols() as u32);
        let (kernel, out) = (self.constant(op.kernel), self.write(out));
        let stream = self.streams(op.x, op.spans, 1, Activation::None, state);
        let (lanes, rows) = (lanes(channels), rows * op.stride);
        let row_blocks = row_blocks(rows, lanes);
        let args = UpsampleArgs {
            stream,
            kernel,
            out,
            rows: rows as u32,
            taps: stream.history + 1,
            stride: op.stride as u32,
            out_stride,
            lanes,
            row_blocks,
        };
        let shape = Shape { grid: [row_blocks + stream.keep_blocks(), 1, 1], block: THREADS, shared: 0 };
        self.queue.launch(program::UPSAMPLE, shape, &args);
    }

    pub(crate) fn depthwise(
        &mut self,
        op: &DepthwiseOp<'_>,
        rows: usize,
        state: &mut ConvState,
        mut out: Output<'_>,
    ) {
        let norm = op.norm.map_or_else(NormArgs::default, |n| self.row_norm(&n));
        let out_stride = out.buffer.cols() as u32;
        let (kernel, bias, place) =
            (self.constant(op.kernel), self.optional(op.bias), self.write(out.buffer));
        let stream = self.streams(op.x, op.spans, 1, Activation::None, state);
        let taps = (op.kernel.len() / op.x.cols()) as u32;
        let (chosen, fours) = choice::depthwise(stream.width as usize, taps as usize, out_stride as usize);
        let keeps = fours && taps == stream.history + 1;
        let keep_blocks = if keeps { 0 } else { stream.keep_blocks() };
        let args = DepthwiseArgs {
            stream,
            norm,
            kernel,
            bias,
            out: place,
            rows: rows as u32,
            taps,
            act: activation(op.act),
            out_stride,
            narrow: u32::from(fours && Self::keeps_narrow(&mut out, rows)),
            keeps: u32::from(keeps),
        };
        let shape = Shape { grid: [rows as u32 + keep_blocks, 1, 1], block: THREADS, shared: 0 };
        self.queue.launch(chosen, shape, &args);
    }

    /// `made` time rows come out of it.
    pub(crate) fn subsample(
        &mut self,
        op: &SubsampleOp<'_>,
        made: usize,
        state: &mut SubsampleState,
        out: &mut Buffer,
    ) {
        let spec = state.spec;
        let channels = out.cols();
        let (kernel, bias, out) = (self.constant(op.kernel), self.optional(op.bias), self.write(out));
        let stream = self.time_streams(op, state);
        let (lanes, rows) = (lanes(channels.div_ceil(4)), made * spec.out_bins());
        let (chosen, fours) = choice::subsample(channels, lanes as usize);
        let tiles = if fours { made * spec.out_bins().div_ceil(SUBSAMPLE_BINS) } else { rows };
        let row_blocks = row_blocks(tiles, lanes);
        let args = SubsampleArgs {
            stream,
            kernel,
            bias,
            out,
            rows: rows as u32,
            bins: spec.bins as u32,
            out_bins: spec.out_bins() as u32,
            left: spec.left as u32,
            channels: channels as u32,
            spread: u32::from(spec.channels == 1),
            act: activation(op.act),
            lanes,
            row_blocks,
            pad: 0,
        };
        let shape = Shape { grid: [row_blocks + stream.keep_blocks(), 1, 1], block: THREADS, shared: 0 };
        self.queue.launch(chosen, shape, &args);
    }
}
