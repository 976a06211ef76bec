//! How a call went, as a number.

use voce_engine::EngineError;
use voce_engine::store::StoreError;
use voce_nano::NanoError;

/// How a call went. Negative is an error, of which `voce_last_error` has the text.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It went well.
    Ok = 0,
    /// The stream has ended: nothing more comes.
    End = 1,
    /// Nothing has come within the time given.
    Timeout = 2,
    /// A pointer is null, a text is not UTF-8, or a struct has no size.
    BadArgument = -1,
    /// The request makes no sense, or not for this model.
    BadRequest = -2,
    /// A model, a voice or a file is not here.
    NotFound = -3,
    /// The files of a model cannot be used.
    BadModel = -4,
    /// Audio cannot be read.
    BadAudio = -5,
    /// Every slot is taken: try again later.
    Busy = -6,
    /// There is no memory for it on the device.
    NoRoom = -7,
    /// The device or the CPU cannot do it.
    Device = -8,
    /// The stream or the model has stopped.
    Stopped = -9,
    /// The caller cancelled it.
    Cancelled = -10,
    /// A file cannot be read or written.
    Io = -11,
    /// A fault of the library.
    Internal = -12,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) status: Status,
    /// The engine's short name for it.
    pub(crate) code: &'static str,
    pub(crate) text: String,
}

/// What entries return on their way out.
pub(crate) type Outcome<T = Status> = Result<T, Fault>;

impl Fault {
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { status: Status::BadArgument, code: "bad_argument", text: text.into() }
    }

    pub(crate) fn request(text: impl Into<String>) -> Self {
        Self { status: Status::BadRequest, code: "bad_request", text: text.into() }
    }

    pub(crate) fn cancelled() -> Self {
        Self { status: Status::Cancelled, code: "cancelled", text: "the caller cancelled it".into() }
    }

    pub(crate) fn ended() -> Self {
        let text = "the stream has ended: nothing can be pushed any more, and reading says why";
        Self { status: Status::Stopped, code: "ended", text: text.into() }
    }
}

/// The number of a short code.
fn status(code: &str) -> Status {
    match code {
        "not_found" | "not_pulled" | "unknown_model" | "unknown_voice" | "missing_file"
        | "nothing_matches" => Status::NotFound,
        "bad_config" | "bad_weights" | "bad_tokenizer" | "damaged" => Status::BadModel,
        "busy" => Status::Busy,
        "no_room" => Status::NoRoom,
        "runtime" => Status::Device,
        "stopped" | "abandoned" | "ended" => Status::Stopped,
        "cancelled" => Status::Cancelled,
        "io" | "disk_full" => Status::Io,
        "internal" => Status::Internal,
        _ => Status::BadRequest,
    }
}

impl From<EngineError> for Fault {
    fn from(e: EngineError) -> Self {
        let status = match (&e, status(e.code())) {
            // Broken audio in a file is the file's fault, not the request's.
            (EngineError::Audio { .. }, Status::BadRequest) => Status::BadAudio,
            (_, status) => status,
        };
        Self { status, code: e.code(), text: e.to_string() }
    }
}

impl From<StoreError> for Fault {
    fn from(e: StoreError) -> Self {
        Self { status: status(e.code()), code: e.code(), text: e.to_string() }
    }
}

impl From<NanoError> for Fault {
    fn from(e: NanoError) -> Self {
        let (status, code) = match &e {
            NanoError::Without(_) | NanoError::Nothing { .. } => (Status::NotFound, "not_found"),
            NanoError::Folder { .. } => (Status::Io, "io"),
            NanoError::File(e) => (Status::Io, e.code()),
        };
        Self { status, code, text: e.to_string() }
    }
}
