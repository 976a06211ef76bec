//! A device that is not there: the same kernels, compiled for the CPU, for tests on machines without a GPU.
//!
//! `emulator/device.h` gives the C++ compiler the part of CUDA that the kernels use, `emulator/scheduler.cpp` runs a
//! block's threads as fibres. Built at first use with the system's C++ compiler into the temporary folder.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::driver::{Address, Command, DeviceInfo, Driver, Graph, Product, ProductKind, Stream};
use super::{CudaError, program};

type LaunchFn = unsafe extern "C" fn(*const c_char, *const u32, u32, u32, *const u8) -> i32;

/// Kernels on the CPU; device memory is host memory.
pub(crate) struct Emulator {
    info: DeviceInfo,
    launch: LaunchFn,
    names: Vec<CString>,
    /// Bytes that it has, and those in use.
    memory: Arc<AtomicU64>,
    used: AtomicU64,
    /// The number of the next stream or graph.
    numbers: AtomicU64,
    late: Mutex<Late>,
    graphs: Mutex<HashMap<u64, Arc<Captured>>>,
}

/// Commands and their arguments.
type Captured = (Vec<Command>, Vec<u8>);

/// Work that a device may put off. This one puts it off as long as it may, so that tests notice who does not wait.
#[derive(Default)]
struct Late {
    /// Host memory that is pinned, by its address.
    pinned: HashMap<usize, usize>,
    /// Copies from there that are to be made.
    copies: Vec<LateCopy>,
}

struct LateCopy {
    stream: Stream,
    to: Address,
    from: usize,
    bytes: usize,
}

/// How the kernels are compiled.
const FLAGS: [&str; 7] =
    ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w", "-ffp-contract=off"];

fn failed(call: &'static str, message: impl std::fmt::Display) -> CudaError {
    CudaError::Failed { call, message: message.to_string() }
}

/// The kernels' entry points as the emulator calls them: `KERNEL(name, Args, threads)` in the sources.
fn entries() -> String {
    let mut text = String::from(
        "extern \"C\" __attribute__((visibility(\"default\"))) int voce_emulate(const char* name, const unsigned* grid, unsigned block, unsigned shared, const void* args) {\n  dim3 g{grid[0], grid[1], grid[2]}, b{block, 1, 1};\n",
    );
    for (name, args) in program::declared() {
        let _ = writeln!(
            text,
            "  if (!strcmp(name, \"{name}\")) {{ emulator::run([](const void* a) {{ {name}(*static_cast<const {args}*>(a)); }}, args, g, b, shared); return 0; }}"
        );
    }
    text.push_str("  return 1;\n}\n");
    text
}

/// Compiles the emulator and the kernels, or finds that this was done before.
fn build() -> Result<PathBuf, CudaError> {
    let header = include_str!("emulator/device.h");
    let scheduler = include_str!("emulator/scheduler.cpp");
    let unit = format!("{header}\n{}\n{}", program::source(), entries());
    // Fibres by the C library, which machines other than x86-64 use, can be tried on x86-64 too.
    let portable = std::env::var_os("VOCE_PORTABLE_FIBRES").is_some();
    let hash = {
        use std::hash::{Hash, Hasher};
        let mut h = std::hash::DefaultHasher::new();
        (&unit, scheduler, FLAGS, portable, std::env::consts::ARCH).hash(&mut h);
        h.finish()
    };
    let folder = std::env::temp_dir().join(format!("voce-emulator-{hash:016x}"));
    let library = folder.join("kernels.so");
    if library.exists() {
        return Ok(library);
    }
    let io = |e: std::io::Error| failed("emulator", e);
    std::fs::create_dir_all(&folder).map_err(io)?;
    let part = folder.join(format!("kernels.{}.so", std::process::id()));
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).map_err(io);
    write("device.h", header)?;
    write("scheduler.cpp", scheduler)?;
    write("kernels.cpp", &unit)?;
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let output = Process::new(&compiler)
        .args(FLAGS)
        .args(portable.then_some("-DVOCE_PORTABLE_FIBRES"))
        .arg("-o")
        .arg(&part)
        .args([folder.join("scheduler.cpp"), folder.join("kernels.cpp")])
        .output()
        .map_err(|e| failed("emulator", format!("{compiler}: {e}")))?;
    if !output.status.success() {
        return Err(failed("emulator", String::from_utf8_lossy(&output.stderr)));
    }
    std::fs::rename(&part, &library).map_err(io)?;
    Ok(library)
}

