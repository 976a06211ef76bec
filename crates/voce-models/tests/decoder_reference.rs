//! Decoder-only models against the transformers package: layers, windows, rotations, frames, sampling.
//!
//! Runs on the CPU, and again on the emulated device; `VOCE_TEST_DEVICE=cuda` runs on a GPU alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use voce_models::decoder::{
    FrameConfig, FrameDecoder, FrameRow, FrameShape, PredictorConfig, random_weights,
};
use voce_nn::weights::{SafetensorsFile, Tensor};
use voce_nn::{
    Decoder, DecoderConfig, DecoderNames, Formats, Loader, Precision, TransformerShape, WeightError, Weights,
};
use voce_runtime::cuda::Device;
use voce_runtime::{Buffer, Exec, Isa, RopeStyle, SampleOp, SampleRow, Sampling, Span, Tokens};

/// f32 sums in another order than the package's.
const TOLERANCE: f32 = 1e-4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/decoder")
}

fn notes() -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(folder().join("dump.json")).unwrap()).unwrap()
}

fn dump(name: &str) -> Vec<f32> {
    let file = SafetensorsFile::open(&folder().join("dump.safetensors")).unwrap();
    file.get(name, &[]).unwrap().unwrap_or_else(|| panic!("no '{name}'")).values
}

/// Where the models of a test run.
struct Place {
    name: &'static str,
    exec: Exec,
    device: Option<Arc<Device>>,
}

impl Place {
    fn loader(&self, source: Arc<dyn Weights>) -> Loader {
        let loader = Loader::new(source);
        match &self.device {
            Some(device) => loader.on(device.clone()),
            None => loader,
        }
    }

    fn formats(&self, precision: Precision) -> Formats {
        match self.device {
            Some(_) => Formats::on_device(precision),
            None => Formats::new(precision, Isa::from_env().unwrap()),
        }
    }
}

fn each_place(mut f: impl FnMut(&mut Place)) {
    let gpu = std::env::var("VOCE_TEST_DEVICE").is_ok_and(|d| d == "cuda");
    let device = if gpu { Device::open(0) } else { Device::emulated() }.unwrap();
    let exec = Exec::on(&device).unwrap();
    let mut places = vec![Place { name: "device", exec, device: Some(device) }];
    if !gpu {
        places.push(Place { name: "cpu", exec: Exec::new(2).unwrap(), device: None });
    }
    for mut place in places {
        f(&mut place);
        place.exec.finish();
        place.exec.status().unwrap();
    }
}

fn layers(hidden: usize, ffn: usize) -> DecoderConfig {
    DecoderConfig {
        layers: 2,
        hidden,
        ffn,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        rope: Some(RopeStyle::Halves),
        theta: 1e6,
        eps: 1e-6,
        head_norm: true,
        window: None,
        names: DecoderNames::Qwen3,
    }
}

fn frame_config() -> FrameConfig {
    let predictor = PredictorConfig { decoder: layers(24, 40), tokens: 3, vocab: 23 };
    FrameConfig {
        decoder: layers(32, 48),
        vocab: 37,
        embeddings: 37,
        predictor: Some(predictor),
        given: vec![11],
    }
}

fn model() -> Arc<dyn Weights> {
    Arc::new(SafetensorsFile::open(&folder().join("model.safetensors")).unwrap())
}

#[track_caller]
fn check(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let scale = want.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
    let e = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max) / scale;
    assert!(e < tolerance, "{what}: {e:e}");
}

fn buffer(values: &[f32], cols: usize) -> Buffer {
    let mut b = Buffer::new(values.len() / cols, cols);
    b.head_mut(values.len() / cols).copy_from_slice(values);
    b
}

