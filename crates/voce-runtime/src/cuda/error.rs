//! What can go wrong with a device.

/// Errors of the CUDA backend.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CudaError {
    /// This was built without the feature `cuda`.
    #[error(
        "this was built without the feature cuda: build it with that, or run on the CPU with --device cpu"
    )]
    NotBuilt,
    /// The driver's library cannot be loaded.
    #[error(
        "no NVIDIA driver: libcuda cannot be loaded; install the driver, or run on the CPU with --device cpu"
    )]
    NoDriver,
    /// The driver is too old.
    #[error(
        "the NVIDIA driver is for CUDA {}.{} and {}.{} or later is needed: update it, or use --device cpu",
        found / 1000, found % 1000 / 10, needed / 1000, needed % 1000 / 10
    )]
    OldDriver {
        /// Its version.
        found: u32,
        /// What is needed.
        needed: u32,
    },
    /// There is no such device.
    #[error("no device cuda:{asked}: this machine has {found}")]
    NoDevice {
        /// Which was asked for.
        asked: usize,
        /// How many there are.
        found: usize,
    },
    /// The device is too old for the kernels.
    #[error("{name} has compute capability {}.{}: 8.0 or later is needed", capability.0, capability.1)]
    OldDevice {
        /// Its name.
        name: String,
        /// Its capability.
        capability: (u32, u32),
    },
    /// A library is missing.
    #[error("{name} cannot be loaded: {hint}")]
    NoLibrary {
        /// Which.
        name: &'static str,
        /// Where to get it.
        hint: &'static str,
    },
    /// A kernel does not compile.
    #[error("a kernel does not compile for {arch}:\n{log}")]
    Compile {
        /// For which architecture.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// The device's memory is used up. The call that asked for it fails; the device goes on, and has memory again once
    /// some is freed.
    #[error("no memory on the device for {} MiB more: {} MiB are free; use fewer slots", asked.div_ceil(1 << 20), free >> 20)]
    OutOfMemory {
        /// Bytes asked for; 0 when the driver does not say.
        asked: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The device does not know this storage format.
    #[error("{0} weights have no kernels on CUDA: use bf16, fp8, int8 or f32")]
    Format(&'static str),
    /// The device has no products of fp8.
    #[error(
        "{0} does not multiply fp8, GPUs of compute capability 8.9 and later do: use --precision int8 or bf16"
    )]
    NoFp8(String),
    /// A call failed.
    #[error("{call}: {message}")]
    Failed {
        /// Which call.
        call: &'static str,
        /// The driver's words.
        message: String,
    },
    /// The device does not work any more, and will not in this process.
    #[error("the GPU is lost ({call}: {message}): start this program again; the kernel log tells more")]
    Lost {
        /// The call that found out.
        call: &'static str,
        /// The driver's words.
        message: String,
    },
}

impl CudaError {
    /// Whether memory was lacking: the same may work later, or with fewer slots.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. })
    }

    /// Whether the blocks of a launch cannot all be on the device at once.
    pub(super) fn is_for_want_of_room(&self) -> bool {
        matches!(self, Self::Failed { message, .. } if message.contains("cooperative launch"))
    }

    /// Whether the device is lost: nothing but a new process brings it back.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// The same as the end of a device.
    pub(super) fn into_lost(self) -> Self {
        match self {
            Self::Lost { .. } => self,
            Self::Failed { call, message } => Self::Lost { call, message },
            other => Self::Lost { call: "device", message: other.to_string() },
        }
    }
}
