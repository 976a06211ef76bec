//! Neural layers of Voce: linear, norm, attention, streaming convolution.
#![forbid(unsafe_code)]
