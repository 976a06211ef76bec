//! The C API as a C program calls it: built-in models, bad pointers, cancelling from another thread.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use voce::*;

const TEXT: &CStr = c"The weather is fine today.";

/// A folder of models for all tests of this process.
fn options() -> ModelOptions {
    static HOME: OnceLock<(tempfile::TempDir, CString)> = OnceLock::new();
    let (_, home) = HOME.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let name = CString::new(dir.path().to_str().unwrap()).unwrap();
        (dir, name)
    });
    ModelOptions {
        size: size_of::<ModelOptions>(),
        store: home.as_ptr(),
        device: c"cpu".as_ptr(),
        precision: ptr::null(),
        threads: 1,
        slots: 2,
    }
}

fn speaker() -> Box<Speaker> {
    opened(|out| {
        // SAFETY: a literal, and options with their size.
        unsafe { voce_speaker_open(c"nano-voice".as_ptr(), &options(), out) }
    })
}

fn listener() -> Box<Listener> {
    opened(|out| {
        // SAFETY: a literal, and options with their size.
        unsafe { voce_listener_open(c"nano-ear".as_ptr(), &options(), out) }
    })
}

fn opened<T>(open: impl FnOnce(Option<&mut MaybeUninit<Option<Box<T>>>>) -> Status) -> Box<T> {
    let mut out = MaybeUninit::uninit();
    let status = open(Some(&mut out));
    assert_eq!(status, Status::Ok, "{}", error());
    // SAFETY: it is written whenever the place is given.
    unsafe { out.assume_init() }.unwrap()
}

fn error() -> String {
    // SAFETY: the library's text, which ends with a zero.
    unsafe { CStr::from_ptr(voce_last_error()) }.to_str().unwrap().to_owned()
}

fn code() -> String {
    // SAFETY: as above.
    unsafe { CStr::from_ptr(voce_last_error_code()) }.to_str().unwrap().to_owned()
}

fn speak_options() -> SpeakOptions {
    // SAFETY: null pointers and zeros are values.
    let mut options: SpeakOptions = unsafe { MaybeUninit::zeroed().assume_init() };
    (options.size, options.seed) = (size_of::<SpeakOptions>(), 1);
    options
}

fn listen_options() -> ListenOptions {
    // SAFETY: null pointers and zeros are values.
    let mut options: ListenOptions = unsafe { MaybeUninit::zeroed().assume_init() };
    options.size = size_of::<ListenOptions>();
    options
}

extern "C" fn collect(samples: *const f32, count: usize, user: *mut c_void) -> c_int {
    // SAFETY: as the callback's contract has it; `user` is the vector of `spoken`.
    unsafe {
        let all = &mut *user.cast::<Vec<f32>>();
        all.extend_from_slice(std::slice::from_raw_parts(samples, count));
    }
    0
}

extern "C" fn refuse(_: *const f32, _: usize, user: *mut c_void) -> c_int {
    // SAFETY: `user` is a counter.
    unsafe { *user.cast::<u32>() += 1 };
    1
}

fn spoken(speaker: &Speaker) -> Vec<f32> {
    let mut all = Vec::<f32>::new();
    let user = (&raw mut all).cast();
    // SAFETY: texts of literals, options with their size, and a vector that outlives the call.
    let status = unsafe { voce_speak(Some(speaker), TEXT.as_ptr(), &speak_options(), Some(collect), user) };
    assert_eq!(status, Status::Ok, "{}", error());
    all
}

/// Reads a stream of speech to its end.
fn read(speech: &Speech) -> (Vec<f32>, Status) {
    let mut all = Vec::new();
    loop {
        let (mut samples, mut count) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        match voce_speech_next(Some(speech), -1, Some(&mut samples), Some(&mut count)) {
            // SAFETY: both are written, and point to as many samples.
            Status::Ok => all.extend_from_slice(unsafe {
                std::slice::from_raw_parts(samples.assume_init(), count.assume_init())
            }),
            status => return (all, status),
        }
    }
}

fn start(speaker: &Speaker, text: Option<&CStr>) -> Box<Speech> {
    let text = text.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: a literal or null, and options with their size.
    opened(|out| unsafe { voce_speech_start(Some(speaker), text, &speak_options(), out) })
}

#[test]
fn speaks_to_a_callback_and_by_a_stream() {
    let speaker = speaker();
    let rate = voce_speaker_sample_rate(Some(&speaker));
    let whole = spoken(&speaker);
    assert!(rate == 24_000 && whole.len() > rate as usize / 2);

    let speech = start(&speaker, Some(TEXT));
    assert!(read(&speech) == (whole, Status::End));
    assert_eq!(read(&speech).1, Status::End);
    voce_speech_free(Some(speech));

    let mut calls = 0u32;
    let user = (&raw mut calls).cast();
    // SAFETY: as in `spoken`.
    let status = unsafe { voce_speak(Some(&speaker), TEXT.as_ptr(), ptr::null(), Some(refuse), user) };
    assert_eq!((status, calls), (Status::Cancelled, 1));
    voce_speaker_free(Some(speaker));
}

