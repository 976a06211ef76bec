//! A frame at a time for all streams: embeddings, layers, a draw, and the passes that draw the rest of the frame.
//!
//! Nothing of a frame comes to the host until it is asked for: every draw's token is looked up where it was drawn.

use std::time::Instant;

use voce_nn::{Decoder, DecoderNames, Formats, Linear, Loader, Watch, WeightError};
use voce_runtime::{
    Buffer, EmbedOp, EmbedPart, EveryRow, Exec, Format, Gate, SampleOp, SampleRow, SampledRows, Sampling,
    Span, Table,
};

use super::state::PredictorState;
use super::text::TextLayers;
use super::{FrameConfig, FrameShape, FrameState, PredictorConfig};

/// Rows of a table that are projected at once.
const PROJECTED: usize = 1024;

/// One stream's part of a step.
#[derive(Clone, Copy, Debug)]
pub struct FrameRow {
    /// The stream.
    pub slot: usize,
    /// How the frame's first token is drawn; the history's penalty is for these.
    pub first: Sampling,
    /// How the rest is drawn.
    pub rest: Sampling,
}

/// Draws all tokens of a frame but the first.
struct Predictor {
    decoder: Decoder,
    heads: Vec<Linear>,
    /// From the width of the frame's decoder, where that is another.
    projection: Option<Linear>,
    /// Embeddings in its own width: of the first token, and of all but the last of its own.
    inputs: Vec<Table>,
}

/// A decoder-only model over frames of tokens.
pub struct FrameDecoder {
    config: FrameConfig,
    decoder: Decoder,
    head: Linear,
    /// Embeddings of every token of a frame, in the order of its columns.
    tables: Vec<Table>,
    /// The last of the given tokens, where it goes through layers of its own.
    text: Option<TextLayers>,
    predictor: Option<Predictor>,
}

impl FrameDecoder {
    /// Loads a model. `given` has the embeddings of tokens that come from outside; for models of Kyutai's naming
    /// they are loaded here and it is empty.
    pub fn load(
        exec: &mut Exec,
        l: &Loader,
        config: &FrameConfig,
        given: Vec<Table>,
        formats: Formats,
    ) -> Result<Self, WeightError> {
        let (width, embedding) = (config.decoder.hidden, formats.embedding);
        let qwen = config.decoder.names == DecoderNames::Qwen3;
        let talker = l.sub("talker");
        let (layers, own, head) = match qwen {
            true => (talker.sub("model"), talker.sub("model.codec_embedding"), talker.sub("codec_head")),
            false => (l.clone(), l.sub("text_emb"), l.sub("text_linear")),
        };
        let mut tables = vec![own.table("weight", config.embeddings, width, embedding)?];
        let predictor = match &config.predictor {
            Some(p) => Some(Predictor::load(exec, &talker, config, p, formats, &mut tables)?),
            None => None,
        };
        tables.extend(given);
        if !qwen {
            for (i, &rows) in config.given.iter().enumerate() {
                tables.push(l.sub("emb").sub(i).table("weight", rows, width, embedding)?);
            }
        }
        assert!(tables.len() <= config.columns(), "embeddings of the tokens");
        Ok(Self {
            text: None,
            decoder: Decoder::load(&layers, config.decoder, formats)?,
            head: Linear::load(&head, config.vocab, width, formats.linear)?,
            tables,
            predictor,
            config: config.clone(),
        })
    }

    /// The same model, whose last given token goes through layers of its own.
    pub fn with_text(mut self, text: TextLayers) -> Self {
        self.text = Some(text);
        self
    }

    pub(super) fn text(&self) -> Option<&TextLayers> {
        self.text.as_ref()
    }

    /// Its shape.
    pub fn config(&self) -> &FrameConfig {
        &self.config
    }

