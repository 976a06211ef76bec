//! The weights of a decoder: predictor and joint of a transducer, or a CTC head.

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::{Buffer, Exec};

use crate::fastconformer::{CtcHead, FastConformerConfig, Head, Joint, Predictor};

/// What turns encoder frames into labels.
pub struct Decoder {
    pub(super) head: DecoderHead,
    vocab: usize,
}

pub(super) enum DecoderHead {
    Transducer(Box<Transducer>),
    Ctc(CtcHead),
}

pub(super) struct Transducer {
    pub predictor: Predictor,
    pub joint: Joint,
    /// Durations in frames; none for RNN-T.
    pub durations: Vec<usize>,
    pub max_symbols: usize,
}

impl Transducer {
    pub(super) fn blank(&self) -> u32 {
        (self.joint.classes() - self.durations.len() - 1) as u32
    }
}

impl Decoder {
    /// Loads the model's head.
    pub fn load(l: &Loader, config: &FastConformerConfig, formats: Formats) -> Result<Self, WeightError> {
        let vocab = config.vocab;
        let (predictor, durations) = match &config.head {
            Head::Ctc => return Self::load_ctc(l, config, formats),
            Head::Rnnt(p) => (p, Vec::new()),
            Head::Tdt { predictor, durations } => (predictor, durations.clone()),
        };
        let classes = vocab + 1 + durations.len();
        let transducer = Transducer {
            predictor: Predictor::load(l, predictor, vocab, formats)?,
            joint: Joint::load(l, predictor, config.encoder.dim, classes, formats)?,
            durations,
            max_symbols: predictor.max_symbols.max(1),
        };
        Ok(Self { head: DecoderHead::Transducer(Box::new(transducer)), vocab })
    }

    /// Loads the CTC head, of a CTC model or of a hybrid one.
    pub fn load_ctc(l: &Loader, config: &FastConformerConfig, formats: Formats) -> Result<Self, WeightError> {
        let head = CtcHead::load(l, config.encoder.dim, config.vocab + 1, formats)?;
        Ok(Self { head: DecoderHead::Ctc(head), vocab: config.vocab })
    }

    /// Width of the rows that [`Decoder::project`] gives and the search takes.
    pub fn frame_width(&self) -> usize {
        match &self.head {
            DecoderHead::Transducer(t) => t.joint.width(),
            DecoderHead::Ctc(h) => h.classes(),
        }
    }

    /// Turns encoder rows into what the search takes: the joint's view of them, or CTC logits.
    pub fn project(&self, exec: &mut Exec, x: &Buffer, rows: usize, out: &mut Buffer) {
        match &self.head {
            DecoderHead::Transducer(t) => t.joint.project(exec, x, rows, out),
            DecoderHead::Ctc(h) => h.project(exec, x, rows, out),
        }
    }

    /// Labels without the blank.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The blank's id.
    pub fn blank(&self) -> u32 {
        self.vocab as u32
    }

    /// Durations of a TDT model, else none.
    pub fn durations(&self) -> &[usize] {
        match &self.head {
            DecoderHead::Transducer(t) => &t.durations,
            DecoderHead::Ctc(_) => &[],
        }
    }

    /// `rnnt`, `tdt` or `ctc`.
    pub fn name(&self) -> &'static str {
        match &self.head {
            DecoderHead::Ctc(_) => "ctc",
            DecoderHead::Transducer(t) if t.durations.is_empty() => "rnnt",
            DecoderHead::Transducer(_) => "tdt",
        }
    }

    /// Values of a predictor's state; none for CTC.
    pub(super) fn lane_width(&self) -> usize {
        match &self.head {
            DecoderHead::Transducer(t) => t.predictor.lane_width(),
            DecoderHead::Ctc(_) => 0,
        }
    }

    /// Bytes of weights that every frame reads (the joint, or the head of CTC).
    pub fn frame_bytes(&self) -> usize {
        match &self.head {
            DecoderHead::Transducer(t) => t.joint.bytes(),
            DecoderHead::Ctc(h) => h.bytes(),
        }
    }

    /// Bytes of weights that a label reads besides (the predictor).
    pub fn label_bytes(&self) -> usize {
        match &self.head {
            DecoderHead::Transducer(t) => t.predictor.bytes(),
            DecoderHead::Ctc(_) => 0,
        }
    }

    /// Multiply-adds per frame (projection and one look of the joint).
    pub fn frame_macs(&self) -> usize {
        match &self.head {
            DecoderHead::Transducer(t) => t.joint.frame_macs() + t.joint.macs(),
            DecoderHead::Ctc(h) => h.macs(),
        }
    }

    /// Multiply-adds per label (predictor and one look of the joint).
    pub fn label_macs(&self) -> usize {
        match &self.head {
            DecoderHead::Transducer(t) => t.predictor.macs() + t.joint.macs(),
            DecoderHead::Ctc(_) => 0,
        }
    }
}
