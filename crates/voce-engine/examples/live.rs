//! Hears audio while it arrives, as from a microphone: 80 ms at a time, words as soon as they are certain.
//! `cargo run --release --example live -- talk.wav`, after `voce pull nemotron`.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use voce_audio::{DecodeLimits, decode_file, resample};
use voce_engine::listener::{Endpointing, ListenEvent, ListenRequest, Listener};
use voce_engine::store::Store;

const PIECE: Duration = Duration::from_millis(80);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "talk.wav".into());
    let store = Store::from_env()?;
    let listener = Listener::open(&store, "nemotron", &Default::default())?;
    let rate = listener.info().sample_rate;
    let audio = decode_file(path.as_ref(), &DecodeLimits::default())?;
    let samples = resample(&audio.to_mono(), audio.sample_rate, rate as u32);

    let request = ListenRequest::default().with_endpoint(Endpointing::live()).with_partials(true);
    let (mut microphone, events) = listener.listen(&request)?;
    let sender = std::thread::spawn(move || {
        let begun = Instant::now();
        for (i, piece) in samples.chunks(rate * PIECE.as_millis() as usize / 1000).enumerate() {
            std::thread::sleep((PIECE * i as u32).saturating_sub(begun.elapsed()));
            if microphone.push(piece).is_err() {
                return;
            }
        }
        microphone.finish();
    });
    for event in events {
        match event? {
            ListenEvent::Partial(segment) => println!("... {}", segment.text),
            ListenEvent::Final(segment) => println!("{}", segment.text),
            _ => {}
        }
    }
    sender.join().map_err(|_| "the microphone broke")?;
    Ok(())
}
