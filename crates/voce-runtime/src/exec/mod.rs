//! `Exec`: what a model issues its ops into, one per stage thread.

mod attend;
mod attended;
mod attention;
mod buffer;
mod capabilities;
mod conv;
mod conv_staging;
mod cross_attention;
mod depthwise;
mod guide;
mod head_norm;
mod kv_cache;
mod linear;
mod lstm;
mod mel;
mod philox;
mod pointwise;
mod product_rows;
mod relative_attention;
mod residual;
mod room;
mod rows;
mod sampling;
mod select;
mod slots;
mod snake;
mod staging;
mod subsample;
mod table;
mod tokens;
pub mod transducer;

pub(crate) use attended::AttendedSet;
pub use attended::{Attended, AttentionKind, AttentionShape};
pub use attention::{AttentionOp, Rope, RopeStyle};
pub use buffer::{Buffer, Vector, View};
pub use conv::{ConvOp, ConvState, ConvStateSpec, UpsampleOp};
pub use cross_attention::CrossAttentionOp;
pub use depthwise::DepthwiseOp;
pub use guide::Guide;
pub use head_norm::{HeadNormOp, HeadNorms};
pub use kv_cache::{KvCache, KvFormat, KvIndex, KvSpec, MAX_POSITION};
pub use linear::{Gate, LinearOp, Modulation, Norm};
pub use lstm::{AddReluOp, LstmCellOp};
pub use mel::{MelFilters, MelOp, MelSpan};
pub use pointwise::RowNorm;
pub(crate) use product_rows::Pending;
pub use product_rows::{Input, Output, ProductRows, Target};
pub use relative_attention::{ChunkSpan, RelativeAttentionOp, RelativePositions};
pub use residual::ResidualOp;
pub use rows::{NO_ROW, RowList};
pub use sampling::{MAX_SAMPLED, SampleOp, SampleRow, SampledRows, Sampling};
pub use select::{Candidate, Choice, Confidence, MAX_TOP_K};
pub use snake::Snake;
pub use staging::Staging;
pub use subsample::{FrameSpan, SubsampleOp, SubsampleSpec, SubsampleState};
pub use table::{EmbedOp, EmbedPart, EveryRow, Table};
pub use tokens::{BranchOp, SentTokens, TokenMove, Tokens};

use std::sync::Arc;
use std::time::Duration;

use crate::cuda::{Cuda, Device};
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
    /// Rows of a convolution, quantised.
    quantised: AlignedVec<u8>,
    /// Scales of quantised rows.
    scales: AlignedVec<f32>,
    /// Group sums of quantised rows.
    sums: AlignedVec<i32>,
    marks: slots::Marks,
}

impl Scratch {
    /// Of a team of `threads`.
    fn new(threads: usize) -> Self {
        Self {
            operand: AlignedVec::zeroed(0),
            rows: (0..threads).map(|_| AlignedVec::zeroed(0)).collect(),
            products: (0..threads).map(|_| AlignedVec::zeroed(0)).collect(),
            quantised: AlignedVec::zeroed(0),
            scales: AlignedVec::zeroed(0),
            sums: AlignedVec::zeroed(0),
            marks: slots::Marks::default(),
        }
    }
}

/// Runs ops on a team of threads with the kernels of one instruction set.
pub struct Exec {
    pool: Pool,
    kernels: &'static Kernels,
    scratch: Scratch,
    /// Where ops go instead, when the executor is one of a device.
    cuda: Option<Box<Cuda>>,
    /// Attention that threads have run.
    attended: AttendedSet,
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
        Ok(Self {
            pool: Pool::new(threads)?,
            kernels: kernels(isa),
            scratch: Scratch::new(threads),
            cuda: None,
            attended: AttendedSet::default(),
        })
    }

    /// An executor of a device.
    pub fn on(device: &Arc<Device>) -> Result<Self, RuntimeError> {
        Self::on_with(device, false)
    }

    /// An executor of a device, whose ops go before those of others when both wait there: `first` is for chains of
    /// small ops that others depend on.
    pub fn on_with(device: &Arc<Device>, first: bool) -> Result<Self, RuntimeError> {
        let cuda = Cuda::new(device.clone(), first)?;
        Ok(Self { cuda: Some(Box::new(cuda)), ..Self::new(1)? })
    }

    /// The same with another number of threads. An executor of a device begins with one, for what [`Exec::together`] is
    /// given.
    pub fn with_threads(self, threads: usize) -> Result<Self, RuntimeError> {
        // Scratch is by thread.
        Ok(Self { pool: Pool::new(threads)?, scratch: Scratch::new(threads), ..self })
    }

    /// Runs `job(share)` on every thread, side by side, with the thread's number: for work of the host between ops.
    pub fn together(&mut self, job: impl Fn(usize) + Sync) {
        self.pool.run(job);
    }

    /// The device that ops run on, if it is not the CPU. Models ask what it can do instead (`capabilities.rs`).
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.cuda.as_ref().map(|c| c.device())
    }

    /// Brings rows that ops have written back to the host, where `row` and `head` can be read.
    pub fn fetch(&mut self, buffer: &mut Buffer, rows: usize) {
        if let Some(cuda) = &mut self.cuda {
            cuda.fetch(buffer, rows);
        }
    }

    /// Notes the time at which a device has run all ops so far, as its moment of this number (0 to 3); CPUs note nothing.
    pub fn note(&mut self, moment: usize) {
        if let Some(cuda) = &mut self.cuda {
            cuda.note(moment);
        }
    }

    /// Time between two moments, known once a later result was fetched; none on a CPU.
    pub fn between(&self, from: usize, to: usize) -> Option<Duration> {
        self.cuda.as_ref().and_then(|cuda| cuda.between(from, to))
    }

    /// While this is on, [`Exec::begin`] does nothing: a device begins when a result is asked for, or with [`Exec::finish`].
    pub fn hold_back(&mut self, on: bool) {
        if let Some(cuda) = &mut self.cuda {
            cuda.held = on;
        }
    }

    /// Lets a device begin with the ops so far, and does not wait for it.
    pub fn begin(&mut self) {
        if let Some(cuda) = &mut self.cuda {
            cuda.begin();
        }
    }

    /// Another executor of the same device, to run ops beside this one's; none where threads run them.
    pub fn beside(&self) -> Result<Option<Self>, RuntimeError> {
        self.device().map(Self::on).transpose()
    }

    /// Ops from now on run after all ops of another executor of the device so far; the host does not wait. On a CPU an
    /// op has run when its call returns.
    pub fn follow(&mut self, other: &mut Self) {
        if let (Some(cuda), Some(other)) = (&mut self.cuda, &mut other.cuda) {
            cuda.follow(other);
        }
    }

    /// Takes over the lack of memory of an executor that works for this one: it becomes this one's [`Exec::status`], and
    /// the other goes on.
    pub fn take_failure(&mut self, other: &mut Self) {
        if let (Some(cuda), Some(other)) = (&mut self.cuda, &mut other.cuda) {
            cuda.take_failure(other);
        }
    }

    /// Waits until every op has run.
    pub fn finish(&mut self) {
        if let Some(cuda) = &mut self.cuda {
            cuda.finish();
        }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa
    }

    /// Threads per op, or for the host's own part where a device runs ops.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}
