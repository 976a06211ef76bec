//! `voce voice`: clone, keep, list, remove and export voices.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};
use voce_engine::store::Store;
use voce_engine::{Speaker, SpeakerOptions, describe};

use crate::args::{CloneArgs, ModelArgs, VoiceCommand};
use crate::console::{Console, bytes, table};
use crate::failure::{Failure, Outcome};
use crate::{device, interrupt, whole_file};

/// The metadata key that names the model a voice was made for.
const MODEL_KEY: &str = "voce_model";
/// Bytes of a voice's header that are looked at.
const MAX_HEADER: u64 = 1 << 20;

/// Runs the command.
pub(crate) fn run(console: Console, command: VoiceCommand) -> Outcome {
    let store = Store::from_env()?;
    match command {
        VoiceCommand::Add { name, clip, text, how } => {
            add(console, &store, &name, &clip, text.as_deref(), &how)
        }
        VoiceCommand::List { model } => list(console, &store, &model),
        VoiceCommand::Rm { names } => remove(console, &store, &names),
        VoiceCommand::Export { source, out, how } => export(console, &store, &source, &out, &how),
    }
}

fn add(
    console: Console,
    store: &Store,
    name: &str,
    clip: &Path,
    text: Option<&str>,
    how: &CloneArgs,
) -> Outcome {
    let voices = store.voices();
    let path = voices.path(name)?;
    let made = clone(console, store, clip, text, how)?;
    voices.create()?;
    whole_file::write(&path, &made)?;
    if console.json {
        return console.json(&json!({
            "name": name, "path": path, "bytes": made.len(), "model": how.model.reference(store)?,
        }));
    }
    console.note(&format!(
        "voice '{name}' is ready ({}): voce say --voice {name} ...",
        bytes(made.len() as u64)
    ));
    Ok(())
}

/// The bytes of a voice cloned from an audio file, or read from a voice file and checked against the model.
fn clone(
    console: Console,
    store: &Store,
    clip: &Path,
    text: Option<&str>,
    how: &CloneArgs,
) -> Outcome<Vec<u8>> {
    if !clip.is_file() {
        return Err(Failure::failed(format!(
            "no such file: {}: give a clip or a voice file",
            clip.display()
        )));
    }
    let reference = how.model.reference(store)?;
    let device = how.device.open()?;
    let options = SpeakerOptions::default()
        .with_precision(Some(device::precision(how.precision, device.as_ref())))
        .with_device(device.into())
        .with_threads(how.threads)
        .with_slots(1);
    let progress = console.progress();
    progress.set_message("loading the model");
    let speaker = Speaker::open(store, &reference, &options)?;
    interrupt::check()?;
    progress.set_message("listening to the clip");
    let voice = if clip.extension().is_some_and(|e| e == "safetensors") {
        // A path with a separator is never taken for a name.
        let path = std::path::absolute(clip).unwrap_or_else(|_| clip.to_owned());
        speaker.voice(&path.display().to_string())?
    } else {
        speaker.clone_voice(clip, text)?
    };
    interrupt::check()?;
    progress.finish_and_clear();
    with_metadata(&speaker.voice_bytes(&voice)?, MODEL_KEY, &lasting(&reference))
}

/// A reference that still means the same in another folder.
fn lasting(reference: &str) -> String {
    let path = Path::new(reference);
    match std::path::absolute(path) {
        Ok(absolute) if path.exists() => absolute.display().to_string(),
        _ => reference.to_owned(),
    }
}

/// One voice in a list.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    from: &'static str,
    model: Option<String>,
    bytes: u64,
    path: PathBuf,
}

