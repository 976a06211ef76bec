//! A stream that was saved goes on as if never interrupted.

use voce_engine::EngineError;
use voce_engine::listener::{Endpointing, ListenRequest, Listener};

use crate::support::{Dice, Heard, chunk, clip, exact, feed, hear, open, rest, until_end, when_free};

fn joined(mut a: Heard, b: Heard) -> Heard {
    a.segments.extend(b.segments);
    a.words.extend(b.words);
    a.ends.extend(b.ends);
    a
}

#[test]
fn the_transcript_continues() {
    let mut audio = clip("long.wav");
    audio.extend(clip("a.wav"));
    let endpoint = Endpointing::default().with_silence_ms(Some(240)).with_max_ms(None);
    for (name, request) in [
        ("stream", chunk(320).with_endpoint(endpoint)),
        ("stream", chunk(160).with_beam(3)),
        ("stream_left70", chunk(80)),
        ("prompt", ListenRequest::default().with_language(Some("de-DE".into()))),
        ("tdt", ListenRequest::default()),
    ] {
        let (here, there) = (open(name, 1), open(name, 2));
        let whole = hear(&here, &request, &audio);
        for cut in [0, 1, 3_333, 16_000, 47_123, audio.len()] {
            let (mut sender, mut stream) = here.listen(&request).unwrap();
            sender.push(&audio[..cut]).unwrap();
            let saved = sender.snapshot().unwrap();
            // The first stream breaks off here; what it told so far counts.
            drop(sender);
            let mut before = Heard::default();
            for event in stream.by_ref() {
                match event {
                    Ok(event) => before.add(event),
                    Err(e) => assert!(matches!(e, EngineError::Abandoned), "{e}"),
                }
            }
            drop(stream);
            let (sender, mut stream) = there.resume(&saved, &request).unwrap();
            assert!((sender.seconds() - cut as f64 / 16_000.0).abs() < 1e-9);
            feed(sender, &audio[cut..], &[777]);
            let got = joined(before, rest(&mut stream));
            assert_eq!(got.segments, whole.segments, "{name} at {cut}");
            assert_eq!(got.words, whole.words, "{name} at {cut}: no word twice, none lost");
            assert_eq!(got.ends, whole.ends, "{name} at {cut}");
        }
    }
}

#[test]
fn a_saved_stream_goes_on_itself() {
    let listener = open("stream", 1);
    let audio = clip("long.wav");
    let whole = hear(&listener, &chunk(320), &audio);
    let (mut sender, mut stream) = listener.listen(&chunk(320)).unwrap();
    for piece in audio.chunks(20_000) {
        sender.push(piece).unwrap();
        assert!(sender.snapshot().unwrap().len() > 100);
    }
    sender.finish();
    assert_eq!(rest(&mut stream), whole);
}

#[test]
fn what_does_not_fit_is_refused() {
    let listener = open("stream", 2);
    let (mut sender, _stream) = listener.listen(&chunk(320)).unwrap();
    sender.push(&clip("a.wav")).unwrap();
    let saved = sender.snapshot().unwrap();
    let refused = |l: &voce_engine::listener::Listener, bytes: &[u8], r: &ListenRequest| {
        // Some faults are found when the thread takes the stream.
        match l.resume(bytes, r) {
            Err(e) => matches!(e, EngineError::Snapshot(_)),
            Ok((_sender, mut stream)) => matches!(stream.next(), Some(Err(EngineError::Snapshot(_)))),
        }
    };
    assert!(refused(&listener, &saved, &chunk(80)), "another chunk");
    assert!(refused(&open("stream_left70", 1), &saved, &ListenRequest::default()), "another model");
    assert!(refused(&listener, &saved[..saved.len() - 9], &ListenRequest::default()));
    assert!(refused(&listener, b"voce", &ListenRequest::default()));
    assert!(refused(&listener, &saved, &chunk(320).with_beam(2)), "another beam");
    let mut ears = 0;
    for at in (0..saved.len()).step_by(saved.len() / 200) {
        let mut bad = saved.clone();
        bad[at] ^= 0x5a;
        // Damage that cannot be seen gives another text, never a crash.
        if let Ok((sender, mut stream)) = listener.resume(&bad, &chunk(320)) {
            sender.finish();
            ears += usize::from(stream.by_ref().all(|e| e.is_ok()));
        }
    }
    assert!(ears > 0);
    drop(sender);
    let whole = clip("b.wav");
    assert!(!hear(&listener, &chunk(320), &whole).segments.is_empty(), "the listener still hears");
}

