//! A voice for random weights: one of their speakers, or noise, cloned by them.

use voce_engine::speaker::VoiceError;
use voce_engine::{EngineError, Speaker, SpeakerOptions, Voice};

use crate::failure::Outcome;

/// Positions of the voice: ten seconds at 12.5 frames a second.
pub(super) const POSITIONS: usize = 125;

/// A voice of the length that published ones have. The speaker that makes it is gone afterwards.
pub(super) fn random(shape: &str, seed: u64, options: &SpeakerOptions) -> Outcome<Option<Voice>> {
    let speaker = Speaker::random(shape, seed, &options.clone().with_slots(1).with_trace(None))?;
    if let Some(name) = speaker.default_voice() {
        return Ok(Some(speaker.voice(&name)?));
    }
    let info = speaker.info();
    let samples = (POSITIONS as f64 * info.sample_rate as f64 / info.frame_rate) as usize;
    let mut state = 0x2545_f491u32;
    let noise: Vec<f32> = (0..samples)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state as f32 / u32::MAX as f32 - 0.5) * 0.2
        })
        .collect();
    match speaker.clone_samples(&noise, None) {
        // A model whose voices nobody can make speaks without one: it looks at as many rows.
        Err(EngineError::Voice { source: VoiceError::NoEncoder, .. }) => Ok(None),
        voice => Ok(Some(voice?)),
    }
}
