//! Pulls that meet trouble: broken connections, refusals, wrong bytes, hostile replies.

use std::fs;
use std::time::Duration;

use tempfile::tempdir;
use voce_engine::store::{Cancel, Event, MAX_JSON, MAX_REDIRECTS, Store, StoreError};

use crate::hub::{COMMIT, FakeHub, REPO, git_hash, noise, pull, pull_with, repo_dir, settings, sha256};
use crate::server::{Reply, Server};

const BIG: usize = 300_000;

fn one_big(seed: u64) -> (FakeHub, Vec<u8>) {
    let content = noise(BIG, seed);
    (FakeHub::start(&[("model.safetensors", content.clone())]), content)
}

#[test]
fn dropped_connections_are_resumed() {
    for seed in 0..8_usize {
        let root = tempdir().unwrap();
        let (hub, content) = one_big(seed as u64);
        let cuts: Vec<usize> = (0..6).map(|i| (seed * 7919 + i * 104_729) % (BIG / 8)).collect();
        hub.cut_next(cuts.clone());
        let pulled = pull(&hub.store(root.path())).unwrap();
        assert_eq!(fs::read(&pulled.files[0].path).unwrap(), content);
        let mut from = 0;
        for (request, cut) in hub.storage.requests().iter().zip(cuts.iter().chain([&BIG])) {
            assert_eq!(request.range().unwrap_or(0), from, "each request goes on where the last one broke");
            from += cut;
        }
    }
}

#[test]
fn gives_up_when_nothing_arrives_and_resumes_next_time() {
    let root = tempdir().unwrap();
    let (hub, content) = one_big(3);
    let store = hub.store(root.path());
    hub.cut_next([1000, 0, 0, 0, 0]);
    let error = pull(&store).unwrap_err();
    assert!(matches!(&error, StoreError::Network { .. }), "{error}");
    assert!(error.to_string().contains("resume"), "{error}");
    let partial = repo_dir(root.path()).join("blobs").join(format!("{}.incomplete", sha256(&content)));
    assert_eq!(fs::read(&partial).unwrap(), content[..1000]);

    let mut resumed = None;
    let pulled = pull_with(&store, REPO, &Cancel::new(), &mut |event| {
        if let Event::Started { resumed: from, .. } = event {
            resumed = Some(*from);
        }
    })
    .unwrap();
    assert_eq!(resumed, Some(1000));
    assert_eq!(hub.storage.requests().last().unwrap().range(), Some(1000));
    assert_eq!(fs::read(&pulled.files[0].path).unwrap(), content);
    assert!(!partial.exists());
}

#[test]
fn server_without_ranges_starts_over() {
    let root = tempdir().unwrap();
    let (hub, content) = one_big(4);
    hub.cut_next([70_000]);
    hub.fail_next([Reply::new(200).body(content.clone())]);
    let pulled = pull(&hub.store(root.path())).unwrap();
    assert_eq!(fs::read(&pulled.files[0].path).unwrap(), content);
}

#[test]
fn wrong_range_is_not_believed() {
    let root = tempdir().unwrap();
    let (hub, content) = one_big(5);
    hub.cut_next([70_000]);
    let other =
        Reply::new(206).with("Content-Range", format!("bytes 5-{}/{BIG}", BIG - 1)).body(&content[5..]);
    hub.fail_next([other]);
    let pulled = pull(&hub.store(root.path())).unwrap();
    assert_eq!(fs::read(&pulled.files[0].path).unwrap(), content);
}

