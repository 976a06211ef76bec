//! Jobs on a NATS queue: recordings go into the object store, `voce work` does them wherever it runs, and this server only
//! hands in and asks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt as _;
use voce_jobs::nats::{Desk, Job, Link, LinkOptions, NatsError, State, StreamOptions};
use voce_jobs::{Input, Phase, Settings, Task, Unit};

use super::folder::no_result;
use super::{Fault, Order, View};
use crate::core::error::ServerError;
use crate::core::query::short;

/// What the batches of this server's jobs begin with; the owner follows.
const BATCH: &str = "http-";
/// How often a job that somebody follows is asked for.
const LOOK: Duration = Duration::from_millis(500);
/// How often a change is tried that somebody else's comes before.
const ATTEMPTS: usize = 5;
/// Bytes of a result at most: the text of weeks.
const MAX_RESULT: usize = 256 << 20;

/// The queue.
pub(crate) struct Queue {
    desk: Desk,
    scratch: PathBuf,
    /// The workers' model where nobody names one.
    pub(super) model: String,
}

impl Queue {
    pub(super) async fn open(
        link: &LinkOptions,
        scratch: PathBuf,
        model: String,
        keep: Duration,
    ) -> Result<Self, String> {
        std::fs::create_dir_all(&scratch)
            .map_err(|e| format!("{}: cannot make this folder: {e}", scratch.display()))?;
        sweep(&scratch);
        let told = |e: NatsError| e.to_string();
        let link = Link::open(link).await.map_err(told)?;
        link.prepare(&StreamOptions { keep, ..StreamOptions::default() }).await.map_err(told)?;
        Ok(Self { desk: Desk::new(link).await.map_err(told)?, scratch, model })
    }

    pub(super) fn spool(&self, id: &str) -> PathBuf {
        self.scratch.join(format!(".{id}.upload"))
    }

    pub(super) async fn submit(&self, order: Order) -> Result<View, ServerError> {
        // Decoders know of a file by the end of its name. The path is this job's alone, and so is the job's id.
        let path =
            order.spooled.with_extension(format!("upload.{}", order.extension.as_deref().unwrap_or("bin")));
        tokio::fs::rename(&order.spooled, &path).await.map_err(ServerError::spooling)?;
        let input = Input::Audio { path: path.clone(), offset: None, duration: None };
        let unit = Unit { id: order.name, input, seconds: None, fields: serde_json::Map::new() };
        let batch = format!("{BATCH}{}", order.owner);
        let job = Job::new(&batch, &order.model, &Settings::Hear(order.settings), unit);
        let id = job.id.clone();
        let submitted = match self.desk.announce(Task::Hear, &order.model).await {
            Ok(()) => self.desk.submit(job, true).await.map(drop),
            Err(error) => Err(error),
        };
        let _ = tokio::fs::remove_file(&path).await;
        submitted.map_err(refused)?;
        self.state(&order.owner, &id).await.map(|state| view(&state))
    }

    async fn state(&self, owner: &str, id: &str) -> Result<State, ServerError> {
        let unknown = || ServerError::UnknownJob(short(id));
        let is_id = !id.is_empty() && id.len() <= 64 && id.bytes().all(|b| b.is_ascii_alphanumeric());
        if !is_id {
            return Err(unknown());
        }
        let state = self.desk.state(id).await.map_err(refused)?;
        let is_mine = |s: &State| s.job.batch.strip_prefix(BATCH) == Some(owner);
        state.map(|(state, _)| state).filter(is_mine).ok_or_else(unknown)
    }

    pub(super) async fn get(&self, owner: &str, id: &str) -> Result<View, ServerError> {
        self.state(owner, id).await.map(|state| view(&state))
    }

    pub(super) async fn list(&self, owner: &str) -> Result<Vec<View>, ServerError> {
        let mut states = self.desk.states(false).await.map_err(refused)?;
        let mut views = Vec::new();
        while let Some(state) = states.next().await {
            let state = state.map_err(refused)?;
            if state.job.batch.strip_prefix(BATCH) == Some(owner) {
                views.push(view(&state));
            }
        }
        views.sort_by(|a, b| (b.created, &b.id).cmp(&(a.created, &a.id)));
        Ok(views)
    }

    pub(super) async fn changed(&self, owner: &str, seen: &View) -> Result<View, ServerError> {
        let mut look = tokio::time::interval(LOOK);
        loop {
            look.tick().await;
            match self.get(owner, &seen.id).await {
                Ok(view) if view != *seen => return Ok(view),
                // A queue that is away for a moment is waited for.
                Ok(_) | Err(ServerError::QueueDown) => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) async fn result(&self, owner: &str, id: &str) -> Result<(View, Vec<u8>), ServerError> {
        let state = self.state(owner, id).await?;
        let view = view(&state);
        let (Phase::Done, Some(output)) = (state.phase, &state.output) else { return Err(no_result(&view)) };
        let bytes = self.desk.result(output, MAX_RESULT).await.map_err(refused)?;
        let missing = || {
            ServerError::NoResult(
                "its worker kept the result in a folder of its own, not in the object store".into(),
            )
        };
        Ok((view, bytes.ok_or_else(missing)?))
    }

    pub(super) async fn remove(&self, owner: &str, id: &str) -> Result<Option<View>, ServerError> {
        for _ in 0..ATTEMPTS {
            let state = self.state(owner, id).await?;
            if state.phase.is_over() {
                self.desk.forget(&state).await.map_err(refused)?;
                return Ok(None);
            }
            // Somebody else's change came before: what it is now decides.
            if self.desk.cancel(id).await.is_ok() {
                return self.get(owner, id).await.map(Some);
            }
        }
        Err(ServerError::QueueDown)
    }
}

/// Removes what an earlier process left on its way.
fn sweep(scratch: &Path) {
    let entries = std::fs::read_dir(scratch).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.contains(".upload") {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn refused(error: NatsError) -> ServerError {
    tracing::warn!(%error, "the queue of jobs");
    match error {
        NatsError::Full { .. } => ServerError::NoSpace,
        NatsError::UnknownJob(id) => ServerError::UnknownJob(id),
        _ => ServerError::QueueDown,
    }
}

fn view(state: &State) -> View {
    let format = match &state.job.settings {
        Settings::Hear(hear) => hear.format,
        Settings::Say(_) => voce_jobs::TextFormat::Json,
    };
    let failed = state.phase == Phase::Failed;
    View {
        id: state.job.id.clone(),
        model: state.job.model.clone(),
        name: state.job.unit.id.clone(),
        format,
        phase: state.phase,
        created: state.created,
        updated: state.updated,
        heard: state.heard,
        seconds: state.audio_seconds,
        error: failed.then(|| Fault::new("job_failed", state.error.clone().unwrap_or_default())),
    }
}
