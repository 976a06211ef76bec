//! Many chunks and many requests: order, independence, seeds, pauses and frame limits.

mod support;

use support::{ENDLESS, Talker, audio, beside, exact, same};
use voce_engine::SpeakRequest;
use voce_nn::Precision;

fn long_text() -> String {
    let sentences = [
        "Look at the water!",
        "So, what did he say to you?",
        "It runs fast.",
        "They call it a small engine.",
    ];
    (0..24).map(|i| sentences[(i * 7 + i / 4) % 4]).collect::<Vec<_>>().join(" ")
}

#[test]
fn lockstep_changes_no_sample_of_a_long_text() {
    for options in [exact(), beside()] {
        let t = Talker::new("lsd4", &options);
        let request = t.request().with_max_tokens(30).with_temperature(Some(0.6)).with_seed(3);
        let text = long_text();
        let run = |lockstep| {
            let mut stream = t.speaker.speak(&text, &request.clone().with_lockstep(lockstep)).unwrap();
            (audio(&mut stream), stream.stats())
        };
        let (alone, stats) = run(1);
        assert!(stats.passages >= 12, "{} chunks", stats.passages);
        for lockstep in [2, 8, usize::MAX] {
            let (got, other) = run(lockstep);
            assert_eq!((other.passages, other.frames), (stats.passages, stats.frames));
            same(&format!("lockstep {lockstep}"), &got, &alone);
        }
    }
}

#[test]
fn concurrent_requests_equal_their_solo_runs() {
    for options in [exact(), beside()] {
        let t = Talker::new("lsd4", &options);
        let requests: Vec<(String, SpeakRequest)> = (0..5)
            .map(|i| {
                let steps = if i % 2 == 0 { t.steps } else { 1 };
                let (temperature, seed) = (Some(0.4), i);
                let words = ["Go and look.", "And how? Look at the water!", "What is it, she said."];
                (
                    words[i as usize % 3].repeat(1 + i as usize),
                    t.request()
                        .with_temperature(temperature)
                        .with_seed(seed)
                        .with_steps(steps)
                        .with_max_tokens(20),
                )
            })
            .collect();
        let solo: Vec<Vec<f32>> = requests.iter().map(|(text, r)| t.say(text, r)).collect();
        let mut streams: Vec<_> =
            requests.iter().map(|(text, r)| t.speaker.speak(text, r).unwrap()).collect();
        // Read in turns, a chunk of audio each, so that all are under way together.
        let mut got = vec![Vec::new(); streams.len()];
        let mut open = streams.len();
        while open > 0 {
            open = 0;
            for (stream, got) in streams.iter_mut().zip(&mut got) {
                if let Some(chunk) = stream.next() {
                    got.extend(chunk.unwrap().samples);
                    open += 1;
                }
            }
        }
        for (i, (got, want)) in got.iter().zip(&solo).enumerate() {
            same(&format!("request {i}"), got, want);
        }
    }
}

#[test]
fn a_seed_gives_the_same_audio_and_another_seed_another() {
    let t = Talker::new("drifting", &exact());
    let say = |seed, temperature| {
        t.say("Go and look.", &t.request().with_seed(seed).with_temperature(Some(temperature)))
    };
    let first = say(1, 0.7);
    same("the same seed", &say(1, 0.7), &first);
    assert_ne!(say(2, 0.7), first);
    assert_ne!(say(1, 0.3), first);
    same("no noise, no seed", &say(1, 0.0), &say(2, 0.0));
    // The chunks of one request have noise of their own: the same sentence twice is said in two ways.
    let request = t
        .request()
        .with_eos_threshold(ENDLESS)
        .with_temperature(Some(0.7))
        .with_max_tokens(1)
        .with_max_frames(None);
    let twice = t.say("Look. Look.", &request);
    let (a, b) = twice.split_at(twice.len() / 2);
    assert_ne!(a, b);
}

#[test]
fn pauses_are_exact_silence_in_their_place() {
    for options in [exact(), beside()] {
        let t = Talker::new("lsd4", &options);
        let rate = t.speaker.info().sample_rate;
        let mut request = t.request().with_max_tokens(30);
        let (a, b) = (t.say("Look at the water!", &request), t.say("It runs fast.", &request));
        let silence = |ms: usize| vec![0f32; rate * ms / 1000];
        let text = "[pause:300ms]Look at the water![pause:300ms] It runs fast. [pause:1s][pause:200ms]\
                    Look at the water![pause:300ms]";
        let want = [silence(300), a.clone(), silence(300), b, silence(1200), a, silence(300)].concat();
        for lockstep in [1, 2, 8] {
            request.lockstep = lockstep;
            same(&format!("lockstep {lockstep}"), &t.say(text, &request), &want);
        }
        same("a pause alone", &t.say("[pause:300ms]", &request), &silence(300));
    }
}

#[test]
fn max_frames_is_exact_for_a_model_that_never_ends() {
    for options in [exact(), beside()] {
        let t = Talker::new("lsd", &options);
        let frame = t.speaker.info().sample_rate * 2 / 25;
        for n in [1, 2, 7] {
            let mut stream = t.speaker.speak("Hello world.", &t.request().with_max_frames(Some(n))).unwrap();
            assert_eq!(audio(&mut stream).len(), n * frame);
            let stats = stream.stats();
            assert_eq!((stats.frames, stats.unended), (n, 1));
        }
    }
}

#[test]
fn max_frames_goes_beyond_the_estimate_and_the_cache_grows_without_a_trace() {
    for precision in Precision::ON_CPU {
        let t = Talker::new("pointwise", &exact().with_precision(Some(precision)));
        let endless = t.request().with_eos_threshold(ENDLESS).with_temperature(Some(0.3));
        let mut stream = t.speaker.speak("Go.", &endless).unwrap();
        let estimate = audio(&mut stream);
        let stats = stream.stats();
        assert_eq!(stats.unended, 1);
        let n = 4 * stats.frames + 100;
        let request = endless.clone().with_max_frames(Some(n));
        let grown = t.say("Go.", &request);
        assert_eq!(grown.len(), n * 192);
        same("the beginning", &grown[..estimate.len()], &estimate);
        same("a second time, in the larger cache", &t.say("Go.", &request), &grown);
        // The largest limit costs no more memory than is used.
        let mut far = t.speaker.speak("Go.", &endless.with_max_frames(Some(450_000))).unwrap();
        same("the largest limit", &far.next().unwrap().unwrap().samples, &grown[..192]);
    }
}

#[test]
fn max_frames_cuts_inside_a_later_chunk() {
    for options in [exact(), beside()] {
        let t = Talker::new("lsd4", &options);
        let (text, request) = t.said();
        let whole = t.say(&text, &request);
        let chunks = t.said_frames();
        for n in [chunks[0] - 1, chunks[0], chunks[0] + 4, chunks[0] + chunks[1] + 1] {
            let cut = t.say(&text, &request.clone().with_max_frames(Some(n)));
            same(&format!("{n} frames"), &cut, &whole[..n * 192]);
        }
        let total = chunks.iter().sum::<usize>();
        let more = t.say(&text, &request.clone().with_max_frames(Some(total + 5)));
        same("a limit beyond the end", &more, &whole);
    }
}
