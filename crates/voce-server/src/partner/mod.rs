//! Models that hold conversations, as the server keeps them: opened, admitted to, counted and looked after as the other two
//! kinds are.

mod conversation;

use std::sync::Arc;
use std::time::Duration;

use voce_engine::stage::weight_bytes;
use voce_engine::talker::{TalkRequest, Talker};
use voce_engine::{EngineError, Pulse};

use crate::core::admission::{Gate, Room};
use crate::core::budget::{Budget, Share};
use crate::core::caller::Caller;
use crate::core::error::ServerError;
use crate::core::metrics::Kind;
use crate::core::models::{Kept, LoadError, Model, Open, Replicas, Served, Watched};
use crate::core::telemetry::Telemetry;
use conversation::Begun;

pub(crate) use conversation::{Conversation, Turn};

/// Opens a talker; called again when it has died.
pub type OpenTalker = Open<Talker>;

/// How a dialogue model is served.
pub struct PartnerOptions {
    /// Its name on the wire.
    pub id: String,
    /// Opens it, once for each device it is on; a conversation goes where the fewest are.
    pub open: Vec<OpenTalker>,
    /// Conversations at once.
    pub slots: usize,
    /// Conversations that may wait for a slot.
    pub queue: usize,
    /// How long a conversation waits for a slot.
    pub patience: Duration,
    /// Load it before the server is ready.
    pub preload: bool,
    /// Unload it when it has had no conversation for this long.
    pub keep_alive: Option<Duration>,
}

impl PartnerOptions {
    /// The usual settings for a model.
    pub fn new(id: impl Into<String>, slots: usize, open: OpenTalker) -> Self {
        let patience = Duration::from_secs(10);
        Self { id: id.into(), open: vec![open], slots, queue: 0, patience, preload: true, keep_alive: None }
    }
}

/// A dialogue model and its slots.
pub(crate) struct Partner {
    id: String,
    gate: Gate,
    budget: Arc<Budget>,
    telemetry: Telemetry,
    replicas: Replicas<Talker>,
}

impl Partner {
    pub(crate) fn new(options: PartnerOptions, budget: &Arc<Budget>, telemetry: &Telemetry) -> Self {
        let PartnerOptions { id, open, slots, queue, patience, preload, keep_alive } = options;
        let room = Room { slots, line: queue, patience };
        let gate = Gate::new(Kind::Dialogue, room, budget, telemetry.metrics.clone());
        let replicas = Replicas::new(&id, open, preload, keep_alive);
        Self { id, gate, budget: budget.clone(), telemetry: telemetry.clone(), replicas }
    }

    /// Refuses a caller who would find no slot now.
    pub(crate) fn check(&self) -> Result<(), ServerError> {
        self.gate.check()
    }

    /// A share of the decoders for the caller.
    pub(crate) fn decoder(&self) -> Result<Share, ServerError> {
        let share = self.budget.decoders.take(&Caller::current(), 1);
        share.map_err(|_| ServerError::Overloaded("decoders"))
    }

    /// Takes a slot and begins a conversation.
    pub(crate) async fn converse(
        self: &Arc<Self>,
        request: &TalkRequest,
    ) -> Result<Conversation, ServerError> {
        let permit = self.gate.enter().await?;
        let begin = |talker: Kept<Talker>| {
            let rate = talker.info().sample_rate as u32;
            let begun = talker.talk(request).map(|(audio, events)| Begun { audio, events, rate });
            async { begun }
        };
        let (begun, seat) = self.replicas.start(begin).await?;
        Ok(Conversation::new(self, begun, seat, permit))
    }

    /// Opens the model wherever it is to be from the start, and runs it once.
    pub(crate) async fn load(&self) -> Result<(), LoadError> {
        self.replicas.load().await
    }
}

impl Served for Partner {
    fn id(&self) -> &str {
        &self.id
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }

    fn replicas(&self) -> Option<&dyn Watched> {
        Some(&self.replicas)
    }
}

impl Model for Talker {
    fn pulse(&self) -> &Arc<Pulse> {
        self.pulse()
    }

    fn bytes(&self) -> usize {
        weight_bytes(&self.info().stages)
    }

    fn is_on_device(&self) -> bool {
        self.device().is_some()
    }

    fn warm(&self) -> Result<(), EngineError> {
        let (mut audio, mut events) = self.talk(&TalkRequest::default())?;
        // A sender that finds nobody learns why by the events.
        let _ = audio.push(&vec![0.0; self.info().frame_size]);
        drop(audio);
        events.try_for_each(|event| event.map(drop))
    }
}