/// The layers over the prompt, cut into calls of the rows in `cuts`, beside a second slot that has other rows in between.
fn run_prompt(place: &mut Place, decoder: &Decoder, want: &str, cuts: &[usize]) {
    let prompt = dump("prompt");
    let width = 32;
    let shape = TransformerShape { slots: 3, rows: 12, rows_per_slot: 9, positions: 32 };
    let mut state = decoder.state(shape);
    let expected: Vec<Vec<f32>> = (0..2).map(|i| dump(&format!("{want}/layer.{i}"))).collect();
    let normed = dump(&format!("{want}/normed"));
    let (mut at, total) = (0, prompt.len() / width);
    for &cut in cuts.iter().cycle() {
        if at == total {
            break;
        }
        let rows = cut.min(total - at);
        let other: Vec<f32> = (0..width).map(|i| (i as f32 * 0.7 + at as f32).sin()).collect();
        let mut x = buffer(&[&other[..], &prompt[at * width..(at + rows) * width]].concat(), width);
        let spans = [Span { slot: 0, rows: 1 }, Span { slot: 2, rows }];
        let what = format!("{} {want} rows {at}", place.name);
        let part = at * width..(at + rows) * width;
        let mut watch = |i: usize, got: &[f32]| {
            check(&format!("{what} layer {i}"), &got[width..], &expected[i][part.clone()], TOLERANCE);
        };
        decoder.run_watched(&mut place.exec, &mut x, &spans, &mut state, Some(&mut watch));
        decoder.normalize(&mut place.exec, &mut x, 1 + rows);
        place.exec.fetch(&mut x, 1 + rows);
        check(&format!("{what} normed"), &x.head(1 + rows)[width..], &normed[part], TOLERANCE);
        at += rows;
    }
    assert_eq!(state.cache.position(2), total);
}

#[test]
fn layers_agree_whole_and_row_by_row() {
    each_place(|place| {
        let formats = place.formats(Precision::F32);
        let l = place.loader(model()).sub("talker.model");
        let decoder = Decoder::load(&l, layers(32, 48), formats).unwrap();
        for cuts in [&[9][..], &[1], &[4, 1, 2]] {
            run_prompt(place, &decoder, "full", cuts);
        }
    });
}

#[test]
fn a_window_forgets_what_lies_before_it() {
    each_place(|place| {
        let window = notes()["window"].as_u64().map(|w| w as usize);
        let formats = place.formats(Precision::F32);
        let l = place.loader(model()).sub("talker.model");
        let config = DecoderConfig { window, ..layers(32, 48) };
        let decoder = Decoder::load(&l, config, formats).unwrap();
        for cuts in [&[9][..], &[1], &[2, 3]] {
            run_prompt(place, &decoder, "window", cuts);
        }
    });
}

/// Turns matrices made for halves into ones for neighbours: the same model in the other convention.
struct Interleaved(Arc<dyn Weights>);

impl Weights for Interleaved {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let tensor = self.0.get(name, expected)?;
        let turned = ["q_proj", "k_proj", "q_norm", "k_norm"].iter().any(|part| name.contains(part));
        Ok(tensor.map(|t| if turned { interleave(t) } else { t }))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.shape(name)
    }
}

fn interleave(t: Tensor) -> Tensor {
    let (dim, cols) = (16, t.shape.get(1).copied().unwrap_or(1));
    let rows = t.shape[0];
    let mut values = Vec::with_capacity(t.values.len());
    for row in 0..rows {
        let (head, d) = (row / dim, row % dim);
        let from = head * dim + if d % 2 == 0 { d / 2 } else { dim / 2 + d / 2 };
        values.extend_from_slice(&t.values[from * cols..(from + 1) * cols]);
    }
    Tensor { values, ..t }
}

#[test]
fn neighbours_rotate_as_halves_do() {
    each_place(|place| {
        let formats = place.formats(Precision::F32);
        let l = place.loader(Arc::new(Interleaved(model()))).sub("talker.model");
        let config = DecoderConfig { rope: Some(RopeStyle::Interleaved), ..layers(32, 48) };
        let decoder = Decoder::load(&l, config, formats).unwrap();
        run_prompt(place, &decoder, "full", &[3, 1]);
        // And not by chance.
        let wrong = DecoderConfig { rope: Some(RopeStyle::Halves), ..config };
        let decoder = Decoder::load(&l, wrong, formats).unwrap();
        let run = || run_prompt(place, &decoder, "full", &[9]);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    });
}

