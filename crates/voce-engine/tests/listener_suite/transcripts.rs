//! Whole recordings in one call: what a stream says, gathered.

use voce_engine::listener::ListenRequest;

use super::support::{clip, fixtures, open};

#[test]
fn a_file_is_heard_as_its_samples_are() {
    for name in ["stream", "tdt"] {
        let listener = open(name, 1);
        let request = ListenRequest::default();
        let samples = clip("a.wav");
        let of_samples = listener.transcribe(&samples, &request).unwrap();
        let of_file = listener.transcribe_file(fixtures().join("audio/a.wav"), &request).unwrap();
        assert_eq!(of_file, of_samples, "{name}");
        assert_eq!(of_file.seconds, samples.len() as f64 / 16_000.0);
        assert_eq!(of_file.segments.len(), 1, "{name}");
        assert_eq!(of_file.text, of_file.segments[0].text);
        assert!(!of_file.text.is_empty() && of_file.words.len() >= of_file.text.split(' ').count() / 2);
    }
}

#[test]
fn what_cannot_be_heard_is_an_error_and_frees_its_slot() {
    let listener = open("stream", 1);
    let request = ListenRequest::default();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("talk.mp3");
    assert_eq!(listener.transcribe_file(&path, &request).unwrap_err().code(), "not_found");
    std::fs::write(&path, [0xff; 33]).unwrap();
    let told = listener.transcribe_file(&path, &request).unwrap_err();
    assert!(told.to_string().contains("talk.mp3"), "{told}");
    assert_eq!(listener.transcribe(&[f32::NAN], &request).unwrap_err().code(), "bad_request");
    assert!(listener.transcribe(&clip("b.wav"), &request).is_ok());
}
