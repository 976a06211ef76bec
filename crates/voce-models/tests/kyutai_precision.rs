//! How far Kyutai's models in bf16, int8 and int4 are from the published package in f32: logits and choices of every step from
//! the package's own tokens, Mimi's samples and codes.

mod backend;
mod kyutai;
mod kyutai_mimi;
mod meter;

use kyutai::Case;
use meter::Meter;
use voce_models::codec::Codec as _;
use voce_models::kyutai::Lm;
use voce_nn::Precision;
use voce_runtime::Span;

/// Logits of the text in every step of every stream.
fn logits(name: &str, precision: Precision) -> Meter {
    let mut case = Case::open(name);
    case.formats = backend::formats(precision);
    let mut exec = backend::exec(1);
    let lm = Lm::load(&mut exec, &case.loader, &case.config, case.formats).unwrap();
    let [steps, streams, columns] = case.shape("inputs")[..] else { panic!("inputs by step and stream") };
    let (inputs, want) = (case.tokens("inputs"), case.dump("text_logits"));
    let mut state = lm.state(streams);
    let slots: Vec<usize> = (0..streams).collect();
    for &slot in &slots {
        lm.start(&mut exec, &mut state, slot, &kyutai::conditions(name, slot));
    }
    let mut meter = Meter::default();
    for (inputs, want) in inputs.chunks(streams * columns).zip(want.chunks(want.len() / steps)) {
        state.give(&mut exec, &slots, 0, inputs);
        lm.step(&mut exec, &mut state, &slots);
        let got = state.logits(&mut exec, streams);
        let width = want.len() / streams;
        for (got, want) in got.chunks(width).zip(want.chunks(width)) {
            meter.choose(got, want);
        }
    }
    meter
}

#[test]
fn logits_and_choices_stay_near_the_package() {
    // Layers of 32 values lose more than the published ones, which have 64 times as many.
    for (precision, least, same) in [
        (Precision::F32, 90.0, 1.0),
        (Precision::Bf16, 30.0, 0.95),
        (Precision::Int8, 25.0, 0.9),
        (Precision::Int4, 8.0, 0.6),
    ] {
        for name in ["lm_heads", "lm_plain"] {
            let meter = logits(name, precision);
            assert!(meter.of > 70, "{meter:?}");
            let db = meter.db();
            assert!(db > least && meter.share() >= same, "{name} {precision}: {db:.1} dB, {meter:?}");
        }
    }
}

#[test]
fn mimi_sounds_and_hears_nearly_the_same() {
    for name in kyutai_mimi::CASES {
        for (precision, least, same) in
            [(Precision::F32, 80.0, 0.95), (Precision::Bf16, 25.0, 0.6), (Precision::Int8, 20.0, 0.5)]
        {
            let mut case = kyutai_mimi::Case::f32(name);
            case.formats = backend::formats(precision);
            let (mimi, mut exec) = (case.mimi(), backend::exec(1));
            let &[streams, books, frames] = &case.dump.shape("codes")[..] else { panic!("codes of streams") };
            let (codes, decoded) = (case.dump.numbers("codes"), case.dump.floats("decoded"));
            let by_frame: Vec<u32> =
                (0..frames * books).map(|i| codes[i % books * frames + i / books] as u32).collect();
            let mut state = mimi.decoder().state(1, frames);
            let span = [Span { slot: 0, rows: frames }];
            let mut sound = Meter::default();
            let got = mimi.decoder().decode_codes(&mut exec, &mut state, &span, &by_frame);
            sound.add(got, &decoded[..decoded.len() / streams]);
            assert!(sound.db() > least, "{name} {precision}: {:.1} dB", sound.db());
            // The first codebook of each half decides what the next ones search.
            let pcm = case.dump.floats("pcm");
            let found = mimi.encode(&mut exec, &pcm[..pcm.len() / streams]).unwrap();
            let mut heard = Meter::default();
            for book in [0, case.config.quantizer.first] {
                for t in 0..frames {
                    heard.chose(i64::from(found[book][t]) == codes[book * frames + t], 0.0);
                }
            }
            assert!(heard.share() >= same, "{name} {precision}: {heard:?}");
        }
    }
}
