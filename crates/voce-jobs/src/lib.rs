//! Work that is handed in and kept: units of hearing or speech, wherever they come from and wherever their results go.
//!
//! A [`Unit`] is an input with a name of its own. Together with a model's revision and the [`Settings`] it has one
//! [`Label`], and so one output: whoever does the work, however often, writes the same bytes under the same name. All else
//! follows from that: what exists is skipped, a unit that was lost is done again, and two workers that do the same unit
//! do no harm.
//!
//! [`bulk`] runs a list on this machine; `nats` (a feature) has a queue between those who hand work in and those who do
//! it.
#![forbid(unsafe_code)]

pub mod bulk;
mod checkpoint;
mod error;
mod failures;
mod folder;
mod formats;
mod hear;
mod label;
mod list;
mod model;
#[cfg(feature = "nats")]
pub mod nats;
mod phase;
mod revision;
mod say;
mod shard;
mod slots;
mod unit;

pub use checkpoint::Checkpoint;
pub use error::JobError;
pub use failures::{Failed, Failures};
pub use folder::{Folder, PartFile};
pub use formats::{Heard, HeardSegment, HeardWord, TextFormat, render};
pub use hear::{Watch, hear, open_audio};
pub use label::Label;
pub use list::{BadLine, Entry, List, ListKind, MAX_LINE};
pub use model::{Made, Model};
pub use phase::Phase;
pub use revision::revision;
pub use say::{Said, say};
pub use shard::{Shard, ShardError};
pub use slots::{Slots, Taken};
pub use unit::{HearSettings, Input, SaySettings, Settings, Task, Unit};
