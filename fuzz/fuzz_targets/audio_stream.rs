//! libFuzzer on `audio_stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| voce_fuzz::run("audio_stream", data));
