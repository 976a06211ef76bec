//! NVIDIA devices by the driver's own interface, loaded at run time.

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::sync::Mutex;

use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys as cu;

use super::driver::{
    Address, Command, DeviceInfo, Driver, Graph, KernelId, Product, ProductKind, Shape, Stream,
};
use super::{CudaError, libraries, program};

/// The oldest driver that the kernels and calls work with.
const DRIVER: u32 = 12_000;
/// The oldest driver whose graphs keep that a launch is set up early.
const EARLY_DRIVER: u32 = 12_030;
/// Rows from which the algorithms of a product are tried against each other.
const TRIED_ROWS: u32 = 256;
/// Algorithms that are tried, and runs of each that are timed.
const TRIED: usize = 6;
const TRIES: usize = 3;
/// `CUBLAS_OP_T`.
const TRANSPOSED: i32 = 1;
/// Workspace of a stream's products.
const WORKSPACE: usize = 32 << 20;

thread_local! {
    /// The context that calls of this thread go to.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// What a product needs to be set up; addresses and alignment apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct ProductKey {
    kind: ProductKind,
    dims: [u32; 6],
    bias: bool,
    accumulate: bool,
    narrow: bool,
}

impl ProductKey {
    fn of(p: &Product) -> Self {
        Self {
            kind: p.kind,
            dims: [p.m, p.n, p.k, p.a_stride, p.w_stride, p.out_stride],
            bias: p.bias != 0,
            accumulate: p.accumulate,
            narrow: p.narrow,
        }
    }

    /// The same for all numbers of rows that share an algorithm.
    fn coarse(mut self) -> Self {
        self.dims[0] = self.dims[0].next_power_of_two();
        self
    }
}

/// A product that was set up.
struct Plan {
    op: lt::cublasLtMatmulDesc_t,
    layouts: [lt::cublasLtMatrixLayout_t; 3],
    algorithm: lt::cublasLtMatmulAlgo_t,
}

/// Events that mark places in a stream.
#[derive(Default)]
struct Events(Vec<cu::CUevent>);

impl Events {
    fn make(&mut self) -> Result<cu::CUevent, CudaError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for the result.
        check("cuEventCreate", unsafe { cu::cuEventCreate(&mut event, 0) })?;
        self.0.push(event);
        Ok(event)
    }

    /// Milliseconds from each to the next, after the stream was waited for.
    fn elapsed(&self) -> Result<Vec<f32>, CudaError> {
        let between = |pair: &[cu::CUevent]| {
            let mut ms = 0.0;
            // SAFETY: both were recorded and have come to pass.
            check("cuEventElapsedTime", unsafe { cu::cuEventElapsedTime_v2(&mut ms, pair[0], pair[1]) })?;
            Ok(ms)
        };
        self.0.windows(2).map(between).collect()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: made above; the driver keeps what is still in use.
        self.0.iter().for_each(|&e| unsafe {
            cu::cuEventDestroy_v2(e);
        });
    }
}

/// A device of the NVIDIA driver.
pub(crate) struct Nvidia {
    info: DeviceInfo,
    device: cu::CUdevice,
    context: cu::CUcontext,
    module: cu::CUmodule,
    functions: Vec<cu::CUfunction>,
    blas: lt::cublasLtHandle_t,
    plans: Mutex<HashMap<ProductKey, Plan>>,
    /// Algorithms by what they were chosen for.
    algorithms: Mutex<HashMap<ProductKey, lt::cublasLtMatmulAlgo_t>>,
    /// Whether launches may be set up early.
    early: bool,
    workspaces: Mutex<HashMap<u64, Address>>,
}

// SAFETY: handles of the driver and of cuBLASLt may be used from any thread; plans are behind a lock.
unsafe impl Send for Nvidia {}
// SAFETY: as above.
unsafe impl Sync for Nvidia {}

