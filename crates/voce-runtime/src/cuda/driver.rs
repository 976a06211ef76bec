//! What the backend asks of a device: memory, copies, launches, products, recorded graphs.

use std::fmt;

use super::CudaError;

/// An address in device memory.
pub(crate) type Address = u64;

/// What a product multiplies and how it sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub(crate) enum ProductKind {
    /// f32 by f32, in full.
    F32,
    /// f32 by f32 on tensor cores, rounded to TF32.
    Tf32,
    /// bf16 by bf16 into f32.
    Bf16,
    /// int8 by int8 into i32.
    Int8,
    /// e4m3 by e4m3 into f32.
    Fp8,
}

/// `out[m][n] (+)= a[m][k] w[n][k]^T`, rows at the given strides, counted in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct Product {
    pub kind: ProductKind,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub a: Address,
    pub w: Address,
    pub out: Address,
    pub a_stride: u32,
    pub w_stride: u32,
    pub out_stride: u32,
    /// Added to each row, in f32; 0 for none.
    pub bias: Address,
    /// Adds to what `out` holds.
    pub accumulate: bool,
    /// `out` is bf16; of bf16 and fp8 products alone.
    pub narrow: bool,
    /// What each row and each output is multiplied by, in f32; 0 for none; of fp8 products alone.
    pub scales: [Address; 2],
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of shared memory.
    pub shared: u32,
}

/// Which kernel: its index in [`super::program::KERNELS`].
pub(crate) type KernelId = u16;

/// One recorded piece of work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Command {
    /// Runs a kernel with the argument bytes at this place of the queue's argument buffer.
    Launch { kernel: KernelId, shape: Shape, args: usize, len: usize },
    /// Runs a product.
    Product(Product),
    /// Copies within the device.
    Copy { from: Address, to: Address, bytes: usize },
    /// Sets bytes to zero.
    Zero { to: Address, bytes: usize },
    /// Notes when this point is reached: the stream's moment of this number, below [`MOMENTS`].
    Note(usize),
}

/// Moments that a stream keeps, and those besides at which something that was sent to the host is there.
pub(crate) const MOMENTS: usize = 4;
pub(crate) const ARRIVALS: usize = 4;
/// The moment after these that other streams wait for.
pub(crate) const MEETING: usize = MOMENTS + ARRIVALS;

/// A device's work queue: what is enqueued runs in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream(pub u64);

/// Commands captured to be run again at the cost of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Graph(pub u64);

/// Facts about a device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub processors: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of shared memory that a block may ask for.
    pub shared: u32,
    /// The driver's CUDA version, as 1000 * major + 10 * minor.
    pub driver: u32,
    /// Whether all blocks of a launch can be there at once, and wait for each other.
    pub cooperative: bool,
}

impl DeviceInfo {
    /// Whether it multiplies fp8: from Ada on.
    pub fn has_fp8(&self) -> bool {
        self.capability >= (8, 9)
    }

    /// Whether warpgroups multiply what is in shared memory: Hopper alone, and no emulation of it.
    pub(crate) fn has_warpgroups(&self) -> bool {
        self.capability == (9, 0) && self.cooperative
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.capability;
        write!(f, "{} (sm_{major}{minor}, {} GiB)", self.name, self.memory >> 30)
    }
}

/// A device, real or emulated. Enqueuing never waits; `download` and `wait` do.
pub(crate) trait Driver: Send + Sync {
    fn info(&self) -> &DeviceInfo;
    /// Free and total bytes.
    fn memory(&self) -> Result<(u64, u64), CudaError>;
    fn alloc(&self, bytes: usize) -> Result<Address, CudaError>;
    /// Nothing that is enqueued may still use it.
    fn free(&self, at: Address);
    /// A queue of its own; `first` ones go before others where both have work that waits.
    fn stream(&self, first: bool) -> Result<Stream, CudaError>;
    fn close(&self, stream: Stream);
    /// Copies from host memory; `from` may be reused when this returns, unless it is pinned.
    fn upload(&self, stream: Stream, to: Address, from: &[u8]) -> Result<(), CudaError>;
    /// Copies to host memory and waits for it.
    fn download(&self, stream: Stream, from: Address, to: &mut [u8]) -> Result<(), CudaError>;
    /// Copies to host memory that stays where it is until the stream has passed this moment, and does not wait for it.
    fn send(&self, stream: Stream, from: Address, to: &mut [u8], moment: usize) -> Result<(), CudaError>;
    /// Waits until a stream has passed a moment.
    fn pass(&self, stream: Stream, moment: usize) -> Result<(), CudaError>;
    /// Makes `stream` wait, on the device, until the commands enqueued on `other` so far have run; the host goes on.
    fn follow(&self, stream: Stream, other: Stream) -> Result<(), CudaError>;
    /// Keeps host memory in its place, so that copies need no other in between; whether it could.
    fn pin(&self, at: usize, bytes: usize) -> bool;
    /// Ends that; the memory is still there.
    fn unpin(&self, at: usize);
    /// Makes a kernel ready that is not from the start; nothing is being recorded on this thread.
    fn prepare(&self, kernel: KernelId) -> Result<(), CudaError> {
        let _ = kernel;
        Ok(())
    }
    /// Enqueues commands in order; `args` is what launches refer to.
    fn enqueue(&self, stream: Stream, commands: &[Command], args: &[u8]) -> Result<(), CudaError>;
    /// Enqueues commands, waits for them, and tells how many milliseconds each took.
    fn enqueue_timed(&self, stream: Stream, commands: &[Command], args: &[u8])
    -> Result<Vec<f32>, CudaError>;
    /// Captures commands; none where the device has no graphs.
    fn capture(&self, stream: Stream, commands: &[Command], args: &[u8]) -> Result<Option<Graph>, CudaError>;
    fn replay(&self, stream: Stream, graph: Graph) -> Result<(), CudaError>;
    fn drop_graph(&self, graph: Graph);
    /// Milliseconds between two moments that a stream has passed; none where they were not noted.
    fn between(&self, stream: Stream, from: usize, to: usize) -> Option<f32>;
    /// Waits until everything enqueued on a stream has run.
    fn wait(&self, stream: Stream) -> Result<(), CudaError>;
    /// Waits for all streams of the device.
    fn wait_all(&self) -> Result<(), CudaError>;
}
