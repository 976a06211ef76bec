//! What a client may cost: every limit is a named constant, and a field of [`Limits`] where a deployment may change it.

use std::time::Duration;

/// Largest request body, as the common speech services take: 25 MiB.
pub const MAX_BODY: usize = 25 * 1024 * 1024;
/// Largest JSON request body: texts are short, audio does not come as JSON.
pub const MAX_JSON: usize = 1024 * 1024;
/// How deep JSON may be nested.
pub const MAX_JSON_DEPTH: usize = 32;
/// What a multipart body may have beside its file.
pub const MULTIPART_OVERHEAD: usize = 64 * 1024;
/// Longest text of one speech request, in bytes.
pub const MAX_TEXT: usize = 64 * 1024;
/// Longest name of a model, voice, language or format in a request.
pub const MAX_NAME: usize = 256;
/// Most hot words of one request, and the longest of them in bytes.
pub const MAX_HOTWORDS: usize = 256;
/// Longest hot word, in bytes.
pub const MAX_HOTWORD: usize = 128;
/// Largest WebSocket message: an append of 15 MiB in base64 with its JSON around it.
pub const MAX_WS_MESSAGE: usize = 21 * 1024 * 1024;
/// Largest message of a WebSocket whose messages are frames of audio or words.
pub const MAX_FRAME_MESSAGE: usize = 1024 * 1024;
/// Largest message of a WebSocket whose messages are audio of any length.
pub const MAX_AUDIO_MESSAGE: usize = 4 * 1024 * 1024;
/// Largest text message that says what to do, rather than bring audio.
pub const MAX_CONTROL_MESSAGE: usize = 64 * 1024;
/// Messages larger than this share a budget, and wait for room in it.
pub const LARGE_MESSAGE: usize = 64 * 1024;
/// What all large messages may hold together: two of the largest.
pub const LARGE_MESSAGES: usize = 44 * 1024 * 1024;
/// The same of one caller: one of the largest.
pub const LARGE_MESSAGES_PER_CALLER: usize = 22 * 1024 * 1024;
/// How long a large message may wait for room.
pub const LARGE_WAIT: Duration = Duration::from_secs(20);
/// How long a large message may take to come.
pub const LARGE_TIME: Duration = Duration::from_secs(20);
/// Largest decoded audio of one WebSocket message, 15 MiB as the Realtime API has it.
pub const MAX_APPEND: usize = 15 * 1024 * 1024;
/// Bytes read ahead from a WebSocket: small, because thousands of sockets are idle most of the time.
pub const WS_READ_BUFFER: usize = 4 * 1024;
/// Bytes that may wait to be written to a WebSocket before its reader counts as gone.
pub const WS_WRITE_BUFFER: usize = 1024 * 1024;
/// Largest clip to clone a voice from.
pub const MAX_VOICE_SAMPLE: usize = 10 * 1024 * 1024;
/// How long the head of a request may take.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How far a body may be behind its rate.
pub const BODY_GRACE: Duration = Duration::from_secs(5);
/// Bytes per second that a body must bring, again and again.
pub const BODY_RATE: u32 = 1024;
/// How long a whole body may take.
pub const BODY_TIME: Duration = Duration::from_secs(300);
/// Bytes of bodies on their way in, of all callers.
pub const BODIES: usize = 256 * 1024 * 1024;
/// Bytes of bodies on their way in of one caller: further ones are read later.
pub const BODIES_PER_CALLER: usize = 48 << 20;
/// Threads that decode audio at once.
pub const DECODERS: usize = 512;
/// Voices that are cloned at once.
pub const CLONES: usize = 1;
/// How far a reader that leaves its socket full may be behind its rate.
pub const WRITE_STALL: Duration = Duration::from_secs(10);
/// Bytes per second that a reader must take while its socket is full.
pub const READER_RATE: u32 = 256;
/// Seconds that a reader of speech may take for a second of it.
pub const SLOWEST_READER: f64 = 2.0;
/// How far a reader of speech may be behind that.
pub const READER_GRACE: Duration = Duration::from_secs(20);
/// How long a slot is held by a stream that brings hardly any audio, or no text.
pub const SLOT_IDLE: Duration = Duration::from_secs(120);
/// Audio that a stream must bring in that time.
pub const LEAST_AUDIO: Duration = Duration::from_millis(500);
/// How long a WebSocket may be open without a message either way.
pub const SOCKET_IDLE: Duration = Duration::from_secs(30 * 60);
/// How long a WebSocket may be open.
pub const SESSION_TIME: Duration = Duration::from_secs(12 * 3600);
/// Silence after which a WebSocket is pinged.
pub const WS_PING: Duration = Duration::from_secs(10);
/// Silence after which a WebSocket is closed.
pub const WS_IDLE: Duration = Duration::from_secs(20);
/// How often listeners of a room are told that it is there.
pub const ROOM_PING: Duration = Duration::from_secs(5);
/// How long a closing WebSocket waits for the other side's word.
pub const WS_CLOSE: Duration = Duration::from_secs(2);
/// How long a last word may take that nobody waits for.
pub const WS_GOODBYE: Duration = Duration::from_millis(200);
/// How long work in flight has at shutdown.
pub const DRAIN: Duration = Duration::from_secs(30);
/// What clients that were refused are told to wait.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Sockets open at once.
pub const MAX_CONNECTIONS: usize = 16_384;
/// Longest line of a Wyoming header.
pub const MAX_WYOMING_LINE: usize = 64 * 1024;
/// Largest payload of a Wyoming event.
pub const MAX_WYOMING_PAYLOAD: usize = 1024 * 1024;
/// A step of a model that lasts longer makes the server not ready.
pub const STUCK_STEP: Duration = Duration::from_secs(5);
/// A step of a model that lasts longer is given up: its streams end.
pub const HUNG_STEP: Duration = Duration::from_secs(60);
/// How long work in flight has once only a new process can mend a model.
pub const LAST_DRAIN: Duration = Duration::from_secs(5);
/// Voices that clients have made, of all keys and of one.
pub const VOICES: usize = 256;
/// Voices of one key.
pub const VOICES_PER_KEY: usize = 64;
/// Bytes of voices that clients have made, of all keys.
pub const VOICE_BYTES: u64 = 4 << 30;
/// Bytes of the voices of one key.
pub const VOICE_BYTES_PER_KEY: u64 = 1 << 30;
/// Largest recording of a job: 2 GiB, some days of speech as a compressed file.
pub const MAX_JOB: usize = 2 << 30;
/// How long a recording of a job may take to come.
pub const JOB_BODY_TIME: Duration = Duration::from_secs(3600);
/// Bytes of such a recording that are in memory while it comes.
pub const SPOOL_WINDOW: usize = 256 * 1024;
/// Jobs that are kept, of all keys: those that wait, run, or are over and not yet forgotten.
pub const JOBS: usize = 10_000;
/// Jobs of one key.
pub const JOBS_PER_KEY: usize = 1_000;
/// Bytes of recordings and results that are kept, of all keys.
pub const JOB_BYTES: u64 = 64 << 30;
/// The same of one key.
pub const JOB_BYTES_PER_KEY: u64 = 16 << 30;
/// How often a job may be begun again after the process died over it.
pub const JOB_TRIES: u32 = 5;
/// How often models are looked at: whether they live, and which of their steps were slow.
pub const WATCH: Duration = Duration::from_millis(250);
/// Voices held ready, beside those on disk.
pub const VOICE_CACHE: usize = 32;

