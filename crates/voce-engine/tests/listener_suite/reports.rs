//! Reports and short pauses change no word: real speech, heard by the recogniser in this repository.

use std::path::Path;

use voce_audio::Resampler;
use voce_audio::decode::{DecodeLimits, decode_file};
use voce_engine::EngineError;
use voce_engine::listener::{
    AudioSender, Endpointing, ListenRequest, Listener, ListenerOptions, Report, TranscriptStream,
};

use crate::support::{Dice, Heard, chunk, clip, hear, open, rest, store};

pub(crate) const CLIPS: [&str; 3] = ["3947-13262-0035", "5789-70653-0025", "1867-154075-0003"];

pub(crate) fn ear(slots: usize) -> Listener {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nano-ear");
    let options = ListenerOptions::default().with_threads(1).with_slots(slots);
    Listener::open(&store(), folder.to_str().unwrap(), &options).unwrap()
}

pub(crate) fn speech(name: &str) -> Vec<f32> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce/tests/fixtures/speech");
    let audio = decode_file(&folder.join(format!("{name}.opus")), &DecodeLimits::default()).unwrap();
    let (mut resampler, mut out) = (Resampler::new(audio.sample_rate, 16_000), Vec::new());
    resampler.process(&audio.to_mono(), &mut out);
    resampler.finish(&mut out);
    out
}

pub(crate) fn words(heard: &Heard) -> Vec<String> {
    let text: Vec<&str> = heard.segments.iter().map(|s| s.text.as_str()).collect();
    let told: Vec<String> = heard.words.iter().map(|w| w.text.clone()).collect();
    assert_eq!(text.join(" ").split_whitespace().collect::<Vec<_>>(), told, "finals say what words say");
    told
}

/// Sends audio in pieces of any size, with a report at regular places.
fn send(sender: &mut AudioSender, audio: &[f32], report: Report, every: usize, dice: &mut Dice) {
    for part in audio.chunks(every) {
        let mut left = part;
        while !left.is_empty() {
            let (piece, later) = left.split_at((1 + dice.below(9_000)).min(left.len()));
            sender.push(piece).unwrap();
            left = later;
        }
        if part.len() == every {
            sender.report(report);
        }
    }
}

fn reported(
    listener: &Listener,
    request: &ListenRequest,
    audio: &[f32],
    report: Report,
    every: usize,
) -> Heard {
    let (mut sender, mut stream) = listener.listen(request).unwrap();
    let audio = audio.to_vec();
    let thread = std::thread::spawn(move || {
        send(&mut sender, &audio, report, every, &mut Dice::new(every as u64));
        sender.finish();
    });
    let heard = rest(&mut stream);
    thread.join().unwrap();
    heard
}

fn ends(silence_ms: u32) -> ListenRequest {
    ListenRequest::default().with_endpoint(Endpointing::default().with_silence_ms(Some(silence_ms)))
}

#[test]
fn reports_in_the_middle_of_words_change_no_word() {
    let listener = ear(1);
    for name in CLIPS {
        let audio = speech(name);
        let want = words(&hear(&listener, &ListenRequest::default(), &audio));
        assert!(want.len() > 8, "{name}");
        for (report, every) in
            [(Report::Words, 16_000), (Report::Words, 5_003), (Report::Passed, 16_000), (Report::Passed, 997)]
        {
            let heard = reported(&listener, &ListenRequest::default(), &audio, report, every);
            assert_eq!(words(&heard), want, "{name} {report:?} {every}");
            // Each is answered, in its place.
            let times: Vec<f64> = (1..=audio.len() / every).map(|n| (n * every) as f64 / 16_000.0).collect();
            let told: Vec<f64> = heard.ends.iter().map(|(at, _)| *at).collect();
            assert_eq!(told, times, "{name} {report:?} {every}");
            assert!(heard.segments.len() >= times.len());
        }
    }
}

