//! Errors of the engine as exceptions.

use pyo3::PyErr;
use voce_engine::EngineError;
use voce_engine::store::StoreError;
use voce_nano::NanoError;

pyo3::import_exception!(voce._errors, VoceError);

/// A `voce.VoceError` with a short code.
pub(crate) fn error(code: &'static str, text: impl Into<String>) -> PyErr {
    VoceError::new_err((text.into(), code))
}

/// An error of the engine.
pub(crate) fn engine(e: EngineError) -> PyErr {
    error(e.code(), e.to_string())
}

/// An error of the store.
pub(crate) fn store(e: StoreError) -> PyErr {
    error(e.code(), e.to_string())
}

/// An error of the models that the package carries.
pub(crate) fn nano(e: NanoError) -> PyErr {
    let code = match &e {
        NanoError::Without(_) | NanoError::Nothing { .. } => "not_found",
        NanoError::Folder { .. } => "io",
        NanoError::File(e) => e.code(),
    };
    error(code, e.to_string())
}

/// What was asked for makes no sense.
pub(crate) fn bad_request(text: impl Into<String>) -> PyErr {
    error("bad_request", text)
}

/// The stream is over.
pub(crate) fn ended() -> PyErr {
    error("ended", "the stream has ended: nothing can be pushed any more, and reading says why")
}
