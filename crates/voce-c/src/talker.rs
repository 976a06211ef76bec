//! Models that hold conversations: audio goes in and comes out at once, with the text of what the model says.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, ready};

use voce_engine::store::Task;
use voce_engine::talker::{HungUp, TalkEvent, TalkRequest, TalkSender, TalkStream, TalkerOptions};

use crate::boundary::{self, handle, out};
use crate::guard::{c_text, guard, guard_or};
use crate::options::{ModelOptions, Place};
use crate::status::{Fault, Outcome, Status};
use crate::wait::{Stop, lock, unless_cancelled, wait};

/// A model that holds conversations. Any thread may use it, several at once.
pub struct Talker(Arc<voce_engine::talker::Talker>);

/// A conversation. One thread may push audio while another reads what is said, and any may cancel.
pub struct Talking {
    /// The model stays open as long as it talks.
    _talker: Arc<voce_engine::talker::Talker>,
    sender: Mutex<Option<TalkSender>>,
    reading: Mutex<Reading>,
    cancelled: AtomicBool,
}

struct Reading {
    stream: Option<TalkStream>,
    /// What the reader was given last.
    samples: Vec<f32>,
    text: CString,
}

/// Opens a model that holds conversations, by name or folder. `options` may be null. To be freed by `voce_talker_free`.
///
/// # Safety
/// Texts end with a zero; `options` has the size that it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_talker_open(
    model: *const c_char,
    options: *const ModelOptions,
    talker: Option<&mut MaybeUninit<Option<Box<Talker>>>>,
) -> Status {
    guard(|| {
        let talker = out(talker, "the talker")?;
        talker.write(None);
        // SAFETY: the caller's word, as above.
        let (model, place) = unsafe { (boundary::text(model, "the model")?, Place::read(options)?) };
        let reference = voce_nano::reference(&place.store, Task::Dialogue, model)?;
        let mut options = TalkerOptions::default()
            .with_precision(place.precision)
            .with_device(place.device)
            .with_threads(place.threads);
        options.slots = place.slots.unwrap_or(options.slots);
        let opened = voce_engine::talker::Talker::open(&place.store, &reference, &options)?;
        talker.write(Some(Box::new(Talker(Arc::new(opened)))));
        Ok(Status::Ok)
    })
}

/// Samples per second, in and out; 0 for a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn voce_talker_sample_rate(talker: Option<&Talker>) -> u32 {
    guard_or(|_| 0, || Ok(handle(talker, "talker")?.0.info().sample_rate as u32))
}

/// Frees a talker; conversations under way go on. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn voce_talker_free(talker: Option<Box<Talker>>) {
    guard_or(drop, || {
        drop(talker);
        Ok(())
    });
}

/// Begins a conversation, with the seed of what is drawn. To be freed by `voce_talking_free`.
#[unsafe(no_mangle)]
pub extern "C" fn voce_talking_start(
    talker: Option<&Talker>,
    seed: u64,
    talking: Option<&mut MaybeUninit<Option<Box<Talking>>>>,
) -> Status {
    guard(|| {
        let talking = out(talking, "the conversation")?;
        talking.write(None);
        let talker = handle(talker, "talker")?;
        let (sender, stream) = talker.0.talk(&TalkRequest::default().with_seed(seed))?;
        talking.write(Some(Box::new(Talking {
            _talker: talker.0.clone(),
            sender: Mutex::new(Some(sender)),
            reading: Mutex::new(Reading {
                stream: Some(stream),
                samples: Vec::new(),
                text: CString::default(),
            }),
            cancelled: AtomicBool::new(false),
        })));
        Ok(Status::Ok)
    })
}

