//! Kyutai's dialogue models against the published package: rows, logits of every draw and tokens of every step, in both
//! namings, on this CPU or on the device that `VOCE_TEST_DEVICE` names.

mod backend;
mod kyutai;

use kyutai::{Case, check};
use voce_models::dialogue::{Dialogue as _, TalkRequest};
use voce_models::kyutai::moshi::{Moshi, MoshiParts};
use voce_models::kyutai::{FrameLm, FrameRow};
use voce_runtime::{Exec, Sampling};
use voce_text::Tokenizer;

const TOLERANCE: f32 = 5e-5;

fn row(slot: usize, codes: usize) -> FrameRow {
    let greedy = Sampling::default();
    FrameRow { slot, text: greedy, branch: None, audio: greedy, codes, source: 0, guide: None }
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

fn moshi(exec: &mut Exec, case: &Case) -> Moshi {
    let c = case.config.clone();
    let mimi = case.mimi(c.dep_q.max(c.given()));
    let tokenizer = Tokenizer::from_file(case.dir.join("tokenizer.model")).unwrap();
    let parts = MoshiParts { config: c, tokenizer, mimi, formats: case.formats };
    Moshi::load(exec, &case.loader, parts).unwrap().unwrap()
}

/// What a model says in answer to a recording: tokens, samples and text.
type Said = (Vec<u32>, Vec<f32>, String);

/// What a model says to `streams` recordings of `length` samples each. The second joins later; both hear their own, and
/// slot 1 stays empty.
fn converse(exec: &mut Exec, model: &Moshi, pcm: &[f32], streams: usize) -> Vec<Said> {
    let greedy = TalkRequest::default().with_temperature(Some(0.0));
    model.check(&greedy).unwrap();
    let (size, length) = (model.info().frame_size, pcm.len() / streams);
    let frames = length / size;
    let mut partner = model.partner(streams + 1);
    let slots = [2, 0];
    let mut at = [0; 2];
    let mut said: Vec<Said> = vec![Default::default(); streams];
    for round in 0.. {
        let live: Vec<usize> = (0..streams).filter(|&s| at[s] < frames && round >= 3 * s).collect();
        if live.is_empty() {
            break;
        }
        for &s in live.iter().filter(|&&s| at[s] == 0) {
            partner.start(exec, slots[s], &greedy);
        }
        let samples: Vec<f32> =
            live.iter().flat_map(|&s| &pcm[s * length + at[s] * size..][..size]).copied().collect();
        let rows: Vec<usize> = live.iter().map(|&s| slots[s]).collect();
        partner.step(exec, &rows, &samples);
        let mut out = Vec::new();
        partner.fetch(exec, &rows, &mut out);
        for (&s, uttered) in live.iter().zip(out) {
            said[s].0.extend(uttered.tokens);
            said[s].1.extend(uttered.samples);
            said[s].2.push_str(&uttered.text);
            at[s] += 1;
        }
    }
    said
}

/// The dumped tokens of a stream, frame by frame.
fn by_frame(case: &Case, stream: usize) -> Vec<u32> {
    let [_, columns, frames] = case.shape("frames")[..] else { panic!("frames by stream") };
    let want = case.tokens("frames");
    let at = |t: usize, k: usize| want[(stream * columns + k) * frames + t];
    (0..frames).flat_map(|t| (0..columns).map(move |k| (t, k))).map(|(t, k)| at(t, k)).collect()
}

/// A whole conversation: what is heard goes through the codec, what is said comes back as tokens, text and samples.
#[test]
fn a_conversation_is_the_packages() {
    let mut exec = backend::exec(2);
    let case = Case::open("talk");
    let model = moshi(&mut exec, &case);
    let [streams, length] = case.shape("pcm")[..] else { panic!("samples by stream") };
    assert_eq!(case.shape("frames")[2] * model.info().frame_size, length, "an answer for every frame");
    let (decoded, texts) = (case.dump("decoded"), case.json("trace.json"));
    let said = converse(&mut exec, &model, &case.dump("pcm"), streams);
    for (s, (tokens, samples, text)) in said.iter().enumerate() {
        assert_eq!(*tokens, by_frame(&case, s), "stream {s}");
        check("samples", samples, &decoded[s * length..][..length], 1e-4);
        assert_eq!(text.trim_start(), texts["text"][s].as_str().unwrap().trim_start());
    }
}

/// The same weights where text comes a step late, too: until then the model sees where it starts from.
#[test]
fn late_text_is_the_packages() {
    let mut exec = backend::exec(2);
    let mut case = Case::open("talk");
    let (pcm, streams) = (case.dump("pcm"), case.shape("pcm")[0]);
    case.config.delays[0] = 1;
    let model = moshi(&mut exec, &case);
    let case = case.dumped_in("late.safetensors");
    for (s, (tokens, ..)) in converse(&mut exec, &model, &pcm, streams).iter().enumerate() {
        assert_eq!(*tokens, by_frame(&case, s), "stream {s}");
    }
}

#[test]
fn requests_that_make_no_sense_are_named() {
    let mut exec = backend::exec(1);
    let model = moshi(&mut exec, &Case::open("talk"));
    for (request, says) in [
        (TalkRequest::default().with_temperature(Some(-0.1)), "temperature"),
        (TalkRequest::default().with_text_temperature(Some(f32::NAN)), "text temperature"),
        (TalkRequest::default().with_top_k(Some(100_001)), "top k"),
    ] {
        assert!(model.check(&request).unwrap_err().to_string().contains(says));
    }
    assert!(
        model.check(&TalkRequest::default().with_temperature(Some(10.0)).with_top_k(Some(100_000))).is_ok()
    );
}
