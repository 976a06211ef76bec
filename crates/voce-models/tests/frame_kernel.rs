//! One stream's frame as one kernel against the same frame launch by launch: logits and tokens, for the widths of published models
//! with few layers. A GPU alone has such launches: `VOCE_TEST_DEVICE=cuda` runs it.

use std::sync::Arc;

use voce_models::decoder::{
    FrameConfig, FrameDecoder, FrameRow, FrameShape, FrameState, random_weights, repeated_weights,
};
use voce_nn::{
    Decoder, DecoderConfig, DecoderNames, DecoderState, Formats, Loader, Precision, TransformerShape,
};
use voce_runtime::cuda::{Device, Tuning};
use voce_runtime::{Buffer, Exec, RopeStyle, Sampling, Span};

const FRAMES: usize = 12;
/// Logits of bf16 weights whose rows were rounded in other places, relative to the largest.
const TOLERANCE: f32 = 2e-3;

fn config(name: &str, layers: usize) -> FrameConfig {
    let mut config = FrameConfig::named(name).unwrap();
    config.decoder.layers = layers;
    if let Some(p) = &mut config.predictor {
        p.decoder.layers = 2;
    }
    if config.given.len() == 1 {
        config.given = vec![500];
    }
    config
}

struct Run {
    exec: Exec,
    model: FrameDecoder,
    state: FrameState,
}

impl Run {
    fn new(device: &Arc<Device>, config: &FrameConfig, frames: bool, context: usize) -> Self {
        device.tune(Tuning { frames, ..Tuning::default() });
        let mut exec = Exec::on(device).unwrap();
        let formats = Formats::on_device(Precision::Bf16);
        let loader = Loader::new(random_weights(7)).on(device.clone());
        let given = match config.given.len() {
            1 => vec![
                loader
                    .table_of(
                        &vec![0.01; 500 * config.decoder.hidden],
                        500,
                        config.decoder.hidden,
                        formats.embedding,
                    )
                    .unwrap(),
            ],
            _ => Vec::new(),
        };
        let model = FrameDecoder::load(&mut exec, &loader, config, given, formats).unwrap();
        let mut state = model.state(FrameShape { slots: 2, positions: context + FRAMES + 1, prefill: 1 });
        state.start(&mut exec, 1);
        state.fill(&mut exec, context);
        Self { exec, model, state }
    }

    fn step(&mut self, tokens: &[u32], row: FrameRow) -> (Vec<f32>, Vec<u32>) {
        self.state.give(&mut self.exec, &[1], 0, tokens);
        self.model.step(&mut self.exec, &mut self.state, &[row]);
        let all = self.state.tokens(&mut self.exec);
        let tokens = all.row(1).to_vec();
        let logits = self.state.logits(&mut self.exec, 1).to_vec();
        self.exec.status().unwrap();
        (logits, tokens)
    }
}

#[test]
fn a_frame_as_one_kernel_is_the_frame_launch_by_launch() {
    if std::env::var("VOCE_TEST_DEVICE").is_ok_and(|d| d == "cuda") {
        let device = Device::open(0).unwrap();
        for (name, layers, context) in [
            ("qwen3-tts-1.7b", 3, 700),
            ("qwen3-tts-1.7b", 2, 3),
            ("qwen3-tts-0.6b", 3, 100),
            ("stt-1b", 2, 900),
            ("stt-1b", 5, 40),
        ] {
            let config = config(name, layers);
            for greedy in [true, false] {
                let rest = Sampling {
                    temperature: if greedy { 0.0 } else { 0.9 },
                    top_k: 50,
                    seed: 11,
                    ..Sampling::default()
                };
                let first = Sampling { penalty: 1.05, below: 2000, also: Some(2500), ..rest };
                let row = FrameRow { slot: 1, first, rest };
                let mut plain = Run::new(&device, &config, false, context);
                let mut fused = Run::new(&device, &config, true, context);
                let mut tokens: Vec<u32> = (0..config.columns() as u32).map(|c| 3 * c + 1).collect();
                let mut other = 0;
                for frame in 0..FRAMES {
                    let (logits, drawn) = plain.step(&tokens, row);
                    let (got, own) = fused.step(&tokens, row);
                    let top = logits.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                    let off = logits.iter().zip(&got).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
                    assert!(
                        off <= TOLERANCE * top,
                        "{name} x{layers}, frame {frame}: logits are {off} off of {top}"
                    );
                    other += drawn.iter().zip(&own).filter(|(a, b)| a != b).count();
                    tokens.clone_from(&drawn);
                }
                assert!(other * 20 <= FRAMES * config.drawn(), "{name} x{layers}: {other} tokens differ");
            }
        }
    }
}

