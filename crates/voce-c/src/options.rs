//! Options as C gives them.

use std::ffi::c_char;

use voce_engine::listener::{Endpointing, ListenRequest};
use voce_engine::store::Store;
use voce_engine::{DeviceChoice, Placement, Precision, SpeakRequest};

use crate::boundary::{self, Options};
use crate::status::{Fault, Outcome};

/// How a model is opened. Set `size` to its sizeof and everything else to zero, then what differs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ModelOptions {
    /// Bytes of this struct.
    pub size: usize,
    /// Voce's own folder; null for the one of the environment (`VOCE_HOME`).
    pub store: *const c_char,
    /// `auto`, `cpu`, `cuda` or `cuda:N`; null is `auto`.
    pub device: *const c_char,
    /// `auto`, `f32`, `bf16`, `int8`, `int4` or `fp8`; null is `auto`.
    pub precision: *const c_char,
    /// Threads; 0 chooses.
    pub threads: u32,
    /// Streams that run side by side; 0 chooses.
    pub slots: u32,
}

// SAFETY: `repr(C)`, the size first; null pointers and zeros are values.
unsafe impl Options for ModelOptions {}

/// How a text is spoken. Set `size` to its sizeof and everything else to zero, then what differs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SpeakOptions {
    /// Bytes of this struct.
    pub size: usize,
    /// A voice by name, a `.safetensors` file, or a recording to clone; null is the model's own.
    pub voice: *const c_char,
    /// The language of the text, for models of several; null is the model's own.
    pub language: *const c_char,
    /// How to speak, in words, for models that can be told.
    pub instruct: *const c_char,
    /// The seed: the same one gives the same audio.
    pub seed: u64,
    /// Sampling temperature; 0 is the model's own (`greedy` takes the best of everything).
    pub temperature: f32,
    /// Not 0: take the best of everything that is drawn.
    pub greedy: i32,
    /// Not 0: speak numbers, dates and abbreviations as they are written.
    pub no_normalize: i32,
    /// Frames at most; 0 is no limit.
    pub max_frames: u32,
}

// SAFETY: `repr(C)`, the size first; null pointers and zeros are values.
unsafe impl Options for SpeakOptions {}

/// How audio is heard. Set `size` to its sizeof and everything else to zero, then what differs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ListenOptions {
    /// Bytes of this struct.
    pub size: usize,
    /// The language, for models that take one.
    pub language: *const c_char,
    /// Milliseconds of audio per step, one of the model's; 0 is its own.
    pub chunk_ms: u32,
    /// Hypotheses kept; 0 and 1 take the best at each step.
    pub beam: u32,
    /// Milliseconds of silence that end an utterance; 0 is never.
    pub silence_ms: u32,
    /// Milliseconds of the longest utterance; 0 is no limit.
    pub max_ms: u32,
    /// Not 0: tell what is not yet certain.
    pub partials: i32,
}

// SAFETY: `repr(C)`, the size first; null pointers and zeros are values.
unsafe impl Options for ListenOptions {}

/// Where a model comes from and where it runs, checked.
pub(crate) struct Place {
    pub(crate) store: Store,
    pub(crate) device: Placement,
    pub(crate) precision: Option<Precision>,
    pub(crate) threads: usize,
    pub(crate) slots: Option<usize>,
}

impl Place {
    /// # Safety
    /// `options` is null or a struct with its size, whose texts are null or end with a zero.
    pub(crate) unsafe fn read(options: *const ModelOptions) -> Outcome<Self> {
        // SAFETY: the caller's word.
        let given = unsafe { boundary::options(options) }?;
        // SAFETY: likewise.
        let (store, device, precision) = unsafe {
            (
                boundary::text(given.store, "the store")?,
                boundary::text(given.device, "the device")?.unwrap_or("auto"),
                boundary::text(given.precision, "the precision")?.unwrap_or("auto"),
            )
        };
        let device: DeviceChoice = device.parse().map_err(|e| Fault::request(format!("{e}")))?;
        Ok(Self {
            store: store.map_or_else(Store::from_env, Store::at)?,
            device: device.into(),
            precision: match precision {
                "auto" => None,
                other => Some(other.parse().map_err(|e| Fault::request(format!("{e}")))?),
            },
            threads: given.threads as usize,
            slots: (given.slots > 0).then_some(given.slots as usize),
        })
    }
}

/// # Safety
/// As [`Place::read`].
pub(crate) unsafe fn speak_request(options: *const SpeakOptions) -> Outcome<SpeakRequest> {
    // SAFETY: the caller's word.
    let given = unsafe { boundary::options(options) }?;
    // SAFETY: likewise.
    let (voice, language, instruct) = unsafe {
        (
            boundary::text(given.voice, "the voice")?,
            boundary::text(given.language, "the language")?,
            boundary::text(given.instruct, "the instruction")?,
        )
    };
    let request = voice.map_or_else(SpeakRequest::default, SpeakRequest::voice);
    Ok(request
        .with_language(language.map(str::to_owned))
        .with_instruct(instruct.map(str::to_owned))
        .with_seed(given.seed)
        .with_temperature((given.temperature != 0.0).then_some(given.temperature))
        .with_greedy(given.greedy != 0)
        .with_normalize(given.no_normalize == 0)
        .with_max_frames((given.max_frames > 0).then_some(given.max_frames as usize)))
}

/// # Safety
/// As [`Place::read`].
pub(crate) unsafe fn listen_request(options: *const ListenOptions) -> Outcome<ListenRequest> {
    // SAFETY: the caller's word.
    let given = unsafe { boundary::options(options) }?;
    // SAFETY: likewise.
    let language = unsafe { boundary::text(given.language, "the language") }?;
    let some = |n: u32| (n > 0).then_some(n);
    Ok(ListenRequest::default()
        .with_language(language.map(str::to_owned))
        .with_chunk_ms(some(given.chunk_ms))
        .with_beam(given.beam.max(1) as usize)
        .with_partials(given.partials != 0)
        .with_endpoint(
            Endpointing::default().with_silence_ms(some(given.silence_ms)).with_max_ms(some(given.max_ms)),
        ))
}
