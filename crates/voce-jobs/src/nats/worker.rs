//! A worker: takes as many jobs as its slots can hold, and acknowledges each once its result is kept.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::jetstream::{AckKind, Message, kv};
use futures_util::StreamExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::Boxed;
use super::desk;
use super::error::NatsError;
use super::link::{INPUTS, Link};
use super::message::{Job, State, VERSION};
use super::metrics::Figures;
use super::place::Place;
use super::watch::JobWatch;
use crate::error::JobError;
use crate::label::Label;
use crate::model::{Made, Model};
use crate::phase::Phase;
use crate::slots::Slots;
use crate::unit::Input;

/// Jobs at hand besides one a slot: the next one is read while others have the slots.
const AHEAD: usize = 1;
/// How long a request for jobs stays with the server.
const PULL: Duration = Duration::from_secs(2);
/// Silence after which a queue counts as empty.
const EMPTY: Duration = Duration::from_millis(500);
/// How long to wait after the server could not be asked.
const PAUSE: Duration = Duration::from_millis(500);
/// How often the queue's length is asked for.
const COUNT: Duration = Duration::from_secs(10);
/// The longest wait before a job that failed is tried again.
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// How often something that must reach the server is tried.
const ATTEMPTS: usize = 6;
/// Bytes of a recording that are copied at a time.
const PIECE: usize = 256 << 10;

/// How a worker works.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Its name, which no other worker has.
    pub name: String,
    /// How long the server waits for a sign of life before it gives a job to another worker.
    pub ack_wait: Duration,
    /// How often a job is taken before it goes to the dead letters.
    pub tries: u64,
    /// How often a long recording is checkpointed.
    pub checkpoint: Duration,
    /// The folder that recordings must lie in; any where absent.
    pub inputs: Option<PathBuf>,
    /// Where recordings of the object store are laid out while they are heard.
    pub scratch: PathBuf,
    /// Ends once there is nothing to do.
    pub until_empty: bool,
}

/// A worker over an open model.
pub struct Worker {
    link: Link,
    states: kv::Store,
    hands: Arc<Hands>,
    name: String,
    revision: String,
    place: Place,
    options: WorkerOptions,
    figures: Arc<Figures>,
    draining: Arc<AtomicBool>,
    /// When the last of the jobs comes back that were given back for a while.
    due: Mutex<Option<Instant>>,
}

/// What threads that do jobs share.
struct Hands {
    model: Model,
    slots: Slots,
}

/// What becomes of a job.
enum End {
    /// Its result is kept.
    Done { name: String, seconds: Option<f64> },
    /// Its result was there.
    Found { name: String },
    /// Nobody wants it.
    Cancelled,
    /// Another worker, or this one later, takes it again.
    Return { reason: String, after: Duration },
    /// It fails for good.
    Dead { reason: String },
}

