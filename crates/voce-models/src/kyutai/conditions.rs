//! Conditions: what a request says besides tokens. Values of tables are one more column of a slot's tokens.

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::{Exec, Table};

use super::config::{Conditioner, KyutaiConfig};
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
    /// The row of its table for no value.
    absent: u32,
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
            let Some(Conditioner::Lut { bins, dim, values }) = config.conditioners.get(name) else {
                continue;
            };
            let l = l.sub("condition_provider.conditioners").sub(name);
            let embedded = l.sub("embed").tensor("weight", &[bins + 1, *dim])?;
            let mut rows = widened(exec, &l, "output_proj", &embedded, (*dim, width))?;
            let absent = l.optional("learnt_padding", &[1, 1, width])?.unwrap_or_else(|| vec![0.0; width]);
            rows[bins * width..].copy_from_slice(&absent);
            added.push(Added {
                name: name.clone(),
                values: values.clone(),
                column: tables.len(),
                absent: *bins as u32,
            });
            tables.push(l.table_of(&rows, bins + 1, width, formats.embedding)?);
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
