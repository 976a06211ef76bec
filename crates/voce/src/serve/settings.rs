//! The one table of settings: each field is a flag, a variable and a key of voce.toml.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::moshi::modules::Modules;
use crate::args::PrecisionArg;
use crate::device::Switch;
use crate::failure::{Failure, Outcome};

/// Settings of the server.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Settings")]
pub(crate) struct Settings {
    /// Address to listen on; 0.0.0.0 for other machines [default: 127.0.0.1]
    #[arg(short = 'a', long, alias = "addr", value_name = "IP", env = "VOCE_HOST")]
    pub(super) host: Option<String>,
    /// Port to listen on; 0 takes any [default: 8080]
    #[arg(short, long, env = "VOCE_PORT")]
    pub(super) port: Option<u16>,
    /// Voice models, the first being the default [default: the best that was pulled, else the built-in voice]
    #[arg(long, value_name = "MODEL", value_delimiter = ',', env = "VOCE_SPEAK")]
    pub(super) speak: Vec<String>,
    /// Recognisers, the first being the default [default: the best that was pulled, else the built-in
    /// one]
    #[arg(long, value_name = "MODEL", value_delimiter = ',', env = "VOCE_HEAR")]
    pub(super) hear: Vec<String>,
    /// Dialogue models, for /api/chat and the page, the first being the default [default: none]
    #[arg(long, value_name = "MODEL", value_delimiter = ',', env = "VOCE_TALK")]
    pub(super) talk: Vec<String>,
    /// No voice model at all
    #[arg(long, env = "VOCE_NO_SPEAK", value_parser = FalseyValueParser::new())]
    pub(super) no_speak: bool,
    /// No recogniser at all
    #[arg(long, env = "VOCE_NO_HEAR", value_parser = FalseyValueParser::new())]
    pub(super) no_hear: bool,
    /// Speech requests at once, for each voice model [default: 8, on a GPU 64]
    #[arg(long, value_name = "N", env = "VOCE_SPEAK_SLOTS")]
    pub(super) speak_slots: Option<usize>,
    /// Recognition streams at once, for each recogniser [default: 8, on a GPU 64]
    #[arg(long, value_name = "N", env = "VOCE_HEAR_SLOTS")]
    pub(super) hear_slots: Option<usize>,
    /// Milliseconds of audio that recognisers take at once, where a stream does not say, such as 80 [default: each model's
    /// own]
    #[arg(long, value_name = "MS", env = "VOCE_HEAR_CHUNK")]
    pub(super) hear_chunk: Option<u32>,
    /// Hypotheses that recognisers keep side by side, where a stream does not say [default: 1, greedy]
    #[arg(long, value_name = "N", env = "VOCE_HEAR_BEAM")]
    pub(super) hear_beam: Option<usize>,
    /// Conversations at once, for each dialogue model [default: 1, on a GPU 4]
    #[arg(long, value_name = "N", env = "VOCE_TALK_SLOTS")]
    pub(super) talk_slots: Option<usize>,
    /// Precision of the weights [default: auto]
    #[arg(long, value_enum, env = "VOCE_PRECISION")]
    #[serde(deserialize_with = "precision")]
    pub(super) precision: Option<PrecisionArg>,
    /// Where models run: auto (the first NVIDIA GPU, if there is one), cpu, cuda or cuda:N; several share the slots of
    /// each model [default: auto]
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', env = "VOCE_DEVICE")]
    #[serde(deserialize_with = "one_or_several")]
    pub(super) device: Vec<String>,
    /// Whether f32 products on a GPU may round their factors to TF32 [default: on]
    #[arg(long, value_name = "on|off", value_enum, env = "VOCE_TF32")]
    #[arg(num_args = 0..=1, default_missing_value = "on", hide_possible_values = true)]
    #[serde(deserialize_with = "switch")]
    pub(super) tf32: Option<Switch>,
    /// Whether steps that repeat on a GPU are captured into graphs [default: on]
    #[arg(long, value_name = "on|off", value_enum, env = "VOCE_CUDA_GRAPHS", hide_possible_values = true)]
    #[serde(deserialize_with = "switch")]
    pub(super) cuda_graphs: Option<Switch>,
    /// Whether one stream's frame is one kernel on GPUs of compute capability 9 and later: faster for one stream, while
    /// whatever else runs on the GPU waits for whole frames [default: off]
    #[arg(long, value_name = "on|off", value_enum, env = "VOCE_CUDA_FRAMES", hide_possible_values = true)]
    #[serde(deserialize_with = "switch")]
    pub(super) cuda_frames: Option<Switch>,
    /// Threads of each model; 0 chooses [default: 0]
    #[arg(long, env = "VOCE_THREADS")]
    pub(super) threads: Option<usize>,
    /// Keep each thread on a core of its own (Linux)
    #[arg(long, env = "VOCE_PIN", value_parser = FalseyValueParser::new())]
    pub(super) pin: bool,
    /// A step of each idle model this often keeps caches and clocks warm, such as 1s; off for none [default: off]
    #[arg(long, value_name = "TIME", env = "VOCE_KEEP_WARM")]
    pub(super) keep_warm: Option<String>,
    /// Requests that may wait for a slot [default: 0, they are refused]
    #[arg(long, value_name = "N", env = "VOCE_QUEUE")]
    pub(super) queue: Option<usize>,
    /// How long a request waits for a slot [default: 10s]
    #[arg(long, value_name = "TIME", env = "VOCE_QUEUE_TIME")]
    pub(super) queue_time: Option<String>,
    /// Hear soft speech as soft as it is: raise none before recognition
    #[arg(long, env = "VOCE_NO_HEAR_GAIN", value_parser = FalseyValueParser::new())]
    pub(super) no_hear_gain: bool,
    /// Unload each model after so long without a stream of it, such as 5m [default: never]
    #[arg(long, value_name = "TIME", env = "VOCE_KEEP_ALIVE")]
    pub(super) keep_alive: Option<String>,
    /// Load each model when it is first asked for
    #[arg(long, env = "VOCE_LAZY", value_parser = FalseyValueParser::new())]
    pub(super) lazy: bool,
    /// The voice when none is asked for [default: the model's]
    #[arg(long, env = "VOCE_VOICE")]
    pub(super) voice: Option<String>,
    /// Other names of voices, as NAME=VOICE
    #[arg(long, value_name = "NAME=VOICE", value_delimiter = ',', env = "VOCE_VOICE_ALIAS")]
    pub(super) voice_alias: Vec<String>,
    /// Other names of models, as NAME=MODEL
    #[arg(long, value_name = "NAME=MODEL", value_delimiter = ',', env = "VOCE_ALIAS")]
    pub(super) alias: Vec<String>,
    /// Clients may not add or remove voices
    #[arg(long, env = "VOCE_FIXED_VOICES", value_parser = FalseyValueParser::new())]
    pub(super) fixed_voices: bool,
    /// Keys that clients must send [default: none is needed]
    #[arg(long, value_name = "KEY", value_delimiter = ',', env = "VOCE_API_KEY", hide_env_values = true)]
    pub(super) api_key: Vec<String>,
    /// File with such keys, one a line
    #[arg(long, value_name = "FILE", env = "VOCE_API_KEY_FILE")]
    pub(super) api_key_file: Option<PathBuf>,
    /// /metrics needs no key
    #[arg(long, env = "VOCE_OPEN_METRICS", value_parser = FalseyValueParser::new())]
    pub(super) open_metrics: bool,
    /// Sites whose pages may call the server, such as https://app.example; * for all [default: none]
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', env = "VOCE_CORS")]
    pub(super) cors: Vec<String>,
    /// Names beside localhost by which a loopback server may be called
    #[arg(long, value_name = "NAME", value_delimiter = ',', env = "VOCE_ALLOW_HOST")]
    pub(super) allow_host: Vec<String>,
    /// Refuse to start without a key where other machines can reach the server
    #[arg(long, env = "VOCE_REQUIRE_KEY", value_parser = FalseyValueParser::new())]
    pub(super) require_key: bool,
    /// Port (or IP:PORT) for Wyoming, the protocol of Home Assistant, which has no keys: with keys a port alone is on
    /// this machine only [default: off]
    #[arg(long, value_name = "PORT", env = "VOCE_WYOMING")]
    pub(super) wyoming: Option<String>,
    /// Port (or IP:PORT) where a load balancer is told in one line how much room there is (HAProxy's agent-check); it has
    /// no keys: with keys a port alone is on this machine only [default: off]
    #[arg(long, value_name = "PORT", env = "VOCE_AGENT_CHECK")]
    pub(super) agent_check: Option<String>,
    /// Answer a WebSocket for which no slot is free with 503 instead of an upgrade, so that a proxy can try the next machine
    #[arg(long, env = "VOCE_REFUSE_UPGRADES")]
    pub(super) refuse_upgrades: bool,
    /// Another machine of the service, such as http://10.0.0.2:8080, which takes live recognition over when this one goes; a
    /// name that stands for several addresses is all of them. Several: repeat, or commas [default: none]
    #[arg(long, value_name = "URL", value_delimiter = ',', env = "VOCE_PEER")]
    pub(super) peer: Vec<String>,
    /// Folder that all machines see, for streams on their way, in place of peers
    #[arg(long, value_name = "DIR", env = "VOCE_HANDOVER_DIR")]
    pub(super) handover_dir: Option<PathBuf>,
    /// File with what the machines of a service share, at least 16 bytes: live recognition moves with it
    #[arg(long, value_name = "FILE", env = "VOCE_HANDOVER_SECRET_FILE")]
    pub(super) handover_secret_file: Option<PathBuf>,
    /// The same as text; a file or the variable is seen by fewer
    #[arg(long, value_name = "TEXT", env = "VOCE_HANDOVER_SECRET", hide_env_values = true)]
    pub(super) handover_secret: Option<String>,
    /// How long a client has to come to another machine [default: 60s]
    #[arg(long, value_name = "TIME", env = "VOCE_HANDOVER_TIME")]
    pub(super) handover_time: Option<String>,
    /// Bytes of streams on their way that are held here, or in the folder [default: 1073741824]
    #[arg(long, value_name = "BYTES", env = "VOCE_HANDOVER_BYTES")]
    pub(super) handover_bytes: Option<usize>,
    /// Save streams that come through `voce route` this often, such as 5s, so that they survive a machine that dies; off
    /// for never [default: off]
    #[arg(long, value_name = "TIME", env = "VOCE_CHECKPOINT")]
    pub(super) checkpoint: Option<String>,
    /// Further paths of moshi's recognition
    #[arg(long, value_name = "PATH", value_delimiter = ',', env = "VOCE_ASR_PATH", hide = true)]
    pub(super) asr_path: Vec<String>,
    /// Further paths of moshi's speech
    #[arg(long, value_name = "PATH", value_delimiter = ',', env = "VOCE_TTS_PATH", hide = true)]
    pub(super) tts_path: Vec<String>,
    /// Further paths of dialogues
    #[arg(long, value_name = "PATH", value_delimiter = ',', env = "VOCE_TALK_PATH", hide = true)]
    pub(super) talk_path: Vec<String>,
    /// How long work in flight has at the end [default: 30s]
    #[arg(long, value_name = "TIME", env = "VOCE_DRAIN")]
    pub(super) drain: Option<String>,
    /// Largest request body [default: 26214400]
    #[arg(long, value_name = "BYTES", env = "VOCE_MAX_BODY_BYTES")]
    pub(super) max_body_bytes: Option<usize>,
    /// Longest text of a request [default: 65536]
    #[arg(long, value_name = "BYTES", env = "VOCE_MAX_TEXT_BYTES")]
    pub(super) max_text_bytes: Option<usize>,
    /// Sockets open at once [default: 16384]
    #[arg(long, value_name = "N", env = "VOCE_MAX_CONNECTIONS")]
    pub(super) max_connections: Option<usize>,
    /// The same from one address [default: a quarter, without a limit for this machine; 0 for none]
    #[arg(long, value_name = "N", env = "VOCE_CONNECTIONS_PER_ADDRESS")]
    pub(super) connections_per_address: Option<usize>,
    /// Slots of each model for one key [default: three quarters where there are several keys; 0 for no limit]
    #[arg(long, value_name = "N", env = "VOCE_SLOTS_PER_KEY")]
    pub(super) slots_per_key: Option<usize>,
    /// Slots of each model for one address [default: three quarters without keys, no limit for this machine; 0 for none]
    #[arg(long, value_name = "N", env = "VOCE_SLOTS_PER_ADDRESS")]
    pub(super) slots_per_address: Option<usize>,
    /// How long a stream keeps its slot that brings no audio or text [default: 2m]
    #[arg(long, value_name = "TIME", env = "VOCE_SLOT_IDLE")]
    pub(super) slot_idle: Option<String>,
    /// How long a WebSocket may be open without a message [default: 30m]
    #[arg(long, value_name = "TIME", env = "VOCE_SOCKET_IDLE")]
    pub(super) socket_idle: Option<String>,
    /// How long a WebSocket may be open at all [default: 12h]
    #[arg(long, value_name = "TIME", env = "VOCE_SESSION_TIME")]
    pub(super) session_time: Option<String>,
    /// How long a whole request body may take [default: 5m]
    #[arg(long, value_name = "TIME", env = "VOCE_BODY_TIME")]
    pub(super) body_time: Option<String>,
    /// Request bodies on their way in, of all callers [default: 268435456]
    #[arg(long, value_name = "BYTES", env = "VOCE_BODIES_BYTES")]
    pub(super) bodies_bytes: Option<usize>,
    /// The same of one key, or of one address without keys; further ones wait [default: 50331648]
    #[arg(long, value_name = "BYTES", env = "VOCE_BODIES_PER_CALLER_BYTES")]
    pub(super) bodies_per_caller_bytes: Option<usize>,
    /// Large WebSocket messages on their way in, of all callers; further ones wait [default: 46137344]
    #[arg(long, value_name = "BYTES", env = "VOCE_MESSAGES_BYTES")]
    pub(super) messages_bytes: Option<usize>,
    /// The same of one key, or of one address without keys [default: 23068672]
    #[arg(long, value_name = "BYTES", env = "VOCE_MESSAGES_PER_CALLER_BYTES")]
    pub(super) messages_per_caller_bytes: Option<usize>,
    /// Compressed streams and files that are decoded at once [default: 512]
    #[arg(long, value_name = "N", env = "VOCE_MAX_DECODERS")]
    pub(super) max_decoders: Option<usize>,
    /// Voices that clients may clone and keep, all together [default: 256]
    #[arg(long, value_name = "N", env = "VOCE_MAX_VOICES")]
    pub(super) max_voices: Option<usize>,
    /// The same of one key [default: 64]
    #[arg(long, value_name = "N", env = "VOCE_VOICES_PER_KEY")]
    pub(super) voices_per_key: Option<usize>,
    /// Bytes of such voices, all together [default: 4294967296]
    #[arg(long, value_name = "BYTES", env = "VOCE_MAX_VOICE_BYTES")]
    pub(super) max_voice_bytes: Option<u64>,
    /// The same of one key [default: 1073741824]
    #[arg(long, value_name = "BYTES", env = "VOCE_VOICES_PER_KEY_BYTES")]
    pub(super) voices_per_key_bytes: Option<u64>,
    /// OpenTelemetry collector for spans, over HTTP, such as http://127.0.0.1:4318 [default:
    /// OTEL_EXPORTER_OTLP_ENDPOINT, else none]
    #[arg(long, value_name = "URL", env = "VOCE_OTLP")]
    pub(super) otlp: Option<String>,
    /// Name of this service in spans [default: OTEL_SERVICE_NAME, else voce]
    #[arg(long, value_name = "NAME", env = "VOCE_OTLP_SERVICE")]
    pub(super) otlp_service: Option<String>,
    /// Folder to keep what is said and heard in, as tokens and text: personal data [default: nothing is kept]
    #[arg(long, value_name = "DIR", env = "VOCE_LOG_TOKENS")]
    pub(super) log_tokens: Option<PathBuf>,
    /// Folder to keep the audio of every stream in: personal data [default: nothing is kept]
    #[arg(long, value_name = "DIR", env = "VOCE_CAPTURE_AUDIO")]
    pub(super) capture_audio: Option<PathBuf>,
    /// Bytes of each such folder, beyond which its oldest files go [default: 1073741824]
    #[arg(long, value_name = "BYTES", env = "VOCE_CAPTURE_BYTES")]
    pub(super) capture_bytes: Option<u64>,
    /// Folder to keep jobs in: recordings of any length, done by this server's recognisers [default: no jobs]
    #[arg(long, value_name = "DIR", env = "VOCE_JOBS")]
    pub(super) jobs: Option<PathBuf>,
    /// Jobs at once [default: half of hear-slots]
    #[arg(long, value_name = "N", env = "VOCE_JOBS_SLOTS")]
    pub(super) jobs_slots: Option<usize>,
    /// How often a long recording is checkpointed [default: 2m]
    #[arg(long, value_name = "TIME", env = "VOCE_JOBS_CHECKPOINT")]
    pub(super) jobs_checkpoint: Option<String>,
    /// How long jobs are kept that are over [default: 168h]
    #[arg(long, value_name = "TIME", env = "VOCE_JOBS_KEEP")]
    pub(super) jobs_keep: Option<String>,
    /// NATS servers to hand jobs to, for `voce work` elsewhere [default: this server does them]
    #[arg(long, value_name = "URL", env = "VOCE_JOBS_NATS")]
    pub(super) jobs_nats: Option<String>,
    /// File of credentials (.creds) for them
    #[arg(long, value_name = "FILE", env = "VOCE_JOBS_NATS_CREDS")]
    pub(super) jobs_nats_creds: Option<PathBuf>,
    /// User there
    #[arg(long, value_name = "NAME", env = "VOCE_JOBS_NATS_USER")]
    pub(super) jobs_nats_user: Option<String>,
    /// Password there
    #[arg(long, value_name = "TEXT", env = "VOCE_JOBS_NATS_PASSWORD", hide_env_values = true)]
    pub(super) jobs_nats_password: Option<String>,
    /// Token there
    #[arg(long, value_name = "TEXT", env = "VOCE_JOBS_NATS_TOKEN", hide_env_values = true)]
    pub(super) jobs_nats_token: Option<String>,
    /// Root certificates besides the system's for them
    #[arg(long, value_name = "FILE", env = "VOCE_JOBS_NATS_CA")]
    pub(super) jobs_nats_ca: Option<PathBuf>,
    /// What subjects, streams and buckets there begin with [default: voce]
    #[arg(long, value_name = "NAME", env = "VOCE_JOBS_NATS_PREFIX")]
    pub(super) jobs_nats_prefix: Option<String>,
    /// Model of the workers where a client names none [default: this server's recogniser, else nano-ear]
    #[arg(long, value_name = "MODEL", env = "VOCE_JOBS_MODEL")]
    pub(super) jobs_model: Option<String>,
    /// Largest recording of a job [default: 2147483648]
    #[arg(long, value_name = "BYTES", env = "VOCE_MAX_JOB_BYTES")]
    pub(super) max_job_bytes: Option<usize>,
    /// Jobs that are kept, of all keys [default: 10000]
    #[arg(long, value_name = "N", env = "VOCE_MAX_JOBS")]
    pub(super) max_jobs: Option<usize>,
    /// The same of one key [default: 1000]
    #[arg(long, value_name = "N", env = "VOCE_JOBS_PER_KEY")]
    pub(super) jobs_per_key: Option<usize>,
    /// Bytes of recordings and results of jobs, all together [default: 68719476736]
    #[arg(long, value_name = "BYTES", env = "VOCE_MAX_JOBS_BYTES")]
    pub(super) max_jobs_bytes: Option<u64>,
    /// The same of one key [default: 17179869184]
    #[arg(long, value_name = "BYTES", env = "VOCE_JOBS_PER_KEY_BYTES")]
    pub(super) jobs_per_key_bytes: Option<u64>,
    /// For benches of the server only: a recogniser that discards audio and says nothing
    #[arg(long, env = "VOCE_NULL_MODEL", value_parser = FalseyValueParser::new())]
    pub(super) null_model: bool,
    /// What a moshi-server configuration has, which only a file can say.
    #[arg(skip)]
    #[serde(skip)]
    pub(super) modules: Modules,
}