fn load(path: &Path) -> Result<LaunchFn, CudaError> {
    // SAFETY: the library was built above and has no initialisers; it stays loaded.
    unsafe {
        let library = libloading::Library::new(path).map_err(|e| failed("emulator", e))?;
        let launch = *library.get::<LaunchFn>(b"voce_emulate").map_err(|e| failed("emulator", e))?;
        std::mem::forget(library);
        Ok(launch)
    }
}

impl Emulator {
    pub(crate) fn open() -> Result<Self, CudaError> {
        static LAUNCH: OnceLock<Result<LaunchFn, CudaError>> = OnceLock::new();
        let launch = LAUNCH.get_or_init(|| build().and_then(|p| load(&p))).clone()?;
        let names = program::KERNELS.iter().map(|k| CString::new(k.name).expect("no zero bytes")).collect();
        let info = DeviceInfo {
            name: "emulated device".into(),
            capability: (9, 0),
            processors: 4,
            memory: 8 << 30,
            shared: 227 << 10,
            driver: 12_000,
            cooperative: false,
        };
        let memory = Arc::new(AtomicU64::new(info.memory));
        let (used, numbers) = (AtomicU64::new(0), AtomicU64::new(1));
        let (late, graphs) = (Mutex::default(), Mutex::default());
        Ok(Self { info, launch, names, memory, used, numbers, late, graphs })
    }

    /// The same with this many bytes of memory, which may change.
    pub(crate) fn with(self, memory: Arc<AtomicU64>) -> Self {
        Self { memory, ..self }
    }

    /// The same with another compute capability.
    pub(crate) fn of(mut self, capability: (u32, u32)) -> Self {
        self.info.capability = capability;
        self
    }

    /// Makes the copies that a stream was asked for, or all.
    fn catch_up(&self, stream: Option<Stream>) {
        let mut late = self.late.lock().unwrap_or_else(|e| e.into_inner());
        late.copies.retain(|c| {
            let now = stream.is_none_or(|s| s == c.stream);
            if now {
                // SAFETY: device memory of that size, and host memory that stays where it is while it is pinned.
                unsafe { std::ptr::copy_nonoverlapping(c.from as *const u8, c.to as *mut u8, c.bytes) };
            }
            !now
        });
    }

    /// # Safety
    /// Addresses are of this device's memory and hold what the product says.
    unsafe fn product(p: &Product) {
        // SAFETY: the caller's promise, here and below.
        let bias = |j: usize| if p.bias == 0 { 0.0 } else { unsafe { *(p.bias as *const f32).add(j) } };
        let scale = |from: Address, i: usize| {
            // SAFETY: as above.
            unsafe { *(from as *const f32).add(i) }
        };
        let put = |at: usize, v: f32| {
            // SAFETY: as above.
            unsafe {
                let out = (p.out as *mut f32).add(at);
                *out = if p.accumulate { *out + v } else { v };
            }
        };
        let put_either = |at: usize, v: f32| {
            if p.narrow {
                // SAFETY: as above.
                unsafe { *(p.out as *mut u16).add(at) = crate::simd::lanes::round_bf16(v) };
            } else {
                put(at, v);
            }
        };
        // SAFETY: as above.
        unsafe {
            match p.kind {
                ProductKind::F32 | ProductKind::Tf32 => {
                    each_sum(p, |v: f32| v as f64, |_, j, at, sum| put(at, sum as f32 + bias(j)));
                }
                ProductKind::Bf16 => {
                    let wide = |v: u16| f32::from_bits((v as u32) << 16) as f64;
                    each_sum(p, wide, |_, j, at, sum| put_either(at, sum as f32 + bias(j)));
                }
                ProductKind::Fp8 => {
                    each_sum(
                        p,
                        |code: u8| f64::from(crate::fp8::decode(code)),
                        |i, j, at, sum| {
                            let [rows, columns] = p.scales;
                            let by = if rows == 0 { 1.0 } else { scale(rows, i) * scale(columns, j) };
                            put_either(at, sum as f32 * by);
                        },
                    );
                }
                ProductKind::Int8 => each_sum(
                    p,
                    |v: i8| f64::from(v),
                    |_, _, at, sum| {
                        let out = (p.out as *mut i32).add(at);
                        *out = if p.accumulate { *out + sum as i32 } else { sum as i32 };
                    },
                ),
            }
        }
    }
}

