//! One stream's frame as one kernel against the same frame launch by launch: logits and tokens, for the widths of published models
//! with few layers. A GPU alone has such launches: `VOCE_TEST_DEVICE=cuda` runs it.

use std::sync::Arc;

use voce_models::decoder::{FrameConfig, FrameDecoder, FrameRow, FrameShape, FrameState, random_weights};
use voce_nn::{Formats, Loader, Precision};
use voce_runtime::cuda::{Device, Tuning};
use voce_runtime::{Exec, Sampling};

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
