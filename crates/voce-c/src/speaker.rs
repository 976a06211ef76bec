//! Models that speak, and streams of audio whose text may still be arriving.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use voce_engine::speaker::TextSender;
use voce_engine::store::Task;
use voce_engine::{SpeakerOptions, SpeechStream};

use crate::boundary::{self, handle, out};
use crate::guard::{c_text, guard, guard_or};
use crate::options::{ModelOptions, Place, SpeakOptions, speak_request};
use crate::status::{Fault, Outcome, Status};
use crate::wait::{Stop, lock, unless_cancelled, wait};

/// A model that speaks. Any thread may use it, several at once.
pub struct Speaker(Arc<voce_engine::Speaker>);

/// Takes audio: `count` samples, mono, -1 to 1, valid during the call. Not 0 stops the speech. It must not throw.
pub type AudioCallback = Option<extern "C" fn(samples: *const f32, count: usize, user: *mut c_void) -> c_int>;

/// Opens a model that speaks. `model` is a name, a folder or `owner/repo`; null is the best that was pulled, else the one
/// inside the library. `options` may be null. To be freed by `voce_speaker_free`.
///
/// # Safety
/// Texts end with a zero; `options` has the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_speaker_open(
    model: *const c_char,
    options: *const ModelOptions,
    speaker: Option<&mut MaybeUninit<Option<Box<Speaker>>>>,
) -> Status {
    guard(|| {
        let speaker = out(speaker, "the speaker")?;
        speaker.write(None);
        // SAFETY: the caller's word, as above.
        let (model, place) = unsafe { (boundary::text(model, "the model")?, Place::read(options)?) };
        let reference = voce_nano::reference(&place.store, Task::Speech, model)?;
        let mut options = SpeakerOptions::default()
            .with_precision(place.precision)
            .with_device(place.device)
            .with_threads(place.threads);
        options.slots = place.slots.unwrap_or(options.slots);
        let opened = voce_engine::Speaker::open(&place.store, &reference, &options)?;
        speaker.write(Some(Box::new(Speaker(Arc::new(opened)))));
        Ok(Status::Ok)
    })
}

/// Samples per second of its audio; 0 for a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn voce_speaker_sample_rate(speaker: Option<&Speaker>) -> u32 {
    guard_or(|_| 0, || Ok(handle(speaker, "speaker")?.0.info().sample_rate as u32))
}

/// The names of its voices, a line each. To be freed by `voce_string_free`.
#[unsafe(no_mangle)]
pub extern "C" fn voce_speaker_voices(
    speaker: Option<&Speaker>,
    names: Option<&mut MaybeUninit<*mut c_char>>,
) -> Status {
    guard(|| {
        let names = out(names, "the names")?;
        names.write(std::ptr::null_mut());
        let voices = handle(speaker, "speaker")?.0.voice_names();
        names.write(give(&voices.join("\n")));
        Ok(Status::Ok)
    })
}

/// Frees a speaker; streams under way go on. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn voce_speaker_free(speaker: Option<Box<Speaker>>) {
    guard_or(drop, || {
        drop(speaker);
        Ok(())
    });
}

/// Speaks a text and gives its audio to `callback`, on this thread, until all of it was given. `options` may be null.
/// `VOCE_STATUS_CANCELLED` if the callback stopped it.
///
/// # Safety
/// Texts end with a zero; `options` has the size that it says; `user` is the callback's business.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_speak(
    speaker: Option<&Speaker>,
    text: *const c_char,
    options: *const SpeakOptions,
    callback: AudioCallback,
    user: *mut c_void,
) -> Status {
    guard(|| {
        let speaker = handle(speaker, "speaker")?;
        let callback = callback.ok_or_else(|| Fault::argument("the callback is a null pointer"))?;
        // SAFETY: the caller's word, as above.
        let (text, request) = unsafe { (boundary::some_text(text, "the text")?, speak_request(options)?) };
        for chunk in speaker.0.speak(text, &request)? {
            let samples = chunk?.samples;
            if callback(samples.as_ptr(), samples.len(), user) != 0 {
                return Err(Fault::cancelled());
            }
        }
        Ok(Status::Ok)
    })
}

/// A stream of audio. One thread may push text while another reads audio, and any may cancel.
pub struct Speech {
    /// The model stays open as long as it speaks.
    _speaker: Arc<voce_engine::Speaker>,
    sender: Mutex<Option<TextSender>>,
    reading: Mutex<Reading>,
    cancelled: AtomicBool,
}

struct Reading {
    stream: Option<SpeechStream>,
    /// What the reader was given last.
    samples: Vec<f32>,
}

