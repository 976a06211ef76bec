//! One text, spoken into an output.

use sha2::{Digest as _, Sha256};
use voce_audio::encode::sink_to;
use voce_audio::output::Output;
use voce_audio::{AudioError, AudioFormat};
use voce_engine::{Speaker, VoiceChoice, wait_for};

use crate::error::JobError;
use crate::hear::{LOOK, Watch, patiently};
use crate::unit::{Input, SaySettings, Unit};

/// What was spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Said {
    /// Seconds of audio.
    pub seconds: f64,
    /// Chunks of text that did not end, in halves neither: words of them may be missing.
    pub unended: usize,
}

/// Speaks the text of a unit; `open` gives the place once there is something to write, and it is committed at the end.
pub fn say<O: Output + 'static>(
    speaker: &Speaker,
    unit: &Unit,
    settings: &SaySettings,
    watch: &dyn Watch,
    open: impl FnOnce() -> Result<O, JobError>,
) -> Result<Said, JobError> {
    let Input::Text { text, voice, seed } = &unit.input else {
        return Err(JobError::Refused("this is a recording, and a text is asked for".into()));
    };
    let format = format(settings)?;
    let voice = match voice.as_ref().or(settings.voice.as_ref()) {
        Some(name) => speaker.voice(name)?.into(),
        None => VoiceChoice::Default,
    };
    let seed = seed.unwrap_or_else(|| own_seed(settings.seed, &unit.id));
    let request = settings.request().with_voice(voice).with_seed(seed).with_whole_passages(true);
    let mut stream = patiently(watch, || speaker.speak(text, &request))?;
    let rate = speaker.info().sample_rate;
    let mut sink = sink_to(open()?, format, rate as u32).map_err(JobError::Encode)?;
    let go_on = || if watch.stop() { Err(JobError::Stopped) } else { Ok(()) };
    let mut samples = 0usize;
    while let Some(chunk) = wait_for(LOOK, |cx| stream.poll_next(cx), go_on)? {
        let chunk = chunk?;
        sink.write(&chunk.samples).map_err(JobError::Encode)?;
        samples += chunk.samples.len();
        watch.at(samples as f64 / rate as f64);
        go_on()?;
    }
    sink.finish().map_err(JobError::Encode)?;
    Ok(Said { seconds: samples as f64 / rate as f64, unended: stream.stats().unended })
}

/// The audio format that settings name.
fn format(settings: &SaySettings) -> Result<AudioFormat, JobError> {
    let name = settings.format.as_deref().unwrap_or("wav");
    AudioFormat::from_name(name).ok_or_else(|| {
        let detail = format!("no such format '{name}'");
        JobError::Encode(AudioError::Encode { detail })
    })
}

/// A seed that a unit has for itself, whatever runs beside it and in whatever order.
fn own_seed(seed: u64, id: &str) -> u64 {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(id);
    hash.finalize().iter().take(4).fold(0, |all, b| all << 8 | u64::from(*b))
}
