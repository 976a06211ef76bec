//! What a FastConformer recogniser is made of, whatever layout its files have.

/// A recogniser.
#[derive(Clone, Debug, PartialEq)]
pub struct FastConformerConfig {
    /// Front end.
    pub mel: MelConfig,
    /// Encoder.
    pub encoder: EncoderConfig,
    /// Language prompt between encoder and head, in multilingual models.
    pub prompt: Option<PromptConfig>,
    /// Labels without the blank, which is the last class: id `vocab`.
    pub vocab: usize,
    /// What turns frames into labels.
    pub head: Head,
    /// A CTC head beside a transducer (hybrid models).
    pub auxiliary_ctc: bool,
}

/// Log-mel front end.
#[derive(Clone, Debug, PartialEq)]
pub struct MelConfig {
    /// Samples per second.
    pub sample_rate: usize,
    /// Mel bins.
    pub bins: usize,
    /// What happens to an utterance's features.
    pub normalize: MelNormalize,
    /// Whether filter bank and window are rounded to bf16, as in checkpoints that keep them so.
    pub bf16_filters: bool,
}

/// Normalisation of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MelNormalize {
    /// None: streaming models.
    None,
    /// Mean 0 and deviation 1 per bin over the utterance: offline models.
    PerFeature,
}

/// The encoder's shape.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderConfig {
    /// Conformer layers.
    pub layers: usize,
    /// Width.
    pub dim: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of the feed-forward layers.
    pub ff_dim: usize,
    /// Taps of the depthwise convolution.
    pub conv_kernel: usize,
    /// Norm inside the convolution module.
    pub conv_norm: ConvNorm,
    /// Channels of the subsampling.
    pub subsampling_channels: usize,
    /// Mel frames per encoder frame, a power of two.
    pub subsampling_factor: usize,
    /// Convolutions see the past only (streaming models), in subsampling and layers.
    pub causal: bool,
    /// Whether the subsampled features are multiplied by `sqrt(dim)`.
    pub scale_input: bool,
    /// What a frame sees.
    pub attention: Attention,
}

/// Norm inside the convolution module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvNorm {
    /// Batch norm, folded into the convolution.
    Batch,
    /// Layer norm (stored under the batch norm's name).
    Layer,
}

/// What a frame of the encoder sees.
#[derive(Clone, Debug, PartialEq)]
pub enum Attention {
    /// The whole utterance.
    Full,
    /// Its chunk of `look_ahead + 1` frames, and `left` frames before the chunk.
    Chunked {
        /// Frames before the chunk.
        left: usize,
        /// Look-aheads the model was trained for, the default first.
        look_aheads: Vec<usize>,
    },
}

/// Prediction network of a transducer.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictorConfig {
    /// Width of embedding and LSTM.
    pub hidden: usize,
    /// LSTM layers.
    pub layers: usize,
    /// Width of the joint.
    pub joint: usize,
    /// Labels per frame at most.
    pub max_symbols: usize,
}

/// What turns frames into labels.
#[derive(Clone, Debug, PartialEq)]
pub enum Head {
    /// A label or blank per frame, repeats collapsed.
    Ctc,
    /// Transducer.
    Rnnt(PredictorConfig),
    /// Transducer that also predicts how many frames to go on.
    Tdt {
        /// Prediction network and joint.
        predictor: PredictorConfig,
        /// Durations, in frames, of the last classes.
        durations: Vec<usize>,
    },
}

/// Language conditioning: a one-hot of the language beside each frame, and a two-layer network.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptConfig {
    /// Length of the one-hot.
    pub slots: usize,
    /// Width between the two layers.
    pub hidden: usize,
    /// Language codes and their slots.
    pub languages: Vec<(String, usize)>,
    /// Slot when no language is given.
    pub default: usize,
}
