//! Searches on a device, decided there and by the host, without the encoder: `cargo bench -p voce-models --bench search`.
//!
//! Random weights of the 0.6B models' sizes, sharpened, with a blank that leaves about one label in four frames. One line
//! of JSON per size, with what kernels took where `events` is an argument; nothing without a GPU.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use voce_models::fastconformer::{
    Attention, ConvNorm, EncoderConfig, FastConformerConfig, Head, MelConfig, MelNormalize, PredictorConfig,
};
use voce_models::transducer::{Decoder, RepeatGuard, Search, SearchOptions, SearchState};
use voce_nn::weights::{RandomWeights, Tensor};
use voce_nn::{Formats, Loader, Precision, WeightError, Weights};
use voce_runtime::cuda::{Device, Tuning};
use voce_runtime::transducer::MAX_CYCLE;
use voce_runtime::{Buffer, Exec, Span};

const VOCAB: usize = 1024;
const JOINT: usize = 640;
const DURATIONS: [usize; 5] = [0, 1, 2, 3, 4];
const WARM: usize = 8;
const STEPS: usize = 12;

/// Random weights whose logits and predictors have something to say, and how much the blank is preferred.
struct Sharp(f32);

impl Weights for Sharp {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let mut tensor = RandomWeights::new(3, |name| name.contains("bias")).get(name, expected)?;
        if let Some(t) = &mut tensor {
            let loud = if name.contains("joint_net") { 12.0 } else { 8.0 };
            if name.ends_with("weight") && (name.contains("joint_net") || name.contains("joint.pred")) {
                t.values.iter_mut().for_each(|v| *v *= loud);
            }
            if name.ends_with("joint_net.2.bias") {
                t.values[VOCAB] += self.0;
            }
        }
        Ok(tensor)
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        name.contains("bias").then(Vec::new)
    }
}

fn decoder(device: &Arc<Device>, tdt: bool, blank: f32) -> Decoder {
    let predictor = PredictorConfig { hidden: 640, layers: 2, joint: JOINT, max_symbols: 3 };
    let encoder = EncoderConfig {
        layers: 1,
        dim: 64,
        heads: 2,
        ff_dim: 16,
        conv_kernel: 9,
        conv_norm: ConvNorm::Layer,
        subsampling_channels: 4,
        subsampling_factor: 8,
        causal: true,
        scale_input: false,
        attention: Attention::Full,
    };
    let config = FastConformerConfig {
        mel: MelConfig { sample_rate: 16_000, bins: 80, normalize: MelNormalize::None, bf16_filters: false },
        encoder,
        prompt: None,
        vocab: VOCAB,
        head: if tdt {
            Head::Tdt { predictor, durations: DURATIONS.to_vec() }
        } else {
            Head::Rnnt(predictor)
        },
        auxiliary_ctc: false,
    };
    let loader = Loader::new(Arc::new(Sharp(blank))).on(device.clone());
    Decoder::load(&loader, &config, Formats::on_device(Precision::Bf16)).expect("random weights have all")
}

fn frames(rows: usize) -> Buffer {
    let mut x = Buffer::new(rows, JOINT);
    let mut state = 9u64;
    for v in x.head_mut(rows) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *v = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    }
    x
}

/// Milliseconds of each step, the shortest first, and labels per frame.
fn time(
    exec: &mut Exec,
    decoder: &Decoder,
    options: &SearchOptions,
    (streams, rows): (usize, usize),
) -> (Vec<f64>, f64) {
    let mut search = Search::new(decoder, streams);
    let fresh = SearchState::new(decoder, options).expect("options fit");
    let mut states = vec![fresh; streams];
    let mut x = frames(streams * rows);
    let spans = vec![Span { slot: 0, rows }; streams];
    let mut taken = Vec::new();
    for step in 0..WARM + STEPS {
        let begun = Instant::now();
        search.step(exec, decoder, &mut x, &spans, &mut states);
        exec.finish();
        if step >= WARM {
            taken.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    let found: usize = states.iter().map(|s| s.tokens().len()).sum();
    taken.sort_by(f64::total_cmp);
    (taken, found as f64 / (streams * rows * (WARM + STEPS)) as f64)
}

fn main() {
    let events = std::env::args().any(|a| a == "events");
    let Ok(device) = Device::open(0) else { return };
    device.tune(Tuning { events, ..Tuning::default() });
    let mut exec = Exec::on(&device).expect("an executor");
    // Whether TDT, streams, frames of a step, beam.
    let sizes: &[(bool, usize, usize, usize)] = &[
        (false, 1, 1, 1),
        (false, 1, 7, 1),
        (false, 64, 7, 1),
        (false, 3000, 7, 1),
        (false, 4000, 1, 1),
        (false, 1, 7, 4),
        (false, 64, 7, 4),
        (false, 3000, 7, 4),
        (false, 64, 7, 32),
        (true, 1, 125, 1),
        (true, 64, 125, 1),
        (true, 64, 125, 4),
    ];
    for tdt in [false, true] {
        let sizes: Vec<_> = sizes.iter().filter(|s| s.0 == tdt).collect();
        // The blank that is so much preferred that labels are as often as in speech.
        let (mut low, mut high) = (0.0, 60.0);
        for _ in 0..7 {
            let blank = (low + high) / 2.0;
            let often = time(&mut exec, &decoder(&device, tdt, blank), &SearchOptions::default(), (8, 20)).1;
            (low, high) = if often > 0.25 { (blank, high) } else { (low, blank) };
        }
        let decoder = decoder(&device, tdt, high);
        for &&(_, streams, rows, beam) in &sizes {
            // What is never reached, and longer than a device looks for: with it the host decides.
            let guard = Some(RepeatGuard { cycle: MAX_CYCLE + 1, repeats: 1 << 40 });
            for (who, repeat_guard) in [("device", None), ("host", guard)] {
                let options = SearchOptions { repeat_guard, ..SearchOptions::with_beam(beam) };
                device.timings();
                let (ms, often) = time(&mut exec, &decoder, &options, (streams, rows));
                let (head, median, last) = (if tdt { "tdt" } else { "rnnt" }, ms[STEPS / 2], ms[STEPS - 1]);
                let kernels: Vec<String> = device
                    .timings()
                    .iter()
                    .map(|t| format!("[\"{}\", {}, {:.3}]", t.name, t.runs, t.time.as_secs_f64() * 1e3))
                    .collect();
                println!(
                    "{{\"head\": \"{head}\", \"streams\": {streams}, \"frames\": {rows}, \"beam\": {beam}, \"decides\": \"{who}\", \
                     \"step_ms\": {median:.3}, \"max_ms\": {last:.3}, \"labels_per_frame\": {often:.3}, \"kernels\": [{}]}}",
                    kernels.join(", ")
                );
            }
        }
    }
}
