//! The language model over latents: voice, text and past frames in, the next frame out.

use voce_nn::{
    Embedding, Formats, LayerNorm, Linear, Loader, Transformer, TransformerShape, TransformerState, Watch,
    WeightError,
};
use voce_runtime::{Buffer, Exec, Format, KvSpec, RuntimeError, Span};

use super::config::PocketConfig;
use super::flow_head::{FlowHead, FlowHeadState};
use super::voice::Voice;
use crate::mimi::LatentScale;

/// Rows that prefill takes through the backbone at once.
pub(super) const PREFILL_ROWS: usize = 64;
/// Rows that it takes on a device, which has room for many prompts.
const DEVICE_PREFILL_ROWS: usize = 2048;

/// The flow language model.
pub struct FlowLm {
    embed: Embedding,
    embed_proj: Option<Linear>,
    input: Linear,
    backbone: Transformer,
    out_norm: LayerNorm,
    z_proj: Option<Linear>,
    eos: Linear,
    head: FlowHead,
    bos: Vec<f32>,
    scale: LatentScale,
    dim: usize,
}

/// Slots of streams in progress.
pub struct FlowLmState {
    transformer: TransformerState,
    x: Buffer,
    embedded: Buffer,
    z: Option<Buffer>,
    head: FlowHeadState,
    eos: Buffer,
    input: Buffer,
    /// The last latent of each slot.
    last: Buffer,
    spans: Vec<Span>,
    positions: usize,
}

/// What a step made, row by row as the slots were given.
pub struct StepOutput<'s> {
    /// The new latents.
    pub latents: &'s [f32],
    /// EOS logits.
    pub eos: &'s Buffer,
}

impl FlowLm {
    /// Loads `flow_lm`.
    pub fn load(l: &Loader, c: &PocketConfig, f: Formats) -> Result<Self, WeightError> {
        let (lm, latent) = (&c.flow_lm, c.mimi.quantizer.dimension);
        let d = lm.transformer.d_model;
        let z = lm.z_dim.unwrap_or(d);
        let table = &lm.lookup_table;
        let cl = l.sub("conditioner");
        let embed =
            Embedding::load(&cl.sub("embed"), table.n_bins + 1, table.rank.unwrap_or(d), f.embedding)?;
        let embed_proj =
            table.rank.map(|rank| Linear::load(&cl.sub("proj"), d, rank, f.linear)).transpose()?;
        Ok(Self {
            embed,
            embed_proj,
            // Latents are few and every layer sees their error: never below bf16.
            input: Linear::load(&l.sub("input_linear"), d, latent, f.embedding)?,
            backbone: Transformer::load(&l.sub("transformer"), c.backbone(f))?,
            out_norm: LayerNorm::load(&l.sub("out_norm"), d, 1e-5)?,
            z_proj: lm.z_dim.map(|z| Linear::load(&l.sub("z_proj"), z, d, f.linear)).transpose()?,
            eos: Linear::load(&l.sub("out_eos"), 1, z, Format::F32)?,
            head: FlowHead::load(&l.sub("flow_net"), &lm.flow, latent, z, f.linear)?,
            bos: l.tensor("bos_emb", &[latent])?,
            scale: LatentScale {
                mean: l.tensor("emb_mean", &[latent])?,
                std: l.tensor("emb_std", &[latent])?,
            },
            dim: d,
        })
    }

    /// How the codec is to read the latents.
    pub fn latent_scale(&self) -> &LatentScale {
        &self.scale
    }

    /// Values per latent.
    pub fn latent_dim(&self) -> usize {
        self.bos.len()
    }

    /// Width of the backbone.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Rows of the token table.
    pub fn tokens(&self) -> usize {
        self.embed.rows()
    }

    /// The cache of `slots` streams of `positions`.
    pub fn cache_spec(&self, slots: usize, positions: usize) -> KvSpec {
        self.backbone.cache_spec(TransformerShape { slots, rows: 0, rows_per_slot: 0, positions })
    }

    /// State for `slots` streams of up to `positions` (voice, text and frames together).
    pub fn state(&self, slots: usize, positions: usize) -> FlowLmState {
        let rows = slots.max(PREFILL_ROWS);
        let shape = TransformerShape { slots, rows, rows_per_slot: rows, positions };
        let latent = self.latent_dim();
        FlowLmState {
            transformer: self.backbone.state(shape),
            x: Buffer::new(rows, self.dim),
            embedded: Buffer::new(rows, self.embed_proj.as_ref().map_or(1, |p| p.matrix().inputs())),
            z: self.z_proj.as_ref().map(|p| Buffer::new(slots, p.matrix().outputs())),
            head: self.head.state(slots),
            eos: Buffer::new(slots, 1),
            input: Buffer::new(slots, latent),
            last: Buffer::new(slots, latent),
            spans: Vec::with_capacity(slots),
            positions,
        }
    }