    /// Its layers.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    pub(super) fn predictor(&self) -> Option<&Decoder> {
        self.predictor.as_ref().map(|p| &p.decoder)
    }

    /// State for `shape`.
    pub fn state(&self, shape: FrameShape) -> FrameState {
        FrameState::new(self, shape)
    }

    /// Runs rows that are already embeddings through the layers of one slot, in pieces that fit; the next frame
    /// continues from them.
    pub fn prefill(&self, exec: &mut Exec, state: &mut FrameState, slot: usize, rows: &Buffer) {
        let mut from = 0;
        while from < rows.rows() {
            let count = state.prefill.min(rows.rows() - from);
            exec.copy_head(rows, from, &mut state.x, count);
            self.decoder.run(exec, &mut state.x, &[Span { slot, rows: count }], &mut state.decoder);
            from += count;
        }
    }

    /// One frame of the rows' streams. Their tokens are read by [`FrameState::tokens`].
    pub fn step(&self, exec: &mut Exec, state: &mut FrameState, rows: &[FrameRow]) {
        let slots: Vec<usize> = rows.iter().map(|r| r.slot).collect();
        self.embed_rows(exec, state, &slots, false);
        self.step_embedded(exec, state, rows, None);
    }

    /// Sums of the embeddings of `rows`' tokens, or of a prompt's, in the first rows of `x`.
    pub(super) fn embed_rows(&self, exec: &mut Exec, state: &mut FrameState, rows: &[usize], prompt: bool) {
        let columns = self.tables.len() + usize::from(self.text.is_some());
        assert_eq!(columns, self.config.columns(), "embeddings of every token");
        let parts: Vec<EmbedPart<'_>> =
            self.tables.iter().enumerate().map(|(column, table)| EmbedPart { table, column }).collect();
        let (tokens, place) = (if prompt { &state.prompt } else { &state.tokens }, EveryRow::default());
        exec.embed(&EmbedOp { parts: &parts, tokens, slots: rows, place }, &mut state.x);
        if let Some((text, of)) = self.text.as_ref().zip(state.text.as_mut()) {
            text.run(exec, of, tokens, columns - 1, rows, Gate::Add, &mut state.x);
        }
    }

    /// As [`FrameDecoder::step`], from embeddings that the caller made: the first rows of `x`.
    pub fn step_from(&self, exec: &mut Exec, state: &mut FrameState, rows: &[FrameRow], x: &Buffer) {
        exec.copy_head(x, 0, &mut state.x, rows.len());
        self.step_embedded(exec, state, rows, None);
    }

    /// As [`FrameDecoder::step`], showing the logits of every draw as it comes, row by row.
    pub fn step_watched(
        &self,
        exec: &mut Exec,
        state: &mut FrameState,
        rows: &[FrameRow],
        watch: &mut dyn FnMut(usize, &[f32]),
    ) {
        let slots: Vec<usize> = rows.iter().map(|r| r.slot).collect();
        self.embed_rows(exec, state, &slots, false);
        self.step_embedded(exec, state, rows, Some(watch));
    }

    fn step_embedded(
        &self,
        exec: &mut Exec,
        state: &mut FrameState,
        rows: &[FrameRow],
        mut watch: Watch<'_>,
    ) {
        let spans: Vec<Span> = rows.iter().map(|r| Span { slot: r.slot, rows: 1 }).collect();
        // A frame that fills the device is one kernel, and is asked for while the one before it runs.
        match exec.fills_device(rows.len()) {
            true => self.decoder.run(exec, &mut state.x, &spans, &mut state.decoder),
            false => self.decoder.run_early(exec, &mut state.x, &spans, &mut state.decoder),
        }
        let mut head = self.head.op(&state.x, rows.len());
        head.norm = self.decoder.norm();
        exec.linear(&head, &mut state.logits);
        if let Some(watch) = &mut watch {
            exec.fetch(&mut state.logits, rows.len());
            watch(0, state.logits.head(rows.len()));
        }
        let drawn = self.config.drawn() as u32;
        let frames = &state.frames;
        let row = |r: &FrameRow, column: u32| SampleRow {
            slot: r.slot,
            step: frames[r.slot].wrapping_mul(drawn).wrapping_add(column),
            sampling: if column == 0 { r.first } else { r.rest },
        };
        let first: Vec<SampleRow> = rows.iter().map(|r| row(r, 0)).collect();
        let mut predictor = self.predictor.as_ref().zip(state.predictor.as_mut());
        let next = predictor.as_mut().map(|(p, s)| SampledRows {
            table: &p.inputs[0],
            out: &mut s.first,
            place: EveryRow { first: 1, step: 2 },
            less: false,
        });
        let history = Some(&mut state.history);
        let op = SampleOp { logits: state.logits.view(), rows: &first, column: 0, history, next };
        exec.sample(op, &mut state.tokens);
        state.halfway = Instant::now();
        if let Some((p, s)) = predictor {
            p.enter(exec, &self.decoder, &mut state.x, s, rows.len());
            for token in 0..p.heads.len() {
                p.pass(exec, s, &spans, token);
                if let Some(watch) = &mut watch {
                    exec.fetch(&mut s.logits, rows.len());
                    watch(token + 1, s.logits.head(rows.len()));
                }
                let drawn: Vec<SampleRow> = rows.iter().map(|r| row(r, token as u32 + 1)).collect();
                let next = p.inputs.get(token + 1).map(|table| SampledRows {
                    table,
                    out: &mut s.x,
                    place: EveryRow::default(),
                    less: false,
                });
                let logits = s.logits.view();
                let op = SampleOp { logits, rows: &drawn, column: token + 1, history: None, next };
                exec.sample(op, &mut state.tokens);
            }
        }
        for r in rows {
            state.frames[r.slot] = state.frames[r.slot].wrapping_add(1);
        }
    }

    /// Bytes of weights that a frame reads: the layers, the predictor's once per pass, heads, one embedding per token.
    pub fn bytes(&self, rows: usize) -> usize {
        let lookups: usize = self.tables.iter().map(Table::row_bytes).sum();
        let predictor = self.predictor_bytes();
        let text = self.text.as_ref().map_or(0, TextLayers::bytes);
        self.decoder.bytes() + self.head.bytes() + predictor + text + rows * lookups
    }

    /// Bytes of weights that the predictor's passes of a frame read.
    pub fn predictor_bytes(&self) -> usize {
        self.predictor.as_ref().map_or(0, Predictor::bytes)
    }

    /// Multiply-adds of the predictor's passes of one stream's frame, attention not counted.
    pub fn predictor_macs(&self) -> usize {
        self.predictor.as_ref().map_or(0, Predictor::macs)
    }

    /// Bytes of keys and values that one stream's frame reads when it sees `context` positions.
    pub fn past_bytes(&self, context: usize) -> usize {
        let predictor = self.predictor.as_ref().map_or(0, |p| p.seen() * p.decoder.position_bytes());
        context * self.decoder.position_bytes() + predictor
    }

    /// Multiply-adds of one stream's attention when it sees `context` positions.
    pub fn attention_macs(&self, context: usize) -> usize {
        let position = |d: &Decoder| {
            let c = d.config();
            2 * c.layers * c.heads * c.head_dim
        };
        let predictor = self.predictor.as_ref().map_or(0, |p| p.seen() * position(&p.decoder));
        context * position(&self.decoder) + predictor
    }

    /// Multiply-adds of one stream's frame, attention not counted.
    pub fn macs(&self) -> usize {
        let text = self.text.as_ref().map_or(0, TextLayers::macs);
        self.decoder.macs() + self.head.macs() + text + self.predictor_macs()
    }
}

