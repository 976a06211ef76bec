//! Every stage of Pocket TTS against what the published package computed, for every small model.

mod backend;
mod fixture;

use std::collections::HashMap;

use fixture::{CASES, Case, check};
use voce_models::mimi::Stage;
use voce_models::pocket::{Voice, VoiceEncoder};
use voce_runtime::Span;

const TOLERANCE: f32 = 2e-5;

#[test]
fn the_voice_encoder_agrees_stage_by_stage() {
    for name in CASES {
        let case = Case::f32(name);
        let mut exec = backend::exec(2);
        let encoder = VoiceEncoder::load(&case.loader, &case.config, case.formats).unwrap();
        let samples = case.dump("voice/ended");
        let frame = encoder.codec().frame_size();
        let mut padded = samples.clone();
        padded.resize(samples.len().next_multiple_of(frame), 0.0);
        let mut state = encoder.codec().state(padded.len() / frame);
        let mut seen: HashMap<String, Vec<f32>> = HashMap::new();
        let latents = encoder.codec().encode_watched(
            &mut exec,
            &mut state,
            &padded,
            Some(&mut |stage, rows: &[f32]| {
                let name = match stage {
                    Stage::Seanet(i) => format!("enc/seanet.{i}"),
                    Stage::TransformerLayer(i) => format!("enc/transformer.{i}"),
                    Stage::Transformer => "enc/transformer".into(),
                    other => format!("{other:?}"),
                };
                seen.insert(name, rows.to_vec());
            }),
        );
        check(&format!("{name} latents"), latents, &case.dump("enc/latents"), TOLERANCE);
        let mut compared = 0;
        for (stage, rows) in &seen {
            if let Some(want) = case.rows(stage) {
                check(&format!("{name} {stage}"), &rows[..want.len()], &want, TOLERANCE);
                compared += 1;
            }
        }
        assert!(compared >= 8, "{name}: only {compared} stages compared");
        let rows = encoder.rows(&mut exec, &samples);
        let want = case.dump("voice/emb");
        check(&format!("{name} voice rows"), &rows[rows.len() - want.len()..], &want, TOLERANCE);

        // The voice made from those rows is the one the package exported.
        let lm = case.lm();
        let made = Voice::from_rows(&mut exec, &lm, &rows).unwrap();
        let read = case.voice(&mut exec, &lm);
        assert_eq!(made.positions(), read.positions(), "{name}");
        for (a, b) in made.export(&mut exec).iter().zip(read.export(&mut exec)) {
            if let (voce_models::speech::VoiceData::Floats(a), voce_models::speech::VoiceData::Floats(b)) =
                (&a.data, &b.data)
            {
                check(&format!("{name} voice state"), a, b, TOLERANCE);
            }
        }
    }
}

#[test]
fn prefill_and_steps_agree_layer_by_layer() {
    for name in CASES {
        let case = Case::f32(name);
        let mut exec = backend::exec(2);
        let lm = case.lm();
        let voice = case.voice(&mut exec, &lm);
        let tokens = case.tokens();
        let latent = lm.latent_dim();
        for run in ["zero", "noise"] {
            let want = case.dump(&format!("{run}/latent"));
            let eos = case.dump(&format!("{run}/eos"));
            let all = eos.len();
            let noise = if run == "noise" { case.dump("noise/noise") } else { vec![0.0; want.len()] };
            let scale = want.iter().fold(0f32, |m, v| m.max(v.abs()));
            // Led along the package's own frames, each step is exact; left alone, rounding may grow.
            for led in [true, false] {
                // Without noise some small models amplify the last bit of a frame a hundredfold.
                let frames = if led || run == "noise" { all } else { 6 };
                let mut state = lm.state(1, voice.positions() + tokens.len() + frames);
                lm.start(&mut exec, &mut state, 0, &voice);
                lm.prefill_watched(
                    &mut exec,
                    &mut state,
                    0,
                    &tokens,
                    Some(&mut |i, rows: &[f32]| {
                        let want = case.dump(&format!("prefill/layer.{i}"));
                        check(&format!("{name} prefill layer {i}"), rows, &want, TOLERANCE);
                    }),
                );
                let (mut worst, mut worst_eos) = (0f32, 0f32);
                for (t, eos) in eos.iter().enumerate().take(frames) {
                    let part = t * latent..(t + 1) * latent;
                    let mut watch = |i: usize, rows: &[f32]| {
                        let want = case.rows(&format!("{run}/step/layer.{i}")).unwrap();
                        if let Some(want) = want.get(t * rows.len()..(t + 1) * rows.len()) {
                            check(&format!("{name} {run} step {t} layer {i}"), rows, want, TOLERANCE);
                        }
                    };
                    let out = lm.step_watched(
                        &mut exec,
                        &mut state,
                        &[0],
                        &noise[part.clone()],
                        case.steps(),
                        Some(&mut watch),
                    );
                    for (got, want) in out.latents.iter().zip(&want[part.clone()]) {
                        worst = worst.max((got - want).abs() / scale);
                    }
                    worst_eos = worst_eos.max((out.eos.row(0)[0] - eos).abs() / eos.abs().max(1.0));
                    if led {
                        state.set_last(&mut exec, 0, &want[part]);
                    }
                }
                let bound = if led { 3e-5 } else { 1e-4 };
                assert!(
                    worst < bound,
                    "{name} {run} led {led}: latents over {frames} frames differ by {worst:e}"
                );
                assert!(worst_eos < bound, "{name} {run} led {led}: EOS logits differ by {worst_eos:e}");
            }
        }
    }
}

