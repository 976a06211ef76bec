//! What happens when a device has no memory left: whoever asked for it is told, and nobody else notices.
//!
//! The device is emulated, with as much memory as a test gives it.

mod suite;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use suite::Rng;
use voce_runtime::cuda::{CudaError, Device};
use voce_runtime::{
    AttentionOp, Buffer, ConvOp, ConvState, ConvStateSpec, Exec, Format, KvCache, KvFormat, KvSpec, LinearOp,
    Matrix, RuntimeError, Span, WeightArena,
};

const MIB: u64 = 1 << 20;
const DIM: usize = 64;
const HEAD: usize = 32;
const QKV: usize = 3 * DIM;

/// A device with this many bytes, and the number to change.
fn device(bytes: u64) -> (Arc<Device>, Arc<AtomicU64>) {
    let memory = Arc::new(AtomicU64::new(bytes));
    (Device::emulated_with(memory.clone()).unwrap(), memory)
}

/// Leaves nothing beyond what is in use.
fn fill(device: &Device, memory: &AtomicU64) {
    let (free, total) = device.memory().unwrap();
    memory.store(total - free, Ordering::SeqCst);
}

/// The smallest model that has all that models have: weights, constants, keys and values, past rows, host input.
struct Model {
    qkv: Matrix,
    conv: Matrix,
}

struct State {
    cache: KvCache,
    past: ConvState,
    buffers: [Buffer; 4],
}

impl Model {
    fn load(device: &Arc<Device>) -> Result<Self, CudaError> {
        let (arena, mut rng) = (WeightArena::on(device.clone()), Rng(7));
        let qkv = Matrix::pack(&arena, Format::Bf16, QKV, DIM, &rng.vec(QKV * DIM))?;
        Ok(Self { qkv, conv: Matrix::pack(&arena, Format::Bf16, DIM, 3 * DIM, &rng.vec(3 * DIM * DIM))? })
    }

    fn state(&self, slots: usize) -> State {
        let spec = KvSpec {
            layers: 1,
            slots,
            kv_heads: DIM / HEAD,
            head_dim: HEAD,
            capacity: 512,
            format: KvFormat::Bf16,
        };
        let past = ConvStateSpec { slots, history: 2, channels: DIM, replicate: false };
        State {
            cache: KvCache::new(spec),
            past: ConvState::new(past),
            buffers: [DIM, QKV, DIM, DIM].map(|cols| Buffer::new(1, cols)),
        }
    }

    /// A step of some rows of the first slots; gives the first row.
    fn step(&self, exec: &mut Exec, state: &mut State, slots: usize, rows: usize) -> Vec<f32> {
        let spans: Vec<Span> = (0..slots).map(|slot| Span { slot, rows }).collect();
        let all = slots * rows;
        let [x, qkv, attended, out] = &mut state.buffers;
        x.shape(all, DIM);
        x.head_mut(all).copy_from_slice(&Rng(11).vec(all * DIM));
        qkv.shape(all, QKV);
        attended.shape(all, DIM);
        out.shape(all, DIM);
        exec.linear(&LinearOp::new(&*x, all, &self.qkv), qkv);
        let attention = AttentionOp {
            qkv,
            spans: &spans,
            cache: &mut state.cache,
            layer: 0,
            heads: DIM / HEAD,
            window: None,
            norms: None,
            rope: None,
        };
        exec.attention(attention, attended);
        spans.iter().for_each(|s| state.cache.advance(s.slot, s.rows));
        let op = ConvOp {
            x: attended,
            spans: &spans,
            pre: voce_runtime::Activation::None,
            w: &self.conv,
            bias: None,
            taps: 3,
            stride: 1,
            dilation: 1,
            act: voce_runtime::Activation::Silu,
            add: false,
        };
        exec.conv(&op, &mut state.past, out);
        exec.fetch(out, all);
        out.row(0).to_vec()
    }
}

impl State {
    fn reset(&mut self) {
        for slot in 0..self.cache.spec().slots {
            self.cache.reset(slot);
            self.past.reset(slot);
        }
    }
}

