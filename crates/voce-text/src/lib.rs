//! Tokenisers, sentence splitting and text normalisation for speech.
#![forbid(unsafe_code)]
