//! Hundreds of readers that come and go leave nothing behind.
#![cfg(target_os = "linux")]

mod support;

use support::{Dice, ENDLESS, Talker, beside, exact, same};

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Waits until threads that have been told to end are gone; a leak would wait for ever, so it gives up.
fn settle(want: usize) -> usize {
    for _ in 0..1_000_000 {
        if threads() <= want {
            break;
        }
        std::thread::yield_now();
    }
    threads()
}

// One test in this file: others would come and go with threads of their own.
#[test]
fn two_hundred_readers_come_and_go() {
    let begin = threads();
    let team = Talker::new("pointwise", &exact().with_threads(3));
    assert!(!team.say("Go.", &team.request().with_max_frames(Some(2))).is_empty());
    assert_eq!(settle(begin + 3), begin + 3, "a model thread and its two helpers");
    drop(team);
    assert_eq!(settle(begin), begin, "threads of a closed speaker");
    for (i, options) in [exact(), beside()].into_iter().enumerate() {
        let t = Talker::new("drifting", &options.with_slots(5));
        let (text, request) = t.said();
        let healthy = t.say(&text, &request);
        let open = threads();
        assert!(open > begin);
        let book = "Go and look, it is a long way down. ".repeat(500);
        let mut dice = Dice::new(i as u64);
        let mut kept = Vec::new();
        for round in 0..100 {
            let max_frames = [None, Some(1 + dice.below(30)), Some(100_000)][dice.below(3)];
            let eos_threshold = max_frames.and(ENDLESS);
            let request = request
                .clone()
                .with_max_frames(max_frames)
                .with_eos_threshold(eos_threshold)
                .with_lockstep(1 + dice.below(4));
            let mut stream = match dice.below(4) {
                0 => {
                    let (mut sender, stream) = t.speaker.speak_live(&request).unwrap();
                    sender.push("Go and look. And how? It is").unwrap();
                    if dice.below(2) == 0 {
                        sender.finish().unwrap();
                    }
                    stream
                }
                1 if round % 10 == 0 => t.speaker.speak(&book, &request).unwrap(),
                _ => t.speaker.speak(&text, &request).unwrap(),
            };
            for _ in 0..dice.below(4) {
                if stream.next().transpose().unwrap().is_none() {
                    break;
                }
            }
            // Some stay a while, unread: fewer than there are slots, for those without an end keep theirs.
            kept.push(stream);
            while kept.len() > 3 {
                kept.swap_remove(dice.below(kept.len()));
            }
        }
        drop(kept);
        same("after all of them", &t.say(&text, &request), &healthy);
        assert_eq!(settle(open), open, "threads of an open speaker");
        drop(t);
        assert_eq!(settle(begin), begin, "threads of a closed speaker");
    }
}
