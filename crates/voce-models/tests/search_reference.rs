//! Searches agree with the published packages' results on their frames: labels, frames, durations, scores.

mod backend;
mod recogniser;

use std::sync::Arc;

use recogniser::{Case, folder};
use serde_json::Value;
use voce_models::fastconformer::{Joint, Moves, Predictor};
use voce_models::transducer::{
    BlankScore, Boost, BoostRule, Decoder, Hypothesis, Method, Ngram, Pruning, Search, SearchOptions,
    SearchState, Token,
};
use voce_nn::Precision;
use voce_runtime::{AddReluOp, Buffer, Exec, Span};

/// A fixture with its searches.
struct Fixture {
    decoder: Decoder,
    frames: Buffer,
    json: Value,
    pieces: Vec<String>,
}

impl Fixture {
    fn new(name: &str) -> Self {
        Self::at(name, Precision::F32)
    }

    fn at(name: &str, precision: Precision) -> Self {
        let case = Case::new(name, precision);
        let decoder = Decoder::load(&case.loader, &case.config, case.formats).unwrap();
        let read = |f: &str| -> Value {
            serde_json::from_str(&std::fs::read_to_string(folder().join(name).join(f)).unwrap()).unwrap()
        };
        let json = read("search.json");
        let values = case.expected(json["input"].as_str().unwrap());
        let width = decoder.frame_width();
        let mut frames = Buffer::new(values.len() / width, width);
        frames.head_mut(values.len() / width).copy_from_slice(&values);
        let tokenizer = read("tokenizer.json");
        let mut pieces = vec![String::new(); decoder.vocab()];
        match &tokenizer["model"]["vocab"] {
            Value::Array(v) => {
                v.iter().enumerate().for_each(|(i, p)| pieces[i] = p[0].as_str().unwrap().to_owned());
            }
            vocab => {
                for (piece, id) in vocab.as_object().unwrap() {
                    pieces[id.as_u64().unwrap() as usize] = piece.clone();
                }
            }
        }
        Self { decoder, frames, json, pieces }
    }

    fn lm(&self, file: &str) -> Ngram {
        Ngram::read(std::fs::read(folder().join(file)).unwrap().as_slice(), &self.pieces).unwrap()
    }

    fn options(&self, run: &Value) -> SearchOptions {
        let mut o = SearchOptions { beam: number(&run["beam"]).unwrap_or(1), ..SearchOptions::default() };
        o.max_symbols = number(&run["max_symbols"]);
        o.method = match run["method"].as_str().unwrap() {
            "greedy" | "ctc_greedy" => Method::Greedy,
            "modified_beam" => Method::ModifiedBeam,
            _ => Method::Malsd,
        };
        o.sync_chunks = run["method"] == "malsd_chunked";
        if run["mode"] != "lm_weighted_full" {
            o.blank_score = BlankScore::None;
        }
        if run["pruning"] == "early" {
            o.pruning = Pruning::Early;
        }
        if let Some(weight) = run["fusion"]["lm"].as_f64() {
            o.lm = Some(Arc::new(self.lm(self.json["lm"].as_str().unwrap())));
            o.lm_weight = weight as f32;
        }
        if let Some(weight) = run["fusion"]["boost"].as_f64() {
            let boost = &self.json["boost"];
            let base = boost["context_score"].as_f64().unwrap() as f32;
            let phrases: Vec<(Vec<u32>, f32)> = list(&boost["phrases"])
                .map(|p| {
                    let own = p["weight"].as_f64().unwrap() as f32;
                    (ids(&p["tokens"]), if own == 0.0 { base } else { own })
                })
                .collect();
            let depth_scaling = boost["depth_scaling"].as_f64().unwrap() as f32;
            let rule = BoostRule { depth_scaling, ..BoostRule::default() };
            o.boost = Some(Arc::new(Boost::new(phrases, rule).unwrap()));
            o.boost_weight = weight as f32;
        }
        o
    }

    /// Runs the frames in the given cuts.
    fn run(&self, exec: &mut Exec, options: &SearchOptions, cuts: &[usize]) -> Vec<Hypothesis> {
        let mut search = Search::new(&self.decoder, 1);
        let mut state = [SearchState::new(&self.decoder, options).unwrap()];
        let mut at = 0;
        for &rows in cuts {
            let mut part = Buffer::new(rows, self.frames.cols());
            (0..rows).for_each(|r| part.row_mut(r).copy_from_slice(self.frames.row(at + r)));
            search.step(exec, &self.decoder, &mut part, &[Span { slot: 0, rows }], &mut state);
            at += rows;
        }
        assert_eq!(at, self.frames.rows());
        search.flush(exec, &self.decoder, &mut state);
        assert_eq!(state[0].finish()[0].tokens, state[0].tokens());
        state[0].finish()
    }
}

