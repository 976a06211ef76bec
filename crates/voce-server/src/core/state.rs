//! What every handler sees: models, settings, keys, counters, and how far the shutdown has come.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use voce_engine::store::Store;

use super::auth::Keys;
use super::budget::Budget;
use super::drain::Drain;
use super::error::ServerError;
use super::metrics::Metrics;
use super::mounts::Mounts;
use super::query::short;
use super::server::ServerOptions;
use super::telemetry::Telemetry;
use crate::core::models::Served;
use crate::ears::{Ear, EarOptions};
use crate::handover::Handover;
use crate::jobs::Jobs;
use crate::moshi::rooms::{Rooms, RoomsOptions};
use crate::mouth::{Mouth, MouthOptions};
use crate::partner::{Partner, PartnerOptions};

/// The models of a server, of all three kinds; the first voice and the first recogniser are the defaults.
#[derive(Default)]
pub struct Models {
    /// Voices.
    pub mouths: Vec<MouthOptions>,
    /// Recognisers.
    pub ears: Vec<EarOptions>,
    /// Models that hold conversations.
    pub partners: Vec<PartnerOptions>,
    /// Rooms.
    pub rooms: Vec<RoomsOptions>,
}

/// Shared by all handlers.
#[derive(Clone)]
pub(crate) struct AppState(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) options: ServerOptions,
    pub(crate) loopback: bool,
    pub(crate) keys: Keys,
    pub(crate) budget: Arc<Budget>,
    pub(crate) metrics: Metrics,
    pub(crate) telemetry: Telemetry,
    pub(crate) drain: Drain,
    /// Streams that move, where the server is set up for it.
    pub(crate) handover: Option<Arc<Handover>>,
    pub(crate) store: Store,
    pub(crate) mouths: Vec<Arc<Mouth>>,
    pub(crate) ears: Vec<Arc<Ear>>,
    pub(crate) partners: Vec<Arc<Partner>>,
    rooms: Vec<Arc<Rooms>>,
    /// Jobs, where the server keeps any.
    pub(crate) jobs: Option<Jobs>,
    pub(crate) mounts: Mounts,
    open: HashSet<String>,
}

