//! `libvoce`: the C API of Voce. `include/voce.h` is made from here by cbindgen, and docs/c-api.md shows its use.
//!
//! Every entry goes through `guard`: no panic leaves it, and what went wrong is kept for the calling thread. Pointers become
//! references in `boundary.rs` alone; handles come and go as `Option<Box<T>>` and `Option<&T>`, which C sees as pointers.

mod boundary;
mod event;
mod guard;
mod listener;
mod options;
mod speaker;
mod status;
mod talker;
mod wait;

pub use event::{Event, EventKind, Word};
pub use guard::{voce_last_error, voce_last_error_code, voce_string_free, voce_version};
pub use listener::*;
pub use options::{ListenOptions, ModelOptions, SpeakOptions};
pub use speaker::*;
pub use status::Status;
pub use talker::*;