/// What a step gives where memory is plenty.
fn expected(slots: usize, rows: usize) -> Vec<f32> {
    let (device, _) = device(256 * MIB);
    let model = Model::load(&device).unwrap();
    model.step(&mut Exec::on(&device).unwrap(), &mut model.state(slots), slots, rows)
}

#[test]
fn an_op_without_memory_fails_its_executor_and_no_other() {
    let (device, memory) = device(64 * MIB);
    let model = Model::load(&device).unwrap();
    let (mut one, mut other) = (Exec::on(&device).unwrap(), Exec::on(&device).unwrap());
    let mut state = model.state(2);
    let want = expected(2, 1);
    assert_eq!(model.step(&mut one, &mut state, 2, 1), want);
    let mut large = model.state(4096);
    let zeros = model.step(&mut other, &mut large, 4096, 1);
    let error = other.status().unwrap_err();
    assert!(matches!(error, CudaError::OutOfMemory { asked, .. } if asked > 64 * MIB), "{error}");
    assert!(error.is_out_of_memory() && !error.is_lost() && RuntimeError::from(error).is_out_of_memory());
    assert!(!other.delivers() && zeros.iter().all(|&v| v == 0.0));
    // The device and the other executor know nothing of it.
    device.status().unwrap();
    one.status().unwrap();
    state.reset();
    assert_eq!(model.step(&mut one, &mut state, 2, 1), want);
    // Until it recovers the one that failed does nothing, memory or not.
    memory.store(1024 * MIB, Ordering::SeqCst);
    let mut small = model.state(2);
    assert!(model.step(&mut other, &mut small, 2, 1).iter().all(|&v| v == 0.0));
    other.recover().unwrap();
    small.reset();
    assert_eq!(model.step(&mut other, &mut small, 2, 1), want);
    other.status().unwrap();
}

#[test]
fn what_is_freed_serves_a_new_executor() {
    let (device, _) = device(64 * MIB);
    let before = device.used();
    let model = Model::load(&device).unwrap();
    for _ in 0..3 {
        let mut exec = Exec::on(&device).unwrap();
        model.step(&mut exec, &mut model.state(4096), 4096, 1);
        assert!(exec.status().unwrap_err().is_out_of_memory());
        drop(exec);
        let mut exec = Exec::on(&device).unwrap();
        assert_eq!(model.step(&mut exec, &mut model.state(3), 3, 2), expected(3, 2));
        exec.status().unwrap();
    }
    drop(model);
    assert_eq!((device.used(), device.memory().unwrap().0), (before, 64 * MIB), "nothing is kept");
}

#[test]
fn weights_that_do_not_fit_are_an_error_of_the_load() {
    let (device, memory) = device(40 << 10);
    let error = Model::load(&device).map(drop).unwrap_err();
    assert!(matches!(error, CudaError::OutOfMemory { asked: 24_576, .. }), "{error}");
    device.status().unwrap();
    assert_eq!(device.used(), 0, "what was loaded before is freed");
    memory.store(MIB, Ordering::SeqCst);
    Model::load(&device).unwrap();
    let int4 = Matrix::pack(&WeightArena::on(device.clone()), Format::Int4, 16, 64, &[0.5; 1024]);
    assert!(matches!(int4.map(drop), Err(CudaError::Format("int4"))));
    device.status().unwrap();
}

#[test]
fn weights_of_a_step_that_do_not_fit_are_an_error_of_its_executor() {
    let (device, memory) = device(64 * MIB);
    let mut exec = Exec::on(&device).unwrap();
    let (x, mut out) = (Rng(3).buffer(2, 64), Buffer::new(2, 64));
    let values = Rng(5).vec(64 * 64);
    // Values that are on the device before memory is gone.
    let known = Matrix::pack(&exec.arena(), Format::F32, 64, 64, &values).unwrap();
    exec.linear(&LinearOp::new(&x, 2, &known), &mut out);
    exec.fetch(&mut out, 2);
    let want = out.head(2).to_vec();
    fill(&device, &memory);
    let arena = exec.arena();
    let w = exec.pack(&arena, Format::F32, 64, 64, &values);
    assert!(exec.status().unwrap_err().is_out_of_memory());
    // A matrix that is not there is never read, not even after its executor recovers.
    exec.recover().unwrap();
    exec.linear(&LinearOp::new(&x, 2, &w), &mut out);
    exec.fetch(&mut out, 2);
    assert!(exec.status().unwrap_err().is_out_of_memory());
    exec.recover().unwrap();
    exec.linear(&LinearOp::new(&x, 2, &known), &mut out);
    exec.fetch(&mut out, 2);
    exec.status().unwrap();
    assert_eq!(out.head(2), want);
}