/// Layers as those of tts-1.6b, which look at a source besides, and of dialogue, whose rows are longer.
struct Looking {
    exec: Exec,
    decoder: Decoder,
    state: DecoderState,
    x: Buffer,
}

/// Values that repeat after some hundred.
fn made(rows: usize, cols: usize, seed: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| ((i * 37 + seed * 101) % 251) as f32 / 125.0 - 1.0).collect()
}

impl Looking {
    fn new(device: &Arc<Device>, config: DecoderConfig, frames: bool, source: Option<usize>) -> Self {
        device.tune(Tuning { frames, ..Tuning::default() });
        let mut exec = Exec::on(device).unwrap();
        let looks = source.is_some();
        let weights = repeated_weights(5, move |name| looks && name.contains("cross"));
        let loader = Loader::new(weights).on(device.clone());
        let decoder = Decoder::load(&loader, config, Formats::on_device(Precision::Bf16)).unwrap();
        let shape = TransformerShape { slots: 2, rows: 1, rows_per_slot: 1, positions: 900 };
        let mut state = decoder.state(shape);
        if let Some(rows) = source {
            let mut cross = decoder.cross_state(2, 640, 1);
            let mut seen = Buffer::new(rows, config.hidden);
            seen.head_mut(rows).copy_from_slice(&made(rows, config.hidden, 3));
            let cache = decoder.look_at(&mut exec, &seen, None);
            exec.copy_prefix(&mut cross.cache, 1, &cache, 0, rows);
            cross.spans = vec![Span { slot: 1, rows: 1 }];
            state.cross = Some(cross);
        }
        Self { exec, decoder, state, x: Buffer::new(1, config.hidden) }
    }

    fn step(&mut self, frame: usize) -> Vec<f32> {
        let cols = self.x.cols();
        self.x.head_mut(1).copy_from_slice(&made(1, cols, frame));
        self.decoder.run(&mut self.exec, &mut self.x, &[Span { slot: 1, rows: 1 }], &mut self.state);
        self.exec.fetch(&mut self.x, 1);
        self.exec.status().unwrap();
        self.x.row(0).to_vec()
    }
}

#[test]
fn layers_that_look_at_a_source_and_those_of_long_rows_are_one_kernel() {
    if std::env::var("VOCE_TEST_DEVICE").is_ok_and(|d| d == "cuda") {
        let device = Device::open(0).unwrap();
        let tts = DecoderConfig {
            layers: 3,
            hidden: 2048,
            ffn: 5632,
            heads: 16,
            kv_heads: 16,
            head_dim: 128,
            rope: Some(RopeStyle::Interleaved),
            theta: 1e4,
            eps: 1e-8,
            head_norm: false,
            window: Some(500),
            names: DecoderNames::Moshi,
        };
        let moshi = DecoderConfig { hidden: 4096, ffn: 11264, heads: 32, kv_heads: 32, ..tts };
        // Its depth transformer: inputs that do not fill the last part of a row.
        let depth =
            DecoderConfig { hidden: 1024, ffn: 2816, head_dim: 64, window: Some(8), rope: None, ..tts };
        for (config, source) in [(tts, Some(1)), (tts, Some(625)), (moshi, None), (depth, None)] {
            let mut plain = Looking::new(&device, config, false, source);
            let mut fused = Looking::new(&device, config, true, source);
            for frame in 0..FRAMES {
                let (want, got) = (plain.step(frame), fused.step(frame));
                let top = want.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let off = want.iter().zip(&got).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(off <= TOLERANCE * top, "{source:?}, frame {frame}: rows are {off} off of {top}");
            }
        }
    }
}