impl Predictor {
    fn bytes(&self) -> usize {
        let heads: usize = self.heads.iter().map(Linear::bytes).sum();
        self.decoder.bytes() * self.heads.len() + heads + self.projection.as_ref().map_or(0, Linear::bytes)
    }

    fn macs(&self) -> usize {
        let heads: usize = self.heads.iter().map(Linear::macs).sum();
        let projection = self.projection.as_ref().map_or(0, Linear::macs);
        // The first pass has two rows.
        self.decoder.macs() * (self.heads.len() + 1) + heads + projection
    }

    /// Positions that the passes of a frame see between them.
    fn seen(&self) -> usize {
        (1..=self.heads.len() + 1).sum()
    }

    /// Loads the predictor and puts its embeddings, in the width of the frame's decoder, after `tables`.
    fn load(
        exec: &mut Exec,
        talker: &Loader,
        config: &FrameConfig,
        c: &PredictorConfig,
        formats: Formats,
        tables: &mut Vec<Table>,
    ) -> Result<Self, WeightError> {
        let l = talker.sub("code_predictor");
        // Fifteen passes of few bits would add up what they lose, and its layers stay in caches as they are.
        let backbone = if formats.backbone == Format::Int4 { formats.linear } else { formats.backbone };
        let formats = Formats { backbone, ..formats };
        let (outer, inner) = (config.decoder.hidden, c.decoder.hidden);
        let projection = match outer == inner {
            true => None,
            false => Some(Linear::load(&l.sub("small_to_mtp_projection"), inner, outer, formats.linear)?),
        };
        let mut inputs = Vec::new();
        for token in 0..=c.tokens {
            let (from, rows) = match token {
                0 => (talker.sub("model.codec_embedding"), config.embeddings),
                _ => (l.sub("model.codec_embedding").sub(token - 1), c.vocab),
            };
            let values = from.tensor("weight", &[rows, outer])?;
            if token > 0 {
                tables.push(l.table_of(&values, rows, outer, formats.embedding)?);
            }
            if token < c.tokens {
                let table = match &projection {
                    Some(p) => &project(exec, p, &values, outer, inner),
                    None => &values,
                };
                inputs.push(l.table_of(table, rows, inner, formats.embedding)?);
            }
        }
        let head = |i| Linear::load(&l.sub("lm_head").sub(i), c.vocab, inner, formats.linear);
        Ok(Self {
            decoder: Decoder::load(&l.sub("model"), c.decoder, formats)?,
            heads: (0..c.tokens).map(head).collect::<Result<_, _>>()?,
            projection,
            inputs,
        })
    }