#[test]
fn after_a_rehearsal_no_step_asks_for_memory() {
    const SLOTS: usize = 40;
    let (device, memory) = device(512 * MIB);
    let model = Model::load(&device).unwrap();
    let mut exec = Exec::on(&device).unwrap();
    let mut state = model.state(SLOTS);
    let reserved = exec
        .rehearse(|exec| {
            let made = model.step(exec, &mut state, SLOTS, 4);
            assert!(!exec.delivers() && made.iter().all(|&v| v == 0.0), "nothing runs");
        })
        .unwrap();
    reserved.check().unwrap();
    assert_eq!((reserved.missing, reserved.fit(SLOTS)), (0, SLOTS));
    assert!(reserved.given >= state.cache.spec().bytes(), "{reserved:?}");
    state.reset();
    fill(&device, &memory);
    let used = device.used();
    for (slots, rows) in [(SLOTS, 4), (SLOTS, 1), (1, 1), (3, 2), (2, 4), (SLOTS, 4)] {
        state.reset();
        let made = model.step(&mut exec, &mut state, slots, rows);
        exec.status().unwrap();
        assert_eq!(made, expected(slots, rows), "{slots} slots of {rows} rows");
    }
    // Positions far on, where rings are read in parts.
    for _ in 0..20 {
        model.step(&mut exec, &mut state, 1, 4);
        model.step(&mut exec, &mut state, 1, 1);
    }
    exec.status().unwrap();
    assert_eq!(device.used(), used, "nothing more was taken");
    // A larger one than was rehearsed finds nothing, and says so.
    model.step(&mut exec, &mut state, SLOTS, 8);
    assert!(exec.status().unwrap_err().is_out_of_memory());
}

#[test]
fn a_rehearsal_without_memory_says_how_much_is_missing_and_how_many_would_fit() {
    let (device, _) = device(24 * MIB);
    let model = Model::load(&device).unwrap();
    let mut exec = Exec::on(&device).unwrap();
    let mut slots = 1000;
    let need = model.state(slots).cache.spec().bytes();
    let mut tries = 0;
    loop {
        let mut state = model.state(slots);
        let reserved = exec.rehearse(|exec| drop(model.step(exec, &mut state, slots, 1))).unwrap();
        exec.status().unwrap();
        if tries == 0 {
            assert_eq!(reserved.missing, need, "the rings alone do not fit: {reserved:?}");
            let error = reserved.check().unwrap_err();
            assert!(
                matches!(error, CudaError::OutOfMemory { asked, .. } if asked == reserved.missing as u64)
            );
        }
        if reserved.check().is_ok() {
            state.reset();
            let made = model.step(&mut exec, &mut state, slots, 1);
            exec.status().unwrap();
            assert_eq!(made[..4], expected(slots, 1)[..4]);
            break;
        }
        (slots, tries) = (reserved.fit(slots), tries + 1);
    }
    assert!((60..360).contains(&slots) && tries < 8, "{slots} slots after {tries} tries");
    device.status().unwrap();
}

#[test]
fn what_the_host_wrote_before_a_rehearsal_arrives_after_it() {
    let (device, _) = device(64 * MIB);
    let mut exec = Exec::on(&device).unwrap();
    let w = Matrix::pack(&exec.arena(), Format::F32, 8, 8, &Rng(1).vec(64)).unwrap();
    let (x, shared) = (Rng(2).buffer(3, 8), Rng(2).buffer(3, 8).shared());
    let (mut out, mut again) = (Buffer::new(3, 8), Buffer::new(3, 8));
    let run = |exec: &mut Exec, out: &mut Buffer, again: &mut Buffer| {
        exec.linear(&LinearOp::new(&x, 3, &w), out);
        exec.linear(&LinearOp::new(&shared, 3, &w), again);
        exec.fetch(out, 3);
        exec.fetch(again, 3);
    };
    exec.rehearse(|exec| run(exec, &mut out, &mut again)).unwrap().check().unwrap();
    assert!(out.head(3).iter().all(|&v| v == 0.0));
    run(&mut exec, &mut out, &mut again);
    assert!(out.head(3).iter().any(|&v| v != 0.0));
    assert_eq!(out.head(3), again.head(3));
}

