//! Holds a conversation with a recording: the model hears it and answers at the same time.
//! `cargo run --release --example talk -- user.wav`, after `voce pull moshiko`.
#![allow(clippy::print_stdout)]

use std::io::Write as _;
use std::path::PathBuf;

use voce_audio::wav::WavSample;
use voce_audio::{AudioFormat, DecodeLimits, decode_file, open_sink, resample};
use voce_engine::store::Store;
use voce_engine::talker::{TalkEvent, TalkRequest, Talker};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "user.wav".into()));
    let store = Store::from_env()?;
    let talker = Talker::open(&store, "moshiko", &Default::default())?;
    let rate = talker.info().sample_rate as u32;
    let audio = decode_file(&path, &DecodeLimits::default())?;
    let samples = resample(&audio.to_mono(), audio.sample_rate, rate);

    let (mut user, answer) = talker.talk(&TalkRequest::default().with_seed(1))?;
    // `push` waits while ten seconds are waiting, so that the answer is read beside it. The conversation ends with `user`.
    let sender = std::thread::spawn(move || user.push(&samples));
    let mut out = open_sink("answer.wav".as_ref(), AudioFormat::Wav(WavSample::S16), rate)?;
    for event in answer {
        match event? {
            TalkEvent::Audio(samples) => out.write(&samples)?,
            TalkEvent::Text(text) => {
                print!("{text}");
                std::io::stdout().flush()?;
            }
            _ => {}
        }
    }
    out.finish()?;
    sender.join().map_err(|_| "the sender broke")??;
    Ok(())
}
