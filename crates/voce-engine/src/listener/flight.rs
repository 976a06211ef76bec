//! A step that was asked for and not told yet. An ear that runs ahead has one while it takes and encodes the next.

use std::time::{Duration, Instant};

use voce_models::hearing::{Ear, Planned};
use voce_runtime::Exec;

use crate::lane::Turned;

/// A step between the taking of its rows and its telling.
pub(super) struct Flight {
    /// Whose frames; those that have left since are taken out.
    pub planned: Vec<Planned>,
    /// Frames that it makes, or a few more.
    pub frames: usize,
    /// When it was planned, when its rows were taken, and when everything of it had been asked for.
    pub begun: Instant,
    pub taking: Instant,
    pub asked: Instant,
    /// How long the host took to take rows, and to ask for their encoding.
    pub front: Duration,
    pub encode: Duration,
    /// When the step took its turn on a device, if it had to.
    pub turned: Option<Turned>,
    /// Whether another step was under way when it was asked for.
    pub beside: bool,
}

/// How long the phases of a step took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub front: Duration,
    pub encode: Duration,
    pub decode: Duration,
    /// From when it was planned, or from when the step before it was told, until it was told itself.
    pub total: Duration,
}

impl Flight {
    /// Whether a part of a stream ends with it.
    pub(super) fn closes(&self) -> bool {
        self.planned.iter().any(|p| p.closes)
    }

    /// What it took until now, when it has been told; the step before it was told at `before`.
    pub(super) fn times(&self, exec: &Exec, ear: &dyn Ear, before: Option<Instant>) -> Times {
        let since = |at: Instant| before.map_or(at, |before| at.max(before));
        let waited = self.turned.map_or(Duration::ZERO, |t| t.waited());
        let decode = since(self.asked).elapsed();
        let spent = [self.front, self.encode.saturating_sub(waited), decode];
        let [front, encode, decode] = match ear.encoded_in() {
            // The codec's own time; what follows has waited for it unless it ran beside the step before.
            Some(took) if self.beside => [self.front, took, decode],
            Some(took) => [self.front, took, decode.saturating_sub(took)],
            None => phases(exec, spent, self.turned.is_some()),
        };
        Times { front, encode, decode, total: since(self.begun).elapsed() }
    }
}

/// How long front end, encoding and decoding took, of the time that the host spent on each. A device does what the host
/// waits for while it decodes or, where lanes take turns, before: what that took for the others is theirs.
fn phases(exec: &Exec, [front, encode, decode]: [Duration; 3], in_turn: bool) -> [Duration; 3] {
    let between = |from| exec.between(from, from + 1).unwrap_or_default();
    if in_turn {
        let encoded = between(1).min(encode);
        return [front + (encode - encoded), encoded, decode];
    }
    let made = between(0).min(decode);
    let encoded = between(1).min(decode - made);
    [front + made, encode + encoded, decode - made - encoded]
}
