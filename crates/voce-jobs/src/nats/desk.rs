//! The submitter's side: jobs go in, states come out, results are fetched.

use std::pin::Pin;
use std::time::Duration;

use async_nats::jetstream::kv::{self, Operation};
use async_nats::jetstream::message::PublishMessage;
use futures_util::{Stream, StreamExt as _, stream};
use tokio::io::AsyncReadExt as _;

use super::Boxed;
use super::error::NatsError;
use super::link::{INPUTS, Link, RESULTS};
use super::message::{Job, State};
use crate::error::JobError;
use crate::folder::Folder;
use crate::phase::Phase;
use crate::unit::Task;

/// States of jobs, one after the other.
type States = Pin<Box<dyn Stream<Item = Result<State, NatsError>> + Send>>;

/// Silence after which a reading of all states asks whether any are left.
const QUIET: Duration = Duration::from_secs(1);

/// What came of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It waits in the queue.
    New,
    /// It is known: it waits, runs or is done.
    Known(Phase),
}

/// Hands jobs in and asks for them.
#[derive(Clone)]
pub struct Desk {
    link: Link,
    states: kv::Store,
}

impl Desk {
    /// Over streams and buckets that are there.
    pub fn new(link: Link) -> Boxed<'static, Result<Self, NatsError>> {
        Box::pin(async move {
            let states = link.states().await?;
            Ok(Self { link, states })
        })
    }

    /// Makes the consumer of a model's workers where there is none yet, so that autoscalers can count what waits for them
    /// before the first one runs.
    pub fn announce<'a>(&'a self, task: Task, model: &'a str) -> Boxed<'a, Result<(), NatsError>> {
        Box::pin(async move { self.link.announce(task, model).await })
    }

    /// Submits a job; one that is known and has not failed stays as it is. With `upload` its recording goes into the object
    /// store first.
    pub fn submit(&self, mut job: Job, upload: bool) -> Boxed<'_, Result<Submitted, NatsError>> {
        Box::pin(async move {
            let mut retries = 0;
            if let Some((known, _)) = self.state(&job.id).await? {
                match known.phase {
                    Phase::Failed | Phase::Cancelled => retries = known.retries + 1,
                    // It may have been written down and never been published: the queue drops what it has.
                    Phase::Waiting => {
                        self.publish(&known).await?;
                        return Ok(Submitted::Known(known.phase));
                    }
                    phase => return Ok(Submitted::Known(phase)),
                }
            }
            if let (true, Some(path)) = (upload, job.unit.path()) {
                let objects = self.link.objects(INPUTS).await?;
                let bad =
                    |e: std::io::Error| NatsError::File { path: path.to_owned(), reason: e.to_string() };
                let mut file = tokio::fs::File::open(path).await.map_err(bad)?;
                let put = objects.put(job.id.as_str(), &mut file).await;
                put.map_err(NatsError::put("cannot upload a recording to the object store"))?;
                job.object = Some(job.id.clone());
            }
            let state = State { retries, ..State::waiting(job) };
            self.put(&state).await?;
            self.publish(&state).await?;
            Ok(Submitted::New)
        })
    }

    async fn publish(&self, state: &State) -> Result<(), NatsError> {
        let job = &state.job;
        let bytes = serde_json::to_vec(job).map_err(NatsError::step("cannot write a job"))?;
        let subject = self.link.subject(job.settings.task(), &job.model);
        let id = format!("{}.{}", job.id, state.retries);
        let message = PublishMessage::build().payload(bytes.into()).message_id(id);
        let sent = self.link.context.send_publish(subject, message).await;
        let sent = sent.map_err(NatsError::step("cannot publish a job"))?;
        sent.await.map(drop).map_err(NatsError::step("cannot publish a job"))
    }

    async fn put(&self, state: &State) -> Result<(), NatsError> {
        put(&self.states, state).await
    }

    /// A job's state and its revision in the bucket; none for one that is not known.
    pub fn state<'a>(&'a self, id: &'a str) -> Boxed<'a, Result<Option<(State, u64)>, NatsError>> {
        Box::pin(async move { state(&self.states, id).await })
    }

    /// All states that there are now, then, where `follow` says so, those that change.
    pub fn states(&self, follow: bool) -> Boxed<'_, Result<States, NatsError>> {
        Box::pin(async move {
            let what = "cannot read the states";
            let info = self.states.status().await.map_err(NatsError::step(what))?.info.state;
            let watch = self.states.watch_with_history(">").await.map_err(NatsError::step(what))?;
            let begin = Reading { states: self.states.clone(), watch, last: info.last_sequence, follow };
            let begin = (info.messages > 0 || follow).then_some(begin);
            let entries = stream::unfold(begin, |reading| async move {
                let mut reading = reading?;
                let entry = reading.next().await?;
                let over = !reading.follow && entry.as_ref().is_ok_and(|e| reading.is_last(e));
                Some((entry, (!over).then_some(reading)))
            });
            let states = entries.filter_map(move |entry| {
                let state = match entry {
                    Ok(entry) if entry.operation == Operation::Put => {
                        serde_json::from_slice(&entry.value).ok().map(Ok)
                    }
                    Ok(_) => None,
                    Err(e) => Some(Err(NatsError::Step { what, reason: e.to_string() })),
                };
                std::future::ready(state)
            });
            Ok(Box::pin(states) as States)
        })
    }

    /// Cancels a job that is not over: it is dropped from the queue by whoever takes it, and a worker that has it stops. The
    /// phase it had.
    pub fn cancel<'a>(&'a self, id: &'a str) -> Boxed<'a, Result<Phase, NatsError>> {
        Box::pin(async move {
            let (state, revision) = self.known(id).await?;
            if !state.phase.is_over() {
                let done = replace(&self.states, &state.turned(Phase::Cancelled), revision).await;
                done.map_err(NatsError::step("cannot cancel the job, which has just changed: try again"))?;
            }
            Ok(state.phase)
        })
    }

    /// Submits a job again that failed or was cancelled. The phase it had.
    pub fn retry<'a>(&'a self, id: &'a str) -> Boxed<'a, Result<Phase, NatsError>> {
        Box::pin(async move {
            let (state, _) = self.known(id).await?;
            if matches!(state.phase, Phase::Failed | Phase::Cancelled) {
                let again = State { retries: state.retries + 1, ..State::waiting(state.job) };
                self.put(&again).await?;
                self.publish(&again).await?;
                if let Ok(dead) = self.link.context.get_stream(self.link.dead_name()).await {
                    let _ = dead.purge().filter(self.link.dead_subject(id)).await;
                }
            }
            Ok(state.phase)
        })
    }

    async fn known(&self, id: &str) -> Result<(State, u64), NatsError> {
        self.state(id).await?.ok_or_else(|| NatsError::UnknownJob(id.to_owned()))
    }

    /// Forgets a job that is over, and its result.
    pub fn forget<'a>(&'a self, state: &'a State) -> Boxed<'a, Result<(), NatsError>> {
        Box::pin(async move {
            if let Some(output) = &state.output
                && let Ok(objects) = self.link.objects(RESULTS).await
            {
                let _ = objects.delete(output).await;
            }
            if let Some(object) = &state.job.object
                && let Ok(objects) = self.link.objects(INPUTS).await
            {
                let _ = objects.delete(object).await;
            }
            self.states.purge(&state.job.id).await.map_err(NatsError::step("cannot forget a job"))
        })
    }

    /// A result of the object store; none where it is not there.
    pub fn result<'a>(
        &'a self,
        output: &'a str,
        most: usize,
    ) -> Boxed<'a, Result<Option<Vec<u8>>, NatsError>> {
        Box::pin(async move {
            let objects = self.link.objects(RESULTS).await?;
            let Ok(mut object) = objects.get(output).await else { return Ok(None) };
            if object.info().size > most {
                let reason = format!("{} bytes are more than {most}", object.info().size);
                return Err(NatsError::Step { what: "cannot fetch a result", reason });
            }
            let mut bytes = Vec::new();
            object.read_to_end(&mut bytes).await.map_err(NatsError::step("cannot fetch a result"))?;
            Ok(Some(bytes))
        })
    }

    /// Writes a result of the object store into a folder; false where it is not there.
    pub fn fetch<'a>(&'a self, output: &'a str, folder: &'a Folder) -> Boxed<'a, Result<bool, NatsError>> {
        Box::pin(async move {
            let Some(bytes) = self.result(output, usize::MAX).await? else { return Ok(false) };
            let kept = folder.keep(output, &bytes);
            kept.map_err(|e: JobError| NatsError::Step {
                what: "cannot keep a result",
                reason: e.to_string(),
            })?;
            Ok(true)
        })
    }

    /// Jobs in the queue, those included that workers have.
    pub fn queued(&self) -> Boxed<'_, Result<u64, NatsError>> {
        Box::pin(async move {
            let queue = self.link.context.get_stream(self.link.queue_name()).await;
            let mut queue = queue.map_err(NatsError::step("cannot find the queue"))?;
            Ok(queue.info().await.map_err(NatsError::step("cannot ask for the queue"))?.state.messages)
        })
    }
}

