//! How a listener is set up.

use std::time::Duration;

use voce_nn::Precision;
use voce_runtime::Isa;

use crate::device::Placement;
use crate::fault::Faults;
use crate::trace::Trace;

/// Streams side by side by default.
const DEFAULT_SLOTS: usize = 8;
/// Streams side by side at most.
pub const MAX_SLOTS: usize = 16_384;

/// How a listener is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenerOptions {
    /// Precision of the weights; what suits the CPU or the device when absent.
    pub precision: Option<Precision>,
    /// Threads; 0 chooses. On a device those of all lanes together, for what the host does.
    pub threads: usize,
    /// Streams that run side by side.
    pub slots: usize,
    /// Model threads that share them, up to [`MAX_LANES`]: 0 chooses two on a device, one on a CPU.
    pub lanes: usize,
    /// Instruction set; the best, or `VOCE_CPU`'s, when absent.
    pub isa: Option<Isa>,
    /// Where the model runs.
    pub device: Placement,
    /// Where to record what the stages do.
    pub trace: Option<Trace>,
    /// Keep each thread on a core of its own, where there are enough.
    pub pin: bool,
    /// A step of an idle model this often keeps its caches and the CPU's clocks warm; none when absent.
    pub keep_warm: Option<Duration>,
    /// Whether soft speech is raised before it is heard, where a request leaves that open, by models that gain by it.
    pub gain: bool,
    /// Faults that tests plant.
    pub faults: Faults,
}

voce_models::setters! { ListenerOptions {
    with_precision(precision: Option<Precision>),
    with_threads(threads: usize),
    with_slots(slots: usize),
    with_lanes(lanes: usize),
    with_isa(isa: Option<Isa>),
    with_device(device: Placement),
    with_trace(trace: Option<Trace>),
    with_pin(pin: bool),
    with_keep_warm(keep_warm: Option<Duration>),
    with_gain(gain: bool),
    with_faults(faults: Faults),
} }

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            precision: None,
            threads: 0,
            slots: DEFAULT_SLOTS,
            lanes: 0,
            isa: None,
            device: Placement::Auto,
            trace: None,
            pin: false,
            keep_warm: None,
            gain: true,
            faults: Faults::default(),
        }
    }
}
