//! libFuzzer on `packed`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| voce_fuzz::run("packed", data));
