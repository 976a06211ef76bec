//! NVIDIA GPUs: the second backend.
//!
//! An [`crate::Exec`] made [`crate::Exec::on`] a [`Device`] records its ops into a queue (`queue.rs`) and runs them when a result
//! is asked for. Weights live on the device from load on; buffers and states get their device half at first use.
//! `driver.rs` is all that is asked of a device: `nvidia.rs` answers by the driver, `emulator.rs` on the CPU, for tests.

// Without a driver nobody makes a device; what would use one is compiled all the same.
#![cfg_attr(not(any(feature = "cuda", feature = "cuda-emulator")), allow(dead_code))]

mod attention;
mod choice;
#[cfg(feature = "cuda")]
mod compiled;
mod conv;
mod driver;
#[cfg(feature = "cuda-emulator")]
mod emulator;
mod error;
#[cfg(feature = "cuda")]
mod events;
mod fingerprint;
mod fp8;
mod frame;
mod graphs;
#[cfg(feature = "cuda")]
mod kept;
mod kv;
#[cfg(feature = "cuda")]
mod libraries;
mod linear;
mod matrix;
mod mel;
mod memory;
#[cfg(feature = "cuda")]
mod nvidia;
mod pointwise;
#[cfg(feature = "cuda")]
mod products;
mod profile;
mod program;
mod queue;
mod residual;
mod room;
mod row;
mod rows;
mod sampling;
mod select;
mod streams;
mod tables;
mod tokens;
mod transducer;
mod unit;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) use attention::attention_kernel;
pub use driver::DeviceInfo;
pub use error::CudaError;
pub(crate) use matrix::DeviceMatrix;
pub use memory::{Device, Tuning};
pub(crate) use memory::{Memory, Pinned};
pub use profile::Timing;
pub use room::Reserved;
pub(crate) use streams::PastRows;

use crate::exec::{AttendedSet, Buffer, Vector, View};
use driver::Address;
use queue::Queue;

/// Fetch by which the host's half of a buffer is pinned, and bytes from which it is worth it; from there on it has pages of
/// its own, so that nothing else is pinned with it.
const PINNED_FETCHES: u32 = 4;
const PINNED_BYTES: usize = crate::memory::PAGES_FROM;

/// Facts about every NVIDIA device of this machine, or why none can be used.
#[cfg(feature = "cuda")]
pub fn devices() -> Result<Vec<DeviceInfo>, CudaError> {
    let devices = nvidia::devices()?;
    libraries::check(
        devices.iter().any(|info| kept::find(program::Parts::Usual, info.capability).is_none()),
    )?;
    Ok(devices)
}

/// Why no NVIDIA device can be used: this was built without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub fn devices() -> Result<Vec<DeviceInfo>, CudaError> {
    Err(CudaError::NotBuilt)
}

/// The generations of GPUs that kernels are compiled for ahead of their use, by compute capability.
pub const GENERATIONS: [(u32, u32); 6] = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)];

/// Compiles the kernels for a compute capability into a folder, or into the user's cache, and tells the file. No GPU is
/// needed, the kernels' compiler is.
pub fn compile_kernels(folder: Option<&Path>, capability: (u32, u32)) -> Result<PathBuf, CudaError> {
    #[cfg(feature = "cuda")]
    {
        compiled::compile_into(folder, capability)
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (folder, capability);
        Err(CudaError::NotBuilt)
    }
}

/// Whether opening the device of this number begins with compiling kernels for it, which takes up to a minute.
pub fn must_compile(ordinal: usize) -> bool {
    #[cfg(feature = "cuda")]
    {
        let devices = nvidia::devices().unwrap_or_default();
        devices.get(ordinal).is_some_and(|info| kept::find(program::Parts::Usual, info.capability).is_none())
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = ordinal;
        false
    }
}

/// Numbers without padding that may travel to and from a device as bytes.
///
/// # Safety
/// Any bytes are a value, and no byte of a value is undefined.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: primitive numbers.
unsafe impl Plain for u8 {}
// SAFETY: primitive numbers.
unsafe impl Plain for u16 {}
// SAFETY: primitive numbers.
unsafe impl Plain for u32 {}
// SAFETY: primitive numbers.
unsafe impl Plain for u64 {}
// SAFETY: primitive numbers.
unsafe impl Plain for f32 {}
// SAFETY: an array of such.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// The executor's half that runs on a device.
pub(crate) struct Cuda {
    queue: Queue,
    scratch: Scratch,
    /// What selection brought back.
    selected: Vec<u32>,
    /// Which launch of an op last read and wrote each row of a state.
    touched: Vec<[u32; 2]>,
    /// Whether f32 products may round their operands to TF32.
    pub(crate) tf32: bool,
    /// Whether nothing begins before a result is asked for.
    pub(crate) held: bool,
    /// Attention that has run.
    pub(crate) attended: AttendedSet,
}

