//! What safe functions refuse: slots and layers that are not there or named twice, weights that are elsewhere, sizes beyond
//! memory; and host memory that a device still copies from.

mod suite;

use std::panic::{AssertUnwindSafe, catch_unwind};

use suite::{Rng, devices, each_cpu, each_exec};
use voce_runtime::cuda::Device;
use voce_runtime::{
    Activation, AttentionOp, Buffer, ChunkSpan, ConvOp, ConvState, ConvStateSpec, DepthwiseOp, Exec, Format,
    FrameSpan, KvCache, KvFormat, KvIndex, KvSpec, LinearOp, MAX_POSITION, Matrix, MelFilters, MelOp,
    MelSpan, RelativeAttentionOp, RelativePositions, SampleOp, SampleRow, Sampling, Span, Staging,
    SubsampleOp, SubsampleSpec, SubsampleState, Tokens, UpsampleOp, WeightArena,
};

/// Whether it is refused, and not for another reason.
fn refused(what: &str, reason: &str, f: impl FnOnce()) {
    let why = catch_unwind(AssertUnwindSafe(f)).expect_err(what);
    let text = why.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| why.downcast_ref::<&str>().copied()).unwrap_or_default();
    assert!(text.contains(reason), "{what}: '{text}' has no '{reason}'");
}

const DIM: usize = 16;
const SPEC: KvSpec =
    KvSpec { layers: 2, slots: 3, kv_heads: 2, head_dim: DIM, capacity: 32, format: KvFormat::F32 };

fn spans(slots: &[usize]) -> Vec<Span> {
    slots.iter().map(|&slot| Span { slot, rows: 2 }).collect()
}

/// Slots that no op takes, and why.
const WRONG_SLOTS: [(&[usize], &str); 4] = [
    (&[3], "slot 3 of 3"),
    (&[0, usize::MAX], "of 3"),
    (&[1, 1], "named twice"),
    (&[2, 0, 2], "named twice"),
];

#[test]
fn places_of_a_cache_are_checked() {
    let mut cache = KvCache::new(SPEC);
    let last = KvIndex { layer: 1, slot: 2, head: 1, position: 5 };
    cache.write(last, 1, &[0.5; DIM]);
    let mut out = [0.0; DIM];
    cache.read(last, 1, &mut out);
    assert_eq!(out, [0.5; DIM]);
    let beyond = [
        (KvIndex { layer: 2, ..last }, 1),
        (KvIndex { slot: 3, ..last }, 1),
        (KvIndex { head: 2, ..last }, 1),
        (KvIndex { layer: usize::MAX, ..last }, 0),
        (last, 2),
    ];
    for (at, kv) in beyond {
        refused("write", "KvSpec", || cache.write(at, kv, &[0.5; DIM]));
        refused("read", "KvSpec", || cache.read(at, kv, &mut [0.0; DIM]));
    }
    refused("few values", "range end index 16", || cache.write(last, 0, &[0.5; DIM - 1]));
}

#[test]
fn positions_have_an_end() {
    let mut cache = KvCache::new(SPEC);
    cache.advance(1, MAX_POSITION);
    assert_eq!(cache.position(1), MAX_POSITION);
    refused("one past the last position", "positions", || cache.advance(1, 1));
    refused("all at once", "positions", || cache.advance(0, MAX_POSITION + 1));
    cache.reset(1);
    cache.advance(1, 1);
    let mut exec = Exec::new(1).unwrap();
    let mut state = SubsampleState::new(SubsampleSpec { slots: 1, bins: 4, channels: 1, left: 2 });
    exec.restore_subsample(&mut state, 0, MAX_POSITION, &[0.0; 8]);
    refused("one row past", "rows", || {
        exec.restore_subsample(&mut state, 0, MAX_POSITION + 1, &[0.0; 8]);
    });
}

