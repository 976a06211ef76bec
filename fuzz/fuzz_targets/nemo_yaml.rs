//! libFuzzer on `nemo_yaml`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| voce_fuzz::run("nemo_yaml", data));
