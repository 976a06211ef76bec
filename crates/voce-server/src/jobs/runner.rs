//! Does the jobs of a folder with this server's recognisers: a few at a time, each in a slot of its owner's share, so that
//! live streams keep theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use voce_audio::{DecodeLimits, Decoder, MonoStream, Source};
use voce_jobs::{Input, JobError, Phase, Unit, hear, render};

use super::folder::Outcome;
use super::watch::JobWatch;
use super::{Fault, JobFolder, JobsOptions, Record};
use crate::core::aside;
use crate::core::caller::Caller;
use crate::core::error::ServerError;
use crate::core::metrics::OutcomeLabel;
use crate::core::owners::digest_of;
use crate::core::state::AppState;

/// How long to wait where there is no slot, and for a model that is not there.
const PAUSE: Duration = Duration::from_millis(200);
/// How often jobs are looked for that have grown old.
const SWEEP: Duration = Duration::from_secs(60);

/// Does jobs until the server is on its way out.
pub(crate) async fn run(state: AppState, jobs: Arc<JobFolder>, options: JobsOptions) {
    let slots = state.ears.first().map_or(1, |ear| ear.slots().1);
    let room = Arc::new(Semaphore::new(options.at_once.unwrap_or(slots / 2).max(1)));
    let mut changes = jobs.subscribe();
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        let permit = tokio::select! {
            permit = room.clone().acquire_owned() => permit,
            () = state.drain.begun() => return,
        };
        let Ok(permit) = permit else { return };
        let found = {
            let jobs = jobs.clone();
            aside::wait(move || jobs.next()).await
        };
        match found {
            Some(Some((record, stop))) => {
                let (state, jobs) = (state.clone(), jobs.clone());
                let every = options.checkpoint;
                // The server waits for it on its way out: it comes to a checkpoint.
                let session = state.drain.session();
                aside::spawn(async move {
                    one(state, jobs, record, stop, every).await;
                    drop((session, permit));
                });
            }
            _ => tokio::select! {
                _ = changes.changed() => {}
                () = state.drain.begun() => return,
                _ = sweep.tick() => {
                    let jobs = jobs.clone();
                    let _ = aside::wait(move || jobs.sweep()).await;
                }
            },
        }
    }
}

/// Whose a job is: a key that is still accepted, or anyone where there are no keys.
fn caller(state: &AppState, owner: &str) -> Option<Caller> {
    let keyless = state.keys.is_empty().then(Caller::default);
    let keyed = state.keys.ids().map(|key| Caller { key: Some(key), ..Caller::default() });
    keyless.into_iter().chain(keyed).find(|caller| digest_of(caller, super::routes::PURPOSE) == owner)
}

async fn one(state: AppState, jobs: Arc<JobFolder>, record: Record, stop: Arc<AtomicBool>, every: Duration) {
    let id = record.id.clone();
    tracing::info!(job = id, model = record.model, "job begins");
    let outcome = match caller(&state, &record.owner) {
        Some(caller) => caller.scope(work(&state, &jobs, record, stop, every)).await,
        None => Outcome::Failed(Fault::new(
            "invalid_api_key",
            "the key that made this job is not accepted any more",
        )),
    };
    if let Outcome::Done(_, seconds) = &outcome {
        state.metrics.audio("in", *seconds);
    }
    let settled = {
        let id = id.clone();
        aside::wait(move || jobs.settle(&id, outcome)).await
    };
    let phase = settled.unwrap_or(Phase::Waiting);
    let outcome = if phase == Phase::Waiting { "returned" } else { phase.name() };
    tracing::info!(job = id, outcome, "job ends");
    state.metrics.job_events.get_or_create(&OutcomeLabel { outcome }).inc();
}

async fn work(
    state: &AppState,
    jobs: &Arc<JobFolder>,
    record: Record,
    stop: Arc<AtomicBool>,
    every: Duration,
) -> Outcome {
    let ear = match state.ear(Some(&record.model)) {
        Ok(ear) => ear,
        Err(error) => return failed(&error),
    };
    let begun = loop {
        if stop.load(Ordering::Relaxed) {
            return Outcome::Cancelled;
        }
        if state.drain.is_draining() {
            return Outcome::Returned { counts: false };
        }
        match ear.begin_job().await {
            Ok(begun) => break begun,
            Err(
                ServerError::Busy { .. }
                | ServerError::Share { .. }
                | ServerError::Overloaded(_)
                | ServerError::NotReady
                | ServerError::Engine(voce_engine::EngineError::Stopped(_) | voce_engine::EngineError::Busy(_)),
            ) => tokio::time::sleep(PAUSE).await,
            Err(error) => return failed(&error),
        }
    };
    let watch =
        JobWatch::new(jobs.clone(), record.id.clone(), stop.clone(), state.drain.clone(), begun.seat, every);
    let (listener, slot) = (begun.listener, begun.held);
    let (path, metrics) = (jobs.input(&record.id), state.metrics.clone());
    let heard = aside::wait(move || {
        let rate = listener.info().sample_rate as u32;
        let unit = Unit {
            id: record.name.clone(),
            input: Input::Audio { path: path.clone(), offset: None, duration: None },
            seconds: None,
            fields: serde_json::Map::new(),
        };
        let wrap = |source| JobError::Audio { name: record.name.clone(), source };
        // A stranger's file of hours: in the memory of an upload's packet, and with as much beside the sound as it likes.
        let limits = DecodeLimits { max_gap_bytes: u64::MAX, ..DecodeLimits::live() };
        let audio = Source::file(&path)
            .and_then(|source| Decoder::open(source, record.extension.as_deref(), &limits))
            .map_err(wrap)?;
        let settings = &record.settings;
        let heard = hear(&listener, &unit, &settings.request(), MonoStream::new(audio, rate), &watch);
        if watch.was_resumed() {
            metrics.job_events.get_or_create(&OutcomeLabel { outcome: "resumed" }).inc();
        }
        // The model was given up under it: it is done again, by another.
        let counts = watch.is_gone();
        let heard = heard.map(|heard| (render(&heard, &unit, settings.format, &record.model), heard.seconds));
        drop(slot);
        Ok((heard, counts))
    });
    match heard.await {
        Some(Ok((Ok((text, seconds)), ..))) => Outcome::Done(text, seconds),
        Some(Ok((Err(_), ..))) if stop.load(Ordering::Relaxed) => Outcome::Cancelled,
        Some(Ok((Err(JobError::Stopped), counts))) => Outcome::Returned { counts },
        Some(Ok((Err(JobError::Engine(voce_engine::EngineError::Stopped(_))), ..))) => {
            Outcome::Returned { counts: true }
        }
        Some(Ok((Err(error), ..)) | Err(error)) => Outcome::Failed(Fault::new(error.code(), told(&error))),
        None => Outcome::Returned { counts: true },
    }
}

fn failed(error: &ServerError) -> Outcome {
    Outcome::Failed(Fault::new(error.code(), error.message()))
}

/// What the owner reads: faults of the server tell no details.
fn told(error: &JobError) -> String {
    match error {
        JobError::Audio {
            source: voce_audio::AudioError::Io { .. } | voce_audio::AudioError::NotFound { .. },
            ..
        }
        | JobError::Keep { .. } => ServerError::Internal.to_string(),
        _ => error.to_string(),
    }
}
