//! Audio decoding, encoding, resampling and analysis for speech.
#![forbid(unsafe_code)]
