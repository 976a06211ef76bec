//! What `keep_warm` buys: the first audio of a voice, and the time of a short clip through a recogniser, after a pause, with
//! random weights of published sizes. `cargo run --release -p voce-engine --example keep_warm [SECONDS [ROUNDS]]`.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use voce_engine::listener::{Listener, ListenerOptions};
use voce_engine::{EngineError, SpeakRequest, Speaker, SpeakerOptions};

const EVERY: [(&str, Option<Duration>); 3] =
    [("off", None), ("1 s", Some(Duration::from_secs(1))), ("100 ms", Some(Duration::from_millis(100)))];

fn main() -> Result<(), EngineError> {
    let mut args = std::env::args().skip(1).filter_map(|a| a.parse::<u32>().ok());
    let (pause, rounds) = (Duration::from_secs(args.next().unwrap_or(3).into()), args.next().unwrap_or(20));
    for shape in ["pocket-7m", "pocket-100m"] {
        let open = |keep_warm| {
            Speaker::random(shape, 1, &SpeakerOptions::default().with_keep_warm(keep_warm).with_slots(1))
        };
        measure(shape, pause, rounds, open, |speaker| {
            let request = SpeakRequest::default().with_max_frames(Some(2));
            let mut stream = speaker.speak("Hello there.", &request)?;
            stream.try_for_each(|chunk| chunk.map(drop))?;
            Ok(stream.stats().first_audio.unwrap_or_default())
        })?;
    }
    let open = |keep_warm| {
        let options = ListenerOptions::default().with_keep_warm(keep_warm).with_slots(1);
        Listener::random("fastconformer-0.12b", 1, &options)
    };
    measure("fastconformer-0.12b", pause, rounds, open, |listener| {
        let begun = Instant::now();
        listener.warm()?;
        Ok(begun.elapsed())
    })
}

/// Runs models with each setting in turn, so that all meet the same machine, and prints a line for each.
fn measure<M>(
    shape: &str,
    pause: Duration,
    rounds: u32,
    open: impl Fn(Option<Duration>) -> Result<M, EngineError>,
    once: impl Fn(&M) -> Result<Duration, EngineError>,
) -> Result<(), EngineError> {
    let models = EVERY.map(|(_, every)| open(every));
    let mut times = EVERY.map(|_| Vec::new());
    let mut busy = Vec::new();
    for round in 0..=rounds {
        for (model, times) in models.iter().zip(&mut times) {
            std::thread::sleep(pause / EVERY.len() as u32);
            let Ok(model) = model else { continue };
            let time = once(model)?;
            // The first round warms up; each is followed by one without a pause.
            if round > 0 {
                times.push(time);
                busy.push(once(model)?);
            }
        }
    }
    println!("{shape}, {} s between requests, ms: p50, p90", pause.as_secs());
    let names = EVERY.iter().map(|(name, _)| *name);
    for (name, mut times) in names.zip(times).chain([("no pause", busy)]) {
        times.sort();
        let at = |p: usize| times.get(times.len() * p / 100).map_or(0.0, |t| t.as_secs_f64() * 1e3);
        println!("  {name:9} {:8.2} {:8.2}", at(50), at(90));
    }
    Ok(())
}