impl Settings {
    /// These settings, and those of `file` where these say nothing.
    pub(super) fn over(self, file: Self) -> Self {
        fn list(ours: Vec<String>, theirs: Vec<String>) -> Vec<String> {
            if ours.is_empty() { theirs } else { ours }
        }
        Self {
            host: self.host.or(file.host),
            port: self.port.or(file.port),
            speak: list(self.speak, file.speak),
            hear: list(self.hear, file.hear),
            talk: list(self.talk, file.talk),
            no_speak: self.no_speak || file.no_speak,
            no_hear: self.no_hear || file.no_hear,
            speak_slots: self.speak_slots.or(file.speak_slots),
            hear_slots: self.hear_slots.or(file.hear_slots),
            hear_chunk: self.hear_chunk.or(file.hear_chunk),
            hear_beam: self.hear_beam.or(file.hear_beam),
            talk_slots: self.talk_slots.or(file.talk_slots),
            precision: self.precision.or(file.precision),
            device: list(self.device, file.device),
            tf32: self.tf32.or(file.tf32),
            cuda_graphs: self.cuda_graphs.or(file.cuda_graphs),
            cuda_frames: self.cuda_frames.or(file.cuda_frames),
            threads: self.threads.or(file.threads),
            pin: self.pin || file.pin,
            keep_warm: self.keep_warm.or(file.keep_warm),
            queue: self.queue.or(file.queue),
            queue_time: self.queue_time.or(file.queue_time),
            no_hear_gain: self.no_hear_gain || file.no_hear_gain,
            keep_alive: self.keep_alive.or(file.keep_alive),
            lazy: self.lazy || file.lazy,
            voice: self.voice.or(file.voice),
            voice_alias: list(self.voice_alias, file.voice_alias),
            alias: list(self.alias, file.alias),
            fixed_voices: self.fixed_voices || file.fixed_voices,
            api_key: list(self.api_key, file.api_key),
            api_key_file: self.api_key_file.or(file.api_key_file),
            open_metrics: self.open_metrics || file.open_metrics,
            cors: list(self.cors, file.cors),
            allow_host: list(self.allow_host, file.allow_host),
            require_key: self.require_key || file.require_key,
            wyoming: self.wyoming.or(file.wyoming),
            agent_check: self.agent_check.or(file.agent_check),
            refuse_upgrades: self.refuse_upgrades || file.refuse_upgrades,
            peer: list(self.peer, file.peer),
            handover_dir: self.handover_dir.or(file.handover_dir),
            handover_secret_file: self.handover_secret_file.or(file.handover_secret_file),
            handover_secret: self.handover_secret.or(file.handover_secret),
            handover_time: self.handover_time.or(file.handover_time),
            handover_bytes: self.handover_bytes.or(file.handover_bytes),
            checkpoint: self.checkpoint.or(file.checkpoint),
            asr_path: list(self.asr_path, file.asr_path),
            tts_path: list(self.tts_path, file.tts_path),
            talk_path: list(self.talk_path, file.talk_path),
            drain: self.drain.or(file.drain),
            max_body_bytes: self.max_body_bytes.or(file.max_body_bytes),
            max_text_bytes: self.max_text_bytes.or(file.max_text_bytes),
            max_connections: self.max_connections.or(file.max_connections),
            connections_per_address: self.connections_per_address.or(file.connections_per_address),
            slots_per_key: self.slots_per_key.or(file.slots_per_key),
            slots_per_address: self.slots_per_address.or(file.slots_per_address),
            slot_idle: self.slot_idle.or(file.slot_idle),
            socket_idle: self.socket_idle.or(file.socket_idle),
            session_time: self.session_time.or(file.session_time),
            body_time: self.body_time.or(file.body_time),
            bodies_bytes: self.bodies_bytes.or(file.bodies_bytes),
            bodies_per_caller_bytes: self.bodies_per_caller_bytes.or(file.bodies_per_caller_bytes),
            messages_bytes: self.messages_bytes.or(file.messages_bytes),
            messages_per_caller_bytes: self.messages_per_caller_bytes.or(file.messages_per_caller_bytes),
            max_decoders: self.max_decoders.or(file.max_decoders),
            max_voices: self.max_voices.or(file.max_voices),
            voices_per_key: self.voices_per_key.or(file.voices_per_key),
            max_voice_bytes: self.max_voice_bytes.or(file.max_voice_bytes),
            voices_per_key_bytes: self.voices_per_key_bytes.or(file.voices_per_key_bytes),
            otlp: self.otlp.or(file.otlp),
            otlp_service: self.otlp_service.or(file.otlp_service),
            log_tokens: self.log_tokens.or(file.log_tokens),
            capture_audio: self.capture_audio.or(file.capture_audio),
            capture_bytes: self.capture_bytes.or(file.capture_bytes),
            jobs: self.jobs.or(file.jobs),
            jobs_slots: self.jobs_slots.or(file.jobs_slots),
            jobs_checkpoint: self.jobs_checkpoint.or(file.jobs_checkpoint),
            jobs_keep: self.jobs_keep.or(file.jobs_keep),
            jobs_nats: self.jobs_nats.or(file.jobs_nats),
            jobs_nats_creds: self.jobs_nats_creds.or(file.jobs_nats_creds),
            jobs_nats_user: self.jobs_nats_user.or(file.jobs_nats_user),
            jobs_nats_password: self.jobs_nats_password.or(file.jobs_nats_password),
            jobs_nats_token: self.jobs_nats_token.or(file.jobs_nats_token),
            jobs_nats_ca: self.jobs_nats_ca.or(file.jobs_nats_ca),
            jobs_nats_prefix: self.jobs_nats_prefix.or(file.jobs_nats_prefix),
            jobs_model: self.jobs_model.or(file.jobs_model),
            max_job_bytes: self.max_job_bytes.or(file.max_job_bytes),
            max_jobs: self.max_jobs.or(file.max_jobs),
            jobs_per_key: self.jobs_per_key.or(file.jobs_per_key),
            max_jobs_bytes: self.max_jobs_bytes.or(file.max_jobs_bytes),
            jobs_per_key_bytes: self.jobs_per_key_bytes.or(file.jobs_per_key_bytes),
            null_model: self.null_model || file.null_model,
            modules: file.modules,
        }
    }
}