    /// The first of each slot's two rows: what the frame's decoder ended with, normed and projected.
    fn enter(
        &self,
        exec: &mut Exec,
        outer: &Decoder,
        x: &mut Buffer,
        state: &mut PredictorState,
        rows: usize,
    ) {
        let (slots, width) = (state.x.rows(), state.x.cols());
        match &self.projection {
            Some(projection) => {
                let mut op = projection.op(&*x, rows);
                op.norm = outer.norm();
                // A slot's two rows as one: the product's outputs are its first half.
                state.first.regroup(slots, 2 * width);
                exec.linear(&op, &mut state.first);
                state.first.regroup(2 * slots, width);
            }
            None => {
                outer.normalize(exec, x, rows);
                if rows == 1 {
                    return exec.copy_head(x, 0, &mut state.first, 1);
                }
                let first: Vec<usize> = (0..rows).map(|r| 2 * r).collect();
                exec.scatter_rows(x, &first, &mut state.first);
            }
        }
    }

    /// The logits of a token from those before it.
    fn pass(&self, exec: &mut Exec, state: &mut PredictorState, spans: &[Span], token: usize) {
        let (slots, width, rows) = (state.x.rows(), state.x.cols(), spans.len());
        let head = &self.heads[token];
        if token == 0 {
            spans.iter().for_each(|s| state.decoder.cache.reset(s.slot));
            let pairs: Vec<Span> = spans.iter().map(|s| Span { rows: 2, ..*s }).collect();
            self.decoder.run(exec, &mut state.first, &pairs, &mut state.decoder);
            state.first.regroup(slots, 2 * width);
            let mut op = head.op(state.first.columns(width..2 * width), rows);
            op.norm = self.decoder.norm();
            exec.linear(&op, &mut state.logits);
            state.first.regroup(2 * slots, width);
        } else {
            self.decoder.run(exec, &mut state.x, spans, &mut state.decoder);
            let mut op = head.op(&state.x, rows);
            op.norm = self.decoder.norm();
            exec.linear(&op, &mut state.logits);
        }
    }
}

/// Rows of a table through a layer.
fn project(exec: &mut Exec, layer: &Linear, values: &[f32], from: usize, to: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len() / from * to);
    let (mut x, mut y) = (Buffer::new(PROJECTED, from), Buffer::new(PROJECTED, to));
    for part in values.chunks(PROJECTED * from) {
        let rows = part.len() / from;
        x.head_mut(rows).copy_from_slice(part);
        layer.run(exec, &x, rows, &mut y);
        exec.fetch(&mut y, rows);
        out.extend_from_slice(y.head(rows));
    }
    out
}
