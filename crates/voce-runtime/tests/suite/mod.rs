//! What op tests share: random values, error measure, every executor of this CPU.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::sync::Arc;

use voce_runtime::cuda::Device;
use voce_runtime::{Buffer, Exec, Format, Isa, Vector, WeightArena};

/// A small deterministic generator of values in -1..1.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }

    pub fn vector(&mut self, n: usize) -> Vector {
        self.vec(n).into()
    }

    pub fn buffer(&mut self, rows: usize, cols: usize) -> Buffer {
        let mut b = Buffer::new(rows, cols);
        b.head_mut(rows).copy_from_slice(&self.vec(rows * cols));
        b
    }
}

pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| v as f64).collect()
}

/// Largest difference relative to the largest expected magnitude.
pub fn error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1e-9f64, |m, v| m.max(v.abs()));
    got.iter().zip(want).map(|(&g, w)| (g as f64 - w).abs()).fold(0.0, f64::max) / scale
}

/// Every executor there is: each instruction set with one and with several threads, and the CUDA kernels on the
/// emulated device. With `VOCE_TEST_GPU` set: the GPU alone; with `VOCE_TEST_CPU`: the instruction sets alone.
pub fn each_exec(mut f: impl FnMut(&mut Exec, &str)) {
    if !on_gpu() {
        each_cpu(&mut f);
    }
    for (device, name) in devices() {
        let mut exec = Exec::on(&device).unwrap();
        f(&mut exec, name);
        exec.finish();
        exec.status().unwrap();
    }
}

/// The devices to test on.
#[allow(clippy::print_stderr)] // what is left out is named
pub fn devices() -> Vec<(Arc<Device>, &'static str)> {
    if on_gpu() {
        vec![(Device::open(0).unwrap(), "cuda")]
    } else if std::env::var_os("VOCE_TEST_CPU").is_some() {
        eprintln!("skipped: the emulated device (VOCE_TEST_CPU is set)");
        Vec::new()
    } else {
        vec![(Device::emulated().unwrap(), "emulated")]
    }
}

/// Whether the tests are to run on a GPU.
fn on_gpu() -> bool {
    std::env::var_os("VOCE_TEST_GPU").is_some()
}

/// Where an executor's weights go.
pub fn arena(exec: &Exec) -> WeightArena {
    exec.arena()
}

/// The formats an executor has kernels for.
pub fn formats(exec: &Exec) -> &'static [Format] {
    if exec.device().is_some() {
        &[Format::F32, Format::Bf16, Format::Int8, Format::Fp8]
    } else {
        &Format::ON_CPU
    }
}

pub fn each_cpu(mut f: impl FnMut(&mut Exec, &str)) {
    for isa in Isa::available() {
        for threads in [1, 3] {
            let mut exec = Exec::with_isa(threads, isa).unwrap();
            f(&mut exec, &format!("{isa} x{threads}"));
        }
    }
}