#[test]
fn other_weights_of_the_same_shape_are_refused() {
    let [a, b, again] = [1, 2, 1].map(|seed| Listener::random("nano-ear", seed, &exact(1)).unwrap());
    let (mut sender, _stream) = a.listen(&ListenRequest::default()).unwrap();
    sender.push(&clip("a.wav")).unwrap();
    let saved = sender.snapshot().unwrap();
    match b.resume(&saved, &ListenRequest::default()) {
        Err(EngineError::Snapshot(why)) => assert!(why.contains("other weights"), "{why}"),
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("a stream went on with other weights"),
    }
    assert!(again.resume(&saved, &ListenRequest::default()).is_ok());
}

/// Words that a forger would write where a length, a position or an index is read.
const FORGED: [u64; 8] = [0, 1, 7, 1 << 20, (1 << 30) - 1, 1 << 31, u64::MAX / 8, u64::MAX];

/// A snapshot with one word forged, or some bytes damaged; the fingerprint stays.
fn forge(saved: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = saved.to_vec();
    if dice.below(3) > 0 {
        // Most of what is read as a length lies near the start.
        let words = if dice.below(2) == 0 { 64 } else { (bytes.len() - 24) / 8 };
        let at = 16 + 8 * dice.below(words);
        bytes[at..at + 8].copy_from_slice(&FORGED[dice.below(FORGED.len())].to_le_bytes());
    } else {
        for _ in 0..1 + dice.below(4) {
            let at = 16 + dice.below(bytes.len() - 16);
            bytes[at] ^= 1 + dice.below(255) as u8;
        }
    }
    bytes
}

#[test]
fn forged_snapshots_harm_nobody_else() {
    let audio = clip("long.wav");
    let (mut dice, mut gone_on, mut refused) = (Dice::new(11), 0, 0);
    for (name, request) in [
        ("stream", chunk(160)),
        ("stream", chunk(80).with_beam(3)),
        ("prompt", ListenRequest::default()),
        ("tdt", ListenRequest::default().with_beam(2)),
        ("ctc", ListenRequest::default().with_beam(3)),
    ] {
        let want = hear(&open(name, 1), &request, &audio);
        let listener = open(name, 4);
        let (mut sender, _kept) = listener.listen(&request).unwrap();
        sender.push(&audio[..20_011]).unwrap();
        let saved = sender.snapshot().unwrap();
        drop((sender, _kept));
        let mut honest: Vec<_> = (0..3).map(|_| when_free(&listener, &request)).collect();
        for piece in audio.chunks(audio.len() / 40) {
            honest.iter_mut().for_each(|(sender, _)| sender.push(piece).unwrap());
            match listener.resume(&forge(&saved, &mut dice), &request) {
                Err(EngineError::Snapshot(_)) => refused += 1,
                // The last one may still be on its way out.
                Err(EngineError::Busy(_)) => {}
                Err(e) => panic!("{e}"),
                Ok((mut sender, mut stream)) => {
                    // The stream may end before it has taken anything.
                    let _ = sender.push(&audio[..9_000]);
                    sender.finish();
                    match until_end(&mut stream) {
                        Ok(_) => gone_on += 1,
                        Err(EngineError::Snapshot(_)) => refused += 1,
                        Err(e) => panic!("{name}: {e}"),
                    }
                }
            }
        }
        for (sender, mut stream) in honest {
            sender.finish();
            assert_eq!(rest(&mut stream), want, "{name}");
        }
    }
    assert!(gone_on > 20 && refused > 20, "{gone_on} went on, {refused} were refused");
}
