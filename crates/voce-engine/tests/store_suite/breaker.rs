//! The breaker around the hub: a hub that fails is left alone, tried again, and trusted again.

use std::fs;
use std::time::Duration;

use tempfile::tempdir;
use voce_engine::breaker::{BreakerRule, BreakerState};
use voce_engine::store::Store;

use crate::hub::{FakeHub, noise, pull};
use crate::server::Reply;

/// Each pull gives up after five failures in a row.
const FAILURES: usize = 5;

fn failing(replies: usize, rest: Duration) -> (FakeHub, Store, tempfile::TempDir, Vec<u8>) {
    let (root, content) = (tempdir().unwrap(), noise(300_000, 5));
    let hub = FakeHub::start(&[("model.safetensors", content.clone())]);
    hub.front_faults.lock().unwrap().extend((0..replies).map(|_| Some(Reply::new(503))));
    let rule = BreakerRule { failures: FAILURES as u32, rest };
    let store = Store::with_breaker(hub.settings(root.path()), rule);
    (hub, store, root, content)
}

#[test]
fn a_failing_hub_is_left_alone() {
    let (hub, store, _root, _) = failing(100, Duration::from_secs(600));
    assert_eq!(store.breaker().stats().state, BreakerState::Closed);
    assert_eq!(pull(&store).unwrap_err().code(), "network");
    let asked = hub.front.requests().len();
    assert_eq!(asked, FAILURES);
    let stats = store.breaker().stats();
    assert_eq!((stats.state, stats.failures, stats.opened), (BreakerState::Open, FAILURES as u64, 1));
    // Who comes now is told at once, and the hub does not hear of it; a clone is the same store.
    let error = pull(&store.clone()).unwrap_err();
    assert_eq!(error.code(), "breaker_open");
    assert!(error.to_string().contains("next try is in"), "{error}");
    assert_eq!((hub.front.requests().len(), store.breaker().stats().refused), (asked, 1));
}

#[test]
fn a_hub_that_is_well_again_is_used_again() {
    // Well after one failure more than opens the breaker, which rests for no time at all.
    let (hub, store, _root, content) = failing(FAILURES + 1, Duration::ZERO);
    assert_eq!(pull(&store).unwrap_err().code(), "network");
    assert_eq!(store.breaker().stats().state, BreakerState::HalfOpen);
    let pulled = pull(&store).unwrap();
    assert_eq!(fs::read(&pulled.files[0].path).unwrap(), content);
    let stats = store.breaker().stats();
    assert_eq!((stats.state, stats.failures, stats.opened), (BreakerState::Closed, FAILURES as u64 + 1, 2));
    assert!(hub.front.requests().len() > FAILURES + 1);
}

#[test]
fn an_answer_is_no_failure() {
    let (hub, store, _root, _) = failing(0, Duration::from_secs(600));
    for _ in 0..2 * FAILURES {
        hub.front_faults.lock().unwrap().push_back(Some(Reply::new(404)));
        assert_eq!(pull(&store).unwrap_err().code(), "not_found");
    }
    // Nor is a connection that breaks after it has brought something.
    hub.cut_next((0..2 * FAILURES).map(|_| 20));
    pull(&store).unwrap();
    let stats = store.breaker().stats();
    assert_eq!((stats.state, stats.failures), (BreakerState::Closed, 0));
}
