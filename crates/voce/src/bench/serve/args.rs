//! Arguments of `voce bench serve`.

use clap::Args;

/// Arguments of `voce bench serve`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  voce bench serve --streams 2000                       a server of its own with the null model: what sockets cost
  voce bench serve --streams 32 --model DIR             a recogniser behind the sockets
  voce bench serve --streams 100 --url ws://host:8080   a server that runs already (its process is not measured)

Each client sends 20 ms of 16 kHz audio every 20 ms (--frame-ms) over /v1/listen and asks once a second for what was heard; `answer` is the
time from asking to the answer, behind all audio sent before. `late` is how far clients fell behind their own pace: if
that grows, this process and not the server was too slow. CPU and memory are the server's, read from /proc.")]
pub(crate) struct BenchServeArgs {
    /// Streams side by side
    #[arg(long, value_name = "N", env = "VOCE_BENCH_STREAMS", default_value_t = 100)]
    pub(crate) streams: usize,
    /// Seconds that all streams run
    #[arg(long, value_name = "S", env = "VOCE_BENCH_SECONDS", default_value_t = 10.0)]
    pub(crate) seconds: f64,
    /// Recogniser that the server loads; the null model, which discards audio, unless given
    #[arg(short, long, env = "VOCE_HEAR_MODEL")]
    pub(crate) model: Option<String>,
    /// A server that runs already
    #[arg(long, value_name = "URL", conflicts_with = "model")]
    pub(crate) url: Option<String>,
    /// Its key
    #[arg(long, env = "VOCE_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// Milliseconds of audio in a message
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(10..=1000))]
    pub(crate) frame_ms: u64,
    /// Refusals and disconnects to time on a full server of its own
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) churn: usize,
}
