//! Models that hear, and streams of events over recordings or over audio that is pushed.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use voce_engine::EngineError;
use voce_engine::listener::{
    ListenEvent, ListenRequest, ListenerOptions, RatedSender, Recording, RecordingStream, Transcript,
    TranscriptStream,
};
use voce_engine::store::Task;

use crate::boundary::{self, handle, out};
use crate::event::{Event, EventRoom};
use crate::guard::{guard, guard_or};
use crate::options::{ListenOptions, ModelOptions, Place, listen_request};
use crate::speaker::give;
use crate::status::{Fault, Outcome, Status};
use crate::wait::{Stop, lock, unless_cancelled, wait};

/// A model that hears. Any thread may use it, several at once.
pub struct Listener(Arc<voce_engine::listener::Listener>);

/// Opens a model that hears. `model` is a name, a folder, a `.nemo` file or `owner/repo`; null is the best that was pulled,
/// else the one inside the library. `options` may be null. To be freed by `voce_listener_free`.
///
/// # Safety
/// Texts end with a zero; `options` has the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_listener_open(
    model: *const c_char,
    options: *const ModelOptions,
    listener: Option<&mut MaybeUninit<Option<Box<Listener>>>>,
) -> Status {
    guard(|| {
        let listener = out(listener, "the listener")?;
        listener.write(None);
        // SAFETY: the caller's word, as above.
        let (model, place) = unsafe { (boundary::text(model, "the model")?, Place::read(options)?) };
        let reference = voce_nano::reference(&place.store, Task::Hearing, model)?;
        let mut options = ListenerOptions::default()
            .with_precision(place.precision)
            .with_device(place.device)
            .with_threads(place.threads);
        options.slots = place.slots.unwrap_or(options.slots);
        let opened = voce_engine::listener::Listener::open(&place.store, &reference, &options)?;
        listener.write(Some(Box::new(Listener(Arc::new(opened)))));
        Ok(Status::Ok)
    })
}

/// Samples per second that the model takes; 0 for a null pointer. Audio of other rates is resampled.
#[unsafe(no_mangle)]
pub extern "C" fn voce_listener_sample_rate(listener: Option<&Listener>) -> u32 {
    guard_or(|_| 0, || Ok(handle(listener, "listener")?.0.info().sample_rate as u32))
}

/// Frees a listener; streams under way go on. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn voce_listener_free(listener: Option<Box<Listener>>) {
    guard_or(drop, || {
        drop(listener);
        Ok(())
    });
}

/// Hears all of a recording and gives its text, to be freed by `voce_string_free`.
fn hear(
    listener: Option<&Listener>,
    recording: Recording,
    request: &ListenRequest,
    text: Option<&mut MaybeUninit<*mut c_char>>,
) -> Outcome {
    let text = out(text, "the text")?;
    text.write(std::ptr::null_mut());
    let mut heard = Transcript::default();
    for event in handle(listener, "listener")?.0.play(recording, request)? {
        heard.take(event?);
    }
    text.write(give(&heard.text));
    Ok(Status::Ok)
}

/// Hears a file of any common format and gives its text, to be freed by `voce_string_free`. `options` may be null. For
/// words, times and a way to cancel see `voce_listening_start_file`.
///
/// # Safety
/// Texts end with a zero; `options` has the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_hear_file(
    listener: Option<&Listener>,
    path: *const c_char,
    options: *const ListenOptions,
    text: Option<&mut MaybeUninit<*mut c_char>>,
) -> Status {
    guard(|| {
        // SAFETY: the caller's word, as above.
        let (path, request) = unsafe { (boundary::some_text(path, "the path")?, listen_request(options)?) };
        hear(listener, Recording::File(PathBuf::from(path)), &request, text)
    })
}

