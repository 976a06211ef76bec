//! The threads of a lane: an executor, and the cores they are kept on.

use std::thread::JoinHandle;

use voce_runtime::{Cores, Exec};

use crate::EngineError;
use crate::device::Place;

/// Threads by default at most: more only wait for each other.
const DEFAULT_THREADS: usize = 4;

/// Threads of a CPU when none are asked for.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(DEFAULT_THREADS)
}

/// An executor whose lane has not started yet.
pub(crate) struct Team {
    pub exec: Exec,
    cores: Option<Cores>,
}

impl Team {
    /// An executor that `make` makes, whose `threads` threads are kept on cores of their own if `pin` says so and
    /// there are enough.
    pub(crate) fn new(
        threads: usize,
        pin: bool,
        make: impl FnOnce() -> Result<Exec, EngineError>,
    ) -> Result<Self, EngineError> {
        let cores = if pin { Cores::take(threads) } else { None };
        let exec = match &cores {
            Some(cores) => cores.hold(make)?,
            None => make()?,
        };
        Ok(Self { exec, cores })
    }

    /// A team for a lane of `place`; `first` says whether it goes before others on a device.
    pub(crate) fn at(place: &Place, threads: usize, pin: bool, first: bool) -> Result<Self, EngineError> {
        Self::new(threads, pin, || place.exec_with(threads, first))
    }

    /// Starts a thread for the team, which `run` gets the executor of.
    pub(crate) fn spawn(
        self,
        name: &str,
        run: impl FnOnce(Exec) + Send + 'static,
    ) -> Result<JoinHandle<()>, EngineError> {
        let Self { exec, cores } = self;
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                if let Some(cores) = cores {
                    cores.pin_caller();
                }
                run(exec);
            })
            .map_err(|e| EngineError::Stopped(format!("cannot start a thread: {e}")))
    }
}
