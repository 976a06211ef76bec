//! A pre-norm streaming transformer: fused norm + projections, rotary attention over rings, MLP.

use voce_runtime::{
    Activation, AttentionOp, Buffer, Exec, Format, Gate, KvCache, KvFormat, KvSpec, Rope, RopeStyle, Span,
};

use crate::{LayerNorm, Linear, Loader, WeightError};

/// Shape of a [`Transformer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerConfig {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of all queries together.
    pub attn_dim: usize,
    /// Hidden width of the MLP.
    pub feedforward: usize,
    /// Layers.
    pub layers: usize,
    /// Positions a row sees, itself included; none means all.
    pub window: Option<usize>,
    /// Rotary period.
    pub period: f32,
    /// Which values rotate together.
    pub rope: RopeStyle,
    /// Activation of the MLP.
    pub act: Activation,
    /// Of every norm.
    pub eps: f32,
    /// Format of the projections.
    pub format: Format,
    /// Format of keys and values.
    pub kv: KvFormat,
}

/// How large a state is to be.
#[derive(Clone, Copy, Debug)]
pub struct TransformerShape {
    /// Streams side by side.
    pub slots: usize,
    /// Rows of one call, all slots together.
    pub rows: usize,
    /// Rows of one call for one slot.
    pub rows_per_slot: usize,
    /// Positions kept, for models without a window.
    pub positions: usize,
}

struct Layer {
    norm1: LayerNorm,
    in_proj: Linear,
    out_proj: Linear,
    norm2: LayerNorm,
    linear1: Linear,
    linear2: Linear,
}

/// Layers that share a shape.
pub struct Transformer {
    config: TransformerConfig,
    layers: Vec<Layer>,
    rope: Rope,
}

/// Caches and activations of a [`Transformer`].
pub struct TransformerState {
    /// Keys and values.
    pub cache: KvCache,
    qkv: Buffer,
    attended: Buffer,
    hidden: Buffer,
}

/// Called with the number of each stage and its rows, which are fetched from a device for it.
pub type Watch<'a> = Option<&'a mut dyn FnMut(usize, &[f32])>;

/// Positions whose rotation is tabulated; beyond, it is computed.
const ROPE_TABLE: usize = 4096;

impl Transformer {
    /// Loads `layers.N.*`.
    pub fn load(l: &Loader, config: TransformerConfig) -> Result<Self, WeightError> {
        let c = &config;
        let head = c.attn_dim / c.heads;
        let kv = head * c.kv_heads;
        let layers = (0..c.layers)
            .map(|i| {
                let l = l.sub("layers").sub(i);
                let attn = l.sub("self_attn");
                Ok(Layer {
                    norm1: LayerNorm::load(&l.sub("norm1"), c.d_model, c.eps)?,
                    in_proj: Linear::load(&attn.sub("in_proj"), c.attn_dim + 2 * kv, c.d_model, c.format)?,
                    out_proj: scaled(
                        &l,
                        "self_attn.out_proj",
                        "layer_scale_1",
                        c.d_model,
                        c.attn_dim,
                        c.format,
                    )?,
                    norm2: LayerNorm::load(&l.sub("norm2"), c.d_model, c.eps)?,
                    linear1: Linear::load(&l.sub("linear1"), c.feedforward, c.d_model, c.format)?,
                    linear2: scaled(&l, "linear2", "layer_scale_2", c.d_model, c.feedforward, c.format)?,
                })
            })
            .collect::<Result<_, WeightError>>()?;
        let rope = Rope::new(c.rope, head, c.period, ROPE_TABLE);
        Ok(Self { config, layers, rope })
    }

    /// Its shape.
    pub fn config(&self) -> &TransformerConfig {
        &self.config
    }

    /// Values per head.
    pub fn head_dim(&self) -> usize {
        self.config.attn_dim / self.config.heads
    }

    /// The cache that `shape` asks for.
    pub fn cache_spec(&self, shape: TransformerShape) -> KvSpec {
        let c = &self.config;
        KvSpec {
            layers: c.layers,
            slots: shape.slots,
            kv_heads: c.kv_heads,
            head_dim: self.head_dim(),
            capacity: c.window.map_or(shape.positions, |w| w + shape.rows_per_slot),
            format: c.kv,
        }
    }

