//! Speaks a sentence into a file: `cargo run --release --example say`, after `voce pull pocket`.

use voce_engine::store::Store;
use voce_engine::{SpeakRequest, Speaker};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::from_env()?;
    let speaker = Speaker::open(&store, "pocket", &Default::default())?;
    speaker.speak("Hello there.", &SpeakRequest::voice("alba"))?.save("hi.wav")?;
    Ok(())
}