/// The limits of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body.
    pub body: usize,
    /// Longest text of one speech request, in bytes.
    pub text: usize,
    /// Largest WebSocket message.
    pub ws_message: usize,
    /// How long the head of a request may take.
    pub header_timeout: Duration,
    /// How far a body may be behind its rate of [`BODY_RATE`].
    pub body_grace: Duration,
    /// How long a whole body may take.
    pub body_time: Duration,
    /// Bytes of bodies on their way in, of all callers.
    pub bodies: usize,
    /// The same of one caller: further ones are read later.
    pub bodies_per_caller: usize,
    /// Bytes of large WebSocket messages on their way in or at work, of all callers: further ones are read later.
    pub messages: usize,
    /// The same of one caller.
    pub messages_per_caller: usize,
    /// Threads that decode audio at once.
    pub decoders: usize,
    /// Voices that are cloned at once.
    pub clones: usize,
    /// How far a reader that leaves its socket full may be behind its rate of [`READER_RATE`].
    pub write_stall: Duration,
    /// How far a reader of speech may be behind half of its speed.
    pub reader_grace: Duration,
    /// How long a slot is held by a stream that brings hardly any audio, or no text.
    pub slot_idle: Duration,
    /// How long a WebSocket may be open without a message either way.
    pub socket_idle: Duration,
    /// How long a WebSocket may be open.
    pub session_time: Duration,
    /// Silence after which a WebSocket is pinged.
    pub ws_ping: Duration,
    /// Silence after which a WebSocket is closed.
    pub ws_idle: Duration,
    /// How often listeners of a room are told that it is there.
    pub room_ping: Duration,
    /// How long work in flight has at shutdown.
    pub drain: Duration,
    /// Sockets open at once.
    pub connections: usize,
    /// The same of one address; 0 for no limit, a quarter of all where absent, without one for this machine.
    pub connections_per_address: Option<usize>,
    /// Slots of each model for one key; 0 for no limit, three quarters where absent and there are several keys.
    pub slots_per_key: Option<usize>,
    /// The same for one address; three quarters where absent and there are no keys, without a limit for this machine.
    pub slots_per_address: Option<usize>,
    /// A step of a model that lasts longer makes the server not ready.
    pub stuck_step: Duration,
    /// A step of a model that lasts longer is given up: its streams end.
    pub hung_step: Duration,
    /// Voices that clients have made, of all keys.
    pub voices: usize,
    /// The same of one key.
    pub voices_per_key: usize,
    /// Bytes of voices that clients have made, of all keys.
    pub voice_bytes: u64,
    /// The same of one key.
    pub voice_bytes_per_key: u64,
    /// Largest recording of a job.
    pub job: usize,
    /// How long it may take to come.
    pub job_body_time: Duration,
    /// Jobs that are kept, of all keys.
    pub jobs: usize,
    /// The same of one key.
    pub jobs_per_key: usize,
    /// Bytes of recordings and results that are kept, of all keys.
    pub job_bytes: u64,
    /// The same of one key.
    pub job_bytes_per_key: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: MAX_BODY,
            text: MAX_TEXT,
            ws_message: MAX_WS_MESSAGE,
            header_timeout: HEADER_TIMEOUT,
            body_grace: BODY_GRACE,
            body_time: BODY_TIME,
            bodies: BODIES,
            bodies_per_caller: BODIES_PER_CALLER,
            messages: LARGE_MESSAGES,
            messages_per_caller: LARGE_MESSAGES_PER_CALLER,
            decoders: DECODERS,
            clones: CLONES,
            write_stall: WRITE_STALL,
            reader_grace: READER_GRACE,
            slot_idle: SLOT_IDLE,
            socket_idle: SOCKET_IDLE,
            session_time: SESSION_TIME,
            ws_ping: WS_PING,
            ws_idle: WS_IDLE,
            room_ping: ROOM_PING,
            drain: DRAIN,
            connections: MAX_CONNECTIONS,
            connections_per_address: None,
            slots_per_key: None,
            slots_per_address: None,
            stuck_step: STUCK_STEP,
            hung_step: HUNG_STEP,
            voices: VOICES,
            voices_per_key: VOICES_PER_KEY,
            voice_bytes: VOICE_BYTES,
            voice_bytes_per_key: VOICE_BYTES_PER_KEY,
            job: MAX_JOB,
            job_body_time: JOB_BODY_TIME,
            jobs: JOBS,
            jobs_per_key: JOBS_PER_KEY,
            job_bytes: JOB_BYTES,
            job_bytes_per_key: JOB_BYTES_PER_KEY,
        }
    }
}
