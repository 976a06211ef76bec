//! What ops need of a device's memory, asked for before a stream begins instead of in the middle of one.

use super::Exec;
use crate::cuda::{CudaError, Reserved};
use crate::matrix::{Format, Matrix};
use crate::memory::WeightArena;

impl Exec {
    /// Whether ops still run; to be asked once a step. After an error they do nothing, and what is fetched is zeros.
    ///
    /// [`CudaError::is_lost`]: nothing runs on the device any more. [`CudaError::is_out_of_memory`]: an op of this
    /// executor found no memory; others on the device go on, and this one does after [`Exec::recover`]. A CPU always works.
    pub fn status(&self) -> Result<(), CudaError> {
        self.cuda.as_ref().map_or(Ok(()), |c| c.status())
    }

    /// Goes on after lack of memory. None of the ops since the last flush has run: streams that took part have to end, and
    /// their slots have to be reset. An error if the device is lost.
    pub fn recover(&mut self) -> Result<(), CudaError> {
        self.cuda.as_mut().map_or(Ok(()), |c| c.recover())
    }

    /// Whether what is fetched was computed: not after an error, nor in a rehearsal. Loops that go on until a result says
    /// otherwise have to ask.
    pub fn delivers(&self) -> bool {
        self.cuda.as_ref().is_none_or(|c| c.delivers())
    }

    /// Packs weights that are made in a step into an [`Exec::arena`] of this executor. Lack of memory for them is the
    /// executor's error, as it is for ops.
    pub fn pack(
        &mut self,
        arena: &WeightArena,
        format: Format,
        n: usize,
        k: usize,
        weights: &[f32],
    ) -> Matrix {
        let rehearses = self.cuda.as_ref().is_some_and(|cuda| cuda.rehearses());
        assert!(!rehearses, "weights are made of results, and a rehearsal has none");
        Matrix::pack(arena, format, n, k, weights).unwrap_or_else(|e| {
            let cuda = self.cuda.as_mut().expect("only devices lack memory");
            Matrix::on_device(format, n, k, cuda.lacks_matrix(format, k, e))
        })
    }

    /// Gives everything that `ops` use its memory on the device, and runs none of them: with the largest step that can
    /// come, no later one has to ask for more; with two of them, where buffers change places from step to step. What is
    /// read back meanwhile is zeros, and what a state held is lost: no stream may be live, and slots that took part are to
    /// be reset.
    ///
    /// Where memory is lacking the rehearsal goes on and counts what is missing ([`Reserved::check`]); this executor and
    /// the device stay as they were. CPUs, which take memory as they go, skip `ops`.
    pub fn rehearse(&mut self, ops: impl FnOnce(&mut Self)) -> Result<Reserved, CudaError> {
        let Some(cuda) = &mut self.cuda else { return Ok(Reserved::default()) };
        cuda.rehearsal_begins()?;
        ops(self);
        self.cuda.as_mut().map_or(Ok(Reserved::default()), |cuda| cuda.rehearsal_ends())
    }
}
