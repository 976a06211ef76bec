//! `--device` and the switches that go with it.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use voce_engine::DeviceChoice;
use voce_nn::Precision;
use voce_runtime::Isa;
use voce_runtime::cuda::{Device, Tuning};

use crate::args::PrecisionArg;
use crate::failure::Failure;

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Yes
    #[value(alias = "true")]
    On,
    /// No
    #[value(alias = "false")]
    Off,
}

/// Where a model runs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceArgs {
    /// Where the model runs: auto (the first NVIDIA GPU, if there is one), cpu, cuda or cuda:N
    #[arg(long, env = "VOCE_DEVICE", default_value = "auto")]
    pub(crate) device: DeviceChoice,
    /// Whether f32 products on a GPU may round their factors to TF32
    #[arg(long, env = "VOCE_TF32", value_enum, default_value = "on", hide_possible_values = true)]
    pub(crate) tf32: Switch,
    /// Whether steps that repeat on a GPU are captured into graphs
    #[arg(long, env = "VOCE_CUDA_GRAPHS", value_enum, default_value = "on", hide_possible_values = true)]
    pub(crate) cuda_graphs: Switch,
    /// Whether one stream's frame is one kernel on GPUs of compute capability 9 and later: faster for one stream, while
    /// whatever else runs on the GPU waits for whole frames
    #[arg(long, env = "VOCE_CUDA_FRAMES", value_enum, default_value = "off", hide_possible_values = true)]
    pub(crate) cuda_frames: Switch,
    /// Whether each kernel on a GPU is timed, for `voce bench`; without graphs, and slower
    #[arg(long, env = "VOCE_CUDA_EVENTS", value_enum, default_value = "off", hide_possible_values = true)]
    pub(crate) cuda_events: Switch,
}

impl DeviceArgs {
    /// The device, or none for the CPU.
    pub(crate) fn open(&self) -> Result<Option<Arc<Device>>, Failure> {
        let device = self.device.open()?;
        if let Some(device) = &device {
            let events = self.cuda_events == Switch::On;
            device.tune(Tuning { events, ..tuning(self.tf32, self.cuda_graphs, self.cuda_frames) });
        }
        Ok(device)
    }
}

/// What the switches of commands and of the server mean; kernels are not timed.
pub(crate) fn tuning(tf32: Switch, graphs: Switch, frames: Switch) -> Tuning {
    let on = |switch| switch == Switch::On;
    Tuning { tf32: on(tf32), graphs: on(graphs), frames: on(frames), events: false }
}

/// What a precision means on a device.
pub(crate) fn precision(arg: PrecisionArg, device: Option<&Arc<Device>>) -> Precision {
    match arg {
        PrecisionArg::Auto => {
            // A VOCE_CPU that cannot be used is refused where the model opens.
            let isa = Isa::from_env().unwrap_or_else(|_| Isa::best());
            voce_engine::auto_precision(device.is_some(), isa).0
        }
        arg => arg.into(),
    }
}
