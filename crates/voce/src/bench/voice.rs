//! A voice for random weights: noise, cloned by them.

use std::sync::Arc;

use voce_audio::wav::WavSample;
use voce_audio::{AudioFormat, open_sink};
use voce_engine::{Speaker, SpeakerOptions};
use voce_models::pocket::Voice;

use crate::failure::Outcome;

/// Positions of the voice: ten seconds at 12.5 frames a second.
pub(super) const POSITIONS: usize = 125;

/// A voice of the length that published ones have. The speaker that makes it is gone afterwards.
pub(super) fn random(shape: &str, seed: u64, options: &SpeakerOptions) -> Outcome<Arc<Voice>> {
    let speaker = Speaker::random(shape, seed, &SpeakerOptions { slots: 1, trace: None, ..options.clone() })?;
    let info = speaker.info();
    let samples = (POSITIONS as f64 * info.sample_rate as f64 / info.frame_rate) as usize;
    let path = std::env::temp_dir().join(format!("voce-bench-{}.wav", std::process::id()));
    let mut sink = open_sink(&path, AudioFormat::Wav(WavSample::S16), info.sample_rate as u32)?;
    let mut state = 0x2545_f491u32;
    let noise: Vec<f32> = (0..samples)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state as f32 / u32::MAX as f32 - 0.5) * 0.2
        })
        .collect();
    sink.write(&noise)?;
    sink.finish()?;
    let voice = speaker.clone_voice(&path);
    let _ = std::fs::remove_file(&path);
    Ok(voice?)
}
