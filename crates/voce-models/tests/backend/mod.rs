//! What the models of a test run on: this CPU, or the device that `VOCE_TEST_DEVICE` names (`emulated`, `cuda`).
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::sync::{Arc, OnceLock};

use voce_nn::{Formats, Loader, Precision, Weights};
use voce_runtime::cuda::Device;
use voce_runtime::{Exec, Isa};

static DEVICE: OnceLock<Option<Arc<Device>>> = OnceLock::new();

/// The device, if it is not the CPU.
pub fn device() -> Option<Arc<Device>> {
    DEVICE.get_or_init(|| std::env::var("VOCE_TEST_DEVICE").ok().map(|name| open(&name))).clone()
}

/// Makes the models of this test program run on a device: the emulated one unless `VOCE_TEST_DEVICE` names another.
pub fn on_device() {
    let name = std::env::var("VOCE_TEST_DEVICE").unwrap_or_else(|_| "emulated".into());
    DEVICE.get_or_init(|| Some(open(&name)));
}

fn open(name: &str) -> Arc<Device> {
    match name {
        "emulated" => Device::emulated().unwrap(),
        "cuda" => Device::open(0).unwrap(),
        other => panic!("VOCE_TEST_DEVICE is '{other}': use emulated or cuda"),
    }
}

/// An executor with this many threads, of the device where there is one.
pub fn exec(threads: usize) -> Exec {
    device().map_or_else(
        || Exec::new(threads).unwrap(),
        |d| Exec::on(&d).and_then(|e| e.with_threads(threads)).unwrap(),
    )
}

/// A loader to where the executor is.
pub fn loader(source: Arc<dyn Weights>) -> Loader {
    let loader = Loader::new(source);
    match device() {
        Some(device) => loader.on(device),
        None => loader,
    }
}

/// The formats of a precision there.
pub fn formats(precision: Precision) -> Formats {
    match device() {
        Some(_) => Formats::on_device(precision),
        None => Formats::new(precision, Isa::from_env().unwrap()),
    }
}
