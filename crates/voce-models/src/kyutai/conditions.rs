//! Conditions: what a request says besides tokens. Values of tables are one more column of a slot's tokens; so is a number,
//! which the configuration gives once for all requests.

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::{Exec, Table};

use super::conditioner::Conditioner;
use super::config::KyutaiConfig;
use super::embedding::widened;

/// A condition by its name and its value; no value is what the model learnt for its absence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its name.
    pub name: String,
    /// One of the values that the model knows.
    pub value: Option<String>,
}

/// A condition that is added to every row.
struct Added {
    name: String,
    values: Vec<String>,
    column: usize,
    /// The row of its table where no value is asked for.
    absent: u32,
}

/// A number as cosines and sines of waves up to `period` long.
fn waves(number: f32, dim: usize, period: f32) -> Vec<f32> {
    let half = dim / 2;
    let angle = |i: usize| number / period.powf(i as f32 / (half - 1) as f32);
    (0..half).map(|i| angle(i).cos()).chain((0..half).map(|i| angle(i).sin())).collect()
}

/// The conditions of a model.
pub struct Conditions {
    added: Vec<Added>,
}

impl Conditions {
    /// Loads the tables, which become columns after `tables`.
    pub(super) fn load(
        exec: &mut Exec,
        l: &Loader,
        config: &KyutaiConfig,
        formats: Formats,
        tables: &mut Vec<Table>,
    ) -> Result<Self, WeightError> {
        let fuser = config.fuser.clone().unwrap_or_default();
        let width = config.dim;
        let mut added = Vec::new();
        for name in &fuser.sum {
            let l = l.sub("condition_provider.conditioners").sub(name);
            let (embedded, dim, values, unsaid) = match config.conditioners.get(name) {
                Some(Conditioner::Lut { bins, dim, values }) => {
                    (l.sub("embed").tensor("weight", &[bins + 1, *dim])?, *dim, values.clone(), *bins)
                }
                Some(&Conditioner::Continuous { dim, scale, period, value }) => {
                    let mut rows = waves(value.unwrap_or(0.0) * scale, dim, period);
                    rows.resize(2 * dim, 0.0);
                    (rows, dim, Vec::new(), usize::from(value.is_none()))
                }
                Some(Conditioner::Tensor { .. }) | None => continue,
            };
            let mut rows = widened(exec, &l, "output_proj", &embedded, (dim, width))?;
            let absent = l.optional("learnt_padding", &[1, 1, width])?.unwrap_or_else(|| vec![0.0; width]);
            let last = rows.len() - width;
            rows[last..].copy_from_slice(&absent);
            let count = rows.len() / width;
            added.push(Added { name: name.clone(), values, column: tables.len(), absent: unsaid as u32 });
            tables.push(l.table_of(&rows, count, width, formats.embedding)?);
        }
        Ok(Self { added })
    }

    /// The values of a condition, if the model has it.
    pub fn values(&self, name: &str) -> Option<&[String]> {
        self.added.iter().find(|a| a.name == name).map(|a| &a.values[..])
    }

    /// Writes the tokens of conditions to a row of tokens; values that the model does not know count as absent.
    pub(super) fn fill(&self, conditions: &[Condition], tokens: &mut [u32]) {
        for added in &self.added {
            let asked = conditions.iter().find(|c| c.name == added.name).and_then(|c| c.value.as_ref());
            let row = asked.and_then(|asked| added.values.iter().position(|v| v == asked));
            tokens[added.column] = row.map_or(added.absent, |row| row as u32);
        }
    }
}
