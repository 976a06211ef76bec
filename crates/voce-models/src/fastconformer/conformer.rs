//! One conformer layer: half a feed-forward, relative attention, convolution, half a feed-forward, norm.

use voce_nn::{Formats, LayerNorm, Linear, Loader, WeightError};
use voce_runtime::{
    Activation, Buffer, ChunkSpan, ConvState, ConvStateSpec, DepthwiseOp, Exec, Format, Gate, KvCache,
    RelativeAttentionOp, RelativePositions, Span, Vector,
};

use super::{ConvNorm, EncoderConfig};

/// Added to variances, of layer and batch norms alike.
const EPS: f32 = 1e-5;

/// Two linears with SiLU between and half of the result added.
struct FeedForward {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl FeedForward {
    fn load(l: &Loader, which: usize, c: &EncoderConfig, format: Format) -> Result<Self, WeightError> {
        let ff = l.sub(format!("feed_forward{which}"));
        let down = ff.sub("linear2");
        // Half of the result counts: a power of two, so folding it in rounds nothing.
        let half = |mut v: Vec<f32>| {
            v.iter_mut().for_each(|x| *x *= 0.5);
            v
        };
        let mut linear = Linear::load_with(&down, "half weight", c.dim, c.ff_dim, format, || {
            down.tensor("weight", &[c.dim, c.ff_dim]).map(half)
        })?;
        if let Some(bias) = linear.bias().map(<[f32]>::to_vec) {
            linear = linear.with_bias(half(bias));
        }
        Ok(Self {
            norm: LayerNorm::load(&l.sub(format!("norm_feed_forward{which}")), c.dim, EPS)?,
            up: Linear::load(&ff.sub("linear1"), c.ff_dim, c.dim, format)?,
            down: linear,
        })
    }

    fn run(&self, exec: &mut Exec, rows: usize, x: &mut Buffer, wide: &mut Buffer) {
        wide.shape(rows, self.up.matrix().outputs());
        let mut op = self.up.op(&*x, rows);
        (op.norm, op.act) = (self.norm.norm(), Activation::Silu);
        let mut hidden = self.down.rows_in(wide);
        exec.linear(&op, &mut hidden);
        let mut op = self.down.op(&hidden, rows);
        op.gate = Gate::Add;
        exec.linear(&op, x);
    }
}

/// One layer's weights.
pub(super) struct Layer {
    first: FeedForward,
    attention_norm: LayerNorm,
    qkv: Linear,
    attention_out: Linear,
    content_bias: Vector,
    position_bias: Vector,
    conv_norm: LayerNorm,
    conv_in: Linear,
    kernel: Vector,
    kernel_bias: Option<Vector>,
    inner_norm: Option<LayerNorm>,
    conv_out: Linear,
    second: FeedForward,
    out_norm: LayerNorm,
    ahead: usize,
}

/// What a pass over the layers works in.
pub(super) struct Scratch {
    wide: Buffer,
    narrow: Buffer,
    gated: Buffer,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { wide: Buffer::new(1, 1), narrow: Buffer::new(1, 1), gated: Buffer::new(1, 1) }
    }
}

/// What a layer keeps of the past, and whose rows it runs over.
pub(super) struct LayerInput<'a> {
    pub spans: &'a [Span],
    pub chunks: &'a [ChunkSpan],
    pub cache: &'a mut KvCache,
    /// Index of the layer's rings in the cache.
    pub layer: usize,
    pub conv: &'a mut ConvState,
    pub positions: &'a RelativePositions,
}

impl Layer {
    pub(super) fn load(l: &Loader, c: &EncoderConfig, f: Formats) -> Result<Self, WeightError> {
        let (d, format) = (c.dim, f.backbone);
        let attention = l.sub("self_attn");
        let conv = l.sub("conv");
        let (kernel, kernel_bias, inner_norm) = depthwise(&conv, c)?;
        Ok(Self {
            first: FeedForward::load(l, 1, c, format)?,
            attention_norm: LayerNorm::load(&l.sub("norm_self_att"), d, EPS)?,
            qkv: qkv(&attention, d, format)?,
            attention_out: Linear::load(&attention.sub("linear_out"), d, d, format)?,
            content_bias: attention.tensor("pos_bias_u", &[c.heads, d / c.heads])?.into(),
            position_bias: attention.tensor("pos_bias_v", &[c.heads, d / c.heads])?.into(),
            conv_norm: LayerNorm::load(&l.sub("norm_conv"), d, EPS)?,
            conv_in: pointwise(&conv.sub("pointwise_conv1"), 2 * d, d, format)?,
            kernel,
            kernel_bias,
            inner_norm,
            conv_out: pointwise(&conv.sub("pointwise_conv2"), d, d, format)?,
            second: FeedForward::load(l, 2, c, format)?,
            out_norm: LayerNorm::load(&l.sub("norm_out"), d, EPS)?,
            ahead: if c.causal { 0 } else { (c.conv_kernel - 1) / 2 },
        })
    }

    /// What the convolution keeps of `slots` streams.
    pub(super) fn conv_state(&self, slots: usize) -> ConvState {
        let channels = self.conv_out.matrix().inputs();
        let history = self.kernel.len() / channels - 1 - self.ahead;
        ConvState::new(ConvStateSpec { slots, history, channels, replicate: false })
    }

