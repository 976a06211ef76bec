//! HTTP and WebSocket protocols in front of the Voce engine.
#![forbid(unsafe_code)]
