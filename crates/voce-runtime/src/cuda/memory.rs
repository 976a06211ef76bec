//! Devices and their memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::CudaError;
use super::driver::{Address, Command, DeviceInfo, Driver, Product, ProductKind, Stream};
use super::profile::{Profile, Timing};

/// A device. Everything that lives in its memory holds a reference to it.
pub struct Device {
    pub(crate) driver: Box<dyn Driver>,
    /// For copies outside of any step, in the order they are asked for.
    setup: Mutex<Stream>,
    leaving: Mutex<Leaving>,
    /// Bytes in use.
    used: AtomicUsize,
    /// The first error after which nothing runs any more.
    broken: OnceLock<CudaError>,
    tuning: Mutex<Tuning>,
    profile: Mutex<Profile>,
    /// See [`Device::scales_products`].
    scales: OnceLock<bool>,
}

/// Memory that is to be freed. One lock for both fields: memory must not go while a recording may still name it.
#[derive(Default)]
struct Leaving {
    /// Freed by their owners, and perhaps still used by work that is recorded or enqueued.
    retired: Vec<Address>,
    /// Queues that hold recorded work.
    recording: usize,
}

/// How a device trades exactness and observability for speed; executors made later follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// f32 products round their factors to TF32.
    pub tf32: bool,
    /// Work that repeats is captured into graphs.
    pub graphs: bool,
    /// One stream's work is one kernel where a device can hold all of its blocks at once; no faster than its launches yet.
    pub frames: bool,
    /// Every kernel is timed (see [`Device::timings`]); steps are then slower and not captured.
    pub events: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { tf32: false, graphs: true, frames: false, events: false }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.driver.info())
    }
}

impl Device {
    /// Opens the NVIDIA device of this number.
    pub fn open(ordinal: usize) -> Result<Arc<Device>, CudaError> {
        #[cfg(feature = "cuda")]
        return Self::with_driver(Box::new(super::nvidia::Nvidia::open(ordinal)?));
        #[cfg(not(feature = "cuda"))]
        Err({
            let _ = ordinal;
            CudaError::NotBuilt
        })
    }

    /// The emulated device of a library built from the kernels: see `cuda/emulator.rs`.
    #[cfg(feature = "cuda-emulator")]
    pub fn emulated() -> Result<Arc<Device>, CudaError> {
        Self::with_driver(Box::new(super::emulator::Emulator::open()?))
    }

    /// The same as a device of another compute capability, for what depends on that.
    #[cfg(feature = "cuda-emulator")]
    pub fn emulated_as(capability: (u32, u32)) -> Result<Arc<Device>, CudaError> {
        Self::with_driver(Box::new(super::emulator::Emulator::open()?.of(capability)))
    }

    /// The same with this many bytes of memory. A test may change the number while the device is used, as programs do
    /// that share a GPU.
    #[cfg(feature = "cuda-emulator")]
    pub fn emulated_with(memory: Arc<std::sync::atomic::AtomicU64>) -> Result<Arc<Device>, CudaError> {
        Self::with_driver(Box::new(super::emulator::Emulator::open()?.with(memory)))
    }

    fn with_driver(driver: Box<dyn Driver>) -> Result<Arc<Device>, CudaError> {
        let setup = Mutex::new(driver.stream(false)?);
        Ok(Arc::new(Device {
            driver,
            setup,
            leaving: Mutex::default(),
            used: AtomicUsize::new(0),
            broken: OnceLock::new(),
            tuning: Mutex::default(),
            profile: Mutex::default(),
            scales: OnceLock::new(),
        }))
    }

    /// Facts about it.
    pub fn info(&self) -> &DeviceInfo {
        self.driver.info()
    }

    /// Sets the tuning of executors made from now on.
    pub fn tune(&self, tuning: Tuning) {
        *self.tuning.lock().unwrap_or_else(|e| e.into_inner()) = tuning;
    }

    /// The tuning of executors made from now on.
    pub fn tuning(&self) -> Tuning {
        *self.tuning.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What kernels took since the last call, the longest first; empty unless [`Tuning::events`] is on.
    pub fn timings(&self) -> Vec<Timing> {
        self.profile.lock().unwrap_or_else(|e| e.into_inner()).take()
    }

    pub(crate) fn note(&self, commands: &[Command], ms: &[f32]) {
        self.profile.lock().unwrap_or_else(|e| e.into_inner()).add(commands, ms);
    }

    /// Bytes a second, read and written, of copies of much memory.
    pub fn bandwidth(self: &Arc<Self>) -> Result<f64, CudaError> {
        const BYTES: usize = 2 << 30;
        let (from, to) = (self.alloc(BYTES)?, self.alloc(BYTES)?);
        let copy = Command::Copy { from: from.at, to: to.at, bytes: BYTES };
        let stream = *self.setup.lock().unwrap_or_else(|e| e.into_inner());
        let ms = self.driver.enqueue_timed(stream, &vec![copy; 6], &[])?;
        let best = ms.into_iter().fold(f32::INFINITY, f32::min);
        Ok(2.0 * BYTES as f64 / (f64::from(best) / 1e3))
    }

    /// Free and total bytes of its memory.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        self.driver.memory()
    }

    /// Bytes that this process holds through this device.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The error after which nothing runs any more, if there was one. Lack of memory is none: whoever asked for it is
    /// told, by [`crate::Exec::status`] or by the load that failed.
    pub fn status(&self) -> Result<(), CudaError> {
        self.broken.get().map_or(Ok(()), |e| Err(e.clone()))
    }

    /// Notes an error from which the device does not come back.
    pub(crate) fn fail(&self, error: CudaError) {
        let _ = self.broken.set(error.into_lost());
    }

