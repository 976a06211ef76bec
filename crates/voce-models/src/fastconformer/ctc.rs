//! The CTC head: a class or blank per frame.

use voce_nn::{Formats, Linear, Loader, WeightError};
use voce_runtime::{Buffer, Exec};

/// `ctc_decoder.decoder_layers.0`, a convolution of one tap.
pub struct CtcHead {
    head: Linear,
    classes: usize,
}

impl CtcHead {
    /// Loads the head for frames of `dim` values and `classes` labels with the blank.
    pub fn load(l: &Loader, dim: usize, classes: usize, formats: Formats) -> Result<Self, WeightError> {
        let l = l.sub("ctc_decoder.decoder_layers.0");
        let flat = l.shape("weight").is_some_and(|s| s.len() == 2);
        let shape = [classes, dim, 1];
        let values = l.tensor("weight", if flat { &shape[..2] } else { &shape })?;
        let head = Linear::from_values(&l, formats.linear, classes, dim, &values)?;
        let head = match l.optional("bias", &[classes])? {
            Some(bias) => head.with_bias(bias),
            None => head,
        };
        Ok(Self { head, classes })
    }

    /// Labels with the blank.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Logits of encoder rows.
    pub fn project(&self, exec: &mut Exec, x: &Buffer, rows: usize, out: &mut Buffer) {
        self.head.run(exec, x, rows, out);
    }

    /// Bytes that one call reads.
    pub fn bytes(&self) -> usize {
        self.head.bytes()
    }

    /// Multiply-adds per frame.
    pub fn macs(&self) -> usize {
        self.head.macs()
    }
}
