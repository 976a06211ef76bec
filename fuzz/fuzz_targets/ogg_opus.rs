//! libFuzzer on `ogg_opus`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| voce_fuzz::run("ogg_opus", data));
