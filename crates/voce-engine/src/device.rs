//! Which device a model runs on.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, Weak};

use voce_nn::{Formats, Loader, Precision};
use voce_runtime::cuda::{self, CudaError, Device, Reserved, Tuning};
use voce_runtime::{Exec, Isa};

use crate::EngineError;
use crate::wake::lock;

/// A wish for a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU if there is one that works, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
}

/// A device name that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is no device: use auto, cpu, cuda or cuda:N")]
pub struct UnknownDevice(String);

impl FromStr for DeviceChoice {
    type Err = UnknownDevice;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            other => other
                .strip_prefix("cuda:")
                .and_then(|n| n.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| UnknownDevice(other.to_owned())),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

impl DeviceChoice {
    /// The device, or none for the CPU. What was asked for by name must work; `auto` says in the log why it did not.
    pub fn open(self) -> Result<Option<Arc<Device>>, EngineError> {
        match self {
            Self::Cpu => Ok(None),
            Self::Cuda(n) => Ok(Some(shared(n)?)),
            Self::Auto => match cuda::devices().and_then(|_| shared(0)) {
                Ok(device) => Ok(Some(device)),
                Err(CudaError::NoDriver) => Ok(None),
                Err(e) => {
                    tracing::warn!("the GPU is not used: {e}");
                    Ok(None)
                }
            },
        }
    }
}

/// Where a model is to run, as options say it.
#[derive(Clone, Debug, Default)]
pub enum Placement {
    /// The first GPU if there is one that works, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
    /// A device that is open.
    On(Arc<Device>),
}

impl From<DeviceChoice> for Placement {
    fn from(choice: DeviceChoice) -> Self {
        match choice {
            DeviceChoice::Auto => Self::Auto,
            DeviceChoice::Cpu => Self::Cpu,
            DeviceChoice::Cuda(number) => Self::Cuda(number),
        }
    }
}

impl From<Option<Arc<Device>>> for Placement {
    fn from(device: Option<Arc<Device>>) -> Self {
        device.map_or(Self::Cpu, Self::On)
    }
}

impl From<Arc<Device>> for Placement {
    fn from(device: Arc<Device>) -> Self {
        Self::On(device)
    }
}

/// Devices that are open, by their numbers: models of one process share them.
static OPEN: Mutex<Vec<(usize, Weak<Device>)>> = Mutex::new(Vec::new());

fn shared(number: usize) -> Result<Arc<Device>, CudaError> {
    let mut open = lock(&OPEN);
    open.retain(|(_, d)| d.strong_count() > 0);
    if let Some(device) = open.iter().find(|(n, _)| *n == number).and_then(|(_, d)| d.upgrade()) {
        return Ok(device);
    }
    if cuda::must_compile(number) {
        // Whoever waits should know what for.
        tracing::warn!(
            "compiling kernels for GPU {number}, once: up to a minute of one core, on all cores (docs/cuda.md tells how to ship them)"
        );
    }
    let device = Device::open(number)?;
    device.tune(Tuning { tf32: true, ..Tuning::default() });
    open.push((number, Arc::downgrade(&device)));
    Ok(device)
}

/// Where a model's weights go and its ops run.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub device: Option<Arc<Device>>,
    pub isa: Isa,
}

impl Place {
    pub(crate) fn new(placement: &Placement, isa: Option<Isa>) -> Result<Self, EngineError> {
        let device = match placement {
            Placement::Auto => DeviceChoice::Auto.open()?,
            Placement::Cpu => None,
            Placement::Cuda(number) => DeviceChoice::Cuda(*number).open()?,
            Placement::On(device) => Some(device.clone()),
        };
        Ok(Self { device, isa: Isa::chosen(isa)? })
    }

    /// The precision that was asked for, or what `auto` stands for here.
    pub(crate) fn precision(&self, asked: Option<Precision>) -> Precision {
        asked.unwrap_or_else(|| crate::auto_precision(self.device.is_some(), self.isa).0)
    }

    /// The formats of a precision here.
    pub(crate) fn formats(&self, precision: Precision) -> Result<Formats, EngineError> {
        match &self.device {
            None if precision == Precision::Fp8 => Err(EngineError::NoFp8),
            None => Ok(Formats::new(precision, self.isa)),
            Some(device) if precision == Precision::Fp8 && !device.info().has_fp8() => {
                Err(CudaError::NoFp8(device.info().name.clone()).into())
            }
            Some(_) if precision == Precision::Int4 => Err(CudaError::Format("int4").into()),
            Some(_) => Ok(Formats::on_device(precision)),
        }
    }

    /// The same loader to here.
    pub(crate) fn loader(&self, loader: Loader) -> Loader {
        match &self.device {
            Some(device) => loader.on(device.clone()),
            None => loader,
        }
    }

    /// An executor; `threads` are those of a CPU, and `first` is whether it goes before others on a device.
    pub(crate) fn exec_with(&self, threads: usize, first: bool) -> Result<Exec, EngineError> {
        Ok(match &self.device {
            Some(device) => Exec::on_with(device, first)?,
            None => Exec::with_isa(threads, self.isa)?,
        })
    }

    /// An executor like any other; `threads` are those of a CPU.
    pub(crate) fn exec(&self, threads: usize) -> Result<Exec, EngineError> {
        self.exec_with(threads, false)
    }
}

/// Whether everything that `slots` slots need has its memory; the error says how many would.
pub(crate) fn has_room(reserved: Reserved, slots: usize) -> Result<(), EngineError> {
    let each = (reserved.given + reserved.missing) / slots.max(1);
    match reserved.missing {
        0 => Ok(()),
        _ => Err(EngineError::NoRoom { slots, fit: reserved.fit(slots), each }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_say_so() {
        for name in ["auto", "cpu", "cuda:0", "cuda:7"] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap().to_string(), name);
        }
        assert_eq!("cuda".parse::<DeviceChoice>().unwrap(), DeviceChoice::Cuda(0));
        for name in ["gpu", "cuda:", "cuda:x", ""] {
            assert!(name.parse::<DeviceChoice>().unwrap_err().to_string().contains("cuda:N"));
        }
    }

    #[test]
    fn a_device_says_how_many_slots_would_fit() {
        let reserved = |missing| Reserved { given: 10 << 20, missing, free: 0 };
        assert!(has_room(reserved(0), 10).is_ok());
        let message = has_room(reserved(1 << 20), 11).unwrap_err().to_string();
        assert!(message.contains("11 slots of 1024 KiB: 10 would fit"), "{message}");
    }

    #[test]
    fn four_bits_are_refused_on_a_gpu_and_the_cpu_is_always_there() {
        assert!(DeviceChoice::Cpu.open().unwrap().is_none());
        let place = Place::new(&Placement::Cpu, Some(Isa::best())).unwrap();
        let scalar = Place::new(&Placement::Cpu, Some(Isa::Scalar)).unwrap();
        assert_eq!(scalar.precision(None), Precision::Bf16);
        assert_eq!(place.precision(None), Precision::auto(Isa::best()).0);
        assert_eq!(place.precision(Some(Precision::F32)), Precision::F32);
        assert!(place.formats(Precision::Int4).is_ok());
    }
}