    /// Runs over the rows of `x`, in place.
    pub(super) fn run(&self, exec: &mut Exec, input: LayerInput<'_>, x: &mut Buffer, s: &mut Scratch) {
        let rows: usize = input.spans.iter().map(|s| s.rows).sum();
        let d = x.cols();
        self.first.run(exec, rows, x, &mut s.wide);

        s.wide.shape(rows, 3 * d);
        let mut op = self.qkv.op(&*x, rows);
        op.norm = self.attention_norm.norm();
        exec.linear(&op, &mut s.wide);
        s.narrow.shape(rows, d);
        let attention = RelativeAttentionOp {
            qkv: &s.wide,
            spans: input.chunks,
            cache: input.cache,
            layer: input.layer,
            positions: input.positions,
            content_bias: &self.content_bias,
            position_bias: &self.position_bias,
        };
        let mut attended = self.attention_out.rows_in(&mut s.narrow);
        exec.relative_attention(attention, &mut attended);
        let mut op = self.attention_out.op(&attended, rows);
        op.gate = Gate::Add;
        exec.linear(&op, x);
        drop(attended);

        s.wide.shape(rows, 2 * d);
        let mut op = self.conv_in.op(&*x, rows);
        op.norm = self.conv_norm.norm();
        exec.linear(&op, &mut s.wide);
        s.gated.shape(rows, d);
        exec.glu(&s.wide, rows, &mut s.gated);
        let op = DepthwiseOp {
            x: &s.gated,
            spans: input.spans,
            kernel: &self.kernel,
            bias: self.kernel_bias.as_ref(),
            ahead: self.ahead,
            norm: self.inner_norm.as_ref().map(LayerNorm::row),
            act: Activation::Silu,
        };
        let mut convolved = self.conv_out.rows_in(&mut s.narrow);
        exec.depthwise(&op, input.conv, &mut convolved);
        let mut op = self.conv_out.op(&convolved, rows);
        op.gate = Gate::Add;
        exec.linear(&op, x);

        self.second.run(exec, rows, x, &mut s.wide);
        exec.normalize(&self.out_norm.row(), x, rows);
    }

    fn linears(&self) -> [&Linear; 8] {
        [
            &self.first.up,
            &self.first.down,
            &self.qkv,
            &self.attention_out,
            &self.conv_in,
            &self.conv_out,
            &self.second.up,
            &self.second.down,
        ]
    }

    /// Bytes that one pass reads.
    pub(super) fn bytes(&self) -> usize {
        self.linears().iter().map(|l| l.bytes()).sum()
    }

    /// Multiply-adds per row, attention over keys left out.
    pub(super) fn macs(&self) -> usize {
        self.linears().iter().map(|l| l.macs()).sum::<usize>() + self.kernel.len()
    }
}

/// Queries, keys and values as one product; each has a bias or not.
fn qkv(l: &Loader, d: usize, format: Format) -> Result<Linear, WeightError> {
    let parts = ["linear_q", "linear_k", "linear_v"].map(|part| l.sub(part));
    let (mut bias, mut biased) = (Vec::with_capacity(3 * d), false);
    for part in &parts {
        let b = part.optional("bias", &[d])?;
        biased |= b.is_some();
        bias.extend(b.unwrap_or_else(|| vec![0.0; d]));
    }
    let linear = Linear::load_with(l, "qkv weight", 3 * d, d, format, || {
        let mut values = Vec::with_capacity(3 * d * d);
        for part in &parts {
            values.extend(part.tensor("weight", &[d, d])?);
        }
        Ok(values)
    })?;
    Ok(if biased { linear.with_bias(bias) } else { linear })
}

/// A convolution of one tap: a linear.
fn pointwise(l: &Loader, outputs: usize, inputs: usize, format: Format) -> Result<Linear, WeightError> {
    Linear::load_with(l, "weight", outputs, inputs, format, || l.tensor("weight", &[outputs, inputs, 1]))
}

type Depthwise = (Vector, Option<Vector>, Option<LayerNorm>);

/// Taps by channel, bias, and the layer norm that follows; a batch norm is folded into the first two.
fn depthwise(l: &Loader, c: &EncoderConfig) -> Result<Depthwise, WeightError> {
    let (d, taps) = (c.dim, c.conv_kernel);
    let dw = l.sub("depthwise_conv");
    let values = dw.tensor("weight", &[d, 1, taps])?;
    let mut bias = dw.optional("bias", &[d])?;
    let mut kernel = vec![0f32; values.len()];
    for (channel, w) in values.chunks_exact(taps).enumerate() {
        w.iter().enumerate().for_each(|(tap, w)| kernel[tap * d + channel] = *w);
    }
    let norm = l.sub("batch_norm");
    match c.conv_norm {
        ConvNorm::Layer => Ok((kernel.into(), bias.map(Vector::from), Some(LayerNorm::load(&norm, d, EPS)?))),
        ConvNorm::Batch => {
            let mean = norm.tensor("running_mean", &[d])?;
            let variance = norm.tensor("running_var", &[d])?;
            let weight = norm.optional("weight", &[d])?;
            let shift = norm.optional("bias", &[d])?;
            let bias = bias.get_or_insert_with(|| vec![0.0; d]);
            for i in 0..d {
                let scale = weight.as_ref().map_or(1.0, |w| w[i]) / (variance[i] + EPS).sqrt();
                kernel.iter_mut().skip(i).step_by(d).for_each(|w| *w *= scale);
                bias[i] = (bias[i] - mean[i]) * scale + shift.as_ref().map_or(0.0, |b| b[i]);
            }
            Ok((kernel.into(), Some(std::mem::take(bias).into()), None))
        }
    }
}