    /// State for `shape`.
    pub fn state(&self, shape: TransformerShape) -> TransformerState {
        let c = &self.config;
        let qkv = c.attn_dim + 2 * self.head_dim() * c.kv_heads;
        TransformerState {
            cache: KvCache::new(self.cache_spec(shape)),
            qkv: Buffer::new(shape.rows, qkv),
            attended: Buffer::new(shape.rows, c.attn_dim),
            hidden: Buffer::new(shape.rows, c.feedforward),
        }
    }

    /// Makes room for calls of more rows.
    pub fn widen(&self, state: &mut TransformerState, rows: usize) {
        if state.qkv.rows() < rows {
            for buffer in [&mut state.qkv, &mut state.attended, &mut state.hidden] {
                *buffer = Buffer::new(rows, buffer.cols());
            }
        }
    }

    /// Runs all layers over the spans' rows of `x`, in place, and moves their slots on.
    pub fn run(&self, exec: &mut Exec, x: &mut Buffer, spans: &[Span], state: &mut TransformerState) {
        self.run_watched(exec, x, spans, state, None);
    }

    /// As [`Transformer::run`], showing the rows of `x` after each layer.
    pub fn run_watched(
        &self,
        exec: &mut Exec,
        x: &mut Buffer,
        spans: &[Span],
        state: &mut TransformerState,
        mut watch: Watch<'_>,
    ) {
        let rows = spans.iter().map(|s| s.rows).sum();
        for (i, layer) in self.layers.iter().enumerate() {
            let mut op = layer.in_proj.op(&*x, rows);
            op.norm = layer.norm1.norm();
            exec.linear(&op, &mut state.qkv);
            let attention = AttentionOp {
                qkv: &state.qkv,
                spans,
                cache: &mut state.cache,
                layer: i,
                heads: self.config.heads,
                window: self.config.window,
                norms: None,
                rope: Some(&self.rope),
            };
            let mut attended = layer.out_proj.rows_in(&mut state.attended);
            exec.attention(attention, &mut attended);
            let mut op = layer.out_proj.op(&attended, rows);
            op.gate = Gate::Add;
            exec.linear(&op, x);
            let mut op = layer.linear1.op(&*x, rows);
            (op.norm, op.act) = (layer.norm2.norm(), self.config.act);
            let mut hidden = layer.linear2.rows_in(&mut state.hidden);
            exec.linear(&op, &mut hidden);
            let mut op = layer.linear2.op(&hidden, rows);
            op.gate = Gate::Add;
            exec.linear(&op, x);
            if let Some(watch) = &mut watch {
                exec.fetch(x, rows);
                watch(i, x.head(rows));
            }
        }
        for s in spans {
            state.cache.advance(s.slot, s.rows);
        }
    }

    /// Bytes of weights that one pass reads.
    pub fn bytes(&self) -> usize {
        self.linears().map(Linear::bytes).sum()
    }

    /// Multiply-adds per row, attention not counted.
    pub fn macs(&self) -> usize {
        self.linears().map(Linear::macs).sum()
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.layers.iter().flat_map(|l| [&l.in_proj, &l.out_proj, &l.linear1, &l.linear2])
    }
}

/// A linear with an optional layer scale multiplied into its rows.
pub(crate) fn scaled(
    l: &Loader,
    name: &str,
    scale: &str,
    outputs: usize,
    inputs: usize,
    format: Format,
) -> Result<Linear, WeightError> {
    let Some(scale) = l.sub(scale).optional("scale", &[outputs])? else {
        return Linear::load(&l.sub(name), outputs, inputs, format);
    };
    let l = l.sub(name);
    let linear = Linear::load_with(&l, "scaled weight", outputs, inputs, format, || {
        let mut values = l.tensor("weight", &[outputs, inputs])?;
        for (row, s) in values.chunks_exact_mut(inputs).zip(&scale) {
            row.iter_mut().for_each(|v| *v *= s);
        }
        Ok(values)
    })?;
    let bias = linear.bias().map(|b| b.iter().zip(&scale).map(|(b, s)| b * s).collect());
    Ok(match bias {
        Some(bias) => linear.with_bias(bias),
        None => linear,
    })
}
