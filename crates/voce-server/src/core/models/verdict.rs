//! Which failures a process cannot mend by itself, so that a supervisor must start it again.

use voce_engine::EngineError;

/// Why the process must end: what no reopening cures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Incurable(pub(crate) String);

impl Incurable {
    /// The verdict on an error of opening a model. The driver gives every later call the same error once a kernel has
    /// failed on a device; lack of memory passes.
    pub(super) fn of(error: &EngineError) -> Option<Self> {
        let is_lost = matches!(error, EngineError::Runtime(e) if e.is_lost());
        is_lost.then(|| Self(error.to_string()))
    }

    /// The verdict on a step that hangs on a device.
    pub(super) fn hung(model: &str) -> Self {
        Self(format!("a step of {model} hangs on its device"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voce_runtime::cuda::CudaError;

    #[test]
    fn memory_comes_back_and_a_lost_device_does_not() {
        let lost = CudaError::Lost { call: "cuLaunchKernel", message: "unspecified".into() };
        assert!(Incurable::of(&lost.into()).is_some());
        for curable in [
            CudaError::OutOfMemory { asked: 1, free: 0 }.into(),
            CudaError::Failed { call: "cuMemAlloc", message: "unspecified".into() }.into(),
            EngineError::NoRoom { slots: 2, fit: 1, each: 1 },
            EngineError::Stopped("it was closed".into()),
        ] {
            assert_eq!(Incurable::of(&curable), None);
        }
    }
}
