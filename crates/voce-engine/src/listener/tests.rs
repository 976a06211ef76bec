//! The listener over a model that is nothing like those in the catalogue: other rate, no spectrogram, late tokens, pauses.

use std::time::Duration;

use super::double::{Double, FRAME, RATE};
use super::*;

fn open(delay: usize, slots: usize) -> (Arc<Double>, Listener) {
    open_with(Double::new(delay), slots)
}

fn open_with(double: Arc<Double>, slots: usize) -> (Arc<Double>, Listener) {
    let options = ListenerOptions { threads: 1, slots, ..Default::default() };
    let place = Place::new(&crate::device::Placement::Cpu, None).unwrap();
    let listener = Listener::start("double".into(), double.clone(), &place, &options).unwrap();
    (double, listener)
}

/// A frame for each token; 0 is silence.
fn audio(tokens: &[u32]) -> Vec<f32> {
    tokens.iter().flat_map(|&t| std::iter::repeat_n(t as f32, FRAME)).collect()
}

fn texts(stream: TranscriptStream) -> Vec<String> {
    let text = |event| match event {
        ListenEvent::Word(w) => format!("{} {:.2}-{:.2}", w.text, w.start, w.end),
        ListenEvent::Final(s) => format!("[{}]", s.text),
        ListenEvent::Endpoint { at, reason } => format!("{} {at:.2}", reason.name()),
        ListenEvent::Pause { probabilities, .. } => format!("pause {probabilities:?}"),
        other => format!("{other:?}"),
    };
    stream.map(|event| text(event.unwrap())).collect()
}

#[test]
fn late_tokens_words_that_end_and_other_rates_need_no_change_here() {
    for delay in [0, 3] {
        let (_, listener) = open(delay, 2);
        assert_eq!((listener.info().sample_rate, listener.info().delay_ms), (RATE, 80 * delay as u32));
        let (mut sender, stream) = listener.listen(&ListenRequest::default()).unwrap();
        sender.push(&audio(&[0, 1, 2, 0, 0, 4, 0])).unwrap();
        assert!((sender.seconds() - 7.0 * 0.08).abs() < 1e-9);
        sender.end_utterance();
        // Half a frame is filled up with silence.
        sender.push(&audio(&[4])[..FRAME / 2]).unwrap();
        sender.finish();
        let want = ["ab 0.08-0.24", "c 0.40-0.48", "forced 0.56", "[ab c]", "c 0.56-0.64", "[c]"];
        assert_eq!(texts(stream), want, "{delay}");
    }
}

#[test]
fn rules_count_decoded_frames_however_late_they_come() {
    for delay in [0, 5] {
        let (_, listener) = open(delay, 1);
        let endpoint = Endpointing { silence_ms: Some(320), max_ms: None, pause_ms: None };
        let request = ListenRequest { endpoint, ..Default::default() };
        let (mut sender, stream) = listener.listen(&request).unwrap();
        sender.push(&audio(&[1, 0, 0, 4, 0, 0, 0, 0, 0, 0, 1])).unwrap();
        sender.finish();
        let want = ["a 0.00-0.08", "c 0.24-0.32", "silence 0.64", "[a c]", "a 0.80-0.88", "[a]"];
        assert_eq!(texts(stream), want, "{delay}");
    }
}

#[test]
fn pauses_are_told_to_those_who_ask() {
    let (_, listener) = open(0, 1);
    assert_eq!(listener.info().pauses, [0.5, 1.0]);
    for pauses in [false, true] {
        let request = ListenRequest { pauses, ..Default::default() };
        let (mut sender, stream) = listener.listen(&request).unwrap();
        sender.push(&audio(&[0, 0])).unwrap();
        sender.finish();
        let told = texts(stream);
        // One for each frame, however late they are read.
        assert_eq!(told.len(), if pauses { 2 } else { 0 });
        assert!(told.iter().all(|t| t == "pause [0.75, 0.125]"), "{told:?}");
    }
}

#[test]
fn a_pause_that_the_model_foresees_ends_an_utterance_after_a_word() {
    for (delay, pause_ms, want) in [
        // The word's end is known with the first silent frame, and so is the pause.
        (3, 500, &["ab 0.08-0.24", "pause 0.32", "[ab]", "c 0.40-0.48", "pause 0.56", "[c]"][..]),
        // Nobody foresees a longer one.
        (3, 1000, &["ab 0.08-0.24", "c 0.40-0.48", "[ab c]"]),
    ] {
        let (_, listener) = open(delay, 1);
        let endpoint = Endpointing { pause_ms: Some(pause_ms), ..Default::default() };
        let request = ListenRequest { endpoint, ..Default::default() };
        let (mut sender, stream) = listener.listen(&request).unwrap();
        sender.push(&audio(&[0, 1, 2, 0, 0, 4, 0])).unwrap();
        sender.finish();
        assert_eq!(texts(stream), want, "{pause_ms}");
    }
}

#[test]
fn what_a_model_has_not_is_refused_by_name() {
    let (_, listener) = open(0, 1);
    let Err(e) = listener.listen(&ListenRequest { beam: 4, ..Default::default() }) else {
        panic!("accepted")
    };
    assert_eq!(e.code(), "bad_request");
    assert!(e.to_string().contains("double takes no beam"), "{e}");
}

