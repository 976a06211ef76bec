//! Arguments of `voce bench decode`.

use clap::Args;

use super::args::{Threads, threads};
use crate::args::PrecisionArg;
use crate::device::DeviceArgs;

/// Arguments of `voce bench decode`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  voce bench decode --shape qwen3-tts-1.7b --device cuda --streams 1,64 --json
  voce bench decode --shape qwen3-tts-1.7b --device cuda --streams 64 --cuda-events on
  voce bench decode --shape stt-1b --streams 512 --context 750 --device cuda
  voce bench decode --shape qwen3-tts-0.6b --device cpu --precision int8 --frames 20

Random weights of full size, the keys and values of the context made up. A frame is everything from the last frame's
tokens to this one's on the host: embeddings, layers, heads, sampling, and the passes of the code predictor.
The limit of a frame is the larger of its bytes over the measured bandwidth and its multiply-adds over the rate of
the fastest product measured here; `fraction` is that limit over the median. Build with --release to measure.")]
pub(crate) struct BenchDecodeArgs {
    /// Shape: qwen3-tts-0.6b, qwen3-tts-1.7b, stt-1b, or qwen3-tts-tiny to try the command
    #[arg(long, env = "VOCE_BENCH_SHAPE")]
    pub(crate) shape: String,
    /// Streams side by side; several numbers are measured one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', env = "VOCE_BENCH_STREAMS", default_value = "1")]
    pub(crate) streams: Vec<usize>,
    /// Frames that are timed
    #[arg(long, value_name = "F", env = "VOCE_BENCH_FRAMES", default_value_t = 100)]
    pub(crate) frames: usize,
    /// Positions that every stream has behind it; the model's window, or 300, unless given
    #[arg(long, value_name = "C", env = "VOCE_BENCH_CONTEXT")]
    pub(crate) context: Option<usize>,
    /// Threads: a number, or `sweep` for one to all cores
    #[arg(long, env = "VOCE_THREADS", default_value = "0", value_parser = threads)]
    pub(crate) threads: Threads,
    /// Precisions to measure
    #[arg(long, value_enum, value_delimiter = ',', env = "VOCE_PRECISION", default_value = "auto")]
    pub(crate) precision: Vec<PrecisionArg>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}
