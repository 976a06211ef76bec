//! A moshi-server configuration: what of it means something here, and what must be refused, with the reason.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::settings::Settings;

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    authorized_ids: Vec<String>,
    #[serde(default)]
    modules: BTreeMap<String, Module>,
}

/// A module; fields about weights are read by no one here.
#[derive(Debug, Deserialize)]
struct Module {
    r#type: String,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    batch_size: Option<usize>,
}

/// Whether a file is moshi-server's.
pub(super) fn is_one(table: &toml::Table) -> bool {
    ["modules", "authorized_ids", "static_dir", "instance_name"].iter().any(|key| table.contains_key(*key))
}

/// The settings that it stands for. Kyutai's own models do not run here yet: a recogniser or voice that was named by
/// flag or variable answers in their place, on their paths.
pub(super) fn read(text: &str, flags: &Settings) -> Result<Settings, String> {
    let config: Config = toml::from_str(text).map_err(|e| e.to_string())?;
    let mut settings = Settings {
        host: Some("0.0.0.0".into()),
        api_key: config.authorized_ids,
        no_speak: true,
        no_hear: true,
        ..Settings::default()
    };
    if settings.api_key.is_empty() {
        return Err("authorized_ids is empty: moshi-server has no anonymous mode".into());
    }
    for (name, module) in config.modules {
        let path = module.path.clone().ok_or_else(|| format!("module '{name}' has no path"));
        match module.r#type.as_str() {
            "Asr" | "BatchedAsr" | "PyBatchedAsr" => {
                if flags.hear.is_empty() && !flags.null_model {
                    return Err(refuse(
                        &name,
                        &module.r#type,
                        "Kyutai's speech-to-text models are not run yet",
                        Some("--hear"),
                    ));
                }
                settings.no_hear = false;
                settings.hear_slots = module.batch_size.or(settings.hear_slots);
                settings.asr_path.push(path?);
            }
            "Tts" | "Py" => {
                if flags.speak.is_empty() {
                    return Err(refuse(
                        &name,
                        &module.r#type,
                        "Kyutai's text-to-speech models are not run yet",
                        Some("--speak"),
                    ));
                }
                settings.no_speak = false;
                settings.speak_slots = module.batch_size.or(settings.speak_slots);
                let path = path?;
                if module.r#type == "Tts" {
                    settings.tts_path.push(format!("{path}_streaming"));
                }
                settings.tts_path.push(path);
            }
            "Lm" => return Err(refuse(&name, "Lm", "Moshi's dialogue models are not run yet", None)),
            "Mimi" => return Err(refuse(&name, "Mimi", "Mimi rooms are not served yet", None)),
            "PyPost" => {
                return Err(refuse(
                    &name,
                    "PyPost",
                    "voice embeddings of Kyutai's models are not made yet",
                    None,
                ));
            }
            other => {
                return Err(format!(
                    "module '{name}' has the unknown type '{other}': use Asr, BatchedAsr, PyBatchedAsr, Tts, Py, PyPost, Lm or Mimi"
                ));
            }
        }
    }
    Ok(settings)
}

fn refuse(name: &str, kind: &str, reason: &str, flag: Option<&str>) -> String {
    let way = match flag {
        Some(flag) => format!("name a model to answer in its place with {flag}"),
        None => "remove the module".into(),
    };
    format!("module '{name}' ({kind}): {reason}: {way}")
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
        assert!(
            read(STT, &none)
                .unwrap_err()
                .contains("'asr' (BatchedAsr): Kyutai's speech-to-text models are not run yet")
        );
        let config =
            |kind: &str| format!("authorized_ids = ['a']\n[modules.x]\ntype = '{kind}'\npath = '/x'");
        for kind in ["Lm", "Mimi", "PyPost", "Foo", "Tts", "Py", "Asr"] {
            assert!(read(&config(kind), &none).unwrap_err().contains("module 'x'"), "{kind}");
        }
        assert!(read("modules = {}", &none).unwrap_err().contains("anonymous"));
    }
}