#[test]
fn attention_takes_layers_and_slots_that_are_there_once() {
    each_exec(|exec, name| {
        let mut rng = Rng(1);
        let (qkv, mut out) = (rng.buffer(8, 3 * 2 * DIM), Buffer::new(8, 2 * DIM));
        let mut cache = KvCache::new(SPEC);
        let mut attend = |exec: &mut Exec, layer: usize, slots: &[usize], window: Option<usize>| {
            let spans = spans(slots);
            let (cache, qkv) = (&mut cache, &qkv);
            let op =
                AttentionOp { qkv, spans: &spans, cache, layer, heads: 2, window, norms: None, rope: None };
            exec.attention(op, &mut out);
        };
        attend(exec, 1, &[2, 0, 1], None);
        refused(name, "layer 2 of 2", || attend(exec, 2, &[0], None));
        refused(name, "layer", || attend(exec, usize::MAX, &[0], None));
        refused(name, "sees itself", || attend(exec, 0, &[0], Some(0)));
        refused(name, "window", || attend(exec, 0, &[0], Some(usize::MAX)));
        for (slots, why) in WRONG_SLOTS {
            refused(name, why, || attend(exec, 0, slots, None));
        }
        let arena = exec.arena();
        let distances = || exec_distances(&arena, &mut Rng(2));
        let (bias, positions) = (rng.vector(2 * DIM), RelativePositions { heads: distances(), farthest: 20 });
        let mut relative = |exec: &mut Exec, layer: usize, slots: &[usize]| {
            let spans: Vec<ChunkSpan> =
                slots.iter().map(|&slot| ChunkSpan { slot, rows: 2, left: 8, chunk: 2 }).collect();
            let op = RelativeAttentionOp {
                qkv: &qkv,
                spans: &spans,
                cache: &mut cache,
                layer,
                positions: &positions,
                content_bias: &bias,
                position_bias: &bias,
            };
            exec.relative_attention(op, &mut out);
        };
        relative(exec, 1, &[1, 2, 0]);
        refused(name, "layer 2 of 2", || relative(exec, 2, &[0]));
        for (slots, why) in WRONG_SLOTS {
            refused(name, why, || relative(exec, 0, slots));
        }
    });
}

fn exec_distances(arena: &WeightArena, rng: &mut Rng) -> Vec<Matrix> {
    (0..2).map(|_| Matrix::pack(arena, Format::F32, 24, DIM, &rng.vec(24 * DIM)).unwrap()).collect()
}

#[test]
fn convolutions_take_slots_that_are_there_once() {
    each_exec(|exec, name| {
        let mut rng = Rng(3);
        let (x, mut out) = (rng.buffer(8, DIM), Buffer::new(16, DIM));
        let w = Matrix::pack(&exec.arena(), Format::F32, DIM, 3 * DIM, &rng.vec(3 * DIM * DIM)).unwrap();
        let kernel = rng.vector(2 * DIM);
        let state =
            |history| ConvState::new(ConvStateSpec { slots: 3, history, channels: DIM, replicate: false });
        let (mut long, mut short) = (state(2), state(1));
        let mut time = SubsampleState::new(SubsampleSpec { slots: 3, bins: 4, channels: 1, left: 2 });
        let (frames, taps) = (rng.buffer(8, 4), rng.vector(9 * DIM));
        let mut run = |exec: &mut Exec, which: usize, slots: &[usize]| {
            let spans = spans(slots);
            let (x, spans) = (&x, &spans[..]);
            let (pre, act) = (Activation::None, Activation::None);
            let (taps_of, stride, dilation, add) = (3, 1, 1, false);
            match which {
                0 => {
                    let op = ConvOp {
                        x,
                        spans,
                        pre,
                        w: &w,
                        bias: None,
                        taps: taps_of,
                        stride,
                        dilation,
                        act,
                        add,
                    };
                    exec.conv(&op, &mut long, &mut out);
                }
                1 => {
                    let kernel = &kernel;
                    exec.upsample(&UpsampleOp { x, spans, kernel, stride: 1 }, &mut short, &mut out);
                }
                2 => {
                    let (kernel, bias, ahead, norm) = (&kernel, None, 0, None);
                    let op = DepthwiseOp { x, spans, kernel, bias, ahead, norm, act };
                    exec.depthwise(&op, &mut short, &mut out);
                }
                _ => {
                    let frame = |s: &Span| FrameSpan { slot: s.slot, rows: s.rows, last: false };
                    let spans: Vec<FrameSpan> = spans.iter().map(frame).collect();
                    let op = SubsampleOp { x: &frames, spans: &spans, kernel: &taps, bias: None, act };
                    exec.subsample(&op, &mut time, &mut out);
                }
            }
        };
        for which in 0..4 {
            run(exec, which, &[2, 0, 1]);
            for (slots, why) in WRONG_SLOTS {
                refused(&format!("{name} op {which}"), why, || run(exec, which, slots));
            }
        }
    });
}

