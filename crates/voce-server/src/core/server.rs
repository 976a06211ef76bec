//! A server from its options to its end.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use tokio::net::TcpListener;
use voce_engine::EngineError;
use voce_engine::store::Store;

use super::aside::{self, Boxed, Work};
use super::journal::JournalOptions;
use super::limits::Limits;
use super::lobby::Lobby;
use super::models::{LoadError, Served as _};
use super::mounts::{Mount, MountError, Mounts};
use super::otlp::OtlpOptions;
use super::state::{AppState, Models};
use super::{accept, agent, limits, routes, vigil};
use crate::handover::HandoverOptions;
use crate::jobs::{Jobs, JobsOptions};

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens; port 0 takes any.
    pub addr: SocketAddr,
    /// Keys that are accepted; none means that no key is needed.
    pub keys: Vec<String>,
    /// Origins whose pages may call it; `*` for all.
    pub cors: Vec<String>,
    /// Names beside localhost by which a loopback server may be called.
    pub hosts: Vec<String>,
    /// Whether `/metrics` needs no key.
    pub open_metrics: bool,
    /// Other names of models.
    pub aliases: Vec<(String, String)>,
    /// Limits.
    pub limits: Limits,
    /// Where Wyoming listens, if at all.
    pub wyoming: Option<SocketAddr>,
    /// Where load balancers are told how much room there is, if anywhere.
    pub agent: Option<SocketAddr>,
    /// Whether a WebSocket for which no slot is free is answered with 503 instead of an upgrade, so that a proxy can try
    /// another machine.
    pub refuse_upgrades: bool,
    /// Whether clients may add and remove voices.
    pub voice_changes: bool,
    /// Further paths, each with the model that answers there.
    pub mounts: Vec<Mount>,
    /// Folder of files for paths that no route has; none are read where absent.
    pub static_dir: Option<PathBuf>,
    /// Where spans go, if anywhere.
    pub otlp: Option<OtlpOptions>,
    /// What is kept of streams.
    pub journal: JournalOptions,
    /// How streams move to other machines, if they do.
    pub handover: Option<HandoverOptions>,
    /// Where jobs are kept, if anywhere.
    pub jobs: Option<JobsOptions>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            keys: Vec::new(),
            cors: Vec::new(),
            hosts: Vec::new(),
            open_metrics: false,
            aliases: Vec::new(),
            limits: Limits::default(),
            wyoming: None,
            agent: None,
            refuse_upgrades: false,
            voice_changes: true,
            mounts: Vec::new(),
            static_dir: None,
            otlp: None,
            journal: JournalOptions::default(),
            handover: None,
            jobs: None,
        }
    }
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be had.
    #[error("cannot listen on {addr}: {source}: choose another --port, or stop who has it")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// The system's word.
        source: std::io::Error,
    },
    /// A path cannot be had.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Something cannot be set up.
    #[error("{0}")]
    Set(String),
    /// A model cannot be loaded.
    #[error("model '{id}': {source}")]
    Model {
        /// Which.
        id: String,
        /// Why.
        source: Arc<EngineError>,
    },
}

/// How a server came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to stop, and has drained.
    Stopped,
    /// Only a new process can mend what is wrong with a model: the text says what it is. A supervisor should start one.
    Broken(String),
}

/// A server that listens and has not begun to answer.
pub struct Server {
    lobby: Lobby,
    wyoming: Option<TcpListener>,
    agent: Option<TcpListener>,
    state: AppState,
    echoes: bool,
}

impl Server {
    /// Takes the address. Models are loaded by [`Server::load`] or when they are first needed.
    pub async fn bind(options: ServerOptions, models: Models, store: Store) -> Result<Self, ServeError> {
        Self::within(Lobby::open(options.addr).await?, options, models, store).await
    }