/// The same weights under Kyutai's names, without norms of heads.
struct MoshiNames(Arc<dyn Weights>);

impl Weights for MoshiNames {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let get = |name: String, shape: &[usize]| {
            Ok::<_, WeightError>(self.0.get(&name, shape)?.map_or_else(Vec::new, |t| t.values))
        };
        let layer = |rest: &str| name.split(".layers.").nth(1).map(|n| format!("layers.{}.{rest}", &n[..1]));
        let parts: &[&str] = match name {
            n if n.ends_with("in_proj_weight") => {
                &["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"]
            }
            n if n.ends_with("out_proj.weight") => &["self_attn.o_proj.weight"],
            n if n.ends_with("linear_in.weight") => &["mlp.gate_proj.weight", "mlp.up_proj.weight"],
            n if n.ends_with("linear_out.weight") => &["mlp.down_proj.weight"],
            n if n.ends_with("norm1.alpha") => &["input_layernorm.weight"],
            n if n.ends_with("norm2.alpha") => &["post_attention_layernorm.weight"],
            "out_norm.alpha" => &["norm.weight"],
            _ => return Ok(None),
        };
        let mut values = Vec::new();
        for part in parts {
            let part = layer(part).unwrap_or_else(|| (*part).to_owned());
            values.append(&mut get(format!("talker.model.{part}"), &[])?);
        }
        Ok(Some(Tensor { shape: expected.to_vec(), values }))
    }

    fn shape(&self, _: &str) -> Option<Vec<usize>> {
        None
    }
}

#[test]
fn the_other_names_are_the_same_layers() {
    each_place(|place| {
        let formats = place.formats(Precision::F32);
        let bare = DecoderConfig { head_norm: false, window: Some(5), ..layers(32, 48) };
        let qwen = Decoder::load(&place.loader(model()).sub("talker.model"), bare, formats).unwrap();
        let named = DecoderConfig { names: DecoderNames::Moshi, ..bare };
        let moshi = Decoder::load(&place.loader(Arc::new(MoshiNames(model()))), named, formats).unwrap();
        let prompt = dump("prompt");
        let mut run = |decoder: &Decoder| {
            let shape = TransformerShape { slots: 1, rows: 9, rows_per_slot: 9, positions: 9 };
            let (mut x, mut state) = (buffer(&prompt, 32), decoder.state(shape));
            decoder.run(&mut place.exec, &mut x, &[Span { slot: 0, rows: 9 }], &mut state);
            place.exec.fetch(&mut x, 9);
            x.head(9).to_vec()
        };
        assert_eq!(run(&qwen), run(&moshi));
        assert_eq!((qwen.bytes(), qwen.macs()), (moshi.bytes(), moshi.macs()));
    });
}

fn frames(place: &mut Place, precision: Precision) -> FrameDecoder {
    let formats = place.formats(precision);
    let l = place.loader(model());
    let text = l.sub("text").table("weight", 11, 32, formats.embedding).unwrap();
    FrameDecoder::load(&mut place.exec, &l, &frame_config(), vec![text], formats).unwrap()
}

