//! ECAPA-TDNN: convolutions over all of a recording, channel attention, and statistics that attention weighs.
//!
//! Every sum over time needs all rows, so a recording is encoded whole. Products run as ops; between them the host gathers
//! rows and takes means.

use voce_audio::magnitude_mel::{MAGNITUDE_MEL_RATE, magnitude_mel};
use voce_nn::{Formats, Linear, Loader, WeightError};
use voce_runtime::{Activation, Buffer, Exec};

use super::config::SpeakerConfig;

/// Seconds that are listened to at most.
pub const MAX_SPEAKER_SECONDS: usize = 600;
/// Rows of a product: what is gathered for one stays in the caches.
const ROWS: usize = 256;
/// The least variance.
const EPS: f32 = 1e-12;

/// A recording that has no embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpeakerError {
    /// Too few samples to mirror.
    #[error("{samples} samples are too short for a speaker's embedding: at least {least} are needed")]
    TooShort {
        /// Its samples.
        samples: usize,
        /// The least.
        least: usize,
    },
    /// Beyond [`MAX_SPEAKER_SECONDS`].
    #[error("{seconds} s of audio: at most {MAX_SPEAKER_SECONDS} s are listened to; cut the recording")]
    TooLong {
        /// Seconds, rounded up.
        seconds: usize,
    },
}

/// Who looks at the stages: the name in the checkpoint, and its rows.
pub type SpeakerWatch<'a> = Option<&'a mut dyn FnMut(&str, &[f32])>;

/// Rows of equal width.
#[derive(Clone)]
struct Rows {
    values: Vec<f32>,
    width: usize,
}

impl Rows {
    fn new(values: Vec<f32>, width: usize) -> Self {
        Self { values, width }
    }

    fn len(&self) -> usize {
        self.values.len() / self.width
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.width..][..self.width]
    }

    /// Some columns.
    fn columns(&self, from: usize, width: usize) -> Rows {
        Rows::new(
            (0..self.len()).flat_map(|i| self.row(i)[from..from + width].iter().copied()).collect(),
            width,
        )
    }

    fn mean(&self) -> Vec<f32> {
        let even = vec![1.0 / self.len() as f32; self.values.len()];
        self.moments(&even).0
    }

    /// Mean and deviation of each column under weights, which add up to one in each.
    fn moments(&self, weights: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let mut mean = vec![0f64; self.width];
        let mut square = mean.clone();
        let each = || self.values.chunks_exact(self.width).zip(weights.chunks_exact(self.width));
        for (row, w) in each() {
            mean.iter_mut().zip(row).zip(w).for_each(|((m, x), w)| *m += f64::from(w * x));
        }
        for (row, w) in each() {
            let sums = square.iter_mut().zip(&mean).zip(row.iter().zip(w));
            sums.for_each(|((s, m), (x, w))| *s += f64::from(*w) * (f64::from(*x) - m).powi(2));
        }
        let deviation = square.iter().map(|s| (*s as f32).max(EPS).sqrt()).collect();
        (mean.into_iter().map(|m| m as f32).collect(), deviation)
    }
}

/// A convolution over a whole recording whose ends are mirrored.
struct Tdnn {
    product: Linear,
    inputs: usize,
    kernel: usize,
    dilation: usize,
}

impl Tdnn {
    /// Loads `weight [outputs, inputs, kernel]` and, if present, `bias`.
    fn load(
        l: &Loader,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        dilation: usize,
        f: Formats,
    ) -> Result<Self, WeightError> {
        let product = Linear::load_with(l, "weight", outputs, kernel * inputs, f.conv, || {
            let values = l.tensor("weight", &[outputs, inputs, kernel])?;
            let of = |i: usize| {
                let (o, at) = (i / (kernel * inputs), i % (kernel * inputs));
                values[(o * inputs + at % inputs) * kernel + at / inputs]
            };
            Ok((0..values.len()).map(of).collect())
        })?;
        Ok(Self { product, inputs, kernel, dilation })
    }