/// Hears samples (mono, -1 to 1, `sample_rate` of them a second) and gives their text, to be freed by `voce_string_free`.
/// `options` may be null.
///
/// # Safety
/// `samples` points to `count` floats; `options` has the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_hear_samples(
    listener: Option<&Listener>,
    samples: *const f32,
    count: usize,
    sample_rate: u32,
    options: *const ListenOptions,
    text: Option<&mut MaybeUninit<*mut c_char>>,
) -> Status {
    guard(|| {
        // SAFETY: the caller's word, as above.
        let (samples, request) = unsafe { (boundary::samples(samples, count)?, listen_request(options)?) };
        hear(listener, Recording::Samples { samples: samples.to_vec(), sample_rate }, &request, text)
    })
}

/// A stream of events. One thread may push audio while another reads events, and any may cancel.
pub struct Listening {
    /// The model stays open as long as it hears.
    _listener: Arc<voce_engine::listener::Listener>,
    sender: Mutex<Option<RatedSender>>,
    reading: Mutex<Reading>,
    cancelled: AtomicBool,
}

struct Reading {
    events: Option<Events>,
    /// What the reader was given last.
    room: EventRoom,
}

enum Events {
    Live(TranscriptStream),
    Recording(RecordingStream),
}

impl Events {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, EngineError>>> {
        match self {
            Self::Live(stream) => stream.poll_event(cx),
            Self::Recording(stream) => stream.poll_event(cx),
        }
    }
}

impl Listening {
    fn boxed(listener: &Listener, sender: Option<RatedSender>, events: Events) -> Box<Self> {
        Box::new(Self {
            _listener: listener.0.clone(),
            sender: Mutex::new(sender),
            reading: Mutex::new(Reading { events: Some(events), room: EventRoom::default() }),
            cancelled: AtomicBool::new(false),
        })
    }

    /// Gives the sender something, and waits until all of it has been passed on.
    fn send(&self, give: impl FnOnce(&mut RatedSender)) -> Outcome {
        let mut held = lock(&self.sender);
        let sender = held.as_mut().ok_or_else(Fault::ended)?;
        give(sender);
        let fault = match wait(-1, &self.cancelled, |cx| sender.poll_flush(cx)) {
            Ok(Ok(())) => return Ok(Status::Ok),
            Ok(Err(_)) => Fault::ended(),
            Err(_) => Fault::cancelled(),
        };
        *held = None;
        Err(fault)
    }
}

/// Starts to hear audio that comes by `voce_listening_push`, with `sample_rate` samples a second; 0 is the model's.
/// `options` may be null. To be freed by `voce_listening_free`.
///
/// # Safety
/// `options` has the size that it says, and its texts end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_listening_start(
    listener: Option<&Listener>,
    sample_rate: u32,
    options: *const ListenOptions,
    listening: Option<&mut MaybeUninit<Option<Box<Listening>>>>,
) -> Status {
    guard(|| {
        let listening = out(listening, "the stream")?;
        listening.write(None);
        let listener = handle(listener, "listener")?;
        // SAFETY: the caller's word, as above.
        let request = unsafe { listen_request(options) }?;
        let own = listener.0.info().sample_rate as u32;
        let (sender, events) = listener.0.listen(&request)?;
        let sender = RatedSender::new(sender, if sample_rate == 0 { own } else { sample_rate }, own)?;
        listening.write(Some(Listening::boxed(listener, Some(sender), Events::Live(events))));
        Ok(Status::Ok)
    })
}

/// Starts to hear a file of any common format. `options` may be null. To be freed by `voce_listening_free`.
///
/// # Safety
/// Texts end with a zero; `options` has the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_listening_start_file(
    listener: Option<&Listener>,
    path: *const c_char,
    options: *const ListenOptions,
    listening: Option<&mut MaybeUninit<Option<Box<Listening>>>>,
) -> Status {
    guard(|| {
        let listening = out(listening, "the stream")?;
        listening.write(None);
        let listener = handle(listener, "listener")?;
        // SAFETY: the caller's word, as above.
        let (path, request) = unsafe { (boundary::some_text(path, "the path")?, listen_request(options)?) };
        let events = listener.0.play(Recording::File(PathBuf::from(path)), &request)?;
        listening.write(Some(Listening::boxed(listener, None, Events::Recording(events))));
        Ok(Status::Ok)
    })
}

