//! Linear layers and layer norm: weights with their parameters.

use voce_runtime::{Buffer, Exec, Format, Input, LinearOp, Matrix, Norm, ProductRows, RowNorm, Vector};

use crate::{Loader, WeightError};

/// A linear layer; its bias is there if the checkpoint has one.
#[derive(Clone)]
pub struct Linear {
    w: Matrix,
    pub(crate) bias: Option<Vector>,
}

impl Linear {
    /// Loads `weight [outputs, inputs]` and, if present, `bias [outputs]`.
    pub fn load(l: &Loader, outputs: usize, inputs: usize, format: Format) -> Result<Self, WeightError> {
        Self::load_with(l, "weight", outputs, inputs, format, || l.tensor("weight", &[outputs, inputs]))
    }

    /// Loads a layer whose weights `make` gives when the cache does not know them under `name`, and, if
    /// present, `bias [outputs]`.
    pub fn load_with(
        l: &Loader,
        name: &str,
        outputs: usize,
        inputs: usize,
        format: Format,
        make: impl FnOnce() -> Result<Vec<f32>, WeightError>,
    ) -> Result<Self, WeightError> {
        let bias = l.optional("bias", &[outputs])?.map(Vector::from);
        Ok(Self { w: l.packed(name, format, outputs, inputs, make)?, bias })
    }

    /// A layer from values that are already at hand.
    pub fn from_values(
        l: &Loader,
        format: Format,
        outputs: usize,
        inputs: usize,
        values: &[f32],
    ) -> Result<Self, WeightError> {
        Ok(Self { w: l.pack(format, outputs, inputs, values)?, bias: None })
    }

    /// The same layer with this bias.
    pub fn with_bias(mut self, bias: Vec<f32>) -> Self {
        self.bias = Some(bias.into());
        self
    }

    /// The packed weights.
    pub fn matrix(&self) -> &Matrix {
        &self.w
    }

    /// The bias.
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// The rows of a buffer that this layer alone reads, until they are dropped.
    pub fn rows_in<'b>(&self, buffer: &'b mut Buffer) -> ProductRows<'b> {
        buffer.for_products(self.w.format())
    }

    /// An op over `rows` rows of `x`, to refine and run.
    pub fn op<'a>(&'a self, x: impl Into<Input<'a>>, rows: usize) -> LinearOp<'a> {
        let mut op = LinearOp::new(x, rows, &self.w);
        op.bias = self.bias.as_ref();
        op
    }

    /// Runs the plain layer.
    pub fn run(&self, exec: &mut Exec, x: &Buffer, rows: usize, out: &mut Buffer) {
        exec.linear(&self.op(x, rows), out);
    }

    /// Bytes that one pass reads.
    pub fn bytes(&self) -> usize {
        self.w.bytes()
    }

    /// Multiply-adds per row.
    pub fn macs(&self) -> usize {
        self.w.inputs() * self.w.outputs()
    }
}

/// Parameters of a layer norm.
#[derive(Clone)]
pub struct LayerNorm {
    weight: Option<Vector>,
    bias: Option<Vector>,
    eps: f32,
}

impl LayerNorm {
    /// Loads `weight` and, if present, `bias`.
    pub fn load(l: &Loader, dim: usize, eps: f32) -> Result<Self, WeightError> {
        let weight = Some(l.tensor("weight", &[dim])?.into());
        Ok(Self { weight, bias: l.optional("bias", &[dim])?.map(Vector::from), eps })
    }

    /// A norm without parameters.
    pub fn plain(eps: f32) -> Self {
        Self { weight: None, bias: None, eps }
    }

    /// As the first part of a linear op.
    pub fn norm(&self) -> Norm<'_> {
        Norm::Layer {
            weight: self.weight.as_ref(),
            bias: self.bias.as_ref(),
            eps: self.eps,
            modulation: None,
        }
    }

    /// As an op of its own; of a norm that was loaded.
    pub fn row(&self) -> RowNorm<'_> {
        RowNorm {
            weight: self.weight.as_ref().expect("a loaded norm has weights"),
            bias: self.bias.as_ref(),
            eps: self.eps,
        }
    }
}
