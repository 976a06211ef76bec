//! The command line, typed. Every flag is also an environment variable.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use voce_engine::speaker::language_name;
use voce_engine::store::{Store, Task, catalogue};
use voce_nn::Precision;

use crate::bench::args::BenchCommand;
use crate::bulk::args::BulkArgs;
use crate::codec::CodecCommand;
use crate::demo::DemoArgs;
use crate::device::DeviceArgs;
use crate::embedded;
use crate::failure::Failure;
use crate::hear::args::HearArgs;
use crate::route::RouteArgs;
use crate::serve::ServeArgs;
use crate::talk::TalkArgs;

/// Real-time speech on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "voce",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  voce demo                                           speak, hear it back, and compare: all is well
  voce say \"Hello there.\" -o hello.wav                speak into a file
  voce hear talk.mp3                                  write down what is said
  voce bulk manifest.jsonl -o texts/                  a list of any length, resumable
  voce talk --model moshiko                           hold a conversation
  voce pull pocket nemotron                           larger models than the built-in ones, once
  llm 'tell me a story' | voce say -o - | aplay       speak while the text arrives
  voce voice add anna clip.wav && voce say --voice anna \"Hi.\" -o hi.wav
  voce bench say --shape pocket-100m                  how fast this machine is, without a download

Exit codes: 0 done, 1 failed (quietly where the reader of the output went away), 2 bad usage or input, 3 done but for some
of a list or text, 70 a new process has to be started (a GPU was lost), 130 interrupted.
Results go to standard output, talk to standard error. VOCE_CPU=NAME forces an instruction set that `voce doctor` lists."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) talk: Talk,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How much is said.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Talk")]
pub(crate) struct Talk {
    /// Say nothing on standard error but errors
    #[arg(short, long, global = true, env = "VOCE_QUIET", value_parser = FalseyValueParser::new())]
    pub(crate) quiet: bool,
    /// Print the result as one JSON object
    #[arg(long, global = true, env = "VOCE_JSON", value_parser = FalseyValueParser::new())]
    pub(crate) json: bool,
    /// Log more (-v, -vv, -vvv); VOCE_LOG takes a filter such as `voce_engine=debug`
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Speak text: to a file, a pipe or the sound card
    #[command(aliases = ["speak", "tts"])]
    Say(SayArgs),
    /// Hear audio: files, a pipe or a microphone, as text
    #[command(aliases = ["transcribe", "listen", "stt"])]
    Hear(HearArgs),
    /// Hear or speak a list of any length: resumable, in parts, at full rate
    Bulk(Box<BulkArgs>),
    /// Work for a queue: jobs on NATS JetStream, on as many machines as there are
    #[cfg(feature = "nats")]
    Work(Box<crate::jobs::args::WorkArgs>),
    /// Hand jobs to workers: submit, list, watch, cancel, retry, fetch
    #[cfg(feature = "nats")]
    #[command(subcommand)]
    Jobs(crate::jobs::args::JobsCommand),
    /// Hold a conversation with a dialogue model: microphone and speaker, or files
    Talk(Box<TalkArgs>),
    /// Speak, hear it back, and compare: a proof that the installation works
    Demo(DemoArgs),
    /// Serve speech and recognition: OpenAI, Realtime, moshi, Deepgram, Wyoming, and a page
    Serve(Box<ServeArgs>),
    /// Route streams to several servers, and move them when one goes or dies
    Route(RouteArgs),
    /// Serve a moshi-server configuration, with its flags: the same as `serve --config`
    #[command(hide = true)]
    Worker(Box<ServeArgs>),
    /// Read moshi-server configurations, fetch what they name, and say whether they can be served
    #[command(hide = true)]
    Validate {
        /// Files
        #[arg(required = true)]
        configs: Vec<PathBuf>,
    },
    /// moshi-server's scripts, which are not needed here
    #[command(hide = true)]
    Configs {
        /// Which
        which: String,
    },
    /// Add, list, remove and export voices
    #[command(subcommand)]
    Voice(VoiceCommand),
    /// Encode audio into codes and decode codes, with a model's codec alone
    #[command(subcommand)]
    Codec(CodecCommand),
    /// Fetch models
    Pull(PullArgs),
    /// List models
    List(ListArgs),
    /// Show what a model is and what it needs
    Show(ShowArgs),
    /// Remove models
    Rm(RmArgs),
    /// Measure speed on this machine
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Say what this machine is and what will run on it
    Doctor(DoctorArgs),
    /// Print a shell's completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all of them into a folder
    Man {
        /// Folder for one page a command
        dir: Option<PathBuf>,
    },
}

