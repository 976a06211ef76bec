//! Whole utterances against the published package, and the same bits whatever the threads, overlap and batch.

mod support;

use support::{SAYING, Talker, exact, same};
use voce_engine::speaker::Overlap;
use voce_nn::Precision;
use voce_runtime::Isa;

/// Ways of sharing up to three threads.
const SHARING: [(usize, Overlap); 5] = [
    (1, Overlap::InTurn),
    (2, Overlap::InTurn),
    (2, Overlap::Beside),
    (3, Overlap::InTurn),
    (3, Overlap::Beside),
];

/// Checks audio of a `say` block chunk by chunk.
fn check(what: &str, case: &str, t: &Talker, got: &[f32]) {
    let want = t.said_audio();
    assert_eq!(got.len(), want.len(), "{what}");
    let frame = want.len() / t.said_frames().iter().sum::<usize>();
    let scale = want.iter().fold(0f32, |m, v| m.max(v.abs()));
    let mut at = 0;
    for (i, frames) in t.said_frames().into_iter().enumerate() {
        let worst = |frames: std::ops::Range<usize>| {
            let part = (at + frames.start) * frame..(at + frames.end) * frame;
            got[part.clone()].iter().zip(&want[part]).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max) / scale
        };
        let (early, whole) = (worst(0..frames.min(6)), worst(0..frames));
        // Without noise, that one chunk amplifies the last bit ten times every four frames.
        let bound = if (case, i) == ("lsd4", 3) { 5e-2 } else { 1e-3 };
        assert!(early < 1e-4 && whole < bound, "{what}, chunk {i}: off by {early:e}, then {whole:e}");
        at += frames;
    }
}

#[test]
fn what_the_package_says_is_said_however_the_work_is_shared() {
    for case in SAYING {
        let mut first: Option<Vec<f32>> = None;
        for (threads, overlap) in SHARING {
            let t = Talker::new(case, &exact().with_threads(threads).with_overlap(overlap));
            let (text, mut request) = t.said();
            for lockstep in [1, 4] {
                // Where one chunk is all, there is nothing to lock; and more threads than cores are slow.
                let chunks = t.said_frames().len();
                if if chunks == 1 { lockstep > 1 } else { threads > 1 && (lockstep == 1 || threads == 3) } {
                    continue;
                }
                request.lockstep = lockstep;
                let what = format!("{case}, {threads} threads {overlap:?}, lockstep {lockstep}");
                let mut stream = t.speaker.speak(&text, &request).unwrap();
                let got = support::audio(&mut stream);
                let stats = stream.stats();
                let frames = t.said_frames();
                assert_eq!(stats.passages, frames.len(), "{what}");
                assert_eq!(stats.frames, frames.iter().sum::<usize>(), "{what}");
                assert_eq!(stats.samples, got.len(), "{what}");
                assert_eq!(stats.unended, 0, "{what}");
                check(&what, case, &t, &got);
                same(&what, &got, first.get_or_insert_with(|| got.clone()));
            }
        }
    }
}

#[test]
fn what_the_package_says_is_said_by_every_instruction_set() {
    for isa in Isa::available() {
        for case in SAYING {
            let t = Talker::new(case, &exact().with_isa(Some(isa)));
            let (text, request) = t.said();
            check(&format!("{case} on {isa}"), case, &t, &t.say(&text, &request));
        }
    }
}

#[test]
fn every_precision_has_the_same_bits_however_the_work_is_shared() {
    for precision in Precision::ON_CPU {
        let mut first: Option<Vec<f32>> = None;
        for (threads, overlap) in [SHARING[0], SHARING[1], SHARING[4]] {
            let t = Talker::new(
                "wide_speaker",
                &exact().with_precision(Some(precision)).with_threads(threads).with_overlap(overlap),
            );
            let request = t.request().with_max_tokens(20).with_temperature(Some(0.5)).with_seed(7);
            let lockstep = if threads == 1 { 1 } else { 4 };
            let got = t.say("Hello world. Go and look. What is it?", &request.with_lockstep(lockstep));
            let what = format!("{precision}, {threads} threads {overlap:?}, lockstep {lockstep}");
            same(&what, &got, first.get_or_insert_with(|| got.clone()));
        }
    }
}
