//! From samples to codes: what cloning in context listens with.

use voce_nn::{Formats, Linear, Loader, TransformerConfig, WeightError};
use voce_runtime::{Activation, Exec, Format, RopeStyle, Tokens};

use super::config::{CodecConfig, CodecEncoderConfig};
use super::names::TransformersNames;
use super::quantizer::table;
use crate::codec::Codes;
use crate::mimi::{
    EncoderParts, MimiEncoder, PadMode, SeanetConfig, SplitQuantizerConfig, SplitSearch, StageWatch,
};

/// Seconds that are encoded at most: every position sees all before it.
pub const MAX_ENCODED_SECONDS: usize = 600;
/// Positions of a frame.
const STEPS: usize = 2;
/// Frames that one call takes: enough rows for each reading of the weights, few enough for the caches.
const FRAMES: usize = 8;

/// Samples that cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// No samples.
    #[error("there are no samples to encode: give a recording of at least one frame")]
    Empty,
    /// More than [`MAX_ENCODED_SECONDS`].
    #[error(
        "more than {MAX_ENCODED_SECONDS} s of audio, which is the most that is encoded at once: cut the recording"
    )]
    TooLong,
}

/// The encoder half of the codec.
pub struct CodecEncoder {
    mimi: MimiEncoder,
    search: SplitSearch,
    config: CodecConfig,
}

/// The projection of a part of the quantiser; none where entries are as wide as what the encoder gives.
fn projection(l: &Loader, c: &CodecEncoderConfig) -> Result<Option<Linear>, WeightError> {
    let (l, width) = (l.sub("input_proj"), c.codebook_dim);
    let load = || {
        Linear::load_with(&l, "weight", width, c.hidden_size, Format::F32, || {
            l.tensor("weight", &[width, c.hidden_size, 1])
        })
    };
    (width != c.hidden_size).then(load).transpose()
}

impl CodecEncoder {
    /// Loads `encoder.*` of a speech tokenizer.
    pub fn load(l: &Loader, config: &CodecConfig, f: Formats) -> Result<Self, WeightError> {
        let c = &config.encoder_config;
        let seanet = SeanetConfig {
            dimension: c.hidden_size,
            channels: c.audio_channels,
            n_filters: c.num_filters,
            n_residual_layers: c.num_residual_layers,
            ratios: c.upsampling_ratios.clone(),
            kernel_size: c.kernel_size,
            residual_kernel_size: c.residual_kernel_size,
            last_kernel_size: c.last_kernel_size,
            dilation_base: c.dilation_growth_rate,
            pad_mode: PadMode::Constant,
            compress: c.compress,
        };
        let transformer = TransformerConfig {
            d_model: c.hidden_size,
            heads: c.num_attention_heads,
            kv_heads: c.num_key_value_heads,
            attn_dim: c.num_attention_heads * c.head_dim(),
            feedforward: c.intermediate_size,
            layers: c.num_hidden_layers,
            window: None,
            period: c.rope_theta,
            rope: RopeStyle::Halves,
            act: Activation::GeluErf,
            eps: c.norm_eps,
            format: f.conv,
            kv: f.kv,
        };
        let parts = EncoderParts { seanet: &seanet, transformer, steps: STEPS, by_frames: false };
        let mimi = MimiEncoder::from_parts(&l.with_source(TransformersNames::over(l)), &parts, f)?;
        let q = l.sub("encoder.quantizer");
        let (first, all) = (c.num_semantic_quantizers, config.encoder_valid_num_quantizers);
        let parts = ["semantic", "acoustic"].map(|part| q.sub(format!("{part}_residual_vector_quantizer")));
        let entries = (0..all).map(|book| {
            let (part, layer) = if book < first { (&parts[0], book) } else { (&parts[1], book - first) };
            let l = part.sub("layers").sub(layer).sub("codebook");
            table(&l, "embed_sum", c.codebook_size, c.codebook_dim)
        });
        let entries: Vec<Vec<f32>> = entries.collect::<Result<_, WeightError>>()?;
        let sizes = SplitQuantizerConfig {
            dimension: c.codebook_dim,
            n_q: all,
            first,
            bins: c.codebook_size,
            input_dimension: c.hidden_size,
            output_dimension: c.hidden_size,
        };
        let input = [projection(&parts[0], c)?, projection(&parts[1], c)?];
        Ok(Self {
            mimi,
            search: SplitSearch::from_entries(l, sizes, input, &entries)?,
            config: config.clone(),
        })
    }

    /// Samples per second that it takes.
    pub fn sample_rate(&self) -> usize {
        self.config.input_sample_rate
    }

    /// Samples per frame.
    pub fn frame_size(&self) -> usize {
        self.config.encode_downsample_rate
    }

    /// Codes of a frame.
    pub fn codebooks(&self) -> usize {
        self.config.encoder_valid_num_quantizers
    }

    /// Whether that many samples can be encoded.
    pub fn check(&self, samples: usize) -> Result<(), EncodeError> {
        match samples {
            0 => Err(EncodeError::Empty),
            n if n > MAX_ENCODED_SECONDS * self.sample_rate() => Err(EncodeError::TooLong),
            _ => Ok(()),
        }
    }

    /// The codes of a recording at the encoder's rate, a frame for each begun one.
    pub fn encode(&self, exec: &mut Exec, samples: &[f32]) -> Result<Codes, EncodeError> {
        self.encode_watched(exec, samples, None)
    }

    /// As [`CodecEncoder::encode`], showing each stage's rows as they come.
    pub fn encode_watched(
        &self,
        exec: &mut Exec,
        samples: &[f32],
        mut watch: StageWatch<'_>,
    ) -> Result<Codes, EncodeError> {
        self.check(samples.len())?;
        let frames = samples.len().div_ceil(self.frame_size());
        let mut state = self.mimi.state_of(FRAMES.min(frames), frames);
        let mut codes = vec![Vec::with_capacity(frames); self.codebooks()];
        let most = FRAMES.min(frames);
        let mut search = self.search.state(most);
        let mut tokens = Tokens::new(most, self.codebooks(), 0);
        for piece in samples.chunks(FRAMES * self.frame_size()) {
            // A closure of its own: the watcher's lifetime is not to be tied to one call.
            let mut again = watch.as_mut().map(|w| move |stage, rows: &[f32]| w(stage, rows));
            let again: StageWatch<'_> = again.as_mut().map(|w| w as &mut dyn FnMut(_, &[f32]));
            self.mimi.encode_watched(exec, &mut state, piece, again);
            let rows: Vec<usize> = (0..piece.len().div_ceil(self.frame_size())).collect();
            self.search.search(exec, &mut search, state.latents(), &rows, &mut tokens, 0);
            exec.fetch_tokens(&mut tokens);
            for row in rows {
                codes.iter_mut().zip(tokens.row(row)).for_each(|(book, code)| book.push(*code));
            }
        }
        Ok(codes)
    }
}