    /// A server at the address that a lobby has taken.
    pub fn within(
        lobby: Lobby,
        options: ServerOptions,
        models: Models,
        store: Store,
    ) -> Boxed<'static, Result<Self, ServeError>> {
        Box::pin(async move {
            let wyoming = listen(options.wyoming).await?;
            let agent = listen(options.agent).await?;
            let loopback = options.addr.ip().is_loopback();
            if !loopback && options.keys.is_empty() {
                tracing::warn!(addr = %options.addr, "anyone who reaches this address can use the server: set an API key");
            }
            if let Some(addr) = options.wyoming.filter(|a| !a.ip().is_loopback()) {
                tracing::warn!(%addr, "anyone who reaches this address can use Wyoming, which has no keys");
            }
            let mounts = Mounts::new(&options.mounts)?;
            let jobs = match &options.jobs {
                Some(jobs) => Some(Jobs::open(jobs, &options.limits).await.map_err(ServeError::Set)?),
                None => None,
            };
            let state = AppState::new(options, models, mounts, jobs, store, loopback)
                .map_err(|e| ServeError::Set(e.to_string()))?;
            Ok(Self { lobby, wyoming, agent, state, echoes: false })
        })
    }

    /// Opens `/echo`, which says back what it hears, for suites that test the WebSocket layer.
    #[doc(hidden)]
    pub fn with_echo(mut self) -> Self {
        self.echoes = true;
        self
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.lobby.addr()
    }

    /// Where Wyoming listens.
    pub fn wyoming_addr(&self) -> Option<SocketAddr> {
        self.wyoming.as_ref().and_then(|l| l.local_addr().ok())
    }

    /// Where load balancers are told how much room there is.
    pub fn agent_addr(&self) -> Option<SocketAddr> {
        self.agent.as_ref().and_then(|l| l.local_addr().ok())
    }

    /// Loads the models that are to be there from the start, and runs each once; clients are told to wait.
    pub fn load(&self) -> Boxed<'_, Result<(), ServeError>> {
        Box::pin(async move {
            let failed = |id: &str| {
                let id = id.to_owned();
                move |source: LoadError| ServeError::Model { id, source }
            };
            let all = async {
                for mouth in &self.state.mouths {
                    mouth.load().await.map_err(failed(mouth.id()))?;
                }
                for ear in &self.state.ears {
                    ear.load().await.map_err(failed(ear.id()))?;
                }
                for partner in &self.state.partners {
                    partner.load().await.map_err(failed(partner.id()))?;
                }
                for rooms in self.state.all_rooms() {
                    let (id, opened) = (rooms.id().to_owned(), rooms.clone());
                    let loaded = aside::wait(move || opened.load()).await;
                    loaded.unwrap_or(Err(EngineError::Broken)).map_err(Arc::new).map_err(failed(&id))?;
                }
                Ok(())
            };
            self.lobby.wait(all).await
        })
    }

    /// Answers until `stop`, or until only a new process can mend a model; then drains.
    pub fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Boxed<'static, Ended> {
        self.answer(Box::pin(stop))
    }

    fn answer(self, stop: Work) -> Boxed<'static, Ended> {
        Box::pin(async move {
            let Self { lobby, wyoming, agent, state, echoes } = self;
            let broken = Arc::<OnceLock<String>>::default();
            let end = aside::spawn({
                let (state, broken) = (state.clone(), broken.clone());
                async move {
                    let drain = state.options.limits.drain;
                    tokio::select! {
                        () = stop => {
                            tracing::info!("draining");
                            state.drain.begin(drain);
                        }
                        incurable = vigil::watch(state.clone()) => {
                            tracing::error!(error = incurable.0, "only a new process can mend this: draining");
                            let _ = broken.set(incurable.0);
                            state.drain.begin(drain.min(limits::LAST_DRAIN));
                        }
                    }
                }
            });
            let router = routes::router(state.clone(), echoes);
            if let Some(wyoming) = wyoming {
                aside::spawn(crate::wyoming::run(wyoming, state.clone()));
            }
            if let Some(handover) = state.handover.clone() {
                let (drain, session) = (state.drain.clone(), state.drain.clone());
                aside::spawn(async move {
                    drain.begun().await;
                    // The server waits for it as for a session.
                    let _session = session.session();
                    handover.forward().await;
                });
            }
            let agent = agent.map(|listener| aside::spawn(agent::run(listener, state.clone())));
            let (telemetry, drain) = (state.telemetry.clone(), state.drain.clone());
            if let (Some(Jobs::Folder(folder)), Some(options)) = (&state.jobs, &state.options.jobs) {
                aside::spawn(crate::jobs::run(state.clone(), folder.clone(), options.clone()));
            }
            accept::run(lobby.listener, router, state).await;
            end.abort();
            // Its port is free when the server has gone, however early that is.
            drain.end();
            if let Some(agent) = agent {
                let _ = agent.await;
            }
            telemetry.flush().await;
            broken.get().cloned().map_or(Ended::Stopped, Ended::Broken)
        })
    }
}

/// Takes a further address, where one is asked for.
async fn listen(addr: Option<SocketAddr>) -> Result<Option<TcpListener>, ServeError> {
    let Some(addr) = addr else { return Ok(None) };
    TcpListener::bind(addr).await.map(Some).map_err(|source| ServeError::Bind { addr, source })
}
