//! Jobs outlive their requests: a recording comes in, an id goes out at once, the text is fetched later. They are kept in a
//! folder of this machine and done by this server's recognisers, or handed to workers on a NATS queue.

mod folder;
#[cfg(feature = "nats")]
mod queue;
mod record;
pub(crate) mod routes;
mod runner;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use folder::{Coming, JobFolder};
#[cfg(feature = "nats")]
pub(crate) use queue::Queue;
pub(crate) use record::{Fault, Order, Record, View};
pub(crate) use runner::run;

use crate::core::aside::{self, blocking};
use crate::core::error::ServerError;
use crate::core::limits::Limits;

/// How often the text of a long recording is checkpointed where nothing else is said.
pub const CHECKPOINT: Duration = Duration::from_secs(120);
/// How long jobs are kept that are over, where nothing else is said: a week.
pub const KEEP: Duration = Duration::from_secs(7 * 86_400);

/// Where jobs are kept and done.
#[derive(Clone, Debug)]
pub enum JobsPlace {
    /// A folder of this machine, of which this process is the only user; this server's recognisers do the work.
    Folder(PathBuf),
    /// A NATS queue, whose workers do it.
    #[cfg(feature = "nats")]
    Nats {
        /// Where it is, and who we are there.
        link: Box<voce_jobs::nats::LinkOptions>,
        /// A folder for recordings on their way to the object store.
        scratch: PathBuf,
        /// The workers' model where a client names none and this server has no recogniser.
        model: String,
    },
}

/// How jobs are done.
#[derive(Clone, Debug)]
pub struct JobsOptions {
    /// Where.
    pub place: JobsPlace,
    /// Jobs at once, of a folder; half of the default recogniser's slots where absent.
    pub at_once: Option<usize>,
    /// How often a long recording is checkpointed.
    pub checkpoint: Duration,
    /// How long jobs are kept that are over.
    pub keep: Duration,
}

impl JobsOptions {
    /// The usual settings.
    pub fn new(place: JobsPlace) -> Self {
        Self { place, at_once: None, checkpoint: CHECKPOINT, keep: KEEP }
    }
}

/// The jobs of a server.
pub(crate) enum Jobs {
    Folder(Arc<JobFolder>),
    #[cfg(feature = "nats")]
    Nats(Arc<Queue>),
}

impl Jobs {
    /// Opens the folder or reaches the queue; the error says why not.
    pub(crate) async fn open(options: &JobsOptions, limits: &Limits) -> Result<Self, String> {
        match options.place.clone() {
            JobsPlace::Folder(path) => {
                let (limits, keep) = (limits.clone(), options.keep);
                let opened = aside::wait(move || JobFolder::open(&path, limits, keep)).await;
                let folder =
                    opened.ok_or("the thread that opens the folder has ended")?.map_err(|e| e.to_string())?;
                Ok(Self::Folder(Arc::new(folder)))
            }
            #[cfg(feature = "nats")]
            JobsPlace::Nats { link, scratch, model } => {
                let queue = Queue::open(&link, scratch, model, options.keep).await?;
                Ok(Self::Nats(Arc::new(queue)))
            }
        }
    }

    /// Where the recording of a job is written while it comes; renamed or removed by [`Jobs::submit`].
    fn spool(&self, id: &str) -> PathBuf {
        match self {
            Self::Folder(jobs) => jobs.spool(id),
            #[cfg(feature = "nats")]
            Self::Nats(queue) => queue.spool(id),
        }
    }

    /// Room for a recording of an owner, until the value is dropped; refused where it keeps as many jobs, or as many bytes
    /// of them, as it may.
    fn reserve(&self, id: &str, owner: &str, bytes: u64) -> Result<Option<Coming>, ServerError> {
        match self {
            Self::Folder(jobs) => jobs.reserve(id, owner, bytes).map(Some),
            // The queue has limits of its own.
            #[cfg(feature = "nats")]
            Self::Nats(_) => Ok(None),
        }
    }

    /// Takes a job whose recording is there; it is kept, whatever happens, once this is done.
    async fn submit(&self, order: Order) -> Result<View, ServerError> {
        match self {
            Self::Folder(jobs) => {
                let jobs = jobs.clone();
                blocking(move || jobs.add(order)).await
            }
            #[cfg(feature = "nats")]
            Self::Nats(queue) => queue.submit(order).await,
        }
    }

    /// A job of an owner.
    async fn get(&self, owner: &str, id: &str) -> Result<View, ServerError> {
        match self {
            Self::Folder(jobs) => jobs.get(owner, id),
            #[cfg(feature = "nats")]
            Self::Nats(queue) => queue.get(owner, id).await,
        }
    }

    /// All jobs of an owner, the newest first.
    async fn list(&self, owner: &str) -> Result<Vec<View>, ServerError> {
        match self {
            Self::Folder(jobs) => Ok(jobs.list(owner)),
            #[cfg(feature = "nats")]
            Self::Nats(queue) => queue.list(owner).await,
        }
    }

    /// Waits until a job differs from what was seen of it.
    async fn changed(&self, owner: &str, seen: &View) -> Result<View, ServerError> {
        match self {
            Self::Folder(jobs) => jobs.changed(owner, seen).await,
            #[cfg(feature = "nats")]
            Self::Nats(queue) => queue.changed(owner, seen).await,
        }
    }

    /// The bytes of a job's result.
    async fn result(&self, owner: &str, id: &str) -> Result<(View, Vec<u8>), ServerError> {
        match self {
            Self::Folder(jobs) => {
                let (jobs, owner, id) = (jobs.clone(), owner.to_owned(), id.to_owned());
                blocking(move || jobs.result(&owner, &id)).await
            }
            #[cfg(feature = "nats")]
            Self::Nats(queue) => queue.result(owner, id).await,
        }
    }

    /// Cancels a job that is not over, and forgets one that is. What is left of it, if anything.
    async fn remove(&self, owner: &str, id: &str) -> Result<Option<View>, ServerError> {
        match self {
            Self::Folder(jobs) => {
                let (jobs, owner, id) = (jobs.clone(), owner.to_owned(), id.to_owned());
                blocking(move || jobs.remove(&owner, &id)).await
            }
            #[cfg(feature = "nats")]
            Self::Nats(queue) => queue.remove(owner, id).await,
        }
    }
}
