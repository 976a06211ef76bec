//! Arguments of `voce bench hear`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::FalseyValueParser;
use voce_engine::store::Task;

use super::args::{Threads, shape_help, threads};
use crate::args::PrecisionArg;
use crate::device::DeviceArgs;

/// Arguments of `voce bench hear`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  voce bench hear --shape fastconformer-0.12b --chunk 560 --streams 8 --json
  voce bench hear --shape nemotron-0.6b --chunk 80 --precision f32,bf16,int8
  voce bench hear --model DIR --streams 16 --audio talk.wav
  voce bench hear --shape nemotron-0.6b --device cuda --chunk 80,560 --streams 1,2000,4000
  voce bench hear --shape parakeet-tdt-0.6b --device cuda --streams 64 --seconds 10 --utterances 8

All streams are fed as fast as they are taken, one chunk a step each as live audio would be, unless --burst lets a step
take what waits. An offline model hears the first utterances of all streams as one batch; with --utterances it then finds
those that follow queued, as from a list of files: no more than --streams are heard at once. `streams_per_core` is seconds of audio over seconds of processor time, front end and search included.
Several settings print one table, or with --json one line, each. Build with --release to measure.")]
pub(crate) struct BenchHearArgs {
    /// Recogniser: a folder, a .nemo file, a catalogue name, owner/repo or hf://...
    #[arg(short, long, env = "VOCE_HEAR_MODEL")]
    pub(crate) model: Option<String>,
    /// Random weights of a published shape
    #[arg(long, env = "VOCE_BENCH_SHAPE", conflicts_with = "model", help = shape_help(Task::Hearing))]
    pub(crate) shape: Option<String>,
    /// Milliseconds of a chunk (or several to measure); the model's own, or whole utterances with offline models, unless given
    #[arg(long, value_name = "MS", value_delimiter = ',', env = "VOCE_CHUNK")]
    pub(crate) chunk: Vec<u32>,
    /// Streams side by side; several numbers are measured one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', env = "VOCE_BENCH_STREAMS", default_value = "1")]
    pub(crate) streams: Vec<usize>,
    /// Seconds of audio of each stream
    #[arg(long, value_name = "S", env = "VOCE_BENCH_SECONDS", default_value_t = 20.0)]
    pub(crate) seconds: f64,
    /// Time what comes after this many seconds of every stream by itself (`steady`): rings are full then
    #[arg(long, value_name = "S", env = "VOCE_BENCH_WARM")]
    pub(crate) warm: Option<f64>,
    /// Utterances that each stream hears one after the other, each of --seconds: the next waits while one is heard
    #[arg(long, value_name = "N", env = "VOCE_BENCH_UTTERANCES", default_value_t = 1)]
    pub(crate) utterances: usize,
    /// Audio to hear, over and over; generated noise like speech unless given
    #[arg(long, value_name = "FILE", env = "VOCE_BENCH_AUDIO")]
    pub(crate) audio: Option<PathBuf>,
    /// Threads: a number, or `sweep` for one to all cores
    #[arg(long, env = "VOCE_THREADS", default_value = "0", value_parser = threads)]
    pub(crate) threads: Threads,
    /// Model threads that share the streams: 0 chooses two on a GPU, one on a CPU or where steps overlap by themselves
    #[arg(long, value_name = "N", env = "VOCE_BENCH_LANES", default_value_t = 0)]
    pub(crate) lanes: usize,
    /// Keep each thread on a core of its own (Linux)
    #[arg(long, env = "VOCE_PIN", value_parser = FalseyValueParser::new())]
    pub(crate) pin: bool,
    /// Precisions to measure
    #[arg(long, value_enum, value_delimiter = ',', env = "VOCE_PRECISION", default_value = "auto")]
    pub(crate) precision: Vec<PrecisionArg>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Hypotheses side by side; 1 is greedy
    #[arg(long, value_name = "N", value_delimiter = ',', env = "VOCE_BEAM", default_value = "1")]
    pub(crate) beam: Vec<usize>,
    /// Timed runs after one to warm up; the fastest counts
    #[arg(long, value_name = "R", env = "VOCE_BENCH_REPEAT", default_value_t = 1)]
    pub(crate) repeat: usize,
    /// Let a step take all chunks of a stream that wait, as it does for files
    #[arg(long)]
    pub(crate) burst: bool,
    /// Measure transformers as well, with this Python; needs --model DIR
    #[arg(long, value_name = "PYTHON", env = "VOCE_BENCH_PEER")]
    pub(crate) peer: Option<PathBuf>,
    /// And sherpa-onnx, on a folder that `bench_peers.py export` wrote
    #[arg(long, value_name = "FOLDER", env = "VOCE_BENCH_PEER_ONNX", requires = "peer")]
    pub(crate) peer_onnx: Option<PathBuf>,
    /// Write what the stages did as a Chrome trace
    #[arg(long, value_name = "OUT.json", env = "VOCE_BENCH_TRACE")]
    pub(crate) trace: Option<PathBuf>,
}
