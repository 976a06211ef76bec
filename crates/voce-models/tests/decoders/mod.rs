//! Small decoders of random weights, loud enough that searches have something to decide.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::ops::Range;
use std::sync::Arc;

use crate::backend;
use voce_models::fastconformer::{
    Attention, ConvNorm, EncoderConfig, FastConformerConfig, Head, Joint, MelConfig, MelNormalize, Moves,
    Predictor, PredictorConfig,
};
use voce_models::transducer::{Decoder, Hypothesis, Ngram, Search, SearchOptions, SearchState, Token};
use voce_nn::weights::{RandomWeights, Tensor};
use voce_nn::{Formats, Loader, Precision, WeightError, Weights};
use voce_runtime::{AddReluOp, Buffer, Exec, Isa, Span};

pub const VOCAB: usize = 9;
const DIM: usize = 12;
const JOINT: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rnnt,
    Tdt,
    Ctc,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Rnnt, Kind::Tdt, Kind::Ctc];
}

pub struct Model {
    pub decoder: Decoder,
    pub kind: Kind,
    loader: Loader,
    config: FastConformerConfig,
    formats: Formats,
}

/// Random weights with a louder head that is fond of blanks.
struct Loud(RandomWeights);

impl Weights for Loud {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let mut t = self.0.get(name, expected)?;
        if let Some(t) = &mut t {
            let head = name.contains("joint_net") || name.contains("ctc_decoder");
            if head && name.ends_with("weight") {
                t.values.iter_mut().for_each(|v| *v *= 6.0);
            }
            if head && name.ends_with("bias") {
                t.values[VOCAB] += 2.0;
            }
        }
        Ok(t)
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.shape(name)
    }
}

pub fn config(kind: Kind, durations: &[usize]) -> FastConformerConfig {
    let predictor = PredictorConfig { hidden: 8, layers: 2, joint: JOINT, max_symbols: 5 };
    FastConformerConfig {
        mel: MelConfig { sample_rate: 16_000, bins: 80, normalize: MelNormalize::None, bf16_filters: false },
        encoder: EncoderConfig {
            layers: 1,
            dim: DIM,
            heads: 2,
            ff_dim: 16,
            conv_kernel: 9,
            conv_norm: ConvNorm::Layer,
            subsampling_channels: 4,
            subsampling_factor: 8,
            causal: true,
            scale_input: false,
            attention: Attention::Full,
        },
        prompt: None,
        vocab: VOCAB,
        head: match kind {
            Kind::Ctc => Head::Ctc,
            Kind::Rnnt => Head::Rnnt(predictor),
            Kind::Tdt => Head::Tdt { predictor, durations: durations.to_vec() },
        },
        auxiliary_ctc: false,
    }
}

fn weights(seed: u64) -> Arc<dyn Weights> {
    Arc::new(Loud(RandomWeights::new(seed, |name| name.ends_with("bias") || name.contains("bias_"))))
}

impl Model {
    pub fn new(kind: Kind, seed: u64) -> Self {
        Self::with_durations(kind, seed, &[0, 1, 2, 3, 4])
    }

    pub fn with_durations(kind: Kind, seed: u64, durations: &[usize]) -> Self {
        Self::made(kind, durations, backend::loader(weights(seed)), backend::formats(Precision::F32))
    }

    /// The same on the CPU, whatever the tests run on.
    pub fn on_cpu(kind: Kind, seed: u64) -> Self {
        let formats = Formats::new(Precision::F32, Isa::from_env().unwrap());
        Self::made(kind, &[0, 1, 2, 3, 4], Loader::new(weights(seed)), formats)
    }

    /// The same on a device of the test's own.
    pub fn on(device: &std::sync::Arc<voce_runtime::cuda::Device>, kind: Kind, seed: u64) -> Self {
        let loader = Loader::new(weights(seed)).on(device.clone());
        Self::made(kind, &[0, 1, 2, 3, 4], loader, Formats::on_device(Precision::F32))
    }

    fn made(kind: Kind, durations: &[usize], loader: Loader, formats: Formats) -> Self {
        let config = config(kind, durations);
        let decoder = Decoder::load(&loader, &config, formats).unwrap();
        Self { decoder, kind, loader, config, formats }
    }

    /// Log-probabilities of all alignments of some labels together: what no search may exceed.
    pub fn exact(&self, exec: &mut Exec, frames: &Buffer, labels: &[u32]) -> f64 {
        match self.kind {
            Kind::Ctc => exact_ctc(frames, labels),
            _ => self.exact_transducer(exec, frames, labels),
        }
    }