#[test]
fn short_pauses_end_utterances_and_no_words() {
    let (listener, mut ended) = (ear(1), 0);
    for name in CLIPS {
        let audio = speech(name);
        let want = words(&hear(&listener, &ListenRequest::default(), &audio));
        for silence_ms in [80, 160, 300] {
            let heard = hear(&listener, &ends(silence_ms), &audio);
            assert_eq!(words(&heard), want, "{name} {silence_ms}");
            ended += heard.ends.len();
            let both = reported(&listener, &ends(silence_ms), &audio, Report::Words, 16_000);
            assert_eq!(words(&both), want, "{name} {silence_ms} with reports");
        }
    }
    assert!(ended >= 6, "{ended} ends");
}

#[test]
fn a_report_of_everything_needs_no_more_audio_and_harms_nothing_behind_it() {
    let listener = ear(1);
    let audio = speech(CLIPS[0]);
    let want = words(&hear(&listener, &ListenRequest::default(), &audio));
    for cut in [20_000, 47_321, 80_000] {
        let (mut sender, mut stream) = listener.listen(&ListenRequest::default()).unwrap();
        sender.push(&audio[..cut]).unwrap();
        sender.report(Report::All);
        let mut heard = Heard::default();
        while heard.segments.is_empty() {
            heard.add(stream.next().unwrap().unwrap());
        }
        sender.push(&audio[cut..]).unwrap();
        sender.finish();
        for event in stream {
            heard.add(event.unwrap());
        }
        let got = words(&heard);
        // What is wrong is the word that the report has cut, and perhaps the one before.
        let same = |a: &[String], b: &[String]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let reversed = |w: &[String]| w.iter().rev().cloned().collect::<Vec<_>>();
        let kept = same(&got, &want) + same(&reversed(&got), &reversed(&want));
        assert!(kept + 2 >= want.len(), "{cut}: {got:?} of {want:?}");
        assert!(got.len().abs_diff(want.len()) <= 1, "{cut}: {got:?} of {want:?}");
    }
}

#[test]
fn a_stream_that_was_saved_among_reports_goes_on_as_it_would_have() {
    let (here, there) = (ear(1), ear(1));
    let audio = speech(CLIPS[1]);
    for (report, every) in [(Report::Words, 8_000), (Report::All, 24_000), (Report::Passed, 8_000)] {
        let whole = reported(&here, &ends(80), &audio, report, every);
        for at in [1, 2, 5] {
            // Half of them just behind a report, when what was told early was not come to yet.
            let cut = at * every;
            let (mut sender, stream) = here.listen(&ends(80)).unwrap();
            send(&mut sender, &audio[..cut], report, every, &mut Dice::new(5));
            let saved = sender.snapshot().unwrap();
            drop(sender);
            let mut heard = Heard::default();
            for event in stream {
                match event {
                    Ok(event) => heard.add(event),
                    Err(e) => assert!(matches!(e, EngineError::Abandoned), "{e}"),
                }
            }
            let (mut sender, mut stream): (AudioSender, TranscriptStream) =
                there.resume(&saved, &ends(80)).unwrap();
            let later = audio[cut..].to_vec();
            let thread = std::thread::spawn(move || {
                send(&mut sender, &later, report, every, &mut Dice::new(6));
                sender.finish();
            });
            let more = rest(&mut stream);
            thread.join().unwrap();
            heard.words.extend(more.words);
            heard.ends.extend(more.ends);
            assert_eq!(heard.words, whole.words, "{report:?} at {cut}");
            assert_eq!(heard.ends, whole.ends, "{report:?} at {cut}");
        }
    }
}

#[test]
fn a_beam_and_models_that_take_whole_utterances_answer_reports_as_well() {
    let audio = clip("long.wav");
    for (name, request) in [("stream", chunk(160).with_beam(3)), ("tdt", ListenRequest::default())] {
        let listener = open(name, 1);
        let heard = reported(&listener, &request, &audio, Report::All, 20_000);
        assert_eq!(heard.ends.len(), audio.len() / 20_000, "{name}");
        assert!(heard.ends.iter().all(|(_, reason)| *reason == "forced"));
    }
}