/// Sums that are added up side by side: one alone waits for its own last addition.
const COLUMNS: usize = 8;

/// Calls `put(row, column, place, sum)` for every sum of a product; each is added up from the first term to the last.
///
/// # Safety
/// The product's addresses are of this device's memory and hold values of type `T`.
unsafe fn each_sum<T: Copy>(p: &Product, wide: impl Fn(T) -> f64, put: impl Fn(usize, usize, usize, f64)) {
    let (n, terms) = (p.n as usize, p.k as usize);
    let nothing = std::iter::empty::<f64>().sum::<f64>();
    for i in 0..p.m as usize {
        let (a, out) = (i * p.a_stride as usize, i * p.out_stride as usize);
        for first in (0..n).step_by(COLUMNS) {
            let columns = COLUMNS.min(n - first);
            // Columns past the end repeat the last one, and are not put.
            let starts: [usize; COLUMNS] =
                std::array::from_fn(|c| (first + c.min(columns - 1)) * p.w_stride as usize);
            let mut sums = [nothing; COLUMNS];
            for k in 0..terms {
                // SAFETY: the caller's promise.
                let left = wide(unsafe { *(p.a as *const T).add(a + k) });
                for (sum, start) in sums.iter_mut().zip(starts) {
                    // SAFETY: the caller's promise.
                    *sum += left * wide(unsafe { *(p.w as *const T).add(start + k) });
                }
            }
            for (c, &sum) in sums[..columns].iter().enumerate() {
                put(i, first + c, out + first + c, sum);
            }
        }
    }
}

impl Driver for Emulator {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<(u64, u64), CudaError> {
        let total = self.memory.load(Ordering::SeqCst);
        Ok((total.saturating_sub(self.used.load(Ordering::SeqCst)), total))
    }