impl Deref for AppState {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl AppState {
    pub(crate) fn new(
        options: ServerOptions,
        models: Models,
        mounts: Mounts,
        jobs: Option<Jobs>,
        store: Store,
        loopback: bool,
    ) -> Result<Self, ServerError> {
        let telemetry = Telemetry::new(&options);
        let metrics = telemetry.metrics.clone();
        let budget = Arc::new(Budget::new(options.limits.clone(), options.keys.len()));
        let mouth = |m| Arc::new(Mouth::new(m, &store, &budget, telemetry.clone()));
        let ear = |e| Arc::new(Ear::new(e, &budget, telemetry.clone()));
        let mouths: Vec<_> = models.mouths.into_iter().map(mouth).collect();
        let ears: Vec<_> = models.ears.into_iter().map(ear).collect();
        let partner = |p| Arc::new(Partner::new(p, &budget, &telemetry));
        let partners = models.partners.into_iter().map(partner).collect();
        let table = super::routes::table();
        let mut open: HashSet<String> = table.iter().filter(|r| r.open).map(|r| r.path.to_owned()).collect();
        open.extend(mounts.iter().filter(|m| m.open).map(|m| m.path.clone()));
        if mounts.iter().any(|m| !m.listed.is_empty()) {
            // Who reads moshi-server's modules has no key there.
            open.insert("/api/modules_info".into());
        }
        if options.open_metrics {
            open.insert("/metrics".into());
        }
        let rooms = models.rooms.into_iter().map(|r| Rooms::new(r, &budget).map(Arc::new));
        let rooms = rooms.collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(Inner {
            loopback,
            keys: Keys::new(&options.keys),
            drain: Drain::default(),
            handover: options.handover.clone().map(|h| Arc::new(Handover::new(h, metrics.clone()))),
            mouths,
            ears,
            partners,
            budget,
            store,
            metrics,
            telemetry,
            options,
            mounts,
            jobs,
            rooms,
            open,
        })))
    }

    /// Every model, whatever it does.
    pub(crate) fn served(&self) -> impl Iterator<Item = &dyn Served> {
        let mouths = self.mouths.iter().map(|m| &**m as &dyn Served);
        let ears = self.ears.iter().map(|e| &**e as &dyn Served);
        mouths.chain(ears).chain(self.partners.iter().map(|p| &**p as &dyn Served))
    }

    /// Whether a route needs no key.
    pub(crate) fn is_open(&self, path: &str) -> bool {
        self.open.contains(path)
    }

    /// The model that a configuration has given a path to.
    pub(crate) fn mounted(&self, path: &str) -> Option<&str> {
        self.mounts.get(path)?.model.as_deref()
    }

    /// `ok`, or why new work is not welcome.
    pub(crate) fn readiness(&self) -> &'static str {
        if self.drain.is_draining() {
            "draining"
        } else if self.served().any(|m| !m.is_ready()) {
            "loading"
        } else if super::vigil::is_stuck(self) {
            "stuck"
        } else {
            "ok"
        }
    }

    /// Refuses an upgrade for which there is no slot now, where the server is set up to; else the socket is told.
    pub(crate) fn before_upgrade(&self, slot: Result<(), ServerError>) -> Result<(), ServerError> {
        match slot {
            Err(ServerError::Busy { what, slots }) if self.options.refuse_upgrades => {
                Err(ServerError::Full { what, slots })
            }
            _ => Ok(()),
        }
    }

    /// The voice model of a name or alias; the first where no name is given.
    pub(crate) fn mouth(&self, name: Option<&str>) -> Result<&Arc<Mouth>, ServerError> {
        let first = self.mouths.first().ok_or(ServerError::NoModel("voice model"))?;
        let Some(name) = name.filter(|n| !n.is_empty()) else { return Ok(first) };
        let name = self.unalias(name);
        let found = self.mouths.iter().find(|m| m.id() == name);
        let found = found.or_else(|| SPEECH_ALIASES.contains(&name).then_some(first));
        found.ok_or_else(|| unknown(name, self.mouths.iter().map(|m| m.id()).chain(SPEECH_ALIASES)))
    }

    /// The recogniser of a name or alias; the first where no name is given.
    pub(crate) fn ear(&self, name: Option<&str>) -> Result<&Arc<Ear>, ServerError> {
        let first = self.ears.first().ok_or(ServerError::NoModel("recogniser"))?;
        let Some(name) = name.filter(|n| !n.is_empty()) else { return Ok(first) };
        let name = self.unalias(name);
        let found = self.ears.iter().find(|m| m.id() == name);
        let found = found.or_else(|| HEARING_ALIASES.contains(&name).then_some(first));
        found.ok_or_else(|| unknown(name, self.ears.iter().map(|m| m.id()).chain(HEARING_ALIASES)))
    }

    /// The dialogue model of a name or alias; the first where no name is given.
    pub(crate) fn partner(&self, name: Option<&str>) -> Result<&Arc<Partner>, ServerError> {
        let first = self.partners.first().ok_or(ServerError::NoModel("dialogue model"))?;
        let Some(name) = name.filter(|n| !n.is_empty()) else { return Ok(first) };
        let name = self.unalias(name);
        let found = self.partners.iter().find(|p| p.id() == name);
        found.ok_or_else(|| unknown(name, self.partners.iter().map(|p| p.id())))
    }

    /// All rooms.
    pub(crate) fn all_rooms(&self) -> &[Arc<Rooms>] {
        &self.rooms
    }

    /// Rooms by their name among the models; the first where no name is given.
    pub(crate) fn rooms(&self, name: Option<&str>) -> Result<&Arc<Rooms>, ServerError> {
        let found = self.rooms.iter().find(|r| name.is_none_or(|name| r.id() == name));
        found.ok_or(ServerError::NoModel("room"))
    }

    /// What an alias of the settings stands for.
    fn unalias<'a>(&'a self, name: &'a str) -> &'a str {
        self.options.aliases.iter().find(|(alias, _)| alias == name).map_or(name, |(_, model)| model)
    }
}

/// Names of OpenAI's voice models, which stand for the first one here.
pub(crate) const SPEECH_ALIASES: [&str; 3] = ["tts-1", "tts-1-hd", "gpt-4o-mini-tts"];
/// Names of OpenAI's recognisers, which stand for the first one here.
pub(crate) const HEARING_ALIASES: [&str; 6] = [
    "whisper-1",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-transcribe",
    "gpt-live-transcribe",
    "gpt-realtime-whisper",
];

fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> ServerError {
    ServerError::UnknownModel { name: short(name), known: known.collect::<Vec<_>>().join(", ") }
}
