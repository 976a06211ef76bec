//! What can go wrong below the models.

use crate::Isa;

/// Errors of the runtime: all of them at set-up, none inside a step.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// `VOCE_CPU` holds a name that is not an instruction set.
    #[error(
        "unknown instruction set '{0}': use scalar; on ARM neon, dotprod or i8mm; on x86 avx2, avxvnni, avx512bw, avx512 or amx"
    )]
    UnknownIsa(String),
    /// `VOCE_CPU` asks for something this CPU lacks.
    #[error("this CPU has no {0}: unset VOCE_CPU or choose one that `voce doctor` lists")]
    IsaUnsupported(Isa),
    /// A thread count of zero or beyond the limit.
    #[error("{0} threads: use 1 to {max}", max = crate::pool::MAX_THREADS)]
    Threads(usize),
    /// The operating system refused to start a thread.
    #[error("cannot start a worker thread: {0}")]
    Spawn(#[source] std::io::Error),
    /// A GPU cannot be used.
    #[error(transparent)]
    Cuda(#[from] crate::cuda::CudaError),
}

impl RuntimeError {
    /// Whether a device's memory was lacking: the same may work later, or with fewer slots.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Cuda(e) if e.is_out_of_memory())
    }

    /// Whether a device is lost: nothing but a new process brings it back.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Cuda(e) if e.is_lost())
    }
}