#[test]
fn wrong_bytes_are_deleted() {
    for (name, len) in [("large.safetensors", BIG), ("small.model", 200)] {
        let root = tempdir().unwrap();
        let content = noise(len, 6);
        let hub = FakeHub::start(&[(name, content.clone())]);
        let mut wrong = content.clone();
        wrong[len / 2] ^= 1;
        hub.fail_next([Reply::new(200).body(wrong)]);
        let store = hub.store(root.path());
        let error = pull(&store).unwrap_err();
        assert!(matches!(&error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("again"), "{error}");
        assert_eq!(fs::read_dir(repo_dir(root.path()).join("blobs")).unwrap().count(), 0);
        assert!(store.find(REPO).is_err());
        assert_eq!(fs::read(&pull(&store).unwrap().files[0].path).unwrap(), content);
    }
}

#[test]
fn damaged_partial_of_an_earlier_run_is_thrown_away() {
    let root = tempdir().unwrap();
    let (hub, content) = one_big(7);
    let blobs = repo_dir(root.path()).join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.incomplete", sha256(&content))), noise(5000, 99)).unwrap();
    let pulled = pull(&hub.store(root.path())).unwrap();
    assert_eq!(fs::read(&pulled.files[0].path).unwrap(), content);
    let ranges: Vec<_> = hub.storage.requests().iter().map(|request| request.range()).collect();
    assert_eq!(ranges, [Some(5000), None]);
}

#[test]
fn too_many_bytes_are_refused() {
    let root = tempdir().unwrap();
    let (hub, content) = one_big(8);
    let mut longer = content.clone();
    longer.push(0);
    hub.fail_next([Reply::new(200).body(longer)]);
    assert_eq!(pull(&hub.store(root.path())).unwrap_err().code(), "damaged");
}

#[test]
fn refusals() {
    let gone = |status| Reply::new(status).with("X-Error-Code", "GatedRepo");
    for (reply, code, hint) in [
        (gone(401), "gated", "HF_TOKEN"),
        (gone(403), "gated", "/acme/talker"),
        (Reply::new(401).with("X-Error-Code", "RepoNotFound"), "not_found", "acme/talker"),
        (Reply::new(404), "not_found", "check the name"),
        (Reply::new(418), "bad_reply", "418"),
        (Reply::new(429).with("Retry-After", "9999"), "rate_limited", "9999"),
    ] {
        let root = tempdir().unwrap();
        let (hub, _) = one_big(9);
        hub.front_faults.lock().unwrap().push_back(Some(reply));
        let error = pull(&hub.store(root.path())).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(hint), "{error}");
        assert!(!error.to_string().contains("hf_secret"));
    }
}

#[test]
fn gated_file_in_an_open_repository() {
    let root = tempdir().unwrap();
    let (hub, _) = one_big(9);
    hub.front_faults.lock().unwrap().extend([None, Some(Reply::new(403))]);
    assert_eq!(pull(&hub.store(root.path())).unwrap_err().code(), "gated");
}

#[test]
fn passing_trouble_is_waited_out() {
    let root = tempdir().unwrap();
    let (hub, content) = one_big(10);
    hub.front_faults.lock().unwrap().extend([
        Some(Reply::new(500)),
        Some(Reply::new(429).with("Retry-After", "0")),
        None,
        Some(Reply::new(503)),
    ]);
    // A storage host that refuses a signed address is asked again with a fresh one.
    hub.fail_next([Reply::new(403), Reply::new(502)]);
    let mut retries = Vec::new();
    let pulled = pull_with(&hub.store(root.path()), REPO, &Cancel::new(), &mut |event| {
        if let Event::Retrying { attempt, wait, .. } = event {
            retries.push((*attempt, *wait));
        }
    })
    .unwrap();
    assert_eq!(fs::read(&pulled.files[0].path).unwrap(), content);
    // Each wait is jittered between half and all of its time, but for the one that the server asked for.
    let expected = [(1, 1), (2, 0), (1, 1), (1, 1), (2, 2)];
    assert_eq!(retries.len(), expected.len(), "{retries:?}");
    for ((attempt, wait), (n, ms)) in retries.iter().zip(expected) {
        let most = Duration::from_millis(ms);
        assert!(*attempt == n && *wait <= most && *wait >= most / 2, "{retries:?}");
    }
}

#[test]
fn retry_after_sets_the_wait() {
    let root = tempdir().unwrap();
    let (hub, _) = one_big(11);
    hub.front_faults.lock().unwrap().push_back(Some(Reply::new(429).with("Retry-After", "37")));
    let cancel = Cancel::new();
    let mut waited = None;
    let error = pull_with(&hub.store(root.path()), REPO, &cancel, &mut |event| {
        if let Event::Retrying { wait, .. } = event {
            waited = Some(*wait);
            cancel.cancel();
        }
    })
    .unwrap_err();
    assert_eq!((error.code(), waited), ("cancelled", Some(Duration::from_secs(37))));
}

#[test]
fn lasting_server_errors_end() {
    let root = tempdir().unwrap();
    let (hub, _) = one_big(12);
    hub.front_faults.lock().unwrap().extend((0..5).map(|_| Some(Reply::new(500))));
    assert_eq!(pull(&hub.store(root.path())).unwrap_err().code(), "network");
    assert_eq!(hub.front.requests().len(), 5, "one try and four more");
}

/// A hub with one file, whose listing and file answers are given.
fn odd_hub(listing: String, file: Reply) -> Server {
    Server::start(move |request| {
        if request.target.starts_with("/api/") { Reply::new(200).body(listing.clone()) } else { file.clone() }
    })
}

