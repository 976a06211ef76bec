//! One stream's recording as one kernel. Where the commands of a recording are products of one row, attention, draws and
//! what lies between them, `plan.rs` turns them into a program of phases, and one launch of `kernels/frame/` runs it.
//! Models record what they always record; what cannot be planned is launched as it is.

mod plan;
mod product;
mod rows;

use std::sync::Arc;

use plan::Plan;

use super::CudaError;
use super::driver::{Address, Command, DeviceInfo, Shape};
use super::memory::{Device, Memory};
use super::program;
use super::queue::Args;

/// Threads of a block: eight warps that compute, one that copies weights, and three that leave their registers to others.
const THREADS: u32 = 384;
/// Bytes of a chunk of weights, and chunks that a ring has at least and at most: as in `block.cuh`.
const CHUNK: usize = 16 << 10;
const FEWEST_SLOTS: usize = 5;
const SLOTS: usize = 12;
/// Kinds of exchanges whose first look is learnt apart from others'.
const NAPS: usize = 32;
/// Shared memory that the kernel has beside what it is launched with.
const FIXED: usize = 4 << 10;
/// Clocks by which a first look comes later where it came too early, and sooner where it did not.
const LATER: u32 = 40;
const SOONER: u32 = 8;

/// Where a row is: `FrameRow` of `block.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Row {
    at: Address,
    area: u32,
    how: u32,
}

/// One phase of a program: `FramePhase` of `block.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub(crate) struct Phase {
    kind: u32,
    nap: u32,
    fly: u32,
    pace: u32,
    w: Address,
    pitch: u32,
    k: u32,
    n: u32,
    gated: u32,
    rows: u32,
    pad: u32,
    norm: Address,
    eps: f32,
    pad_too: u32,
    bias: Address,
    segments: u32,
    ring: u32,
    input: [Row; 2],
    old: [Row; 2],
    out: [Row; 2],
    address: [Address; 6],
    number: [u32; 8],
}

// SAFETY: numbers without padding.
unsafe impl super::Plain for Phase {}

/// Arguments of `frame`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct FrameArgs {
    program: Address,
    exchange: Address,
    epochs: Address,
    naps: Address,
    phases: u32,
    slots: u32,
    x_bytes: u32,
    red_bytes: u32,
    later: u32,
    sooner: u32,
    blank: u32,
    remembers: u32,
}

// SAFETY: fields without padding, as the kernel declares them.
unsafe impl Args for FrameArgs {}

/// A recording of which runs of commands have become one launch each.
pub(super) struct Fused {
    pub commands: Vec<Command>,
    pub args: Vec<u8>,
    /// Programs and what their blocks exchange.
    _memory: Vec<Memory>,
}

/// Blocks of a launch on a device, each on a multiprocessor of its own; none where it has no such launches.
fn blocks(info: &DeviceInfo) -> Option<usize> {
    let largest = 1usize << info.processors.checked_ilog2()?;
    (info.cooperative && info.capability >= (9, 0) && largest >= 32).then_some(largest)
}

/// The recording with its runs fused, if there are any that are worth it.
pub(super) fn fuse(
    device: &Arc<Device>,
    commands: &[Command],
    args: &[u8],
) -> Result<Option<Fused>, CudaError> {
    let Some(blocks) = blocks(device.info()) else { return Ok(None) };
    let plans = plan::plans(commands, args, blocks, device.info().shared as usize);
    for (range, plan) in &plans {
        tracing::debug!(
            ?range,
            of = commands.len(),
            phases = plan.phases.len(),
            "commands become one launch"
        );
    }
    if plans.is_empty() {
        return Ok(None);
    }
    let mut fused = Fused { commands: Vec::new(), args: args.to_vec(), _memory: Vec::new() };
    let mut next = 0;
    for (range, plan) in plans {
        fused.commands.extend_from_slice(&commands[next..range.start]);
        next = range.end;
        let memory = plan.store(device, blocks)?;
        let launch = plan.args(&memory, blocks);
        // SAFETY: `Args` have no padding, so all of their bytes are initialised.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(&launch).cast::<u8>(), size_of::<FrameArgs>())
        };
        let at = fused.args.len().next_multiple_of(16);
        fused.args.resize(at, 0);
        fused.args.extend_from_slice(bytes);
        let shared = (plan.slots * CHUNK + plan.rest) as u32;
        let shape = Shape { grid: [blocks as u32, 1, 1], block: THREADS, shared };
        let kernel = program::FRAME.id();
        device.driver.prepare(kernel)?;
        fused.commands.push(Command::Launch { kernel, shape, args: at, len: bytes.len() });
        fused._memory.push(memory);
    }
    fused.commands.extend_from_slice(&commands[next..]);
    Ok(Some(fused))
}

impl Plan {
    /// Device memory with the program, and zeros for what its blocks exchange.
    fn store(&self, device: &Arc<Device>, blocks: usize) -> Result<Memory, CudaError> {
        let [exchange, epochs, naps, end] = self.places(blocks);
        debug_assert!(exchange <= epochs && epochs <= naps);
        let memory = device.alloc(end)?;
        device.write(memory.at, super::bytes(&self.phases))?;
        Ok(memory)
    }

    /// Where the parts of a program's memory begin, and its end.
    fn places(&self, blocks: usize) -> [usize; 4] {
        let exchange = (self.phases.len() * size_of::<Phase>()).next_multiple_of(256);
        let epochs = (exchange + 4 * self.exchanged).next_multiple_of(256);
        let naps = (epochs + 4 * (blocks + 1)).next_multiple_of(256);
        [exchange, epochs, naps, naps + 4 * blocks * NAPS]
    }

    fn args(&self, memory: &Memory, blocks: usize) -> FrameArgs {
        let [exchange, epochs, naps, _] = self.places(blocks).map(|at| memory.at + at as u64);
        FrameArgs {
            program: memory.at,
            exchange,
            epochs,
            naps,
            phases: self.phases.len() as u32,
            slots: self.slots as u32,
            x_bytes: self.x_bytes as u32,
            red_bytes: self.red_bytes as u32,
            later: LATER,
            sooner: SOONER,
            blank: u32::from(self.blank),
            remembers: u32::from(self.remembers),
        }
    }
}
