//! Kyutai's backbone against the published package: rows, logits, heads and tokens of every step, on this CPU or on the
//! device that `VOCE_TEST_DEVICE` names.

mod backend;
mod kyutai;

use std::collections::BTreeMap;
use std::sync::Arc;

use kyutai::{Case, check, conditions};
use voce_models::kyutai::{Condition, Conditioner, Fuser, Lm, LmState};
use voce_nn::weights::{SafetensorsFile, Tensor};
use voce_nn::{WeightError, Weights};
use voce_runtime::{Exec, SampleRow, Sampling};

const TOLERANCE: f32 = 2e-5;

/// What a step gives for one row.
type Seen = (Vec<f32>, Vec<f32>, Vec<f32>, u32);

struct Run<'a> {
    case: &'a Case,
    lm: &'a Lm,
    exec: Exec,
    state: LmState,
}

impl Run<'_> {
    /// Steps slots, each with the inputs of a stream's step.
    fn step(&mut self, slots: &[usize], at: &[(usize, usize)]) -> Vec<Seen> {
        let [_, streams, columns] = self.case.shape("inputs")[..] else {
            panic!("inputs by step and stream")
        };
        let inputs = self.case.tokens("inputs");
        let rows: Vec<u32> = at
            .iter()
            .flat_map(|(stream, step)| &inputs[(step * streams + stream) * columns..][..columns])
            .copied()
            .collect();
        self.state.give(&mut self.exec, slots, 0, &rows);
        self.lm.step(&mut self.exec, &mut self.state, slots);
        let n = slots.len();
        let hidden = self.state.hidden(&mut self.exec, n).to_vec();
        let logits = self.state.logits(&mut self.exec, n).to_vec();
        let heads = self.state.heads(&mut self.exec, n);
        let draws: Vec<SampleRow> =
            slots.iter().map(|&slot| SampleRow { slot, step: 0, sampling: Sampling::default() }).collect();
        self.lm.draw(&mut self.exec, &mut self.state, &draws);
        let tokens = self.state.tokens(&mut self.exec);
        let part = |all: &[f32], r: usize| all[r * all.len() / n..(r + 1) * all.len() / n].to_vec();
        slots
            .iter()
            .enumerate()
            .map(|(r, &slot)| (part(&hidden, r), part(&logits, r), part(&heads, r), tokens.row(slot)[0]))
            .collect()
    }
}

#[test]
fn every_step_is_the_packages() {
    for name in ["lm_heads", "lm_plain"] {
        let case = Case::open(name);
        let mut exec = backend::exec(2);
        let lm = Lm::load(&mut exec, &case.loader, &case.config, case.formats).unwrap();
        let [steps, streams, _] = case.shape("inputs")[..] else { panic!("inputs by step and stream") };
        let mut state = lm.state(streams);
        for stream in 0..streams {
            lm.start(&mut exec, &mut state, stream, &conditions(name, stream));
        }
        let mut run = Run { case: &case, lm: &lm, exec, state };
        let (hidden, logits, tokens) = (case.dump("hidden"), case.dump("text_logits"), case.tokens("tokens"));
        let heads = case.config.extra_heads_num_heads * case.config.extra_heads_dim;
        let slots: Vec<usize> = (0..streams).collect();
        assert!(steps > 2 * case.config.context, "rings wrap");
        for step in 0..steps {
            let at: Vec<(usize, usize)> = slots.iter().map(|&s| (s, step)).collect();
            for (stream, seen) in run.step(&slots, &at).iter().enumerate() {
                let row = step * streams + stream;
                let part = |all: &[f32], width: usize| all[row * width..(row + 1) * width].to_vec();
                check("hidden", &seen.0, &part(&hidden, case.config.dim), TOLERANCE);
                check("logits", &seen.1, &part(&logits, case.config.text_out()), TOLERANCE);
                assert_eq!(seen.3, tokens[row], "{name}: step {step} of stream {stream}");
                if heads > 0 {
                    check("heads", &seen.2, &part(&case.dump("heads"), heads), TOLERANCE);
                }
            }
        }
    }
}

