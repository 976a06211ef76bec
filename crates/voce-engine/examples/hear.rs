//! Transcribes a file: `cargo run --release --example hear -- talk.mp3`, after `voce pull nemotron`.
#![allow(clippy::print_stdout)]

use voce_engine::listener::Listener;
use voce_engine::store::Store;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "talk.mp3".into());
    let store = Store::from_env()?;
    let listener = Listener::open(&store, "nemotron", &Default::default())?;
    println!("{}", listener.transcribe_file(path, &Default::default())?.text);
    Ok(())
}