/// `voce doctor`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  voce doctor                                          what this machine is
  voce doctor --compile-kernels                        compile for its GPUs now, not when they are first used
  voce doctor --compile-kernels all --into share/voce/kernels
                                                       for every generation; needs libnvrtc, but no GPU")]
pub(crate) struct DoctorArgs {
    /// Compile the GPU kernels and keep them: for this machine's GPUs, `all` generations, or a list such as 80,89,90
    #[arg(long, value_name = "GENERATIONS", num_args = 0..=1, default_missing_value = "here")]
    pub(crate) compile_kernels: Option<String>,
    /// Folder for the kernels (the user's cache unless given); `share/voce/kernels` beside the program is looked into
    #[arg(long, value_name = "DIR", requires = "compile_kernels")]
    pub(crate) into: Option<PathBuf>,
}

/// Precision of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrecisionArg {
    /// The fastest that sounds the same: int8, or bf16 on a GPU or a CPU without AVX2 (`voce doctor` says why)
    Auto,
    /// 32-bit floats, the reference
    F32,
    /// bfloat16
    Bf16,
    /// 8-bit integers
    Int8,
    /// 4-bit backbone, the rest as int8; not on a GPU
    Int4,
    /// 8-bit floats, weights, keys and values; on GPUs from Ada (8.9) on alone
    Fp8,
}

impl From<PrecisionArg> for Precision {
    fn from(arg: PrecisionArg) -> Self {
        match arg {
            PrecisionArg::Auto | PrecisionArg::Int8 => Precision::Int8,
            PrecisionArg::F32 => Precision::F32,
            PrecisionArg::Bf16 => Precision::Bf16,
            PrecisionArg::Int4 => Precision::Int4,
            PrecisionArg::Fp8 => Precision::Fp8,
        }
    }
}

/// Which model.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// Model: a folder, a catalogue name, owner/repo or hf://... [default: the best that was pulled, else the
    /// built-in nano-voice]
    #[arg(short, long, env = "VOCE_MODEL")]
    pub(crate) model: Option<String>,
    /// Language (english, fr, ...): what a model of several languages is told; else short for the default family's model
    /// of that language, such as --model pocket-french, and then wins over --model
    #[arg(short, long, env = "VOCE_LANGUAGE")]
    pub(crate) language: Option<String>,
}

impl ModelArgs {
    /// The model's reference; the built-in voice is laid out if it is the one.
    pub(crate) fn reference(&self, store: &Store) -> Result<String, Failure> {
        let reference = match (&self.language, &self.model) {
            (Some(language), Some(model)) if embedded::find(model).is_some() => built_in(model, language)?,
            (Some(_), Some(model)) if self.spoken(store).is_some() => model.clone(),
            (Some(language), model) => {
                let name = language_name(language);
                let family = catalogue::find(best_voice()).map_or("", |entry| entry.family.name());
                let own = format!("{family}-{name}");
                let small = embedded::find(embedded::VOICE).filter(|voice| voice.language == name);
                match small {
                    // A model that is not here is no better than the one that is.
                    Some(small) if model.is_none() && store.find(&own).is_err() => small.name.to_owned(),
                    _ => own,
                }
            }
            (None, Some(model)) => model.clone(),
            (None, None) => {
                let built_in = || embedded::find(embedded::VOICE).map(|voice| voice.name);
                store.preferred(Task::Speech).or_else(built_in).unwrap_or(best_voice()).to_owned()
            }
        };
        embedded::provide(store, &reference)?;
        Ok(reference)
    }