    fn exact_transducer(&self, exec: &mut Exec, frames: &Buffer, labels: &[u32]) -> f64 {
        let p = self.config.predictor().unwrap();
        let classes = VOCAB + 1 + self.decoder.durations().len();
        let predictor = Predictor::load(&self.loader, p, VOCAB, self.formats).unwrap();
        let joint = Joint::load(&self.loader, p, DIM, classes, self.formats).unwrap();
        let (mut lanes, mut scratch) = (predictor.lanes(labels.len() + 1), predictor.scratch(1));
        for u in 0..=labels.len() {
            let mut moves = Moves::default();
            moves.push(if u == 0 { VOCAB as u32 } else { labels[u - 1] }, u.saturating_sub(1), u);
            predictor.step(exec, &moves, &mut lanes, &mut scratch);
        }
        let (rows, ends) = (frames.rows(), labels.len() + 1);
        let mut looks = joint.scratch(ends);
        let mut reached = vec![vec![f64::NEG_INFINITY; ends]; rows + 5];
        reached[0][0] = 0.0;
        for t in 0..rows {
            let (a_rows, b_rows) = (vec![t; ends], (0..ends).collect::<Vec<_>>());
            let pairs =
                AddReluOp { a: frames, a_rows: (&a_rows).into(), b: lanes.out(), b_rows: (&b_rows).into() };
            joint.run(exec, &pairs, &mut looks);
            exec.fetch(&mut looks.logits, ends);
            for u in 0..ends {
                let z = looks.logits.row(u);
                let classes = log_softmax(&z[..=VOCAB]);
                let steps = match self.decoder.durations() {
                    [] => vec![(0, 0.0)],
                    d => d.iter().copied().zip(log_softmax(&z[VOCAB + 1..])).collect(),
                };
                let here = reached[t][u];
                for &(d, p) in &steps {
                    let blank = &mut reached[t + d.max(1)][u];
                    *blank = log_add(*blank, here + classes[VOCAB] + p);
                    if let Some(&label) = labels.get(u) {
                        let next = &mut reached[t + d][u + 1];
                        *next = log_add(*next, here + classes[label as usize] + p);
                    }
                }
            }
        }
        reached[rows..].iter().map(|r| r[labels.len()]).fold(f64::NEG_INFINITY, log_add)
    }

    /// Random projected frames.
    pub fn frames(&self, seed: u64, rows: usize) -> Buffer {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut out = Buffer::new(rows, self.decoder.frame_width());
        let scale = if self.kind == Kind::Ctc { 4.0 } else { 1.5 };
        for v in out.head_mut(rows) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *v = scale * ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0);
        }
        out
    }

    pub fn feed(
        &self,
        exec: &mut Exec,
        search: &mut Search,
        state: &mut [SearchState; 1],
        frames: &Buffer,
        rows: Range<usize>,
    ) {
        let mut part = Buffer::new(rows.len(), frames.cols());
        rows.clone().enumerate().for_each(|(i, r)| part.row_mut(i).copy_from_slice(frames.row(r)));
        let spans = [Span { slot: 0, rows: rows.len() }];
        search.step(exec, &self.decoder, &mut part, &spans, state);
    }

    /// The readings of frames that come in the given cuts.
    pub fn search(
        &self,
        exec: &mut Exec,
        options: &SearchOptions,
        frames: &Buffer,
        cuts: &[usize],
    ) -> Vec<Hypothesis> {
        let mut search = Search::new(&self.decoder, 1);
        let mut state = [SearchState::new(&self.decoder, options).unwrap()];
        let mut at = 0;
        for &rows in cuts {
            self.feed(exec, &mut search, &mut state, frames, at..at + rows);
            at += rows;
        }
        search.flush(exec, &self.decoder, &mut state);
        state[0].finish()
    }
}

fn log_add(a: f64, b: f64) -> f64 {
    let high = a.max(b);
    if high == f64::NEG_INFINITY { high } else { high + ((a - high).exp() + (b - high).exp()).ln() }
}

pub fn log_softmax(z: &[f32]) -> Vec<f64> {
    let sum = z.iter().map(|&v| f64::from(v)).fold(f64::NEG_INFINITY, log_add);
    z.iter().map(|&v| f64::from(v) - sum).collect()
}

/// The forward algorithm over labels with blanks between.
fn exact_ctc(frames: &Buffer, labels: &[u32]) -> f64 {
    let classes: Vec<usize> =
        (0..2 * labels.len() + 1).map(|i| if i % 2 == 0 { VOCAB } else { labels[i / 2] as usize }).collect();
    let mut reached = vec![f64::NEG_INFINITY; classes.len()];
    for t in 0..frames.rows() {
        let p = log_softmax(frames.row(t));
        let before = std::mem::replace(&mut reached, vec![f64::NEG_INFINITY; classes.len()]);
        for (i, &c) in classes.iter().enumerate() {
            let mut sum = if t == 0 && i < 2 { 0.0 } else { before[i] };
            if t > 0 && i > 0 {
                sum = log_add(sum, before[i - 1]);
            }
            if t > 0 && i > 1 && c != VOCAB && c != classes[i - 2] {
                sum = log_add(sum, before[i - 2]);
            }
            reached[i] = sum + p[c];
        }
    }
    match reached[..] {
        [.., a, b] => log_add(a, b),
        [a] => a,
        [] => 0.0,
    }
}

pub fn labels(tokens: &[Token]) -> Vec<u32> {
    tokens.iter().map(|t| t.id).collect()
}

/// A small bigram model over label numbers.
pub fn lm() -> Ngram {
    let pieces: Vec<String> = (0..VOCAB).map(|i| i.to_string()).collect();
    let mut text =
        String::from("\\data\\\nngram 1=7\nngram 2=5\n\n\\1-grams:\n-99\t<s>\t-0.3\n-1.5\t<unk>\n");
    for (i, p) in [-0.7, -0.9, -0.8, -1.1, -0.6].iter().enumerate() {
        text += &format!("{p}\t{}\t-0.2\n", i + 1);
    }
    text += "\n\\2-grams:\n-0.3\t<s> 2\n-0.4\t1 2\n-0.5\t2 3\n-0.2\t3 4\n-0.6\t4 4\n\n\\end\\\n";
    Ngram::read(text.as_bytes(), &pieces).unwrap()
}
