//! A moshi-server configuration: the settings and modules that it stands for, and what must be refused, with the reason.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::moshi::modules::{Module, Modules};
use super::settings::Settings;

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    static_dir: Option<String>,
    #[serde(default)]
    log_dir: Option<String>,
    #[serde(default)]
    authorized_ids: BTreeSet<String>,
    #[serde(default)]
    modules: BTreeMap<String, toml::Table>,
}

/// Whether a file is moshi-server's.
pub(super) fn is_one(table: &toml::Table) -> bool {
    ["modules", "authorized_ids", "static_dir", "instance_name"].iter().any(|key| table.contains_key(*key))
}

/// The settings that it stands for. A model that was named by flag or variable answers in place of a module's own, at its
/// path.
pub(super) fn read(text: &str, flags: &Settings) -> Result<Settings, String> {
    let config: Config = toml::from_str(text).map_err(|e| e.to_string())?;
    let mut settings = Settings {
        host: Some("0.0.0.0".into()),
        api_key: config.authorized_ids.into_iter().collect(),
        no_speak: true,
        no_hear: true,
        // Dashboards read them without a key there.
        open_metrics: true,
        modules: Modules { static_dir: config.static_dir, ..Modules::default() },
        ..Settings::default()
    };
    if settings.api_key.is_empty() {
        return Err("authorized_ids is empty: moshi-server has no anonymous mode".into());
    }
    for (name, table) in config.modules {
        let kind = table.get("type").and_then(toml::Value::as_str).unwrap_or_default().to_owned();
        let path = || {
            let path = table.get("path").and_then(toml::Value::as_str).map(str::to_owned);
            path.ok_or_else(|| format!("module '{name}' has no path"))
        };
        let slots = || {
            let size = table.get("batch_size").and_then(toml::Value::as_integer);
            size.and_then(|n| usize::try_from(n).ok())
        };
        match kind.as_str() {
            "Asr" | "BatchedAsr" | "PyBatchedAsr" if !flags.hear.is_empty() || flags.null_model => {
                settings.no_hear = false;
                settings.hear_slots = slots().or(settings.hear_slots);
                settings.asr_path.push(path()?);
                continue;
            }
            "Tts" | "Py" if !flags.speak.is_empty() => {
                settings.no_speak = false;
                settings.speak_slots = slots().or(settings.speak_slots);
                let path = path()?;
                if kind == "Tts" {
                    settings.tts_path.push(format!("{path}_streaming"));
                }
                settings.tts_path.push(path);
                continue;
            }
            "Lm" if !flags.talk.is_empty() => {
                settings.talk_path.push(path()?);
                continue;
            }
            "PyPost" => {
                return Err(format!(
                    "module '{name}' (PyPost): the encoder that makes voices for Kyutai's speech is not published, \
                     so that no embedding can be made here: remove the module, and use the voices of \
                     kyutai/tts-voices"
                ));
            }
            _ => {}
        }
        let module = Module::read(&kind, table).unwrap_or_else(|| {
            Err(format!(
                "the type is '{kind}': use Asr, BatchedAsr, PyBatchedAsr, Tts, Py, PyPost, Lm or Mimi"
            ))
        });
        let module = module.map_err(|e| format!("module '{name}' ({kind}): {e}"))?;
        refuse_scripts(&name, &module)?;
        if let Module::Asr(asr) = &module
            && asr.log_frequency_s.is_some()
        {
            let folder = config.log_dir.as_deref();
            let folder = folder
                .ok_or_else(|| format!("module '{name}' has log_frequency_s, and there is no log_dir"))?;
            let folder = super::moshi::files::with_variables(folder, |name| std::env::var(name).ok());
            settings.log_tokens = Some(folder.into());
        }
        settings.modules.list.push((name, module));
    }
    Ok(settings)
}