#[test]
fn the_decoder_agrees_stage_by_stage_and_for_any_cut() {
    for name in CASES {
        let case = Case::f32(name);
        let mut exec = backend::exec(2);
        let plain = case.decoder(None);
        let mut state = plain.state(1, 8);
        for call in 0..2 {
            let input = case.dump(&format!("dec/call.{call}/input"));
            let frames = input.len() / plain.latent_dim();
            let mut seen: HashMap<String, Vec<f32>> = HashMap::new();
            let spans = [Span { slot: 0, rows: frames }];
            // Stages near the samples run frame by frame: their rows come in pieces.
            plain.decode_watched(
                &mut exec,
                &mut state,
                &spans,
                &input,
                Some(&mut |stage, rows: &[f32]| {
                    let stage = match stage {
                        Stage::Quantizer => "quantizer".into(),
                        Stage::Upsample => "upsample".into(),
                        Stage::TransformerLayer(i) => format!("transformer.{i}"),
                        Stage::Transformer => "transformer".into(),
                        Stage::Seanet(i) => format!("seanet.{i}"),
                        Stage::Downsample => unreachable!("decoders do not downsample"),
                    };
                    seen.entry(stage).or_default().extend_from_slice(rows);
                }),
            );
            for (stage, rows) in &seen {
                let want = case
                    .rows(&format!("dec/call.{call}/{stage}"))
                    .unwrap_or_else(|| panic!("{name} {stage}"));
                check(&format!("{name} call {call} {stage}"), &rows[..want.len()], &want, TOLERANCE);
            }
            assert!(seen.len() >= 8, "{name}: only {} stages compared", seen.len());
        }
        // Whole audio, from latents before their scale, in different cuts.
        let lm = case.lm();
        let decoder = case.decoder(Some(lm.latent_scale()));
        let (latents, want) = (case.dump("zero/latent"), case.dump("zero/audio"));
        let frames = want.len() / decoder.frame_size();
        let latents = &latents[..frames * decoder.latent_dim()];
        let mut runs: Vec<Vec<f32>> = Vec::new();
        for cut in [1, 2, 3, 8] {
            let mut state = decoder.state(1, 8);
            let mut audio = Vec::new();
            for part in latents.chunks(cut * decoder.latent_dim()) {
                let spans = [Span { slot: 0, rows: part.len() / decoder.latent_dim() }];
                audio.extend_from_slice(decoder.decode(&mut exec, &mut state, &spans, part));
            }
            runs.push(audio);
        }
        check(&format!("{name} audio"), &runs[0], &want, 1e-4);
        assert!(runs.iter().all(|r| *r == runs[0]), "{name}: the cut changes the samples");
    }
}

