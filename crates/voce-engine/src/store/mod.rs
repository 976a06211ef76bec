//! The model store: what a model reference stands for, where its files are, and how to fetch or remove them.
//!
//! Models live in the Hugging Face cache, so that files fetched by other programs are found and the other way
//! round. The user's own models and voices live in Voce's folder. Only `Store::pull` (feature `hub`) touches the network.

pub mod catalogue;
#[cfg(feature = "hub")]
mod digest;
#[cfg(feature = "hub")]
mod download;
mod error;
mod folder;
#[cfg(feature = "hub")]
mod hub;
mod identity;
mod installed;
#[cfg_attr(not(feature = "hub"), allow(dead_code))]
mod layout;
mod locate;
#[cfg(feature = "hub")]
mod partial;
#[cfg(feature = "hub")]
mod progress;
#[cfg(feature = "hub")]
mod pull;
mod reference;
mod remove;
#[cfg(feature = "hub")]
mod select;
#[cfg_attr(not(feature = "hub"), allow(dead_code))]
mod settings;
pub mod voices;

pub use catalogue::{Entry, Family, HubFile, Task};
pub use error::StoreError;
pub(crate) use folder::OWN_CONFIG;
#[cfg(feature = "hub")]
pub use hub::{MAX_FILES, MAX_JSON, MAX_REDIRECTS};
pub use identity::Identity;
pub use installed::{Installed, InstalledFile, Origin};
pub use locate::Located;
#[cfg(feature = "hub")]
pub use progress::{Cancel, Event};
#[cfg(feature = "hub")]
pub use pull::{DISK_RESERVE, PullOptions, PullVoices, Pulled, PulledFile};
pub use reference::{DEFAULT_REVISION, HubRef, MAX_REFERENCE, Reference, RepoId, is_commit};
pub use remove::Removed;
pub use settings::{DEFAULT_ENDPOINT, KEEP_PACKED, Patience, Settings, Token};

use std::path::PathBuf;
use std::sync::Arc;

use crate::breaker::{Breaker, BreakerRule};
use layout::RepoCache;
use voices::VoiceDir;

/// The model store of this machine.
#[derive(Debug, Clone)]
pub struct Store {
    settings: Settings,
    breaker: Arc<Breaker>,
}

impl Store {
    /// A store with these settings.
    pub fn new(settings: Settings) -> Self {
        Self::with_breaker(settings, BreakerRule::default())
    }

    /// A store whose breaker around the hub has this rule.
    pub fn with_breaker(settings: Settings, rule: BreakerRule) -> Self {
        Self { settings, breaker: Arc::new(Breaker::new("hub", rule)) }
    }

    /// The breaker around the hub; clones of a store share it.
    pub fn breaker(&self) -> &Arc<Breaker> {
        &self.breaker
    }

    /// The store that the environment describes.
    pub fn from_env() -> Result<Self, StoreError> {
        Settings::from_env().map(Self::new)
    }

    /// The store that the environment describes, but with Voce's own folder (its `models/`, `voices/` and `packed/`) here.
    pub fn at(voce_home: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let settings = Settings::from_env()?;
        Ok(Self::new(Settings { voce_home: voce_home.into(), ..settings }))
    }

    /// Where packed weights are kept.
    pub fn packed_dir(&self) -> PathBuf {
        self.settings.voce_home.join("packed")
    }

    /// The settings in use.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The folder of the user's own models.
    pub fn models_dir(&self) -> PathBuf {
        self.settings.voce_home.join("models")
    }

    /// The user's own voices.
    pub fn voices(&self) -> VoiceDir {
        VoiceDir::new(self.settings.voce_home.join("voices"))
    }

    fn repo(&self, repo: &RepoId) -> RepoCache {
        RepoCache::new(&self.settings.hub_cache, repo)
    }
}