    fn run(&self, exec: &mut Exec, x: &Rows, act: Activation) -> Rows {
        let (rows, outputs) = (x.len(), self.product.matrix().outputs());
        let reach = (self.kernel - 1) * self.dilation / 2;
        // The row that stands at a place before the first or behind the last one.
        let mirrored = |at: usize| match at.checked_sub(reach) {
            None => reach - at,
            Some(at) if at >= rows => 2 * (rows - 1) - at,
            Some(at) => at,
        };
        let mut operand = Buffer::new(ROWS.min(rows), self.kernel * self.inputs);
        let mut out = Buffer::new(ROWS.min(rows), outputs);
        let mut made = Vec::with_capacity(rows * outputs);
        for first in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first);
            operand.discard();
            for (r, to) in operand.head_mut(count).chunks_exact_mut(self.kernel * self.inputs).enumerate() {
                for (tap, to) in to.chunks_exact_mut(self.inputs).enumerate() {
                    to.copy_from_slice(x.row(mirrored(first + r + tap * self.dilation)));
                }
            }
            let mut op = self.product.op(&operand, count);
            op.act = act;
            exec.linear(&op, &mut out);
            exec.fetch(&mut out, count);
            made.extend_from_slice(out.head(count));
        }
        Rows::new(made, outputs)
    }
}

/// A block: two pointwise layers around groups of channels that each add the one before, channel attention, residual.
struct Block {
    first: Tdnn,
    groups: Vec<Tdnn>,
    second: Tdnn,
    squeeze: [Tdnn; 2],
}

impl Block {
    fn load(l: &Loader, c: &SpeakerConfig, i: usize, f: Formats) -> Result<Self, WeightError> {
        let width = c.enc_channels[i];
        let group = width / c.enc_res2net_scale;
        let groups = (0..c.enc_res2net_scale - 1).map(|g| {
            let l = l.sub("res2net_block.blocks").sub(g).sub("conv");
            Tdnn::load(&l, group, group, c.enc_kernel_sizes[i], c.enc_dilations[i], f)
        });
        let se = l.sub("se_block");
        Ok(Self {
            first: Tdnn::load(&l.sub("tdnn1.conv"), width, width, 1, 1, f)?,
            groups: groups.collect::<Result<_, WeightError>>()?,
            second: Tdnn::load(&l.sub("tdnn2.conv"), width, width, 1, 1, f)?,
            squeeze: [
                Tdnn::load(&se.sub("conv1"), width, c.enc_se_channels, 1, 1, f)?,
                Tdnn::load(&se.sub("conv2"), c.enc_se_channels, width, 1, 1, f)?,
            ],
        })
    }

    fn run(&self, exec: &mut Exec, x: &Rows) -> Rows {
        let mut h = self.first.run(exec, x, Activation::Relu);
        let width = h.width / (self.groups.len() + 1);
        let mut last: Option<Rows> = None;
        for (g, group) in self.groups.iter().enumerate() {
            let at = (g + 1) * width;
            let mut part = h.columns(at, width);
            if let Some(last) = &last {
                part.values.iter_mut().zip(&last.values).for_each(|(p, l)| *p += l);
            }
            let made = group.run(exec, &part, Activation::Relu);
            for (i, row) in made.values.chunks_exact(width).enumerate() {
                h.values[i * h.width + at..][..width].copy_from_slice(row);
            }
            last = Some(made);
        }
        let mut h = self.second.run(exec, &h, Activation::Relu);
        let mean = Rows::new(h.mean(), h.width);
        let squeezed = self.squeeze[0].run(exec, &mean, Activation::Relu);
        let gates = self.squeeze[1].run(exec, &squeezed, Activation::None);
        let gates: Vec<f32> = gates.values.iter().map(|v| 1.0 / (1.0 + (-v).exp())).collect();
        for (row, x) in h.values.chunks_exact_mut(gates.len()).zip(x.values.chunks_exact(gates.len())) {
            row.iter_mut().zip(&gates).zip(x).for_each(|((h, g), x)| *h = *h * g + x);
        }
        h
    }
}

/// The speaker encoder.
pub struct SpeakerEncoder {
    first: Tdnn,
    blocks: Vec<Block>,
    mfa: Tdnn,
    attention: [Tdnn; 2],
    out: Tdnn,
    config: SpeakerConfig,
}