#[test]
fn a_slot_in_a_batch_has_the_bits_of_the_stream_alone() {
    for name in CASES {
        for precision in voce_nn::Precision::ON_CPU {
            let case = Case::new(name, precision);
            let mut exec = backend::exec(2);
            let lm = case.lm();
            let decoder = case.decoder(Some(lm.latent_scale()));
            let voice = case.voice(&mut exec, &lm);
            let tokens = case.tokens();
            let latent = lm.latent_dim();
            let noise = |slot: usize, t: usize| -> Vec<f32> {
                (0..latent).map(|i| ((slot * 31 + t * 7 + i) as f32 * 0.37).sin() * 0.4).collect()
            };
            let texts = [&tokens[..], &tokens[..tokens.len() / 2], &tokens[1..3]];
            let positions = voice.positions() + tokens.len() + 12;
            let alone: Vec<(Vec<f32>, Vec<f32>)> = (0..3)
                .map(|slot| {
                    let mut state = lm.state(1, positions);
                    let mut codec = decoder.state(1, 1);
                    lm.start(&mut exec, &mut state, 0, &voice);
                    lm.prefill_tokens(&mut exec, &mut state, 0, texts[slot]);
                    let (mut latents, mut audio) = (Vec::new(), Vec::new());
                    for t in 0..8 {
                        let new = lm
                            .step(&mut exec, &mut state, &[0], &noise(slot, t), case.steps())
                            .latents
                            .to_vec();
                        let spans = [Span { slot: 0, rows: 1 }];
                        audio.extend_from_slice(decoder.decode(&mut exec, &mut codec, &spans, &new));
                        latents.extend(new);
                    }
                    (latents, audio)
                })
                .collect();
            // Slot 2 joins two steps late, slot 0 leaves two steps early.
            let mut state = lm.state(3, positions);
            let mut codec = decoder.state(3, 3);
            let mut got = vec![(Vec::new(), Vec::new()); 3];
            lm.start_all(&mut exec, &mut state, &[0, 1, 2].map(|slot| (slot, &voice)));
            lm.prefill_texts(&mut exec, &mut state, &[0, 1, 2].map(|slot| (slot, texts[slot])));
            for round in 0..10usize {
                let live: Vec<(usize, usize)> = (0..3)
                    .filter_map(|slot| {
                        let t = if slot == 2 { round.checked_sub(2)? } else { round };
                        (t < if slot == 0 { 6 } else { 8 }).then_some((slot, t))
                    })
                    .collect();
                if live.is_empty() {
                    continue;
                }
                let slots: Vec<usize> = live.iter().map(|l| l.0).collect();
                let rows: Vec<f32> = live.iter().flat_map(|&(s, t)| noise(s, t)).collect();
                let new = lm.step(&mut exec, &mut state, &slots, &rows, case.steps()).latents.to_vec();
                let spans: Vec<Span> = slots.iter().map(|&slot| Span { slot, rows: 1 }).collect();
                let audio = decoder.decode(&mut exec, &mut codec, &spans, &new);
                for (i, &slot) in slots.iter().enumerate() {
                    got[slot].0.extend_from_slice(&new[i * latent..(i + 1) * latent]);
                    got[slot]
                        .1
                        .extend_from_slice(&audio[i * decoder.frame_size()..(i + 1) * decoder.frame_size()]);
                }
            }
            for slot in 0..3 {
                let n = got[slot].0.len();
                assert_eq!(got[slot].0, alone[slot].0[..n], "{name} {precision} slot {slot} latents");
                let n = got[slot].1.len();
                assert_eq!(got[slot].1, alone[slot].1[..n], "{name} {precision} slot {slot} audio");
            }
        }
    }
}

#[test]
fn prompts_begun_together_have_the_bits_of_prompts_begun_alone() {
    for precision in voce_nn::Precision::ON_CPU {
        let case = Case::new(CASES[0], precision);
        let mut exec = backend::exec(2);
        let lm = case.lm();
        let (voice, none) = (case.voice(&mut exec, &lm), Voice::empty(&lm));
        // More rows than a pass of a CPU takes: the third text is cut between two of them.
        let long: Vec<u32> = case.tokens().into_iter().cycle().take(90).collect();
        let texts = [&long[..20], &long[3..5], &long[..], &long[1..30]];
        let voices = [&voice, &none, &voice, &voice];
        let positions = voice.positions() + long.len();
        let mut together = lm.state(5, positions);
        let slots = [3, 0, 4, 1];
        let streams: Vec<_> = slots.into_iter().zip(voices).collect();
        lm.start_all(&mut exec, &mut together, &streams);
        let prompts: Vec<_> = slots.into_iter().zip(texts).collect();
        lm.prefill_texts(&mut exec, &mut together, &prompts);
        for ((slot, text), voice) in prompts.into_iter().zip(voices) {
            let mut alone = lm.state(1, positions);
            lm.start(&mut exec, &mut alone, 0, voice);
            lm.prefill_tokens(&mut exec, &mut alone, 0, text);
            let n = voice.positions() + text.len();
            assert_eq!((together.position(slot), alone.position(0)), (n, n));
            let got = exec.read_cache(together.cache(), slot, 0..n);
            assert!(got == exec.read_cache(alone.cache(), 0, 0..n), "{precision} slot {slot}");
        }
    }
}

#[test]
fn the_older_voice_format_is_the_same_voice() {
    let case = Case::f32("wide_speaker");
    let mut exec = backend::exec(1);
    let lm = case.lm();
    let (new, old) = (case.voice(&mut exec, &lm), case.voice_file(&mut exec, &lm, "voice_old.safetensors"));
    assert_eq!(new.positions(), old.positions());
}
