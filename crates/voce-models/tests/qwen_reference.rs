//! The language half of Qwen3-TTS against the published package: prompts, every step's logits, all codes.

mod qwen;

use qwen::{CASES, Model, Place, Run, begin, layout};
use voce_models::decoder::{FramePrompt, FrameShape};
use voce_models::qwen::Voice;
use voce_models::speech::SpeakRequest;
use voce_nn::Precision;
use voce_runtime::{Buffer, SampleOp, SampleRow, Tokens};

/// f32 sums in another order than the package's, relative to the largest value.
const TOLERANCE: f32 = 2e-5;
/// The same on the emulated device, which rounds as kernels do.
const DEVICE_TOLERANCE: f32 = 2e-4;

#[track_caller]
fn near(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let scale = want.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
    let e = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max) / scale;
    assert!(e < tolerance, "{what}: {e:e}");
}

/// Where the largest distance of some logits from the package's goes, and how many of its choices are ours as well.
#[derive(Default)]
struct Agreement {
    worst: f32,
    same: usize,
    of: usize,
}

impl Agreement {
    fn add(&mut self, got: &[f32], want: &[f32]) {
        let best = |x: &[f32]| (0..x.len()).max_by(|&a, &b| x[a].total_cmp(&x[b])).unwrap();
        let scale = want.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
        let e = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max) / scale;
        self.worst = self.worst.max(e);
        self.same += usize::from(best(got) == best(want));
        self.of += 1;
    }
}

/// Every step of a run; gives the codes of its frames.
fn follow(place: &mut Place, model: &Model, run: &Run, tolerance: f32, exact: bool) -> usize {
    let (groups, name) = (model.talker.groups(), &run.name);
    let of = |part: &str| format!("{name}/{part}");
    let shape = |prefill| FrameShape { slots: 2, positions: 256, prefill };
    let mut looked = model.talker.frames().state(shape(128));
    // Prompts go through in pieces.
    let mut state = model.talker.frames().state(shape(24));
    let voice = model.voice(run);
    let made = layout(model, run, voice.as_ref());
    let vector = made.speaker.zip(voice.as_ref().and_then(Voice::embedding));
    let prompt = FramePrompt { slot: 1, rows: &made.rows, vector };
    let rows = model.talker.frames().prompt_rows(&mut place.exec, &mut looked, &prompt);
    let want = model.dump.floats(&of("prefill"));
    near(&of("prefill"), &rows, &want[..want.len() - model.config.hidden()], tolerance);
    assert_eq!(made.rows.len() / (groups + 1) * model.config.hidden(), want.len(), "{name}: positions");

    let layout = begin(place, model, &mut state, run, 1);
    let request = SpeakRequest::default().with_greedy(true);
    let draws = model.talker.draws(&model.generation, &request, 0);
    let (logits, eos) = (model.dump.floats(&of("logits")), model.dump.floats(&of("eos_logits")));
    let codes = model.dump.frames(&of("codes"), groups);
    let rest = model.dump.floats(&of("cp_logits"));
    let steps = eos.len();
    let (entries, rest_entries) = (logits.len() / steps, model.config.codebook_sizes().1);
    let mut seen = 0;
    for step in 0..steps {
        if step > 0 {
            let pad = model.config.tts_pad_token_id;
            let text = layout.trailing.get(step - 1).copied().unwrap_or(pad);
            state.give(&mut place.exec, &[1], groups, &[text]);
        }
        let row = model.talker.row(1, &draws, step);
        let end = model.talker.eos() as usize;
        model.talker.frames().step_watched(&mut place.exec, &mut state, &[row], &mut |draw, got| {
            let what = format!("{}: {name}, step {step}, draw {draw}", model.case);
            if draw == 0 {
                near(&what, &got[..entries], &logits[step * entries..][..entries], tolerance);
                near(&what, &got[end..=end], &eos[step..=step], tolerance * 10.0);
                if step == 0 {
                    near(&what, got, &model.dump.floats(&of("first_logits")), tolerance);
                }
                seen += 1;
            } else if step < codes.len() {
                let at = (step * (groups - 1) + draw - 1) * rest_entries;
                near(&what, got, &rest[at..][..rest_entries], tolerance);
                seen += 1;
            }
        });
        let drawn = &state.tokens(&mut place.exec).row(1)[..groups];
        let sequence = model.dump.ids(&of("sequence"));
        if exact {
            assert_eq!(drawn[0], sequence[step], "{}: {name}, step {step}", model.case);
            if let Some(frame) = codes.get(step) {
                assert_eq!(drawn, frame, "{}: {name}, step {step}", model.case);
            }
        } else if let Some(frame) = codes.get(step) {
            // What follows is compared from the package's own codes.
            state.give(&mut place.exec, &[1], 0, frame);
        }
    }
    assert_eq!(codes.len(), run.frames);
    assert_eq!(run.ended, model.dump.ids(&of("sequence")).last() == Some(&model.talker.eos()), "{name}");
    seen
}

#[test]
fn prompts_logits_and_codes_are_those_of_the_package_on_cpu() {
    let mut seen = 0;
    for case in CASES {
        let mut place = Place::cpu();
        let model = Model::load(&mut place, case, Precision::F32);
        for run in model.dump.runs() {
            seen += follow(&mut place, &model, &run, TOLERANCE, true);
        }
    }
    assert_eq!(seen, 2070);
}