#[test]
fn greedy_frames_agree_beside_another_stream() {
    let notes = notes();
    let list = |v: &serde_json::Value| -> Vec<u32> {
        v.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect()
    };
    assert!(notes["margin"].as_f64().unwrap() > 0.01, "the choices are clear");
    let texts = list(&notes["texts"]);
    each_place(|place| {
        let model = frames(place, Precision::F32);
        let prompt = buffer(&dump("prompt"), 32);
        // Slots 0 and 2 have the prompt, in pieces of 4 rows; slot 1 begins with nothing and is a frame ahead.
        let mut state = model.state(FrameShape { slots: 3, positions: 20, prefill: 4 });
        let exec = &mut place.exec;
        (0..3).for_each(|slot| state.start(exec, slot));
        let greedy = |slot| FrameRow { slot, first: Sampling::default(), rest: Sampling::default() };
        model.step(exec, &mut state, &[greedy(1)]);
        let last = prompt.rows() - 1;
        let mut before = Buffer::new(last, 32);
        before.head_mut(last).copy_from_slice(&prompt.head(last)[..last * 32]);
        for slot in [0, 2] {
            model.prefill(exec, &mut state, slot, &before);
        }
        let mut x = Buffer::new(3, 32);
        for r in [0, 2] {
            x.row_mut(r).copy_from_slice(prompt.row(last));
        }
        for (f, want) in notes["frames"].as_array().unwrap().iter().enumerate() {
            let rows = [greedy(2), greedy(1), greedy(0)];
            if f == 0 {
                model.step_from(exec, &mut state, &rows, &x);
            } else {
                model.step(exec, &mut state, &rows);
            }
            let logits = state.logits(exec, 3).to_vec();
            check(&format!("frame {f}"), &logits[..37], &dump(&format!("frame.{f}/logits")), TOLERANCE);
            check("the same in slot 0", &logits[74..], &logits[..37], TOLERANCE);
            let got = state.tokens(exec);
            assert_eq!(got.row(2)[..4], list(want)[..], "{} frame {f}", place.name);
            assert_eq!(got.row(0)[..4], list(want)[..], "{} frame {f}", place.name);
            state.give(exec, &[0, 1, 2], 4, &[texts[f]; 3]);
        }
        assert_eq!([0, 1, 2].map(|s| state.position(s)), [last + 4, 5, last + 4]);
    });
}

#[test]
fn drawn_frames_are_the_same_on_a_device_and_alone() {
    let draw = |seed: u64| {
        let first = Sampling { temperature: 0.9, top_k: 20, penalty: 1.1, seed, ..Sampling::default() };
        (first, Sampling { penalty: 1.0, top_p: 0.9, ..first })
    };
    let mut runs: Vec<Vec<Vec<u32>>> = Vec::new();
    each_place(|place| {
        let model = frames(place, Precision::F32);
        for slots in [vec![0, 1, 2], vec![1], vec![2, 1]] {
            let mut state = model.state(FrameShape { slots: 3, positions: 16, prefill: 1 });
            let exec = &mut place.exec;
            let rows: Vec<FrameRow> = slots
                .iter()
                .map(|&slot| {
                    let (first, rest) = draw(7 * slot as u64 + 1);
                    FrameRow { slot, first, rest }
                })
                .collect();
            slots.iter().for_each(|&slot| state.start(exec, slot));
            let mut drawn = Vec::new();
            for _ in 0..6 {
                model.step(exec, &mut state, &rows);
                drawn.extend_from_slice(&state.tokens(exec).row(1)[..4]);
            }
            runs.push(vec![drawn]);
        }
    });
    assert!(runs.iter().all(|r| r == &runs[0]), "{runs:?}");
    let tokens = &runs[0][0];
    assert!(tokens.iter().any(|t| t != &tokens[0]), "{tokens:?}");
}

#[test]
fn smaller_formats_stay_close() {
    each_place(|place| {
        let want = dump("frame.0/logits");
        let fp8 = place.device.is_some().then_some((Precision::Fp8, 0.2));
        for (precision, tolerance) in
            [(Precision::Bf16, 0.05), (Precision::Int8, 0.12)].into_iter().chain(fp8)
        {
            let model = frames(place, precision);
            let prompt = buffer(&dump("prompt"), 32);
            let mut state = model.state(FrameShape { slots: 1, positions: 20, prefill: 8 });
            let exec = &mut place.exec;
            state.reserve(exec).unwrap();
            state.start(exec, 0);
            let (mut before, mut x) = (Buffer::new(8, 32), Buffer::new(1, 32));
            before.head_mut(8).copy_from_slice(prompt.head(8));
            x.row_mut(0).copy_from_slice(prompt.row(8));
            model.prefill(exec, &mut state, 0, &before);
            let row = FrameRow { slot: 0, first: Sampling::default(), rest: Sampling::default() };
            model.step_from(exec, &mut state, &[row], &x);
            check(&format!("{} {precision}", place.name), state.logits(exec, 1), &want, tolerance);
        }
    });
}

