//! Events of the NVIDIA driver: places in a stream, and the times between them.

use cudarc::driver::sys as cu;

use super::CudaError;
use super::nvidia::check;

/// Events that mark places in a stream.
#[derive(Default)]
pub(super) struct Events(Vec<cu::CUevent>);

impl Events {
    pub(super) fn make(&mut self) -> Result<cu::CUevent, CudaError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for the result.
        check("cuEventCreate", unsafe { cu::cuEventCreate(&mut event, 0) })?;
        self.0.push(event);
        Ok(event)
    }

    /// Milliseconds from each to the next, after the stream was waited for.
    pub(super) fn elapsed(&self) -> Result<Vec<f32>, CudaError> {
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

/// Events of a stream, each by the number of its moment.
#[derive(Default)]
pub(super) struct Moments {
    events: Events,
    /// Which of them were noted: times are asked of those alone.
    noted: Vec<bool>,
}

impl Moments {
    pub(super) fn make(&mut self) -> Result<(), CudaError> {
        self.events.make()?;
        self.noted.push(false);
        Ok(())
    }

    /// The event of a moment.
    pub(super) fn get(&self, moment: usize) -> Option<cu::CUevent> {
        self.events.0.get(moment).copied()
    }

    /// The event of a moment that was noted.
    pub(super) fn get_noted(&self, moment: usize) -> Option<cu::CUevent> {
        self.get(moment).filter(|_| self.noted[moment])
    }

    /// From now on the moment has a time.
    pub(super) fn note(&mut self, moment: usize) {
        self.noted[moment] = true;
    }
}