/// What was run by a script runs here without one, unless the script is another than moshi-server's own.
fn refuse_scripts(name: &str, module: &Module) -> Result<(), String> {
    let (script, bos) = match module {
        Module::Py(py) => (&py.script, Some(py.text_bos_token)),
        Module::PyAsr(py) => (&py.script, None),
        _ => return Ok(()),
    };
    if let Some(script) = script {
        return Err(format!(
            "module '{name}': no Python is run here, so that script = '{script}' cannot be: remove it"
        ));
    }
    match bos {
        Some(bos) if bos != 1 => {
            Err(format!("module '{name}': text_bos_token is {bos}: published models have 1"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STT: &str = "
        static_dir = './static/'
        log_dir = '$HOME/tmp/log'
        instance_name = 'stt'
        authorized_ids = ['public_token']
        [modules.asr]
        path = '/api/my-asr'
        type = 'BatchedAsr'
        batch_size = 64
        lm_model_file = 'hf://kyutai/stt-1b-en_fr-candle/model.safetensors'
        asr_delay_in_tokens = 6
        [modules.asr.model]
        audio_vocab_size = 2049
        [modules.asr.model.transformer]
        d_model = 2048
        [modules.tts_py]
        type = 'Py'
        path = '/api/tts_streaming'
        text_tokenizer_file = 'x'
        batch_size = 8
        text_bos_token = 1
        [modules.tts_py.py]
        n_q = 24
    ";

    #[test]
    fn a_deployment_moves_over() {
        let table: toml::Table = STT.parse().unwrap();
        assert!(is_one(&table));
        let flags =
            Settings { hear: vec!["nemotron".into()], speak: vec!["pocket".into()], ..Settings::default() };
        let got = flags.clone().over(read(STT, &flags).unwrap());
        assert_eq!((got.hear_slots, got.speak_slots), (Some(64), Some(8)));
        assert_eq!(
            (got.asr_path, got.tts_path),
            (vec!["/api/my-asr".to_owned()], vec!["/api/tts_streaming".to_owned()])
        );
        assert_eq!((got.api_key, got.host.as_deref()), (vec!["public_token".to_owned()], Some("0.0.0.0")));
        assert!(!got.no_hear && !got.no_speak);
    }

    #[test]
    fn what_is_refused_says_why() {
        let none = Settings::default();
        assert!(read(STT, &none).unwrap_err().contains("'asr' (BatchedAsr): missing field"));
        let config =
            |kind: &str| format!("authorized_ids = ['a']\n[modules.x]\ntype = '{kind}'\npath = '/x'");
        for kind in ["Lm", "Mimi", "PyPost", "Foo", "Tts", "Py", "Asr"] {
            assert!(read(&config(kind), &none).unwrap_err().contains("module 'x'"), "{kind}");
        }
        assert!(read("modules = {}", &none).unwrap_err().contains("anonymous"));
    }

    const WHOLE: &str = include_str!("../../tests/fixtures/moshi-server.toml");

    #[test]
    fn every_module_is_read_as_it_is() {
        let settings = read(WHOLE, &Settings::default()).unwrap();
        let kinds: Vec<(&str, &str)> = settings
            .modules
            .list
            .iter()
            .map(|(name, module)| {
                let kind = match module {
                    Module::Asr(_) => "Asr",
                    Module::PyAsr(_) => "PyAsr",
                    Module::Tts(_) => "Tts",
                    Module::Py(_) => "Py",
                    Module::Lm(_) => "Lm",
                    Module::Mimi(_) => "Mimi",
                };
                (name.as_str(), kind)
            })
            .collect();
        let expected = [
            ("asr", "Asr"),
            ("lm", "Lm"),
            ("mimi", "Mimi"),
            ("one_asr", "Asr"),
            ("py_asr", "PyAsr"),
            ("tts", "Tts"),
            ("tts_py", "Py"),
        ];
        assert_eq!(kinds, expected);
        assert!(settings.no_hear && settings.no_speak, "no other model is opened");
        assert_eq!(settings.log_tokens.as_deref(), Some(std::path::Path::new("/tmp/logs")));
        let Some((_, Module::Py(py))) = settings.modules.list.last() else { panic!() };
        assert_eq!((py.batch_size, py.py.n_q, py.py.temp), (8, 24, 0.6));
        assert_eq!((py.py.cfg_coef, py.py.padding_between, py.py.max_padding), (2.0, 1, 8));
        assert_eq!(py.py.weights.hf_repo, None, "the usual one");
    }

    #[test]
    fn every_field_that_is_needed_is_missed_by_name() {
        for (line, name) in [
            ("asr_delay_in_tokens = 6", "asr_delay_in_tokens"),
            ("batch_size = 64", "batch_size"),
            ("d_model = 2048", "d_model"),
            ("batch_size = 8\ntext_bos_token = 1", "batch_size"),
            ("acoustic_delay = 2", "acoustic_delay"),
            ("auth_recv = false", "auth_recv"),
            ("voice_dir = \"/tmp/voices\"", "voice_dir"),
        ] {
            assert!(WHOLE.contains(line), "{line}");
            let error = read(&WHOLE.replacen(line, "", 1), &Settings::default()).unwrap_err();
            assert!(error.contains(name) && error.contains("module '"), "{line}: {error}");
        }
        for (from, to, says) in [
            (
                "batch_size = 8\ntext_bos_token = 1",
                "batch_size = 8\ntext_bos_token = 2",
                "text_bos_token is 2",
            ),
            ("type = \"Py\"", "type = \"Py\"\nscript = \"my.py\"", "no Python is run"),
            ("batch_size = 64", "batch_size = \"many\"", "invalid type"),
            (
                "[modules.mimi]",
                "[modules.voice]\ntype = \"PyPost\"\npath = \"/v\"\n[modules.mimi]",
                "not published",
            ),
        ] {
            let error = read(&WHOLE.replacen(from, to, 1), &Settings::default()).unwrap_err();
            assert!(error.contains(says), "{says}: {error}");
        }
    }
}
