//! The layers of a decoder: RMS norms, grouped attention over rings with rotation, a gated feed-forward part.
//!
//! Five launches a layer for few rows on a device: product with norm, attention with norms of heads, rotation and the
//! write to the ring, product with residual, product with norm, product with gate and residual.

use std::ops::Range;

use voce_runtime::{
    AttentionOp, Buffer, Exec, Gate, HeadNormOp, HeadNorms, KvCache, KvSpec, Norm, Rope, RopeStyle, Span,
    Vector,
};

use crate::cross::{self, Cross, CrossState};
use crate::transformer::scaled;
use crate::{Formats, Linear, Loader, TransformerShape, Watch, WeightError};

/// Layers that a device begins with: enough to be busy while some hundred ops are recorded.
const EARLY_LAYERS: usize = 4;
/// Positions whose rotation is tabulated; beyond, it is computed.
const ROPE_TABLE: usize = 4096;

/// Whose names the tensors have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecoderNames {
    /// `layers.N.{self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj, ...}` and `norm`; layer scales where there are any.
    Qwen3,
    /// `transformer.layers.N.{self_attn.in_proj_weight, gating.linear_in, ...}` and `out_norm`; layer scales and layers
    /// that look at a source besides where there are any.
    Moshi,
    /// The same without a norm after the layers.
    Depth,
}

/// Shape of a [`Decoder`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width between the products of the feed-forward part.
    pub ffn: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Which values rotate together; none where rows have no positions.
    pub rope: Option<RopeStyle>,
    /// Rotary period.
    pub theta: f32,
    /// Of every norm.
    pub eps: f32,
    /// Whether query and key heads are normed.
    pub head_norm: bool,
    /// Positions a row sees, itself included; none means all.
    pub window: Option<usize>,
    /// Names of tensors.
    pub names: DecoderNames,
}