fn list(v: &Value) -> impl Iterator<Item = &Value> {
    v.as_array().unwrap().iter()
}

fn number(v: &Value) -> Option<usize> {
    v.as_u64().map(|v| v as usize)
}

fn ids(v: &Value) -> Vec<u32> {
    list(v).map(|t| t.as_u64().unwrap() as u32).collect()
}

fn labels(t: &[Token]) -> Vec<u32> {
    t.iter().map(|t| t.id).collect()
}

fn check(what: &str, got: &[Hypothesis], run: &Value) {
    let greedy = run.get("tokens").is_some();
    let wanted: Vec<&Value> = if greedy { vec![run] } else { list(&run["nbest"]).collect() };
    let order = |h: &[Hypothesis]| h.iter().map(|h| labels(&h.tokens)).collect::<Vec<_>>();
    assert_eq!(order(got), wanted.iter().map(|w| ids(&w["tokens"])).collect::<Vec<_>>(), "{what}");
    for (h, w) in got.iter().zip(wanted) {
        if let Some(frames) = w.get("frames") {
            let got: Vec<u32> = h.tokens.iter().map(|t| t.frame as u32).collect();
            assert_eq!(got, ids(frames), "{what}: frames");
        }
        if let Some(durations) = w.get("durations") {
            let got: Vec<u32> = h.tokens.iter().map(|t| t.duration as u32).collect();
            assert_eq!(got, ids(durations), "{what}: durations");
        }
        if let Some(score) = w["score"].as_f64() {
            assert!((h.score - score).abs() < 1e-3, "{what}: {} is not {score}", h.score);
        }
        if let Some(log_probs) = w.get("logprobs") {
            for (t, want) in h.tokens.iter().zip(list(log_probs)) {
                let want = want.as_f64().unwrap();
                assert!((f64::from(t.log_prob) - want).abs() < 1e-4, "{what}: {t:?} is not {want}");
                assert!((f64::from(t.confidence) - want.exp()).abs() < 1e-4, "{what}: {t:?}");
            }
        }
    }
}

/// Projection, predictor and joint, step by step along the greedy path.
#[test]
fn logits_and_predictor_states_agree_at_every_step() {
    let mut exec = backend::exec(1);
    for (name, prefix) in [("stream", "R3/"), ("rnnt", ""), ("tdt", "")] {
        let case = Case::new(name, Precision::F32);
        let fixture = Fixture::new(name);
        let (vocab, config) = (case.config.vocab, case.config.predictor().unwrap());
        let predictor = Predictor::load(&case.loader, config, vocab, case.formats).unwrap();
        let classes = vocab + 1 + fixture.decoder.durations().len();
        let dim = case.config.encoder.dim;
        let joint = Joint::load(&case.loader, config, dim, classes, case.formats).unwrap();

        let rows = fixture.frames.rows();
        let (mut encoder, mut projected) = (Buffer::new(rows, dim), Buffer::new(rows, config.joint));
        encoder.head_mut(rows).copy_from_slice(&case.expected(&format!("{prefix}encoder")));
        fixture.decoder.project(&mut exec, &encoder, rows, &mut projected);
        exec.fetch(&mut projected, rows);
        close("projection", projected.head(rows), fixture.frames.head(rows));

        let (mut lanes, mut scratch) = (predictor.lanes(1), predictor.scratch(1));
        let mut looks = joint.scratch(1);
        let mut moves = Moves::default();
        moves.push(vocab as u32, 0, 0);
        predictor.step(&mut exec, &moves, &mut lanes, &mut scratch);
        let expected = case.expected(&format!("{prefix}joint"));
        let (mut chunk, per_chunk) = (0, 4);
        let steps = list(&fixture.json["runs"][0]["steps"]).map(ids);
        for (step, want) in steps.zip(expected.chunks_exact(classes)) {
            while step[0] as usize >= per_chunk * (chunk + 1) {
                if let Some(pred) = case.kept(&format!("{prefix}chunk.{chunk}/pred")) {
                    let part = |p: &str| case.expected(&format!("{prefix}chunk.{chunk}/{p}"));
                    let (h, c, hidden) = (part("h"), part("c"), config.hidden);
                    let state = (0..config.layers).flat_map(|l| {
                        let at = l * hidden..(l + 1) * hidden;
                        [h[at.clone()].to_vec(), c[at].to_vec()].concat()
                    });
                    let mut lane = Vec::new();
                    lanes.save(&mut exec, &[0], &mut lane);
                    close("predictor", &lane, &state.chain(pred).collect::<Vec<_>>());
                }
                chunk += 1;
            }
            let frame = [step[0] as usize];
            let pairs =
                AddReluOp { a: &projected, a_rows: (&frame).into(), b: lanes.out(), b_rows: (&[0]).into() };
            joint.run(&mut exec, &pairs, &mut looks);
            exec.fetch(&mut looks.logits, 1);
            close(&format!("{name} joint at frame {}", step[0]), looks.logits.row(0), want);
            if step[1] as usize != vocab {
                moves.clear();
                moves.push(step[1], 0, 0);
                predictor.step(&mut exec, &moves, &mut lanes, &mut scratch);
            }
        }
        assert!(chunk > 3);
    }
}

