//! The server over real sockets: every route, every dialect, and what clients should not do.
#![allow(missing_docs)]

mod abuse;
mod abuse_bodies;
mod abuse_end;
mod abuse_pages;
mod abuse_slots;
mod abuse_voices;
mod autobahn;
mod clients;
mod codes;
mod core;
mod counter;
mod deepgram;
mod dice;
mod engine;
mod faults;
mod floods;
mod journal;
mod listening;
mod lobby;
mod malformed;
mod moshi;
mod mp4;
mod noise;
mod page;
mod realtime;
mod replicas;
mod revival;
mod rnnt_v2;
mod server;
mod socket;
mod speech;
mod traces;
mod wyoming;
