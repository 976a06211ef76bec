//! Attention of a decoder's layers over a source of their own: keys and values are made once, and rows look at them.

use voce_runtime::{AttentionOp, Buffer, CrossAttentionOp, Exec, Format, Gate, KvCache, KvSpec, Span};

use crate::transformer::scaled;
use crate::{LayerNorm, Linear, Loader, WeightError};

/// Of the norm before it.
const EPS: f32 = 1e-5;
/// Rows of a source that go through the layers at once.
const SOURCE_ROWS: usize = 64;

/// One layer's part.
pub(crate) struct Cross {
    norm: LayerNorm,
    query: Linear,
    /// Queries, keys and values of a source; the queries only fill the place that attention expects.
    source: Linear,
    out: Linear,
}

/// Sources that rows look at, and what a step needs for it.
pub struct CrossState {
    /// Keys and values: a slot for each source.
    pub cache: KvCache,
    query: Buffer,
    /// Which source consecutive rows of the next step look at.
    pub spans: Vec<Span>,
}

impl Cross {
    /// Loads `cross_attention`, `norm_cross` and, if present, `layer_scale_cross`; none where a layer has no such part.
    pub(crate) fn load(l: &Loader, hidden: usize, format: Format) -> Result<Option<Self>, WeightError> {
        let attn = l.sub("cross_attention");
        if !attn.has("in_proj_weight") {
            return Ok(None);
        }
        let all = || attn.tensor("in_proj_weight", &[3 * hidden, hidden]);
        let query = Linear::load_with(&attn, "query", hidden, hidden, format, || {
            let mut values = all()?;
            values.truncate(hidden * hidden);
            Ok(values)
        })?;
        Ok(Some(Self {
            norm: LayerNorm::load(&l.sub("norm_cross"), hidden, EPS)?,
            query,
            source: Linear::load_with(&attn, "source", 3 * hidden, hidden, format, all)?,
            out: scaled(l, "cross_attention.out_proj", "layer_scale_cross", hidden, hidden, format)?,
        }))
    }

    /// Adds what the first rows of `x` see to them.
    pub(crate) fn run(
        &self,
        exec: &mut Exec,
        x: &mut Buffer,
        attended: &mut Buffer,
        state: &mut CrossState,
        (layer, heads): (usize, usize),
    ) {
        let rows = state.spans.iter().map(|s| s.rows).sum();
        let mut op = self.query.op(&*x, rows);
        op.norm = self.norm.norm();
        exec.linear(&op, &mut state.query);
        let mut attended = self.out.rows_in(attended);
        let op =
            CrossAttentionOp { q: &state.query, spans: &state.spans, cache: &mut state.cache, layer, heads };
        exec.cross_attention(op, &mut attended);
        let mut op = self.out.op(&attended, rows);
        op.gate = Gate::Add;
        exec.linear(&op, x);
    }

    pub(crate) fn linears(&self) -> [&Linear; 2] {
        [&self.query, &self.out]
    }
}

impl CrossState {
    /// Room for `sources` sources of `positions` rows each, and steps of `rows` rows.
    pub(crate) fn new(spec: KvSpec, rows: usize, hidden: usize) -> Self {
        Self { cache: KvCache::new(spec), query: Buffer::new(rows, hidden), spans: Vec::new() }
    }
}

/// Writes keys and values of a source for all layers to a cache of one slot.
pub(crate) fn look_at<'a>(
    exec: &mut Exec,
    layers: impl Iterator<Item = Option<&'a Cross>> + Clone,
    source: &Buffer,
    cache: &mut KvCache,
    heads: usize,
) {
    let (count, hidden) = (source.rows(), source.cols());
    let mut rows = Buffer::new(SOURCE_ROWS, hidden);
    let mut qkv = Buffer::new(SOURCE_ROWS, 3 * hidden);
    let mut seen = Buffer::new(SOURCE_ROWS, hidden);
    let mut from = 0;
    while from < count {
        let n = SOURCE_ROWS.min(count - from);
        exec.copy_head(source, from, &mut rows, n);
        for (layer, cross) in layers.clone().enumerate() {
            let Some(cross) = cross else { continue };
            cross.source.run(exec, &rows, n, &mut qkv);
            let op = AttentionOp {
                qkv: &qkv,
                spans: &[Span { slot: 0, rows: n }],
                cache,
                layer,
                heads,
                window: None,
                norms: None,
                rope: None,
            };
            exec.attention(op, &mut seen);
        }
        cache.advance(0, n);
        from += n;
    }
    exec.begin();
}
