//! libFuzzer on `model_config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| voce_fuzz::run("model_config", data));
