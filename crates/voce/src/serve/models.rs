//! The models of a server: which ones, and how each is opened.

use std::sync::Arc;
use std::time::Duration;

use voce_engine::listener::{Listener, ListenerOptions};
use voce_engine::speaker::Overlap;
use voce_engine::store::Store;
use voce_engine::{DeviceChoice, Speaker, SpeakerOptions, UnknownDevice};
use voce_runtime::cuda::Device;
use voce_server::Models;
use voce_server::ears::{EarOptions, Hears, NullEars, OpenListener};
use voce_server::mouth::{MouthOptions, OpenSpeaker};

use super::settings::{Settings, pairs, seconds};
use crate::args::{ModelArgs, PrecisionArg};
use crate::console::Console;
use crate::device::precision;
use crate::embedded;
use crate::failure::{Failure, Outcome};

/// Slots of a model when nobody says.
const SLOTS: usize = 8;
/// The same on a GPU, where a stream more costs little.
const DEVICE_SLOTS: usize = 64;
/// Streams beyond the slots, for those that start anew before the old one has gone.
const SPARE: usize = 4;
/// How long a request waits for a slot when nobody says.
const PATIENCE: Duration = Duration::from_secs(10);
/// Steps that keep an idle model warm come no more often than this.
const SOONEST_WARM: Duration = Duration::from_millis(10);
/// The name of the null model on the wire.
const NULL: &str = "null";

/// References of the models that are to be served.
pub(super) struct Plan {
    pub(super) speak: Vec<String>,
    pub(super) hear: Vec<String>,
}

/// Chooses the models, and sees that they are here.
pub(super) fn plan(store: &Store, settings: &Settings) -> Outcome<Plan> {
    let speak = if settings.no_speak {
        Vec::new()
    } else if settings.speak.is_empty() {
        vec![ModelArgs { model: None, language: None }.reference(store)?]
    } else {
        settings.speak.clone()
    };
    for reference in &speak {
        embedded::provide(store, reference)?;
        store.find(reference)?;
    }
    let hear = if settings.no_hear || settings.null_model {
        Vec::new()
    } else if settings.hear.is_empty() {
        // Without a recogniser the server speaks all the same.
        crate::hear::model::choose(store)?.into_iter().collect()
    } else {
        settings.hear.clone()
    };
    for reference in &hear {
        embedded::provide(store, reference)?;
    }
    if speak.is_empty() && hear.is_empty() && !settings.null_model {
        return Err(Failure::usage("there is nothing to serve: give --speak or --hear"));
    }
    pairs("voice-alias", &settings.voice_alias)?;
    Ok(Plan { speak, hear })
}

/// Slots of a model on a device, or on the CPU, when nobody says.
fn default_slots(device: Option<&Arc<Device>>) -> usize {
    if device.is_some() { DEVICE_SLOTS } else { SLOTS }
}

/// Prepares the models to be opened, each once on every device.
pub(super) fn load(console: Console, store: &Store, settings: &Settings) -> Outcome<Models> {
    let plan = plan(store, settings)?;
    let devices = devices(settings)?.into_iter().map(DeviceChoice::open).collect::<Result<Vec<_>, _>>()?;
    let precision = |device| precision(settings.precision.unwrap_or(PrecisionArg::Auto), device);
    let threads = settings.threads.unwrap_or(0);
    let queue = settings.queue.unwrap_or(0);
    let patience = settings.queue_time.as_deref().map(seconds).transpose()?.unwrap_or(PATIENCE);
    let keep_warm = keep_warm(settings)?;
    let keep_alive = settings.keep_alive.as_deref().map(seconds).transpose()?.filter(|d| !d.is_zero());
    let mut models = Models::default();
    let first = devices.iter().flatten().next();
    for reference in plan.speak {
        let slots = settings.speak_slots.unwrap_or(default_slots(first)).max(1);
        // A voice is on all of them, with a share of the slots on each.
        let mut opens = devices.iter().map(|device| {
            let options = SpeakerOptions::default()
                .with_precision(Some(precision(device.as_ref())))
                .with_threads(threads)
                .with_slots(slots.div_ceil(devices.len()) + if devices.len() > 1 { SPARE } else { 0 })
                .with_overlap(Overlap::Auto)
                .with_device(device.clone().into())
                .with_pin(settings.pin)
                .with_keep_warm(keep_warm);
            let (store, opened) = (store.clone(), reference.clone());
            Box::new(move || Speaker::open(&store, &opened, &options)) as OpenSpeaker
        });
        let open = opens.next().ok_or_else(|| Failure::usage("there is no device to run on"))?;
        let mut mouth = MouthOptions::new(name(&reference), open);
        mouth.open.extend(opens);
        mouth.slots = slots;
        mouth.queue = queue;
        mouth.patience = patience;
        mouth.preload = !settings.lazy;
        mouth.keep_alive = keep_alive;
        mouth.voice = settings.voice.clone();
        mouth.voice_aliases = pairs("voice-alias", &settings.voice_alias)?;
        models.mouths.push(mouth);
    }
    let slots = settings.hear_slots.unwrap_or(default_slots(first)).max(1);
    let ear = |id, hears| EarOptions { queue, patience, ..EarOptions::new(id, slots, hears) };
    for reference in plan.hear {
        console.note(&format!("loading {reference}"));
        // A recogniser is on all of them, with a share of the slots on each.
        let opens = devices.iter().map(|device| {
            let options = ListenerOptions::default()
                .with_precision(Some(precision(device.as_ref())))
                .with_threads(threads)
                .with_slots(slots.div_ceil(devices.len()) + SPARE)
                .with_device(device.clone().into())
                .with_pin(settings.pin)
                .with_keep_warm(keep_warm);
            let (store, opened) = (store.clone(), reference.clone());
            Box::new(move || Listener::open(&store, &opened, &options)) as OpenListener
        });
        models.ears.push(ear(name(&reference), Hears::Engine(opens.collect())));
    }
    if settings.null_model {
        console.note("warning: the null model hears nothing; it is for benches of the server");
        models.ears.push(ear(NULL.to_owned(), Hears::Other(Arc::new(NullEars))));
    }
    Ok(models)
}

/// Where models run.
fn devices(settings: &Settings) -> Outcome<Vec<DeviceChoice>> {
    if settings.device.is_empty() {
        return Ok(vec![DeviceChoice::Auto]);
    }
    let named = |name: &String| name.parse().map_err(|e: UnknownDevice| Failure::usage(e.to_string()));
    settings.device.iter().map(named).collect()
}

/// How often an idle model is stepped.
pub(super) fn keep_warm(settings: &Settings) -> Outcome<Option<Duration>> {
    match settings.keep_warm.as_deref() {
        None | Some("off") => Ok(None),
        Some(text) => {
            let time = seconds(text)?;
            if time < SOONEST_WARM {
                return Err(Failure::usage(format!("--keep-warm {text}: use 10ms or more, or off")));
            }
            Ok(Some(time))
        }
    }
}

/// A reference's name on the wire: a folder's or file's own name, others as they are.
fn name(reference: &str) -> String {
    let path = std::path::Path::new(reference);
    let own = path.file_stem().and_then(|n| n.to_str()).filter(|_| path.exists());
    own.unwrap_or(reference).to_owned()
}
