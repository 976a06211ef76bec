//! The series that `/metrics` shows: prefix `voce_`, base units, `_seconds`, `_bytes`, `_total`.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use voce_engine::breaker::{Breaker, BreakerState};

use super::budget::{Over, Purse};

/// What a model does, and with it a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text to speech.
    Speech,
    /// Speech to text.
    Hearing,
    /// Speech to speech, both ways at once.
    Dialogue,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Speech, Self::Hearing, Self::Dialogue];

    /// Its name in errors, file names and labels.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Speech => "speech",
            Kind::Hearing => "recognition",
            Kind::Dialogue => "dialogue",
        }
    }

    /// What its slots are called in a budget.
    pub(crate) fn slots(self) -> &'static str {
        match self {
            Kind::Speech => "speech_slots",
            Kind::Hearing => "recognition_slots",
            Kind::Dialogue => "dialogue_slots",
        }
    }

    pub(crate) fn label(self) -> KindLabel {
        KindLabel { kind: self.word() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) route: String,
    pub(crate) method: &'static str,
    pub(crate) code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ErrorLabel {
    pub(crate) r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KindLabel {
    pub(crate) kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ModelLabel {
    pub(crate) model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DirectionLabel {
    pub(crate) dir: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    pub(crate) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WhatLabel {
    pub(crate) what: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabel {
    pub(crate) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PhaseLabel {
    pub(crate) phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct BreakerLabel {
    pub(crate) stage: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct BreakerStateLabel {
    pub(crate) stage: &'static str,
    pub(crate) state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RefusedLabel {
    pub(crate) what: &'static str,
    pub(crate) by: &'static str,
}

type Seconds = Counter<f64, AtomicU64>;
type Level = Gauge<f64, AtomicU64>;

/// All series; clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    registry: Arc<Registry>,
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) request_seconds: Histogram,
    pub(crate) errors: Family<ErrorLabel, Counter>,
    pub(crate) connections: Gauge,
    pub(crate) streams_active: Family<KindLabel, Gauge>,
    pub(crate) slots_total: Family<KindLabel, Gauge>,
    pub(crate) queue_seconds: Histogram,
    pub(crate) first_audio: Histogram,
    pub(crate) first_word: Histogram,
    pub(crate) step_seconds: Family<ModelLabel, Histogram>,
    pub(crate) lag_seconds: Histogram,
    pub(crate) audio_seconds: Family<DirectionLabel, Seconds>,
    pub(crate) underruns: Counter,
    pub(crate) passages_again: Counter,
    pub(crate) passages_unended: Counter,
    pub(crate) cancelled: Family<ReasonLabel, Counter>,
    pub(crate) model_bytes: Family<ModelLabel, Gauge>,
    pub(crate) model_restarts: Family<ModelLabel, Counter>,
    pub(crate) model_loads: Family<ModelLabel, Counter>,
    pub(crate) model_unloads: Family<ModelLabel, Counter>,
    pub(crate) model_ready: Family<ModelLabel, Gauge>,
    pub(crate) replicas: Family<ModelLabel, Gauge>,
    pub(crate) replicas_ready: Family<ModelLabel, Gauge>,
    pub(crate) slow_steps: Family<ModelLabel, Counter>,
    pub(crate) warm_steps: Family<ModelLabel, Counter>,
    pub(crate) load: Family<KindLabel, Level>,
    pub(crate) queue_waiting: Family<KindLabel, Gauge>,
    pub(crate) queue_age: Family<KindLabel, Level>,
    pub(crate) budget_used: Family<WhatLabel, Gauge>,
    pub(crate) budget_limit: Family<WhatLabel, Gauge>,
    pub(crate) budget_refused: Family<RefusedLabel, Counter>,
    pub(crate) handovers: Family<OutcomeLabel, Counter>,
    pub(crate) journal_dropped: Family<WhatLabel, Counter>,
    pub(crate) journal_files: Family<OutcomeLabel, Counter>,
    pub(crate) jobs: Family<PhaseLabel, Gauge>,
    pub(crate) job_bytes: Gauge,
    pub(crate) job_events: Family<OutcomeLabel, Counter>,
    trace_spans: Family<OutcomeLabel, Counter>,
    breaker_state: Family<BreakerStateLabel, Gauge>,
    breaker_failures: Family<BreakerLabel, Counter>,
    breaker_refused: Family<BreakerLabel, Counter>,
    /// One scrape at a time brings counters up to those of others.
    scrape: Arc<Mutex<()>>,
}

/// Buckets around a frame of 80 ms.
const STEP: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.5];
/// Buckets for what a person waits for.
const WAIT: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0];

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("voce");
        let r = &mut registry;
        let wait = || Histogram::new(WAIT);
        let requests = Family::default();
        r.register("requests", "Requests answered, by route, method and status", requests.clone());
        let request_seconds = wait();
        r.register_with_unit(
            "request",
            "From a request's head to its response's head",
            Unit::Seconds,
            request_seconds.clone(),
        );
        let errors = Family::default();
        r.register("errors", "Errors told to clients, by code", errors.clone());
        let connections = Gauge::default();
        r.register("connections", "Open sockets", connections.clone());
        let streams_active = Family::default();
        r.register("streams_active", "Streams that hold a slot", streams_active.clone());
        let slots_total = Family::default();
        r.register("slots", "Slots there are", slots_total.clone());
        let queue_seconds = wait();
        r.register_with_unit("queue", "Time in line for a slot", Unit::Seconds, queue_seconds.clone());
        let first_audio = wait();
        r.register_with_unit(
            "time_to_first_audio",
            "From a speech request to its first audio",
            Unit::Seconds,
            first_audio.clone(),
        );
        let first_word = wait();
        r.register_with_unit(
            "time_to_first_word",
            "From a stream's first audio to its first word",
            Unit::Seconds,
            first_word.clone(),
        );
        let step_seconds: Family<ModelLabel, Histogram> =
            Family::new_with_constructor(|| Histogram::new(STEP));
        r.register_with_unit(
            "step",
            "Mean time of a model's frame, one observation a request",
            Unit::Seconds,
            step_seconds.clone(),
        );
        let lag_seconds = wait();
        r.register_with_unit(
            "lag",
            "Wall time since a live stream began, less the audio answered so far",
            Unit::Seconds,
            lag_seconds.clone(),
        );
        let audio_seconds = Family::default();
        r.register_with_unit("audio", "Audio in and out", Unit::Seconds, audio_seconds.clone());
        let underruns = Counter::default();
        r.register("underruns", "Times a listener at normal speed had to wait for speech", underruns.clone());
        let (passages_again, passages_unended) = <(Counter, Counter)>::default();
        r.register(
            "passages_spoken_again",
            "Passages of text that did not end and were spoken again in halves",
            passages_again.clone(),
        );
        r.register(
            "passages_unended",
            "Passages of text that did not end in halves either: words of them may be missing",
            passages_unended.clone(),
        );
        let cancelled = Family::default();
        r.register("cancelled", "Streams that ended before their end", cancelled.clone());
        let model_bytes = Family::default();
        r.register_with_unit("model", "Weights read by a frame", Unit::Bytes, model_bytes.clone());
        let model_restarts = Family::default();
        r.register(
            "model_restarts",
            "Times a model was loaded again after its thread died",
            model_restarts.clone(),
        );
        let model_loads = Family::default();
        r.register("model_loads", "Times a model was loaded", model_loads.clone());
        let model_unloads = Family::default();
        r.register("model_unloads", "Times an idle model was unloaded", model_unloads.clone());
        let model_ready = Family::default();
        r.register("model_ready", "1 where a model takes requests", model_ready.clone());
        let replicas = Family::default();
        r.register("replicas", "Replicas that a model is to have", replicas.clone());
        let replicas_ready = Family::default();
        r.register("replicas_ready", "Replicas of a model that take streams", replicas_ready.clone());
        let slow_steps = Family::default();
        r.register("slow_steps", "Steps of a model that took more than five frames", slow_steps.clone());
        let warm_steps = Family::default();
        r.register("warm_steps", "Steps made only to keep an idle model warm", warm_steps.clone());
        let load = Family::default();
        r.register_with_unit(
            "load",
            "Slots in use and requests in line, over slots; above 1 a line has formed",
            Unit::Other("ratio".into()),
            load.clone(),
        );
        let queue_waiting = Family::default();
        r.register("queue_waiting", "Requests in line for a slot now", queue_waiting.clone());
        let queue_age = Family::default();
        r.register_with_unit(
            "queue_age",
            "How long the first in line has waited",
            Unit::Seconds,
            queue_age.clone(),
        );
        let budget_used = Family::default();
        r.register("budget_used", "What callers hold of something finite", budget_used.clone());
        let budget_limit = Family::default();
        r.register("budget_limit", "What there is of it", budget_limit.clone());
        let budget_refused = Family::default();
        r.register(
            "budget_refused",
            "Times somebody was refused it, by the limit of all, of the key or of the address",
            budget_refused.clone(),
        );
        let handovers = Family::default();
        r.register("handovers", "Streams that moved or were saved, by what came of it", handovers.clone());
        let journal_dropped = Family::default();
        r.register(
            "journal_dropped",
            "Pieces of streams that were to be kept and could not be",
            journal_dropped.clone(),
        );
        let journal_files = Family::default();
        r.register("journal_files", "Files of streams that were kept", journal_files.clone());
        let jobs = Family::default();
        r.register("jobs", "Jobs that are kept here, by phase", jobs.clone());
        let job_bytes = Gauge::default();
        r.register_with_unit("job", "Recordings and results of jobs", Unit::Bytes, job_bytes.clone());
        let job_events = Family::default();
        r.register(
            "job_events",
            "Jobs submitted, resumed from a checkpoint, returned to the queue, and over",
            job_events.clone(),
        );
        let trace_spans = Family::default();
        r.register("trace_spans", "Spans for the collector", trace_spans.clone());
        let breaker_state = Family::default();
        r.register("breaker_state", "1 for the state that a breaker is in", breaker_state.clone());
        let breaker_failures = Family::default();
        r.register("breaker_failures", "Calls of something remote that failed", breaker_failures.clone());
        let breaker_refused = Family::default();
        r.register("breaker_refused", "Calls that an open breaker refused", breaker_refused.clone());
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        r.register("build", "This build", build);
        Self {
            registry: Arc::new(registry),
            requests,
            request_seconds,
            errors,
            connections,
            streams_active,
            slots_total,
            queue_seconds,
            first_audio,
            first_word,
            step_seconds,
            lag_seconds,
            audio_seconds,
            underruns,
            passages_again,
            passages_unended,
            cancelled,
            model_bytes,
            model_restarts,
            model_loads,
            model_unloads,
            model_ready,
            replicas,
            replicas_ready,
            slow_steps,
            warm_steps,
            load,
            queue_waiting,
            queue_age,
            budget_used,
            budget_limit,
            budget_refused,
            handovers,
            journal_dropped,
            journal_files,
            jobs,
            job_bytes,
            job_events,
            trace_spans,
            breaker_state,
            breaker_failures,
            breaker_refused,
            scrape: Arc::default(),
        }
    }

    /// Counts a stream that moved: `sent`, `resumed`, `saved`, `failed` or `lost`.
    pub(crate) fn handover(&self, outcome: &'static str) {
        self.handovers.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Counts an error.
    pub(crate) fn error(&self, code: &'static str) {
        self.errors.get_or_create(&ErrorLabel { r#type: code }).inc();
    }

    /// Counts a stream that ended early.
    pub(crate) fn cancel(&self, reason: &'static str) {
        self.cancelled.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Counts seconds of audio, `in` or `out`.
    pub(crate) fn audio(&self, dir: &'static str, seconds: f64) {
        self.audio_seconds.get_or_create(&DirectionLabel { dir }).inc_by(seconds);
    }

    /// Shows what is held of purses of one name, and who was refused.
    pub(crate) fn show_purses<'a>(&self, what: &'static str, purses: impl Iterator<Item = &'a Purse>) {
        let (mut used, mut limit, mut refused) = (0, Some(0), [0; 3]);
        for purse in purses {
            let (has, most) = purse.used();
            used += has as i64;
            limit = limit.zip(i64::try_from(most).ok()).map(|(a, b)| a + b);
            Over::EACH.iter().for_each(|by| refused[*by as usize] += purse.refused(*by));
        }
        self.budget_used.get_or_create(&WhatLabel { what }).set(used);
        if let Some(limit) = limit {
            self.budget_limit.get_or_create(&WhatLabel { what }).set(limit);
        }
        for by in Over::EACH {
            let label = RefusedLabel { what, by: by.word() };
            raise(&self.budget_refused.get_or_create(&label), refused[by as usize]);
        }
    }

    /// Shows what is held of something that is waited for, and what there is.
    pub(crate) fn show_line(&self, what: &'static str, (used, limit): (usize, usize)) {
        self.budget_used.get_or_create(&WhatLabel { what }).set(used as i64);
        self.budget_limit.get_or_create(&WhatLabel { what }).set(limit as i64);
    }

    /// Counts spans, `sent` or `dropped`.
    pub(crate) fn spans(&self, outcome: &'static str, n: u64) {
        self.trace_spans.get_or_create(&OutcomeLabel { outcome }).inc_by(n);
    }

    /// Held while counters are brought up to those of others.
    pub(crate) fn scrape(&self) -> MutexGuard<'_, ()> {
        self.scrape.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows what a breaker has counted.
    pub(crate) fn show_breaker(&self, breaker: &Breaker) {
        let (stage, stats) = (breaker.name(), breaker.stats());
        for state in BreakerState::ALL {
            let label = BreakerStateLabel { stage, state: state.name() };
            self.breaker_state.get_or_create(&label).set(i64::from(state == stats.state));
        }
        let label = BreakerLabel { stage };
        raise(&self.breaker_failures.get_or_create(&label), stats.failures);
        raise(&self.breaker_refused.get_or_create(&label), stats.refused);
    }

    /// All series as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

/// Brings a counter up to one that is kept elsewhere.
pub(crate) fn raise(counter: &Counter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}
