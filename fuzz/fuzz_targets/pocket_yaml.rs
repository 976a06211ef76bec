//! libFuzzer on `pocket_yaml`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| voce_fuzz::run("pocket_yaml", data));
