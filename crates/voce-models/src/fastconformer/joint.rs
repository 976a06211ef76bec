//! The joint network of a transducer: frames and predictor outputs in one space, and classes from their sum.

use voce_nn::{Formats, Linear, Loader, WeightError};
use voce_runtime::{AddReluOp, Buffer, Exec};

use super::PredictorConfig;

/// `joint.enc` and `joint.joint_net`.
pub struct Joint {
    frames: Linear,
    head: Linear,
    width: usize,
    classes: usize,
}

/// Buffers of a step, grown as rows need them and kept.
pub struct JointScratch {
    sum: Buffer,
    /// Logits of the last call.
    pub logits: Buffer,
}

impl Joint {
    /// Loads `joint.enc` from frames of `dim` values, and the head with `classes` outputs.
    pub fn load(
        l: &Loader,
        config: &PredictorConfig,
        dim: usize,
        classes: usize,
        formats: Formats,
    ) -> Result<Self, WeightError> {
        let width = config.joint;
        Ok(Self {
            frames: Linear::load(&l.sub("joint.enc"), width, dim, formats.linear)?,
            head: Linear::load(&l.sub("joint.joint_net.2"), classes, width, formats.linear)?,
            width,
            classes,
        })
    }

    /// Width of projected frames.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Outputs: labels, blank, and durations if the model has them.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Projects encoder rows to what the search takes; once per frame.
    pub fn project(&self, exec: &mut Exec, x: &Buffer, rows: usize, out: &mut Buffer) {
        self.frames.run(exec, x, rows, out);
    }

    /// Buffers for calls of up to `rows` rows, and more when asked.
    pub fn scratch(&self, rows: usize) -> JointScratch {
        JointScratch { sum: Buffer::new(rows, self.width), logits: Buffer::new(rows, self.classes) }
    }

    /// Logits of pairs of a projected frame and a predictor's output.
    pub fn run(&self, exec: &mut Exec, pairs: &AddReluOp<'_>, scratch: &mut JointScratch) {
        let rows = pairs.a_rows.len();
        if scratch.sum.rows() < rows {
            *scratch = self.scratch(rows.next_power_of_two());
        }
        exec.add_relu(pairs, &mut scratch.sum);
        self.head.run(exec, &scratch.sum, rows, &mut scratch.logits);
    }

    /// Bytes that one call reads.
    pub fn bytes(&self) -> usize {
        self.head.bytes()
    }

    /// Multiply-adds per pair.
    pub fn macs(&self) -> usize {
        self.head.macs()
    }

    /// Multiply-adds of the projection of a frame.
    pub fn frame_macs(&self) -> usize {
        self.frames.macs()
    }
}
