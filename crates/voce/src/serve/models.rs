//! The models of a server: which ones, how each is opened, and the paths that they have.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use voce_engine::listener::{Listener, ListenerOptions, MAX_BEAM};
use voce_engine::speaker::Overlap;
use voce_engine::store::Store;
use voce_engine::talker::{Talker, TalkerOptions};
use voce_engine::{DeviceChoice, Speaker, SpeakerOptions, UnknownDevice, describe};
use voce_nn::Precision;
use voce_runtime::cuda::Device;
use voce_server::ears::{EarOptions, Hears, NullEars, OpenListener};
use voce_server::mouth::{MouthOptions, OpenSpeaker};
use voce_server::partner::{OpenTalker, PartnerOptions};
use voce_server::{Models, Mount, Serves};

use super::moshi;
use super::settings::{Settings, pairs, seconds};
use crate::args::{ModelArgs, PrecisionArg};
use crate::console::Console;
use crate::device::{Switch, precision, tuning};
use crate::embedded;
use crate::failure::{Failure, Outcome};

/// Slots of a model when nobody says.
const SLOTS: usize = 8;
/// The same on a GPU, where a stream more costs little.
const DEVICE_SLOTS: usize = 64;
/// Conversations of a dialogue model when nobody says, and on a GPU: each has a long past.
const TALK_SLOTS: usize = 1;
const DEVICE_TALK_SLOTS: usize = 4;
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
    pub(super) talk: Vec<String>,
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
    let talk = settings.talk.clone();
    let has_modules = !settings.modules.list.is_empty();
    if speak.is_empty() && hear.is_empty() && talk.is_empty() && !settings.null_model && !has_modules {
        return Err(Failure::usage("there is nothing to serve: give --speak, --hear or --talk"));
    }
    pairs("voice-alias", &settings.voice_alias)?;
    Ok(Plan { speak, hear, talk })
}

/// Paths beside those that every server has.
pub(super) fn mounts(settings: &Settings) -> Vec<Mount> {
    let plain =
        |paths: &[String], serves| paths.iter().map(move |path| Mount::new(path, serves)).collect::<Vec<_>>();
    let mut mounts = plain(&settings.asr_path, Serves::Hearing);
    mounts.extend(plain(&settings.tts_path, Serves::Speech));
    mounts.extend(plain(&settings.talk_path, Serves::Dialogue));
    mounts.extend(moshi::open::mounts(&settings.modules));
    mounts
}

/// How every model of a server is opened.
pub(super) struct Manner<'a> {
    pub(super) store: &'a Store,
    settings: &'a Settings,
    devices: Vec<Option<Arc<Device>>>,
    queue: usize,
    patience: Duration,
    keep_warm: Option<Duration>,
    keep_alive: Option<Duration>,
}

impl<'a> Manner<'a> {
    fn new(store: &'a Store, settings: &'a Settings) -> Outcome<Self> {
        let devices =
            devices(settings)?.into_iter().map(DeviceChoice::open).collect::<Result<Vec<_>, _>>()?;
        tune(&devices, settings);
        let time = |text: &Option<String>| text.as_deref().map(seconds).transpose();
        Ok(Self {
            store,
            settings,
            devices,
            queue: settings.queue.unwrap_or(0),
            patience: time(&settings.queue_time)?.unwrap_or(PATIENCE),
            keep_warm: keep_warm(settings)?,
            keep_alive: time(&settings.keep_alive)?.filter(|d| !d.is_zero()),
        })
    }

    /// Slots of a model when nobody says: on the CPU, or on a device.
    fn slots(&self, cpu: usize, device: usize) -> usize {
        if self.devices.iter().any(Option::is_some) { device } else { cpu }
    }

    /// A model is on all devices, with a share of the slots on each.
    fn share(&self, slots: usize) -> usize {
        slots.div_ceil(self.devices.len())
    }

    /// The precision on a device: as the settings say, else as a model was published or asked for.
    fn precision(&self, device: Option<&Arc<Device>>, wanted: Option<PrecisionArg>) -> Precision {
        precision(self.settings.precision.or(wanted).unwrap_or(PrecisionArg::Auto), device)
    }

