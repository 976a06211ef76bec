//! Models in fp8 on a device against the published packages: what e4m3 costs each family, stated in decibels.
//!
//! As `device.rs`, on the emulated device unless `VOCE_TEST_DEVICE` says otherwise. The fixtures are small models of random
//! weights, whose rows are short: longer ones average more of the rounding away.

mod backend;
mod fixture;
mod recogniser;

use recogniser::{look_aheads, rows, snr, stream};
use voce_models::fastconformer::StreamShape;
use voce_nn::{Formats, Precision};
use voce_runtime::{Exec, FrameSpan, KvFormat};

/// fp8, with keys and values in it or in bf16, and in bf16 with keys and values in fp8.
fn mixtures() -> [(&'static str, Formats); 3] {
    let (fp8, bf16) = (backend::formats(Precision::Fp8), backend::formats(Precision::Bf16));
    [
        ("fp8", fp8),
        ("fp8, keys and values in bf16", Formats { kv: KvFormat::Bf16, ..fp8 }),
        ("bf16, keys and values in fp8", Formats { kv: KvFormat::Fp8, ..bf16 }),
    ]
}

#[test]
fn recognisers_stay_close() {
    backend::on_device();
    for ((name, formats), least) in mixtures().into_iter().zip([18.0, 18.0, 27.0]) {
        let mut case = recogniser::Case::new("stream", Precision::Fp8);
        case.formats = formats;
        let mut exec = backend::exec(1);
        let encoder = case.encoder(&mut exec);
        let r = look_aheads(&case)[0];
        let shape = StreamShape { look_ahead: r, language: 0 };
        // Few rows at a time, and many, which are quantised as well.
        for chunks in [1, 8] {
            let got = stream(&mut exec, &encoder, &case.mel(), shape, &[chunks], |_, _, _, _| ());
            let db = snr(&got, &case.expected(&format!("R{r}/encoder")));
            assert!(db > least, "{name}, {chunks} chunks at a time: {db:.1} dB");
        }
        exec.status().unwrap();
    }
    let case = recogniser::Case::new("tdt", Precision::Fp8);
    let mut exec = backend::exec(1);
    let encoder = case.encoder(&mut exec);
    let mel = case.mel();
    let mut state = encoder.state(1, 16);
    encoder.start(&mut state, 0, StreamShape { look_ahead: 0, language: 0 });
    let (x, made) =
        encoder.step(&mut exec, &mut state, &mel, &[FrameSpan { slot: 0, rows: mel.rows(), last: true }]);
    exec.fetch(x, made[0].rows);
    let db = snr(x.head(made[0].rows), &case.expected("encoder"));
    assert!(db > 19.0, "whole utterances: {db:.1} dB");
    exec.status().unwrap();
}

/// A stream's rings travel as they are, to a slot of the same precision or, rounded no further, of bf16.
#[test]
fn streams_go_on_from_a_snapshot() {
    backend::on_device();
    let case = recogniser::Case::new("stream", Precision::Fp8);
    let mut exec = backend::exec(1);
    let encoder = case.encoder(&mut exec);
    let mel = case.mel();
    let shape = StreamShape { look_ahead: look_aheads(&case)[0], language: 0 };
    let cut = encoder.mel_rows(shape.look_ahead, 3, true);
    let mut state = encoder.state(3, 40);
    encoder.start(&mut state, 1, shape);
    let go_on = |exec: &mut Exec, state: &mut _, slot: usize, range: std::ops::Range<usize>| {
        let span = FrameSpan { slot, rows: range.len(), last: range.end == mel.rows() };
        let (x, made) = encoder.step(exec, state, &rows(&mel, range), &[span]);
        let made = made[0].rows;
        exec.fetch(x, made);
        x.head(made).to_vec()
    };
    go_on(&mut exec, &mut state, 1, 0..cut);
    let saved = encoder.save(&mut exec, &state, 1);
    let mut bf16 = recogniser::Case::new("stream", Precision::Fp8);
    bf16.formats = mixtures()[1].1;
    let wider = bf16.encoder(&mut exec);
    for slot in [0, 2] {
        encoder.restore(&mut exec, &mut state, slot, &saved).unwrap();
        assert!(encoder.save(&mut exec, &state, slot) == saved, "slot {slot}");
    }
    let mut other = wider.state(1, 40);
    wider.restore(&mut exec, &mut other, 0, &saved).unwrap();
    assert!(wider.save(&mut exec, &other, 0) == saved, "in bf16");
    let [a, b] = [1, 2].map(|slot| go_on(&mut exec, &mut state, slot, cut..mel.rows()));
    assert!(a == b, "goes on as it would have");
    exec.status().unwrap();
}

#[test]
fn pocket_stays_close_and_slots_do_not_meet() {
    backend::on_device();
    for name in ["lsd4", "drifting_gqa"] {
        for ((format, formats), least) in mixtures().into_iter().zip([24.0, 24.0, 31.0]) {
            let mut case = fixture::Case::new(name, Precision::Fp8);
            case.formats = formats;
            let mut exec = backend::exec(1);
            let lm = case.lm();
            let voice = case.voice(&mut exec, &lm);
            let (tokens, latent, frames) = (case.tokens(), lm.latent_dim(), 3);
            let mut state = lm.state(4, voice.positions() + tokens.len() + frames);
            for slot in [1, 3] {
                lm.start(&mut exec, &mut state, slot, &voice);
                lm.prefill_tokens(&mut exec, &mut state, slot, &tokens);
            }
            let (noise, want) = (case.dump("noise/noise"), case.dump("noise/latent"));
            let mut got = Vec::new();
            for t in 0..frames {
                let part = &noise[t * latent..(t + 1) * latent];
                let alone = lm.step(&mut exec, &mut state, &[1], part, case.steps()).latents.to_vec();
                let both = lm.step(&mut exec, &mut state, &[3], part, case.steps()).latents;
                assert_eq!(alone, both, "{name} {format} frame {t}");
                got.extend_from_slice(&alone);
                let want = &want[t * latent..(t + 1) * latent];
                [1, 3].iter().for_each(|&slot| state.set_last(&mut exec, slot, want));
            }
            let db = snr(&got, &want[..frames * latent]);
            assert!(db > least, "{name} {format}: {db:.1} dB");
            exec.status().unwrap();
        }
    }
}