#[test]
fn prompts_logits_and_codes_are_those_of_the_package_on_the_device() {
    for case in CASES {
        let mut place = Place::device();
        let model = Model::load(&mut place, case, Precision::F32);
        // The device is emulated: two runs of each model say enough.
        for run in model.dump.runs().into_iter().take(2) {
            // The package's own margin is wide enough for codes to be equal.
            let exact = run.margin > 4e-4;
            follow(&mut place, &model, &run, DEVICE_TOLERANCE, exact);
        }
        place.exec.finish();
        place.exec.status().unwrap();
    }
}

/// Logits of every draw with lower precision, each step from the package's own codes.
fn agreement(precision: Precision) -> Agreement {
    let mut all = Agreement::default();
    for case in CASES {
        let mut place = Place::cpu();
        let model = Model::load(&mut place, case, precision);
        let (groups, shape) = (model.talker.groups(), FrameShape { slots: 2, positions: 256, prefill: 64 });
        for run in model.dump.runs() {
            let of = |part: &str| format!("{}/{part}", run.name);
            let mut state = model.talker.frames().state(shape);
            let layout = begin(&mut place, &model, &mut state, &run, 0);
            let request = SpeakRequest::default().with_greedy(true);
            let draws = model.talker.draws(&model.generation, &request, 0);
            let (logits, codes) = (model.dump.floats(&of("logits")), model.dump.frames(&of("codes"), groups));
            let entries = logits.len() / model.dump.ids(&of("sequence")).len();
            for (step, frame) in codes.iter().enumerate() {
                let text = layout.trailing.get(step.wrapping_sub(1)).copied();
                if step > 0 {
                    let text = text.unwrap_or(model.config.tts_pad_token_id);
                    state.give(&mut place.exec, &[0], groups, &[text]);
                }
                let row = model.talker.row(0, &draws, step);
                model.talker.frames().step_watched(&mut place.exec, &mut state, &[row], &mut |draw, got| {
                    if draw == 0 {
                        all.add(&got[..entries], &logits[step * entries..][..entries]);
                    }
                });
                state.give(&mut place.exec, &[0], 0, frame);
            }
        }
    }
    all
}

#[test]
fn lower_precisions_stay_near_the_package() {
    // Layers of 16 to 24 values lose more than the published ones, which have a hundred times as many.
    for (precision, worst, same) in
        [(Precision::Bf16, 0.05, 0.95), (Precision::Int8, 0.1, 0.9), (Precision::Int4, 0.9, 0.5)]
    {
        let all = agreement(precision);
        let share = all.same as f32 / all.of as f32;
        assert!(all.of == 141 && all.worst < worst && share > same, "{precision}: {} {share}", all.worst);
    }
}

#[test]
fn what_is_drawn_is_what_the_package_leaves() {
    let mut place = Place::cpu();
    let model = Model::load(&mut place, "custom_0b6", Precision::F32);
    let file = qwen::folder("").join("sampler.safetensors");
    let dump = qwen::Dump::of(&file, &file.with_extension("json"));
    let (vocab, seen) = (1056, 9);
    let history = dump.ids("history");
    let logits = buffer(&dump.floats("logits"), vocab);
    let cases = dump.notes["talker"].as_object().unwrap();
    for (name, case) in cases {
        let number = |key: &str| case[key].as_f64().unwrap() as f32;
        let request = SpeakRequest::default()
            .with_temperature(Some(number("temperature")))
            .with_top_k(Some(number("top_k") as usize))
            .with_top_p(Some(number("top_p")))
            .with_repetition_penalty(Some(number("repetition_penalty")));
        let had = number("history") as usize;
        let want = dump.floats(&format!("talker/{name}"));
        let mut drawn = vec![vec![0usize; vocab]; 2];
        for seed in 0..DRAWS {
            let draws = model.talker.draws(&model.generation, &request.clone().with_seed(seed), 0);
            let mut tokens = Tokens::new(2, 1, 0);
            let mut noted = Tokens::history(2, vocab);
            for slot in 0..2 {
                let mut words = vec![0u32; noted.cols()];
                for &token in &history[slot * seen..][..had] {
                    words[token as usize / 32] |= 1 << (token % 32);
                }
                place.exec.set_tokens(&mut noted, &[slot], 0, &words);
            }
            let row = |slot| SampleRow { slot, step: 0, sampling: model.talker.row(slot, &draws, had).first };
            let rows = [row(0), row(1)];
            let op = SampleOp {
                logits: logits.view(),
                rows: &rows,
                column: 0,
                history: Some(&mut noted),
                next: None,
            };
            place.exec.sample(op, &mut tokens);
            (0..2).for_each(|slot| drawn[slot][tokens.row(slot)[0] as usize] += 1);
        }
        for (slot, drawn) in drawn.iter().enumerate() {
            let want = &want[slot * vocab..][..vocab];
            for (token, (&count, &p)) in drawn.iter().zip(want).enumerate() {
                let (got, p) = (count as f64 / DRAWS as f64, f64::from(p));
                assert!((got - p).abs() < 0.06, "{name}: token {token} came {got} times, not {p}");
                assert!(count == 0 || p > 0.0, "{name}: token {token} was taken away");
            }
        }
    }
    assert_eq!(cases.len(), 6);
}

/// Draws of each row: a share of them is known to some hundredths.
const DRAWS: u64 = 600;

fn buffer(values: &[f32], cols: usize) -> Buffer {
    let mut b = Buffer::new(values.len() / cols, cols);
    b.head_mut(values.len() / cols).copy_from_slice(values);
    b
}