impl DecoderConfig {
    /// Why it cannot be run, if it cannot.
    pub fn check(&self) -> Result<(), String> {
        let none =
            [self.layers, self.hidden, self.ffn, self.heads, self.kv_heads, self.head_dim].contains(&0);
        if none || self.window == Some(0) {
            return Err("a decoder has at least one of everything".into());
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!("{} query heads cannot share {} key heads", self.heads, self.kv_heads));
        }
        if !self.head_dim.is_multiple_of(2) || !self.hidden.is_multiple_of(2) {
            return Err("heads and rows have an even number of values".into());
        }
        if !(self.theta > 1.0 && self.eps >= 0.0) {
            return Err("a rotary period above 1 and no negative eps".into());
        }
        Ok(())
    }

    fn qkv(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

struct Layer {
    norm1: Vector,
    qkv: Linear,
    /// Of query and key heads.
    head_norms: Option<[Vector; 2]>,
    out: Linear,
    cross: Option<Cross>,
    norm2: Vector,
    gate_up: Linear,
    down: Linear,
}

/// Layers that share a shape, and the norm after them.
pub struct Decoder {
    config: DecoderConfig,
    formats: Formats,
    layers: Vec<Layer>,
    rope: Option<Rope>,
    norm: Option<Vector>,
}

/// Caches and activations of a [`Decoder`].
pub struct DecoderState {
    /// Keys and values.
    pub cache: KvCache,
    qkv: Buffer,
    attended: Buffer,
    hidden: Buffer,
    /// What layers look at besides, where they do.
    pub cross: Option<CrossState>,
}

/// Several matrices of one input as one, their outputs one after the other.
fn joined(
    l: &Loader,
    name: &str,
    parts: &[(&str, usize)],
    inputs: usize,
    formats: Formats,
) -> Result<Linear, WeightError> {
    let outputs = parts.iter().map(|p| p.1).sum();
    let l = l.clone();
    let layer = Linear::load_with(&l.sub(name), "weight", outputs, inputs, formats.backbone, || {
        let mut values = Vec::with_capacity(outputs * inputs);
        for (part, rows) in parts {
            values.append(&mut l.tensor(part, &[*rows, inputs])?);
        }
        Ok(values)
    })?;
    let mut bias = Vec::new();
    for (part, rows) in parts {
        let own = part.strip_suffix(".weight").map(|part| l.optional(&format!("{part}.bias"), &[*rows]));
        if let Some(own) = own.transpose()?.flatten() {
            bias.resize(bias.len().max(outputs), 0.0);
            let at: usize = parts.iter().take_while(|p| p.0 != *part).map(|p| p.1).sum();
            bias[at..at + rows].copy_from_slice(&own);
        }
    }
    Ok(if bias.is_empty() { layer } else { layer.with_bias(bias) })
}

impl Layer {
    fn qwen(l: &Loader, c: &DecoderConfig, formats: Formats) -> Result<Self, WeightError> {
        let (attn, mlp) = (l.sub("self_attn"), l.sub("mlp"));
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let parts = [("q_proj.weight", q), ("k_proj.weight", kv), ("v_proj.weight", kv)];
        let head = |name: &str| attn.tensor(name, &[c.head_dim]).map(Vector::from);
        Ok(Self {
            norm1: l.tensor("input_layernorm.weight", &[c.hidden])?.into(),
            qkv: joined(&attn, "qkv", &parts, c.hidden, formats)?,
            head_norms: match c.head_norm {
                true => Some([head("q_norm.weight")?, head("k_norm.weight")?]),
                false => None,
            },
            out: scaled(l, "self_attn.o_proj", "self_attn_layer_scale", c.hidden, q, formats.backbone)?,
            cross: None,
            norm2: l.tensor("post_attention_layernorm.weight", &[c.hidden])?.into(),
            gate_up: joined(
                &mlp,
                "gate_up",
                &[("gate_proj.weight", c.ffn), ("up_proj.weight", c.ffn)],
                c.hidden,
                formats,
            )?,
            down: scaled(l, "mlp.down_proj", "mlp_layer_scale", c.hidden, c.ffn, formats.backbone)?,
        })
    }

    fn moshi(l: &Loader, c: &DecoderConfig, formats: Formats) -> Result<Self, WeightError> {
        let (attn, gating) = (l.sub("self_attn"), l.sub("gating"));
        let alpha = |name: &str| l.tensor(name, &[1, 1, c.hidden]).map(Vector::from);
        let width = c.heads * c.head_dim;
        Ok(Self {
            norm1: alpha("norm1.alpha")?,
            qkv: joined(&attn, "qkv", &[("in_proj_weight", c.qkv())], c.hidden, formats)?,
            head_norms: None,
            out: scaled(l, "self_attn.out_proj", "layer_scale_1", c.hidden, width, formats.backbone)?,
            cross: Cross::load(l, c.hidden, formats.backbone)?,
            norm2: alpha("norm2.alpha")?,
            gate_up: Linear::load(&gating.sub("linear_in"), 2 * c.ffn, c.hidden, formats.backbone)?,
            down: scaled(l, "gating.linear_out", "layer_scale_2", c.hidden, c.ffn, formats.backbone)?,
        })
    }
}

impl Decoder {
    /// Loads the layers and the norm after them.
    pub fn load(l: &Loader, config: DecoderConfig, formats: Formats) -> Result<Self, WeightError> {
        let (c, stack) = (&config, l.sub("transformer"));
        let layers = (0..c.layers)
            .map(|i| match c.names {
                DecoderNames::Qwen3 => Layer::qwen(&l.sub("layers").sub(i), c, formats),
                DecoderNames::Moshi | DecoderNames::Depth => {
                    Layer::moshi(&stack.sub("layers").sub(i), c, formats)
                }
            })
            .collect::<Result<_, WeightError>>()?;
        let norm = match c.names {
            DecoderNames::Qwen3 => Some(l.tensor("norm.weight", &[c.hidden])?.into()),
            DecoderNames::Moshi => Some(l.tensor("out_norm.alpha", &[1, 1, c.hidden])?.into()),
            DecoderNames::Depth => None,
        };
        let rope = c.rope.map(|style| Rope::new(style, c.head_dim, c.theta, ROPE_TABLE));
        Ok(Self { config, formats, layers, rope, norm })
    }

    /// Its shape.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The cache that `shape` asks for.
    pub fn cache_spec(&self, shape: TransformerShape) -> KvSpec {
        let c = &self.config;
        KvSpec {
            layers: c.layers,
            slots: shape.slots,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            capacity: c.window.map_or(shape.positions, |w| w + shape.rows_per_slot),
            format: self.formats.kv,
        }
    }

    /// State for `shape`.
    pub fn state(&self, shape: TransformerShape) -> DecoderState {
        let c = &self.config;
        DecoderState {
            cache: KvCache::new(self.cache_spec(shape)),
            qkv: Buffer::new(shape.rows, c.qkv()),
            attended: Buffer::new(shape.rows, c.heads * c.head_dim),
            hidden: Buffer::new(shape.rows, 2 * c.ffn),
            cross: None,
        }
    }

    /// Whether its layers look at a source besides.
    pub fn looks(&self) -> bool {
        self.layers.iter().any(|l| l.cross.is_some())
    }

    fn source_spec(&self, sources: usize, positions: usize) -> KvSpec {
        let (slots, capacity, kv_heads) = (sources, positions, self.config.heads);
        KvSpec { slots, capacity, kv_heads, ..self.cache_spec(ONE) }
    }

    /// Room for sources that the rows of a state look at, of `positions` rows each.
    pub fn cross_state(&self, sources: usize, positions: usize, rows: usize) -> CrossState {
        CrossState::new(self.source_spec(sources, positions), rows, self.config.hidden)
    }

    /// Keys and values of a source for all layers, in a cache of one slot: what [`CrossState::cache`] takes copies of.
    /// `base` has those of a source that only differs in its first rows, which are then all of `source`.
    pub fn look_at(&self, exec: &mut Exec, source: &Buffer, base: Option<&KvCache>) -> KvCache {
        let positions = base.map_or(source.rows(), |base| base.position(0).max(source.rows()));
        let mut cache = KvCache::new(self.source_spec(1, positions));
        if let Some(base) = base {
            exec.copy_prefix(&mut cache, 0, base, 0, base.position(0));
            cache.reset(0);
        }
        let layers = self.layers.iter().map(|l| l.cross.as_ref());
        cross::look_at(exec, layers, source, &mut cache, self.config.heads);
        cache.advance(0, positions - source.rows());
        cache
    }

    /// The norm after the layers, as the first part of a product.
    pub fn norm(&self) -> Norm<'_> {
        let eps = self.config.eps;
        self.norm.as_ref().map_or(Norm::None, |weight| Norm::Rms { weight, eps })
    }

    /// The norm after the layers, of rows in place.
    pub fn normalize(&self, exec: &mut Exec, x: &mut Buffer, rows: usize) {
        if let Some(norm) = &self.norm {
            exec.rms_norm(norm, self.config.eps, x, rows);
        }
    }

    /// Runs all layers over the spans' rows of `x`, in place, and moves their slots on.
    pub fn run(&self, exec: &mut Exec, x: &mut Buffer, spans: &[Span], state: &mut DecoderState) {
        self.run_watched(exec, x, spans, state, None);
    }

    /// As [`Decoder::run`]; a device begins with the first layers while the others are still being asked for.
    pub fn run_early(&self, exec: &mut Exec, x: &mut Buffer, spans: &[Span], state: &mut DecoderState) {
        let first = EARLY_LAYERS.min(self.layers.len());
        self.run_layers(exec, x, spans, state, 0..first, None);
        exec.begin();
        self.run_layers(exec, x, spans, state, first..self.layers.len(), None);
        self.advance(spans, state);
    }

    /// As [`Decoder::run`], showing the rows of `x` after each layer.
    pub fn run_watched(
        &self,
        exec: &mut Exec,
        x: &mut Buffer,
        spans: &[Span],
        state: &mut DecoderState,
        watch: Watch<'_>,
    ) {
        self.run_layers(exec, x, spans, state, 0..self.layers.len(), watch);
        self.advance(spans, state);
    }

    fn advance(&self, spans: &[Span], state: &mut DecoderState) {
        spans.iter().for_each(|s| state.cache.advance(s.slot, s.rows));
    }

    fn run_layers(
        &self,
        exec: &mut Exec,
        x: &mut Buffer,
        spans: &[Span],
        state: &mut DecoderState,
        which: Range<usize>,
        mut watch: Watch<'_>,
    ) {
        let (c, rows) = (&self.config, spans.iter().map(|s| s.rows).sum());
        let rms = |weight| Norm::Rms { weight, eps: c.eps };
        for i in which {
            let layer = &self.layers[i];
            let mut op = layer.qkv.op(&*x, rows);
            op.norm = rms(&layer.norm1);
            exec.linear(&op, &mut state.qkv);
            let norms = layer.head_norms.as_ref().map(|[query, key]| HeadNorms { query, key, eps: c.eps });
            let taken = exec.norms_heads(spans, c.heads / c.kv_heads);
            let mut rope = self.rope.as_ref();
            if let Some(norms) = norms
                && !taken
            {
                let (cache, heads) = (&state.cache, c.heads);
                let op = HeadNormOp { spans, cache, heads, norms, rope: rope.take() };
                exec.head_norm(&op, &mut state.qkv);
            }
            let attention = AttentionOp {
                qkv: &state.qkv,
                spans,
                cache: &mut state.cache,
                layer: i,
                heads: c.heads,
                window: c.window,
                norms: norms.filter(|_| taken),
                rope,
            };
            let mut attended = layer.out.rows_in(&mut state.attended);
            exec.attention(attention, &mut attended);
            let mut op = layer.out.op(&attended, rows);
            op.gate = Gate::Add;
            exec.linear(&op, x);
            drop(attended);
            if let Some((cross, looked)) = layer.cross.as_ref().zip(state.cross.as_mut()) {
                cross.run(exec, x, &mut state.attended, looked, (i, c.heads));
            }
            let mut op = layer.gate_up.op(&*x, rows);
            op.norm = rms(&layer.norm2);
            let mut hidden = layer.down.rows_in(&mut state.hidden).gated();
            exec.linear(&op, &mut hidden);
            let mut op = layer.down.op(&hidden, rows);
            (op.norm, op.gate) = (Norm::SwiGlu, Gate::Add);
            exec.linear(&op, x);
            if let Some(watch) = &mut watch {
                exec.fetch(x, rows);
                watch(i, x.head(rows));
            }
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

    /// Bytes of keys and values of one position.
    pub fn position_bytes(&self) -> usize {
        let spec = KvSpec { capacity: 1, slots: 1, ..self.cache_spec(ONE) };
        spec.bytes()
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.layers.iter().flat_map(|l| {
            let cross = l.cross.iter().flat_map(Cross::linears);
            [&l.qkv, &l.out, &l.gate_up, &l.down].into_iter().chain(cross)
        })
    }
}

/// The smallest state.
const ONE: TransformerShape = TransformerShape { slots: 1, rows: 1, rows_per_slot: 1, positions: 1 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_cannot_be_run_are_named() {
        let good = DecoderConfig {
            layers: 2,
            hidden: 8,
            ffn: 12,
            heads: 4,
            kv_heads: 2,
            head_dim: 6,
            rope: Some(RopeStyle::Halves),
            theta: 1e4,
            eps: 1e-6,
            head_norm: true,
            window: None,
            names: DecoderNames::Qwen3,
        };
        good.check().unwrap();
        for (bad, says) in [
            (DecoderConfig { kv_heads: 3, ..good }, "3 key heads"),
            (DecoderConfig { head_dim: 5, ..good }, "even"),
            (DecoderConfig { layers: 0, ..good }, "at least one"),
            (DecoderConfig { window: Some(0), ..good }, "at least one"),
            (DecoderConfig { theta: f32::NAN, ..good }, "period"),
        ] {
            assert!(bad.check().unwrap_err().contains(says), "{bad:?}");
        }
    }
}
