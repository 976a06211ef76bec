//! Pulls and other actors: two at once, a caller that cancels, another program that holds the lock.

use std::fs::{self, File};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};

use tempfile::tempdir;
use voce_engine::store::{Cancel, Event, Store};

use crate::hub::{COMMIT, FakeHub, REPO, noise, pull, pull_with, repo_dir, settings, sha256};
use crate::server::{Reply, Server};

#[test]
fn two_pulls_at_once_fetch_once() {
    let root = tempdir().unwrap();
    let content = noise(400_000, 20);
    let hub = FakeHub::start(&[("model.safetensors", content.clone())]);
    let store = hub.store(root.path());
    // Both have found the file missing before either may begin to fetch it.
    let barrier = Barrier::new(2);
    let paths: Vec<_> = std::thread::scope(|scope| {
        let run = || {
            let mut report = |event: &Event<'_>| {
                if let Event::Planned { .. } = event {
                    barrier.wait();
                }
            };
            pull_with(&store, REPO, &Cancel::new(), &mut report).unwrap().files[0].path.clone()
        };
        let threads = [scope.spawn(run), scope.spawn(run)];
        threads.map(|thread| thread.join().unwrap()).to_vec()
    });
    assert_eq!(paths[0], paths[1]);
    assert_eq!(fs::read(&paths[0]).unwrap(), content);
    assert_eq!(hub.storage.count("GET", "/store/"), 1);
}

#[test]
fn held_lock_is_waited_for_and_can_be_left() {
    let root = tempdir().unwrap();
    let content = noise(5000, 21);
    let hub = FakeHub::start(&[("model.safetensors", content.clone())]);
    let store = hub.store(root.path());
    let locks = root.path().join("hub/.locks/models--acme--talker");
    fs::create_dir_all(&locks).unwrap();
    let lock = File::create(locks.join(format!("{}.lock", sha256(&content)))).unwrap();
    lock.lock().unwrap();

    let cancel = Cancel::new();
    let stopped = pull_with(&store, REPO, &cancel, &mut |event| {
        if let Event::Waiting { .. } = event {
            cancel.cancel();
        }
    });
    assert_eq!(stopped.unwrap_err().code(), "cancelled");
    assert_eq!(hub.storage.requests().len(), 0);

    let mut lock = Some(lock);
    let pulled = pull_with(&store, REPO, &Cancel::new(), &mut |event| {
        if let Event::Waiting { .. } = event {
            lock = None;
        }
    })
    .unwrap();
    assert!(lock.is_none(), "the pull did wait");
    assert_eq!(fs::read(&pulled.files[0].path).unwrap(), content);
}

#[test]
fn cancel_keeps_what_arrived() {
    let root = tempdir().unwrap();
    let content = noise(3_000_000, 22);
    let hub = FakeHub::start(&[("model.safetensors", content.clone())]);
    let store = hub.store(root.path());
    let cancel = Cancel::new();
    let mut kept = 0;
    let stopped = pull_with(&store, REPO, &cancel, &mut |event| {
        if let Event::Bytes { done, .. } = event {
            kept = *done;
            cancel.cancel();
        }
    });
    assert_eq!(stopped.unwrap_err().code(), "cancelled");
    let partial = repo_dir(root.path()).join("blobs").join(format!("{}.incomplete", sha256(&content)));
    assert_eq!(fs::read(partial).unwrap(), content[..kept as usize]);
    assert!(kept > 0 && (kept as usize) < content.len());

    let again = pull_with(&store, REPO, &cancel, &mut |_| {});
    assert_eq!(again.unwrap_err().code(), "cancelled", "a thrown switch stays thrown");
    let pulled = pull(&store).unwrap();
    assert_eq!(fs::read(&pulled.files[0].path).unwrap(), content);
    assert_eq!(hub.storage.requests().last().unwrap().range(), Some(kept as usize));
}

#[test]
fn cancel_cuts_a_silent_server() {
    let root = tempdir().unwrap();
    let (asked, seen) = mpsc::sync_channel(1);
    let (release, held) = mpsc::sync_channel::<()>(1);
    let held = std::sync::Mutex::new(held);
    let server = Server::start(move |_| {
        let _ = asked.send(());
        // Held until the test is over: without the cut, the pull would wait for its timeout.
        let _ = held.lock().unwrap().recv();
        Reply::new(500)
    });
    let mut settings = settings(root.path(), &server.url());
    settings.patience.silence = std::time::Duration::from_secs(3600);
    let store = Store::new(settings);
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        let pulling = scope.spawn(|| pull_with(&store, REPO, &cancel, &mut |_| {}));
        seen.recv().unwrap();
        cancel.cancel();
        assert_eq!(pulling.join().unwrap().unwrap_err().code(), "cancelled");
    });
    drop(release);
}

#[test]
fn blob_of_another_commit_is_linked_not_fetched() {
    let root = tempdir().unwrap();
    let content = noise(5000, 23);
    let hub = FakeHub::start(&[("model.safetensors", content.clone())]);
    let blobs = repo_dir(root.path()).join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(sha256(&content)), &content).unwrap();
    let pulled = pull(&hub.store(root.path())).unwrap();
    assert_eq!(fs::read(&pulled.files[0].path).unwrap(), content);
    assert_eq!(hub.storage.requests().len(), 0);
}

#[test]
fn moved_branch_gets_a_new_snapshot() {
    let root = tempdir().unwrap();
    let turn = Arc::new(AtomicUsize::new(0));
    let now = turn.clone();
    let commits = [COMMIT.to_owned(), "f".repeat(40)];
    let server_commits = commits.clone();
    let server = Server::start(move |request| {
        let commit = &server_commits[now.load(Ordering::SeqCst)];
        if request.target.starts_with("/api/") {
            return Reply::new(200)
                .body(format!("{{\"sha\":\"{commit}\",\"siblings\":[{{\"rfilename\":\"a.model\"}}]}}"));
        }
        let content = format!("content of {commit}");
        let tag = crate::hub::etag_of(content.as_bytes());
        Reply::new(200).with("ETag", tag).with("X-Repo-Commit", commit.clone()).body(content)
    });
    let store = Store::new(settings(root.path(), &server.url()));
    for (i, commit) in commits.iter().enumerate() {
        turn.store(i, Ordering::SeqCst);
        let pulled = pull(&store).unwrap();
        assert_eq!(fs::read_to_string(&pulled.files[0].path).unwrap(), format!("content of {commit}"));
        assert_eq!(fs::read_to_string(repo_dir(root.path()).join("refs/main")).unwrap(), *commit);
    }
    assert_eq!(fs::read_dir(repo_dir(root.path()).join("snapshots")).unwrap().count(), 2);
}