#[test]
fn text_that_arrives_is_spoken_after_the_speaker_is_freed() {
    let speaker = speaker();
    let speech = start(&speaker, None);
    voce_speaker_free(Some(speaker));
    for piece in [c"The weather is fi", c"ne today."] {
        // SAFETY: literals.
        assert_eq!(unsafe { voce_speech_push(Some(&speech), piece.as_ptr()) }, Status::Ok);
    }
    let (mut samples, mut count) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    assert_eq!(voce_speech_finish(Some(&speech)), Status::Ok);
    let (audio, end) = read(&speech);
    assert!(audio.len() > 12_000 && end == Status::End);
    // SAFETY: a literal.
    assert_eq!(unsafe { voce_speech_push(Some(&speech), c"late".as_ptr()) }, Status::Stopped);
    assert_eq!(code(), "ended");
    assert_eq!(voce_speech_next(Some(&speech), 0, Some(&mut samples), Some(&mut count)), Status::End);
    voce_speech_free(Some(speech));
}

#[test]
fn another_thread_cancels_a_reader_that_waits() {
    let speaker = speaker();
    // Before the wait begins or while it lasts, and whatever the stream makes of a sender that is gone.
    for ms in [0, 1, 3, 7, 15] {
        let speech = start(&speaker, None);
        let (mut samples, mut count) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // No text has come: there is nothing to wait for, and then only the other thread can end the wait.
        assert_eq!(voce_speech_next(Some(&speech), 0, Some(&mut samples), Some(&mut count)), Status::Timeout);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(&speech).1);
            std::thread::sleep(Duration::from_millis(ms));
            assert_eq!(voce_speech_cancel(Some(&speech)), Status::Ok);
            assert_eq!(reader.join().unwrap(), Status::Cancelled);
        });
        voce_speech_free(Some(speech));
    }
    voce_speaker_free(Some(speaker));
}

#[test]
fn another_thread_cancels_a_listener_s_reader_that_waits() {
    let listener = listener();
    // SAFETY: options with their size.
    let live = opened(|out| unsafe { voce_listening_start(Some(&listener), 0, &listen_options(), out) });
    // What C would share between threads by a pointer.
    let shared = SharedListening(&live);
    std::thread::scope(|scope| {
        let canceller = scope.spawn(move || voce_listening_cancel(Some(shared.get())));
        // Only cancelling ends this, before the wait begins or while it lasts.
        assert_eq!(events(&live), (Vec::new(), Status::Cancelled));
        assert_eq!(canceller.join().unwrap(), Status::Ok);
    });
    assert_eq!(events(&live).1, Status::Cancelled);
    assert_eq!(voce_listening_finish(Some(&live)), Status::Stopped);
    voce_listening_free(Some(live));
    voce_listener_free(Some(listener));
}

/// A stream that another thread may cancel.
#[derive(Clone, Copy)]
struct SharedListening<'a>(&'a Listening);

// SAFETY: the API lets any thread cancel, which touches nothing that is not behind a lock.
unsafe impl Send for SharedListening<'_> {}

impl<'a> SharedListening<'a> {
    fn get(self) -> &'a Listening {
        self.0
    }
}

/// Events of a stream until its end, as kind and text.
fn events(listening: &Listening) -> (Vec<(EventKind, String, usize)>, Status) {
    let mut all = Vec::new();
    loop {
        let mut event = MaybeUninit::uninit();
        match voce_listening_next(Some(listening), -1, Some(&mut event)) {
            Status::Ok => {
                // SAFETY: written, and valid until the next call.
                let event = unsafe { &*event.assume_init() };
                // SAFETY: likewise.
                let text = unsafe { CStr::from_ptr(event.text) }.to_str().unwrap().to_owned();
                all.push((event.kind, text, event.word_count));
            }
            status => return (all, status),
        }
    }
}

#[test]
fn hears_samples_live_audio_and_files() {
    let (speaker, listener) = (speaker(), listener());
    let (audio, rate) = (spoken(&speaker), voce_speaker_sample_rate(Some(&speaker)));
    let mut text = MaybeUninit::<*mut c_char>::uninit();
    let (samples, count) = (audio.as_ptr(), audio.len());
    // SAFETY: as many samples as there are, options with their size.
    let status = unsafe {
        voce_hear_samples(Some(&listener), samples, count, rate, &listen_options(), Some(&mut text))
    };
    assert_eq!(status, Status::Ok, "{}", error());
    // SAFETY: written, and to be freed by us.
    let whole = unsafe {
        let text = text.assume_init();
        let whole = CStr::from_ptr(text).to_str().unwrap().to_owned();
        voce_string_free(text);
        whole
    };
    assert!(whole.to_lowercase().contains("weather"), "{whole}");

    // SAFETY: options with their size.
    let live = opened(|out| unsafe { voce_listening_start(Some(&listener), rate, &listen_options(), out) });
    for piece in audio.chunks(2_400) {
        // SAFETY: as many samples as there are.
        assert_eq!(unsafe { voce_listening_push(Some(&live), piece.as_ptr(), piece.len()) }, Status::Ok);
    }
    assert_eq!(voce_listening_finish(Some(&live)), Status::Ok);
    let (heard, end) = events(&live);
    let last = heard.iter().rfind(|(kind, text, _)| *kind == EventKind::Final && !text.is_empty()).unwrap();
    assert!(end == Status::End && last.1 == whole && last.2 >= 3, "{heard:?}");
    assert!(heard.iter().any(|(kind, ..)| *kind == EventKind::Word));
    voce_listening_free(Some(live));

    let mut missing = MaybeUninit::uninit();
    // SAFETY: a literal and null.
    let status = unsafe {
        voce_listening_start_file(Some(&listener), c"no-such.wav".as_ptr(), ptr::null(), Some(&mut missing))
    };
    assert_eq!(status, Status::NotFound);
    // SAFETY: written in any case.
    assert!(unsafe { missing.assume_init() }.is_none() && error().contains("no-such.wav"));
    voce_listener_free(Some(listener));
    voce_speaker_free(Some(speaker));
}

