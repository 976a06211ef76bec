//! From samples to codes: what cloning in context listens with.

use voce_nn::{Formats, Linear, Loader, TransformerConfig, WeightError};
use voce_runtime::{Activation, Buffer, Exec, Format, RopeStyle};

use super::config::{CodecConfig, CodecEncoderConfig};
use super::names::TransformersNames;
use super::quantizer::table;
use crate::codec::Codes;
use crate::mimi::{EncoderParts, MimiEncoder, PadMode, SeanetConfig, StageWatch};

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
    /// The first codebooks, then the others: each part quantises what the encoder gives.
    parts: [Part; 2],
    config: CodecConfig,
}

/// Codebooks that quantise one projection, each what those before it have left.
struct Part {
    proj: Option<Linear>,
    books: Vec<Book>,
}

/// One codebook: the nearest entry of a row is that with the largest product, less half of its own square.
struct Book {
    scores: Linear,
    entries: Vec<f32>,
}

impl Part {
    fn load(l: &Loader, c: &CodecEncoderConfig, books: usize) -> Result<Self, WeightError> {
        let (n, width) = (c.codebook_size, c.codebook_dim);
        let proj = (width != c.hidden_size).then(|| {
            let l = l.sub("input_proj");
            Linear::load_with(&l, "weight", width, c.hidden_size, Format::F32, || {
                l.tensor("weight", &[width, c.hidden_size, 1])
            })
        });
        let books = (0..books).map(|i| {
            let l = l.sub("layers").sub(i).sub("codebook");
            let entries = table(&l, "embed_sum", n, width)?;
            let half = |row: &[f32]| -0.5 * row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
            let bias = entries.chunks_exact(width).map(|row| half(row) as f32).collect();
            let scores = Linear::from_values(&l, Format::F32, n, width, &entries)?.with_bias(bias);
            Ok(Book { scores, entries })
        });
        Ok(Self { proj: proj.transpose()?, books: books.collect::<Result<_, WeightError>>()? })
    }

    /// Codes of `rows` rows, appended to a list per codebook.
    fn encode(&self, exec: &mut Exec, latents: &[f32], rows: usize, codes: &mut [Vec<u32>]) {
        let mut x = Buffer::new(rows, latents.len() / rows);
        x.head_mut(rows).copy_from_slice(latents);
        if let Some(proj) = &self.proj {
            let mut out = Buffer::new(rows, proj.matrix().outputs());
            proj.run(exec, &x, rows, &mut out);
            exec.fetch(&mut out, rows);
            x = out;
        }
        let width = x.cols();
        let mut scores = None;
        for (book, codes) in self.books.iter().zip(codes) {
            let scores = scores.get_or_insert_with(|| Buffer::new(rows, book.scores.matrix().outputs()));
            book.scores.run(exec, &x, rows, scores);
            exec.fetch(scores, rows);
            for row in 0..rows {
                let best = first_largest(scores.row(row));
                codes.push(best as u32);
                let entry = &book.entries[best * width..][..width];
                x.row_mut(row).iter_mut().zip(entry).for_each(|(x, e)| *x -= e);
            }
            scores.discard();
        }
    }
}

/// The place of the largest value, the first of equal ones.
fn first_largest(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in values.iter().enumerate() {
        if *v > values[best] {
            best = i;
        }
    }
    best
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
        Ok(Self {
            mimi,
            parts: [
                Part::load(&q.sub("semantic_residual_vector_quantizer"), c, first)?,
                Part::load(&q.sub("acoustic_residual_vector_quantizer"), c, all - first)?,
            ],
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
        let first = self.parts[0].books.len();
        for piece in samples.chunks(FRAMES * self.frame_size()) {
            // A closure of its own: the watcher's lifetime is not to be tied to one call.
            let mut again = watch.as_mut().map(|w| move |stage, rows: &[f32]| w(stage, rows));
            let again: StageWatch<'_> = again.as_mut().map(|w| w as &mut dyn FnMut(_, &[f32]));
            let latents = self.mimi.encode_watched(exec, &mut state, piece, again).to_vec();
            let rows = piece.len().div_ceil(self.frame_size());
            let (semantic, acoustic) = codes.split_at_mut(first);
            self.parts[0].encode(exec, &latents, rows, semantic);
            self.parts[1].encode(exec, &latents, rows, acoustic);
        }
        Ok(codes)
    }
}