#[test]
fn a_lost_device_is_lost_for_all_and_for_good() {
    let (device, _) = device(64 * MIB);
    let model = Model::load(&device).unwrap();
    let (mut one, other) = (Exec::on(&device).unwrap(), Exec::on(&device).unwrap());
    device.lose();
    for exec in [&one, &other] {
        let error = exec.status().unwrap_err();
        assert!(error.is_lost() && !error.is_out_of_memory(), "{error}");
    }
    assert!(one.recover().unwrap_err().is_lost());
    assert!(one.rehearse(|_| ()).unwrap_err().is_lost());
    assert!(Model::load(&device).map(drop).unwrap_err().is_lost());
    let zeros = model.step(&mut one, &mut model.state(1), 1, 1);
    assert!(zeros.iter().all(|&v| v == 0.0));
    assert!(RuntimeError::from(device.status().unwrap_err()).is_lost());
}

/// On a GPU alone, with `VOCE_TEST_GPU` set: the driver's own errors, and memory that others use meanwhile.
#[test]
fn a_gpu_outlives_lack_of_memory() {
    // Rings of 256 GiB.
    const TOO_MANY: usize = 2 << 20;
    if std::env::var_os("VOCE_TEST_GPU").is_none() {
        return;
    }
    let device = Device::open(0).unwrap();
    let model = Model::load(&device).unwrap();
    let (mut one, mut other) = (Exec::on(&device).unwrap(), Exec::on(&device).unwrap());
    let mut state = model.state(4);
    let want = model.step(&mut one, &mut state, 4, 3);
    assert!(want.iter().any(|&v| v != 0.0));
    let mut large = model.state(TOO_MANY);
    for _ in 0..2 {
        assert!(model.step(&mut other, &mut large, 4, 3).iter().all(|&v| v == 0.0));
        let error = other.status().unwrap_err();
        assert!(
            matches!(error, CudaError::OutOfMemory { asked, free } if asked > free && free > 0),
            "{error}"
        );
        state.reset();
        assert_eq!(model.step(&mut one, &mut state, 4, 3), want);
        other.recover().unwrap();
        let mut small = model.state(4);
        assert_eq!(model.step(&mut other, &mut small, 4, 3), want);
        // Often enough to be captured and replayed.
        for _ in 0..4 {
            small.reset();
            assert_eq!(model.step(&mut other, &mut small, 4, 3), want);
        }
    }
    let reserved = other.rehearse(|exec| drop(model.step(exec, &mut model.state(TOO_MANY), 4, 3))).unwrap();
    let fit = reserved.fit(TOO_MANY);
    assert!(reserved.check().unwrap_err().is_out_of_memory() && fit > 1000 && fit < TOO_MANY, "{reserved:?}");
    drop(large);
    // What fits is reserved and taken, and nothing more is asked for.
    let slots = fit / 2;
    let mut half = model.state(slots);
    let reserved = other.rehearse(|exec| drop(model.step(exec, &mut half, 64, 3))).unwrap();
    reserved.check().unwrap();
    half.reset();
    let used = device.used();
    assert_eq!(model.step(&mut other, &mut half, 4, 3), want);
    other.status().unwrap();
    assert_eq!(device.used(), used);
}

#[test]
fn cpus_skip_rehearsals() {
    let mut exec = Exec::new(1).unwrap();
    let reserved = exec.rehearse(|_| panic!("not run")).unwrap();
    assert!(reserved.check().is_ok() && exec.delivers() && exec.recover().is_ok());
    assert_eq!(reserved.fit(12), 12);
}
