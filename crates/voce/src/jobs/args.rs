//! Arguments of `voce work` and `voce jobs`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand};
use voce_jobs::nats::{LinkOptions, StreamOptions};

use crate::bulk::args::{HowArgs, TaskArg, WorkModelArgs};
use crate::failure::{Failure, Outcome};

/// Where NATS is, and who we are there.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "NATS")]
pub(crate) struct NatsArgs {
    /// Addresses of NATS servers: nats://host:4222, tls://host, with commas between them
    #[arg(long, value_name = "URL", env = "NATS_URL", default_value = "nats://127.0.0.1:4222")]
    pub(crate) nats: String,
    /// File of credentials (.creds)
    #[arg(long, value_name = "FILE", env = "NATS_CREDS")]
    pub(crate) nats_creds: Option<PathBuf>,
    /// File with an nkey seed
    #[arg(long, value_name = "FILE", env = "NATS_NKEY")]
    pub(crate) nats_nkey: Option<PathBuf>,
    /// User
    #[arg(long, value_name = "NAME", env = "NATS_USER", requires = "nats_password")]
    pub(crate) nats_user: Option<String>,
    /// Password
    #[arg(long, value_name = "TEXT", env = "NATS_PASSWORD", requires = "nats_user", hide_env_values = true)]
    pub(crate) nats_password: Option<String>,
    /// Token
    #[arg(long, value_name = "TEXT", env = "NATS_TOKEN", hide_env_values = true)]
    pub(crate) nats_token: Option<String>,
    /// Root certificates besides the system's
    #[arg(long, value_name = "FILE", env = "NATS_CA")]
    pub(crate) nats_ca: Option<PathBuf>,
    /// Our certificate
    #[arg(long, value_name = "FILE", env = "NATS_CERT", requires = "nats_key")]
    pub(crate) nats_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", env = "NATS_KEY", requires = "nats_cert")]
    pub(crate) nats_key: Option<PathBuf>,
    /// Refuse connections without TLS
    #[arg(long, env = "VOCE_NATS_TLS", value_parser = FalseyValueParser::new())]
    pub(crate) nats_tls: bool,
    /// TLS before the server's first word
    #[arg(long, env = "VOCE_NATS_TLS_FIRST", value_parser = FalseyValueParser::new())]
    pub(crate) nats_tls_first: bool,
    /// What subjects, streams and buckets begin with
    #[arg(long, value_name = "NAME", env = "VOCE_NATS_PREFIX", default_value = "voce")]
    pub(crate) nats_prefix: String,
    /// Domain of a leaf node's JetStream
    #[arg(long, value_name = "NAME", env = "VOCE_NATS_DOMAIN")]
    pub(crate) nats_domain: Option<String>,
}

impl NatsArgs {
    /// For a connection under a name.
    pub(crate) fn link(&self, name: &str) -> LinkOptions {
        LinkOptions {
            url: self.nats.clone(),
            creds: self.nats_creds.clone(),
            nkey: self.nats_nkey.clone(),
            user: self.nats_user.clone().zip(self.nats_password.clone()),
            token: self.nats_token.clone(),
            tls_ca: self.nats_ca.clone(),
            tls_cert: self.nats_cert.clone().zip(self.nats_key.clone()),
            tls: self.nats_tls,
            tls_first: self.nats_tls_first,
            prefix: self.nats_prefix.clone(),
            domain: self.nats_domain.clone(),
            name: name.to_owned(),
        }
    }
}

/// How streams and buckets are made where they are not there yet.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Streams that are made")]
pub(crate) struct StreamArgs {
    /// Copies that a cluster keeps
    #[arg(long, value_name = "N", env = "VOCE_NATS_REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub(crate) replicas: u8,
    /// Keep them in memory, not in files
    #[arg(long, env = "VOCE_NATS_MEMORY", value_parser = FalseyValueParser::new())]
    pub(crate) memory: bool,
    /// How long states, results, inputs and dead letters are kept: 7d, 12h, 30m, 90s
    #[arg(long, value_name = "TIME", env = "VOCE_JOBS_KEEP", default_value = "7d", value_parser = time)]
    pub(crate) keep: Duration,
    /// Megabytes that each bucket of the object store may hold [default: no limit but the server's]
    #[arg(long, value_name = "MB", env = "VOCE_NATS_OBJECT_MB")]
    pub(crate) object_mb: Option<u64>,
}

