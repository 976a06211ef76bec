//! The tests of Kyutai's recogniser on a device: the emulated one unless `VOCE_TEST_DEVICE` names another.

#[path = "kyutai_stt_reference.rs"]
mod reference;