/// Adds what the user says: mono, -1 to 1, at the model's sample rate. Waits while ten seconds of it are waiting.
///
/// # Safety
/// `samples` points to `count` floats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_talking_push(
    talking: Option<&Talking>,
    samples: *const f32,
    count: usize,
) -> Status {
    guard(|| {
        let talking = handle(talking, "conversation")?;
        // SAFETY: the caller's word, as above.
        let samples = unsafe { boundary::samples(samples, count) }?;
        let mut held = lock(&talking.sender);
        let sender = held.as_mut().ok_or_else(Fault::ended)?;
        let mut taken = 0;
        let sent = wait(-1, &talking.cancelled, |cx| {
            while taken < samples.len() {
                ready!(sender.poll_ready(cx))?;
                taken += sender.try_push(&samples[taken..])?;
            }
            Poll::Ready(Ok::<_, HungUp>(()))
        });
        let fault = match sent {
            Ok(Ok(())) => return Ok(Status::Ok),
            Ok(Err(_)) => Fault::ended(),
            Err(_) => Fault::cancelled(),
        };
        *held = None;
        Err(fault)
    })
}

/// No more audio comes: the conversation ends once all of it was heard.
#[unsafe(no_mangle)]
pub extern "C" fn voce_talking_finish(talking: Option<&Talking>) -> Status {
    guard(|| {
        *lock(&handle(talking, "conversation")?.sender) = None;
        Ok(Status::Ok)
    })
}

/// Waits for what the model says next, `timeout_ms` at most: negative is for ever, and 0 does not wait. `VOCE_STATUS_OK`
/// with samples, or with a text and no samples, valid until the next call on this conversation; `VOCE_STATUS_END`;
/// `VOCE_STATUS_TIMEOUT`.
#[unsafe(no_mangle)]
pub extern "C" fn voce_talking_next(
    talking: Option<&Talking>,
    timeout_ms: i32,
    samples: Option<&mut MaybeUninit<*const f32>>,
    count: Option<&mut MaybeUninit<usize>>,
    text: Option<&mut MaybeUninit<*const c_char>>,
) -> Status {
    guard(|| {
        let (samples, count) = (out(samples, "the samples")?, out(count, "the count")?);
        let text = out(text, "the text")?;
        samples.write(std::ptr::null());
        count.write(0);
        text.write(std::ptr::null());
        let talking = handle(talking, "conversation")?;
        let mut reading = lock(&talking.reading);
        let Reading { stream: held, samples: kept, text: said } = &mut *reading;
        let Some(stream) = held.as_mut() else {
            return unless_cancelled(&talking.cancelled, Ok(Status::End));
        };
        let ended: Outcome = loop {
            match wait(timeout_ms, &talking.cancelled, |cx| stream.poll_next(cx)) {
                Ok(Some(Ok(TalkEvent::Audio(audio)))) => {
                    *kept = audio;
                    samples.write(kept.as_ptr());
                    count.write(kept.len());
                    return Ok(Status::Ok);
                }
                Ok(Some(Ok(TalkEvent::Text(piece)))) => {
                    *said = c_text(&piece);
                    text.write(said.as_ptr());
                    return Ok(Status::Ok);
                }
                Ok(Some(Ok(_))) => {}
                Err(Stop::Timeout) => return Ok(Status::Timeout),
                Ok(None) => break Ok(Status::End),
                Ok(Some(Err(e))) => break Err(e.into()),
                Err(Stop::Cancelled) => break Err(Fault::cancelled()),
            }
        };
        // Whatever ended it, the slot is free from now on.
        *held = None;
        unless_cancelled(&talking.cancelled, ended)
    })
}

/// Ends the conversation, from any thread: whoever waits for it gets `VOCE_STATUS_CANCELLED`.
#[unsafe(no_mangle)]
pub extern "C" fn voce_talking_cancel(talking: Option<&Talking>) -> Status {
    guard(|| {
        let talking = handle(talking, "conversation")?;
        talking.cancelled.store(true, Ordering::Relaxed);
        // Who holds the lock waits, and sees the switch.
        if let Ok(mut reading) = talking.reading.try_lock() {
            reading.stream = None;
        }
        if let Ok(mut sender) = talking.sender.try_lock() {
            *sender = None;
        }
        Ok(Status::Ok)
    })
}

/// Ends and frees a conversation that no thread uses any more. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn voce_talking_free(talking: Option<Box<Talking>>) {
    guard_or(drop, || {
        drop(talking);
        Ok(())
    });
}
