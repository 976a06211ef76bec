//! libFuzzer on `hf_json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| voce_fuzz::run("hf_json", data));
