//! What can go wrong below the models.

use crate::Isa;

/// Errors of the runtime: all of them at set-up, none inside a step.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// `VOCE_CPU` holds a name that is not an instruction set.
    #[error("unknown instruction set '{0}': use scalar, avx2, avx512 or amx")]
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
