//! Jobs on NATS JetStream: a work queue, its workers, and those who hand jobs in.
//!
//! A job is published once into a work-queue stream under the model that does it. Workers of that model pull as many as
//! they have slots for, tell the server every few seconds that they are still at it, keep the result, write the state down,
//! and acknowledge last. Whatever is lost on the way is delivered again, and done again under the same name; what was
//! kept already is only acknowledged. Jobs that fail for good go to the dead letters with the reason.

use std::pin::Pin;

mod desk;
mod error;
mod link;
mod message;
mod metrics;
mod place;
mod watch;
mod worker;

pub use desk::{Desk, Submitted};
pub use error::NatsError;
pub use link::{Link, LinkOptions, StreamOptions};
pub use message::{Job, State, VERSION};
pub use metrics::{Figures, serve_metrics};
pub use place::Place;
pub use worker::{Worker, WorkerOptions};

/// A future whose code stays in this crate: that of a plain `async fn` is compiled wherever it is waited for.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
