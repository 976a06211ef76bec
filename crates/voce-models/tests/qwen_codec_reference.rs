//! The speech tokenizer of Qwen3-TTS, stage by stage, against what the published package computed.

mod backend;
mod qwen_codec;

use std::collections::HashMap;

use qwen_codec::{CASES, Case, check, snr};
use voce_models::mimi::Stage;
use voce_models::qwen::codec::{DecoderStage, EncodeError, MAX_ENCODED_SECONDS};
use voce_models::qwen::speaker::{MAX_SPEAKER_SECONDS, SpeakerError};
use voce_nn::Precision;
use voce_runtime::Span;

const TOLERANCE: f32 = 2e-5;

fn name(stage: DecoderStage) -> String {
    match stage {
        DecoderStage::Quantizer => "quantizer".into(),
        DecoderStage::PreConv => "pre_conv".into(),
        DecoderStage::Layer(i) => format!("transformer.{i}"),
        DecoderStage::Transformer => "transformer".into(),
        DecoderStage::Upsample(i, j) => format!("upsample.{i}.{j}"),
        DecoderStage::Decoder(i) => format!("decoder.{i}"),
        DecoderStage::Block(i, j) => format!("decoder.{i}.{j}"),
    }
}

#[test]
fn the_decoder_agrees_stage_by_stage() {
    for case_name in CASES {
        let case = Case::f32(case_name);
        let mut exec = backend::exec(2);
        let decoder = case.decoder();
        let codes = case.codes("dec/codes");
        let frames = codes.len() / decoder.codebooks();
        let mut state = decoder.state(1, frames);
        let mut seen: HashMap<String, Vec<f32>> = HashMap::new();
        let audio = decoder.decode_watched(
            &mut exec,
            &mut state,
            &[Span { slot: 0, rows: frames }],
            &codes,
            Some(&mut |stage, rows: &[f32]| seen.entry(name(stage)).or_default().extend_from_slice(rows)),
        );
        check(&format!("{case_name} audio"), audio, &case.dump("dec/audio"), 1e-4);
        for (stage, rows) in &seen {
            let want = case.rows(&format!("dec/{stage}")).unwrap_or_else(|| panic!("{case_name} {stage}"));
            check(&format!("{case_name} {stage}"), &rows[..want.len()], &want, TOLERANCE);
        }
        let c = &case.config.decoder_config;
        let stages = 3 + c.num_hidden_layers + 2 * c.upsampling_ratios.len() + 3 + 5 * c.upsample_rates.len();
        assert_eq!(seen.len(), stages, "{case_name}: stages compared");
    }
}

#[test]
fn frame_by_frame_or_in_any_cut_the_samples_are_those_of_the_whole() {
    for case_name in CASES {
        for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
            let case = Case::new(case_name, precision);
            let mut exec = backend::exec(2);
            let decoder = case.decoder();
            let codes = case.codes("dec/codes");
            let books = decoder.codebooks();
            let mut runs: Vec<Vec<f32>> = Vec::new();
            for cut in [codes.len() / books, 1, 2, 3, 7] {
                let mut state = decoder.state(2, codes.len() / books);
                let mut audio = Vec::new();
                for part in codes.chunks(cut * books) {
                    let spans = [Span { slot: 1, rows: part.len() / books }];
                    audio.extend_from_slice(decoder.decode(&mut exec, &mut state, &spans, part));
                }
                runs.push(audio);
            }
            assert!(
                runs.iter().all(|r| *r == runs[0]),
                "{case_name} {precision}: the cut changes the samples"
            );
            assert_eq!(runs[0].len(), codes.len() / books * decoder.frame_size());
            // A slot that starts anew knows nothing of what was before.
            let mut state = decoder.state(1, 1);
            for _ in 0..2 {
                state.reset(0);
                let got =
                    decoder.decode(&mut exec, &mut state, &[Span { slot: 0, rows: 1 }], &codes[..books]);
                assert_eq!(got, &runs[0][..decoder.frame_size()], "{case_name} {precision} after a reset");
            }
        }
    }
}

