//! Arguments of `voce bulk`, and those that other commands for kept work share with it.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use voce_audio::AudioFormat;
use voce_jobs::{HearSettings, SaySettings, Settings, Task, TextFormat};

use crate::args::{ModelArgs, PrecisionArg};
use crate::device::DeviceArgs;
use crate::failure::{Failure, Outcome};
use crate::hear::hotwords;

/// What is done with a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TaskArg {
    /// Recordings become texts
    Hear,
    /// Texts become recordings
    Say,
}

impl From<TaskArg> for Task {
    fn from(arg: TaskArg) -> Self {
        match arg {
            TaskArg::Hear => Task::Hear,
            TaskArg::Say => Task::Say,
        }
    }
}

/// Arguments of `voce bulk`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  voce bulk manifest.jsonl -o texts/                      a NeMo manifest: audio_filepath, duration, offset, ...
  voce bulk recordings/ -o texts/ --format json           every audio file of a folder and below
  find /data -name '*.flac' | voce bulk - -o texts/       a list of paths
  voce bulk --task say lines.txt -o speech/               a text a line; or JSON lines with text, voice, id, seed
  voce bulk manifest.jsonl -o texts/ --shard 2/8          the third of eight parts (SLURM arrays need no flag)
  voce bulk manifest.jsonl -o texts/ --retry-failed       once more what is in failed.jsonl
  rdd.pipe(\"voce bulk -q - -o -\")                         Spark: a list in, JSON lines out

Run it again after a kill, a crash or a power cut: what is done is skipped, and no file is ever half-written. The name of a
result holds a hash of the input's id, the model's revision and the settings, so that another model or another setting
writes other files. results.jsonl maps inputs to outputs, failed.jsonl says what failed and why.

Exit codes: 0 all done, 1 failed as a whole (a full disk), 2 bad usage, 3 done but for the failures in failed.jsonl,
130 interrupted.")]
pub(crate) struct BulkArgs {
    /// NeMo manifest (.jsonl), list of files (a path a line), folder, or `-` for a list on standard input
    #[arg(value_name = "MANIFEST|LIST|FOLDER|-")]
    pub(crate) list: PathBuf,
    /// Folder for the results; `-` writes them to standard output as JSON lines
    #[arg(short, long, env = "VOCE_OUTPUT", value_name = "DIR|-")]
    pub(crate) output: PathBuf,
    /// Only part i of n, counted from 0; `none` ignores what a batch system says [default: from SLURM_ARRAY_TASK_ID and
    /// _COUNT, or from JOB_COMPLETION_INDEX and VOCE_SHARDS, else all]
    #[arg(long, env = "VOCE_SHARD", value_name = "I/N")]
    pub(crate) shard: Option<String>,
    /// Try again what failed in an earlier run
    #[arg(long, env = "VOCE_RETRY_FAILED", value_parser = FalseyValueParser::new())]
    pub(crate) retry_failed: bool,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    #[command(flatten)]
    pub(crate) model: WorkModelArgs,
}

/// What is done, and all that results depend on besides the model.
#[derive(Debug, Clone, Args)]
pub(crate) struct HowArgs {
    /// What is done
    #[arg(long, value_enum, env = "VOCE_TASK", default_value = "hear")]
    pub(crate) task: TaskArg,
    /// Format: txt, json, srt, vtt, words, ctm, rttm or nemo (the manifest's line with pred_text); to speak: wav, wav-f32,
    /// flac, opus, pcm, f32, mulaw, alaw [default: txt, wav]
    #[arg(long, env = "VOCE_BULK_FORMAT")]
    pub(crate) format: Option<String>,
    /// Temperature (the model's own unless given)
    #[arg(long, env = "VOCE_TEMPERATURE", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Seed; texts to speak get seeds of their own from it and their ids [default: 0]
    #[arg(long, env = "VOCE_SEED")]
    pub(crate) seed: Option<u64>,
    /// Milliseconds a chunk, to hear
    #[arg(long, value_name = "MS", env = "VOCE_CHUNK", help_heading = "Hearing")]
    pub(crate) chunk: Option<u32>,
    /// Hypotheses side by side; 1 is greedy
    #[arg(long, value_name = "N", env = "VOCE_BEAM", default_value_t = 1, help_heading = "Hearing")]
    pub(crate) beam: usize,
    /// Readings to tell, up to the beam
    #[arg(long, value_name = "K", env = "VOCE_NBEST", default_value_t = 0, help_heading = "Hearing")]
    pub(crate) nbest: usize,
    /// Phrases to prefer: one a line, a tab and a weight if it is not 1
    #[arg(long, value_name = "FILE", env = "VOCE_HOTWORDS", help_heading = "Hearing")]
    pub(crate) hotwords: Option<PathBuf>,
    /// Milliseconds of silence that end an utterance
    #[arg(long, value_name = "MS", env = "VOCE_ENDPOINT_MS", help_heading = "Hearing")]
    pub(crate) endpoint_ms: Option<u32>,
    /// Voice: a name, a .safetensors voice, or an audio file to clone; a line's own voice wins
    #[arg(long, env = "VOCE_VOICE", help_heading = "Speaking")]
    pub(crate) voice: Option<String>,
    /// How to speak, in words, for models that take instructions
    #[arg(long, value_name = "TEXT", env = "VOCE_INSTRUCT", help_heading = "Speaking")]
    pub(crate) instruct: Option<String>,
    /// Do not read numbers, dates and abbreviations out
    #[arg(long, env = "VOCE_NO_NORMALIZE", value_parser = FalseyValueParser::new(), help_heading = "Speaking")]
    pub(crate) no_normalize: bool,
}

/// Which model does the work, and where.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct WorkModelArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Precision of the weights
    #[arg(long, value_enum, env = "VOCE_PRECISION", default_value = "auto")]
    pub(crate) precision: PrecisionArg,
    /// Threads; 0 chooses
    #[arg(long, env = "VOCE_THREADS", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Keep each thread on a core of its own (Linux)
    #[arg(long, env = "VOCE_PIN", value_parser = FalseyValueParser::new())]
    pub(crate) pin: bool,
    /// Units that are done side by side [default: 8, on a GPU 64]
    #[arg(long, value_name = "N", env = "VOCE_BULK_STREAMS", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) streams: Option<u16>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

impl HowArgs {
    /// The settings that they stand for; `language` is the model's flag.
    pub(crate) fn settings(&self, language: Option<String>) -> Outcome<Settings> {
        Ok(match self.task {
            TaskArg::Hear => Settings::Hear(HearSettings {
                format: text_format(self.format.as_deref().unwrap_or("txt"))?,
                chunk: self.chunk,
                beam: self.beam,
                nbest: self.nbest,
                hotwords: match &self.hotwords {
                    Some(path) => hotwords::read(path)?.into_iter().map(|h| (h.phrase, h.weight)).collect(),
                    None => Vec::new(),
                },
                language,
                endpoint_ms: self.endpoint_ms,
                temperature: self.temperature,
                seed: self.seed,
            }),
            TaskArg::Say => Settings::Say(SaySettings {
                format: match &self.format {
                    Some(name) if AudioFormat::from_name(name).is_none() => {
                        return Err(Failure::usage(format!(
                            "unknown audio format '{name}': use wav, wav-f32, flac, opus, pcm, f32, mulaw or alaw"
                        )));
                    }
                    format => format.clone(),
                },
                voice: self.voice.clone(),
                language,
                instruct: self.instruct.clone(),
                temperature: self.temperature,
                seed: self.seed.unwrap_or_default(),
                no_normalize: self.no_normalize,
            }),
        })
    }
}

fn text_format(name: &str) -> Outcome<TextFormat> {
    Ok(match name {
        "txt" | "text" => TextFormat::Txt,
        "json" => TextFormat::Json,
        "srt" => TextFormat::Srt,
        "vtt" => TextFormat::Vtt,
        "words" => TextFormat::Words,
        "ctm" => TextFormat::Ctm,
        "rttm" => TextFormat::Rttm,
        "nemo" => TextFormat::Nemo,
        _ => {
            return Err(Failure::usage(format!(
                "unknown text format '{name}': use txt, json, srt, vtt, words, ctm, rttm or nemo"
            )));
        }
    })
}