/// Adds audio: mono, -1 to 1. Waits while ten seconds of it are waiting.
///
/// # Safety
/// `samples` points to `count` floats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_listening_push(
    listening: Option<&Listening>,
    samples: *const f32,
    count: usize,
) -> Status {
    guard(|| {
        let listening = handle(listening, "stream")?;
        // SAFETY: the caller's word, as above.
        let samples = unsafe { boundary::samples(samples, count) }?;
        listening.send(|sender| sender.give(samples))
    })
}

/// Ends the utterance here: its final comes without waiting for more audio.
#[unsafe(no_mangle)]
pub extern "C" fn voce_listening_end_utterance(listening: Option<&Listening>) -> Status {
    guard(|| {
        let listening = handle(listening, "stream")?;
        listening.send(RatedSender::drain)?;
        if let Some(sender) = lock(&listening.sender).as_mut() {
            sender.end_utterance();
        }
        Ok(Status::Ok)
    })
}

/// No more audio comes: the stream ends once all of it was heard.
#[unsafe(no_mangle)]
pub extern "C" fn voce_listening_finish(listening: Option<&Listening>) -> Status {
    guard(|| {
        let listening = handle(listening, "stream")?;
        listening.send(RatedSender::drain)?;
        if let Some(sender) = lock(&listening.sender).take() {
            sender.finish();
        }
        Ok(Status::Ok)
    })
}

/// Waits for the next event, `timeout_ms` at most: negative is for ever, and 0 does not wait. `VOCE_STATUS_OK` with an
/// event, which is valid until the next call on this stream; `VOCE_STATUS_END` after the last; `VOCE_STATUS_TIMEOUT`.
#[unsafe(no_mangle)]
pub extern "C" fn voce_listening_next(
    listening: Option<&Listening>,
    timeout_ms: i32,
    event: Option<&mut MaybeUninit<*const Event>>,
) -> Status {
    guard(|| {
        let event = out(event, "the event")?;
        event.write(std::ptr::null());
        let listening = handle(listening, "stream")?;
        let mut reading = lock(&listening.reading);
        let Reading { events: held, room } = &mut *reading;
        let Some(events) = held.as_mut() else {
            return unless_cancelled(&listening.cancelled, Ok(Status::End));
        };
        let ended: Outcome = loop {
            match wait(timeout_ms, &listening.cancelled, |cx| events.poll(cx)) {
                Ok(Some(Ok(heard))) => {
                    if let Some(heard) = room.put(heard) {
                        event.write(heard);
                        return Ok(Status::Ok);
                    }
                }
                Err(Stop::Timeout) => return Ok(Status::Timeout),
                Ok(None) => break Ok(Status::End),
                Ok(Some(Err(e))) => break Err(e.into()),
                Err(Stop::Cancelled) => break Err(Fault::cancelled()),
            }
        };
        // Whatever ended it, the slot is free from now on.
        *held = None;
        unless_cancelled(&listening.cancelled, ended)
    })
}

/// Stops hearing, from any thread: whoever waits for it gets `VOCE_STATUS_CANCELLED`.
#[unsafe(no_mangle)]
pub extern "C" fn voce_listening_cancel(listening: Option<&Listening>) -> Status {
    guard(|| {
        let listening = handle(listening, "stream")?;
        listening.cancelled.store(true, Ordering::Relaxed);
        // Who holds the lock waits, and sees the switch.
        if let Ok(mut reading) = listening.reading.try_lock() {
            reading.events = None;
        }
        if let Ok(mut sender) = listening.sender.try_lock() {
            *sender = None;
        }
        Ok(Status::Ok)
    })
}

/// Stops and frees a stream that no thread uses any more. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn voce_listening_free(listening: Option<Box<Listening>>) {
    guard_or(drop, || {
        drop(listening);
        Ok(())
    });
}
