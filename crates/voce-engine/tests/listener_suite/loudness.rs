//! Soft speech is heard nearly as well as usual speech, usual speech as before, and noise as nothing.

use voce_engine::listener::ListenRequest;

use crate::reports::{CLIPS, ear, speech, words};
use crate::support::{Dice, hear};

/// The same audio softer by some dB, rounded to 16 bits as a recording is.
fn softer(samples: &[f32], db: f32) -> Vec<f32> {
    let factor = 10f32.powf(-db / 20.0);
    samples.iter().map(|s| (s * factor * 32767.0).round() / 32768.0).collect()
}

/// The fewest words that are put in, left out or changed.
fn distance(a: &[String], b: &[String]) -> usize {
    let mut before: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut now = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            now.push((before[j + 1] + 1).min(now[j] + 1).min(before[j] + usize::from(x != y)));
        }
        before = now;
    }
    before[b.len()]
}

#[test]
fn soft_speech_is_raised_and_usual_speech_is_left_alone() {
    let listener = ear(1);
    let (with, without) = (ListenRequest::default(), ListenRequest::default().with_gain(Some(false)));
    let (mut all, mut raised, mut soft) = (0, 0, 0);
    for name in CLIPS {
        let audio = speech(name);
        let usual = hear(&listener, &without, &audio);
        assert_eq!(hear(&listener, &with, &audio), usual, "{name}");
        let audio = softer(&audio, 40.0);
        let usual = words(&usual);
        all += usual.len();
        raised += distance(&usual, &words(&hear(&listener, &with, &audio)));
        soft += distance(&usual, &words(&hear(&listener, &without, &audio)));
    }
    assert!(4 * raised < all, "{raised} of {all} words are heard otherwise when raised, {soft} when not");
    assert!(2 * raised < soft, "{raised} of {all} words are heard otherwise when raised, {soft} when not");
}

#[test]
fn noise_says_nothing_however_long() {
    let listener = ear(1);
    let mut dice = Dice::new(3);
    // A minute of silence, and five of noise at -60 dB.
    let mut noise = vec![0.0; 60 * 16_000];
    noise.extend((0..300 * 16_000).map(|_| (dice.below(2001) as f32 / 1000.0 - 1.0) * 1.7e-3));
    let heard = hear(&listener, &ListenRequest::default(), &noise);
    assert!(heard.words.is_empty(), "{:?}", heard.words);
}
