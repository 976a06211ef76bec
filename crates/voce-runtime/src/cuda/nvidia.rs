//! NVIDIA devices by the driver's own interface, loaded at run time.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::{Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys as cu;

use super::driver::{Address, Command, DeviceInfo, Driver, Graph, KernelId, MEETING, Shape, Stream};
use super::events::{Events, Moments};
use super::products::{Plan, ProductKey, check_lt};
use super::program::Parts;
use super::{CudaError, compiled, libraries, program};

/// The oldest driver that the kernels and calls work with.
const DRIVER: u32 = 12_000;
/// The oldest driver whose graphs keep that a launch is set up early.
const EARLY_DRIVER: u32 = 12_030;
/// How much of a multiprocessor's memory is shared memory, and not first-level cache, while a kernel of few rows runs.
const SHARED_PERCENT: i32 = 100;
/// Workspace of a stream's products.
pub(super) const WORKSPACE: usize = 32 << 20;

thread_local! {
    /// The context that calls of this thread go to.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Held shared by streams that capture, and exclusively by calls that wait for the whole device: CUDA refuses to do both at
/// once. One for the process: a device that was opened twice is still one to CUDA.
static CAPTURING: RwLock<()> = RwLock::new(());

/// A device of the NVIDIA driver.
pub(crate) struct Nvidia {
    info: DeviceInfo,
    device: cu::CUdevice,
    context: cu::CUcontext,
    /// The kernels, in the parts that they are compiled in.
    modules: Vec<cu::CUmodule>,
    /// Kernels by their numbers; that of a whole frame is null.
    functions: Vec<cu::CUfunction>,
    /// The kernel of a whole frame and its module, once it was asked for.
    frame: OnceLock<(cu::CUmodule, cu::CUfunction)>,
    pub(super) blas: lt::cublasLtHandle_t,
    /// Products that were set up, each for one stream: a plan is written to before it runs.
    pub(super) plans: Mutex<HashMap<(u64, ProductKey), Plan>>,
    /// Algorithms by what they were chosen for.
    pub(super) algorithms: Mutex<HashMap<ProductKey, lt::cublasLtMatmulAlgo_t>>,
    /// Held shared by who enqueues work, and exclusively while algorithms are tried: beside another stream's kernels they would
    /// be timed with those. Taken after [`CAPTURING`].
    pub(super) trying: RwLock<()>,
    /// Whether launches may be set up early.
    early: bool,
    pub(super) workspaces: Mutex<HashMap<u64, Address>>,
    /// Moments of streams.
    moments: Mutex<HashMap<u64, Moments>>,
}

// SAFETY: handles of the driver and of cuBLASLt may be used from any thread; plans are behind a lock.
unsafe impl Send for Nvidia {}
// SAFETY: as above.
unsafe impl Sync for Nvidia {}

/// The error of asking the current device for this many bytes.
pub(super) fn out_of_memory(asked: usize) -> CudaError {
    let (mut free, mut total) = (0usize, 0usize);
    // SAFETY: places for the results, which stay 0 where there is no current device.
    unsafe { cu::cuMemGetInfo_v2(&mut free, &mut total) };
    CudaError::OutOfMemory { asked: asked as u64, free: free as u64 }
}

pub(super) fn check(call: &'static str, code: cu::CUresult) -> Result<(), CudaError> {
    if code == cu::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    if code == cu::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return Err(out_of_memory(0));
    }
    let mut text = std::ptr::null();
    // SAFETY: gives a static string or null.
    unsafe { cu::cuGetErrorString(code, &mut text) };
    let message = if text.is_null() {
        format!("error {}", code as u32)
    } else {
        // SAFETY: a string of the driver's.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    Err(CudaError::Failed { call, message })
}

/// How many devices the driver shows.
pub(crate) fn count() -> Result<usize, CudaError> {
    // SAFETY: looks for the library; nothing of it is called before it is there.
    if !unsafe { cu::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let (mut version, mut devices) = (0, 0);
    // SAFETY: plain calls with places for their results.
    unsafe {
        check("cuInit", cu::cuInit(0)).map_err(|_| CudaError::NoDriver)?;
        check("cuDriverGetVersion", cu::cuDriverGetVersion(&mut version))?;
        if (version as u32) < DRIVER {
            return Err(CudaError::OldDriver { found: version as u32, needed: DRIVER });
        }
        check("cuDeviceGetCount", cu::cuDeviceGetCount(&mut devices))?;
    }
    Ok(devices as usize)
}

fn describe(device: cu::CUdevice) -> Result<DeviceInfo, CudaError> {
    use cu::CUdevice_attribute_enum as A;
    let mut name = [0; 256];
    let (mut memory, mut driver) = (0usize, 0);
    let attribute = |which| {
        let mut v = 0;
        // SAFETY: a place for the result.
        check("cuDeviceGetAttribute", unsafe { cu::cuDeviceGetAttribute(&mut v, which, device) })?;
        Ok::<_, CudaError>(v as u32)
    };
    // SAFETY: places for the results, of the sizes given.
    let name = unsafe {
        check("cuDeviceGetName", cu::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device))?;
        check("cuDeviceTotalMem", cu::cuDeviceTotalMem_v2(&mut memory, device))?;
        check("cuDriverGetVersion", cu::cuDriverGetVersion(&mut driver))?;
        CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
    };
    Ok(DeviceInfo {
        name,
        capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        processors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory: memory as u64,
        shared: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        driver: driver as u32,
        cooperative: attribute(A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? != 0,
    })
}

/// Facts about every device that the driver shows.
pub(crate) fn devices() -> Result<Vec<DeviceInfo>, CudaError> {
    (0..count()?)
        .map(|i| {
            let mut device = 0;
            // SAFETY: a place for the result.
            check("cuDeviceGet", unsafe { cu::cuDeviceGet(&mut device, i as i32) })?;
            describe(device)
        })
        .collect()
}

impl Nvidia {
    pub(crate) fn open(ordinal: usize) -> Result<Self, CudaError> {
        let found = count()?;
        if ordinal >= found {
            return Err(CudaError::NoDevice { asked: ordinal, found });
        }
        libraries::preload("cublasLt");
        // SAFETY: looks for the library.
        if !unsafe { lt::is_culib_present() } {
            return Err(CudaError::NoLibrary { name: "libcublasLt", hint: libraries::BLAS_HINT });
        }
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: places for the results.
        unsafe {
            check("cuDeviceGet", cu::cuDeviceGet(&mut device, ordinal as i32))?;
        }
        let info = describe(device)?;
        if info.capability < (8, 0) {
            return Err(CudaError::OldDevice { name: info.name, capability: info.capability });
        }
        let images = compiled::images(Parts::Usual, info.capability)?;
        let mut modules = vec![std::ptr::null_mut(); images.len()];
        let mut blas = std::ptr::null_mut();
        // SAFETY: places for the results; each image is a whole cubin.
        unsafe {
            check("cuDevicePrimaryCtxRetain", cu::cuDevicePrimaryCtxRetain(&mut context, device))?;
            check("cuCtxSetCurrent", cu::cuCtxSetCurrent(context))?;
            CURRENT.set(context as usize);
            for (module, image) in modules.iter_mut().zip(&images) {
                check("cuModuleLoadData", cu::cuModuleLoadData(module, image.as_ptr().cast()))?;
            }
            check_lt("cublasLtCreate", lt::cublasLtCreate(&mut blas))?;
        }
        let functions = program::KERNELS
            .iter()
            .map(|k| match modules.get(program::unit_of(k.name)) {
                Some(module) => function(*module, k.name, &info),
                None => Ok(std::ptr::null_mut()),
            })
            .collect::<Result<_, CudaError>>()?;
        let early = info.capability >= (9, 0) && info.driver >= EARLY_DRIVER;
        Ok(Self {
            info,
            device,
            context,
            modules,
            functions,
            frame: OnceLock::new(),
            blas,
            plans: Mutex::default(),
            algorithms: Mutex::default(),
            trying: RwLock::new(()),
            early,
            workspaces: Mutex::default(),
            moments: Mutex::default(),
        })
    }

    /// Makes this device's context the thread's.
    fn enter(&self) -> Result<(), CudaError> {
        if CURRENT.get() == self.context as usize {
            return Ok(());
        }
        // SAFETY: the context is retained.
        check("cuCtxSetCurrent", unsafe { cu::cuCtxSetCurrent(self.context) })?;
        CURRENT.set(self.context as usize);
        Ok(())
    }

    fn launch(&self, stream: Stream, command: &Command, args: &[u8]) -> Result<(), CudaError> {
        // A product may have to be tried first.
        let _enqueuing = (!matches!(command, Command::Product(_))).then(|| self.enqueuing());
        match command {
            Command::Launch { kernel, shape, args: at, .. } => {
                self.launch_kernel(stream, *kernel, shape, &args[*at..]).map_err(|e| match e {
                    CudaError::Failed { message, .. } => {
                        CudaError::Failed { call: program::KERNELS[*kernel as usize].name, message }
                    }
                    other => other,
                })
            }
            Command::Product(p) => self.product(stream, p),
            Command::Copy { from, to, bytes } => {
                // SAFETY: both ends are device memory of that size.
                check("cuMemcpyDtoDAsync", unsafe {
                    cu::cuMemcpyDtoDAsync_v2(*to, *from, *bytes, stream.0 as cu::CUstream)
                })
            }
            Command::Note(moment) => self.note(stream, *moment),
            Command::Zero { to, bytes } => {
                // SAFETY: device memory of that size.
                check("cuMemsetD8Async", unsafe {
                    cu::cuMemsetD8Async(*to, 0, *bytes, stream.0 as cu::CUstream)
                })
            }
        }
    }

    /// Kept while work is enqueued.
    pub(super) fn enqueuing(&self) -> RwLockReadGuard<'_, ()> {
        self.trying.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until the device has nothing to do, and keeps others from giving it any; not for a stream that captures.
    pub(super) fn alone(&self) -> Result<[RwLockWriteGuard<'_, ()>; 2], CudaError> {
        let capturing = CAPTURING.write().unwrap_or_else(|e| e.into_inner());
        let trying = self.trying.write().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the context is current.
        check("cuCtxSynchronize", unsafe { cu::cuCtxSynchronize() })?;
        Ok([capturing, trying])
    }

    /// Whether a stream captures what it is given.
    pub(super) fn captures(&self, stream: Stream) -> Result<bool, CudaError> {
        let mut status = cu::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: a stream of this device and a place for the result.
        check("cuStreamIsCapturing", unsafe {
            cu::cuStreamIsCapturing(stream.0 as cu::CUstream, &mut status)
        })?;
        Ok(status != cu::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Records an event of a stream, or that its graph is to record it each time.
    fn note(&self, stream: Stream, moment: usize) -> Result<(), CudaError> {
        let mut moments = self.moments.lock().unwrap_or_else(|e| e.into_inner());
        let Some(moments) = moments.get_mut(&stream.0) else { return Ok(()) };
        let Some(event) = moments.get(moment) else { return Ok(()) };
        let external = cu::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        let flags = if self.captures(stream)? { external } else { 0 };
        // SAFETY: a stream of this device and its event.
        let recorded = unsafe { cu::cuEventRecordWithFlags(event, stream.0 as cu::CUstream, flags) };
        check("cuEventRecord", recorded)?;
        moments.note(moment);
        Ok(())
    }

    fn launch_kernel(
        &self,
        stream: Stream,
        kernel: KernelId,
        shape: &Shape,
        args: &[u8],
    ) -> Result<(), CudaError> {
        let mut arg = args.as_ptr().cast_mut().cast::<c_void>();
        let together = kernel == program::FRAME.id();
        let function = match self.frame.get() {
            Some((_, function)) if together => *function,
            _ => self.functions[kernel as usize],
        };
        let [x, y, z] = shape.grid;
        let mut attribute = if together {
            cu::CUlaunchAttribute {
                id: cu::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                pad: [0; 4],
                value: cu::CUlaunchAttributeValue { cooperative: 1 },
            }
        } else {
            cu::CUlaunchAttribute {
                id: cu::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                pad: [0; 4],
                value: cu::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            }
        };
        let config = cu::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: shape.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared,
            hStream: stream.0 as cu::CUstream,
            attrs: &mut attribute,
            numAttrs: u32::from(self.early || together),
        };
        // SAFETY: the kernel takes one value, which is there; the driver copies it.
        check("cuLaunchKernelEx", unsafe {
            cu::cuLaunchKernelEx(&config, function, std::ptr::from_mut(&mut arg), std::ptr::null_mut())
        })
    }
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        let _ = self.enter();
        // SAFETY: nothing uses any of these any more: the device's owner has waited for its streams.
        unsafe {
            self.plans.get_mut().unwrap_or_else(|e| e.into_inner()).values().for_each(Plan::destroy);
            lt::cublasLtDestroy(self.blas);
            for module in &self.modules {
                cu::cuModuleUnload(*module);
            }
            if let Some((module, _)) = self.frame.get() {
                cu::cuModuleUnload(*module);
            }
            cu::cuDevicePrimaryCtxRelease_v2(self.device);
        }
        CURRENT.set(0);
    }
}

/// A kernel of a loaded module, with all the shared memory that a block may have.
fn function(module: cu::CUmodule, name: &str, info: &DeviceInfo) -> Result<cu::CUfunction, CudaError> {
    use cu::CUfunction_attribute_enum as A;
    let symbol = CString::new(name).expect("kernel names have no zero bytes");
    let (mut function, mut fixed) = (std::ptr::null_mut(), 0);
    // SAFETY: places for the results; the module is loaded.
    unsafe {
        check("cuModuleGetFunction", cu::cuModuleGetFunction(&mut function, module, symbol.as_ptr()))?;
        check(
            "cuFuncGetAttribute",
            cu::cuFuncGetAttribute(&mut fixed, A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function),
        )?;
        let most = info.shared as i32 - fixed;
        check(
            "cuFuncSetAttribute",
            cu::cuFuncSetAttribute(function, A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most),
        )?;
        // A multiprocessor drains before it divides its memory in another way. Kernels of few rows follow each other and
        // all divide it the same way; the others gain more from larger caches.
        if program::of_few_rows(name) {
            check(
                "cuFuncSetAttribute",
                cu::cuFuncSetAttribute(
                    function,
                    A::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                    SHARED_PERCENT,
                ),
            )?;
        }
    }
    Ok(function)
}

impl Driver for Nvidia {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn prepare(&self, kernel: KernelId) -> Result<(), CudaError> {
        if kernel != program::FRAME.id() || self.frame.get().is_some() {
            return Ok(());
        }
        let images = compiled::images(Parts::Frame, self.info.capability)?;
        self.enter()?;
        let mut module = std::ptr::null_mut();
        // A module may wait for the whole device.
        let _alone = CAPTURING.write().unwrap_or_else(|e| e.into_inner());
        // SAFETY: a place for the result; the image is a whole cubin.
        check("cuModuleLoadData", unsafe { cu::cuModuleLoadData(&mut module, images[0].as_ptr().cast()) })?;
        let made = (module, function(module, program::FRAME.name(), &self.info)?);
        if self.frame.set(made).is_err() {
            // Another thread was faster.
            // SAFETY: nobody knows this one.
            unsafe { cu::cuModuleUnload(module) };
        }
        Ok(())
    }

    fn memory(&self) -> Result<(u64, u64), CudaError> {
        self.enter()?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: places for the results.
        check("cuMemGetInfo", unsafe { cu::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    fn alloc(&self, bytes: usize) -> Result<Address, CudaError> {
        self.enter()?;
        let mut at = 0;
        // SAFETY: a place for the result.
        let code = unsafe { cu::cuMemAlloc_v2(&mut at, bytes) };
        if code == cu::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(out_of_memory(bytes));
        }
        check("cuMemAlloc", code)?;
        Ok(at)
    }

    fn free(&self, at: Address) {
        if self.enter().is_ok() {
            // SAFETY: allocated above, and nothing uses it any more.
            unsafe { cu::cuMemFree_v2(at) };
        }
    }

    fn stream(&self, first: bool) -> Result<Stream, CudaError> {
        self.enter()?;
        let mut stream = std::ptr::null_mut();
        let flags = cu::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: places for the results.
        unsafe {
            check("cuCtxGetStreamPriorityRange", cu::cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
            let priority = if first { greatest } else { least };
            check(
                "cuStreamCreateWithPriority",
                cu::cuStreamCreateWithPriority(&mut stream, flags, priority),
            )?;
        }
        let stream = Stream(stream as u64);
        let equip = || {
            let workspace = self.alloc(WORKSPACE)?;
            self.workspaces.lock().unwrap_or_else(|e| e.into_inner()).insert(stream.0, workspace);
            let mut moments = Moments::default();
            (0..=MEETING).try_for_each(|_| moments.make())?;
            self.moments.lock().unwrap_or_else(|e| e.into_inner()).insert(stream.0, moments);
            Ok(stream)
        };
        equip().inspect_err(|_| self.close(stream))
    }

    fn close(&self, stream: Stream) {
        if self.enter().is_err() {
            return;
        }
        let workspace = self.workspaces.lock().unwrap_or_else(|e| e.into_inner()).remove(&stream.0);
        self.moments.lock().unwrap_or_else(|e| e.into_inner()).remove(&stream.0);
        self.plans.lock().unwrap_or_else(|e| e.into_inner()).retain(|(of, _), plan| {
            let other = *of != stream.0;
            if !other {
                plan.destroy();
            }
            other
        });
        // SAFETY: the owner has waited for the stream.
        unsafe {
            cu::cuStreamSynchronize(stream.0 as cu::CUstream);
            if let Some(at) = workspace {
                cu::cuMemFree_v2(at);
            }
            cu::cuStreamDestroy_v2(stream.0 as cu::CUstream);
        }
    }

    fn upload(&self, stream: Stream, to: Address, from: &[u8]) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: the driver copies pageable memory before it returns; the owner of pinned memory waits before writing there.
        check("cuMemcpyHtoDAsync", unsafe {
            cu::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), stream.0 as cu::CUstream)
        })
    }

    fn download(&self, stream: Stream, from: Address, to: &mut [u8]) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: the stream is waited for before `to` is used.
        unsafe {
            check(
                "cuMemcpyDtoHAsync",
                cu::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), stream.0 as cu::CUstream),
            )?;
        }
        self.wait(stream)
    }

    fn send(&self, stream: Stream, from: Address, to: &mut [u8], moment: usize) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: the owner keeps the memory until the moment has passed.
        check("cuMemcpyDtoHAsync", unsafe {
            cu::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), stream.0 as cu::CUstream)
        })?;
        self.note(stream, moment)
    }

    fn pass(&self, stream: Stream, moment: usize) -> Result<(), CudaError> {
        self.enter()?;
        let event = {
            let moments = self.moments.lock().unwrap_or_else(|e| e.into_inner());
            moments.get(&stream.0).and_then(|m| m.get(moment))
        };
        // SAFETY: an event of this device, which its stream keeps.
        event.map_or(Ok(()), |event| check("cuEventSynchronize", unsafe { cu::cuEventSynchronize(event) }))
    }

    fn follow(&self, stream: Stream, other: Stream) -> Result<(), CudaError> {
        self.enter()?;
        self.note(other, MEETING)?;
        let event = {
            let moments = self.moments.lock().unwrap_or_else(|e| e.into_inner());
            moments.get(&other.0).and_then(|m| m.get(MEETING))
        };
        let Some(event) = event else { return Ok(()) };
        // SAFETY: a stream and an event of this device; what the event stands for is fixed by this call.
        check("cuStreamWaitEvent", unsafe { cu::cuStreamWaitEvent(stream.0 as cu::CUstream, event, 0) })
    }

    fn pin(&self, at: usize, bytes: usize) -> bool {
        // SAFETY: memory of this process that outlives the pin.
        self.enter().is_ok()
            && unsafe { cu::cuMemHostRegister_v2(at as *mut c_void, bytes, 0) } == cu::CUresult::CUDA_SUCCESS
    }

    fn unpin(&self, at: usize) {
        if self.enter().is_ok() {
            // SAFETY: pinned above.
            unsafe { cu::cuMemHostUnregister(at as *mut c_void) };
        }
    }

    fn enqueue(&self, stream: Stream, commands: &[Command], args: &[u8]) -> Result<(), CudaError> {
        self.enter()?;
        commands.iter().try_for_each(|c| self.launch(stream, c, args))
    }

    fn enqueue_timed(
        &self,
        stream: Stream,
        commands: &[Command],
        args: &[u8],
    ) -> Result<Vec<f32>, CudaError> {
        self.enter()?;
        let s = stream.0 as cu::CUstream;
        let mut events = Events::default();
        // SAFETY: events of this device, destroyed after the stream was waited for.
        unsafe {
            check("cuEventRecord", cu::cuEventRecord(events.make()?, s))?;
            for command in commands {
                self.launch(stream, command, args)?;
                check("cuEventRecord", cu::cuEventRecord(events.make()?, s))?;
            }
        }
        self.wait(stream)?;
        events.elapsed()
    }

    fn capture(&self, stream: Stream, commands: &[Command], args: &[u8]) -> Result<Option<Graph>, CudaError> {
        self.enter()?;
        let s = stream.0 as cu::CUstream;
        let mut graph = std::ptr::null_mut();
        let mut exec = std::ptr::null_mut();
        let _capturing = CAPTURING.read().unwrap_or_else(|e| e.into_inner());
        let mode = cu::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a stream of this device; places for the results. Capture ends whatever the commands did.
        unsafe {
            check("cuStreamBeginCapture", cu::cuStreamBeginCapture_v2(s, mode))?;
            let recorded = commands.iter().try_for_each(|c| self.launch(stream, c, args));
            let ended = check("cuStreamEndCapture", cu::cuStreamEndCapture(s, &mut graph));
            let made = recorded.and(ended).and_then(|()| {
                check("cuGraphInstantiate", cu::cuGraphInstantiateWithFlags(&mut exec, graph, 0))
            });
            if !graph.is_null() {
                cu::cuGraphDestroy(graph);
            }
            made?;
        }
        Ok(Some(Graph(exec as u64)))
    }

    fn replay(&self, stream: Stream, graph: Graph) -> Result<(), CudaError> {
        self.enter()?;
        let _enqueuing = self.enqueuing();
        // SAFETY: an instantiated graph of this device.
        check("cuGraphLaunch", unsafe {
            cu::cuGraphLaunch(graph.0 as cu::CUgraphExec, stream.0 as cu::CUstream)
        })
    }

    fn drop_graph(&self, graph: Graph) {
        if self.enter().is_ok() {
            // SAFETY: instantiated above; the owner has waited for its stream.
            unsafe { cu::cuGraphExecDestroy(graph.0 as cu::CUgraphExec) };
        }
    }

    fn between(&self, stream: Stream, from: usize, to: usize) -> Option<f32> {
        self.enter().ok()?;
        let moments = self.moments.lock().unwrap_or_else(|e| e.into_inner());
        let moments = moments.get(&stream.0)?;
        let (from, to) = (moments.get_noted(from)?, moments.get_noted(to)?);
        let mut ms = 0.0;
        // SAFETY: events of this device; an event that was not reached yet gives an error code.
        let code = unsafe { cu::cuEventElapsedTime_v2(&mut ms, from, to) };
        (code == cu::CUresult::CUDA_SUCCESS).then_some(ms)
    }

    fn wait(&self, stream: Stream) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: a stream of this device.
        check("cuStreamSynchronize", unsafe { cu::cuStreamSynchronize(stream.0 as cu::CUstream) })
    }

    fn wait_all(&self) -> Result<(), CudaError> {
        self.enter()?;
        let _alone = CAPTURING.write().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the context is current.
        check("cuCtxSynchronize", unsafe { cu::cuCtxSynchronize() })
    }
}