/// Starts to speak. With a null `text`, text comes by `voce_speech_push` and ends with `voce_speech_finish`. `options` may
/// be null. To be freed by `voce_speech_free`.
///
/// # Safety
/// Texts end with a zero; `options` has the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_speech_start(
    speaker: Option<&Speaker>,
    text: *const c_char,
    options: *const SpeakOptions,
    speech: Option<&mut MaybeUninit<Option<Box<Speech>>>>,
) -> Status {
    guard(|| {
        let speech = out(speech, "the speech")?;
        speech.write(None);
        let speaker = handle(speaker, "speaker")?;
        // SAFETY: the caller's word, as above.
        let (text, request) = unsafe { (boundary::text(text, "the text")?, speak_request(options)?) };
        let (sender, stream) = match text {
            Some(text) => (None, speaker.0.speak(text, &request)?),
            None => {
                let (sender, stream) = speaker.0.speak_live(&request)?;
                (Some(sender), stream)
            }
        };
        speech.write(Some(Box::new(Speech {
            _speaker: speaker.0.clone(),
            sender: Mutex::new(sender),
            reading: Mutex::new(Reading { stream: Some(stream), samples: Vec::new() }),
            cancelled: AtomicBool::new(false),
        })));
        Ok(Status::Ok)
    })
}

impl Speech {
    /// Gives the sender something to do, and waits until all of it has found room.
    fn send(&self, first: impl FnOnce(&mut TextSender) -> Result<bool, ()>) -> Outcome {
        let mut held = lock(&self.sender);
        let sender = held.as_mut().ok_or_else(Fault::ended)?;
        let mut first = Some(first);
        let sent = wait(-1, &self.cancelled, |_| {
            let step = match first.take() {
                Some(first) => first(sender),
                None => sender.try_flush().map_err(drop),
            };
            match step {
                Ok(true) => Poll::Ready(Ok(())),
                Ok(false) => Poll::Pending,
                Err(()) => Poll::Ready(Err(())),
            }
        });
        match sent {
            Ok(Ok(())) => return Ok(Status::Ok),
            Ok(Err(())) => *held = None,
            Err(_) => {
                *held = None;
                return Err(Fault::cancelled());
            }
        }
        Err(Fault::ended())
    }
}

/// Adds text; a word may come in pieces. Waits while much text is waiting to be spoken, and nobody reads the audio.
///
/// # Safety
/// `text` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_speech_push(speech: Option<&Speech>, text: *const c_char) -> Status {
    guard(|| {
        let speech = handle(speech, "speech")?;
        // SAFETY: the caller's word, as above.
        let text = unsafe { boundary::some_text(text, "the text") }?;
        speech.send(|sender| sender.try_push(text).map_err(drop))
    })
}

/// No more text comes: the stream ends once all of it was spoken.
#[unsafe(no_mangle)]
pub extern "C" fn voce_speech_finish(speech: Option<&Speech>) -> Status {
    guard(|| {
        let speech = handle(speech, "speech")?;
        speech.send(|sender| sender.try_finish().map_err(drop))?;
        *lock(&speech.sender) = None;
        Ok(Status::Ok)
    })
}

/// Waits for the next audio, `timeout_ms` at most: negative is for ever, and 0 does not wait. `VOCE_STATUS_OK` with
/// samples, which are valid until the next call on this stream; `VOCE_STATUS_END` after the last; `VOCE_STATUS_TIMEOUT`.
#[unsafe(no_mangle)]
pub extern "C" fn voce_speech_next(
    speech: Option<&Speech>,
    timeout_ms: i32,
    samples: Option<&mut MaybeUninit<*const f32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let (samples, count) = (out(samples, "the samples")?, out(count, "the count")?);
        samples.write(std::ptr::null());
        count.write(0);
        let speech = handle(speech, "speech")?;
        let mut reading = lock(&speech.reading);
        let Some(stream) = reading.stream.as_mut() else {
            return unless_cancelled(&speech.cancelled, Ok(Status::End));
        };
        let ended: Outcome = match wait(timeout_ms, &speech.cancelled, |cx| stream.poll_next(cx)) {
            Ok(Some(Ok(chunk))) => {
                reading.samples = chunk.samples;
                samples.write(reading.samples.as_ptr());
                count.write(reading.samples.len());
                return Ok(Status::Ok);
            }
            Err(Stop::Timeout) => return Ok(Status::Timeout),
            Ok(None) => Ok(Status::End),
            Ok(Some(Err(e))) => Err(e.into()),
            Err(Stop::Cancelled) => Err(Fault::cancelled()),
        };
        // Whatever ended it, the slot is free from now on.
        reading.stream = None;
        unless_cancelled(&speech.cancelled, ended)
    })
}

/// Stops the speech, from any thread: whoever waits for it gets `VOCE_STATUS_CANCELLED`.
#[unsafe(no_mangle)]
pub extern "C" fn voce_speech_cancel(speech: Option<&Speech>) -> Status {
    guard(|| {
        let speech = handle(speech, "speech")?;
        speech.cancelled.store(true, Ordering::Relaxed);
        // Who holds the lock waits, and sees the switch.
        if let Ok(mut reading) = speech.reading.try_lock() {
            reading.stream = None;
        }
        if let Ok(mut sender) = speech.sender.try_lock() {
            *sender = None;
        }
        Ok(Status::Ok)
    })
}

/// Stops and frees a stream that no thread uses any more. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn voce_speech_free(speech: Option<Box<Speech>>) {
    guard_or(drop, || {
        drop(speech);
        Ok(())
    });
}

/// A text to give away.
pub(crate) fn give(text: &str) -> *mut c_char {
    CString::into_raw(c_text(text))
}
