//! Makes a recording into a voice prompt the way Pocket TTS 4.0.1 does: mono, at most 30 s, 24 kHz, ending
//! on a short pause. On top of that, a recording that is too long may be cut inside a pause.

use crate::decode::mix_to_mono;
use crate::{AudioError, Decoder, resample_poly_like_scipy};

/// The longest prompt, in seconds.
pub const MAX_PROMPT_SECONDS: u32 = 30;
/// The rate of the codec that encodes prompts.
pub const PROMPT_RATE: u32 = 24_000;

const PAUSE_SECONDS: f64 = 0.08;
const FADE_SECONDS: f64 = 0.02;
const FRAME_SECONDS: f64 = 0.02;
const FLOOR_DB: f32 = 35.0;
/// A pause is at least this many quiet frames.
const PAUSE_FRAMES: usize = 5;
/// How far back from the end of a long prompt a pause is looked for, in seconds.
const PAUSE_SEARCH_SECONDS: f64 = 10.0;

/// What to do with a recording of more than [`MAX_PROMPT_SECONDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LongPrompt {
    /// Cut inside the last pause that fits, or at the quietest place.
    #[default]
    CutOnPause,
    /// Cut at exactly 30 s, as the package does with `truncate=True`.
    Truncate,
    /// Keep all of it, as the package does by default.
    Keep,
}

/// Prepares mono audio at any rate as a prompt at `target_rate` (normally [`PROMPT_RATE`]).
pub fn prepare(mono: &[f32], sample_rate: u32, target_rate: u32, long: LongPrompt) -> Vec<f32> {
    let max = MAX_PROMPT_SECONDS as usize * sample_rate as usize;
    let kept = match long {
        LongPrompt::Keep => mono,
        LongPrompt::Truncate => &mono[..mono.len().min(max)],
        LongPrompt::CutOnPause => &mono[..cut_on_pause(mono, sample_rate, max)],
    };
    end_on_pause(&resample_poly_like_scipy(kept, target_rate, sample_rate), target_rate)
}

/// Prepares a recording that is being decoded; unless all of it is kept, only the start is read.
pub fn from_decoder(
    mut decoder: Decoder,
    target_rate: u32,
    long: LongPrompt,
) -> Result<Vec<f32>, AudioError> {
    let rate = decoder.sample_rate();
    let enough = match long {
        LongPrompt::Keep => usize::MAX,
        // One sample more than fits says that there is more.
        _ => longest(rate) + 1,
    };
    let mono = read_mono(&mut decoder, enough)?;
    Ok(prepare(&mono, rate, target_rate, long))
}

/// A recording at `target_rate` whose end is left as it is; one that is too long is cut inside a pause, or, where all of it
/// is wanted, not given.
pub fn as_it_is(
    mut decoder: Decoder,
    target_rate: u32,
    may_cut: bool,
) -> Result<Option<Vec<f32>>, AudioError> {
    let rate = decoder.sample_rate();
    let mono = read_mono(&mut decoder, longest(rate) + 1)?;
    if mono.len() > longest(rate) && !may_cut {
        return Ok(None);
    }
    let kept = &mono[..cut_on_pause(&mono, rate, longest(rate))];
    Ok(Some(if rate == target_rate {
        kept.to_vec()
    } else {
        resample_poly_like_scipy(kept, target_rate, rate)
    }))
}

/// Samples of the longest prompt.
fn longest(rate: u32) -> usize {
    MAX_PROMPT_SECONDS as usize * rate as usize
}

/// The start of a recording: all of it, or the first samples that are `enough`.
fn read_mono(decoder: &mut Decoder, enough: usize) -> Result<Vec<f32>, AudioError> {
    let channels = decoder.channels();
    let mut mono = Vec::new();
    while let Some(block) = decoder.next_block()? {
        mix_to_mono(block, channels, &mut mono);
        if mono.len() >= enough {
            break;
        }
    }
    Ok(mono)
}

/// Ends a prompt on exactly 80 ms of silence: what is 35 dB below the loudest 20 ms at the end is cut, the
/// last 20 ms of the rest faded out, zeros appended. Audio shorter than 20 ms is returned as it is.
pub fn end_on_pause(wav: &[f32], sample_rate: u32) -> Vec<f32> {
    let samples = |seconds: f64| (seconds * f64::from(sample_rate)) as usize;
    let frame = samples(FRAME_SECONDS).max(1);
    let levels = levels_db(wav, frame);
    let loudest = levels.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let Some(last) = levels.iter().rposition(|&db| db > loudest - FLOOR_DB) else {
        return wav.to_vec();
    };
    let end = (last + 1) * frame;
    let mut out = wav[..end].to_vec();
    let fade = samples(FADE_SECONDS).min(end);
    let step = -1.0 / (fade.max(2) - 1) as f32;
    for (i, s) in out[end - fade..].iter_mut().enumerate() {
        // Counted from whichever end is nearer, as torch.linspace does.
        *s *= if i < fade / 2 || fade == 1 { 1.0 + step * i as f32 } else { -step * (fade - 1 - i) as f32 };
    }
    out.resize(end + samples(PAUSE_SECONDS), 0.0);
    out
}

/// Level in dB of each whole frame.
fn levels_db(wav: &[f32], frame: usize) -> Vec<f32> {
    let level = |f: &[f32]| {
        let mean = f.iter().map(|s| s * s).sum::<f32>() / frame as f32;
        20.0 * (mean.sqrt() + 1e-12).log10()
    };
    wav.chunks_exact(frame).map(level).collect()
}

/// Where to cut audio of more than `max` samples: in the middle of the last pause of the last ten seconds
/// before `max`, or else in the quietest stretch there.
fn cut_on_pause(wav: &[f32], sample_rate: u32, max: usize) -> usize {
    if wav.len() <= max {
        return wav.len();
    }
    let frame = ((FRAME_SECONDS * f64::from(sample_rate)) as usize).max(1);
    let levels = levels_db(&wav[..max], frame);
    let loudest = levels.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let from = levels.len().saturating_sub((PAUSE_SEARCH_SECONDS / FRAME_SECONDS) as usize);
    let mut quietest = (f32::INFINITY, max);
    for (i, window) in levels[from..].windows(PAUSE_FRAMES).enumerate().rev() {
        let middle = (from + i) * frame + PAUSE_FRAMES * frame / 2;
        let peak = window.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if peak <= loudest - FLOOR_DB {
            return middle;
        }
        let sum = window.iter().sum::<f32>();
        if sum < quietest.0 {
            quietest = (sum, middle);
        }
    }
    quietest.1
}