#[test]
fn a_slot_in_company_has_the_bits_of_the_stream_alone() {
    for case_name in CASES {
        for precision in [Precision::F32, Precision::Bf16, Precision::Int8, Precision::Int4] {
            let case = Case::new(case_name, precision);
            let mut exec = backend::exec(2);
            let decoder = case.decoder();
            let (all, books) = (case.codes("dec/codes"), decoder.codebooks());
            let frames = all.len() / books;
            // Three streams of the same codes, shifted.
            let stream = |slot: usize| -> Vec<u32> {
                all.chunks(books).cycle().skip(3 * slot).take(frames).flatten().copied().collect()
            };
            let alone: Vec<Vec<f32>> = (0..3)
                .map(|slot| {
                    let mut state = decoder.state(1, frames);
                    let spans = [Span { slot: 0, rows: frames }];
                    decoder.decode(&mut exec, &mut state, &spans, &stream(slot)).to_vec()
                })
                .collect();
            // Slot 1 joins late, slot 0 leaves early, and each goes at its own pace.
            let mut state = decoder.state_for(3, 7, 3);
            let (mut at, mut got) = ([0usize; 3], vec![Vec::new(); 3]);
            for round in 0.. {
                let paces = [1 + round % 2, if round < 2 { 0 } else { 2 }, 1 + (round + 1) % 3];
                let spans: Vec<Span> = (0..3)
                    .rev()
                    .map(|slot| {
                        let end = if slot == 0 { frames - 2 } else { frames };
                        Span { slot, rows: paces[slot].min(end - at[slot]) }
                    })
                    .filter(|s| s.rows > 0)
                    .collect();
                if spans.is_empty() {
                    break;
                }
                let mut codes = Vec::new();
                for s in &spans {
                    codes.extend_from_slice(&stream(s.slot)[at[s.slot] * books..][..s.rows * books]);
                    at[s.slot] += s.rows;
                }
                let mut audio = decoder.decode(&mut exec, &mut state, &spans, &codes);
                for s in &spans {
                    let (own, rest) = audio.split_at(s.rows * decoder.frame_size());
                    got[s.slot].extend_from_slice(own);
                    audio = rest;
                }
                assert!(audio.is_empty());
            }
            for slot in 0..3 {
                let n = got[slot].len();
                assert!(n >= (frames - 2) * decoder.frame_size());
                assert_eq!(got[slot], alone[slot][..n], "{case_name} {precision} slot {slot}");
            }
        }
    }
}

#[test]
fn narrow_formats_stay_close() {
    for case_name in CASES {
        let want = Case::f32(case_name).dump("dec/audio");
        for (precision, least) in [(Precision::Bf16, 25.0), (Precision::Int8, 20.0)] {
            let case = Case::new(case_name, precision);
            let mut exec = backend::exec(1);
            let decoder = case.decoder();
            let codes = case.codes("dec/codes");
            let rows = codes.len() / decoder.codebooks();
            let mut state = decoder.state(1, rows);
            let got = decoder.decode(&mut exec, &mut state, &[Span { slot: 0, rows }], &codes);
            let db = snr(got, &want);
            assert!(db > least, "{case_name} {precision}: {db:.1} dB");
        }
    }
}

#[test]
fn a_slot_primed_with_frames_goes_on_as_if_they_had_been_decoded() {
    for case_name in CASES {
        for precision in [Precision::F32, Precision::Int8] {
            let case = Case::new(case_name, precision);
            let mut exec = backend::exec(2);
            let decoder = case.decoder();
            let (once, books) = (case.codes("dec/codes"), decoder.codebooks());
            // Long enough that the convolutions have forgotten the first frames.
            let codes = once.repeat(4);
            let frames = codes.len() / books;
            let mut whole = decoder.state(1, frames);
            let whole =
                decoder.decode(&mut exec, &mut whole, &[Span { slot: 0, rows: frames }], &codes).to_vec();
            for before in [1, 3, frames / 2, frames - 2] {
                let mut state = decoder.state_for(2, 5, 3);
                decoder.prime(&mut exec, &mut state, 1, &codes[..before * books]);
                let rows = 2;
                let next = &codes[before * books..][..rows * books];
                let got = decoder.decode(&mut exec, &mut state, &[Span { slot: 1, rows }], next);
                let want = &whole[before * decoder.frame_size()..][..rows * decoder.frame_size()];
                assert_eq!(got, want, "{case_name} {precision} after {before} frames");
            }
        }
    }
}

