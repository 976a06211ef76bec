//! Many streams at once on one model: each has a slot, and one step serves all of them.
//! `cargo run --release --example many`; it needs no download, since the weights are random.
#![allow(clippy::print_stdout)]

use voce_engine::{SpeakRequest, Speaker, SpeakerOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = SpeakerOptions::default().with_slots(8);
    let speaker = Speaker::random("pocket-2m", 1, &options)?;
    let streams: Result<Vec<_>, _> = (0..8)
        .map(|seed| {
            let request = SpeakRequest::default().with_seed(seed).with_max_frames(Some(25));
            speaker.speak("Everybody talks at once.", &request)
        })
        .collect();
    for (i, mut stream) in streams?.into_iter().enumerate() {
        let samples: usize = stream.by_ref().map(|chunk| chunk.map_or(0, |c| c.samples.len())).sum();
        let stats = stream.stats();
        println!(
            "stream {i}: {samples} samples, first audio after {:?}",
            stats.first_audio.unwrap_or_default()
        );
    }
    Ok(())
}
