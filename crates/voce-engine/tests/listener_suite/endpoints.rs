//! Where utterances end: by decoded frames, with no token in the wrong one.

use voce_engine::listener::{Endpointing, ListenRequest};

use crate::support::{chunk, clip, hear, open, rest};

fn request(silence_ms: Option<u32>, max_ms: Option<u32>, chunk_ms: u32) -> ListenRequest {
    chunk(chunk_ms).with_endpoint(Endpointing::default().with_silence_ms(silence_ms).with_max_ms(max_ms))
}

fn twice() -> Vec<f32> {
    let mut audio = clip("a.wav");
    audio.extend(vec![0.0; 24_000]);
    audio.extend(clip("long.wav"));
    audio
}

#[test]
fn silence_after_speech_ends_an_utterance_and_changes_no_token() {
    let listener = open("stream", 1);
    let audio = twice();
    for (chunk_ms, silence) in [(80, 80), (80, 320), (320, 320), (160, 400)] {
        let whole = hear(&listener, &chunk(chunk_ms), &audio);
        let heard = hear(&listener, &request(Some(silence), None, chunk_ms), &audio);
        assert_eq!(
            (heard.tokens(), heard.frames()),
            (whole.tokens(), whole.frames()),
            "{chunk_ms} {silence}"
        );
        assert!(heard.segments.len() > 1, "{chunk_ms} {silence}");
        // The last utterance ends with the stream.
        assert!(heard.ends.len() + 1 >= heard.segments.len());
        let least = (silence as usize).max(320).div_ceil(80);
        for (segment, (at, reason)) in heard.segments.iter().zip(&heard.ends) {
            assert_eq!(*reason, "silence");
            let end = (at / 0.08).round() as usize;
            assert!(end > segment.frames.last().unwrap() + least, "after that silence at least");
        }
        let words: usize = heard.segments.iter().map(|s| s.words.len()).sum();
        assert_eq!(heard.words.len(), words);
    }
}

#[test]
fn progress_tells_how_far_and_since_when_nothing_was_said() {
    let listener = open("stream", 1);
    let audio = twice();
    for silence in [None, Some(240)] {
        let heard = hear(&listener, &request(silence, None, 80).with_progress(true), &audio);
        assert!(
            heard.progress.windows(2).all(|p| p[0].0 < p[1].0 && p[0].1 <= p[1].1),
            "{:?}",
            heard.progress
        );
        let (at, spoken) = *heard.progress.last().unwrap();
        let seconds = audio.len() as f64 / 16_000.0;
        assert!((seconds - 0.3..seconds + 0.08).contains(&at), "{at} of {seconds}");
        let last = heard.segments.last().unwrap().frames.last().map(|f| (f + 1) as f64 * 0.08);
        assert!(spoken.unwrap() <= last.unwrap() + 1e-6 && spoken.unwrap() > 1.5, "{spoken:?} {last:?}");
    }
    assert_eq!(hear(&listener, &chunk(80), &audio).progress, []);
}

#[test]
fn without_rules_nothing_ends() {
    let heard = hear(&open("stream", 1), &chunk(320), &twice());
    assert_eq!((heard.segments.len(), heard.ends.len()), (1, 0));
}

#[test]
fn utterances_have_a_longest_length_and_are_cut_between_words() {
    let listener = open("stream", 1);
    let whole = hear(&listener, &chunk(80), &clip("long.wav"));
    let heard = hear(&listener, &request(None, Some(1_000), 80), &clip("long.wav"));
    assert!(heard.segments.len() > 1);
    assert!(heard.ends.iter().all(|e| e.1 == "length"));
    for (segment, (at, _)) in heard.segments.iter().zip(&heard.ends) {
        let end = (at / 0.08).round() as usize;
        assert!(end >= segment.frames[0] + 13, "a second in frames of 80 ms");
    }
    assert_eq!((heard.tokens(), heard.frames()), (whole.tokens(), whole.frames()));
    let texts =
        |words: &[voce_engine::listener::Word]| words.iter().map(|w| w.text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&heard.words), texts(&whole.words));
}

#[test]
fn a_forced_end_is_the_end_of_a_stream_and_the_begin_of_another() {
    let (a, b) = (clip("a.wav"), clip("b.wav"));
    for name in ["stream", "tdt"] {
        let listener = open(name, 2);
        let request = ListenRequest::default();
        let (mut sender, mut stream) = listener.listen(&request).unwrap();
        sender.push(&a).unwrap();
        sender.end_utterance();
        sender.push(&b).unwrap();
        sender.end_utterance();
        sender.end_utterance();
        sender.finish();
        let heard = rest(&mut stream);
        let (first, second) = (hear(&listener, &request, &a), hear(&listener, &request, &b));
        let offset = a.len() as f64 / 16_000.0;
        assert_eq!(heard.segments[0], first.segments[0], "{name}");
        let tokens = second.segments.first().map(|s| s.tokens.clone()).unwrap_or_default();
        assert_eq!(heard.segments[1].tokens, tokens, "{name}");
        for (w, v) in heard.segments[1].words.iter().zip(second.segments.iter().flat_map(|s| &s.words)) {
            assert!((w.start - v.start - offset).abs() < 1e-5, "times go on");
        }
        // An end with nothing before it is answered as well.
        assert_eq!(heard.segments.len(), 3);
        assert!(heard.segments[2].tokens.is_empty());
        let all = (a.len() + b.len()) as f64 / 16_000.0;
        assert_eq!(heard.ends, [(offset, "forced"), (all, "forced"), (all, "forced")]);
    }
}

#[test]
fn a_forced_end_needs_no_more_audio() {
    let listener = open("stream", 1);
    let (mut sender, mut stream) = listener.listen(&ListenRequest::default()).unwrap();
    sender.push(&clip("a.wav")).unwrap();
    sender.end_utterance();
    // The sender neither goes on nor finishes: the final must come all the same.
    let heard = stream.by_ref().find_map(|e| match e.unwrap() {
        voce_engine::listener::ListenEvent::Final(s) => Some(s),
        _ => None,
    });
    assert!(!heard.unwrap().text.is_empty());
    sender.finish();
}

#[test]
fn offline_models_cut_by_silence_as_well() {
    let listener = open("rnnt", 1);
    let endpoint = Endpointing::default().with_silence_ms(Some(240)).with_max_ms(None);
    let heard = hear(&listener, &ListenRequest::default().with_endpoint(endpoint), &clip("long.wav"));
    let whole = hear(&listener, &ListenRequest::default(), &clip("long.wav"));
    assert_eq!(heard.tokens(), whole.tokens());
    assert!(heard.segments.len() > 1);
    assert_eq!(heard.words, whole.words, "ends lie between words");
}
