//! Keyword arguments that several classes take.

use std::path::PathBuf;

use pyo3::prelude::*;
use voce_engine::store::{Store, Task};
use voce_engine::{DeviceChoice, Precision};

use crate::failure;

/// Where a model comes from and where it runs, checked.
pub(crate) struct Place {
    pub(crate) store: Store,
    pub(crate) device: DeviceChoice,
    pub(crate) precision: Option<Precision>,
}

impl Place {
    /// `home` is Voce's own folder in place of the environment's.
    pub(crate) fn new(home: Option<PathBuf>, device: &str, precision: &str) -> PyResult<Self> {
        Ok(Self {
            store: store(home)?,
            device: device.parse().map_err(|e| failure::bad_request(format!("{e}")))?,
            precision: match precision {
                "auto" => None,
                other => Some(other.parse().map_err(|e| failure::bad_request(format!("{e}")))?),
            },
        })
    }

    /// The model to open for a task; a built-in one is laid out.
    pub(crate) fn reference(&self, task: Task, asked: Option<&str>) -> PyResult<String> {
        voce_nano::reference(&self.store, task, asked).map_err(failure::nano)
    }
}

/// The store of the environment, or with Voce's own folder elsewhere.
pub(crate) fn store(home: Option<PathBuf>) -> PyResult<Store> {
    match home {
        Some(home) => Store::at(home),
        None => Store::from_env(),
    }
    .map_err(failure::store)
}