fn listing(name: &str) -> String {
    format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{{\"rfilename\":{name:?}}}]}}")
}

#[test]
fn hostile_replies() {
    let tag = "a".repeat(40);
    let fine = Reply::new(200).with("ETag", tag.clone()).body("x");
    let other_commit = fine.clone().with("X-Repo-Commit", "f".repeat(40));
    for (listing, file, code) in [
        (listing("../../evil.bin"), fine.clone(), "unsafe_name"),
        (listing("/etc/evil"), fine.clone(), "unsafe_name"),
        (listing("a\\..\\evil"), fine.clone(), "unsafe_name"),
        ("{\"sha\":\"../../x\",\"siblings\":[]}".to_owned(), fine.clone(), "bad_reply"),
        ("not json".to_owned(), fine.clone(), "bad_reply"),
        (listing("a.bin"), Reply::new(200).with("ETag", "\"../../../evil\"").body("x"), "bad_reply"),
        (listing("a.bin"), Reply::new(200).body("x"), "bad_reply"),
        (listing("a.bin"), other_commit, "bad_reply"),
        (listing("a.bin"), fine, "damaged"),
        (listing("a.bin"), Reply::new(302), "bad_reply"),
        (listing("a.bin"), Reply::new(302).with("Location", "ftp://x/y"), "bad_reply"),
        (listing("a.bin"), Reply::new(302).with("Location", "/loop"), "bad_reply"),
    ] {
        let root = tempdir().unwrap();
        let server = odd_hub(listing.clone(), file);
        let error = pull(&Store::new(settings(root.path(), &server.url()))).unwrap_err();
        assert_eq!(error.code(), code, "{listing}: {error}");
        assert!(server.requests().len() <= MAX_REDIRECTS + 2);
        assert!(!root.path().join("evil").exists());
    }
}

#[test]
fn listing_up_to_the_limit_and_not_past_it() {
    for (extra, code) in [(0, "damaged"), (1, "bad_reply")] {
        let root = tempdir().unwrap();
        let mut text = listing("a.bin");
        text.push_str(&" ".repeat(MAX_JSON as usize + extra - text.len()));
        let server = odd_hub(text, Reply::new(200).with("ETag", "a".repeat(40)).body("x"));
        let error = pull(&Store::new(settings(root.path(), &server.url()))).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
}

#[test]
fn redirects_up_to_the_limit_and_not_past_it() {
    for (hops, fine) in [(MAX_REDIRECTS - 1, true), (MAX_REDIRECTS, false)] {
        let root = tempdir().unwrap();
        let server = Server::start(move |request| {
            let hop: usize = request.target.strip_prefix("/hop/").map_or(0, |hop| hop.parse().unwrap());
            if request.target.starts_with("/api/") {
                Reply::new(200).body(listing("a.model"))
            } else if hop < hops {
                Reply::new(302).with("Location", format!("/hop/{}", hop + 1))
            } else {
                Reply::new(200).with("ETag", git_hash(b"x")).body("x")
            }
        });
        let pulled = pull(&Store::new(settings(root.path(), &server.url())));
        assert_eq!(pulled.is_ok(), fine, "{pulled:?}");
    }
}

#[test]
fn tag_that_is_no_hash_is_checked_by_size() {
    let root = tempdir().unwrap();
    let server = odd_hub(listing("a.model"), Reply::new(200).with("ETag", "\"opaque-1\"").body("content"));
    let pulled = pull(&Store::new(settings(root.path(), &server.url()))).unwrap();
    assert_eq!(fs::read(&pulled.files[0].path).unwrap(), b"content");
    assert!(repo_dir(root.path()).join("blobs/opaque-1").exists());
}

#[test]
fn tag_of_a_storage_host_is_not_the_files() {
    let root = tempdir().unwrap();
    let storage = Server::start(|_| Reply::new(200).with("ETag", "\"tag-of-storage\"").body("content"));
    let elsewhere = Reply::new(302).with("Location", format!("{}/x", storage.url()));
    let server = odd_hub(listing("a.model"), elsewhere);
    let error = pull(&Store::new(settings(root.path(), &server.url()))).unwrap_err();
    assert_eq!(error.code(), "bad_reply", "{error}");
    assert!(storage.requests().iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn more_than_the_disk_holds() {
    let root = tempdir().unwrap();
    let size = (u64::MAX / 4).to_string();
    let head = Reply::new(302)
        .with("Location", "/never")
        .with("X-Linked-Etag", "a".repeat(64))
        .with("X-Linked-Size", size);
    let server = odd_hub(listing("a.model"), head);
    let error = pull(&Store::new(settings(root.path(), &server.url()))).unwrap_err();
    assert_eq!(error.code(), "disk_full", "{error}");
    assert_eq!(server.count("GET", "/resolve/"), 0, "not a byte was asked for");
}