fn check(call: &'static str, code: cu::CUresult) -> Result<(), CudaError> {
    if code == cu::CUresult::CUDA_SUCCESS {
        return Ok(());
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

fn check_lt(call: &'static str, code: lt::cublasStatus_t) -> Result<(), CudaError> {
    if code == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(CudaError::Failed { call, message: format!("{code:?}") })
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
        let image = program::image(info.capability)?;
        let mut module = std::ptr::null_mut();
        let mut blas = std::ptr::null_mut();
        // SAFETY: places for the results; the image is a whole cubin.
        unsafe {
            check("cuDevicePrimaryCtxRetain", cu::cuDevicePrimaryCtxRetain(&mut context, device))?;
            check("cuCtxSetCurrent", cu::cuCtxSetCurrent(context))?;
            CURRENT.set(context as usize);
            check("cuModuleLoadData", cu::cuModuleLoadData(&mut module, image.as_ptr().cast()))?;
            check_lt("cublasLtCreate", lt::cublasLtCreate(&mut blas))?;
        }
        let functions = program::KERNELS
            .iter()
            .map(|k| {
                let name = CString::new(k.name).expect("kernel names have no zero bytes");
                let (mut function, mut fixed) = (std::ptr::null_mut(), 0);
                use cu::CUfunction_attribute_enum as A;
                // SAFETY: places for the results; the module is loaded.
                unsafe {
                    check(
                        "cuModuleGetFunction",
                        cu::cuModuleGetFunction(&mut function, module, name.as_ptr()),
                    )?;
                    check(
                        "cuFuncGetAttribute",
                        cu::cuFuncGetAttribute(&mut fixed, A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function),
                    )?;
                    let most = info.shared as i32 - fixed;
                    check(
                        "cuFuncSetAttribute",
                        cu::cuFuncSetAttribute(
                            function,
                            A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                            most,
                        ),
                    )?;
                }
                Ok(function)
            })
            .collect::<Result<_, CudaError>>()?;
        let early = info.capability >= (9, 0) && info.driver >= EARLY_DRIVER;
        Ok(Self {
            info,
            device,
            context,
            module,
            functions,
            blas,
            plans: Mutex::default(),
            algorithms: Mutex::default(),
            early,
            workspaces: Mutex::default(),
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
            Command::Zero { to, bytes } => {
                // SAFETY: device memory of that size.
                check("cuMemsetD8Async", unsafe {
                    cu::cuMemsetD8Async(*to, 0, *bytes, stream.0 as cu::CUstream)
                })
            }
        }
    }

    fn launch_kernel(
        &self,
        stream: Stream,
        kernel: KernelId,
        shape: &Shape,
        args: &[u8],
    ) -> Result<(), CudaError> {
        let mut arg = args.as_ptr().cast_mut().cast::<c_void>();
        let function = self.functions[kernel as usize];
        let [x, y, z] = shape.grid;
        let mut early = cu::CUlaunchAttribute {
            id: cu::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: cu::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
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
            attrs: &mut early,
            numAttrs: u32::from(self.early),
        };
        // SAFETY: the kernel takes one value, which is there; the driver copies it.
        check("cuLaunchKernelEx", unsafe {
            cu::cuLaunchKernelEx(&config, function, std::ptr::from_mut(&mut arg), std::ptr::null_mut())
        })
    }

    fn product(&self, stream: Stream, p: &Product) -> Result<(), CudaError> {
        let workspace = self.workspaces.lock().unwrap_or_else(|e| e.into_inner())[&stream.0];
        let key = ProductKey::of(p);
        let mut plans = self.plans.lock().unwrap_or_else(|e| e.into_inner());
        let plan = match plans.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(self.plan(stream, workspace, p)?),
        };
        self.multiply(stream, workspace, p, plan, &plan.algorithm, p.out)
    }

    /// Runs a product by an algorithm, with its result at `to`.
    fn multiply(
        &self,
        stream: Stream,
        workspace: Address,
        p: &Product,
        plan: &Plan,
        algorithm: &lt::cublasLtMatmulAlgo_t,
        to: Address,
    ) -> Result<(), CudaError> {
        let (one, zero) = (1f32.to_bits(), 0f32.to_bits());
        let scalar = |on: bool| match (p.kind, on) {
            (ProductKind::Int8, on) => u32::from(on),
            (_, true) => one,
            (_, false) => zero,
        };
        let (alpha, beta) = (scalar(true), scalar(p.accumulate));
        if p.bias != 0 {
            set(plan.op, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias)?;
        }
        // SAFETY: the plan's layouts describe these addresses; scalars are of the plan's scale type.
        check_lt("cublasLtMatmul", unsafe {
            lt::cublasLtMatmul(
                self.blas,
                plan.op,
                std::ptr::from_ref(&alpha).cast(),
                p.w as *const c_void,
                plan.layouts[0],
                p.a as *const c_void,
                plan.layouts[1],
                std::ptr::from_ref(&beta).cast(),
                p.out as *const c_void,
                plan.layouts[2],
                to as *mut c_void,
                plan.layouts[2],
                algorithm,
                workspace as *mut c_void,
                WORKSPACE,
                stream.0 as lt::cudaStream_t,
            )
        })
    }

    /// Row-major `out = a w^T` is column-major `out^T = w a^T`, where `w` is the transposed operand.
    fn plan(&self, stream: Stream, workspace: Address, p: &Product) -> Result<Plan, CudaError> {
        use lt::cublasComputeType_t as C;
        use lt::cudaDataType_t as T;
        let (compute, scale, value, mut result) = match p.kind {
            ProductKind::F32 => (C::CUBLAS_COMPUTE_32F, T::CUDA_R_32F, T::CUDA_R_32F, T::CUDA_R_32F),
            ProductKind::Tf32 => {
                (C::CUBLAS_COMPUTE_32F_FAST_TF32, T::CUDA_R_32F, T::CUDA_R_32F, T::CUDA_R_32F)
            }
            ProductKind::Bf16 => (C::CUBLAS_COMPUTE_32F, T::CUDA_R_32F, T::CUDA_R_16BF, T::CUDA_R_32F),
            ProductKind::Int8 => (C::CUBLAS_COMPUTE_32I, T::CUDA_R_32I, T::CUDA_R_8I, T::CUDA_R_32I),
        };
        if p.narrow {
            result = T::CUDA_R_16BF;
        }
        let mut op = std::ptr::null_mut();
        let layout = |kind, rows: u32, cols: u32, stride: u32| {
            let mut layout = std::ptr::null_mut();
            // SAFETY: a place for the result.
            check_lt("cublasLtMatrixLayoutCreate", unsafe {
                lt::cublasLtMatrixLayoutCreate(&mut layout, kind, rows as u64, cols as u64, stride as i64)
            })?;
            Ok::<_, CudaError>(layout)
        };
        let layouts = [
            layout(value, p.k, p.n, p.w_stride)?,
            layout(value, p.k, p.m, p.a_stride)?,
            layout(result, p.n, p.m, p.out_stride)?,
        ];
        // SAFETY: a place for the result.
        check_lt("cublasLtMatmulDescCreate", unsafe {
            lt::cublasLtMatmulDescCreate(&mut op, compute, scale)
        })?;
        set(op, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        if p.bias != 0 {
            let epilogue = lt::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            set(op, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            set(op, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias)?;
        }
        let mut plan = Plan { op, layouts, algorithm: lt::cublasLtMatmulAlgo_t { data: [0; 8] } };
        let coarse = ProductKey::of(p).coarse();
        let mut algorithms = self.algorithms.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(known) = algorithms.get(&coarse)
            && self.fits(&plan, known)
        {
            plan.algorithm = *known;
            return Ok(plan);
        }
        let found = self.candidates(&plan)?;
        plan.algorithm = match found[..] {
            [] => {
                return Err(CudaError::Failed {
                    call: "cublasLtMatmulAlgoGetHeuristic",
                    message: format!("no algorithm for {p:?}"),
                });
            }
            [only] => only,
            [first, ..] if p.m < TRIED_ROWS => first,
            _ => self.fastest(stream, workspace, p, &plan, &found)?,
        };
        algorithms.insert(coarse, plan.algorithm);
        Ok(plan)
    }

    /// Whether an algorithm that was chosen for another number of rows serves this product.
    fn fits(&self, plan: &Plan, algorithm: &lt::cublasLtMatmulAlgo_t) -> bool {
        let mut result = MaybeUninit::<lt::cublasLtMatmulHeuristicResult_t>::zeroed();
        let [w, a, out] = plan.layouts;
        // SAFETY: a place for the result.
        unsafe {
            let code = lt::cublasLtMatmulAlgoCheck(
                self.blas,
                plan.op,
                w,
                a,
                out,
                out,
                algorithm,
                result.as_mut_ptr(),
            );
            let result = result.assume_init();
            code == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS
                && result.state == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS
                && result.workspaceSize <= WORKSPACE
        }
    }

    /// The algorithms that the library would choose, best first.
    fn candidates(&self, plan: &Plan) -> Result<Vec<lt::cublasLtMatmulAlgo_t>, CudaError> {
        let mut preference = std::ptr::null_mut();
        let mut found = [const { MaybeUninit::<lt::cublasLtMatmulHeuristicResult_t>::zeroed() }; TRIED];
        let mut results = 0;
        let [w, a, out] = plan.layouts;
        // SAFETY: places for the results; attributes have the sizes given; what is read was written.
        unsafe {
            check_lt("cublasLtMatmulPreferenceCreate", lt::cublasLtMatmulPreferenceCreate(&mut preference))?;
            check_lt(
                "cublasLtMatmulPreferenceSetAttribute",
                lt::cublasLtMatmulPreferenceSetAttribute(
                    preference,
                    lt::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                    std::ptr::from_ref(&WORKSPACE).cast(),
                    size_of_val(&WORKSPACE),
                ),
            )?;
            let code = lt::cublasLtMatmulAlgoGetHeuristic(
                self.blas,
                plan.op,
                w,
                a,
                out,
                out,
                preference,
                TRIED as i32,
                found[0].as_mut_ptr(),
                &mut results,
            );
            lt::cublasLtMatmulPreferenceDestroy(preference);
            check_lt("cublasLtMatmulAlgoGetHeuristic", code)?;
            Ok(found[..results as usize].iter().map(|r| r.assume_init().algo).collect())
        }
    }

    /// The algorithm that takes the least time here; its results go nowhere.
    fn fastest(
        &self,
        stream: Stream,
        workspace: Address,
        p: &Product,
        plan: &Plan,
        found: &[lt::cublasLtMatmulAlgo_t],
    ) -> Result<lt::cublasLtMatmulAlgo_t, CudaError> {
        let Ok(nowhere) = self.alloc(p.m as usize * p.out_stride as usize * 4) else { return Ok(found[0]) };
        let s = stream.0 as cu::CUstream;
        let mut best = (f32::INFINITY, found[0]);
        for algorithm in found {
            let mut events = Events::default();
            let run = || self.multiply(stream, workspace, p, plan, algorithm, nowhere);
            // SAFETY: events of this device.
            let timed = unsafe {
                run()
                    .and_then(|()| check("cuEventRecord", cu::cuEventRecord(events.make()?, s)))
                    .and_then(|()| (0..TRIES).try_for_each(|_| run()))
                    .and_then(|()| check("cuEventRecord", cu::cuEventRecord(events.make()?, s)))
                    .and_then(|()| self.wait(stream))
                    .and_then(|()| events.elapsed())
            };
            if let Ok(times) = timed
                && times[0] < best.0
            {
                best = (times[0], *algorithm);
            }
        }
        self.free(nowhere);
        Ok(best.1)
    }
}

type Attribute = lt::cublasLtMatmulDescAttributes_t;

/// Sets an attribute of a product.
fn set<T>(op: lt::cublasLtMatmulDesc_t, attribute: Attribute, value: &T) -> Result<(), CudaError> {
    // SAFETY: the attribute has the size of the value.
    check_lt("cublasLtMatmulDescSetAttribute", unsafe {
        lt::cublasLtMatmulDescSetAttribute(op, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
    })
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        let _ = self.enter();
        // SAFETY: nothing uses any of these any more: the device's owner has waited for its streams.
        unsafe {
            for plan in self.plans.get_mut().unwrap_or_else(|e| e.into_inner()).values() {
                lt::cublasLtMatmulDescDestroy(plan.op);
                plan.layouts.iter().for_each(|l| {
                    lt::cublasLtMatrixLayoutDestroy(*l);
                });
            }
            lt::cublasLtDestroy(self.blas);
            cu::cuModuleUnload(self.module);
            cu::cuDevicePrimaryCtxRelease_v2(self.device);
        }
        CURRENT.set(0);
    }
}

impl Driver for Nvidia {
    fn info(&self) -> &DeviceInfo {
        &self.info
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
            return Err(CudaError::OutOfMemory { asked: bytes as u64, free: self.memory()?.0 });
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

    fn stream(&self) -> Result<Stream, CudaError> {
        self.enter()?;
        let mut stream = std::ptr::null_mut();
        let flags = cu::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a place for the result.
        check("cuStreamCreate", unsafe { cu::cuStreamCreate(&mut stream, flags) })?;
        let workspace = self.alloc(WORKSPACE)?;
        self.workspaces.lock().unwrap_or_else(|e| e.into_inner()).insert(stream as u64, workspace);
        Ok(Stream(stream as u64))
    }

    fn close(&self, stream: Stream) {
        if self.enter().is_err() {
            return;
        }
        let workspace = self.workspaces.lock().unwrap_or_else(|e| e.into_inner()).remove(&stream.0);
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
        // SAFETY: the driver copies pageable memory before it returns.
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
        let mode = cu::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a stream of this device; places for the results. Capture ends whatever the commands did.
        unsafe {
            check("cuStreamBeginCapture", cu::cuStreamBeginCapture_v2(s, mode))?;
            let recorded = commands.iter().try_for_each(|c| self.launch(stream, c, args));
            let ended = check("cuStreamEndCapture", cu::cuStreamEndCapture(s, &mut graph));
            recorded.and(ended)?;
            let made = check("cuGraphInstantiate", cu::cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            cu::cuGraphDestroy(graph);
            made?;
        }
        Ok(Some(Graph(exec as u64)))
    }

    fn replay(&self, stream: Stream, graph: Graph) -> Result<(), CudaError> {
        self.enter()?;
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

    fn wait(&self, stream: Stream) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: a stream of this device.
        check("cuStreamSynchronize", unsafe { cu::cuStreamSynchronize(stream.0 as cu::CUstream) })
    }

    fn wait_all(&self) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: the context is current.
        check("cuCtxSynchronize", unsafe { cu::cuCtxSynchronize() })
    }
}
