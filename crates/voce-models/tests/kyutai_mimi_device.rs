//! The tests of Mimi on a device: the emulated one unless `VOCE_TEST_DEVICE` names another.

#[path = "kyutai_mimi_reference.rs"]
mod reference;