impl SpeakerEncoder {
    /// Loads the tensors of `speaker_encoder.`; `config` passed its check.
    pub fn load(l: &Loader, config: &SpeakerConfig, f: Formats) -> Result<Self, WeightError> {
        let (c, end) = (config, config.enc_channels.len() - 1);
        let (all, blocks) = (c.enc_channels[end], l.sub("blocks"));
        let kernel = |i: usize| (c.enc_kernel_sizes[i], c.enc_dilations[i]);
        let (k, d) = kernel(0);
        let first = Tdnn::load(&blocks.sub("0.conv"), c.mel_dim, c.enc_channels[0], k, d, f)?;
        let (k, d) = kernel(end);
        let pooled = c.enc_attention_channels;
        Ok(Self {
            first,
            blocks: (1..end).map(|i| Block::load(&blocks.sub(i), c, i, f)).collect::<Result<_, _>>()?,
            mfa: Tdnn::load(&l.sub("mfa.conv"), all, all, k, d, f)?,
            attention: [
                Tdnn::load(&l.sub("asp.tdnn.conv"), 3 * all, pooled, 1, 1, f)?,
                Tdnn::load(&l.sub("asp.conv"), pooled, all, 1, 1, f)?,
            ],
            out: Tdnn::load(&l.sub("fc"), 2 * all, c.enc_dim, 1, 1, f)?,
            config: config.clone(),
        })
    }

    /// Width of an embedding.
    pub fn width(&self) -> usize {
        self.config.enc_dim
    }

    /// Samples per second that it takes.
    pub fn sample_rate(&self) -> usize {
        MAGNITUDE_MEL_RATE as usize
    }

    /// The embedding of a recording's speaker.
    pub fn embed(&self, exec: &mut Exec, samples: &[f32]) -> Result<Vec<f32>, SpeakerError> {
        self.embed_watched(exec, samples, None)
    }

    /// As [`SpeakerEncoder::embed`], showing each stage's rows.
    pub fn embed_watched(
        &self,
        exec: &mut Exec,
        samples: &[f32],
        mut watch: SpeakerWatch<'_>,
    ) -> Result<Vec<f32>, SpeakerError> {
        let seconds = samples.len().div_ceil(self.sample_rate());
        if samples.len() > MAX_SPEAKER_SECONDS * self.sample_rate() {
            return Err(SpeakerError::TooLong { seconds });
        }
        let least = (256 * self.config.least_rows()).max(voce_audio::magnitude_mel::MAGNITUDE_MEL_SAMPLES);
        if samples.len() < least {
            return Err(SpeakerError::TooShort { samples: samples.len(), least });
        }
        let mut show = |name: &str, rows: &[f32]| {
            if let Some(watch) = &mut watch {
                watch(name, rows);
            }
        };
        let mel = Rows::new(magnitude_mel(samples, self.config.mel_dim), self.config.mel_dim);
        show("mel", &mel.values);
        let mut x = self.first.run(exec, &mel, Activation::Relu);
        show("blocks.0", &x.values);
        let all = self.mfa.inputs;
        let (mut joined, mut at) = (Rows::new(vec![0.0; x.len() * all], all), 0);
        for (i, block) in self.blocks.iter().enumerate() {
            x = block.run(exec, &x);
            show(&format!("blocks.{}", i + 1), &x.values);
            for (r, row) in x.values.chunks_exact(x.width).enumerate() {
                joined.values[r * all + at..][..x.width].copy_from_slice(row);
            }
            at += x.width;
        }
        let x = self.mfa.run(exec, &joined, Activation::Relu);
        show("mfa", &x.values);
        let pooled = self.pool(exec, &x);
        show("asp", &pooled.values);
        let out = self.out.run(exec, &pooled, Activation::None);
        show("embedding", &out.values);
        Ok(out.values)
    }

    /// Mean and deviation of each channel over time, under weights that a small network gives each row and channel.
    fn pool(&self, exec: &mut Exec, x: &Rows) -> Rows {
        let (rows, width) = (x.len(), x.width);
        let (mean, deviation) = x.moments(&vec![1.0 / rows as f32; x.values.len()]);
        let context = (0..rows).flat_map(|i| x.row(i).iter().chain(&mean).chain(&deviation).copied());
        let context = Rows::new(context.collect(), 3 * width);
        let mut h = self.attention[0].run(exec, &context, Activation::Relu);
        h.values.iter_mut().for_each(|v| *v = v.tanh());
        let mut weights = self.attention[1].run(exec, &h, Activation::None).values;
        for channel in 0..width {
            let of = || (channel..rows * width).step_by(width);
            let most = of().map(|i| weights[i]).fold(f32::NEG_INFINITY, f32::max);
            of().for_each(|i| weights[i] = (weights[i] - most).exp());
            let total = of().map(|i| f64::from(weights[i])).sum::<f64>() as f32;
            of().for_each(|i| weights[i] /= total);
        }
        let (mut pooled, mut deviation) = x.moments(&weights);
        pooled.append(&mut deviation);
        Rows::new(pooled, 2 * width)
    }
}