/// A precision by the name that the flag takes.
fn precision<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<PrecisionArg>, D::Error> {
    let name = String::deserialize(reader)?;
    let value = <PrecisionArg as clap::ValueEnum>::from_str(&name, true);
    value.map(Some).map_err(|_| {
        D::Error::custom(format!(
            "'{name}' is no precision: use auto, f32, bf16, int8, int4 or, on a GPU, fp8"
        ))
    })
}

/// On or off by the name that the flag takes, or as true or false.
fn switch<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Switch>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "'on' or 'off'")]
    enum Word {
        Text(String),
        Plain(bool),
    }
    let name = match Word::deserialize(reader)? {
        Word::Text(name) => name,
        Word::Plain(is_on) => is_on.to_string(),
    };
    let value = <Switch as clap::ValueEnum>::from_str(&name, true);
    value.map(Some).map_err(|_| D::Error::custom(format!("'{name}' is neither 'on' nor 'off'")))
}

/// A name, or a list of them.
fn one_or_several<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a name or a list of names")]
    enum Names {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Names::deserialize(reader)? {
        Names::One(names) => names.split(',').map(|name| name.trim().to_owned()).collect(),
        Names::Several(names) => names,
    })
}

/// A time such as `30`, `30s`, `5m`, `1h`.
pub(crate) fn seconds(text: &str) -> Outcome<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let scale = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(Failure::usage(format!("'{text}' is no time: use 30s, 5m or 1h"))),
    };
    let value = number.trim().parse::<f64>().ok().map(|n| n * scale);
    let value = value.and_then(|s| Duration::try_from_secs_f64(s).ok());
    value.ok_or_else(|| Failure::usage(format!("'{text}' is no time: use 30s, 5m or 1h")))
}