    /// Makes room for more positions; streams in progress go on as before, whether there is memory for it or not.
    pub fn grow(
        &self,
        exec: &mut Exec,
        state: &mut FlowLmState,
        positions: usize,
    ) -> Result<(), RuntimeError> {
        let slots = state.last.rows();
        let mut grown = self.state(slots, positions.max(state.positions));
        exec.reserve_cache(&mut grown.transformer.cache)?;
        self.widen(&mut grown, state.x.rows());
        for slot in 0..slots {
            let from = &state.transformer.cache;
            exec.copy_prefix(&mut grown.transformer.cache, slot, from, slot, state.position(slot));
        }
        exec.copy_head(&state.last, 0, &mut grown.last, slots);
        *state = grown;
        Ok(())
    }

    /// Makes room for more rows of one pass.
    fn widen(&self, state: &mut FlowLmState, rows: usize) {
        if state.x.rows() < rows {
            state.x = Buffer::new(rows, self.dim);
            state.embedded = Buffer::new(rows, state.embedded.cols());
            self.backbone.widen(&mut state.transformer, rows);
        }
    }

    /// Begins a stream: the voice's past, and no frame yet.
    pub fn start(&self, exec: &mut Exec, state: &mut FlowLmState, slot: usize, voice: &Voice) {
        self.start_all(exec, state, &[(slot, voice)]);
    }

    /// Begins streams, each with the past of its voice.
    pub fn start_all(&self, exec: &mut Exec, state: &mut FlowLmState, streams: &[(usize, &Voice)]) {
        let mut begun = vec![false; streams.len()];
        for (i, &(_, voice)) in streams.iter().enumerate() {
            if begun[i] {
                continue;
            }
            // All slots of one voice at once.
            let mut slots = Vec::new();
            for (&(slot, other), begun) in streams.iter().zip(&mut begun).skip(i) {
                if std::ptr::eq(voice, other) {
                    slots.push(slot);
                    *begun = true;
                }
            }
            exec.copy_prefix_to(&mut state.transformer.cache, &slots, voice.cache(), 0, voice.positions());
        }
        let slots: Vec<usize> = streams.iter().map(|(slot, _)| *slot).collect();
        exec.set_rows(&mut state.last, &slots, &self.bos.repeat(slots.len()));
    }

    /// Feeds rows of the backbone's width (a voice prompt) to a slot.
    pub fn prefill_rows(&self, exec: &mut Exec, state: &mut FlowLmState, slot: usize, rows: &[f32]) {
        for part in rows.chunks(PREFILL_ROWS * self.dim) {
            let n = part.len() / self.dim;
            state.x.discard();
            state.x.head_mut(n).copy_from_slice(part);
            let spans = [Span { slot, rows: n }];
            self.backbone.run(exec, &mut state.x, &spans, &mut state.transformer);
        }
    }

    /// Feeds text to a slot. Tokens must be rows of the table.
    pub fn prefill_tokens(&self, exec: &mut Exec, state: &mut FlowLmState, slot: usize, tokens: &[u32]) {
        self.prefill_watched(exec, state, slot, tokens, None);
    }

    /// Feeds texts to slots, each to its own, in as few passes as their rows allow.
    pub fn prefill_texts(&self, exec: &mut Exec, state: &mut FlowLmState, texts: &[(usize, &[u32])]) {
        let slots = state.last.rows();
        if exec.wants_batches() {
            self.widen(state, DEVICE_PREFILL_ROWS.min(slots * PREFILL_ROWS));
        }
        let (mut tokens, mut spans) = (Vec::new(), Vec::with_capacity(texts.len()));
        let most = state.x.rows();
        for &(slot, text) in texts {
            let mut rest = text;
            while !rest.is_empty() {
                let (part, later) = rest.split_at(rest.len().min(most - tokens.len()));
                tokens.extend_from_slice(part);
                spans.push(Span { slot, rows: part.len() });
                rest = later;
                if tokens.len() == most {
                    self.prefill_spans(exec, state, &tokens, &spans, None);
                    tokens.clear();
                    spans.clear();
                }
            }
        }
        if !tokens.is_empty() {
            self.prefill_spans(exec, state, &tokens, &spans, None);
        }
        // Prompts are each of their own length; the steps that follow are not, and repeat.
        exec.begin();
    }

    /// One pass over tokens of several slots.
    fn prefill_spans(
        &self,
        exec: &mut Exec,
        state: &mut FlowLmState,
        tokens: &[u32],
        spans: &[Span],
        watch: Watch<'_>,
    ) {
        self.embed_tokens(exec, state, tokens);
        self.backbone.run_watched(exec, &mut state.x, spans, &mut state.transformer, watch);
    }