#[test]
fn bad_arguments_are_errors_with_a_text() {
    // SAFETY: null pointers and literals; nothing else is given.
    unsafe {
        assert_eq!(voce_speaker_open(ptr::null(), ptr::null(), None), Status::BadArgument);
        assert_eq!(error(), "the place for the speaker is a null pointer");
        let mut out = MaybeUninit::uninit();
        assert_eq!(voce_speaker_open(c"\xff".as_ptr(), &options(), Some(&mut out)), Status::BadArgument);
        assert_eq!((error(), code()), ("the model is not UTF-8".into(), "bad_argument".into()));
        assert!(out.assume_init().is_none());
        let mut out = MaybeUninit::uninit();
        assert_eq!(voce_speaker_open(c"no-such".as_ptr(), &options(), Some(&mut out)), Status::NotFound);
        let mut sizeless = options();
        sizeless.size = 0;
        let mut out = MaybeUninit::uninit();
        assert_eq!(voce_speaker_open(ptr::null(), &sizeless, Some(&mut out)), Status::BadArgument);
        let mut abacus = options();
        abacus.device = c"abacus".as_ptr();
        let mut out = MaybeUninit::uninit();
        assert_eq!(voce_speaker_open(ptr::null(), &abacus, Some(&mut out)), Status::BadRequest);
        assert!(error().contains("cuda:N"));

        assert_eq!(
            voce_speak(None, TEXT.as_ptr(), ptr::null(), Some(collect), ptr::null_mut()),
            Status::BadArgument
        );
        let speaker = speaker();
        assert_eq!(
            voce_speak(Some(&speaker), ptr::null(), ptr::null(), Some(collect), ptr::null_mut()),
            Status::BadArgument
        );
        assert_eq!(
            voce_speak(Some(&speaker), TEXT.as_ptr(), ptr::null(), None, ptr::null_mut()),
            Status::BadArgument
        );
        let mut nobody = speak_options();
        nobody.voice = c"nobody-of-this-name".as_ptr();
        assert_eq!(
            voce_speak(Some(&speaker), TEXT.as_ptr(), &nobody, Some(collect), ptr::null_mut()),
            Status::NotFound
        );
        assert_eq!(code(), "unknown_voice");
        voce_speaker_free(Some(speaker));
        assert_eq!(voce_listening_push(None, ptr::null(), 0), Status::BadArgument);
        voce_string_free(ptr::null_mut());
    }
    for status in [
        voce_speech_finish(None),
        voce_speech_cancel(None),
        voce_speech_next(None, 0, None, None),
        voce_listening_finish(None),
        voce_listening_end_utterance(None),
        voce_listening_cancel(None),
        voce_listening_next(None, 0, None),
        voce_talking_finish(None),
        voce_talking_cancel(None),
        voce_talking_start(None, 0, None),
        voce_speaker_voices(None, None),
    ] {
        assert_eq!(status, Status::BadArgument);
    }
    assert_eq!(
        [voce_speaker_sample_rate(None), voce_listener_sample_rate(None), voce_talker_sample_rate(None)],
        [0; 3]
    );
    voce_speaker_free(None);
    voce_speech_free(None);
    voce_listener_free(None);
    voce_listening_free(None);
    voce_talker_free(None);
    voce_talking_free(None);
    // SAFETY: the library's text.
    assert_eq!(unsafe { CStr::from_ptr(voce_version()) }.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}

#[test]
fn voices_are_told_a_line_each() {
    let speaker = speaker();
    let mut names = MaybeUninit::uninit();
    assert_eq!(voce_speaker_voices(Some(&speaker), Some(&mut names)), Status::Ok);
    // SAFETY: written, and to be freed by us.
    unsafe {
        let names = names.assume_init();
        assert!(!CStr::from_ptr(names).to_str().unwrap().is_empty());
        voce_string_free(names);
    }
    voce_speaker_free(Some(speaker));
}
