//! The models of a configuration's modules, each at its own path.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use voce_engine::codec::{Codec, CodecOptions};
use voce_server::{Models, Mount, RoomsOptions, Serves};

use super::convert;
use super::files::{Fetcher, with_variables};
use super::folder::{self, Parts};
use super::modules::{Asr, Lm, Mimi, Module, Modules, PyAsrModule, PyModule, Tts};
use super::py::{DEFAULT_TTS, FRAME_RATE, Weights};
use super::voices;
use crate::args::PrecisionArg;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::serve::models::{Manner, reference_of};

/// Largest configuration read.
const MAX_CONFIG: u64 = 4 << 20;

/// The paths of the modules. Dialogues and, where it says so, listeners of rooms need no key, as moshi-server has it.
pub(crate) fn mounts(modules: &Modules) -> Vec<Mount> {
    let mut mounts = Vec::new();
    for (name, module) in &modules.list {
        let mount =
            |path: &str, serves, open| Mount { model: Some(name.clone()), open, ..Mount::new(path, serves) };
        let listed = |kind: &str, rest: [(&'static str, &str); 2]| {
            let rest = rest.map(|(key, value)| (key, value.to_owned()));
            [("type", kind.to_owned())].into_iter().chain(rest).filter(|(key, _)| !key.is_empty()).collect()
        };
        match module {
            Module::Asr(asr) => {
                let mut one = mount(&asr.path, Serves::Hearing, false);
                if asr.batch_size.is_some() {
                    let files =
                        [("lm", asr.lm_model_file.as_str()), ("audio_tokenizer", &asr.audio_tokenizer_file)];
                    one.listed = listed("batched_asr", files);
                }
                mounts.push(one);
            }
            Module::PyAsr(asr) => mounts.push(Mount {
                listed: listed("py_batched_asr", [("script", ""), ("", "")]),
                ..mount(&asr.path, Serves::Hearing, false)
            }),
            Module::Tts(tts) => {
                mounts.push(mount(&tts.path, Serves::Speech, false));
                mounts.push(mount(&format!("{}_streaming", tts.path), Serves::Speech, false));
            }
            Module::Py(py) => mounts.push(Mount {
                listed: listed("py", [("script", ""), ("", "")]),
                ..mount(&py.path, Serves::Speech, false)
            }),
            Module::Lm(lm) => mounts.push(mount(&lm.path, Serves::Dialogue, true)),
            Module::Mimi(mimi) => {
                mounts.push(mount(&mimi.send_path, Serves::RoomSend, false));
                mounts.push(mount(&mimi.recv_path, Serves::RoomListen, !mimi.auth_recv));
            }
        }
    }
    mounts
}

/// Adds the models of the modules, whose files are fetched where they are missing.
pub(crate) fn load(console: Console, manner: &Manner<'_>, modules: &Modules, models: &mut Models) -> Outcome {
    let fetcher = Fetcher { console, store: manner.store };
    for (name, module) in &modules.list {
        let opened = match module {
            Module::Asr(asr) => load_asr(&fetcher, manner, name, asr, models),
            Module::PyAsr(asr) => load_py_asr(&fetcher, manner, name, asr, models),
            Module::Tts(tts) => load_tts(&fetcher, manner, name, tts, models),
            Module::Py(py) => load_py(&fetcher, manner, name, py, models),
            Module::Lm(lm) => load_lm(&fetcher, manner, name, lm, models),
            Module::Mimi(mimi) => load_mimi(&fetcher, manner, name, mimi, models),
        };
        opened.map_err(|e| match e {
            Failure::Usage(text) => Failure::Usage(format!("module '{name}': {text}")),
            other => other,
        })?;
    }
    Ok(())
}

fn unrun(reason: String) -> Failure {
    Failure::usage(reason)
}

fn load_asr(
    fetcher: &Fetcher<'_>,
    manner: &Manner<'_>,
    name: &str,
    asr: &Asr,
    models: &mut Models,
) -> Outcome {
    let mut config = convert::asr(asr).map_err(unrun)?;
    let tokenizer = fetcher.file(&asr.text_tokenizer_file)?;
    convert::name_languages(&mut config, &tokenizer);
    let parts = Parts {
        config,
        weights: fetcher.file(&asr.lm_model_file)?,
        codec: fetcher.file(&asr.audio_tokenizer_file)?,
        tokenizer,
    };
    let folder = folder::lay_out(manner.store, name, parts)?;
    let precision = precision(asr.dtype_override.as_deref())?;
    models.ears.push(manner.ear(name.to_owned(), &reference_of(&folder), asr.batch_size, precision)?);
    Ok(())
}

fn load_py_asr(
    fetcher: &Fetcher<'_>,
    manner: &Manner<'_>,
    name: &str,
    asr: &PyAsrModule,
    models: &mut Models,
) -> Outcome {
    let mut parts = published(fetcher, &asr.py.weights, &asr.text_tokenizer_file)?;
    convert::name_languages(&mut parts.config, &parts.tokenizer);
    let delay = asr.asr_delay_in_tokens as f64 / FRAME_RATE;
    parts.config["stt_config"]["audio_delay_seconds"] = delay.into();
    parts.config["lm_gen_config"]["temp_text"] = asr.py.temp.into();
    let folder = folder::lay_out(manner.store, name, parts)?;
    models.ears.push(manner.ear(name.to_owned(), &reference_of(&folder), Some(asr.batch_size), None)?);
    Ok(())
}

fn load_tts(
    fetcher: &Fetcher<'_>,
    manner: &Manner<'_>,
    name: &str,
    tts: &Tts,
    models: &mut Models,
) -> Outcome {
    let parts = Parts {
        config: convert::tts(tts).map_err(unrun)?,
        weights: fetcher.file(&tts.lm_model_file)?,
        codec: fetcher.file(&tts.audio_tokenizer_file)?,
        tokenizer: fetcher.file(&tts.text_tokenizer_file)?,
    };
    let mut voices = voices::in_folder(Path::new(&variables(&tts.voice_dir)), None);
    for (voice, file) in &tts.voices {
        voices.insert(voice.clone(), fetcher.file(file)?);
    }
    let folder = folder::lay_out(manner.store, name, parts)?;
    let precision = precision(tts.dtype_override.as_deref())?;
    let mut mouth = manner.mouth(name.to_owned(), &reference_of(&folder), None, precision)?;
    mouth.voice_files = voices;
    models.mouths.push(mouth);
    Ok(())
}

fn load_py(
    fetcher: &Fetcher<'_>,
    manner: &Manner<'_>,
    name: &str,
    module: &PyModule,
    models: &mut Models,
) -> Outcome {
    let py = &module.py;
    let hf_repo = py.weights.hf_repo.clone().or_else(|| Some(DEFAULT_TTS.to_owned()));
    let weights = Weights { hf_repo, ..py.weights.clone() };
    let mut parts = published(fetcher, &weights, &module.text_tokenizer_file)?;
    let drawn = parts.config["dep_q"].as_u64().unwrap_or(0) as usize;
    let padding = [
        ("max_padding", py.max_padding.into()),
        ("initial_padding", py.initial_padding.into()),
        ("final_padding", py.final_padding.into()),
        ("padding_between", py.padding_between.into()),
        ("padding_bonus", Value::from(f64::from(py.padding_bonus))),
    ];
    for (key, value) in padding {
        parts.config["tts_config"][key] = value;
    }
    let files = match &py.voice_folder {
        Some(folder) => voices::named(fetcher, folder, &parts.config)?,
        None => BTreeMap::new(),
    };
    let folder = folder::lay_out(manner.store, name, parts)?;
    let mut mouth = manner.mouth(name.to_owned(), &reference_of(&folder), Some(module.batch_size), None)?;
    mouth.request = mouth
        .request
        .with_temperature(Some(py.temp))
        .with_guidance(Some(py.cfg_coef))
        .with_codebooks(Some(py.n_q).filter(|n| *n > 0 && *n < drawn));
    mouth.voice =
        mouth.voice.or_else(|| files.contains_key(&py.default_voice).then(|| py.default_voice.clone()));
    mouth.voice_files = files;
    mouth.voice_files_twice = true;
    models.mouths.push(mouth);
    Ok(())
}

fn load_lm(fetcher: &Fetcher<'_>, manner: &Manner<'_>, name: &str, lm: &Lm, models: &mut Models) -> Outcome {
    let parts = Parts {
        config: convert::lm(lm).map_err(unrun)?,
        weights: fetcher.file(&lm.lm_model_file)?,
        codec: fetcher.file(&lm.audio_tokenizer_file)?,
        tokenizer: fetcher.file(&lm.text_tokenizer_file)?,
    };
    let folder = folder::lay_out(manner.store, name, parts)?;
    let precision = precision(lm.dtype_override.as_deref())?;
    models.partners.push(manner.partner(name.to_owned(), &reference_of(&folder), precision)?);
    Ok(())
}

fn load_mimi(
    fetcher: &Fetcher<'_>,
    manner: &Manner<'_>,
    name: &str,
    mimi: &Mimi,
    models: &mut Models,
) -> Outcome {
    if let Some(room) = mimi.default_room.as_ref().filter(|room| !mimi.rooms.contains(room)) {
        return Err(Failure::usage(format!("default_room is '{room}', which is not among the rooms")));
    }
    let reference = reference_of(&fetcher.file(&mimi.audio_tokenizer_file)?);
    let (store, device) = (manner.store.clone(), manner.device());
    models.rooms.push(RoomsOptions {
        id: name.to_owned(),
        rooms: mimi.rooms.clone(),
        default_room: mimi.default_room.clone(),
        open: Box::new(move || {
            let options = CodecOptions { device: device.clone().into(), ..CodecOptions::default() };
            Codec::open(&store, &reference, &options)
        }),
    });
    Ok(())
}

fn variables(text: &str) -> String {
    with_variables(text, |name| std::env::var(name).ok())
}

/// The files of a published model, some of which may be named one by one.
fn published(fetcher: &Fetcher<'_>, weights: &Weights, tokenizer: &str) -> Outcome<Parts> {
    // The repository is fetched only for files that are not named.
    let in_base = |name: Option<&str>, key: &str| -> Outcome<PathBuf> {
        let repo = weights.hf_repo.as_deref();
        let repo = repo.ok_or_else(|| Failure::usage(format!("py has neither hf_repo nor {key}")))?;
        let name = name.ok_or_else(|| Failure::usage(format!("its config.json does not say {key}")))?;
        Ok(fetcher.hub(repo)?.join(name))
    };
    let config = match &weights.config_path {
        Some(path) => fetcher.file(path)?,
        None => in_base(Some("config.json"), "config_path")?,
    };
    let config = read_config(&config)?;
    let said = |key: &str| config.get(key).and_then(Value::as_str);
    let codec = match &weights.mimi_weight {
        Some(path) => fetcher.file(path)?,
        None => in_base(said("mimi_name"), "mimi_weight")?,
    };
    let model = match &weights.moshi_weight {
        Some(path) => fetcher.file(path)?,
        None => in_base(said("moshi_name").or(Some("model.safetensors")), "moshi_weight")?,
    };
    let tokenizer = fetcher.file(weights.tokenizer.as_deref().unwrap_or(tokenizer))?;
    Ok(Parts { config, weights: model, codec, tokenizer })
}

fn read_config(path: &Path) -> Outcome<Value> {
    use std::io::Read as _;
    let named = |e: String| Failure::usage(format!("{}: {e}", path.display()));
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| named(e.to_string()))?;
    file.take(MAX_CONFIG).read_to_string(&mut text).map_err(|e| named(e.to_string()))?;
    let config: Value = serde_json::from_str(&text).map_err(|e| named(e.to_string()))?;
    match config.is_object() {
        true => Ok(config),
        false => Err(named("it is no configuration".into())),
    }
}

/// A candle type as a precision; the server's own where none is named.
fn precision(name: Option<&str>) -> Outcome<Option<PrecisionArg>> {
    match name {
        None => Ok(None),
        Some("f32") => Ok(Some(PrecisionArg::F32)),
        Some("bf16" | "f16") => Ok(Some(PrecisionArg::Bf16)),
        Some(other) => Err(Failure::usage(format!("dtype_override is '{other}': use f32 or bf16"))),
    }
}