#[test]
fn tokens_and_prefixes_go_to_slots_that_are_there_once() {
    each_exec(|exec, name| {
        let (mut tokens, logits) = (Tokens::new(3, 2, 0), Rng(4).buffer(4, 10));
        let mut history = Tokens::history(3, 10);
        let mut sample = |exec: &mut Exec, slots: &[usize]| {
            let row = |&slot: &usize| SampleRow { slot, step: 0, sampling: Sampling::default() };
            let rows: Vec<SampleRow> = slots.iter().map(row).collect();
            let (logits, history) = (logits.view(), Some(&mut history));
            exec.sample(SampleOp { logits, rows: &rows, column: 1, history, next: None }, &mut tokens);
        };
        sample(exec, &[2, 0, 1]);
        for (slots, why) in WRONG_SLOTS {
            refused(name, why, || sample(exec, slots));
        }
        let mut words = Tokens::new(3, 2, 0);
        exec.set_tokens(&mut words, &[1, 0], 1, &[7, 8]);
        for (slots, why) in WRONG_SLOTS {
            refused(name, why, || exec.set_tokens(&mut words, slots, 0, &vec![1; slots.len()]));
        }
        refused(name, "words fit", || exec.set_tokens(&mut words, &[0], usize::MAX, &[1]));
        let (mut to, mut from) = (KvCache::new(SPEC), KvCache::new(SPEC));
        exec.reserve_cache(&mut from).unwrap();
        exec.copy_prefix_to(&mut to, &[1, 0], &from, 2, 4);
        for (slots, why) in WRONG_SLOTS {
            refused(name, why, || exec.copy_prefix_to(&mut to, slots, &from, 2, 4));
        }
        refused(name, "slot 3 of 3", || exec.copy_prefix_to(&mut to, &[0], &from, 3, 4));
    });
}

#[test]
fn ops_take_weights_that_are_where_they_run() {
    let device = Device::emulated().unwrap();
    let (there, here) = (WeightArena::on(device.clone()), WeightArena::new());
    let mut rng = Rng(5);
    let (x, mut out) = (rng.buffer(4, DIM), Buffer::new(4, DIM));
    let (values, taps) = (rng.vec(DIM * DIM), rng.vec(3 * DIM * DIM));
    let mut run = |exec: &mut Exec, arena: &WeightArena| {
        for format in [Format::F32, Format::Bf16, Format::Int8] {
            let w = Matrix::pack(arena, format, DIM, DIM, &values).unwrap();
            refused("linear", "as the ops", || exec.linear(&LinearOp::new(&x, 4, &w), &mut out));
        }
        let spec = ConvStateSpec { slots: 1, history: 2, channels: DIM, replicate: false };
        let (w, spans) =
            (Matrix::pack(arena, Format::F32, DIM, 3 * DIM, &taps).unwrap(), [Span { slot: 0, rows: 4 }]);
        let op = ConvOp {
            x: &x,
            spans: &spans,
            pre: Activation::None,
            w: &w,
            bias: None,
            taps: 3,
            stride: 1,
            dilation: 1,
            act: Activation::None,
            add: false,
        };
        refused("conv", "as the ops", || exec.conv(&op, &mut ConvState::new(spec), &mut out));
        let positions = RelativePositions { heads: exec_distances(arena, &mut Rng(6)), farthest: 20 };
        let (qkv, bias) = (Buffer::new(4, 3 * 2 * DIM), Rng(7).vector(2 * DIM));
        let op = RelativeAttentionOp {
            qkv: &qkv,
            spans: &[ChunkSpan { slot: 0, rows: 2, left: 8, chunk: 2 }],
            cache: &mut KvCache::new(SPEC),
            layer: 0,
            positions: &positions,
            content_bias: &bias,
            position_bias: &bias,
        };
        let mut wide = Buffer::new(4, 2 * DIM);
        refused("distances", "as the ops", || exec.relative_attention(op, &mut wide));
    };
    each_cpu(|exec, _| run(exec, &there));
    run(&mut Exec::on(&device).unwrap(), &here);
    // Of another device they are as far away.
    let other = Device::emulated().unwrap();
    let w = Matrix::pack(&there, Format::F32, DIM, DIM, &values).unwrap();
    let mut exec = Exec::on(&other).unwrap();
    refused("another device", "stays on its device", || exec.linear(&LinearOp::new(&x, 4, &w), &mut out));
}

#[test]
fn an_executor_that_gets_more_threads_has_scratch_for_each() {
    let mut rng = Rng(8);
    let (n, k, rows) = (70, 130, 9);
    let (weights, x) = (rng.vec(n * k), rng.buffer(rows, k));
    for format in Format::ON_CPU {
        let w = Matrix::pack(&WeightArena::new(), format, n, k, &weights).unwrap();
        let run = |exec: &mut Exec| {
            let mut out = Buffer::new(rows, n);
            exec.linear(&LinearOp::new(&x, rows, &w), &mut out);
            out.head(rows).to_vec()
        };
        let mut exec = Exec::new(1).unwrap();
        let want = run(&mut exec);
        for threads in [4, 2, 3] {
            exec = exec.with_threads(threads).unwrap();
            assert_eq!(exec.threads(), threads);
            assert_eq!(run(&mut exec), want, "{format:?} on {threads} threads");
        }
    }
}