/// `NAME=VALUE` pairs.
pub(super) fn pairs(what: &str, texts: &[String]) -> Outcome<Vec<(String, String)>> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err(Failure::usage(format!("--{what} {text}: use NAME=VALUE"))),
    };
    texts.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_one_or_several() {
        for (text, found) in [
            ("device = 'cuda'", &["cuda"][..]),
            ("device = 'cuda:0, cuda:1'", &["cuda:0", "cuda:1"]),
            ("device = ['cuda:0', 'cpu']", &["cuda:0", "cpu"]),
            ("", &[]),
        ] {
            assert_eq!(toml::from_str::<Settings>(text).unwrap().device, found, "{text}");
        }
        let error = toml::from_str::<Settings>("device = 3").unwrap_err().to_string();
        assert!(error.contains("a name or a list of names"), "{error}");
    }

    #[test]
    fn switches_are_on_or_off() {
        for (text, found) in [
            ("cuda-frames = 'on'", Some(Switch::On)),
            ("cuda-frames = 'off'", Some(Switch::Off)),
            ("cuda-frames = true", Some(Switch::On)),
            ("", None),
        ] {
            assert_eq!(toml::from_str::<Settings>(text).unwrap().cuda_frames, found, "{text}");
        }
        for bad in ["cuda-frames = 'yes, please'", "cuda-frames = 1"] {
            let error = toml::from_str::<Settings>(bad).unwrap_err().to_string();
            assert!(error.contains("'on'") && error.contains("'off'"), "{error}");
        }
        let command = || Settings::augment_args(clap::Command::new("x"));
        let tf32 = |args: &[&str]| {
            let matches = command().try_get_matches_from(args).unwrap();
            matches.get_one::<Switch>("tf32").copied()
        };
        // moshi-server's switch has no value.
        assert_eq!(tf32(&["x", "--tf32", "--lazy"]), Some(Switch::On));
        assert_eq!(tf32(&["x", "--tf32", "off"]), Some(Switch::Off));
        assert!(command().try_get_matches_from(["x", "--cuda-graphs", "maybe"]).is_err());
    }

    #[test]
    fn times() {
        assert_eq!(seconds("30").unwrap(), Duration::from_secs(30));
        assert_eq!(seconds("5m").unwrap(), Duration::from_secs(300));
        assert_eq!(seconds("250ms").unwrap(), Duration::from_millis(250));
        for bad in ["", "x", "5d", "-1s", "1e400"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_file_has_the_flags_names_and_flags_win() {
        let file: Settings = toml::from_str(
            "host = '0.0.0.0'\nport = 9000\nspeak = ['pocket']\nspeak-slots = 3\nprecision = 'bf16'\napi-key = ['a', 'b']\nkeep-alive = '5m'",
        )
        .unwrap();
        let flags = Settings { port: Some(1), ..Settings::default() };
        let both = flags.over(file);
        assert_eq!((both.port, both.host.as_deref(), both.speak_slots), (Some(1), Some("0.0.0.0"), Some(3)));
        assert_eq!(both.precision, Some(PrecisionArg::Bf16));
        assert!(
            toml::from_str::<Settings>("prot = 1").unwrap_err().to_string().contains("unknown field `prot`")
        );
        assert!(toml::from_str::<Settings>("precision = 'f8'").is_err());
        let fp8 = toml::from_str::<Settings>("precision = 'fp8'").unwrap();
        assert_eq!(fp8.precision, Some(PrecisionArg::Fp8));
    }

    /// A flag that the file does not know, or the other way round, would be two tables.
    #[test]
    fn every_flag_is_a_key_and_a_variable() {
        let command = Settings::augment_args(clap::Command::new("x"));
        for arg in command.get_arguments() {
            let name = arg.get_long().unwrap();
            assert!(arg.get_env().is_some(), "{name} has no variable");
            let text = match name {
                "port" => "1".to_owned(),
                "precision" => "'f32'".into(),
                "tf32" | "cuda-graphs" | "cuda-frames" => "'on'".into(),
                _ if matches!(arg.get_action(), clap::ArgAction::SetTrue) => "true".into(),
                _ if matches!(arg.get_action(), clap::ArgAction::Append) => "['a=b']".into(),
                _ if name.ends_with("bytes")
                    || name.ends_with("slots")
                    || name.contains("-per-")
                    || [
                        "threads",
                        "hear-chunk",
                        "hear-beam",
                        "queue",
                        "max-connections",
                        "max-decoders",
                        "max-voices",
                        "max-jobs",
                    ]
                    .contains(&name) =>
                {
                    "1".into()
                }
                _ => "'1s'".into(),
            };
            toml::from_str::<Settings>(&format!("{name} = {text}")).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}