/// A shape without a predictor, whose other tokens are given, with a full ring of made-up keys and values.
#[test]
fn models_of_given_tokens_run_over_a_full_ring() {
    let config = FrameConfig {
        decoder: DecoderConfig {
            kv_heads: 4,
            rope: Some(RopeStyle::Interleaved),
            head_norm: false,
            window: Some(20),
            names: DecoderNames::Moshi,
            ..layers(32, 48)
        },
        vocab: 29,
        embeddings: 30,
        predictor: None,
        given: vec![13; 5],
    };
    config.check().unwrap();
    let mut seen: Vec<Vec<u32>> = Vec::new();
    each_place(|place| {
        let formats = place.formats(Precision::F32);
        let l = place.loader(random_weights(3));
        let model = FrameDecoder::load(&mut place.exec, &l, &config, vec![], formats).unwrap();
        let exec = &mut place.exec;
        let mut state = model.state(FrameShape { slots: 2, positions: 0, prefill: 1 });
        (0..2).for_each(|slot| state.start(exec, slot));
        state.fill(exec, 45);
        let mut tokens = Vec::new();
        for frame in 0..5u32 {
            let given: Vec<u32> = (0..10).map(|i| (i * 5 + frame) % 13).collect();
            state.give(exec, &[0, 1], 1, &given);
            let row = |slot| FrameRow { slot, first: Sampling::default(), rest: Sampling::default() };
            model.step(exec, &mut state, &[row(0), row(1)]);
            let t = state.tokens(exec);
            tokens.extend([t.row(0)[0], t.row(1)[0]]);
        }
        assert_eq!((state.position(0), state.position(1)), (50, 50), "{}", place.name);
        seen.push(tokens);
    });
    assert!(seen.iter().all(|t| t == &seen[0]), "{seen:?}");
}

#[test]
fn what_is_drawn_is_what_the_package_leaves() {
    let notes = notes();
    let sampling = &notes["sampling"];
    let numbers = |v: &serde_json::Value| -> Vec<f64> {
        v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let logits: Vec<f32> = numbers(&sampling["logits"]).iter().map(|&x| x as f32).collect();
    let mut exec = Exec::new(2).unwrap();
    const DRAWS: usize = 12_000;
    let mut x = Buffer::new(DRAWS, logits.len());
    (0..DRAWS).for_each(|r| x.row_mut(r).copy_from_slice(&logits));
    for case in sampling["cases"].as_array().unwrap() {
        let f = |name: &str| case[name].as_f64().unwrap() as f32;
        let s = Sampling {
            temperature: f("temperature"),
            top_k: f("top_k") as usize,
            top_p: f("top_p"),
            penalty: f("penalty"),
            below: f("below") as u32,
            also: case["also"].as_u64().map(|t| t as u32),
            seed: 99,
        };
        let mut bits = vec![0u32; logits.len().div_ceil(32)];
        numbers(&case["seen"]).iter().for_each(|&t| bits[t as usize / 32] |= 1 << (t as usize % 32));
        let mut history = Tokens::history(DRAWS, logits.len());
        let slots: Vec<usize> = (0..DRAWS).collect();
        exec.set_tokens(&mut history, &slots, 0, &bits.repeat(DRAWS));
        let rows: Vec<SampleRow> =
            slots.iter().map(|&slot| SampleRow { slot, step: slot as u32, sampling: s }).collect();
        let mut tokens = Tokens::new(DRAWS, 1, 0);
        let op =
            SampleOp { logits: x.view(), rows: &rows, column: 0, history: Some(&mut history), next: None };
        exec.sample(op, &mut tokens);
        let mut counts = vec![0f64; logits.len()];
        slots.iter().for_each(|&slot| counts[tokens.row(slot)[0] as usize] += 1.0);
        for (i, (&n, &p)) in counts.iter().zip(&numbers(&case["probabilities"])).enumerate() {
            let (mean, deviation) = (p * DRAWS as f64, (p * (1.0 - p) * DRAWS as f64).sqrt());
            assert!((n - mean).abs() <= 5.0 * deviation, "{case}: token {i} drawn {n} times, not {mean}");
        }
    }
}