#[test]
fn the_encoder_agrees_stage_by_stage_and_gives_the_same_codes() {
    for case_name in CASES {
        let case = Case::f32(case_name);
        let mut exec = backend::exec(2);
        let encoder = case.encoder();
        let samples = case.reference();
        assert!(!samples.len().is_multiple_of(encoder.frame_size()), "a last frame that is short");
        let mut seen: HashMap<String, Vec<f32>> = HashMap::new();
        let codes = encoder
            .encode_watched(
                &mut exec,
                &samples,
                Some(&mut |stage, rows: &[f32]| {
                    let name = match stage {
                        Stage::Seanet(i) => format!("enc/seanet.{i}"),
                        Stage::Transformer => "enc/transformer".into(),
                        Stage::Downsample => "enc/downsample".into(),
                        _ => return,
                    };
                    seen.entry(name).or_default().extend_from_slice(rows);
                }),
            )
            .unwrap();
        for (stage, rows) in &seen {
            let want = case.rows(stage).unwrap_or_else(|| panic!("{case_name} {stage}"));
            check(&format!("{case_name} {stage}"), &rows[..want.len()], &want, TOLERANCE);
        }
        let c = &case.config.encoder_config;
        let stages = 4 + c.upsampling_ratios.len() * (c.num_residual_layers + 1);
        assert_eq!(seen.len(), stages, "{case_name}: stages compared");
        let frames = samples.len().div_ceil(encoder.frame_size());
        assert!(codes.iter().all(|book| book.len() == frames), "{case_name}");
        let got: Vec<u32> = (0..frames).flat_map(|t| codes.iter().map(move |book| book[t])).collect();
        assert_eq!(got, case.codes("enc/codes"), "{case_name} codes");
    }
}

#[test]
fn recordings_that_cannot_be_encoded_are_refused() {
    let case = Case::f32("design_1b7");
    let mut exec = backend::exec(1);
    let encoder = case.encoder();
    assert_eq!(encoder.encode(&mut exec, &[]), Err(EncodeError::Empty));
    assert_eq!(encoder.encode(&mut exec, &[0.5]).unwrap()[0].len(), 1);
    let most = MAX_ENCODED_SECONDS * encoder.sample_rate();
    assert_eq!(encoder.check(most), Ok(()));
    assert_eq!(encoder.encode(&mut exec, &vec![0.0; most + 1]), Err(EncodeError::TooLong));
}

#[test]
fn the_speaker_encoder_agrees_stage_by_stage() {
    for case_name in ["base_1b7", "base_0b6"] {
        let case = Case::f32(case_name);
        let mut exec = backend::exec(2);
        let speaker = case.speaker();
        let mut compared = 0;
        let watch = &mut |stage: &str, rows: &[f32]| {
            let name = format!("speaker/{stage}");
            let whole = ["asp", "embedding"].contains(&stage);
            let want = if whole { case.dump(&name) } else { case.rows(&name).unwrap() };
            // The log of a spectrum's quietest bands grows their last bits.
            check(&format!("{case_name} {stage}"), rows, &want, if stage == "mel" { 1e-4 } else { 5e-5 });
            compared += 1;
        };
        let got = speaker.embed_watched(&mut exec, &case.reference(), Some(watch)).unwrap();
        assert_eq!(got.len(), speaker.width());
        assert!(compared >= 7, "{case_name}: {compared} stages compared");
        for precision in [Precision::Bf16, Precision::Int8] {
            let other =
                Case::new(case_name, precision).speaker().embed(&mut exec, &case.reference()).unwrap();
            let db = snr(&other, &got);
            assert!(db > 25.0, "{case_name} {precision}: {db:.1} dB");
        }
    }
}

#[test]
fn recordings_without_a_speaker_are_refused() {
    let case = Case::f32("base_1b7");
    let mut exec = backend::exec(1);
    let speaker = case.speaker();
    let Err(SpeakerError::TooShort { least, .. }) = speaker.embed(&mut exec, &[0.0; 300]) else {
        panic!("300 samples are too short")
    };
    assert!(speaker.embed(&mut exec, &vec![0.1; least - 1]).is_err());
    let quiet = speaker.embed(&mut exec, &vec![0.1; least]).unwrap();
    assert!(quiet.iter().all(|v| v.is_finite()));
    let most = MAX_SPEAKER_SECONDS * speaker.sample_rate();
    let seconds = MAX_SPEAKER_SECONDS + 1;
    let got = speaker.embed(&mut exec, &vec![0.0; most + 1]);
    assert_eq!(got, Err(SpeakerError::TooLong { seconds }));
}