/// States on their way here.
struct Reading {
    states: kv::Store,
    watch: kv::Watch,
    /// The newest revision when the reading began.
    last: u64,
    follow: bool,
}

impl Reading {
    /// The next entry; none once there is nothing left of what there was.
    async fn next(&mut self) -> Option<Result<kv::Entry, kv::WatcherError>> {
        loop {
            if self.follow {
                return self.watch.next().await;
            }
            match tokio::time::timeout(QUIET, self.watch.next()).await {
                Ok(entry) => return entry,
                // The newest may have grown too old meanwhile, and nothing come after it.
                Err(_) => {
                    let state = self.states.status().await.ok()?.info.state;
                    if state.messages == 0 || state.first_sequence > self.last {
                        return None;
                    }
                }
            }
        }
    }

    /// Whether all that there was has come. Entries come by revision, and a state that is overwritten meanwhile comes as a
    /// later one; the count of those to come is no guide, as it still has the overwritten ones in it.
    fn is_last(&self, entry: &kv::Entry) -> bool {
        entry.delta == 0 || entry.revision >= self.last
    }
}

/// A job's state and its revision in the bucket; none for one that is not known.
pub(super) async fn state(states: &kv::Store, id: &str) -> Result<Option<(State, u64)>, NatsError> {
    let entry = states.entry(id).await.map_err(NatsError::step("cannot read a state"))?;
    let Some(entry) = entry.filter(|e| e.operation == Operation::Put) else { return Ok(None) };
    let revision = entry.revision;
    Ok(serde_json::from_slice(&entry.value).ok().map(|state| (state, revision)))
}

/// Writes a state over the one of a revision; an error where somebody else was faster.
pub(super) async fn replace(states: &kv::Store, state: &State, revision: u64) -> Result<(), NatsError> {
    let bytes = serde_json::to_vec(state).map_err(NatsError::step("cannot write a state"))?;
    let done = states.update(&state.job.id, bytes.into(), revision).await;
    done.map(drop).map_err(NatsError::step("cannot write a state"))
}

pub(super) async fn put(states: &kv::Store, state: &State) -> Result<(), NatsError> {
    let bytes = serde_json::to_vec(state).map_err(NatsError::step("cannot write a state"))?;
    states.put(&state.job.id, bytes.into()).await.map(drop).map_err(NatsError::step("cannot write a state"))
}
