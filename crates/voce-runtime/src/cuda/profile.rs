//! How long kernels and products take, by name: what `Tuning::events` collects.

use std::collections::HashMap;
use std::time::Duration;

use super::driver::{Command, Product, ProductKind};
use super::program;

/// What runs of one kernel, or of one shape of product, took together.
#[derive(Clone, Debug)]
pub struct Timing {
    /// The kernel's name; products tell their format, outputs and inputs.
    pub name: String,
    /// How often it ran.
    pub runs: usize,
    /// Time on the device, gaps before it included.
    pub time: Duration,
    /// Multiply-adds of products; none are counted for kernels.
    pub macs: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Kernel(u16),
    Product { kind: ProductKind, n: u32, k: u32 },
    Copy,
    Zero,
}

#[derive(Default)]
struct Sum {
    runs: usize,
    ms: f64,
    macs: u64,
}

/// Sums by name.
#[derive(Default)]
pub(crate) struct Profile(HashMap<Key, Sum>);

impl Profile {
    pub(super) fn add(&mut self, commands: &[Command], ms: &[f32]) {
        for (command, ms) in commands.iter().zip(ms) {
            let (key, macs) = match command {
                Command::Launch { kernel, .. } => (Key::Kernel(*kernel), 0),
                Command::Product(Product { kind, m, n, k, .. }) => {
                    let macs = u64::from(*m) * u64::from(*n) * u64::from(*k);
                    (Key::Product { kind: *kind, n: *n, k: *k }, macs)
                }
                Command::Copy { .. } => (Key::Copy, 0),
                Command::Zero { .. } => (Key::Zero, 0),
                Command::Note(_) => continue,
            };
            let sum = self.0.entry(key).or_default();
            sum.runs += 1;
            sum.ms += f64::from(*ms);
            sum.macs += macs;
        }
    }

    /// What was collected, the longest first; nothing is left.
    pub(super) fn take(&mut self) -> Vec<Timing> {
        let mut all: Vec<_> = self
            .0
            .drain()
            .map(|(key, sum)| Timing {
                name: match key {
                    Key::Kernel(kernel) => program::KERNELS[kernel as usize].name.to_owned(),
                    Key::Product { kind, n, k } => format!("product {kind:?} {n}x{k}").to_lowercase(),
                    Key::Copy => "copy".to_owned(),
                    Key::Zero => "zero".to_owned(),
                },
                runs: sum.runs,
                time: Duration::from_secs_f64(sum.ms / 1e3),
                macs: sum.macs,
            })
            .collect();
        all.sort_by_key(|t| std::cmp::Reverse(t.time));
        all
    }
}