impl StreamArgs {
    pub(crate) fn options(&self) -> StreamOptions {
        StreamOptions {
            replicas: usize::from(self.replicas),
            memory: self.memory,
            keep: self.keep,
            object_bytes: self.object_mb.map(|mb| mb.saturating_mul(1_000_000)),
            ..StreamOptions::default()
        }
    }
}

/// Arguments of `voce work`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  voce work --nats nats://queue:4222 --results /shared/texts       results in a folder that all machines see
  voce work --nats tls://queue --nats-creds me.creds               results in JetStream's object store
  voce work --task say --model pocket --metrics-port 9100          a worker that speaks, with figures for Prometheus
  voce jobs submit manifest.jsonl --upload                         hand work in, anywhere

A worker does jobs of one task and one model; start as many as there are machines. Killed at any moment it loses nothing: a
job is acknowledged after its result is kept, and is given to another worker when there was no sign of life for --ack-wait.
SIGTERM lets long recordings come to a checkpoint and gives them back.")]
pub(crate) struct WorkArgs {
    /// What is done
    #[arg(long, value_enum, env = "VOCE_TASK", default_value = "hear")]
    pub(crate) task: TaskArg,
    /// Folder for results that all workers see [default: the object store]
    #[arg(long, value_name = "DIR", env = "VOCE_WORK_RESULTS")]
    pub(crate) results: Option<PathBuf>,
    /// Only recordings in this folder are read, and relative paths start there
    #[arg(long, value_name = "DIR", env = "VOCE_WORK_INPUTS")]
    pub(crate) inputs: Option<PathBuf>,
    /// Folder of this machine for what comes from and goes to the object store [default: the system's]
    #[arg(long, value_name = "DIR", env = "VOCE_WORK_SCRATCH")]
    pub(crate) scratch: Option<PathBuf>,
    /// How long the server waits for a sign of life before another worker gets a job
    #[arg(long, value_name = "TIME", env = "VOCE_WORK_ACK_WAIT", default_value = "60s", value_parser = time)]
    pub(crate) ack_wait: Duration,
    /// How often a job is taken before it goes to the dead letters
    #[arg(long, value_name = "N", env = "VOCE_WORK_TRIES", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) tries: u64,
    /// How often a long recording is checkpointed
    #[arg(long, value_name = "TIME", env = "VOCE_WORK_CHECKPOINT", default_value = "2m", value_parser = time)]
    pub(crate) checkpoint: Duration,
    /// Its name [default: the machine's, and the process's number]
    #[arg(long, env = "VOCE_WORK_NAME")]
    pub(crate) name: Option<String>,
    /// End once the queue is empty, as jobs of KEDA and of batch systems do
    #[arg(long, env = "VOCE_WORK_UNTIL_EMPTY", value_parser = FalseyValueParser::new())]
    pub(crate) until_empty: bool,
    /// Serve figures for Prometheus here: /metrics, with voce_load_ratio and voce_work_waiting
    #[arg(long, value_name = "PORT", env = "VOCE_METRICS_PORT")]
    pub(crate) metrics_port: Option<u16>,
    /// Address of the figures
    #[arg(long, value_name = "ADDRESS", env = "VOCE_METRICS_HOST", default_value = "127.0.0.1")]
    pub(crate) metrics_host: String,
    #[command(flatten)]
    pub(crate) nats: NatsArgs,
    #[command(flatten)]
    pub(crate) streams: StreamArgs,
    #[command(flatten)]
    pub(crate) model: WorkModelArgs,
}

/// What to do with jobs.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  voce jobs submit manifest.jsonl --upload --batch monday    recordings travel through the object store
  voce jobs submit /shared/recordings/                       workers see the same folder
  voce jobs watch monday                                     until all are done
  voce jobs list --state failed
  voce jobs retry --failed
  voce jobs fetch monday -o texts/                           results of the object store")]
pub(crate) enum JobsCommand {
    /// Hand in a list as `voce bulk` takes it; what is known already is not done twice
    Submit(Box<SubmitArgs>),
    /// List jobs and where they are
    List(ListJobsArgs),
    /// Follow jobs until all are over
    Watch(ListJobsArgs),
    /// Cancel jobs
    Cancel(PickArgs),
    /// Submit jobs again that failed or were cancelled
    Retry(PickArgs),
    /// Write results of the object store into a folder
    Fetch(FetchArgs),
}

