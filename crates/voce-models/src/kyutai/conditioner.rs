//! One condition of a configuration: a table of values, a number, or rows to look at.

use serde::Deserialize;
use serde_json::Value;

use super::config::MOST_WIDTH;

/// One condition.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawConditioner")]
pub enum Conditioner {
    /// One of several values.
    Lut {
        /// Rows of the table; one more stands for no value.
        bins: usize,
        /// Width of a row.
        dim: usize,
        /// The values, in the order of the rows.
        values: Vec<String>,
    },
    /// Rows of numbers.
    Tensor {
        /// Width of a row.
        dim: usize,
    },
    /// A number, as sines of it.
    Continuous {
        /// Width of the sines: cosines, then sines.
        dim: usize,
        /// What the number is multiplied by.
        scale: f32,
        /// The longest wave.
        period: f32,
        /// The number; without one it is absent.
        value: Option<f32>,
    },
}

#[derive(Deserialize)]
struct RawConditioner {
    r#type: String,
    lut: Option<Value>,
    tensor: Option<Value>,
    continuous: Option<Value>,
}

impl TryFrom<RawConditioner> for Conditioner {
    type Error = String;

    fn try_from(raw: RawConditioner) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Lut {
            n_bins: usize,
            dim: usize,
            tokenizer: String,
            possible_values: Option<Vec<String>>,
        }
        #[derive(Deserialize)]
        struct Tensor {
            dim: usize,
        }
        #[derive(Deserialize)]
        struct Continuous {
            dim: usize,
            scale_factor: f32,
            max_period: f32,
            value: Option<f32>,
        }
        match (raw.r#type.as_str(), raw.lut, raw.tensor, raw.continuous) {
            ("lut", Some(lut), ..) => {
                let lut: Lut = serde_json::from_value(lut).map_err(|e| e.to_string())?;
                if lut.tokenizer != "noop" {
                    return Err(format!("a condition's tokenizer '{}': noop is known", lut.tokenizer));
                }
                let Some(values) = lut.possible_values else {
                    return Err("a table of conditions without possible_values".into());
                };
                if values.len() > lut.n_bins {
                    return Err(format!("{} values in {} bins", values.len(), lut.n_bins));
                }
                Ok(Self::Lut { bins: lut.n_bins, dim: lut.dim, values })
            }
            ("tensor", _, Some(tensor), _) => {
                let tensor: Tensor = serde_json::from_value(tensor).map_err(|e| e.to_string())?;
                Ok(Self::Tensor { dim: tensor.dim })
            }
            ("continuous", .., Some(continuous)) => {
                let c: Continuous = serde_json::from_value(continuous).map_err(|e| e.to_string())?;
                if c.dim < 4 || !c.dim.is_multiple_of(2) || c.dim > MOST_WIDTH {
                    return Err(format!("a number as {} sines: an even number from 4 on can be run", c.dim));
                }
                let finite = |v: f32| v.is_finite() && v != 0.0;
                if !finite(c.scale_factor) || !finite(c.max_period) || c.max_period < 0.0 {
                    return Err(format!("sines of {} by {}", c.max_period, c.scale_factor));
                }
                if c.value.is_some_and(|v| !v.is_finite()) {
                    return Err("a condition's number is not finite".into());
                }
                Ok(Self::Continuous {
                    dim: c.dim,
                    scale: c.scale_factor,
                    period: c.max_period,
                    value: c.value,
                })
            }
            (kind, ..) => Err(format!("a condition of type '{kind}': lut, continuous and tensor are known")),
        }
    }
}
