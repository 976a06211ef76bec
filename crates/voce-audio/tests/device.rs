//! A machine without a sound card gets a clear error.
#![cfg(feature = "device")]

use voce_audio::device::{Mic, Player};

#[test]
fn a_missing_sound_card_is_named() {
    for error in [Player::open(24000).err(), Mic::open(16000).err()].into_iter().flatten() {
        assert_eq!(error.code(), "no_device");
        assert!(error.to_string().contains("use a file instead"), "{error}");
    }
}
