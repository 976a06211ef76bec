//! Who looks after the models, whatever they do: one that died is opened again, one that hangs makes the server not ready and
//! is then given up, an idle one is unloaded, slow steps are logged. Also the series that are looked up when somebody asks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use voce_engine::Pulse;
use voce_jobs::Phase;

use super::admission::Load;
use super::limits;
use super::metrics::{Kind, ModelLabel, PhaseLabel, raise};
use super::models::{Incurable, Served};
use super::state::AppState;
use crate::jobs::Jobs;

/// Every model's name, and the number and pulse of each of its replicas.
fn pulses(state: &AppState) -> impl Iterator<Item = (&str, usize, Arc<Pulse>)> {
    state.served().flat_map(|served| {
        let pulses = served.replicas().map(|r| r.pulses()).unwrap_or_default();
        pulses.into_iter().map(|(replica, pulse)| (served.id(), replica, pulse))
    })
}

fn hangs(pulse: &Pulse, limit: Duration) -> bool {
    pulse.is_alive() && pulse.in_step().is_some_and(|time| time > limit)
}

/// Whether a model's step takes so long that new work is better sent elsewhere.
pub(crate) fn is_stuck(state: &AppState) -> bool {
    pulses(state).any(|(.., pulse)| hangs(&pulse, state.options.limits.stuck_step))
}

/// Looks after the models until only a new process can mend one of them.
pub(crate) async fn watch(state: AppState) -> Incurable {
    let mut tick = tokio::time::interval(limits::WATCH);
    let mut hung: HashMap<(String, usize), bool> = HashMap::new();
    loop {
        tick.tick().await;
        for (model, replica, pulse) in pulses(&state) {
            for slow in pulse.take_slow() {
                let ms = slow.took.as_millis() as u64;
                tracing::warn!(model, replica, stage = slow.stage, slots = ?slow.slots, frames = slow.frames, ms, "a slow step");
            }
            let now = hangs(&pulse, state.options.limits.stuck_step);
            let before = hung.insert((model.to_owned(), replica), now).unwrap_or_default();
            match (before, now) {
                (false, true) => tracing::error!(model, replica, "a step hangs: the server is not ready"),
                (true, false) => tracing::info!(model, replica, "the step that hung has ended"),
                _ => {}
            }
        }
        for replicas in state.served().filter_map(Served::replicas) {
            if let Some(incurable) = replicas.look_after(state.options.limits.hung_step) {
                return incurable;
            }
            replicas.rest();
        }
    }
}

/// Brings the series up to date that nobody keeps while streams run.
pub(crate) fn show(state: &AppState) {
    let metrics = &state.metrics;
    let _one_at_a_time = metrics.scrape();
    metrics.show_breaker(state.store.breaker());
    if let Some(exporter) = &state.telemetry.tracing.0 {
        metrics.show_breaker(exporter.breaker());
    }
    let add = |a: Load, b: Load| Load {
        used: a.used + b.used,
        total: a.total + b.total,
        waiting: a.waiting + b.waiting,
        age: a.age.max(b.age),
    };
    for kind in Kind::ALL {
        let loads = state.served().map(Served::gate).filter(|g| g.kind() == kind).map(|g| g.load());
        let Some(load) = loads.reduce(add) else { continue };
        let ratio = (load.used + load.waiting) as f64 / load.total.max(1) as f64;
        metrics.load.get_or_create(&kind.label()).set(ratio);
        metrics.queue_waiting.get_or_create(&kind.label()).set(load.waiting as i64);
        metrics.queue_age.get_or_create(&kind.label()).set(load.age.as_secs_f64());
        let gates = state.served().map(Served::gate).filter(|g| g.kind() == kind);
        metrics.show_purses(kind.slots(), gates.map(|g| g.shares()));
    }
    metrics.show_line("message_bytes", state.budget.messages.used());
    for purse in state.budget.purses() {
        metrics.show_purses(purse.what(), std::iter::once(&**purse));
    }
    state.served().for_each(|served| show_model(state, served));
    if let Some(Jobs::Folder(jobs)) = &state.jobs {
        let (counts, bytes) = jobs.counts();
        for (phase, count) in Phase::ALL.into_iter().zip(counts) {
            metrics.jobs.get_or_create(&PhaseLabel { phase: phase.name() }).set(count as i64);
        }
        metrics.job_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

/// The series of one model.
fn show_model(state: &AppState, served: &dyn Served) {
    let (metrics, limit) = (&state.metrics, state.options.limits.stuck_step);
    let label = ModelLabel { model: served.id().to_owned() };
    let Some(replicas) = served.replicas() else {
        metrics.model_ready.get_or_create(&label).set(1);
        return;
    };
    let pulses = replicas.pulses();
    let is_ready = served.is_ready() && pulses.iter().all(|(_, p)| !hangs(p, limit));
    metrics.model_ready.get_or_create(&label).set(i64::from(is_ready));
    metrics.replicas.get_or_create(&label).set(replicas.count() as i64);
    metrics.replicas_ready.get_or_create(&label).set(replicas.ready() as i64);
    let tally = replicas.tally();
    metrics.model_bytes.get_or_create(&label).set(tally.bytes as i64);
    raise(&metrics.model_loads.get_or_create(&label), tally.loads);
    raise(&metrics.model_unloads.get_or_create(&label), tally.unloads);
    raise(&metrics.model_restarts.get_or_create(&label), tally.restarts);
    raise(&metrics.slow_steps.get_or_create(&label), pulses.iter().map(|(_, p)| p.slow_steps()).sum());
    raise(&metrics.warm_steps.get_or_create(&label), pulses.iter().map(|(_, p)| p.warm_steps()).sum());
}
