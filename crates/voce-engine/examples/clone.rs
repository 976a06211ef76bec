//! Clones a voice from a recording, keeps it in a file, and speaks with it.
//! `cargo run --release --example clone -- me.wav`, after `voce pull pocket` with voice cloning.

use std::path::PathBuf;

use voce_engine::store::Store;
use voce_engine::{SpeakRequest, Speaker};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clip = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "me.wav".into()));
    let store = Store::from_env()?;
    let speaker = Speaker::open(&store, "pocket", &Default::default())?;
    let voice = speaker.clone_voice(&clip, None)?;
    // The file is read in a moment next time, where cloning takes a second: `SpeakRequest::voice("me.safetensors")`.
    std::fs::write("me.safetensors", speaker.voice_bytes(&voice)?)?;
    speaker.speak("This is how I sound.", &SpeakRequest::voice(voice))?.save("me-again.wav")?;
    Ok(())
}
