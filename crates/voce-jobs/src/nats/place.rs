//! Where workers keep results and checkpoints: a folder that all of them see, or JetStream's object store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_nats::jetstream::object_store::ObjectStore;
use tokio::io::AsyncReadExt as _;

use super::Boxed;
use super::error::NatsError;
use super::link::{CHECKPOINTS, Link, RESULTS};
use crate::folder::Folder;

/// Bytes of a checkpoint at most: far above the state of any stream.
const MAX_CHECKPOINT: usize = 1 << 30;
/// The folder of checkpoints in a folder of results.
const CHECKPOINT_FOLDER: &str = ".checkpoints";

/// A place for results.
#[derive(Clone)]
pub enum Place {
    /// A folder that all workers see.
    Folder {
        /// Results.
        results: Arc<Folder>,
        /// Checkpoints.
        checkpoints: Arc<Folder>,
    },
    /// The object store.
    Objects {
        /// Results.
        results: Arc<ObjectStore>,
        /// Checkpoints.
        checkpoints: Arc<ObjectStore>,
        /// Speech is written here first.
        scratch: Arc<Folder>,
    },
}

fn place<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> NatsError {
    NatsError::step(what)
}

impl Place {
    /// A shared folder; `tag` is the worker's own.
    pub fn folder(path: &Path, tag: &str) -> Result<Self, NatsError> {
        let open = |path: PathBuf| {
            let folder = Folder::shared(&path, tag).map_err(place("cannot use the folder of results"))?;
            folder.sweep_old().map_err(place("cannot use the folder of results"))?;
            Ok(Arc::new(folder))
        };
        Ok(Place::Folder {
            results: open(path.to_owned())?,
            checkpoints: open(path.join(CHECKPOINT_FOLDER))?,
        })
    }

    /// The object store; `scratch` is a folder of this machine.
    pub fn objects<'a>(
        link: &'a Link,
        scratch: &'a Path,
        tag: &'a str,
    ) -> Boxed<'a, Result<Self, NatsError>> {
        Box::pin(async move {
            let scratch = Folder::shared(scratch, tag).map_err(place("cannot use the folder for scratch"))?;
            Ok(Place::Objects {
                results: Arc::new(link.objects(RESULTS).await?),
                checkpoints: Arc::new(link.objects(CHECKPOINTS).await?),
                scratch: Arc::new(scratch),
            })
        })
    }

    /// The folder that speech is written into before it is kept.
    pub(super) fn desk(&self) -> &Folder {
        match self {
            Place::Folder { results, .. } => results,
            Place::Objects { scratch, .. } => scratch,
        }
    }

    /// Whether a result is there.
    pub(super) async fn has(&self, name: &str) -> bool {
        match self {
            Place::Folder { results, .. } => results.has(name),
            Place::Objects { results, .. } => results.info(name).await.is_ok_and(|info| !info.deleted),
        }
    }

    /// Keeps a text.
    pub(super) async fn keep(&self, name: &str, bytes: &[u8]) -> Result<(), NatsError> {
        match self {
            Place::Folder { results, .. } => {
                let (folder, name, bytes) = (results.clone(), name.to_owned(), bytes.to_vec());
                let kept = tokio::task::spawn_blocking(move || folder.keep(&name, &bytes)).await;
                kept.map_err(place("cannot keep a result"))?.map_err(place("cannot keep a result"))
            }
            Place::Objects { results, .. } => put(results, name, bytes).await,
        }
    }

    /// Keeps what lies finished on the desk.
    pub(super) async fn keep_from_desk(&self, name: &str) -> Result<(), NatsError> {
        let Place::Objects { results, scratch, .. } = self else { return Ok(()) };
        let path = scratch.result(name);
        let mut file = tokio::fs::File::open(&path).await.map_err(place("cannot read a result"))?;
        let kept = results.put(name, &mut file).await.map(drop);
        let _ = tokio::fs::remove_file(&path).await;
        kept.map_err(NatsError::put(KEEPING))
    }

    /// A job's checkpoint, if there is one.
    pub(super) async fn checkpoint(&self, id: &str) -> Option<Vec<u8>> {
        match self {
            Place::Folder { checkpoints, .. } => tokio::fs::read(checkpoints.result(id)).await.ok(),
            Place::Objects { checkpoints, .. } => {
                let mut object = checkpoints.get(id).await.ok()?;
                if object.info().size > MAX_CHECKPOINT {
                    return None;
                }
                let mut bytes = Vec::new();
                object.read_to_end(&mut bytes).await.ok()?;
                Some(bytes)
            }
        }
    }

    /// Keeps a job's checkpoint.
    pub(super) async fn keep_checkpoint(&self, id: &str, bytes: &[u8]) -> Result<(), NatsError> {
        match self {
            Place::Folder { checkpoints, .. } => {
                checkpoints.keep(id, bytes).map_err(place("cannot keep a checkpoint"))
            }
            Place::Objects { checkpoints, .. } => put(checkpoints, id, bytes).await,
        }
    }

    /// Removes a job's checkpoint.
    pub(super) async fn drop_checkpoint(&self, id: &str) {
        match self {
            Place::Folder { checkpoints, .. } => {
                let _ = tokio::fs::remove_file(checkpoints.result(id)).await;
            }
            Place::Objects { checkpoints, .. } => {
                let _ = checkpoints.delete(id).await;
            }
        }
    }
}

const KEEPING: &str = "cannot keep a result in the object store";

async fn put(objects: &ObjectStore, name: &str, mut bytes: &[u8]) -> Result<(), NatsError> {
    objects.put(name, &mut bytes).await.map(drop).map_err(NatsError::put(KEEPING))
}
