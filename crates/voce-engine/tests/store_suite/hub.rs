//! A hub for tests: one repository with files, served the way the real hub does, with faults on demand.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha1::Digest as _;
use voce_engine::store::{
    Cancel, Event, Patience, PullOptions, Pulled, Reference, Settings, Store, StoreError, Token,
};

use crate::server::{Reply, Request, Server};

pub(crate) const REPO: &str = "acme/talker";
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Answers that replace the next ones; `None` lets a request through.
pub(crate) type Faults = Arc<Mutex<VecDeque<Option<Reply>>>>;

/// Files above this size are served through a redirect, by hash, as large files are.
const LARGE: usize = 1000;

/// The hub: one server for its interface and another for the storage that it redirects to.
pub(crate) struct FakeHub {
    pub(crate) front: Server,
    pub(crate) storage: Server,
    /// Faults of the next requests for bytes, of large and small files alike.
    pub(crate) faults: Faults,
    /// Faults of the next requests of other kinds.
    pub(crate) front_faults: Faults,
}

pub(crate) fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn sha256(content: &[u8]) -> String {
    hex(sha2::Sha256::digest(content))
}

pub(crate) fn git_hash(content: &[u8]) -> String {
    let mut hash = sha1::Sha1::new();
    hash.update(format!("blob {}\0", content.len()));
    hash.update(content);
    hex(hash.finalize())
}

pub(crate) fn etag_of(content: &[u8]) -> String {
    if content.len() > LARGE { sha256(content) } else { git_hash(content) }
}

/// Bytes that look random and are the same each time.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn pop(faults: &Faults) -> Option<Reply> {
    faults.lock().unwrap().pop_front().flatten()
}

/// Serves the part of `content` that was asked for.
pub(crate) fn ranged(request: &Request, content: &[u8]) -> Reply {
    match request.range() {
        Some(from) if from >= content.len() => Reply::new(416),
        Some(from) => Reply::new(206)
            .with("Content-Range", format!("bytes {from}-{}/{}", content.len() - 1, content.len()))
            .body(&content[from..]),
        None => Reply::new(200).body(content),
    }
}

impl FakeHub {
    pub(crate) fn start(files: &[(&str, Vec<u8>)]) -> Self {
        let files: BTreeMap<String, Vec<u8>> =
            files.iter().map(|(name, content)| ((*name).to_owned(), content.clone())).collect();
        let faults = Faults::default();
        let front_faults = Faults::default();
        let stored = files.clone();
        let storage_faults = faults.clone();
        let storage = Server::start(move |request| {
            let path = request.target.trim_start_matches("/store/");
            match (pop(&storage_faults), stored.get(path)) {
                // A fault without a body but with a place to cut breaks the real answer there.
                (Some(fault), Some(content)) if fault.status == 0 => {
                    ranged(request, content).cut(fault.cut.unwrap_or(0))
                }
                (Some(fault), _) => fault,
                (None, Some(content)) => ranged(request, content).with("ETag", "\"storage-tag\""),
                (None, None) => Reply::new(404),
            }
        });
        let (storage_url, faults2, front2) = (storage.url(), faults.clone(), front_faults.clone());
        let front =
            Server::start(move |request| front_reply(request, &files, &storage_url, &faults2, &front2));
        Self { front, storage, faults, front_faults }
    }

    pub(crate) fn store(&self, root: &Path) -> Store {
        Store::new(self.settings(root))
    }

    pub(crate) fn settings(&self, root: &Path) -> Settings {
        settings(root, &self.front.url())
    }

    pub(crate) fn fail_next(&self, replies: impl IntoIterator<Item = Reply>) {
        self.faults.lock().unwrap().extend(replies.into_iter().map(Some));
    }

    /// Breaks each of the next answers off after the bytes given for it.
    pub(crate) fn cut_next(&self, at: impl IntoIterator<Item = usize>) {
        self.fail_next(at.into_iter().map(|at| Reply::new(0).cut(at)));
    }
}

fn front_reply(
    request: &Request,
    files: &BTreeMap<String, Vec<u8>>,
    storage: &str,
    faults: &Faults,
    front_faults: &Faults,
) -> Reply {
    let resolve = format!("/{REPO}/resolve/{COMMIT}/");
    let file = request.target.strip_prefix(&resolve).and_then(|path| Some((path, files.get(path)?)));
    let small_bytes = request.method == "GET" && file.is_some_and(|(_, content)| content.len() <= LARGE);
    if let Some(fault) = pop(if small_bytes { faults } else { front_faults }) {
        return fault;
    }
    if request.target.starts_with(&format!("/api/models/{REPO}/revision/")) {
        let siblings: Vec<String> =
            files.keys().map(|name| format!("{{\"rfilename\":\"{name}\"}}")).collect();
        return Reply::new(200)
            .body(format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{}]}}", siblings.join(",")));
    }
    let Some((path, content)) = file else { return Reply::new(404).with("X-Error-Code", "EntryNotFound") };
    if content.len() > LARGE {
        Reply::new(302)
            .with("Location", format!("{storage}/store/{path}"))
            .with("X-Repo-Commit", COMMIT)
            .with("X-Linked-Etag", format!("\"{}\"", sha256(content)))
            .with("X-Linked-Size", content.len().to_string())
    } else {
        ranged(request, content)
            .with("X-Repo-Commit", COMMIT)
            .with("ETag", format!("W/\"{}\"", git_hash(content)))
    }
}

pub(crate) fn settings(root: &Path, endpoint: &str) -> Settings {
    Settings {
        hub_cache: root.join("hub"),
        voce_home: root.join("voce"),
        endpoint: endpoint.to_owned(),
        token: Token::new("hf_secret"),
        offline: false,
        keep_packed: None,
        patience: Patience {
            retries: 4,
            first_wait: Duration::from_millis(1),
            longest_wait: Duration::from_secs(60),
            connect: Duration::from_secs(10),
            silence: Duration::from_secs(10),
        },
    }
}

/// Pulls the whole test repository.
pub(crate) fn pull(store: &Store) -> Result<Pulled, StoreError> {
    pull_with(store, REPO, &Cancel::new(), &mut |_| {})
}

pub(crate) fn pull_with(
    store: &Store,
    text: &str,
    cancel: &Cancel,
    report: &mut dyn FnMut(&Event<'_>),
) -> Result<Pulled, StoreError> {
    store.pull(&Reference::parse(text).unwrap(), &PullOptions::default(), cancel, report)
}

/// The repository's folder in the cache below `root`.
pub(crate) fn repo_dir(root: &Path) -> std::path::PathBuf {
    root.join("hub/models--acme--talker")
}