    fn alloc(&self, bytes: usize) -> Result<Address, CudaError> {
        let (asked, total) = (bytes as u64, self.memory.load(Ordering::SeqCst));
        let fits = |used: u64| used.checked_add(asked).filter(|&all| all <= total);
        self.used
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits)
            .map_err(|used| CudaError::OutOfMemory { asked, free: total.saturating_sub(used) })?;
        // SAFETY: a non-zero size; the length is kept in front, to free it. 256-byte alignment as on devices.
        unsafe {
            let layout = std::alloc::Layout::from_size_align_unchecked(bytes + 256, 256);
            let base = std::alloc::alloc_zeroed(layout);
            if base.is_null() {
                self.used.fetch_sub(asked, Ordering::SeqCst);
                return Err(CudaError::OutOfMemory { asked: bytes as u64, free: 0 });
            }
            base.cast::<usize>().write(bytes);
            Ok(base.add(256) as u64)
        }
    }

    fn free(&self, at: Address) {
        // SAFETY: made by `alloc`, which kept the length.
        unsafe {
            let base = (at as *mut u8).sub(256);
            let bytes = base.cast::<usize>().read();
            self.used.fetch_sub(bytes as u64, Ordering::SeqCst);
            std::alloc::dealloc(base, std::alloc::Layout::from_size_align_unchecked(bytes + 256, 256));
        }
    }

    fn stream(&self, _first: bool) -> Result<Stream, CudaError> {
        Ok(Stream(self.numbers.fetch_add(1, Ordering::Relaxed)))
    }

    fn close(&self, stream: Stream) {
        self.catch_up(Some(stream));
    }

    fn upload(&self, stream: Stream, to: Address, from: &[u8]) -> Result<(), CudaError> {
        self.catch_up(Some(stream));
        let (at, bytes) = (from.as_ptr() as usize, from.len());
        let mut late = self.late.lock().unwrap_or_else(|e| e.into_inner());
        if late.pinned.iter().any(|(&begin, &len)| begin <= at && at + bytes <= begin + len) {
            late.copies.push(LateCopy { stream, to, from: at, bytes });
            return Ok(());
        }
        // SAFETY: device memory of that size, which is host memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    fn download(&self, stream: Stream, from: Address, to: &mut [u8]) -> Result<(), CudaError> {
        self.catch_up(Some(stream));
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn send(&self, stream: Stream, from: Address, to: &mut [u8], _: usize) -> Result<(), CudaError> {
        self.download(stream, from, to)
    }

    fn pass(&self, _: Stream, _: usize) -> Result<(), CudaError> {
        Ok(())
    }

    fn follow(&self, _: Stream, other: Stream) -> Result<(), CudaError> {
        // Commands have run when they are enqueued; copies may be late.
        self.catch_up(Some(other));
        Ok(())
    }

    fn pin(&self, at: usize, bytes: usize) -> bool {
        self.late.lock().unwrap_or_else(|e| e.into_inner()).pinned.insert(at, bytes);
        true
    }

    fn unpin(&self, at: usize) {
        self.late.lock().unwrap_or_else(|e| e.into_inner()).pinned.remove(&at);
    }

    fn enqueue(&self, stream: Stream, commands: &[Command], args: &[u8]) -> Result<(), CudaError> {
        self.catch_up(Some(stream));
        for command in commands {
            match command {
                Command::Launch { kernel, shape, args: at, len } => {
                    // An aligned copy, as a launch makes one.
                    let mut copy = vec![0u128; len.div_ceil(16)];
                    // SAFETY: `len` bytes of arguments; the kernel's name and sizes are those it was built with.
                    let code = unsafe {
                        std::ptr::copy_nonoverlapping(args[*at..].as_ptr(), copy.as_mut_ptr().cast(), *len);
                        (self.launch)(
                            self.names[*kernel as usize].as_ptr(),
                            shape.grid.as_ptr(),
                            shape.block,
                            shape.shared,
                            copy.as_ptr().cast(),
                        )
                    };
                    if code != 0 {
                        return Err(failed(
                            "emulator",
                            format!("no kernel {:?}", self.names[*kernel as usize]),
                        ));
                    }
                }
                // SAFETY: recorded with addresses of this device.
                Command::Product(p) => unsafe { Self::product(p) },
                // SAFETY: both ends are memory of this device.
                Command::Copy { from, to, bytes } => unsafe {
                    std::ptr::copy(*from as *const u8, *to as *mut u8, *bytes)
                },
                Command::Note(_) => {}
                // SAFETY: memory of this device.
                Command::Zero { to, bytes } => unsafe { std::ptr::write_bytes(*to as *mut u8, 0, *bytes) },
            }
        }
        Ok(())
    }

    fn enqueue_timed(
        &self,
        stream: Stream,
        commands: &[Command],
        args: &[u8],
    ) -> Result<Vec<f32>, CudaError> {
        commands
            .iter()
            .map(|command| {
                let begun = std::time::Instant::now();
                self.enqueue(stream, std::slice::from_ref(command), args)?;
                Ok(begun.elapsed().as_secs_f32() * 1e3)
            })
            .collect()
    }

    fn capture(
        &self,
        _stream: Stream,
        commands: &[Command],
        args: &[u8],
    ) -> Result<Option<Graph>, CudaError> {
        let graph = self.numbers.fetch_add(1, Ordering::Relaxed);
        let captured = Arc::new((commands.to_vec(), args.to_vec()));
        self.graphs.lock().unwrap_or_else(|e| e.into_inner()).insert(graph, captured);
        Ok(Some(Graph(graph)))
    }

    fn replay(&self, stream: Stream, graph: Graph) -> Result<(), CudaError> {
        let captured = self.graphs.lock().unwrap_or_else(|e| e.into_inner()).get(&graph.0).cloned();
        let captured = captured.ok_or_else(|| failed("emulator", "a graph that was dropped"))?;
        self.enqueue(stream, &captured.0, &captured.1)
    }

    fn drop_graph(&self, graph: Graph) {
        self.graphs.lock().unwrap_or_else(|e| e.into_inner()).remove(&graph.0);
    }

    fn between(&self, _stream: Stream, _from: usize, _to: usize) -> Option<f32> {
        None
    }

    fn wait(&self, stream: Stream) -> Result<(), CudaError> {
        self.catch_up(Some(stream));
        Ok(())
    }

    fn wait_all(&self) -> Result<(), CudaError> {
        self.catch_up(None);
        Ok(())
    }
}