    /// As [`FlowLm::prefill_tokens`], showing the rows after each layer (block by block).
    pub fn prefill_watched(
        &self,
        exec: &mut Exec,
        state: &mut FlowLmState,
        slot: usize,
        tokens: &[u32],
        mut watch: Watch<'_>,
    ) {
        for part in tokens.chunks(PREFILL_ROWS) {
            let spans = [Span { slot, rows: part.len() }];
            let watch = watch.as_mut().map(|w| &mut **w as &mut dyn FnMut(usize, &[f32]));
            self.prefill_spans(exec, state, part, &spans, watch);
        }
    }

    /// Text embeddings of up to a block of tokens, in the first rows of `x`.
    fn embed_tokens(&self, exec: &mut Exec, state: &mut FlowLmState, tokens: &[u32]) {
        let to = if self.embed_proj.is_some() { &mut state.embedded } else { &mut state.x };
        let tokens: Vec<usize> = tokens.iter().map(|&t| t as usize).collect();
        self.embed.embed(exec, &tokens, to);
        if let Some(proj) = &self.embed_proj {
            proj.run(exec, &state.embedded, tokens.len(), &mut state.x);
        }
    }

    /// One frame for each live slot from its row of `noise` (already scaled by the temperature).
    pub fn step<'s>(
        &self,
        exec: &mut Exec,
        state: &'s mut FlowLmState,
        live: &[usize],
        noise: &[f32],
        steps: usize,
    ) -> StepOutput<'s> {
        self.step_watched(exec, state, live, noise, steps, None)
    }

    /// As [`FlowLm::step`], showing the rows after each layer.
    pub fn step_watched<'s>(
        &self,
        exec: &mut Exec,
        state: &'s mut FlowLmState,
        live: &[usize],
        noise: &[f32],
        steps: usize,
        watch: Watch<'_>,
    ) -> StepOutput<'s> {
        self.begin_step(exec, state, live, noise, steps, watch);
        self.finish_step(exec, state, live.len())
    }

    /// The first half of a step, after which a device works while the host does something else.
    pub fn begin_step(
        &self,
        exec: &mut Exec,
        state: &mut FlowLmState,
        live: &[usize],
        noise: &[f32],
        steps: usize,
        watch: Watch<'_>,
    ) {
        let rows = live.len();
        state.spans.clear();
        state.spans.extend(live.iter().map(|&slot| Span { slot, rows: 1 }));
        exec.gather_rows(&state.last, live, 0, &mut state.input);
        self.input.run(exec, &state.input, rows, &mut state.x);
        self.backbone.run_watched(exec, &mut state.x, &state.spans, &mut state.transformer, watch);
        let (cond, norm) = match (&self.z_proj, &mut state.z) {
            (Some(proj), Some(z)) => {
                let mut op = proj.op(&state.x, rows);
                op.norm = self.out_norm.norm();
                exec.linear(&op, z);
                (&*z, None)
            }
            _ => (&state.x, Some(&self.out_norm)),
        };
        let mut op = self.eos.op(cond, rows);
        if let Some(norm) = norm {
            op.norm = norm.norm();
        }
        exec.linear(&op, &mut state.eos);
        let latents = self.head.sample(exec, cond, norm, noise, steps, &mut state.head);
        exec.scatter_rows(latents, live, &mut state.last);
        exec.begin();
    }

    /// What the step that was begun last has made of its `rows` slots.
    pub fn finish_step<'s>(
        &self,
        exec: &mut Exec,
        state: &'s mut FlowLmState,
        rows: usize,
    ) -> StepOutput<'s> {
        let latents = state.head.made();
        exec.fetch(latents, rows);
        exec.fetch(&mut state.eos, rows);
        StepOutput { latents: latents.head(rows), eos: &state.eos }
    }

    /// Bytes of backbone weights that a step reads.
    pub fn backbone_bytes(&self) -> usize {
        self.backbone.bytes() + self.input.bytes() + self.z_proj.as_ref().map_or(0, Linear::bytes)
    }

    /// Bytes of head weights that a sampler step reads.
    pub fn head_bytes(&self) -> usize {
        self.head.bytes()
    }

    /// Multiply-adds of a backbone row.
    pub fn backbone_macs(&self) -> usize {
        self.backbone.macs() + self.input.macs()
    }

    /// Multiply-adds of a sampler step.
    pub fn head_macs(&self) -> usize {
        self.head.macs()
    }
}

impl FlowLmState {
    /// Positions a stream may take.
    pub fn capacity(&self) -> usize {
        self.positions
    }

    /// The next position of a slot.
    pub fn position(&self, slot: usize) -> usize {
        self.transformer.cache.position(slot)
    }

    /// Keys and values of all slots.
    pub fn cache(&self) -> &voce_runtime::KvCache {
        &self.transformer.cache
    }

    /// Replaces the frame that a slot's next step continues from.
    pub fn set_last(&mut self, exec: &mut Exec, slot: usize, latent: &[f32]) {
        exec.set_rows(&mut self.last, &[slot], latent);
    }

    /// Starts a slot from nothing (no voice).
    pub fn reset(&mut self, slot: usize) {
        self.transformer.cache.reset(slot);
    }
}
