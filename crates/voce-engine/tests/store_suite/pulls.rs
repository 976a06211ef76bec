//! Pulls that go well: the layout they leave, what they ask of the hub, and what they tell the caller.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::tempdir;
use voce_engine::store::{Cancel, Event, PullOptions, PullVoices, Reference, Store};

use crate::hub::{COMMIT, FakeHub, REPO, git_hash, noise, pull, pull_with, repo_dir, sha256};
use crate::server::{Reply, Server};

fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("README.md", b"# talker".to_vec()),
        ("config.json", b"{\"model_type\": \"parakeet_ctc\"}".to_vec()),
        ("sub/model.safetensors", noise(200_000, 1)),
    ]
}

#[test]
fn layout_is_that_of_the_hub_cache() {
    let (root, files) = (tempdir().unwrap(), files());
    let hub = FakeHub::start(&files);
    let pulled = pull(&hub.store(root.path())).unwrap();
    let names: Vec<_> = pulled.files.iter().map(|file| file.source.path.as_str()).collect();
    assert_eq!(names, ["config.json", "sub/model.safetensors"]);
    assert_eq!(pulled.fetched_bytes, (files[1].1.len() + files[2].1.len()) as u64);

    let repo = repo_dir(root.path());
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    let (small, large) = (git_hash(&files[1].1), sha256(&files[2].1));
    assert_eq!(fs::read(repo.join("blobs").join(&small)).unwrap(), files[1].1);
    assert_eq!(fs::read(repo.join("blobs").join(&large)).unwrap(), files[2].1);
    let snapshot = repo.join("snapshots").join(COMMIT);
    let link = |path: &str| fs::read_link(snapshot.join(path)).unwrap();
    assert_eq!(link("config.json"), PathBuf::from(format!("../../blobs/{small}")));
    assert_eq!(link("sub/model.safetensors"), PathBuf::from(format!("../../../blobs/{large}")));
    assert_eq!(fs::read(snapshot.join("sub/model.safetensors")).unwrap(), files[2].1);
    assert_eq!(fs::read_dir(repo.join("blobs")).unwrap().count(), 2, "nothing partial is left");
    assert!(root.path().join("hub/.locks/models--acme--talker").join(format!("{large}.lock")).exists());
}

#[test]
fn token_goes_to_the_hub_and_nowhere_else() {
    let root = tempdir().unwrap();
    let hub = FakeHub::start(&files());
    pull(&hub.store(root.path())).unwrap();
    assert!(hub.front.requests().iter().all(|r| r.header("authorization") == Some("Bearer hf_secret")));
    assert!(!hub.storage.requests().is_empty());
    assert!(hub.storage.requests().iter().all(|r| r.header("authorization").is_none()));
}