#[test]
fn sizes_beyond_memory_are_refused() {
    const WHY: &str = "fits in memory";
    refused("buffer", WHY, || drop(Buffer::new(usize::MAX / 2, 4)));
    refused("shape", WHY, || Buffer::new(1, 1).shape(1 << 40, 1 << 40));
    refused("regroup", WHY, || Buffer::new(0, 1).regroup(1 << 32, 1 << 32));
    refused("tokens", WHY, || drop(Tokens::new(1 << 33, 1 << 33, 0)));
    refused("cache", WHY, || drop(KvCache::new(KvSpec { slots: 1 << 60, ..SPEC })));
    refused("ring", WHY, || drop(KvCache::new(KvSpec { capacity: usize::MAX, ..SPEC })));
    let spec = ConvStateSpec { slots: 1 << 40, history: 1 << 20, channels: 1 << 10, replicate: false };
    refused("past rows", WHY, || drop(ConvState::new(spec)));
}

#[test]
fn staged_samples_stay_until_the_device_has_them() {
    // As many as are sent from pinned memory.
    const LEN: usize = 1 << 18;
    for (device, name) in devices() {
        let (mut one, mut other) = (Exec::on(&device).unwrap(), Exec::on(&device).unwrap());
        let mut rng = Rng(9);
        let bands: [(usize, &[f32]); 2] = [(0, &[1.0, 0.5]), (1, &[0.25, 1.0])];
        let filters = MelFilters::new(rng.vec(8), 4, 8, 1e-6, bands);
        let rows = (LEN - 8) / 4 + 1;
        let spans = [MelSpan { rows, to: 0 }];
        let sounds: Vec<Vec<f32>> = (0..3).map(|_| rng.vec(filters.samples(rows))).collect();
        let mut staging = Staging::default();
        let mut outs = [0; 3].map(|_| Buffer::new(rows, 2));
        // Written anew as soon as that is allowed: by the same executor, and by another.
        let execs = [&mut one, &mut other];
        for (i, (sound, out)) in sounds.iter().zip(&mut outs).enumerate() {
            let exec = &mut *execs[i / 2];
            exec.stage(&mut staging, sound.len()).copy_from_slice(sound);
            exec.mel(&MelOp { filters: &filters, samples: &staging, spans: &spans }, out);
        }
        // A CPU may take the memory next, and make it larger.
        Exec::new(1).unwrap().stage(&mut staging, 2 * LEN).fill(9.0);
        for (i, (sound, out)) in sounds.iter().zip(&mut outs).enumerate() {
            execs[i / 2].fetch(out, rows);
            let mut alone = Staging::default();
            let mut want = Buffer::new(rows, 2);
            let mut exec = Exec::on(&device).unwrap();
            exec.stage(&mut alone, sound.len()).copy_from_slice(sound);
            exec.mel(&MelOp { filters: &filters, samples: &alone, spans: &spans }, &mut want);
            exec.fetch(&mut want, rows);
            assert!(out.head(rows) == want.head(rows), "{name}: sound {i}");
        }
    }
}

#[test]
fn rows_that_are_pinned_stay_until_the_device_has_them() {
    const ROWS: usize = 1 << 10;
    const COLS: usize = 64;
    for (device, name) in devices() {
        let mut exec = Exec::on(&device).unwrap();
        let mut rng = Rng(10);
        let w = Matrix::pack(&exec.arena(), Format::F32, COLS, COLS, &rng.vec(COLS * COLS)).unwrap();
        let (source, mut x) = (rng.buffer(ROWS, COLS), Buffer::new(ROWS, COLS));
        // Fetched often enough to be pinned.
        for _ in 0..5 {
            exec.copy_head(&source, 0, &mut x, ROWS);
            exec.fetch(&mut x, ROWS);
        }
        let values = [rng.vec(ROWS * COLS), rng.vec(ROWS * COLS)];
        let mut outs = [0; 2].map(|_| Buffer::new(ROWS, COLS));
        for (values, out) in values.iter().zip(&mut outs) {
            x.head_mut(ROWS).copy_from_slice(values);
            exec.linear(&LinearOp::new(&x, ROWS, &w), out);
        }
        x.head_mut(ROWS).fill(0.0);
        for (values, out) in values.iter().zip(&mut outs) {
            exec.fetch(out, ROWS);
            let (mut again, mut want) = (Buffer::new(ROWS, COLS), Buffer::new(ROWS, COLS));
            again.head_mut(ROWS).copy_from_slice(values);
            exec.linear(&LinearOp::new(&again, ROWS, &w), &mut want);
            exec.fetch(&mut want, ROWS);
            assert!(out.head(ROWS) == want.head(ROWS), "{name}");
        }
    }
}
