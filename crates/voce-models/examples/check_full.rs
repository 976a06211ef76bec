//! Compares a full-size model with what the published package computed from it, at every precision.
//!
//!     python reference/pocket/make_full.py --config english --out DIR --seed 0 --frames 200
//!     cargo run --release -p voce-models --example check_full -- DIR
#![allow(clippy::print_stdout)]

#[path = "../tests/backend/mod.rs"]
mod backend;
#[path = "../tests/fixture/mod.rs"]
mod fixture;

use fixture::{Case, snr};
use voce_nn::Precision;
use voce_runtime::Span;

fn main() {
    for dir in std::env::args().skip(1) {
        println!(
            "{dir}\n{:>9} {:>14} {:>14} {:>14} {:>12}",
            "precision", "latents, led", "latents, free", "audio", "audio dB"
        );
        for precision in Precision::ON_CPU {
            check(&dir, precision);
        }
    }
}

fn check(dir: &str, precision: Precision) {
    let case = Case::open(dir.into(), precision);
    let mut exec = backend::exec(2);
    let lm = case.lm();
    let decoder = case.decoder(Some(lm.latent_scale()));
    let voice = case.voice(&mut exec, &lm);
    let (tokens, want, noise) = (case.tokens(), case.dump("noise/latent"), case.dump("noise/noise"));
    let latent = lm.latent_dim();
    let frames = want.len() / latent;
    let mut errors = [0f32; 2];
    let scale = want.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (led, error) in [true, false].into_iter().zip(&mut errors) {
        let mut state = lm.state(1, voice.positions() + tokens.len() + frames);
        lm.start(&mut exec, &mut state, 0, &voice);
        lm.prefill_tokens(&mut exec, &mut state, 0, &tokens);
        for t in 0..frames {
            let part = t * latent..(t + 1) * latent;
            let out = lm.step(&mut exec, &mut state, &[0], &noise[part.clone()], case.steps());
            let far =
                out.latents.iter().zip(&want[part.clone()]).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            *error = error.max(far / scale);
            if led {
                state.set_last(&mut exec, 0, &want[part]);
            }
        }
    }
    let audio = case.dump("noise/audio");
    let n = audio.len() / decoder.frame_size();
    let mut state = decoder.state(1, 1);
    let mut got = Vec::new();
    for frame in want.chunks_exact(latent).take(n) {
        got.extend_from_slice(decoder.decode(&mut exec, &mut state, &[Span { slot: 0, rows: 1 }], frame));
    }
    let loudest = audio.iter().fold(0f32, |m, v| m.max(v.abs()));
    let far = got.iter().zip(&audio).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max) / loudest;
    println!(
        "{precision:>9} {:>14.2e} {:>14.2e} {far:>14.2e} {:>12.1}",
        errors[0],
        errors[1],
        snr(&got, &audio)
    );
}