/// Device memory between the launches of an op, grown and kept.
#[derive(Default)]
struct Scratch {
    operand: Option<Memory>,
    scales: Option<Memory>,
    products: Option<Memory>,
    /// Parts of attention over long rings, and how many of them are done: zeros between ops.
    partials: Option<Memory>,
    counters: Option<Memory>,
    /// Keys and values on their way to or from the host.
    moved: Option<Memory>,
    selected: Option<Memory>,
    /// Long rows that tokens are drawn from.
    draws: Option<Memory>,
}

impl Cuda {
    pub(crate) fn new(device: Arc<Device>, first: bool) -> Result<Self, CudaError> {
        let Tuning { tf32, graphs, frames, events } = device.tuning();
        let mut queue = Queue::new(device, first)?;
        queue.use_graphs = graphs;
        queue.use_frames = frames;
        queue.use_events = events;
        let (scratch, attended) = (Scratch::default(), AttendedSet::default());
        Ok(Self { queue, scratch, selected: vec![], touched: vec![], tf32, held: false, attended })
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.queue.device
    }

    pub(crate) fn begin(&mut self) {
        if !self.held {
            self.queue.flush();
        }
    }

    pub(crate) fn finish(&mut self) {
        self.queue.wait();
    }

    pub(crate) fn follow(&mut self, other: &mut Self) {
        self.queue.follow(&mut other.queue);
    }

    /// Takes over lack of memory of another executor, which goes on then.
    pub(crate) fn take_failure(&mut self, other: &mut Self) {
        if let Some(failed) = other.queue.failed.take() {
            self.queue.fail(failed);
        }
    }

    pub(crate) fn note(&mut self, moment: usize) {
        assert!(moment < driver::MOMENTS, "a moment that is kept");
        self.queue.note(moment);
    }

    /// Whether one stream's work becomes one kernel, on all multiprocessors but a few.
    pub(crate) fn takes_frames(&self) -> bool {
        self.queue.use_frames
    }

    pub(crate) fn pass(&mut self, moment: usize) {
        self.queue.pass(moment);
    }

    pub(crate) fn between(&self, from: usize, to: usize) -> Option<Duration> {
        self.queue.between(from, to)
    }

    /// Where a buffer is on the device, with what the host has written.
    fn read(&mut self, buffer: &Buffer) -> Address {
        assert!(!buffer.void, "products alone read what was kept for them");
        self.place(buffer)
    }

    /// Where a buffer is on the device, in whatever form.
    fn place(&mut self, buffer: &Buffer) -> Address {
        let mut memory = buffer.twin.memory.lock().unwrap_or_else(|e| e.into_inner());
        let at = self.queue.reserve(&mut memory, buffer.capacity() * 4);
        let mut written = buffer.twin.written.lock().unwrap_or_else(|e| e.into_inner());
        if !std::ops::Range::is_empty(&written) {
            let values = &buffer.host()[written.clone()];
            let to = at + 4 * written.start as u64;
            if !buffer.shared {
                self.queue.upload(to, bytes(values));
                if buffer.twin.pinned.is_some() && size_of_val(values) >= queue::LARGE {
                    // The device copies from pinned memory by itself, and the host may write there next.
                    self.queue.wait();
                }
            } else if at != 0 {
                // Others may read it next, and they do not wait for what this executor enqueues.
                let result = self.queue.device.write(to, bytes(values));
                self.queue.check(result);
            }
            // What is recorded and never runs leaves the device without the values.
            if self.delivers() || (buffer.shared && at != 0) {
                *written = 0..0;
            }
        }
        at
    }

    /// Where a buffer is on the device, for an op that writes it: the host's copy is old from now on.
    fn write(&mut self, buffer: &mut Buffer) -> Address {
        buffer.void = false;
        let at = self.place(buffer);
        buffer.twin.host_stale.store(true, Ordering::Relaxed);
        at
    }

    /// The first value of some columns.
    fn view(&mut self, view: &View<'_>) -> Address {
        self.read(view.buffer) + 4 * view.cols.start as u64
    }

    /// Where constants are on the device.
    fn constant(&mut self, vector: &Vector) -> Address {
        if let Some(memory) = vector.device.get() {
            self.queue.own(memory);
            return memory.at;
        }
        let stored = self.queue.store(bytes(vector), std::ptr::from_ref(vector) as usize);
        stored.map_or(0, |memory| vector.device.get_or_init(|| memory).at)
    }

    /// Where constants are, or 0 where there are none.
    fn optional(&mut self, vector: Option<&Vector>) -> Address {
        vector.map_or(0, |v| self.constant(v))
    }

    pub(crate) fn fetch(&mut self, buffer: &mut Buffer, rows: usize) {
        if !*buffer.twin.host_stale.get_mut() {
            return;
        }
        let at = self.read(buffer);
        let len = rows * buffer.cols();
        if 4 * len >= PINNED_BYTES {
            buffer.twin.fetches += 1;
            if buffer.twin.fetches == PINNED_FETCHES {
                buffer.twin.pinned = Pinned::new(&self.queue.device, buffer.host());
            }
        }
        self.queue.download(at, &mut buffer.host_mut()[..len]);
        *buffer.twin.host_stale.get_mut() = false;
    }
}

/// Values as bytes.
fn bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` values have no undefined bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