    /// The language to tell the model that was named: one of another family than that whose languages are models of
    /// their own.
    pub(crate) fn spoken(&self, store: &Store) -> Option<String> {
        let (language, model) = (self.language.as_ref()?, self.model.as_ref()?);
        let own = catalogue::find(best_voice()).map(|entry| entry.family);
        let other = match store.identify(model) {
            Ok(identity) => Some(identity.family) != own,
            // What is not there is told by its own name.
            Err(_) => std::path::Path::new(model).components().count() > 1,
        };
        other.then(|| language_name(language))
    }
}

/// The catalogue's voice model to use when none is named.
pub(crate) fn best_voice() -> &'static str {
    catalogue::preferred(Task::Speech).first().copied().unwrap_or_default()
}

/// A built-in model that was named beside a language: it has one, and speaks no other.
fn built_in(model: &str, language: &str) -> Result<String, Failure> {
    match embedded::find(model) {
        Some(own) if own.language != language_name(language) => Err(Failure::usage(format!(
            "{model} speaks {}, not '{language}': leave --model out, or name one of that language (`voce list --all`)",
            own.language_name()
        ))),
        _ => Ok(model.to_owned()),
    }
}

/// How the model runs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct RunArgs {
    /// Precision of the weights
    #[arg(long, value_enum, env = "VOCE_PRECISION", default_value = "auto")]
    pub(crate) precision: PrecisionArg,
    /// Threads; 0 chooses
    #[arg(long, env = "VOCE_THREADS", default_value_t = 0)]
    pub(crate) threads: usize,
    /// How language model and codec share the threads: side by side (better for long texts) or in turn
    /// (sooner for short ones)
    #[arg(long, value_enum, env = "VOCE_OVERLAP", default_value = "auto")]
    pub(crate) overlap: OverlapArg,
    /// Keep each thread on a core of its own (Linux)
    #[arg(long, env = "VOCE_PIN", value_parser = FalseyValueParser::new())]
    pub(crate) pin: bool,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

/// A way for the stages to share the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OverlapArg {
    /// By the length of the text and the number of threads
    Auto,
    /// Side by side
    Beside,
    /// In turn
    InTurn,
}

/// Arguments of `voce say`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  voce say \"Hello world.\" -o hello.wav
  voce say --file chapter.txt -o chapter.mp3 --voice alba
  voce say --file README.md -o readme.opus            Markdown, HTML and emoji are taken out, links read by their words
  voce say \"One. [pause:300ms] Two. <break time=\\\"0.5s\\\"/> Three.\" -o count.wav
  llm 'a short story' | voce say -o - | aplay         speaking starts at the first full stop
  voce say --language fr \"Bonjour.\" -o - --format pcm | ffplay -f s16le -ar 24000 -

