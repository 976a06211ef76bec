//! What smaller weights cost: signal-to-noise ratios against the published package's f32.
//!
//! The small models are the worst case: their narrow layers average the rounding over few values.

mod support;

use support::{CASES, Talker, exact, folder, snr};
use voce_models::mimi::MimiDecoder;
use voce_models::pocket::{FlowLm, PocketConfig, SeparateFiles, Voice};
use voce_nn::weights::SafetensorsFile;
use voce_nn::{Formats, Loader, Precision};
use voce_runtime::{Exec, Isa, Span};

/// Decibels of latents and of decoded audio when each frame continues from the package's own.
fn led(case: &str, precision: Precision) -> (f64, f64) {
    let t = Talker::new(case, &exact());
    let dir = folder(case);
    let open = |name: &str| SafetensorsFile::open(&dir.join(name)).unwrap();
    let yaml = std::fs::read_to_string(dir.join("config.yaml")).unwrap();
    let config = PocketConfig::from_yaml(&yaml).unwrap();
    let loader = match &config.weights_path {
        Some(path) => Loader::new(std::sync::Arc::new(open(path))),
        None => Loader::new(std::sync::Arc::new(SeparateFiles {
            flow_lm: open("flow_lm.safetensors"),
            mimi: open("mimi.safetensors"),
        })),
    };
    let formats = Formats::new(precision, Isa::from_env().unwrap());
    let mut exec = Exec::new(1).unwrap();
    let lm = FlowLm::load(&loader.sub("flow_lm"), &config, formats).unwrap();
    let decoder =
        MimiDecoder::load(&loader.sub("mimi"), &config.mimi, formats, Some(lm.latent_scale())).unwrap();
    let voice = Voice::read(&open("voice.safetensors"), &mut exec, &lm).unwrap();
    let tokens: Vec<u32> =
        t.json["tokens"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();

    let (want, noise) = (t.dump("noise/latent"), t.dump("noise/noise"));
    let latent = lm.latent_dim();
    let mut state = lm.state(1, voice.positions() + tokens.len() + want.len() / latent);
    lm.start(&mut exec, &mut state, 0, &voice);
    lm.prefill_tokens(&mut exec, &mut state, 0, &tokens);
    let mut got = Vec::new();
    for (noise, want) in noise.chunks(latent).zip(want.chunks(latent)).take(40) {
        got.extend_from_slice(lm.step(&mut exec, &mut state, &[0], noise, t.steps).latents);
        state.set_last(&mut exec, 0, want);
    }
    let latents = snr(&got, &want[..got.len()]);

    let (frames, want) = (t.dump("zero/latent"), t.dump("zero/audio"));
    let n = want.len() / decoder.frame_size();
    let mut state = decoder.state(1, 4);
    let mut got = Vec::new();
    for part in frames[..n * latent].chunks(4 * latent) {
        let spans = [Span { slot: 0, rows: part.len() / latent }];
        got.extend_from_slice(decoder.decode(&mut exec, &mut state, &spans, part));
    }
    (latents, snr(&got, &want))
}

/// Decibels of the first three frames of a request, left to itself: the median of several seeds, since a small change of
/// rounding moves a single one by several decibels either way.
fn left_alone(case: &str, precision: Precision) -> f64 {
    let say = |precision, seed| {
        let t = Talker::new(case, &exact().with_precision(Some(precision)));
        let request = t.request().with_max_frames(Some(3)).with_temperature(Some(0.3)).with_seed(seed);
        t.say("The quick brown fox.", &request)
    };
    let mut of_seeds: Vec<f64> =
        (1..=9).map(|seed| snr(&say(precision, seed), &say(Precision::F32, seed))).collect();
    of_seeds.sort_by(f64::total_cmp);
    of_seeds[of_seeds.len() / 2]
}

#[test]
fn each_precision_keeps_its_signal_to_noise_ratio() {
    let mut bad = Vec::new();
    // The least decibels of led latents, of the codec, and of a request's first frames.
    for (precision, bounds) in [
        (Precision::F32, [110.0, 110.0, 200.0]),
        (Precision::Bf16, [42.0, 38.0, 27.0]),
        (Precision::Int8, [30.0, 31.0, 22.0]),
        (Precision::Int4, [13.0, 31.0, 11.0]),
    ] {
        for case in CASES {
            let (latents, codec) = led(case, precision);
            let got = [latents, codec, left_alone(case, precision)];
            if got.iter().zip(bounds).any(|(got, bound)| *got < bound) {
                bad.push(format!("{precision} {case}: {got:.1?} dB, not {bounds:?}"));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
