//! Who looks after the models: one that died is loaded again, one that hangs makes the server not ready, slow steps are logged.
//! Also the series that are looked up when somebody asks for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use voce_engine::Pulse;
use voce_engine::breaker::jittered;

use super::admission::Load;
use super::limits;
use super::metrics::{Kind, ModelLabel, raise};
use super::state::AppState;
use super::state::Inner;

/// The first wait before a model that cannot be loaded is tried again, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// When something that failed may be tried again: later each time, and not at the same time as others.
#[derive(Default)]
pub(crate) struct Backoff(Mutex<Option<(Instant, Duration)>>);

impl Backoff {
    /// Whether a try is due.
    pub(crate) fn is_due(&self) -> bool {
        let wait = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        wait.is_none_or(|(until, _)| Instant::now() >= until)
    }

    pub(crate) fn failed(&self) {
        let mut wait = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = wait.map_or(FIRST_WAIT, |(_, last)| (last * 2).min(LONGEST_WAIT));
        *wait = Some((Instant::now() + jittered(next), next));
    }

    pub(crate) fn succeeded(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Every model's name and pulse; a model that is on several devices has several.
fn pulses(state: &Inner) -> impl Iterator<Item = (&str, Arc<Pulse>)> {
    let mouths = state.mouths.iter().flat_map(|m| m.pulses().into_iter().map(|p| (m.id(), p)));
    mouths.chain(state.ears.iter().flat_map(|e| e.pulses().into_iter().map(|p| (e.id(), p))))
}

fn hangs(pulse: &Pulse, limit: Duration) -> bool {
    pulse.is_alive() && pulse.in_step().is_some_and(|time| time > limit)
}

/// Whether a model's step takes so long that new work is better sent elsewhere.
pub(crate) fn is_stuck(state: &Inner) -> bool {
    pulses(state).any(|(_, pulse)| hangs(&pulse, state.options.limits.stuck_step))
}

/// Looks after the models until it is dropped.
pub(crate) async fn watch(state: AppState) {
    let mut tick = tokio::time::interval(limits::WATCH);
    let mut hung: HashMap<(String, usize), bool> = HashMap::new();
    loop {
        tick.tick().await;
        for (place, (model, pulse)) in pulses(&state).enumerate() {
            for slow in pulse.take_slow() {
                let ms = slow.took.as_millis() as u64;
                tracing::warn!(model, stage = slow.stage, slots = ?slow.slots, frames = slow.frames, ms, "a slow step");
            }
            let now = hangs(&pulse, state.options.limits.stuck_step);
            let before = hung.insert((model.to_owned(), place), now).unwrap_or_default();
            match (before, now) {
                (false, true) => tracing::error!(model, "a step hangs: the server is not ready"),
                (true, false) => tracing::info!(model, "the step that hung has ended"),
                _ => {}
            }
        }
        state.mouths.iter().for_each(|m| m.revive());
        state.ears.iter().for_each(|e| e.revive());
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
    let speech = state.mouths.iter().map(|m| m.load()).reduce(add);
    let recognition = state.ears.iter().map(|e| e.load()).reduce(add);
    for (kind, load) in [(Kind::Speech, speech), (Kind::Recognition, recognition)] {
        let Some(load) = load else { continue };
        let ratio = (load.used + load.waiting) as f64 / load.total.max(1) as f64;
        metrics.load.get_or_create(&kind.label()).set(ratio);
        metrics.queue_waiting.get_or_create(&kind.label()).set(load.waiting as i64);
        metrics.queue_age.get_or_create(&kind.label()).set(load.age.as_secs_f64());
    }
    let limit = state.options.limits.stuck_step;
    let label = |id: &str| ModelLabel { model: id.to_owned() };
    for mouth in &state.mouths {
        let ready = mouth.is_ready() && mouth.pulses().iter().all(|p| !hangs(p, limit));
        metrics.model_ready.get_or_create(&label(mouth.id())).set(i64::from(ready));
    }
    for ear in &state.ears {
        let ready = ear.is_ready() && ear.pulses().iter().all(|p| !hangs(p, limit));
        metrics.model_ready.get_or_create(&label(ear.id())).set(i64::from(ready));
        raise(&metrics.model_restarts.get_or_create(&label(ear.id())), ear.restarts());
    }
    let mut steps: HashMap<&str, [u64; 2]> = HashMap::new();
    for (model, pulse) in pulses(state) {
        let [slow, warm] = steps.entry(model).or_default();
        *slow += pulse.slow_steps();
        *warm += pulse.warm_steps();
    }
    for (model, [slow, warm]) in steps {
        raise(&metrics.slow_steps.get_or_create(&label(model)), slow);
        raise(&metrics.warm_steps.get_or_create(&label(model)), warm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_waited_for_longer_each_time() {
        let backoff = Backoff::default();
        assert!(backoff.is_due());
        let wait = || backoff.0.lock().unwrap().unwrap().1;
        backoff.failed();
        assert!(!backoff.is_due() && wait() == FIRST_WAIT);
        backoff.failed();
        assert_eq!(wait(), FIRST_WAIT * 2);
        (0..20).for_each(|_| backoff.failed());
        assert_eq!(wait(), LONGEST_WAIT);
        backoff.succeeded();
        assert!(backoff.is_due());
    }
}
