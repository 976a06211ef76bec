//! `Exec`: what a model issues its ops into, one per stage thread.

mod attend;
mod attention;
mod conv;
mod depthwise;
mod kv_cache;
mod linear;
mod lstm;
mod pointwise;
mod relative_attention;
mod select;
mod subsample;

use std::ops::Range;

pub use attention::{AttentionOp, Rope, RopeStyle};
pub use conv::{ConvOp, ConvState, ConvStateSpec, UpsampleOp};
pub use depthwise::DepthwiseOp;
pub use kv_cache::{KvCache, KvFormat, KvIndex, KvSpec};
pub use linear::{Gate, LinearOp, Modulation, Norm};
pub use lstm::{AddReluOp, LstmCellOp};
pub use pointwise::RowNorm;
pub use relative_attention::{ChunkSpan, RelativeAttentionOp, RelativePositions};
pub use select::{Candidate, Choice, Confidence, MAX_TOP_K};
pub use subsample::{FrameSpan, SubsampleOp, SubsampleSpec, SubsampleState};

use crate::memory::AlignedVec;
use crate::pool::Pool;
use crate::simd::{Kernels, kernels};
use crate::{Isa, RuntimeError};

/// Consecutive rows of a batch that belong to one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The slot whose state the rows use.
    pub slot: usize,
    /// How many rows.
    pub rows: usize,
}

/// Row-major f32 activations of fixed capacity.
#[derive(Clone, Debug)]
pub struct Buffer {
    data: AlignedVec<f32>,
    rows: usize,
    cols: usize,
}

impl Buffer {
    /// Zeros.
    pub fn new(rows: usize, cols: usize) -> Self {
        Self { data: AlignedVec::zeroed(rows * cols), rows, cols }
    }

    /// Gives it another shape, growing only when there is no room; what it holds then means nothing.
    pub fn shape(&mut self, rows: usize, cols: usize) {
        self.data.reserve_zeroed(rows * cols);
        (self.rows, self.cols) = (rows, cols);
    }

    /// Rows it has room for.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// One row.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// One row, to write.
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// The first `rows` rows.
    pub fn head(&self, rows: usize) -> &[f32] {
        &self.data[..rows * self.cols]
    }

    /// The first `rows` rows, to write.
    pub fn head_mut(&mut self, rows: usize) -> &mut [f32] {
        &mut self.data[..rows * self.cols]
    }

    /// Everything.
    pub fn view(&self) -> View<'_> {
        View { buffer: self, cols: 0..self.cols }
    }

    /// Some columns.
    pub fn columns(&self, cols: Range<usize>) -> View<'_> {
        assert!(cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        View { buffer: self, cols }
    }
}

/// Some columns of a buffer.
#[derive(Clone)]
pub struct View<'a> {
    buffer: &'a Buffer,
    cols: Range<usize>,
}

impl View<'_> {
    fn width(&self) -> usize {
        self.cols.len()
    }

    fn stride(&self) -> usize {
        self.buffer.cols
    }

    fn rows(&self) -> usize {
        self.buffer.rows
    }

    fn ptr(&self) -> *const f32 {
        self.buffer.data[self.cols.start..].as_ptr()
    }
}

impl<'a> From<&'a Buffer> for View<'a> {
    fn from(b: &'a Buffer) -> Self {
        b.view()
    }
}

/// A pointer that workers of one op share; each touches its own part.
struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: ops split what they write by worker; see each use.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The pointer (a method, so that closures capture the wrapper).
    fn get(self) -> *mut T {
        self.0
    }
}

/// Scratch memory, grown at the first step and kept.
struct Scratch {
    /// Activations in the form the weights' kernel wants, shared by all workers.
    operand: AlignedVec<u8>,
    /// A row of f32 per worker, for norms before quantisation.
    rows: Vec<AlignedVec<f32>>,
    /// A block of products per worker.
    products: Vec<AlignedVec<f32>>,
    /// Scales of quantised rows.
    scales: AlignedVec<f32>,
    /// Group sums of quantised rows.
    sums: AlignedVec<i32>,
}

/// Runs ops on a team of threads with the kernels of one instruction set.
pub struct Exec {
    pool: Pool,
    kernels: &'static Kernels,
    scratch: Scratch,
}

impl Exec {
    /// An executor with `threads` threads (the caller included) and the best kernels, or `VOCE_CPU`'s.
    pub fn new(threads: usize) -> Result<Self, RuntimeError> {
        Self::with_isa(threads, Isa::from_env()?)
    }

    /// An executor with the kernels of `isa`.
    pub fn with_isa(threads: usize, isa: Isa) -> Result<Self, RuntimeError> {
        if !isa.supported() {
            return Err(RuntimeError::IsaUnsupported(isa));
        }
        let pool = Pool::new(threads)?;
        let scratch = Scratch {
            operand: AlignedVec::zeroed(0),
            rows: (0..threads).map(|_| AlignedVec::zeroed(0)).collect(),
            products: (0..threads).map(|_| AlignedVec::zeroed(0)).collect(),
            scales: AlignedVec::zeroed(0),
            sums: AlignedVec::zeroed(0),
        };
        Ok(Self { pool, kernels: kernels(isa), scratch })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa
    }

    /// Threads per op.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}
