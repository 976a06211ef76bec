//! How long it takes to clone a voice, from a clip of the caller's or the one in the binary.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use voce_audio::{DecodeLimits, decode_bytes};
use voce_engine::{Speaker, Voice};

use super::measure::quantile;
use crate::console::{milliseconds, round};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::whole_file;

/// Ten seconds that the built-in voice spoke (`voce say --temperature 0 --seed 1`): the project's own.
const CLIP: &[u8] = include_bytes!("clip.opus");
/// The name that stands for it.
pub(super) const BUILT_IN: &str = "built-in";

/// What cloning took.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cloned {
    /// The clip's file, or `built-in`.
    clip: String,
    clip_seconds: f64,
    /// The first time, which loads the voice encoder.
    first_ms: f64,
    /// The median of the others.
    ms: f64,
}

impl Cloned {
    pub(super) fn line(&self) -> String {
        format!(
            "cloned {:.1} s of speech ({}) in {:.1} ms, {:.4}x real time; the first time in {:.1} ms\n",
            self.clip_seconds,
            self.clip,
            self.ms,
            self.ms / 1e3 / self.clip_seconds.max(1e-9),
            self.first_ms
        )
    }
}

/// Clones the clip once to load what it needs, then `repeat` times.
pub(super) fn measure(speaker: &Speaker, clip: &str, repeat: usize) -> Outcome<(Voice, Cloned)> {
    let own = if clip == BUILT_IN { Some(TemporaryClip::write()?) } else { None };
    let path = own.as_ref().map_or(Path::new(clip), |own| own.0.as_path());
    let read =
        std::fs::read(path).map_err(|e| Failure::usage(format!("cannot read the clip {clip}: {e}")))?;
    let audio = decode_bytes(&read, None, &DecodeLimits::default())?;
    let clip_seconds = audio.samples.len() as f64 / audio.channels as f64 / f64::from(audio.sample_rate);
    let once = || -> Outcome<(Voice, f64)> {
        interrupt::check()?;
        let begun = Instant::now();
        let voice = speaker.clone_voice(path, None)?;
        Ok((voice, milliseconds(begun.elapsed())))
    };
    let (voice, first_ms) = once()?;
    let times = (0..repeat.max(1)).map(|_| once().map(|(_, ms)| ms)).collect::<Outcome<Vec<f64>>>()?;
    let ms = round(quantile(&times, 0.5), 3);
    Ok((voice, Cloned { clip: clip.to_owned(), clip_seconds: round(clip_seconds, 3), first_ms, ms }))
}

/// The built-in clip as a file, for as long as it is needed.
struct TemporaryClip(PathBuf);

impl TemporaryClip {
    fn write() -> Outcome<Self> {
        let path = std::env::temp_dir().join(format!("voce-bench-clip-{}.opus", std::process::id()));
        whole_file::write(&path, CLIP)?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryClip {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