    /// A voice model under a name.
    pub(super) fn mouth(
        &self,
        id: String,
        reference: &str,
        slots: Option<usize>,
        wanted: Option<PrecisionArg>,
    ) -> Outcome<MouthOptions> {
        let settings = self.settings;
        let slots = slots.or(settings.speak_slots).unwrap_or_else(|| self.slots(SLOTS, DEVICE_SLOTS)).max(1);
        let mut opens = self.devices.iter().map(|device| {
            let spare = if self.devices.len() > 1 { SPARE } else { 0 };
            let options = SpeakerOptions::default()
                .with_precision(Some(self.precision(device.as_ref(), wanted)))
                .with_threads(settings.threads.unwrap_or(0))
                .with_slots(self.share(slots) + spare)
                .with_overlap(Overlap::Auto)
                .with_device(device.clone().into())
                .with_pin(settings.pin)
                .with_keep_warm(self.keep_warm);
            let (store, opened) = (self.store.clone(), reference.to_owned());
            Box::new(move || Speaker::open(&store, &opened, &options)) as OpenSpeaker
        });
        let open = opens.next().ok_or_else(|| Failure::usage("there is no device to run on"))?;
        let mut mouth = MouthOptions::new(id, open);
        mouth.open.extend(opens);
        mouth.slots = slots;
        mouth.queue = self.queue;
        mouth.patience = self.patience;
        mouth.preload = !settings.lazy;
        mouth.keep_alive = self.keep_alive;
        mouth.voice = settings.voice.clone();
        mouth.voice_aliases = pairs("voice-alias", &settings.voice_alias)?;
        Ok(mouth)
    }

    /// A recogniser under a name.
    pub(super) fn ear(
        &self,
        id: String,
        reference: &str,
        slots: Option<usize>,
        wanted: Option<PrecisionArg>,
    ) -> Outcome<EarOptions> {
        check_hearing(self.store, reference, &id, self.settings)?;
        let slots = self.ear_slots(slots);
        let opens = self.devices.iter().map(|device| {
            let options = ListenerOptions::default()
                .with_gain(!self.settings.no_hear_gain)
                .with_precision(Some(self.precision(device.as_ref(), wanted)))
                .with_threads(self.settings.threads.unwrap_or(0))
                .with_slots(self.share(slots) + SPARE)
                .with_device(device.clone().into())
                .with_pin(self.settings.pin)
                .with_keep_warm(self.keep_warm);
            let (store, opened) = (self.store.clone(), reference.to_owned());
            Box::new(move || Listener::open(&store, &opened, &options)) as OpenListener
        });
        let mut ear = self.ear_of(id, slots, Hears::Engine(opens.collect()));
        (ear.chunk_ms, ear.beam) = (self.settings.hear_chunk, self.settings.hear_beam);
        Ok(ear)
    }

    fn ear_slots(&self, slots: Option<usize>) -> usize {
        let slots = slots.or(self.settings.hear_slots);
        slots.unwrap_or_else(|| self.slots(SLOTS, DEVICE_SLOTS)).max(1)
    }

    fn ear_of(&self, id: String, slots: usize, hears: Hears) -> EarOptions {
        EarOptions {
            queue: self.queue,
            patience: self.patience,
            preload: !self.settings.lazy,
            keep_alive: self.keep_alive,
            ..EarOptions::new(id, slots, hears)
        }
    }

    /// A dialogue model under a name.
    pub(super) fn partner(
        &self,
        id: String,
        reference: &str,
        wanted: Option<PrecisionArg>,
    ) -> Outcome<PartnerOptions> {
        let settings = self.settings;
        let slots = settings.talk_slots.unwrap_or_else(|| self.slots(TALK_SLOTS, DEVICE_TALK_SLOTS)).max(1);
        let mut opens = self.devices.iter().map(|device| {
            let options = TalkerOptions::default()
                .with_precision(Some(self.precision(device.as_ref(), wanted)))
                .with_threads(settings.threads.unwrap_or(0))
                .with_slots(self.share(slots))
                .with_device(device.clone().into())
                .with_pin(settings.pin)
                .with_keep_warm(self.keep_warm);
            let (store, opened) = (self.store.clone(), reference.to_owned());
            Box::new(move || Talker::open(&store, &opened, &options)) as OpenTalker
        });
        let open = opens.next().ok_or_else(|| Failure::usage("there is no device to run on"))?;
        let mut partner = PartnerOptions::new(id, slots, open);
        partner.open.extend(opens);
        partner.queue = self.queue;
        partner.patience = self.patience;
        partner.preload = !settings.lazy;
        partner.keep_alive = self.keep_alive;
        Ok(partner)
    }

