//! A voice model at one place: loaded, unloaded, and loaded again when its thread has died.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use voce_engine::{Speaker, Voice};

use super::{OpenSpeaker, lock};
use crate::core::vigil::Backoff;

/// A model of which there may be several, each on a device of its own.
pub(super) struct Part {
    pub(super) open: OpenSpeaker,
    held: RwLock<Option<Arc<Speaker>>>,
    pub(super) loading: tokio::sync::Mutex<()>,
    pub(super) voices: Mutex<HashMap<String, Voice>>,
    /// Whether its model died and has not been loaded again.
    pub(super) dead: AtomicBool,
    was_loaded: AtomicBool,
    pub(super) backoff: Backoff,
    /// Requests that it speaks for.
    live: Arc<AtomicUsize>,
}

impl Part {
    pub(super) fn new(open: OpenSpeaker) -> Self {
        Self {
            open,
            held: RwLock::new(None),
            loading: tokio::sync::Mutex::new(()),
            voices: Mutex::default(),
            dead: AtomicBool::new(false),
            was_loaded: AtomicBool::new(false),
            backoff: Backoff::default(),
            live: Arc::default(),
        }
    }

    pub(super) fn present(&self) -> Option<Arc<Speaker>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a request would find the model, or may load it.
    pub(super) fn is_ready(&self, preload: bool) -> bool {
        let loaded = self.was_loaded.load(Ordering::Relaxed) || !preload;
        let lives = self.present().is_none_or(|s| s.pulse().is_alive());
        loaded && lives && !self.dead.load(Ordering::Relaxed)
    }

    pub(super) fn hold(&self, speaker: Arc<Speaker>) {
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = Some(speaker);
        self.was_loaded.store(true, Ordering::Relaxed);
    }

    pub(super) fn drop_model(&self) {
        let speaker = self.held.write().unwrap_or_else(PoisonError::into_inner).take();
        lock(&self.voices).clear();
        // Joining the model's threads may take a frame: not on a network thread.
        if let Some(speaker) = speaker {
            std::thread::spawn(move || drop(speaker));
        }
    }

    pub(super) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }
}

/// Where a request is spoken; it counts there until it is dropped.
pub(super) struct Place {
    pub(super) part: usize,
    live: Arc<AtomicUsize>,
}

impl Place {
    pub(super) fn new(part: usize, at: &Part) -> Self {
        at.live.fetch_add(1, Ordering::Relaxed);
        Self { part, live: at.live.clone() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}