Text given as arguments or with --file is read as a whole; text from standard input is spoken as it arrives.
Markup is taken out, web addresses and, in English, numbers, dates, currency and abbreviations are read out, unless
--no-normalize says otherwise.
With --json and `-o -` the JSON goes to standard error, since the audio has standard output.")]
pub(crate) struct SayArgs {
    /// Text to speak; `-` (or nothing, with a pipe) reads standard input
    pub(crate) text: Vec<String>,
    /// Read the text from a file
    #[arg(short, long, conflicts_with = "text")]
    pub(crate) file: Option<PathBuf>,
    /// Where the audio goes: a file, or `-` for standard output while it is being made
    #[arg(short, long, env = "VOCE_OUTPUT")]
    pub(crate) output: Option<PathBuf>,
    /// Format, where the file's extension does not say: wav, mp3, opus, flac, wav-f32, pcm, f32, mulaw, alaw
    #[arg(long, env = "VOCE_FORMAT")]
    pub(crate) format: Option<String>,
    /// Play through the sound card
    #[arg(short, long, env = "VOCE_PLAY", value_parser = FalseyValueParser::new())]
    pub(crate) play: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Voice: a name, a .safetensors voice, or an audio file to clone; A+B where <turn/> changes the speaker
    #[arg(long, env = "VOCE_VOICE")]
    pub(crate) voice: Option<String>,
    /// Audio file whose voice is cloned
    #[arg(long, value_name = "CLIP", env = "VOCE_CLONE", conflicts_with = "voice")]
    pub(crate) clone: Option<PathBuf>,
    /// What is said in the clip, for models that go on from it
    #[arg(long, value_name = "TEXT", env = "VOCE_CLONE_TEXT", requires = "clone")]
    pub(crate) clone_text: Option<String>,
    /// How to speak, in words ("warm, low, slow"), for models that take instructions
    #[arg(long, value_name = "TEXT", env = "VOCE_INSTRUCT")]
    pub(crate) instruct: Option<String>,
    /// Where the text of a chunk stands, for models that know both: beside the frames or before them
    #[arg(long, value_enum, env = "VOCE_TEXT_MODE")]
    pub(crate) text_mode: Option<TextModeArg>,
    /// Also write the codes of all frames, [codebooks, frames], to a .safetensors file
    #[arg(long, value_name = "FILE", env = "VOCE_CODES")]
    pub(crate) codes: Option<PathBuf>,
    /// Tell when each word is spoken, for models that know it
    #[arg(long, env = "VOCE_WORDS", value_parser = FalseyValueParser::new())]
    pub(crate) words: bool,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Milliseconds of silence after the last word, up to a minute
    #[arg(long, value_name = "MS", env = "VOCE_TRAILING_SILENCE", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pub(crate) trailing_silence: u32,
    /// Speak the text as it is: keep markup and emoji, do not read numbers, dates and addresses out
    #[arg(long, env = "VOCE_NO_NORMALIZE", value_parser = FalseyValueParser::new())]
    pub(crate) no_normalize: bool,
    /// Chunks of a long text that run side by side
    #[arg(long, value_name = "N", env = "VOCE_LOCKSTEP", default_value_t = 8)]
    pub(crate) lockstep: usize,
}

/// Where the text of a chunk stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextModeArg {
    /// A token beside each frame: speech begins with the first words
    Streaming,
    /// All of it before the first frame
    Whole,
}

/// How frames are drawn.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always says the same (the model's own unless given)
    #[arg(long, env = "VOCE_TEMPERATURE", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Draw noise beyond this again
    #[arg(long, env = "VOCE_NOISE_CLAMP", allow_negative_numbers = true)]
    pub(crate) noise_clamp: Option<f32>,
    /// Seed of the noise (a random one unless given; --json tells it)
    #[arg(long, env = "VOCE_SEED")]
    pub(crate) seed: Option<u64>,
    /// Sampler steps per frame
    #[arg(long, env = "VOCE_STEPS", default_value_t = 1)]
    pub(crate) steps: usize,
    /// Logit above which speech ends (the model's own unless given)
    #[arg(long, env = "VOCE_EOS_THRESHOLD", allow_negative_numbers = true)]
    pub(crate) eos_threshold: Option<f32>,
    /// Frames after the end was seen (the model's guess unless given)
    #[arg(long, value_name = "N", env = "VOCE_FRAMES_AFTER_EOS")]
    pub(crate) frames_after_eos: Option<usize>,
    /// Take the best of all that is drawn
    #[arg(long, env = "VOCE_GREEDY", value_parser = FalseyValueParser::new())]
    pub(crate) greedy: bool,
    /// Draw from this many of the best tokens; 0 for all (the model's own unless given)
    #[arg(long, value_name = "N", env = "VOCE_TOP_K")]
    pub(crate) top_k: Option<usize>,
    /// Draw from the fewest tokens that hold this probability (the model's own unless given)
    #[arg(long, value_name = "P", env = "VOCE_TOP_P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Against tokens that were drawn before: 1 is none (the model's own unless given)
    #[arg(long, value_name = "P", env = "VOCE_REPETITION_PENALTY", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Temperature of what a second network draws of each frame
    #[arg(long, value_name = "T", env = "VOCE_FINE_TEMPERATURE", allow_negative_numbers = true)]
    pub(crate) fine_temperature: Option<f32>,
    /// --top-k of the second network
    #[arg(long, value_name = "N", env = "VOCE_FINE_TOP_K")]
    pub(crate) fine_top_k: Option<usize>,
    /// --top-p of the second network
    #[arg(long, value_name = "P", env = "VOCE_FINE_TOP_P", allow_negative_numbers = true)]
    pub(crate) fine_top_p: Option<f32>,
    /// How closely the model follows voice and text (the model's own unless given)
    #[arg(long, value_name = "X", env = "VOCE_CFG", allow_negative_numbers = true)]
    pub(crate) cfg: Option<f32>,
    /// Codes of a frame that are drawn: fewer are faster (all of the model's unless given)
    #[arg(long, value_name = "N", env = "VOCE_CODEBOOKS")]
    pub(crate) codebooks: Option<usize>,
    /// Tokens per chunk of text (the model's own unless given)
    #[arg(long, value_name = "N", env = "VOCE_MAX_TOKENS")]
    pub(crate) max_tokens: Option<usize>,
    /// Exactly this many frames unless the end comes first
    #[arg(long, value_name = "N", env = "VOCE_MAX_FRAMES")]
    pub(crate) max_frames: Option<usize>,
}

