//! Streams that go on and on: a device beside the CPU, step by step, without drift, NaN or leak.
//!
//! `VOCE_LONG_STEPS` says how many steps; few by default, as the emulated device is slow. `VOCE_TEST_DEVICE=cuda` runs it on a GPU.

mod backend;
mod recogniser;

use std::sync::Arc;

use recogniser::{Case, error, folder, look_aheads, rows};
use voce_models::decoder::{FrameConfig, FrameDecoder, FrameRow, FrameShape, FrameState, random_weights};
use voce_models::fastconformer::{Encoder, EncoderState, FastConformerConfig, StreamShape, canonical};
use voce_models::transducer::{Decoder, Search, SearchOptions, SearchState};
use voce_nn::weights::SafetensorsFile;
use voce_nn::{DecoderConfig, DecoderNames, Formats, Loader, Precision, Weights};
use voce_runtime::{Buffer, Exec, FrameSpan, Isa, RopeStyle, Sampling, Span};

/// f32 on both sides, summed in different orders.
const TOLERANCE: f32 = 1e-3;
/// Steps after which a search begins a new utterance, so that a tie that falls otherwise is soon forgotten.
const UTTERANCE: usize = 32;
/// Steps after which no memory is asked for any more.
const SETTLED: usize = 200;
/// What a process may grow by all the same.
const SLACK: u64 = 16 << 20;

fn steps() -> usize {
    std::env::var("VOCE_LONG_STEPS").map_or(48, |n| n.parse().expect("VOCE_LONG_STEPS is a number"))
}

/// Resident memory of this process.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// What this process holds of the device's memory and of its own.
fn memory(exec: &Exec) -> (u64, u64) {
    (exec.device().map_or(0, |d| d.used() as u64), resident())
}

fn assert_settled(exec: &Exec, before: (u64, u64)) {
    let now = memory(exec);
    assert!(now.0 <= before.0, "the device held {} bytes and holds {}", before.0, now.0);
    assert!(now.1 <= before.1 + SLACK, "the process had {} bytes and has {}", before.1, now.1);
    exec.status().unwrap();
}

/// A recogniser's stream at one place.
struct Ear {
    exec: Exec,
    encoder: Encoder,
    decoder: Decoder,
    state: EncoderState,
    search: Search,
    found: [SearchState; 1],
    projected: Buffer,
}

impl Ear {
    fn new(
        exec: Exec,
        loader: &Loader,
        formats: Formats,
        config: &FastConformerConfig,
        shape: StreamShape,
    ) -> Self {
        let mut exec = exec;
        let encoder = Encoder::load(loader, config, formats, &mut exec).unwrap();
        let decoder = Decoder::load(loader, config, formats).unwrap();
        let mut state = encoder.state(2, shape.look_ahead + 2);
        encoder.start(&mut state, 1, shape);
        let search = Search::new(&decoder, 1);
        let found = [SearchState::new(&decoder, &SearchOptions::with_beam(1)).unwrap()];
        let projected = Buffer::new(shape.look_ahead + 2, decoder.frame_width());
        Self { exec, encoder, decoder, state, search, found, projected }
    }

    /// One chunk; returns its encoder rows and the labels found in it.
    fn step(&mut self, mel: &Buffer) -> (Vec<f32>, Vec<u32>) {
        let span = FrameSpan { slot: 1, rows: mel.rows(), last: false };
        let (x, made) = self.encoder.step(&mut self.exec, &mut self.state, mel, &[span]);
        let rows = made[0].rows;
        self.decoder.project(&mut self.exec, x, rows, &mut self.projected);
        self.exec.fetch(x, rows);
        let values = x.head(rows).to_vec();
        let span = Span { slot: 0, rows };
        self.search.step(&mut self.exec, &self.decoder, &mut self.projected, &[span], &mut self.found);
        (values, self.found[0].take_stable().iter().map(|t| t.id).collect())
    }
}

