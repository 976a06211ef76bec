//! Arguments of `voce bench`.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand, ValueEnum};
use voce_engine::store::Task;

use super::codec::BenchCodecArgs;
use super::decode_args::BenchDecodeArgs;
use super::hear_args::BenchHearArgs;
use super::serve::args::BenchServeArgs;
use super::talk::BenchTalkArgs;
use crate::args::PrecisionArg;
use crate::device::DeviceArgs;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure how fast a model speaks
    Say(BenchSayArgs),
    /// Measure how many streams a recogniser hears
    Hear(BenchHearArgs),
    /// Measure how long a codec takes for a frame
    Codec(BenchCodecArgs),
    /// Measure how long a frame of conversations takes
    Talk(BenchTalkArgs),
    /// Measure how long a frame of a decoder-only model takes
    Decode(BenchDecodeArgs),
    /// Measure what streams cost the server
    Serve(BenchServeArgs),
}

/// One of the built-in texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextSize {
    /// 13 words
    Short,
    /// 53 words
    Medium,
    /// 115 words
    Long,
    /// Each of them
    All,
}

/// How many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// This many; 0 chooses.
    Fixed(usize),
    /// One to all cores.
    Sweep,
}

/// The help of `--shape`, with every shape's name.
pub(super) fn shape_help(task: Task) -> String {
    let names: Vec<&str> = voce_engine::shapes(task).collect();
    format!("Random weights of this shape: {}", names.join(", "))
}

pub(super) fn threads(text: &str) -> Result<Threads, String> {
    match text {
        "sweep" => Ok(Threads::Sweep),
        number => number.parse().map(Threads::Fixed).map_err(|_| "use a number or `sweep`".to_owned()),
    }
}

/// Seconds over which requests come.
fn within(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|s| (0.0..=3600.0).contains(s)).ok_or_else(|| "use 0 to 3600 seconds".to_owned())
}

/// Arguments of `voce bench say`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  voce bench say --shape pocket-100m                    random weights of full size: nothing to download
  voce bench say --model DIR --frames 125 --json        one line for scripts
  voce bench say --model DIR --threads sweep --precision f32,int8,int4
  voce bench say --shape pocket-100m --frames 125 --streams 256 --device cuda --cuda-events on
  voce bench say --shape qwen3-tts-1.7b --frames 50 --tokens 100 --streams 64 --within 1 --device cuda
  voce bench say --shape pocket-100m --frames 125 --clone    how long cloning a voice takes as well
  voce bench say --model DIR --text short --compare 'pocket-tts generate --text {text}'

The limit of a stage is the larger of its bytes over the measured read bandwidth and its multiply-adds over the rate
of the fastest product measured here; `fraction` is that limit over the time taken. Peak memory is counted anew for
each setting. Several settings print one table, or with --json one line, each. Build with --release to measure.")]
pub(crate) struct BenchSayArgs {
    /// Model: a folder, a catalogue name, owner/repo or hf://...
    #[arg(short, long, env = "VOCE_MODEL")]
    pub(crate) model: Option<String>,
    /// Random weights of a published shape
    #[arg(long, env = "VOCE_BENCH_SHAPE", conflicts_with = "model", help = shape_help(Task::Speech))]
    pub(crate) shape: Option<String>,
    /// Exactly this many frames from a text of --tokens
    #[arg(long, value_name = "N", env = "VOCE_BENCH_FRAMES")]
    pub(crate) frames: Option<usize>,
    /// Tokens of the text that --frames are spoken from
    #[arg(
        long,
        value_name = "N",
        env = "VOCE_BENCH_TOKENS",
        default_value_t = 24,
        value_parser = clap::value_parser!(u32).range(1..=1000),
        requires = "frames"
    )]
    pub(crate) tokens: u32,
    /// Which text
    #[arg(long, value_enum, env = "VOCE_BENCH_TEXT", default_value = "all")]
    pub(crate) text: TextSize,
    /// Timed runs after one to warm up (5 with --frames, else 3)
    #[arg(long, value_name = "R", env = "VOCE_BENCH_REPEAT")]
    pub(crate) repeat: Option<usize>,
    /// Threads: a number, or `sweep` for one to all cores
    #[arg(long, env = "VOCE_THREADS", default_value = "0", value_parser = threads)]
    pub(crate) threads: Threads,
    /// Keep each thread on a core of its own (Linux)
    #[arg(long, env = "VOCE_PIN", value_parser = FalseyValueParser::new())]
    pub(crate) pin: bool,
    /// Precisions to measure
    #[arg(long, value_enum, value_delimiter = ',', env = "VOCE_PRECISION", default_value = "auto")]
    pub(crate) precision: Vec<PrecisionArg>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Voice: a name, a .safetensors voice, or an audio file to clone
    #[arg(long, env = "VOCE_VOICE")]
    pub(crate) voice: Option<String>,
    /// Measure how long cloning takes, and speak with the clone: of a clip, or of ten seconds that are in the binary
    #[arg(
        long,
        value_name = "CLIP",
        env = "VOCE_BENCH_CLONE",
        num_args = 0..=1,
        default_missing_value = super::clone::BUILT_IN,
        conflicts_with = "voice"
    )]
    pub(crate) clone: Option<String>,
    /// Chunks of a long text that run side by side
    #[arg(long, value_name = "N", env = "VOCE_LOCKSTEP", default_value_t = 1)]
    pub(crate) lockstep: usize,
    /// Requests that speak `--frames` at once; several numbers are measured one after the other
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        env = "VOCE_BENCH_STREAMS",
        default_value = "1",
        requires = "frames"
    )]
    pub(crate) streams: Vec<usize>,
    /// Seconds over which the requests of --streams come, evenly; 0 is all at once
    #[arg(
        long,
        value_name = "SECONDS",
        env = "VOCE_BENCH_WITHIN",
        default_value_t = 0.0,
        value_parser = within,
        requires = "frames"
    )]
    pub(crate) within: f64,
    /// Sampler steps per frame
    #[arg(long, env = "VOCE_STEPS", default_value_t = 1)]
    pub(crate) steps: usize,
    /// Write what the stages did as a Chrome trace
    #[arg(long, value_name = "OUT.json", env = "VOCE_BENCH_TRACE")]
    pub(crate) trace: Option<PathBuf>,
    /// Time another program's command on the same text; `{text}` stands for it
    #[arg(long, value_name = "COMMAND", env = "VOCE_BENCH_COMPARE")]
    pub(crate) compare: Option<String>,
    /// Run the peers' benchmark with this Python, which has the published package of the model
    #[arg(long, value_name = "PYTHON", env = "VOCE_BENCH_PEER")]
    pub(crate) peer: Option<PathBuf>,
}
