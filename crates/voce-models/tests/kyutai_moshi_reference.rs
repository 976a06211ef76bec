//! Kyutai's dialogue models against the published package: rows, logits of every draw and tokens of every step, in both
//! namings, on this CPU or on the device that `VOCE_TEST_DEVICE` names.

mod backend;
mod kyutai;

use kyutai::{Case, check};
use voce_models::kyutai::{FrameLm, FrameRow};
use voce_runtime::Sampling;

const TOLERANCE: f32 = 5e-5;

fn row(slot: usize, codes: usize) -> FrameRow {
    let greedy = Sampling::default();
    FrameRow { slot, text: greedy, branch: None, audio: greedy, codes, source: 0 }
}

#[test]
fn every_draw_is_the_packages_in_both_namings() {
    for name in ["moshi", "moshi_shared"] {
        for file in ["model.safetensors", "candle.safetensors"] {
            let case = Case::with(name, file);
            let c = &case.config;
            let mut exec = backend::exec(2);
            let model = FrameLm::load(&mut exec, &case.loader, c, case.formats).unwrap().unwrap();
            let [steps, streams, columns] = case.shape("inputs")[..] else { panic!("inputs") };
            let (inputs, hidden) = (case.tokens("inputs"), case.dump("hidden"));
            let (text, depth) = (case.dump("text_logits"), case.dump("depth_logits"));
            let mut state = model.state(streams);
            (0..streams).for_each(|slot| model.start(&mut exec, &mut state, slot, &[]));
            let slots: Vec<usize> = (0..streams).collect();
            let mut draws = 0;
            for step in 0..steps {
                let rows = &inputs[step * streams * columns..][..streams * columns];
                if step > 0 {
                    // What the model drew itself is what it sees, but for what is given and what has not started.
                    let tokens = state.tokens(&mut exec);
                    for slot in 0..streams {
                        for k in 0..=c.dep_q {
                            let seen = rows[slot * columns + k];
                            let started = step > c.delays[k];
                            assert!(
                                !started || tokens.row(slot)[k] == seen,
                                "{name}: step {step}, column {k}"
                            );
                        }
                    }
                }
                state.give(&mut exec, &slots, 0, rows);
                let mut live: Vec<FrameRow> = slots.iter().map(|&slot| row(slot, c.dep_q)).collect();
                model.step_watched(&mut exec, &mut state, &mut live, &mut |draw, slots, logits| {
                    for (logits, &slot) in logits.chunks_exact(logits.len() / slots.len()).zip(slots) {
                        let at = step * streams + slot;
                        let want = match draw {
                            0 => &text[at * logits.len()..][..logits.len()],
                            k => &depth[(at * c.dep_q + k - 1) * logits.len()..][..logits.len()],
                        };
                        check(&format!("{name}: draw {draw} of step {step}"), logits, want, TOLERANCE);
                        draws += 1;
                    }
                });
                let want = &hidden[step * streams * c.dim..][..streams * c.dim];
                check("hidden", state.hidden(&mut exec, streams), want, TOLERANCE);
            }
            assert_eq!(draws, steps * streams * (c.dep_q + 1));
        }
    }
}

#[test]
fn fewer_codes_are_the_first_of_all_and_company_changes_nothing() {
    let case = Case::open("moshi_shared");
    let mut exec = backend::exec(2);
    let model = FrameLm::load(&mut exec, &case.loader, &case.config, case.formats).unwrap().unwrap();
    let all = case.config.dep_q;
    let hot = |seed| Sampling { temperature: 0.8, top_k: 9, seed, ..Sampling::default() };
    let mut alone = Vec::new();
    for codes in [all, 2, 0] {
        let mut state = model.state(1);
        model.start(&mut exec, &mut state, 0, &[]);
        let mut rows = vec![FrameRow { text: hot(5), audio: hot(6), ..row(0, codes) }];
        model.step(&mut exec, &mut state, &mut rows);
        alone.push(state.tokens(&mut exec).row(0).to_vec());
    }
    assert_eq!(alone[0][..3], alone[1][..3], "text and two codes");
    assert_eq!(alone[0][0], alone[2][0]);
    let initial = model.lm().initial();
    assert_eq!((alone[1][3], alone[2][1]), (initial[3], initial[1]), "nothing was drawn there");
    let mut state = model.state(4);
    (0..4).for_each(|slot| model.start(&mut exec, &mut state, slot, &[]));
    let codes = |slot: usize| [2, 0, all, all][slot];
    let mut rows: Vec<FrameRow> =
        (0..4).map(|slot| FrameRow { text: hot(5), audio: hot(6), ..row(slot, codes(slot)) }).collect();
    model.step(&mut exec, &mut state, &mut rows);
    let tokens = state.tokens(&mut exec);
    for (slot, alone) in [(0, &alone[1]), (1, &alone[2]), (2, &alone[0]), (3, &alone[0])] {
        assert_eq!(tokens.row(slot), alone, "slot {slot}");
    }
}
