//! Models on this machine, and fetching more of them.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

use pyo3::prelude::*;
use voce_engine::store::{Cancel, PullOptions, Reference};

use crate::interrupt::LOOK;
use crate::{failure, options};

/// A model's reference, what it does where that is known, and its size.
type Row = (String, Option<&'static str>, u64);

/// The models that are here: those that were pulled, the user's own, and those that the package carries.
#[pyfunction]
#[pyo3(signature = (store=None))]
pub(crate) fn installed(py: Python<'_>, store: Option<PathBuf>) -> PyResult<Vec<Row>> {
    py.detach(|| {
        let store = options::store(store)?;
        let mut rows: Vec<Row> =
            voce_nano::all().iter().map(|m| (m.name.to_owned(), Some(m.task.name()), m.bytes())).collect();
        let others = store.list().into_iter().filter(|m| voce_nano::behind(m).is_none() && m.is_complete());
        rows.extend(others.map(|m| (m.id, m.task.map(|t| t.name()), m.bytes)));
        Ok(rows)
    })
}

/// Fetches what is missing of a model, and returns the bytes fetched. Ctrl-C stops it; the next call goes on.
#[pyfunction]
#[pyo3(signature = (model, store=None))]
pub(crate) fn pull(py: Python<'_>, model: &str, store: Option<PathBuf>) -> PyResult<u64> {
    let reference = Reference::parse(model).map_err(failure::store)?;
    let store = options::store(store)?;
    py.detach(|| {
        let cancel = Cancel::new();
        let (done, result) = sync_channel(1);
        std::thread::scope(|scope| {
            let (store, reference, switch) = (&store, &reference, &cancel);
            scope.spawn(move || {
                let _ = done.send(store.pull(reference, &PullOptions::default(), switch, &mut |_| {}));
            });
            loop {
                match result.recv_timeout(LOOK) {
                    Ok(pulled) => return pulled.map(|p| p.fetched_bytes).map_err(failure::store),
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(raised) = Python::attach(|py| py.check_signals()) {
                            cancel.cancel();
                            return Err(raised);
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(failure::error("internal", "a fault of the program"));
                    }
                }
            }
        })
    })
}