#[test]
fn a_slot_in_company_is_the_stream_alone() {
    for name in ["lm_heads", "lm_plain"] {
        let case = Case::open(name);
        let mut exec = backend::exec(2);
        let lm = Lm::load(&mut exec, &case.loader, &case.config, case.formats).unwrap();
        let [steps, streams, _] = case.shape("inputs")[..] else { panic!("inputs by step and stream") };
        let mut alone = Vec::new();
        for stream in 0..streams {
            let mut run = Run { case: &case, lm: &lm, exec: backend::exec(2), state: lm.state(1) };
            lm.start(&mut run.exec, &mut run.state, 0, &conditions(name, stream));
            alone.push((0..steps).map(|t| run.step(&[0], &[(stream, t)]).remove(0)).collect::<Vec<_>>());
        }
        // Streams come to slots in another order, later than each other, pause, and one slot is used twice.
        let mut run = Run { case: &case, lm: &lm, exec, state: lm.state(streams + 1) };
        let mut live: Vec<(usize, usize, usize)> = Vec::new();
        let (mut waiting, mut compared) = (vec![(1, 2), (0, 0), (2, 3), (1, 0)], 0);
        for round in 0.. {
            if round % 5 == 0 && !waiting.is_empty() {
                let free = |slot: usize| live.iter().all(|l| l.1 != slot);
                if let Some(next) = waiting.iter().position(|w| free(w.1)) {
                    let (stream, slot) = waiting.remove(next);
                    lm.start(&mut run.exec, &mut run.state, slot, &conditions(name, stream));
                    live.push((stream, slot, 0));
                }
            }
            let now: Vec<usize> = (0..live.len()).filter(|i| (round + i) % 3 != 0).collect();
            let slots: Vec<usize> = now.iter().map(|&i| live[i].1).collect();
            let at: Vec<(usize, usize)> = now.iter().map(|&i| (live[i].0, live[i].2)).collect();
            if !slots.is_empty() {
                for (&i, seen) in now.iter().zip(run.step(&slots, &at)) {
                    assert!(seen == alone[live[i].0][live[i].2], "{name}: {:?}", live[i]);
                    live[i].2 += 1;
                    compared += 1;
                }
            }
            live.retain(|l| l.2 < steps);
            if live.is_empty() && waiting.is_empty() {
                break;
            }
        }
        assert_eq!(compared, 4 * steps);
    }
}

/// A file of weights, and more tensors.
struct Joined(SafetensorsFile, BTreeMap<&'static str, (Vec<usize>, Vec<f32>)>);

impl Weights for Joined {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        match self.1.get(name) {
            Some((shape, values)) => Ok(Some(Tensor { shape: shape.clone(), values: values.clone() })),
            None => self.0.get(name, expected),
        }
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.1.get(name).map_or_else(|| self.0.shape(name), |(shape, _)| Some(shape.clone()))
    }
}

/// The crate `moshi` has such conditions, the published package has none: a table with the same row is the reference.
#[test]
fn a_number_as_a_condition_is_its_sines_through_a_layer() {
    let case = Case::open("lm_heads");
    let (width, dim, number, scale, period) = (case.config.dim, 6, -0.56f64, 25.0, 100.0);
    let angles: Vec<f64> = (0..3).map(|i| number * scale / f64::powf(period, f64::from(i) / 2.0)).collect();
    let waves = angles.iter().map(|a| a.cos()).chain(angles.iter().map(|a| a.sin()));
    let embedded: Vec<f32> = waves.map(|v| v as f32).chain([0.0; 6]).collect();
    let rows = |n: usize| (0..n).map(|i| ((i * 37 % 19) as f32 - 9.0) / 40.0).collect::<Vec<f32>>();
    let more = BTreeMap::from([
        ("condition_provider.conditioners.delay.embed.weight", (vec![2, dim], embedded)),
        ("condition_provider.conditioners.delay.output_proj.weight", (vec![width, dim], rows(width * dim))),
        ("condition_provider.conditioners.delay.learnt_padding", (vec![1, 1, width], rows(width))),
    ]);
    let hidden = |conditioner: Conditioner, said: Option<&str>| {
        let file = SafetensorsFile::open(&case.dir.join("model.safetensors")).unwrap();
        let loader = backend::loader(Arc::new(Joined(file, more.clone())));
        let mut config = case.config.clone();
        config.conditioners.insert("delay".into(), conditioner);
        config.fuser = Some(Fuser { sum: vec!["delay".into()], ..Fuser::default() });
        config.check().unwrap();
        let mut exec = backend::exec(2);
        let lm = Lm::load(&mut exec, &loader, &config, case.formats).unwrap();
        let mut state = lm.state(1);
        let conditions = [Condition { name: "delay".into(), value: said.map(str::to_owned) }];
        lm.start(&mut exec, &mut state, 0, &conditions);
        let mut run = Run { case: &case, lm: &lm, exec, state };
        (0..3).flat_map(|step| run.step(&[0], &[(0, step)]).remove(0).0).collect::<Vec<f32>>()
    };
    let table = || Conditioner::Lut { bins: 1, dim, values: vec!["it".into()] };
    let sines = |value: Option<f64>| Conditioner::Continuous {
        dim,
        scale: scale as f32,
        period: period as f32,
        value: value.map(|v| v as f32),
    };
    let (said, unsaid) = (hidden(sines(Some(number)), None), hidden(sines(None), None));
    check("a number", &said, &hidden(table(), Some("it")), TOLERANCE);
    check("no number", &unsaid, &hidden(table(), None), TOLERANCE);
    assert_ne!(said, unsaid);
    assert_ne!(said, hidden(sines(Some(-1.0)), None));
}