    /// Behaves as a lost device from now on: for tests of its users.
    #[cfg(feature = "cuda-emulator")]
    pub fn lose(&self) {
        self.fail(CudaError::Failed { call: "cuLaunchKernel", message: "the device was lost".into() });
    }

    /// Notes the error of a call, unless it is lack of memory.
    pub(crate) fn check(&self, result: Result<(), CudaError>) {
        let _ = self.noted(result);
    }

    /// The same, and passes the result on.
    fn noted<T>(&self, result: Result<T, CudaError>) -> Result<T, CudaError> {
        if let Err(e) = &result
            && !e.is_out_of_memory()
        {
            self.fail(e.clone());
        }
        result
    }

    /// Zeroed memory.
    pub(crate) fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Memory, CudaError> {
        self.status()?;
        let bytes = bytes.max(1).next_multiple_of(256);
        let at = match self.driver.alloc(bytes) {
            Err(CudaError::OutOfMemory { .. }) if self.sweep(|_| ()) => self.driver.alloc(bytes),
            other => other,
        };
        let at = self.noted(at)?;
        self.used.fetch_add(bytes, Ordering::Relaxed);
        let memory = Memory { device: self.clone(), at, bytes };
        let stream = *self.setup.lock().unwrap_or_else(|e| e.into_inner());
        let zero = Command::Zero { to: at, bytes };
        self.noted(self.driver.enqueue(stream, &[zero], &[]))?;
        self.noted(self.driver.wait(stream))?;
        Ok(memory)
    }

    /// Memory that holds these bytes.
    pub(crate) fn store(self: &Arc<Self>, bytes: &[u8]) -> Result<Memory, CudaError> {
        let memory = self.alloc(bytes.len())?;
        self.write(memory.at, bytes)?;
        Ok(memory)
    }

    /// Whether its products of fp8 multiply rows and outputs by scales. Some do from sm_90 and version 12.9 on; one product is
    /// tried to find out.
    pub(crate) fn scales_products(self: &Arc<Self>) -> bool {
        const SIZE: u32 = 64;
        let tried = || -> Result<bool, CudaError> {
            if self.info().capability < (9, 0) {
                return Ok(false);
            }
            let memory = self.alloc((SIZE * SIZE * 4) as usize)?;
            let (at, stream) = (memory.at, *self.setup.lock().unwrap_or_else(|e| e.into_inner()));
            let out = self.alloc((SIZE * SIZE * 4) as usize)?;
            let product = Product {
                kind: ProductKind::Fp8,
                m: SIZE,
                n: SIZE,
                k: SIZE,
                a: at,
                w: at,
                out: out.at,
                a_stride: SIZE,
                w_stride: SIZE,
                out_stride: SIZE,
                bias: 0,
                accumulate: true,
                narrow: false,
                scales: [at, at],
            };
            self.driver.enqueue(stream, &[Command::Product(product)], &[])?;
            self.driver.wait(stream).map(|()| true)
        };
        *self.scales.get_or_init(|| tried().unwrap_or(false))
    }

    /// Copies bytes of the device to the host.
    pub(crate) fn load(&self, from: Address, to: &mut [u8]) -> Result<(), CudaError> {
        let stream = *self.setup.lock().unwrap_or_else(|e| e.into_inner());
        self.noted(self.driver.download(stream, from, to))
    }

    /// Copies bytes to the device and waits for it: whatever is enqueued later, by any executor, sees them.
    pub(crate) fn write(&self, to: Address, bytes: &[u8]) -> Result<(), CudaError> {
        let stream = *self.setup.lock().unwrap_or_else(|e| e.into_inner());
        self.noted(self.driver.upload(stream, to, bytes))?;
        self.noted(self.driver.wait(stream))
    }

    pub(crate) fn recording_begins(&self) {
        self.leaving.lock().unwrap_or_else(|e| e.into_inner()).recording += 1;
    }

    /// A queue has enqueued all it had recorded.
    pub(crate) fn recording_ends(&self) {
        self.sweep(|leaving| leaving.recording -= 1);
    }

    /// Makes a change, then frees what was retired once all that may use it has run. False while a queue records.
    fn sweep(&self, change: impl FnOnce(&mut Leaving)) -> bool {
        let retired = {
            let mut leaving = self.leaving.lock().unwrap_or_else(|e| e.into_inner());
            change(&mut leaving);
            if leaving.recording > 0 {
                return false;
            }
            std::mem::take(&mut leaving.retired)
        };
        if !retired.is_empty() {
            self.check(self.driver.wait_all());
            retired.into_iter().for_each(|at| self.driver.free(at));
        }
        true
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.sweep(|_| ());
        self.driver.close(*self.setup.lock().unwrap_or_else(|e| e.into_inner()));
    }
}

/// Host memory that a device copies from and to by itself, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Pinned {
    device: Arc<Device>,
    at: usize,
}

impl Pinned {
    /// Pins values that stay where they are until this is dropped; none where that cannot be.
    pub(crate) fn new<T: super::Plain>(device: &Arc<Device>, values: &[T]) -> Option<Self> {
        let at = values.as_ptr() as usize;
        device.driver.pin(at, size_of_val(values)).then(|| Self { device: device.clone(), at })
    }

    /// Waits until no copy is under way.
    pub(crate) fn wait(&self) {
        self.device.check(self.device.driver.wait_all());
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.wait();
        self.device.driver.unpin(self.at);
    }
}

/// Memory of a device; freed when nothing recorded or enqueued can use it any more.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) device: Arc<Device>,
    pub(crate) at: Address,
    pub(crate) bytes: usize,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.at == 0 {
            return;
        }
        self.device.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.device.sweep(|leaving| leaving.retired.push(self.at));
    }
}