fn list(console: Console, store: &Store, model: &ModelArgs) -> Outcome {
    let mut voices: Vec<Listed> = store
        .voices()
        .list()
        .into_iter()
        .map(|v| Listed {
            model: metadata(&v.path, MODEL_KEY),
            name: v.name,
            from: "yours",
            bytes: v.bytes,
            path: v.path,
        })
        .collect();
    let reference = model.reference(store)?;
    match store.find(&reference) {
        Ok(found) => voices.extend(found.voices.into_iter().map(|(name, path)| Listed {
            name,
            from: "model",
            model: Some(reference.clone()),
            bytes: std::fs::metadata(&path).map_or(0, |m| m.len()),
            path,
        })),
        // Without a model on this machine there are only the user's own voices.
        Err(error) => console.note(&format!("no voices of a model: {error}")),
    }
    // Speakers that are part of a model's weights have no files.
    let speakers = describe(store, &reference).map(|model| model.values.get("speakers").cloned());
    for name in speakers.ok().flatten().iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str)
    {
        let (name, model, path) = (name.to_owned(), Some(reference.clone()), PathBuf::new());
        voices.push(Listed { name, from: "model", model, bytes: 0, path });
    }
    if console.json {
        return console.json(&voices);
    }
    if voices.is_empty() {
        console.note("no voices yet: voce voice add NAME clip.wav");
        return Ok(());
    }
    let mut rows = vec![["NAME", "FROM", "SIZE", "MODEL"].map(str::to_owned).to_vec()];
    rows.extend(
        voices.into_iter().map(|v| vec![v.name, v.from.into(), bytes(v.bytes), v.model.unwrap_or_default()]),
    );
    console.result(&table(&rows, &[2]))
}

fn remove(console: Console, store: &Store, names: &[String]) -> Outcome {
    for name in names {
        store.voices().remove(name)?;
        console.note(&format!("removed voice '{name}'"));
    }
    if console.json { console.json(&json!({"removed": names})) } else { Ok(()) }
}

fn export(console: Console, store: &Store, source: &str, out: &Path, how: &CloneArgs) -> Outcome {
    let reference = how.model.reference(store)?;
    let ready = match store.voices().find(source) {
        Ok(path) => Some(path),
        Err(_) => store.find(&reference).ok().and_then(|found| found.voices.get(source).cloned()),
    };
    let bytes = match ready {
        Some(path) => std::fs::read(&path)
            .map_err(|e| Failure::failed(format!("cannot read {}: {e}", path.display())))?,
        None if Path::new(source).is_file() => clone(console, store, source.as_ref(), None, how)?,
        None => {
            let mut known: Vec<String> = store.voices().list().into_iter().map(|v| v.name).collect();
            if let Ok(found) = store.find(&reference) {
                known.extend(found.voices.into_keys());
            }
            let known = if known.is_empty() { "none yet".to_owned() } else { known.join(", ") };
            return Err(Failure::usage(format!(
                "unknown voice '{source}', and no file of that name: known voices are {known}"
            )));
        }
    };
    whole_file::write(out, &bytes)?;
    if console.json {
        return console.json(&json!({"source": source, "path": out, "bytes": bytes.len()}));
    }
    console.note(&format!("wrote {}", out.display()));
    Ok(())
}

/// A safetensors file with one more entry in its metadata; its tensors stay as they are.
fn with_metadata(file: &[u8], key: &str, value: &str) -> Outcome<Vec<u8>> {
    let broken = || Failure::failed("the voice that was made is not a safetensors file: please report this");
    let length = file.first_chunk::<8>().map(|b| u64::from_le_bytes(*b)).ok_or_else(broken)?;
    let end = usize::try_from(length).ok().and_then(|n| n.checked_add(8)).ok_or_else(broken)?;
    let header = file.get(8..end).ok_or_else(broken)?;
    let mut header: Map<String, Value> = serde_json::from_slice(header).map_err(|_| broken())?;
    let metadata = header.entry("__metadata__").or_insert_with(|| json!({}));
    metadata.as_object_mut().ok_or_else(broken)?.insert(key.into(), value.into());
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    out.extend(&file[end..]);
    Ok(out)
}

/// An entry of a safetensors file's metadata.
fn metadata(path: &Path, key: &str) -> Option<String> {
    use std::io::Read as _;
    let mut file = std::fs::File::open(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = Some(u64::from_le_bytes(length)).filter(|n| *n <= MAX_HEADER)?;
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).ok()?;
    let header: Value = serde_json::from_slice(&header).ok()?;
    header.get("__metadata__")?.get(key)?.as_str().map(str::to_owned)
}