#[test]
fn a_recogniser_does_not_drift() {
    backend::on_device();
    let case = Case::new("stream", Precision::F32);
    let shape = StreamShape { look_ahead: look_aheads(&case)[0], language: 0 };
    let file = || -> Arc<dyn Weights> {
        canonical(Arc::new(SafetensorsFile::open(&folder().join("stream/model.safetensors")).unwrap()))
    };
    let cpu = Formats::new(Precision::F32, Isa::from_env().unwrap());
    let mut here = Ear::new(Exec::new(1).unwrap(), &Loader::new(file()), cpu, &case.config, shape);
    let mut there = Ear::new(backend::exec(1), &case.loader, case.formats, &case.config, shape);
    let mel = case.mel();
    let (mut at, mut other, mut labels, mut before) = (0, 0, 0, None);
    for step in 0..steps() {
        let n = here.encoder.mel_rows(shape.look_ahead, 1, step == 0);
        if at + n > mel.rows() {
            at = 0;
        }
        let chunk = rows(&mel, at..at + n);
        at += n;
        let (want, words) = here.step(&chunk);
        let (got, heard) = there.step(&chunk);
        assert!(got.iter().all(|v| v.is_finite()), "step {step}");
        let e = error(&got, &want);
        assert!(e < TOLERANCE, "step {step}: {e:e}");
        other += usize::from(words != heard);
        labels += words.len();
        if step % UTTERANCE == UTTERANCE - 1 {
            for ear in [&mut here, &mut there] {
                ear.found[0].reset_utterance(&ear.decoder);
            }
        }
        if step == SETTLED {
            before = Some(memory(&there.exec));
        }
    }
    assert!(labels > 0, "something is heard");
    assert!(other <= steps() / 1000, "{other} of {} steps have other labels", steps());
    if let Some(before) = before {
        assert_settled(&there.exec, before);
    }
}

#[test]
fn a_decoder_does_not_drift_over_a_full_ring() {
    backend::on_device();
    let config = FrameConfig {
        decoder: DecoderConfig {
            layers: 2,
            hidden: 64,
            ffn: 96,
            heads: 4,
            kv_heads: 4,
            head_dim: 16,
            rope: Some(RopeStyle::Interleaved),
            theta: 1e4,
            eps: 1e-6,
            head_norm: false,
            window: Some(30),
            names: DecoderNames::Moshi,
        },
        vocab: 29,
        embeddings: 30,
        predictor: None,
        given: vec![13; 3],
    };
    let cpu = Formats::new(Precision::F32, Isa::from_env().unwrap());
    let weights = random_weights(5);
    let make = |mut exec: Exec, loader: &Loader, formats| -> (Exec, FrameDecoder, FrameState) {
        let model = FrameDecoder::load(&mut exec, loader, &config, vec![], formats).unwrap();
        let mut state = model.state(FrameShape { slots: 2, positions: 0, prefill: 1 });
        (0..2).for_each(|slot| state.start(&mut exec, slot));
        (exec, model, state)
    };
    let mut here = make(Exec::new(1).unwrap(), &Loader::new(weights.clone()), cpu);
    let mut there = make(backend::exec(1), &backend::loader(weights), backend::formats(Precision::F32));
    let (mut other, mut before) = (0, None);
    for step in 0..steps() {
        let row = |slot| FrameRow { slot, first: Sampling::default(), rest: Sampling::default() };
        let given: Vec<u32> = (0..6).map(|i| (i * 5 + step as u32) % 13).collect();
        let mut drawn = [[0; 2]; 2];
        for ((exec, model, state), drawn) in [&mut here, &mut there].into_iter().zip(&mut drawn) {
            state.give(exec, &[0, 1], 1, &given);
            model.step(exec, state, &[row(0), row(1)]);
            let tokens = state.tokens(exec);
            *drawn = [tokens.row(0)[0], tokens.row(1)[0]];
        }
        if drawn[0] != drawn[1] {
            // A tie that fell otherwise; both go on from the same.
            other += 1;
            there.2.give(&mut there.0, &[0, 1], 0, &drawn[0]);
        }
        if step == SETTLED {
            before = Some(memory(&there.0));
        }
    }
    assert!(other <= steps() / 1000, "{other} of {} steps draw other tokens", steps());
    if let Some(before) = before {
        assert_settled(&there.0, before);
    }
}
