//! Recordings that a thread of their own reads, and live audio at the sender's rate.

use std::task::Poll;
use std::time::Duration;

use voce_audio::resample;
use voce_engine::listener::{ListenEvent, ListenRequest, Listener, RatedSender, Recording, Transcript};
use voce_engine::{EngineError, wait_for};

use super::support::{clip, fixtures, open};

fn played(listener: &Listener, recording: Recording) -> Result<Transcript, EngineError> {
    let mut stream = listener.play(recording, &ListenRequest::default())?;
    let mut heard = Transcript::default();
    for event in stream.by_ref() {
        heard.take(event?);
    }
    heard.seconds = stream.seconds();
    Ok(heard)
}

fn samples(sample_rate: u32) -> Recording {
    Recording::Samples { samples: resample(&clip("a.wav"), 16_000, sample_rate), sample_rate }
}

#[test]
fn files_bytes_and_samples_are_heard_alike() {
    let listener = open("stream", 1);
    let path = fixtures().join("audio/a.wav");
    let whole = listener.transcribe_file(&path, &ListenRequest::default()).unwrap();
    assert_eq!(played(&listener, Recording::File(path.clone())).unwrap(), whole);
    assert_eq!(played(&listener, Recording::Bytes(std::fs::read(path).unwrap())).unwrap(), whole);
    assert_eq!(played(&listener, samples(16_000)).unwrap(), whole);
    let other = played(&listener, samples(24_000)).unwrap();
    assert!((other.seconds - whole.seconds).abs() < 1e-3, "{} {}", other.seconds, whole.seconds);
}

#[test]
fn rates_that_no_audio_has_are_refused() {
    let listener = open("stream", 1);
    for (rate, good) in [(3_999, false), (4_000, true), (192_000, true), (192_001, false)] {
        let heard = played(&listener, Recording::Samples { samples: vec![0.0; 4_000], sample_rate: rate });
        assert_eq!(heard.is_ok(), good, "{rate}");
        let (sender, _events) = listener.listen(&ListenRequest::default()).unwrap();
        assert_eq!(RatedSender::new(sender, rate, 16_000).is_ok(), good, "{rate}");
    }
}

#[test]
fn a_broken_file_ends_the_events_with_its_error_and_frees_its_slot() {
    let listener = open("stream", 1);
    let missing = Recording::File("no-such-talk.mp3".into());
    assert_eq!(played(&listener, missing).unwrap_err().code(), "not_found");
    assert!(played(&listener, Recording::Bytes(vec![0xff; 33])).is_err());
    let nan = Recording::Samples { samples: vec![f32::NAN; 100], sample_rate: 16_000 };
    assert_eq!(played(&listener, nan).unwrap_err().code(), "bad_request");
    assert!(played(&listener, samples(16_000)).is_ok());
}

#[test]
fn live_audio_at_another_rate_is_heard_as_if_it_was_resampled_at_once() {
    let listener = open("stream", 1);
    let request = ListenRequest::default();
    let audio = resample(&clip("a.wav"), 16_000, 24_000);
    let mut whole = Vec::new();
    for event in
        listener.play(Recording::Samples { samples: audio.clone(), sample_rate: 24_000 }, &request).unwrap()
    {
        whole.extend(text(event.unwrap()));
    }
    let (sender, events) = listener.listen(&request).unwrap();
    let mut sender = RatedSender::new(sender, 24_000, 16_000).unwrap();
    let reader = std::thread::spawn(move || events.filter_map(|e| text(e.unwrap())).collect::<Vec<_>>());
    let flush = |sender: &mut RatedSender| {
        let flushed = wait_for(Duration::from_millis(5), |cx| sender.poll_flush(cx), || Ok::<_, ()>(()));
        flushed.unwrap().unwrap();
    };
    for piece in audio.chunks(777) {
        sender.give(piece);
        flush(&mut sender);
    }
    sender.drain();
    flush(&mut sender);
    assert!((sender.seconds() - audio.len() as f64 / 24_000.0).abs() < 1e-3);
    sender.finish();
    assert_eq!(reader.join().unwrap(), whole);
    assert!(!whole.is_empty());
}

#[test]
fn a_caller_that_looks_up_can_stop_waiting() {
    let listener = open("stream", 1);
    let (_sender, mut events) = listener.listen(&ListenRequest::default()).unwrap();
    // No audio comes, and so no event ever would.
    let mut looks = 0;
    let waited = wait_for(
        Duration::from_millis(1),
        |cx| match events.poll_event(cx) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        },
        || {
            looks += 1;
            if looks < 3 { Ok(()) } else { Err("enough") }
        },
    );
    assert_eq!(waited, Err("enough"));
}

fn text(event: ListenEvent) -> Option<String> {
    match event {
        ListenEvent::Final(segment) => Some(segment.text),
        _ => None,
    }
}