#[test]
fn second_pull_fetches_nothing() {
    let root = tempdir().unwrap();
    let hub = FakeHub::start(&files());
    let store = hub.store(root.path());
    pull(&store).unwrap();
    let (front, storage) = (hub.front.requests().len(), hub.storage.requests().len());
    let mut planned = None;
    let again = pull_with(&store, REPO, &Cancel::new(), &mut |event| {
        if let Event::Planned { files, missing, bytes } = event {
            planned = Some((*files, *missing, *bytes));
        }
    })
    .unwrap();
    assert_eq!(planned, Some((2, 0, 0)));
    assert!(again.files.iter().all(|file| file.cached) && again.fetched_bytes == 0);
    assert_eq!(hub.front.requests().len(), front + 1, "only the branch is looked up");
    assert_eq!(hub.storage.requests().len(), storage);

    let pinned = format!("hf://{REPO}/sub/model.safetensors@{COMMIT}");
    pull_with(&store, &pinned, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(hub.front.requests().len(), front + 1, "a pinned file that is here needs no lookup");
}

#[test]
fn events_tell_the_story() {
    let root = tempdir().unwrap();
    let hub = FakeHub::start(&files());
    let mut story = Vec::new();
    let mut last = 0;
    pull_with(&hub.store(root.path()), REPO, &Cancel::new(), &mut |event| match event {
        Event::Bytes { file, done, total, bytes_per_second } => {
            assert!(done <= total && *bytes_per_second > 0.0);
            if file.ends_with("safetensors") {
                assert!(*done > last, "bytes only grow");
                last = *done;
            }
        }
        Event::Planned { missing, bytes, .. } => story.push(format!("planned {missing} {bytes}")),
        Event::Started { file, resumed, total } => story.push(format!("started {file} {resumed}/{total}")),
        Event::Finished { file, bytes, cached } => story.push(format!("finished {file} {bytes} {cached}")),
        other => panic!("{other:?}"),
    })
    .unwrap();
    assert_eq!(last, 200_000);
    assert_eq!(
        story,
        [
            "planned 2 200030",
            "started config.json 0/30",
            "finished config.json 30 false",
            "started sub/model.safetensors 0/200000",
            "finished sub/model.safetensors 200000 false",
        ]
    );
}

#[test]
fn parts_of_a_repository() {
    let root = tempdir().unwrap();
    let hub = FakeHub::start(&files());
    let store = hub.store(root.path());
    let taken = |text: &str, patterns: &[&str]| -> Vec<String> {
        let patterns = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let options = PullOptions { patterns, ..PullOptions::default() };
        let pulled =
            store.pull(&Reference::parse(text).unwrap(), &options, &Cancel::new(), &mut |_| {}).unwrap();
        pulled.files.into_iter().map(|file| file.source.path).collect()
    };
    assert_eq!(taken("acme/talker/sub", &[]), ["sub/model.safetensors"]);
    assert_eq!(taken("acme/talker", &["*.md", "conf*"]), ["README.md", "config.json"]);
    assert_eq!(taken("hf://acme/talker/README.md@main", &[]), ["README.md"]);
    let nothing = pull_with(&store, "acme/talker/nowhere", &Cancel::new(), &mut |_| {}).unwrap_err();
    assert_eq!(nothing.code(), "nothing_matches");
}

#[test]
fn branch_with_a_slash_is_escaped_and_kept_as_a_ref() {
    let root = tempdir().unwrap();
    let hub = FakeHub::start(&files());
    pull_with(&hub.store(root.path()), "acme/talker@refs/pr/3", &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(hub.front.count("GET", "/revision/refs%2Fpr%2F3"), 1);
    assert_eq!(fs::read_to_string(repo_dir(root.path()).join("refs/refs/pr/3")).unwrap(), COMMIT);
}

#[test]
fn relative_redirect_keeps_the_token() {
    let (root, content) = (tempdir().unwrap(), b"small".to_vec());
    let tag = git_hash(&content);
    let server = Server::start(move |request| {
        if request.target.starts_with("/api/models/") {
            Reply::new(200)
                .body(format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{{\"rfilename\":\"a.model\"}}]}}"))
        } else if request.target.contains("/resolve/") {
            Reply::new(307).with("Location", "/cache/a.model?x=1").with("X-Repo-Commit", COMMIT)
        } else {
            Reply::new(200).with("ETag", format!("\"{tag}\"")).body(content.clone())
        }
    });
    let store = Store::new(crate::hub::settings(root.path(), &server.url()));
    let pulled = pull(&store).unwrap();
    assert_eq!(fs::read(&pulled.files[0].path).unwrap(), b"small");
    let followed: Vec<_> =
        server.requests().into_iter().filter(|r| r.target == "/cache/a.model?x=1").collect();
    assert_eq!(followed.len(), 2);
    assert!(followed.iter().all(|r| r.header("authorization") == Some("Bearer hf_secret")));
}

#[test]
fn offline_touches_nothing() {
    let root = tempdir().unwrap();
    let hub = FakeHub::start(&files());
    let mut settings = hub.settings(root.path());
    settings.offline = true;
    let offline = Store::new(settings);
    assert_eq!(pull(&offline).unwrap_err().code(), "offline");
    assert_eq!(pull_with(&offline, "pocket", &Cancel::new(), &mut |_| {}).unwrap_err().code(), "offline");
    assert!(!Path::new(&root.path().join("hub")).exists());
    pull(&hub.store(root.path())).unwrap();
    let seen = hub.front.requests().len();
    assert_eq!(pull(&offline).unwrap().id, REPO);
    assert!(offline.find(REPO).is_ok());
    assert_eq!(hub.front.requests().len(), seen);
}

#[test]
fn catalogue_models_come_with_their_voices() {
    let root = tempdir().unwrap();
    let content = b"some bytes";
    let server = Server::start(move |request| {
        let gated = request.target.starts_with("/kyutai/pocket-tts/");
        if gated {
            Reply::new(401).with("X-Error-Code", "GatedRepo")
        } else if request.target.contains("/embeddings/eve") {
            Reply::new(404)
        } else {
            Reply::new(200).with("ETag", git_hash(content)).body(content)
        }
    });
    let store = Store::new(crate::hub::settings(root.path(), &server.url()));
    let take = |text: &str, voices: PullVoices| {
        let options = PullOptions { voices, ..PullOptions::default() };
        store.pull(&Reference::parse(text).unwrap(), &options, &Cancel::new(), &mut |_| {})
    };
    let pulled = take("pocket-french", PullVoices::Default).unwrap();
    let names: Vec<_> = pulled.files.iter().map(|file| file.source.path.as_str()).collect();
    assert_eq!(
        names,
        [
            "languages/french/model.safetensors",
            "languages/french/tokenizer.json",
            "languages/french/embeddings/estelle.safetensors",
        ]
    );
    assert_eq!(server.count("GET", "/api/"), 0, "pinned files need no lookup");
    assert_eq!(server.count("GET", ""), 1, "the same content is fetched once");
    assert_eq!(store.find("pocket-french").unwrap().voices.len(), 1);

    let two = PullVoices::Named(vec!["alba".to_owned(), "vera".to_owned()]);
    assert_eq!(take("pocket-french", two).unwrap().files.len(), 4);
    assert_eq!(
        take("pocket-french", PullVoices::Named(vec!["nobody".to_owned()])).unwrap_err().code(),
        "unknown_voice"
    );
    assert_eq!(take("pocket-french", PullVoices::All).unwrap().files.len(), 2 + 26, "eve is not to be had");
    let gated = take("pocket-french:cloning", PullVoices::Default).unwrap_err();
    assert!(gated.to_string().contains("/kyutai/pocket-tts,"), "{gated}");
}

#[test]
fn a_catalogue_model_that_is_a_repository_is_pulled_by_its_alias() {
    let root = tempdir().unwrap();
    let server = Server::start(move |request| {
        if request.target.starts_with("/api/models/nvidia/nemotron-speech-streaming-en-0.6b/revision/main") {
            let names = ["m.nemo", "config.json", "model.safetensors", "tokenizer.json"]
                .map(|name| format!("{{\"rfilename\":\"{name}\"}}"))
                .join(",");
            Reply::new(200).body(format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{names}]}}"))
        } else if request.target.ends_with(".nemo") {
            Reply::new(500)
        } else {
            let content = request.target.rsplit('/').next().unwrap().as_bytes().to_vec();
            let reply = Reply::new(200).with("ETag", git_hash(&content)).with("X-Repo-Commit", COMMIT);
            reply.body(content)
        }
    });
    let store = Store::new(crate::hub::settings(root.path(), &server.url()));
    let pulled = pull_with(&store, "nemotron", &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!((pulled.id.as_str(), pulled.files.len()), ("nemotron-speech-streaming-en-0.6b", 3));
    let found = store.find("nemotron").unwrap();
    assert_eq!(fs::read(&found.weights[0]).unwrap(), b"model.safetensors");
    let voice = PullOptions { voices: PullVoices::Named(vec!["alba".into()]), ..PullOptions::default() };
    let reference = Reference::parse("nemotron").unwrap();
    let refused = store.pull(&reference, &voice, &Cancel::new(), &mut |_| {}).unwrap_err();
    assert_eq!(refused.code(), "unknown_voice");
    let mut settings = crate::hub::settings(root.path(), &server.url());
    settings.offline = true;
    let offline = Store::new(settings);
    assert_eq!(pull_with(&offline, "nemotron", &Cancel::new(), &mut |_| {}).unwrap().id, pulled.id);
    assert_eq!(pull_with(&offline, "parakeet", &Cancel::new(), &mut |_| {}).unwrap_err().code(), "offline");
}
