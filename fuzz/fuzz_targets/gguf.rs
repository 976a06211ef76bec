//! libFuzzer on `gguf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| voce_fuzz::run("gguf", data));
