//! The model that does kept work, opened by the flags.

use voce_engine::listener::{Listener, ListenerOptions};
use voce_engine::store::Store;
use voce_engine::{Speaker, SpeakerOptions};
use voce_jobs::{Model, Task, revision};

use super::args::WorkModelArgs;
use crate::console::Console;
use crate::failure::Outcome;
use crate::{device, embedded, hear};

/// Units side by side on a CPU: more only cost memory.
const CPU_STREAMS: usize = 8;
/// Units side by side on a device, whose steps are hardly longer for many than for one.
const DEVICE_STREAMS: usize = 64;

/// An open model, and the revision that the names of results have of it.
pub(crate) struct Opened {
    pub(crate) model: Model,
    pub(crate) revision: String,
}

/// The language to tell the model, where the flag is no part of the model's name.
pub(crate) fn language(task: Task, args: &WorkModelArgs, store: &Store) -> Option<String> {
    match task {
        Task::Hear => args.model.language.clone(),
        Task::Say => args.model.spoken(store),
    }
}

/// Opens the model that the flags name, or the best that is here.
pub(crate) fn open(console: Console, task: Task, args: &WorkModelArgs) -> Outcome<Opened> {
    let store = Store::from_env()?;
    let device = args.device.open()?;
    let streams = match (args.streams, &device) {
        (Some(streams), _) => usize::from(streams),
        (None, Some(_)) => DEVICE_STREAMS,
        (None, None) => CPU_STREAMS,
    };
    let precision = Some(device::precision(args.precision, device.as_ref()));
    let (reference, model) = match task {
        Task::Hear => {
            let reference = hear::model::reference(&store, args.model.model.as_deref())?;
            let options = ListenerOptions::default()
                .with_precision(precision)
                .with_device(device.into())
                .with_threads(args.threads)
                .with_slots(streams)
                .with_pin(args.pin);
            let listener = Listener::open(&store, &reference, &options)?;
            (reference, Model::Ear(Box::new(listener)))
        }
        Task::Say => {
            let reference = args.model.reference(&store)?;
            let options = SpeakerOptions::default()
                .with_precision(precision)
                .with_device(device.into())
                .with_threads(args.threads)
                .with_slots(streams)
                .with_pin(args.pin);
            let speaker = Speaker::open(&store, &reference, &options)?;
            (reference, Model::Voice(Box::new(speaker)))
        }
    };
    if [embedded::EAR, embedded::VOICE].contains(&reference.as_str()) && args.model.model.is_none() {
        console
            .note(&format!("working with the small built-in {reference}: `voce pull` fetches larger models"));
    }
    let revision = format!("{}-{}", revision(&store, &reference)?, model.precision());
    Ok(Opened { model, revision })
}
