//! What a stream hears does not depend on how its audio arrives, nor on what is heard beside it.

use voce_engine::listener::{Endpointing, ListenRequest};

use crate::support::{Dice, chunk, clip, feed, hear, open, rest, when_free};

/// About eight seconds of speech-like sound with pauses.
fn long() -> Vec<f32> {
    let mut audio = clip("long.wav");
    audio.extend(vec![0.0; 9_000]);
    audio.extend(clip("b.wav"));
    audio
}

#[test]
fn pieces_of_any_size_give_the_same() {
    let audio = long();
    let endpoint = Endpointing::default().with_silence_ms(Some(240)).with_max_ms(Some(4_000));
    let mut dice = Dice::new(7);
    for (name, requests) in [
        ("stream", vec![chunk(320), chunk(80), chunk(160).with_endpoint(endpoint)]),
        ("stream_left70", vec![chunk(80).with_endpoint(endpoint).with_beam(3)]),
        ("tdt", vec![ListenRequest::default().with_endpoint(endpoint)]),
    ] {
        let listener = open(name, 1);
        for request in requests {
            let whole = hear(&listener, &request, &audio);
            assert!(!whole.segments.is_empty(), "{name}");
            for _ in 0..3 {
                let sizes: Vec<usize> = (0..40).map(|_| 1 + dice.below(5_000)).collect();
                let (sender, mut stream) = listener.listen(&request).unwrap();
                feed(sender, &audio, &sizes);
                assert_eq!(rest(&mut stream), whole, "{name} {sizes:?}");
            }
            let slow = request.with_chunks_per_step(1);
            assert_eq!(hear(&listener, &slow, &audio), whole, "{name}, a chunk a step");
        }
    }
}

#[test]
fn streams_side_by_side_hear_what_they_hear_alone() {
    let clips = [clip("a.wav"), clip("b.wav"), clip("long.wav")];
    for name in ["stream", "rnnt"] {
        let alone = open(name, 1);
        let together = open(name, 4);
        let chunks: &[u32] = if name == "stream" { &[80, 160, 320] } else { &[0] };
        let request = |i: usize| match chunks[i % chunks.len()] {
            0 => ListenRequest::default(),
            ms => chunk(ms).with_beam(1 + i % 2 * 2),
        };
        let want: Vec<_> = (0..12).map(|i| hear(&alone, &request(i), &clips[i % 3])).collect();
        let mut dice = Dice::new(3);
        // Streams join and leave while others go on; every third is dropped half way.
        for round in 0..3 {
            let mut open = Vec::new();
            for k in 0..4 {
                let i = (round * 4 + k) % 12;
                let (mut sender, stream) = when_free(&together, &request(i));
                if k == 3 {
                    sender.push(&clips[i % 3][..9_000]).unwrap();
                    drop(stream);
                    continue;
                }
                let sizes: Vec<usize> = (0..20).map(|_| 1 + dice.below(3_000)).collect();
                feed(sender, &clips[i % 3], &sizes);
                open.push((i, stream));
            }
            for (i, mut stream) in open {
                assert_eq!(rest(&mut stream), want[i], "{name} {i}");
            }
        }
    }
}

#[test]
fn statistics_add_up() {
    let listener = open("stream", 1);
    let audio = clip("a.wav");
    let (sender, mut stream) = listener.listen(&chunk(320)).unwrap();
    feed(sender, &audio, &[1_000]);
    let heard = rest(&mut stream);
    let stats = stream.stats();
    assert_eq!(stats.audio, audio.len() as f64 / 16_000.0);
    assert!((stats.consumed - stats.audio).abs() < 0.02, "{stats:?}");
    assert!(stats.lag() < 0.02 && stats.steps > 0 && stats.first_word.is_some());
    assert_eq!(stats.words, heard.words.len());
    assert!(stats.step_times.quantile(0.5) <= stats.step_times.quantile(0.99));
    let all = listener.take_stats();
    assert!(all.steps >= stats.steps && all.frames == stats.frames);
    assert_eq!(listener.stats().steps, 0);
}

#[test]
fn silence_gives_nothing_and_an_empty_stream_ends() {
    for name in ["stream", "tdt", "ctc"] {
        let listener = open(name, 1);
        assert_eq!(hear(&listener, &ListenRequest::default(), &[]), Default::default(), "{name}");
        assert_eq!(hear(&listener, &ListenRequest::default(), &[0.0; 100]), Default::default(), "{name}");
    }
}
