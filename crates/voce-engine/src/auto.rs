//! What `auto` stands for on this machine, and why.

use voce_nn::Precision;
use voce_runtime::Isa;
use voce_runtime::cuda::{self, CudaError, DeviceInfo};

use crate::DeviceChoice;

/// The choices that `auto` makes, with a reason each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auto {
    /// The device, by number where it is a GPU.
    pub device: DeviceChoice,
    /// Why that one.
    pub device_reason: String,
    /// The precision of the weights there.
    pub precision: Precision,
    /// Why that one.
    pub precision_reason: &'static str,
}

/// The precision that `auto` stands for, on a GPU or on a CPU with an instruction set, and why.
pub fn auto_precision(on_gpu: bool, isa: Isa) -> (Precision, &'static str) {
    if on_gpu {
        (Precision::Bf16, "tensor cores multiply it at full rate and the weights lose nothing")
    } else {
        Precision::auto(isa)
    }
}

/// What `auto` chooses here, with this instruction set where it is the CPU; no device is opened, so one that is chosen may
/// still fail to open.
pub fn auto(isa: Isa) -> Auto {
    choose(cuda::devices(), isa)
}

fn choose(devices: Result<Vec<DeviceInfo>, CudaError>, isa: Isa) -> Auto {
    let (device, device_reason) = match devices {
        Ok(gpus) => match gpus.first() {
            Some(first) => (DeviceChoice::Cuda(0), format!("{first} is the first GPU of {}", gpus.len())),
            None => (DeviceChoice::Cpu, "there is no NVIDIA GPU".to_owned()),
        },
        Err(CudaError::NoDriver) => (DeviceChoice::Cpu, "there is no NVIDIA driver".to_owned()),
        Err(error) => (DeviceChoice::Cpu, format!("the GPU cannot be used: {error}")),
    };
    let (precision, precision_reason) = auto_precision(device != DeviceChoice::Cpu, isa);
    Auto { device, device_reason, precision, precision_reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_gpu_is_chosen_and_a_reason_given() {
        let gpu = |name: &str| DeviceInfo {
            name: name.to_owned(),
            capability: (9, 0),
            processors: 132,
            memory: 80 << 30,
            shared: 0,
            driver: 12_000,
            cooperative: true,
        };
        let two = choose(Ok(vec![gpu("A"), gpu("B")]), Isa::Scalar);
        assert_eq!((two.device, two.precision), (DeviceChoice::Cuda(0), Precision::Bf16));
        assert!(two.device_reason.contains("A (sm_90, 80 GiB)") && two.device_reason.contains("of 2"));
        for (devices, reason) in [
            (Ok(Vec::new()), "no NVIDIA GPU"),
            (Err(CudaError::NoDriver), "no NVIDIA driver"),
            (Err(CudaError::NoDevice { asked: 0, found: 0 }), "cannot be used: no device cuda:0"),
        ] {
            let chosen = choose(devices, Isa::Avx2);
            assert_eq!((chosen.device, chosen.precision), (DeviceChoice::Cpu, Precision::Int8));
            assert!(chosen.device_reason.contains(reason), "{}", chosen.device_reason);
        }
    }
}