#[test]
fn a_saved_stream_goes_on_in_the_middle_of_a_frame() {
    let (_, listener) = open(3, 2);
    let all = audio(&[0, 1, 2, 0, 4, 0, 0, 1, 0]);
    for cut in [0, 100, FRAME, 3 * FRAME + 7, all.len()] {
        let (mut sender, stream) = listener.listen(&ListenRequest::default()).unwrap();
        sender.push(&all[..cut]).unwrap();
        let saved = sender.snapshot().unwrap();
        sender.push(&all[cut..]).unwrap();
        sender.finish();
        let whole = texts(stream);
        let (mut sender, stream) = listener.resume(&saved, &ListenRequest::default()).unwrap();
        sender.push(&all[cut..]).unwrap();
        sender.finish();
        let rest = texts(stream);
        assert!(!rest.is_empty() && whole.ends_with(&rest), "{cut}: {rest:?} of {whole:?}");
    }
}

#[test]
fn files_take_a_small_share_while_somebody_is_live() {
    for live in [false, true] {
        let (double, listener) = open(0, 8);
        let send = |tokens: &[u32]| {
            let (mut sender, stream) = listener.listen(&ListenRequest::default()).unwrap();
            sender.push(&audio(tokens)).unwrap();
            (sender, stream)
        };
        // The lane is kept from its first step until all are there: it would write into the log before.
        let log = lock(&double.log);
        listener.lanes.tell(0, Ask::Prepare(sync_channel(1).0)).unwrap();
        let mut streams: Vec<_> = (0..3).map(|_| send(&[1; 60])).collect();
        if live {
            let (sender, stream) = send(&[4]);
            stream.inlet.came_earlier(Duration::from_millis(500));
            streams.push((sender, stream));
        }
        drop(log);
        for (sender, stream) in streams {
            sender.finish();
            assert!(stream.last().is_some_and(|e| e.is_ok()));
        }
        let steps = std::mem::take(&mut lock(&double.log).steps);
        assert_eq!(steps.iter().flatten().map(|(_, frames)| frames).sum::<usize>(), 180 + usize::from(live));
        // Nobody knows how fast the model is: beside the live stream one file has one frame.
        let first: &[(usize, usize)] = if live { &[(3, 1), (0, 1)] } else { &[(0, 60), (1, 60), (2, 60)] };
        assert_eq!(steps[0], first);
    }
}

/// Streams with random words, parts, snapshots and readers that leave, all of them there from the start.
fn crowd(listener: &Listener, streams: u32) -> Vec<Vec<String>> {
    let mut dice = 0x2545_f491u32;
    let mut roll = move |n: u32| {
        dice ^= dice << 13;
        dice ^= dice >> 17;
        dice ^= dice << 5;
        dice % n
    };
    let mut running = Vec::new();
    // A frame a step, while the others wait.
    let request = ListenRequest { chunks_per_step: 1, ..Default::default() };
    for i in 0..streams {
        let (mut sender, stream) = listener.listen(&request).unwrap();
        let mut token = || [0, 0, 1, 2, 4][roll(5) as usize];
        let words: Vec<u32> = (0..30).map(|_| token()).collect();
        sender.push(&audio(&words)).unwrap();
        let leaves = roll(4) == 0;
        if roll(3) == 0 {
            sender.end_utterance();
        }
        let mut sender = if i % 5 == 4 {
            // The stream goes on in another slot.
            let saved = sender.snapshot().unwrap();
            let (sender, rest) = listener.resume(&saved, &request).unwrap();
            drop(stream);
            running.push((leaves, rest));
            sender
        } else {
            running.push((leaves, stream));
            sender
        };
        sender.push(&audio(&words[..10])).unwrap();
        sender.finish();
    }
    let stay = running.into_iter().filter_map(|(leaves, stream)| (!leaves).then_some(stream));
    stay.map(texts).collect()
}

#[test]
fn steps_that_are_asked_for_ahead_tell_what_steps_in_turn_tell() {
    for delay in [0, 3] {
        let ((_, turns), (double, ahead)) = (open(delay, 40), open_with(Double::ahead(delay), 40));
        let want = crowd(&turns, 20);
        assert!(want.len() > 8 && want.iter().all(|texts| texts.len() > 4));
        assert_eq!(crowd(&ahead, 20), want, "{delay}");
        assert!(lock(&double.log).ahead > 10, "{}", lock(&double.log).ahead);
    }
}

#[test]
fn nothing_is_held_back_for_a_step_that_nobody_waits_for() {
    let (double, listener) = open_with(Double::ahead(0), 2);
    let request = ListenRequest { pauses: true, ..Default::default() };
    let (mut sender, mut stream) = listener.listen(&request).unwrap();
    for _ in 0..3 {
        // Each frame is told before any more audio comes.
        sender.push(&audio(&[0])).unwrap();
        assert!(matches!(stream.next(), Some(Ok(ListenEvent::Pause { .. }))));
    }
    sender.finish();
    assert_eq!((stream.count(), lock(&double.log).ahead), (0, 0));
}