/// Arguments of `voce jobs submit`.
#[derive(Debug, Args)]
pub(crate) struct SubmitArgs {
    /// NeMo manifest (.jsonl), list of files, folder, text to speak (--task say), or `-`
    #[arg(value_name = "MANIFEST|LIST|FOLDER|-")]
    pub(crate) list: PathBuf,
    /// Name for all of them [default: made of the time]
    #[arg(long, env = "VOCE_JOBS_BATCH")]
    pub(crate) batch: Option<String>,
    /// Put the recordings into the object store; else workers must see the same paths
    #[arg(long, env = "VOCE_JOBS_UPLOAD", value_parser = FalseyValueParser::new())]
    pub(crate) upload: bool,
    /// Model of the workers, as they were started with [default: nano-ear, nano-voice]
    #[arg(short, long, env = "VOCE_JOBS_MODEL")]
    pub(crate) model: Option<String>,
    /// Only workers with this revision of the model, as `voce bulk --json` tells it
    #[arg(long, env = "VOCE_JOBS_REVISION")]
    pub(crate) revision: Option<String>,
    /// Language, for models that are told one
    #[arg(short, long, env = "VOCE_LANGUAGE")]
    pub(crate) language: Option<String>,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    #[command(flatten)]
    pub(crate) nats: NatsArgs,
    #[command(flatten)]
    pub(crate) streams: StreamArgs,
}

/// Arguments of `voce jobs list` and `watch`.
#[derive(Debug, Args)]
pub(crate) struct ListJobsArgs {
    /// Only those of a batch
    pub(crate) batch: Option<String>,
    /// Only those in this state: waiting, running, done, failed, cancelled
    #[arg(long, value_parser = ["waiting", "running", "done", "failed", "cancelled"])]
    pub(crate) state: Option<String>,
    #[command(flatten)]
    pub(crate) nats: NatsArgs,
}

/// Arguments of `voce jobs cancel` and `retry`.
#[derive(Debug, Args)]
pub(crate) struct PickArgs {
    /// Ids, as `voce jobs list` has them
    #[arg(required_unless_present_any = ["batch", "failed"])]
    pub(crate) ids: Vec<String>,
    /// All of a batch
    #[arg(long)]
    pub(crate) batch: Option<String>,
    /// All that failed
    #[arg(long)]
    pub(crate) failed: bool,
    #[command(flatten)]
    pub(crate) nats: NatsArgs,
}

/// Arguments of `voce jobs fetch`.
#[derive(Debug, Args)]
pub(crate) struct FetchArgs {
    /// Only those of a batch
    pub(crate) batch: Option<String>,
    /// Folder
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) nats: NatsArgs,
}

/// `90s`, `30m`, `12h`, `7d`; a bare number is seconds.
fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let number: f64 =
        number.trim().parse().map_err(|_| "use a time such as 90s, 30m, 12h or 7d".to_owned())?;
    let seconds = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err("use a time such as 90s, 30m, 12h or 7d".into()),
    };
    let seconds = number * seconds;
    if (0.001..=3.2e9).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("use more than nothing, and less than a century".into())
    }
}

impl PickArgs {
    /// What was picked, of jobs in any order.
    pub(crate) fn has(&self, state: &voce_jobs::nats::State) -> bool {
        let batch = self.batch.as_ref().is_some_and(|b| *b == state.job.batch);
        let failed = self.failed && state.phase == voce_jobs::Phase::Failed;
        match (&self.batch, self.failed) {
            (Some(_), true) => batch && failed,
            _ => batch || failed,
        }
    }
}

/// A batch's name: letters that every shell leaves alone.
pub(crate) fn batch(name: Option<&str>) -> Outcome<String> {
    let Some(name) = name else {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        return Ok(format!("batch-{}", now.map_or(0, |d| d.as_secs())));
    };
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
        return Err(Failure::usage(format!(
            "'{name}' is no name for a batch: use up to 64 letters, digits, - _ and ."
        )));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(time("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(time("30"), Ok(Duration::from_secs(30)));
        for bad in ["", "s", "-1s", "5y", "0", "nan"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