fn close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let e = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max);
    assert!(e < 1e-4, "{what}: off by {e:e}");
}

#[test]
fn every_search_gives_what_the_reference_gives() {
    let mut exec = backend::exec(1);
    for name in ["stream", "rnnt", "tdt", "ctc"] {
        let fixture = Fixture::new(name);
        let whole = fixture.frames.rows();
        let mut runs = 0;
        for run in list(&fixture.json["runs"]) {
            let what = format!("{name} {}", run["name"].as_str().unwrap());
            // Hypotheses of different times joined into one: a slip of the original that is not followed.
            if run["join_by_time"] == false {
                continue;
            }
            let cuts: Vec<usize> = match run.get("chunks") {
                Some(c) => ids(c).iter().map(|&c| c as usize).collect(),
                None => vec![whole],
            };
            check(&what, &fixture.run(&mut exec, &fixture.options(run), &cuts), run);
            runs += 1;
        }
        assert!(runs > 5, "{name} has searches");
    }
}

#[test]
fn on_fitted_models_a_wider_beam_never_scores_worse() {
    let mut exec = backend::exec(1);
    for name in ["stream", "rnnt", "tdt", "ctc"] {
        let fixture = Fixture::new(name);
        let whole = fixture.frames.rows();
        let mut before = f64::NEG_INFINITY;
        for beam in [1, 2, 3, 4, 6, 8, 12, 16, 32] {
            let options = SearchOptions { method: Method::Malsd, beam, ..SearchOptions::default() };
            let found = fixture.run(&mut exec, &options, &[whole]);
            let best = found.iter().map(|h| h.score).fold(f64::NEG_INFINITY, f64::max);
            assert!(best >= before - 1e-6, "{name} beam {beam}: {best} after {before}");
            before = best;
        }
    }
}

#[test]
fn a_gap_of_12_does_not_change_the_best_reading() {
    let mut exec = backend::exec(1);
    for name in ["stream", "rnnt", "tdt"] {
        let fixture = Fixture::new(name);
        let whole = fixture.frames.rows();
        let plain = SearchOptions::with_beam(8);
        let narrow = SearchOptions { max_gap: Some(12.0), ..plain.clone() };
        let (a, b) = (fixture.run(&mut exec, &plain, &[whole]), fixture.run(&mut exec, &narrow, &[whole]));
        assert_eq!(labels(&a[0].tokens), labels(&b[0].tokens), "{name}");
        assert!((a[0].score - b[0].score).abs() < 1e-3, "{name}: {} {}", a[0].score, b[0].score);
    }
}

#[test]
fn the_file_of_another_tool_is_the_same_language_model() {
    let fixture = Fixture::new("stream");
    let (a, b) = (fixture.lm("lm/lm.arpa"), fixture.lm("lm/lm_encoded.arpa"));
    assert_eq!((a.states(), a.order()), (b.states(), b.order()));
    let (mut left, mut right) = (a.start(), b.start());
    for label in [4, 24, 52, 36, 28, 37, 51, 24, 45, 35, 0, 1, 2] {
        let (l, r) = (a.step(left, label), b.step(right, label));
        assert_eq!(l, r);
        (left, right) = (l.0, r.0);
    }
}

/// Labels of greedy and MALSD search at lower precisions, against f32 on the same frames.
#[test]
fn lower_precision_finds_the_same_labels_on_fitted_models() {
    let mut exec = backend::exec(1);
    for name in ["stream", "rnnt", "tdt"] {
        for precision in [Precision::Bf16, Precision::Int8] {
            let (exact, small) = (Fixture::new(name), Fixture::at(name, precision));
            for beam in [1, 4] {
                let options = SearchOptions::with_beam(beam);
                let whole = exact.frames.rows();
                let a = exact.run(&mut exec, &options, &[whole]);
                let b = small.run(&mut exec, &options, &[whole]);
                assert_eq!(labels(&a[0].tokens), labels(&b[0].tokens), "{name} {precision} beam {beam}");
            }
        }
    }
}