impl Worker {
    /// A worker for jobs of `name`, the reference that its model was opened by.
    pub fn new(
        link: Link,
        model: Model,
        name: String,
        revision: String,
        place: Place,
        options: WorkerOptions,
    ) -> Boxed<'static, Result<Self, NatsError>> {
        Box::pin(async move {
            let states = link.states().await?;
            let slots = model.slots();
            let figures = Arc::new(Figures::default());
            figures.slots.store(slots as u64, Ordering::Relaxed);
            let hands = Arc::new(Hands { model, slots: Slots::new(slots) });
            Ok(Self {
                link,
                states,
                hands,
                name,
                revision,
                place,
                options,
                figures,
                draining: Arc::default(),
                due: Mutex::default(),
            })
        })
    }

    /// What it counts.
    pub fn figures(&self) -> Arc<Figures> {
        self.figures.clone()
    }

    /// Works until told to stop, or until the model dies. Jobs at hand come to a checkpoint, or to their end, and are given
    /// back.
    pub fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) -> Boxed<'static, Result<(), NatsError>> {
        Box::pin(async move {
            let room = self.hands.model.slots() + AHEAD;
            let permits = Arc::new(Semaphore::new(room));
            let mut jobs = JoinSet::new();
            let mut consumer = None;
            let mut counted: Option<Instant> = None;
            while !*stop.borrow() && self.hands.model.is_alive() {
                while jobs.try_join_next().is_some() {}
                let permit = tokio::select! {
                    permit = permits.clone().acquire_owned() => permit,
                    _ = stop.changed() => break,
                };
                let Ok(permit) = permit else { break };
                let pull = match &mut consumer {
                    Some(consumer) => consumer,
                    None => {
                        match self
                            .link
                            .consumer(self.hands.model.task(), &self.name, self.options.ack_wait)
                            .await
                        {
                            Ok(made) => consumer.insert(made),
                            Err(error) => {
                                tracing::warn!(%error, "no consumer: trying again");
                                tokio::time::sleep(PAUSE).await;
                                continue;
                            }
                        }
                    }
                };
                if counted.is_none_or(|at| at.elapsed() >= COUNT) {
                    counted = Some(Instant::now());
                    if let Ok(info) = pull.info().await {
                        self.figures.waiting.store(info.num_pending, Ordering::Relaxed);
                    }
                }
                let wanted = 1 + permits.available_permits();
                let asked = if self.options.until_empty {
                    pull.fetch().max_messages(wanted).expires(EMPTY).messages().await
                } else {
                    pull.batch().max_messages(wanted).expires(PULL).messages().await
                };
                let mut messages = match asked {
                    Ok(messages) => messages,
                    Err(error) => {
                        tracing::warn!(%error, "no jobs from the server: trying again");
                        consumer = None;
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                };
                let mut first = Some(permit);
                let mut came = 0;
                let mut failed = false;
                while let Some(message) = messages.next().await {
                    let message = match message {
                        Ok(message) => message,
                        Err(error) => {
                            tracing::debug!(%error, "a request for jobs ended");
                            failed = true;
                            break;
                        }
                    };
                    came += 1;
                    let permit = match first.take() {
                        Some(permit) => permit,
                        None => match permits.clone().acquire_owned().await {
                            Ok(permit) => permit,
                            Err(_) => break,
                        },
                    };
                    let worker = self.clone();
                    jobs.spawn(async move {
                        worker.figures.running.fetch_add(1, Ordering::Relaxed);
                        worker.take(&message).await;
                        worker.figures.running.fetch_sub(1, Ordering::Relaxed);
                        drop(permit);
                    });
                }
                if failed {
                    consumer = None;
                    tokio::time::sleep(PAUSE).await;
                } else if came == 0 && self.options.until_empty && jobs.is_empty() {
                    // A job that was given back for a while has still to be done.
                    let Some(due) = self.due().take().filter(|due| *due > Instant::now()) else { break };
                    tokio::select! {
                        () = tokio::time::sleep_until(due.into()) => {}
                        _ = stop.changed() => break,
                    }
                } else if came == 0 && self.options.until_empty {
                    let _ = jobs.join_next().await;
                }
            }
            self.draining.store(true, Ordering::Relaxed);
            while jobs.join_next().await.is_some() {}
            if self.hands.model.is_alive() {
                return Ok(());
            }
            Err(NatsError::Step { what: "the model has died", reason: "start this worker again".into() })
        })
    }

    /// Does a job, and tells everybody what became of it: the state first, the server last.
    async fn take(&self, message: &Message) {
        let tries = message.info().map_or(1, |info| info.delivered.max(1) as u64);
        let job = match read(&message.payload) {
            Ok(job) => job,
            Err(reason) => {
                tracing::warn!(reason, "a job that cannot be done");
                self.bury_bytes(message, tries, &reason).await;
                return;
            }
        };
        let (mut state, revision) = match desk::state(&self.states, &job.id).await {
            Ok(Some((state, revision))) => (state, Some(revision)),
            Ok(None) => (State::waiting(job.clone()), None),
            Err(error) => {
                tracing::warn!(%error, "a job's state cannot be read");
                return give_back(message, PAUSE).await;
            }
        };
        state.job = job;
        state.tries = tries;
        state.worker = Some(self.options.name.clone());
        let end = self.end(message, &state, revision, tries).await;
        let count = |n: &AtomicU64| n.fetch_add(1, Ordering::Relaxed);
        let id = state.job.id.clone();
        match end {
            End::Done { name, seconds } => {
                count(&self.figures.done);
                (state.output, state.audio_seconds, state.error) = (Some(name), seconds, None);
                self.finish(message, state.turned(Phase::Done)).await;
                self.place.drop_checkpoint(&id).await;
                tracing::info!(job = id, "kept");
            }
            End::Found { name } => {
                count(&self.figures.found);
                (state.output, state.error) = (Some(name), None);
                self.finish(message, state.turned(Phase::Done)).await;
            }
            End::Cancelled => {
                count(&self.figures.cancelled);
                self.finish(message, state.turned(Phase::Cancelled)).await;
                self.place.drop_checkpoint(&id).await;
            }
            End::Return { reason, after } => {
                count(&self.figures.returned);
                tracing::info!(job = id, reason, "given back");
                self.step_back(&id, reason).await;
                self.comes_back(after);
                give_back(message, after).await;
            }
            End::Dead { reason } => {
                count(&self.figures.dead);
                tracing::warn!(job = id, reason, "failed for good");
                state.error = Some(reason.clone());
                if self.is_done(&id).await {
                    let _ = message.double_ack().await;
                } else if self.bury(&id, &state, tries, &reason).await {
                    self.finish(message, state.turned(Phase::Failed)).await;
                    self.place.drop_checkpoint(&id).await;
                } else {
                    give_back(message, PAUSE).await;
                }
            }
        }
    }

    fn comes_back(&self, after: Duration) {
        let mut due = self.due();
        *due = (*due).max(Some(Instant::now() + after));
    }

    fn due(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.due.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether somebody else has done it meanwhile.
    async fn is_done(&self, id: &str) -> bool {
        let state = desk::state(&self.states, id).await;
        state.is_ok_and(|found| found.is_some_and(|(state, _)| state.phase == Phase::Done))
    }

    /// Writes down that a job waits again, unless another worker has it or has done it.
    async fn step_back(&self, id: &str, reason: String) {
        if let Ok(Some((state, revision))) = desk::state(&self.states, id).await
            && state.phase == Phase::Running
            && state.worker.as_ref() == Some(&self.options.name)
        {
            let waiting = State { error: Some(reason), ..state.turned(Phase::Waiting) };
            let _ = desk::replace(&self.states, &waiting, revision).await;
        }
    }

    /// Writes the state down, then acknowledges. Whatever does not reach the server is delivered and found again.
    async fn finish(&self, message: &Message, state: State) {
        let mut written = false;
        for _ in 0..ATTEMPTS {
            written = desk::put(&self.states, &state).await.is_ok();
            if written {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        if !written {
            tracing::warn!(
                job = state.job.id,
                "its state cannot be written: the server will send the job again"
            );
            return give_back(message, PAUSE).await;
        }
        for _ in 0..ATTEMPTS {
            if message.double_ack().await.is_ok() {
                if let Some(object) = &state.job.object
                    && state.phase == Phase::Done
                    && let Ok(inputs) = self.link.objects(INPUTS).await
                {
                    let _ = inputs.delete(object).await;
                }
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        tracing::warn!(
            job = state.job.id,
            "the server does not take the acknowledgement: it will send the job again"
        );
    }

    async fn bury(&self, id: &str, state: &State, tries: u64, reason: &str) -> bool {
        let letter = serde_json::json!({
            "job": state.job, "reason": reason, "tries": tries, "worker": self.options.name,
        });
        let sent = self.link.context.publish(self.link.dead_subject(id), letter.to_string().into()).await;
        match sent {
            Ok(ack) => ack.await.is_ok(),
            Err(_) => false,
        }
    }

    /// Buries what is no job.
    async fn bury_bytes(&self, message: &Message, tries: u64, reason: &str) {
        self.figures.dead.fetch_add(1, Ordering::Relaxed);
        let sequence = message.info().map_or(0, |i| i.stream_sequence);
        let text = String::from_utf8_lossy(&message.payload);
        let letter = serde_json::json!({
            "message": text, "reason": reason, "tries": tries, "worker": self.options.name,
        });
        let subject = self.link.dead_subject(&format!("message-{sequence}"));
        let sent = self.link.context.publish(subject, letter.to_string().into()).await;
        let kept = match sent {
            Ok(ack) => ack.await.is_ok(),
            Err(_) => false,
        };
        if kept {
            let _ = message.double_ack_with(AckKind::Term).await;
        } else {
            give_back(message, PAUSE).await;
        }
    }

    /// Does the work of a job.
    async fn end(&self, message: &Message, state: &State, revision: Option<u64>, tries: u64) -> End {
        let job = state.job.clone();
        if state.phase == Phase::Cancelled {
            return End::Cancelled;
        }
        if let (Phase::Done, Some(name)) = (state.phase, &state.output)
            && self.place.has(name).await
        {
            return End::Found { name: name.clone() };
        }
        let label = Label::new(&job.unit, &self.revision, &job.settings);
        let name = label.file_name(&job.unit, &job.settings);
        if self.place.has(&name).await {
            return End::Found { name };
        }
        let failed = |reason: String, lasting: bool| {
            if lasting || tries >= self.options.tries {
                return End::Dead { reason };
            }
            let after = Duration::from_secs(1 << tries.min(6)).min(MAX_BACKOFF);
            End::Return { reason, after }
        };
        if tries > self.options.tries {
            let reason = match &state.error {
                Some(last) => format!("taken {} times and never finished; last: {last}", tries - 1),
                None => {
                    format!("taken {} times and never finished: its workers died or were cut off", tries - 1)
                }
            };
            return End::Dead { reason };
        }
        if job.revision.as_ref().is_some_and(|wanted| *wanted != self.revision) {
            let wanted = job.revision.as_deref().unwrap_or_default();
            let reason = format!(
                "it is for revision {wanted} of {}, and this worker has {}: start workers of that revision, or submit it again",
                job.model, self.revision
            );
            return failed(reason, false);
        }
        let running = state.turned(Phase::Running);
        let told = match revision {
            // Whoever has cancelled it meanwhile is not overruled.
            Some(revision) => desk::replace(&self.states, &running, revision).await,
            None => desk::put(&self.states, &running).await,
        };
        if let Err(error) = told {
            return End::Return { reason: error.to_string(), after: PAUSE };
        }
        let mut unit = job.unit.clone();
        let laid_out = match self.lay_out(&job, &mut unit.input).await {
            Ok(laid_out) => laid_out,
            Err((reason, lasting)) => return failed(reason, lasting),
        };
        let made = self.work(message, &job, unit, &name).await;
        drop(laid_out);
        match made {
            Ok(made) => {
                let kept = match made.render(&job.unit, &job.settings, self.hands.model.id()) {
                    Some(text) => self.place.keep(&name, text.as_bytes()).await,
                    None => self.place.keep_from_desk(&name).await,
                };
                match kept {
                    Ok(()) => End::Done { name, seconds: Some(made.seconds()) },
                    Err(error) => failed(error.to_string(), false),
                }
            }
            Err(None) => End::Cancelled,
            Err(Some(JobError::Stopped)) => {
                End::Return { reason: "its worker was told to stop".into(), after: Duration::ZERO }
            }
            Err(Some(error)) => failed(error.to_string(), error.is_lasting()),
        }
    }

    /// Brings a recording here, or checks that it may be read.
    async fn lay_out(&self, job: &Job, input: &mut Input) -> Result<Option<Laid>, (String, bool)> {
        let Input::Audio { path, .. } = input else { return Ok(None) };
        let Some(object) = &job.object else {
            if let Some(root) = &self.options.inputs {
                let full = root.join(&*path);
                let (Ok(root), full) = (root.canonicalize(), full.canonicalize()) else {
                    return Err((format!("{}: no folder of inputs here", root.display()), false));
                };
                let full = full.map_err(|e| (format!("{}: {e}", path.display()), false))?;
                if !full.starts_with(&root) {
                    return Err((format!("{}: outside of this worker's --inputs", path.display()), true));
                }
                *path = full;
            }
            return Ok(None);
        };
        let fetch = async {
            let inputs = self.link.objects(INPUTS).await.map_err(|e| e.to_string())?;
            let mut from =
                inputs.get(object).await.map_err(|e| format!("its recording is not there: {e}"))?;
            let extension = path.extension().map_or(String::new(), |e| format!(".{}", e.display()));
            let tag = &self.options.name;
            let to = self.options.scratch.join(format!(".{object}.{tag}{extension}"));
            let laid = Laid(to.clone());
            let mut file =
                tokio::fs::File::create(&to).await.map_err(|e| format!("{}: {e}", to.display()))?;
            let mut piece = vec![0; PIECE];
            loop {
                let read =
                    tokio::io::AsyncReadExt::read(&mut from, &mut piece).await.map_err(|e| e.to_string())?;
                if read == 0 {
                    break;
                }
                file.write_all(&piece[..read]).await.map_err(|e| format!("{}: {e}", to.display()))?;
            }
            file.flush().await.map_err(|e| e.to_string())?;
            Ok::<_, String>((to, laid))
        };
        let (to, laid) = fetch.await.map_err(|e| (e, false))?;
        *path = to;
        Ok(Some(laid))
    }

    /// Runs the model, and tells the server meanwhile that the job is in good hands. None as an error: it was cancelled.
    async fn work(
        &self,
        message: &Message,
        job: &Job,
        unit: crate::Unit,
        name: &str,
    ) -> Result<Made, Option<JobError>> {
        let (cancelled, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let watch = JobWatch {
            id: job.id.clone(),
            place: self.place.clone(),
            handle: Handle::current(),
            figures: self.figures.clone(),
            cancelled: cancelled.clone(),
            draining: self.draining.clone(),
            drain_begun: Mutex::new(None),
            drained: AtomicBool::new(false),
            every: self.options.checkpoint,
            last: Mutex::new(Instant::now()),
            told: told.clone(),
            rate: self.hands.model.sample_rate() as u64,
        };
        let (hands, place) = (self.hands.clone(), self.place.clone());
        let (settings, name) = (job.settings.clone(), name.to_owned());
        let mut running = tokio::task::spawn_blocking(move || {
            let open = || place.desk().write(&name);
            hands.model.run(&unit, &settings, &hands.slots, &watch, open)
        });
        let mut ticks = tokio::time::interval(self.options.ack_wait / 3);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let made = loop {
            tokio::select! {
                made = &mut running => break made,
                _ = ticks.tick() => {
                    let _ = message.ack_with(AckKind::Progress).await;
                    let heard = told.load(Ordering::Relaxed) as f64 / 1e3;
                    match desk::state(&self.states, &job.id).await {
                        Ok(Some((state, _))) if state.phase == Phase::Cancelled => {
                            cancelled.store(true, Ordering::Relaxed);
                        }
                        Ok(Some((state, revision)))
                            if state.phase == Phase::Running && state.heard < heard
                                && state.worker.as_ref() == Some(&self.options.name) =>
                        {
                            let further = State { heard, ..state.turned(Phase::Running) };
                            let _ = desk::replace(&self.states, &further, revision).await;
                        }
                        _ => {}
                    }
                }
            }
        };
        if let Ok(Ok(made)) = &made {
            let ms = (made.seconds() * 1e3) as u64;
            let before = told.fetch_max(ms, Ordering::Relaxed);
            self.figures.audio_ms.fetch_add(ms.saturating_sub(before), Ordering::Relaxed);
        }
        match made {
            Ok(Err(JobError::Stopped)) if cancelled.load(Ordering::Relaxed) => Err(None),
            Ok(made) => made.map_err(Some),
            Err(error) => Err(Some(JobError::Refused(format!("the worker broke down on it: {error}")))),
        }
    }
}

/// A recording that was laid out for a job, and goes with it.
struct Laid(PathBuf);

impl Drop for Laid {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A job out of a message, or why it is none.
fn read(bytes: &[u8]) -> Result<Job, String> {
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|e| format!("this is no job: no JSON ({e})"))?;
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => {
            return Err(format!(
                "it is a job of version {version}, and this worker knows version {VERSION}: update whichever is older"
            ));
        }
        None => return Err("this is no job: it has no version".into()),
    }
    serde_json::from_value(value).map_err(|e| format!("this job cannot be read: {e}"))
}

async fn give_back(message: &Message, after: Duration) {
    let after = (!after.is_zero()).then_some(after);
    // What does not reach the server is delivered again when it has waited long enough.
    let _ = message.ack_with(AckKind::Nak(after)).await;
}
