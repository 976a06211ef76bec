//! Where the store keeps things and how it reaches the hub: the same environment variables as `huggingface_hub`.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use etcetera::BaseStrategy;

use super::error::StoreError;

/// The hub used when `HF_ENDPOINT` is not set.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Bytes from which packed weights are kept: smaller checkpoints are packed in no time.
pub const KEEP_PACKED: u64 = 64 << 20;

/// An access token, never shown in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token from its text; `None` when there is nothing in it or it cannot be sent in a header.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic())).then(|| Self(text.to_owned()))
    }

    pub(super) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// How often and how patiently a failed request is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Failures in a row, without a new byte, before giving up.
    pub retries: u32,
    /// Wait before the first retry; it doubles with each.
    pub first_wait: Duration,
    /// The longest wait, also for one that a server asks for.
    pub longest_wait: Duration,
    /// How long a connection may take.
    pub connect: Duration,
    /// How long a server may stay silent.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            retries: 5,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(120),
            connect: Duration::from_secs(15),
            silence: Duration::from_secs(30),
        }
    }
}

/// The store's settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The hub cache: `models--owner--name` folders.
    pub hub_cache: PathBuf,
    /// Voce's own folder: `models/` and `voices/`.
    pub voce_home: PathBuf,
    /// The hub's address, without a slash at its end.
    pub endpoint: String,
    /// The access token, if any.
    pub token: Option<Token>,
    /// When set, the network is never touched.
    pub offline: bool,
    /// Bytes from which a checkpoint's packed weights are kept under `packed/` of Voce's own folder; never
    /// when absent.
    pub keep_packed: Option<u64>,
    /// Retries and timeouts.
    pub patience: Patience,
}

impl Settings {
    /// Settings from the process's environment.
    pub fn from_env() -> Result<Self, StoreError> {
        Self::from_vars(|name| std::env::var_os(name))
    }

    /// Settings from any set of variables.
    pub fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Result<Self, StoreError> {
        let set = |name: &str| var(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name).and_then(|value| value.into_string().ok());
        let dirs = || {
            etcetera::base_strategy::choose_base_strategy().map_err(|_| StoreError::BadSetting {
                name: "HOME",
                reason: "there is no home directory; set HF_HOME and VOCE_HOME".to_owned(),
            })
        };
        let home = || -> Option<PathBuf> { set("HOME").map(PathBuf::from).or_else(std::env::home_dir) };
        let path = |name: &str| -> Option<PathBuf> {
            let path = PathBuf::from(set(name)?);
            match (path.strip_prefix("~"), home()) {
                (Ok(rest), Some(home)) => Some(home.join(rest)),
                _ => Some(path),
            }
        };

        // huggingface_hub uses ~/.cache on every system, also where the platform's cache folder is another.
        let hf_home = match (path("HF_HOME"), path("XDG_CACHE_HOME"), home()) {
            (Some(path), _, _) => path,
            (None, Some(cache), _) => cache.join("huggingface"),
            (None, None, Some(home)) => home.join(".cache").join("huggingface"),
            (None, None, None) => dirs()?.cache_dir().join("huggingface"),
        };
        let hub_cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .unwrap_or_else(|| hf_home.join("hub"));
        let voce_home = match (path("VOCE_HOME"), path("XDG_DATA_HOME")) {
            (Some(path), _) => path,
            (None, Some(data)) => data.join("voce"),
            (None, None) => dirs()?.data_dir().join("voce"),
        };

        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        if !(endpoint.starts_with("https://") || endpoint.starts_with("http://")) {
            let reason = format!("`{endpoint}` does not start with https://");
            return Err(StoreError::BadSetting { name: "HF_ENDPOINT", reason });
        }

        let truthy = |name: &str| {
            text(name).is_some_and(|v| matches!(v.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE"))
        };
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token"));
        let token = match text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")) {
            Some(text) => Token::new(&text),
            None => std::fs::read_to_string(token_file).ok().and_then(|text| Token::new(&text)),
        };
        Ok(Self {
            hub_cache,
            voce_home,
            endpoint,
            token,
            offline: truthy("HF_HUB_OFFLINE") || truthy("VOCE_OFFLINE"),
            keep_packed: (!truthy("VOCE_NO_PACKED")).then_some(KEEP_PACKED),
            patience: Patience::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(vars: &[(&str, &str)]) -> Result<Settings, StoreError> {
        Settings::from_vars(|name| vars.iter().find(|(key, _)| *key == name).map(|(_, v)| OsString::from(v)))
    }

    #[test]
    fn cache_folder_order() {
        let cache = |vars| settings(vars).unwrap().hub_cache;
        assert_eq!(cache(&[("HOME", "/h")]), PathBuf::from("/h/.cache/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), PathBuf::from("/x/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/f")]), PathBuf::from("/f/hub"));
        assert_eq!(cache(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]), PathBuf::from("/c"));
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "~/m")]), PathBuf::from("/h/m/hub"));
    }

    #[test]
    fn token_from_variable_then_file() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        assert!(settings(&[("HF_HOME", home)]).unwrap().token.is_none());
        std::fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        let from_file = settings(&[("HF_HOME", home)]).unwrap().token.unwrap();
        assert_eq!(from_file.secret(), "hf_file");
        let from_var = settings(&[("HF_HOME", home), ("HF_TOKEN", " hf_var ")]).unwrap().token.unwrap();
        assert_eq!(from_var.secret(), "hf_var");
        assert_eq!(format!("{from_var:?}"), "Token(..)");
        let other = dir.path().join("elsewhere");
        std::fs::write(&other, "hf_other").unwrap();
        let moved = settings(&[("HF_HOME", home), ("HF_TOKEN_PATH", other.to_str().unwrap())]).unwrap();
        assert_eq!(moved.token.unwrap().secret(), "hf_other");
    }

    #[test]
    fn endpoint_and_offline() {
        let got = settings(&[("HF_HOME", "/f"), ("HF_ENDPOINT", "http://m:1/"), ("HF_HUB_OFFLINE", "true")])
            .unwrap();
        assert_eq!((got.endpoint.as_str(), got.offline), ("http://m:1", true));
        assert_eq!(settings(&[("HF_HOME", "/f")]).unwrap().endpoint, DEFAULT_ENDPOINT);
        assert!(!settings(&[("HF_HOME", "/f"), ("HF_HUB_OFFLINE", "0")]).unwrap().offline);
        assert!(settings(&[("HF_HOME", "/f")]).unwrap().keep_packed.is_some());
        assert!(settings(&[("HF_HOME", "/f"), ("VOCE_NO_PACKED", "1")]).unwrap().keep_packed.is_none());
        assert!(settings(&[("HF_HOME", "/f"), ("HF_ENDPOINT", "ftp://m")]).is_err());
    }

    #[test]
    fn own_folder() {
        assert_eq!(
            settings(&[("HF_HOME", "/f"), ("VOCE_HOME", "/v")]).unwrap().voce_home,
            PathBuf::from("/v")
        );
        let xdg = settings(&[("HF_HOME", "/f"), ("XDG_DATA_HOME", "/d")]).unwrap();
        assert_eq!(xdg.voce_home, PathBuf::from("/d/voce"));
    }
}
