//! Which attention ran is told once for each kind, in the log and by the executor; what would run is known without running it.

mod suite;

use std::fmt;
use std::sync::{Arc, Mutex};

use suite::{Rng, devices};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use voce_runtime::cuda::{Device, DeviceInfo};
use voce_runtime::{
    AttentionKind, AttentionOp, AttentionShape, Buffer, Exec, Isa, KvCache, KvFormat, KvSpec, Span,
};

/// Keeps the kernels that debug lines about attention name.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Visit for &Lines {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "kernel" {
            self.0.lock().unwrap().push(value.to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::DEBUG && metadata.target().starts_with("voce_runtime")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut &*self);
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn attend(exec: &mut Exec, format: KvFormat, rows: &[usize]) {
    let spec = KvSpec { layers: 2, slots: 4, kv_heads: 2, head_dim: 64, capacity: 64, format };
    let spans: Vec<Span> = rows.iter().enumerate().map(|(slot, &rows)| Span { slot, rows }).collect();
    let all = rows.iter().sum();
    let (qkv, mut out) = (Rng(1).buffer(all, 6 * 64), Buffer::new(all, 2 * 64));
    let mut cache = KvCache::new(spec);
    for layer in 0..2 {
        let (qkv, spans, cache) = (&qkv, &spans[..], &mut cache);
        let op = AttentionOp { qkv, spans, cache, layer, heads: 2, window: None, norms: None, rope: None };
        exec.attention(op, &mut out);
    }
    exec.fetch(&mut out, all);
}

// One test in this file: whether a line is wanted is remembered for the whole process.
#[test]
fn attention_that_ran_and_attention_that_would_run_are_told() {
    each_kind_of_attention_is_told_once();
    what_would_run_is_known_beforehand();
}

fn each_kind_of_attention_is_told_once() {
    let cases: [(KvFormat, &[usize]); 4] = [
        (KvFormat::Bf16, &[1, 1]),
        (KvFormat::F32, &[1]),
        (KvFormat::Bf16, &[1, 1, 1]),
        (KvFormat::Bf16, &[3, 1]),
    ];
    let run = |exec: &mut Exec| {
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), || {
            (0..2).for_each(|_| cases.iter().for_each(|&(format, rows)| attend(exec, format, rows)));
        });
        let told = lines.0.lock().unwrap().clone();
        let kernels: Vec<&str> = exec.attended().iter().map(|a| a.kernel).collect();
        assert_eq!(told, kernels);
        assert!(exec.attended().iter().all(|a| (a.heads, a.kv_heads, a.head_dim) == (2, 2, 64)));
        told
    };
    for (device, name) in devices() {
        let told = run(&mut Exec::on(&device).unwrap());
        assert_eq!(told, ["decode_alone_64", "decode_few_f32", "few_rows_64"], "{name}");
    }
    let mut scalar = Exec::with_isa(2, Isa::Scalar).unwrap();
    assert_eq!(run(&mut scalar), ["panels_bf16", "panels_f32"]);
}

fn what_would_run_is_known_beforehand() {
    let shape = AttentionShape {
        kind: AttentionKind::Causal,
        format: KvFormat::Bf16,
        heads: 2,
        kv_heads: 2,
        head_dim: 64,
        streams: 2,
        rows: 1,
        positions: 1,
    };
    let (device, mut exec) = {
        let device = Device::emulated().unwrap();
        (device.clone(), Exec::on(&device).unwrap())
    };
    attend(&mut exec, KvFormat::Bf16, &[1, 1]);
    assert_eq!(shape.on_device(device.info()), exec.attended()[0].kernel);
    attend(&mut exec, KvFormat::Bf16, &[3]);
    let rows = AttentionShape { rows: 3, ..shape };
    assert_eq!(rows.on_device(device.info()), exec.attended()[1].kernel);
    // An H200 with the shapes of models.
    let h200 = DeviceInfo { processors: 132, ..device.info().clone() };
    let qwen = AttentionShape { heads: 16, kv_heads: 8, head_dim: 128, positions: 300, ..shape };
    assert_eq!(AttentionShape { streams: 1, ..qwen }.on_device(&h200), "decode_few_pair_bf16");
    assert_eq!(AttentionShape { streams: 64, ..qwen }.on_device(&h200), "few_rows_128");
    let short = AttentionShape { streams: 64, positions: 16, ..qwen };
    assert_eq!(short.on_device(&h200), "decode_short_pair_128");
    let nemotron = AttentionShape { heads: 8, kv_heads: 8, head_dim: 128, rows: 7, positions: 63, ..shape };
    let chunked = AttentionShape { kind: AttentionKind::Chunked, streams: 3000, ..nemotron };
    assert_eq!(chunked.on_device(&h200), "tile_chunk_bf16");
    assert_eq!(AttentionShape { kind: AttentionKind::Whole, ..chunked }.on_device(&h200), "tile_whole_bf16");
    assert_eq!(shape.on_cpu(Isa::Scalar), "panels_bf16");
    assert_eq!(AttentionShape { format: KvFormat::F32, ..shape }.on_cpu(Isa::Scalar), "panels_f32");
}
