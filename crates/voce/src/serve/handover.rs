//! The settings by which live streams move to other machines.

use voce_server::{HandoverOptions, Secret};

use super::settings::{Settings, seconds};
use crate::failure::{Failure, Outcome};

/// How streams move, if they do: with a secret and somewhere to go.
pub(super) fn options(settings: &Settings) -> Outcome<Option<HandoverOptions>> {
    let text = match (&settings.handover_secret_file, &settings.handover_secret) {
        (Some(path), _) => Some(
            std::fs::read_to_string(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?,
        ),
        (None, secret) => secret.clone(),
    };
    let Some(text) = text else {
        let asked = [
            ("peer", !settings.peer.is_empty()),
            ("handover-dir", settings.handover_dir.is_some()),
            ("checkpoint", settings.checkpoint.as_deref().is_some_and(|every| every != "off")),
        ];
        return match asked.iter().find(|(_, is_set)| *is_set) {
            Some((flag, _)) => Err(Failure::usage(format!(
                "--{flag} needs a secret that all machines share: --handover-secret-file FILE (make one with `openssl \
                 rand -hex 32`)"
            ))),
            None => Ok(None),
        };
    };
    let mut options = HandoverOptions::new(Secret::new(&text).map_err(Failure::usage)?);
    for url in &settings.peer {
        let is_one = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        if is_one.is_none_or(|rest| rest.is_empty()) {
            return Err(Failure::usage(format!("--peer {url}: use an address such as http://10.0.0.2:8080")));
        }
    }
    if let Some(folder) = &settings.handover_dir {
        if !settings.peer.is_empty() {
            return Err(Failure::usage("streams go to peers or to a folder: use --peer or --handover-dir"));
        }
        std::fs::create_dir_all(folder).map_err(|e| {
            Failure::usage(format!("{}: {e}: streams cannot be left there", folder.display()))
        })?;
    }
    options.peers = settings.peer.clone();
    options.folder = settings.handover_dir.clone();
    options.time = settings.handover_time.as_deref().map(seconds).transpose()?.unwrap_or(options.time);
    options.bytes = settings.handover_bytes.unwrap_or(options.bytes);
    let checkpoint = settings.checkpoint.as_deref().filter(|every| *every != "off");
    options.checkpoint = checkpoint.map(seconds).transpose()?;
    if options.time.is_zero() || options.checkpoint.is_some_and(|every| every.is_zero()) {
        return Err(Failure::usage(
            "--handover-time and --checkpoint are longer than nothing: use 60s and 5s",
        ));
    }
    Ok(Some(options))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn streams_move_with_a_secret_and_somewhere_to_go() {
        let secret = || Some("sixteen bytes ok".to_owned());
        let with = |settings: Settings| options(&settings);
        assert!(with(Settings::default()).unwrap().is_none());
        let peers = || vec!["http://10.0.0.2:8080".to_owned()];
        let both = Settings {
            handover_secret: secret(),
            peer: peers(),
            checkpoint: Some("5s".into()),
            ..Settings::default()
        };
        let found = with(both.clone()).unwrap().unwrap();
        assert_eq!((found.peers.len(), found.checkpoint), (1, Some(Duration::from_secs(5))));
        assert!(!format!("{found:?}").contains("sixteen"));
        for bad in [
            Settings { peer: peers(), ..Settings::default() },
            Settings { handover_secret: Some("short".into()), ..Settings::default() },
            Settings { handover_dir: Some("x".into()), ..both.clone() },
            Settings { peer: vec!["10.0.0.2".into()], ..both.clone() },
            Settings { checkpoint: Some("0s".into()), ..both.clone() },
            Settings { handover_secret_file: Some("/no/such/file".into()), ..both },
        ] {
            let error = with(bad).unwrap_err().message().unwrap();
            assert!(!error.contains("sixteen"), "{error}");
        }
    }
}
