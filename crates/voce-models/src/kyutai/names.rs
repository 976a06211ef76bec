//! Names of the depth transformer's tensors: everything of a set of weights, or of a step, under its number.
//!
//! What is loaded is `depth.SET.{linear_in, transformer.layers.L...}` and `step.S.{linear_out, emb}`. Files of the
//! published package have all sets of a layer in one tensor; files of the crate `moshi` have a copy for every step.

use std::sync::{Arc, Mutex, PoisonError};

use voce_nn::weights::{Tensor, Weights};
use voce_nn::{Loader, WeightError};

use super::config::KyutaiConfig;

/// A source of either naming under the names that are loaded; names of the backbone stay as they are.
pub struct DepthNames {
    source: Arc<dyn Weights>,
    /// The first step of each set.
    first: Vec<usize>,
    /// Whether layers have a set of weights for each step, and so numbers in their names.
    several: bool,
    /// Whether each set has its own way in.
    ways: bool,
    candle: bool,
    /// The last tensor that sets were taken from.
    last: Mutex<Option<(String, Tensor)>>,
}

/// Where a tensor is found.
enum Place {
    /// Under another name.
    Named(String),
    /// One of the equal parts of a tensor.
    Part(String, usize),
}

impl DepthNames {
    /// Wraps a source.
    pub fn new(source: Arc<dyn Weights>, config: &KyutaiConfig) -> Self {
        let schedule = config.schedule();
        let first = |set| schedule.iter().position(|s| *s == set).unwrap_or_default();
        Self {
            first: (0..config.sets()).map(first).collect(),
            several: config.depformer_weights_per_step,
            ways: config.depformer_multi_linear,
            candle: source.shape("depformer.0.linear_in.weight").is_some(),
            last: Mutex::new(None),
            source,
        }
    }

    /// A loader of the wrapped source, whose matrices go where `l`'s go.
    pub fn over(l: &Loader, config: &KyutaiConfig) -> Loader {
        l.with_source(Arc::new(Self::new(l.source(), config)))
    }

    fn place(&self, name: &str) -> Place {
        let mut parts = name.splitn(3, '.');
        let (Some(kind), Some(Ok(number)), Some(rest)) =
            (parts.next(), parts.next().map(str::parse::<usize>), parts.next())
        else {
            return Place::Named(name.to_owned());
        };
        let first = self.first.get(number).copied().unwrap_or_default();
        match kind {
            "depth" if self.candle => Place::Named(format!("depformer.{first}.{rest}")),
            "step" if self.candle => Place::Named(format!("depformer.{number}.{rest}")),
            "step" => Place::Named(match rest.strip_prefix("linear_out.") {
                Some(rest) => format!("linears.{number}.{rest}"),
                None => {
                    let rest = rest.strip_prefix("emb.").unwrap_or(rest);
                    match number {
                        0 => format!("depformer_text_emb.{rest}"),
                        _ => format!("depformer_emb.{}.{rest}", number - 1),
                    }
                }
            }),
            "depth" => match (rest.strip_prefix("linear_in."), rest.strip_prefix("transformer.")) {
                (Some(rest), _) => {
                    Place::Named(format!("depformer_in.{}.{rest}", if self.ways { number } else { 0 }))
                }
                (_, Some(rest)) if rest.contains(".self_attn.") && self.first.len() > 1 => {
                    Place::Part(format!("depformer.{rest}"), number)
                }
                (_, Some(rest)) if self.several => Place::Named(format!(
                    "depformer.{}",
                    rest.replace(".gating.", &format!(".gating.{number}."))
                )),
                (_, rest) => Place::Named(format!("depformer.{}", rest.unwrap_or_default())),
            },
            _ => Place::Named(name.to_owned()),
        }
    }

    /// One of as many parts of a tensor as there are sets.
    fn part(&self, name: &str, set: usize, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let sets = self.first.len();
        let mut whole = expected.to_vec();
        if let Some(rows) = whole.first_mut() {
            *rows *= sets;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(held, _)| held != name) {
            let Some(tensor) = self.source.get(name, &whole)? else { return Ok(None) };
            if tensor.shape != whole {
                let (name, got) = (name.to_owned(), tensor.shape);
                return Err(WeightError::Shape { name, expected: whole, got });
            }
            *last = Some((name.to_owned(), tensor));
        }
        let Some((_, tensor)) = &*last else { return Ok(None) };
        let each = tensor.values.len() / sets;
        let values = tensor.values[set * each..(set + 1) * each].to_vec();
        Ok(Some(Tensor { shape: expected.to_vec(), values }))
    }
}

impl Weights for DepthNames {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        match self.place(name) {
            Place::Named(name) => self.source.get(&name, expected),
            Place::Part(name, set) => self.part(&name, set, expected),
        }
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match self.place(name) {
            Place::Named(name) => self.source.shape(&name),
            Place::Part(name, _) => self.source.shape(&name).map(|mut shape| {
                if let Some(rows) = shape.first_mut() {
                    *rows /= self.first.len().max(1);
                }
                shape
            }),
        }
    }
}