    /// Where a codec runs.
    pub(super) fn device(&self) -> Option<Arc<Device>> {
        self.devices.iter().flatten().next().cloned()
    }
}

/// Prepares the models to be opened, each once on every device.
pub(super) fn load(console: Console, store: &Store, settings: &Settings) -> Outcome<Models> {
    let plan = plan(store, settings)?;
    let manner = Manner::new(store, settings)?;
    let mut models = Models::default();
    for reference in plan.speak {
        models.mouths.push(manner.mouth(name(&reference), &reference, None, None)?);
    }
    for reference in plan.hear {
        let ear = manner.ear(name(&reference), &reference, None, None)?;
        console.note(&format!("loading {reference}"));
        models.ears.push(ear);
    }
    for reference in plan.talk {
        console.note(&format!("loading {reference}"));
        models.partners.push(manner.partner(name(&reference), &reference, None)?);
    }
    if settings.null_model {
        console.note("warning: the null model hears nothing; it is for benches of the server");
        let null = Hears::Other(Arc::new(NullEars));
        models.ears.push(manner.ear_of(NULL.to_owned(), manner.ear_slots(None), null));
    }
    moshi::open::load(console, &manner, &settings.modules, &mut models)?;
    Ok(models)
}

/// Refuses a chunk or a beam for every stream that a recogniser does not have.
pub(super) fn check_hearing(store: &Store, reference: &str, id: &str, settings: &Settings) -> Outcome {
    let Settings { hear_chunk, hear_beam, .. } = settings;
    if let Some(beam) = hear_beam.filter(|beam| !(1..=MAX_BEAM).contains(beam)) {
        return Err(Failure::usage(format!("--hear-beam {beam}: use 1 to {MAX_BEAM}")));
    }
    if hear_chunk.is_none() && hear_beam.is_none() {
        return Ok(());
    }
    let model = describe(store, reference)?;
    let chunks = model.values.get("chunks_ms").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(ms) = hear_chunk.filter(|ms| !chunks.contains(&(*ms).into())) {
        let has = chunks.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
        let has = if has.is_empty() { "whole utterances only".into() } else { format!("chunks of {has} ms") };
        return Err(Failure::usage(format!("--hear-chunk {ms}: {id} hears {has}")));
    }
    let has_beams = model.values.get("beams").is_some_and(|beams| *beams == true);
    match hear_beam.filter(|beam| *beam > 1 && !has_beams) {
        Some(beam) => Err(Failure::usage(format!("--hear-beam {beam}: {id} has no beams, leave it out"))),
        None => Ok(()),
    }
}

/// Where models run.
fn devices(settings: &Settings) -> Outcome<Vec<DeviceChoice>> {
    if settings.device.is_empty() {
        return Ok(vec![DeviceChoice::Auto]);
    }
    let named = |name: &String| name.parse().map_err(|e: UnknownDevice| Failure::usage(e.to_string()));
    settings.device.iter().map(named).collect()
}

/// Gives every device the switches that go with it, before anything is opened there.
fn tune(devices: &[Option<Arc<Device>>], settings: &Settings) {
    let tuning = tuning(
        settings.tf32.unwrap_or(Switch::On),
        settings.cuda_graphs.unwrap_or(Switch::On),
        settings.cuda_frames.unwrap_or(Switch::Off),
    );
    devices.iter().flatten().for_each(|device| device.tune(tuning));
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

/// A folder as a reference.
pub(super) fn reference_of(folder: &std::path::Path) -> String {
    folder.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use voce_runtime::cuda::Tuning;

    /// Models of all three kinds are opened on these very devices.
    #[test]
    fn switches_reach_every_device() {
        let plain = Tuning { tf32: true, graphs: true, frames: false, events: false };
        for (text, tuned) in [
            ("", plain),
            ("tf32 = 'off'\ncuda-frames = 'on'", Tuning { tf32: false, frames: true, ..plain }),
            ("cuda-graphs = false", Tuning { graphs: false, ..plain }),
        ] {
            let settings: Settings = toml::from_str(text).unwrap();
            let devices = [Some(Device::emulated().unwrap()), None, Some(Device::emulated().unwrap())];
            tune(&devices, &settings);
            assert!(devices.iter().flatten().all(|device| device.tuning() == tuned), "{text}");
        }
    }
}