/// What to do with voices.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  voce voice add anna interview.mp3      clone a voice: mono or stereo, any rate, cut on a pause after 30 s
  voce voice add anna short.wav --text \"What she says.\" --model qwen3-tts-1.7b-base
  voce voice export anna anna.safetensors")]
pub(crate) enum VoiceCommand {
    /// Clone a voice from a clip and keep it under a name
    Add {
        /// Name: letters, digits, _ and -
        name: String,
        /// Audio file, or a .safetensors voice
        clip: PathBuf,
        /// What is said in the clip, for models that go on from it
        #[arg(long, value_name = "TEXT", env = "VOCE_CLONE_TEXT")]
        text: Option<String>,
        #[command(flatten)]
        how: CloneArgs,
    },
    /// List your voices and those that come with a model
    List {
        #[command(flatten)]
        model: ModelArgs,
    },
    /// Remove voices
    Rm {
        /// Names
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Write a voice as a .safetensors file that other programs load as well
    Export {
        /// A voice's name, or a clip to clone
        source: String,
        /// The file to write
        out: PathBuf,
        #[command(flatten)]
        how: CloneArgs,
    },
}

/// How a voice is cloned.
#[derive(Debug, Clone, Args)]
pub(crate) struct CloneArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Precision of the weights
    #[arg(long, value_enum, env = "VOCE_VOICE_PRECISION", default_value = "f32")]
    pub(crate) precision: PrecisionArg,
    /// Threads; 0 chooses
    #[arg(long, env = "VOCE_THREADS", default_value_t = 0)]
    pub(crate) threads: usize,
}

/// Arguments of `voce pull`.
#[derive(Debug, Args)]
#[command(after_help = "\
Files go to the Hugging Face cache (HF_HOME, HF_HUB_CACHE); HF_TOKEN and HF_ENDPOINT work as there.
Stopped pulls resume. Examples:
  voce pull pocket --voices alba,marius
  voce pull pocket --cloning              weights that can clone voices; accept their licence first")]
pub(crate) struct PullArgs {
    /// Catalogue names, owner/repo[@revision] or hf://owner/repo/path
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Never touch the network: only check what is here
    #[arg(long, env = "VOCE_OFFLINE", value_parser = FalseyValueParser::new())]
    pub(crate) offline: bool,
    /// Ready-made voices: `all`, or names
    #[arg(long, value_delimiter = ',', value_name = "NAMES", env = "VOCE_VOICES")]
    pub(crate) voices: Vec<String>,
    /// The weights that can clone voices
    #[arg(long, env = "VOCE_CLONING", value_parser = FalseyValueParser::new())]
    pub(crate) cloning: bool,
}

/// Arguments of `voce list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// The whole catalogue, not only what is here
    #[arg(short, long, env = "VOCE_ALL", value_parser = FalseyValueParser::new())]
    pub(crate) all: bool,
}

/// Arguments of `voce show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// A folder, a catalogue name, owner/repo or hf://...
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// Arguments of `voce rm`.
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Models as `voce list` names them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}
