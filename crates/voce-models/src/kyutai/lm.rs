//! The backbone: text and audio tokens of a step in, the layers, the text's logits and the extra heads out.
//!
//! All three kinds of model run it in the same way:
//!
//! ```text
//! let lm = Lm::load(exec, loader, config, formats)?;    // `loader` at the root of the language model's file
//! let mut state = lm.state(slots);
//! state.reserve(exec)?;
//! lm.start(exec, &mut state, slot, &[]);                // the ring is empty, every token is the initial one
//! loop {
//!     state.give(exec, &slots, lm.audio(), &codes);     // codes of the live slots, before the step that sees them
//!     lm.step(exec, &mut state, &slots);                // enqueues: embeddings, layers, text logits, extra heads
//!     lm.draw(exec, &mut state, &rows);                 // enqueues: each row's text token, which the next step sees
//!     let tokens = state.tokens(exec);                  // waits: `tokens.row(slot)[TEXT]`
//!     let heads = state.heads(exec, rows);              // probabilities, `heads * values` for each row
//! }
//! ```
//!
//! Step 0 of a stream sees initial tokens alone: a recogniser steps once before it gives the first frame's codes.
//! Columns of a slot's tokens: the text ([`TEXT`]), the second text where there is one, then the codebooks from
//! [`Lm::audio`] on, then the conditions. [`NONE`] adds nothing.

use std::ops::Range;

use voce_nn::{Decoder, DecoderState, Formats, Linear, Loader, TransformerShape, WeightError};
use voce_runtime::cuda::CudaError;
use voce_runtime::{Buffer, EmbedOp, EmbedPart, EveryRow, Exec, SampleOp, SampleRow, Span, Table, Tokens};

use super::conditions::{Condition, Conditions};
use super::config::KyutaiConfig;
use super::embedding::text_tables;

/// The token that adds nothing.
pub const NONE: u32 = u32::MAX;
/// The column of the text.
pub const TEXT: usize = 0;

/// Embeddings, layers, text logits and extra heads.
pub struct Lm {
    config: KyutaiConfig,
    decoder: Decoder,
    /// One for each column of a slot's tokens.
    tables: Vec<Table>,
    text: Linear,
    extra: Option<Linear>,
    conditions: Conditions,
    /// What a stream starts from.
    initial: Vec<u32>,
}

/// State of all streams.
pub struct LmState {
    pub(super) decoder: DecoderState,
    pub(super) tokens: Tokens,
    pub(super) x: Buffer,
    pub(super) logits: Buffer,
    pub(super) heads: Buffer,
    values: usize,
    /// Whether a device has something else to do while a step is asked for.
    pub(super) follows: bool,
}

impl Lm {
    /// Loads the backbone from a source in either naming.
    pub fn load(
        exec: &mut Exec,
        l: &Loader,
        config: &KyutaiConfig,
        formats: Formats,
    ) -> Result<Self, WeightError> {
        let (c, width) = (config, config.dim);
        let mut tables = text_tables(exec, &l.sub("text_emb"), c, width, None, formats)?;
        let mut initial = vec![NONE; tables.len()];
        initial[TEXT] = c.text_card as u32;
        for i in 0..c.n_q {
            tables.push(l.sub("emb").sub(i).table("weight", c.card + 1, width, formats.embedding)?);
            initial.push(c.card as u32);
        }
        let conditions = Conditions::load(exec, l, c, formats, &mut tables)?;
        initial.resize(tables.len(), NONE);
        let (heads, values) = (c.extra_heads_num_heads, c.extra_heads_dim);
        let extra = match heads * values {
            0 => None,
            outputs => {
                let l = l.sub("extra_heads");
                let joined = l.clone();
                Some(Linear::load_with(&l, "joined", outputs, width, formats.linear, move || {
                    let mut rows = Vec::with_capacity(outputs * width);
                    for head in 0..heads {
                        rows.append(&mut joined.sub(head).tensor("weight", &[values, width])?);
                    }
                    Ok(rows)
                })?)
            }
        };
        Ok(Self {
            decoder: Decoder::load(l, c.backbone(), formats)?,
            text: Linear::load(&l.sub("text_linear"), c.text_out(), width, formats.linear)?,
            config: config.clone(),
            tables,
            extra,
            conditions,
            initial,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &KyutaiConfig {
        &self.config
    }

    /// Its layers.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The column of the first codebook.
    pub fn audio(&self) -> usize {
        1 + usize::from(self.config.demux_second_stream)
    }

    /// Columns of the codebooks.
    pub fn codebooks(&self) -> Range<usize> {
        self.audio()..self.audio() + self.config.n_q
    }

    /// Columns of a slot's tokens.
    pub fn columns(&self) -> usize {
        self.tables.len()
    }

    /// The column after them, for a draw that decides about the text but is not it.
    pub(super) fn drawn(&self) -> usize {
        self.columns()
    }

    /// The tokens of a slot's first step, without conditions.
    pub fn initial(&self) -> &[u32] {
        &self.initial
    }

    /// What a request may say besides tokens.
    pub fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    /// State of `slots` streams side by side.
    pub fn state(&self, slots: usize) -> LmState {
        let shape = TransformerShape { slots, rows: slots, rows_per_slot: 1, positions: self.config.context };
        LmState {
            decoder: self.decoder.state(shape),
            tokens: Tokens::new(slots, self.columns() + 1, NONE),
            x: Buffer::new(slots, self.config.dim),
            logits: Buffer::new(slots, self.config.text_out()),
            heads: Buffer::new(slots, self.extra.as_ref().map_or(0, |e| e.matrix().outputs())),
            values: self.config.extra_heads_dim,
            follows: false,
        }
    }

    /// Starts a stream in a slot under conditions; those not named are absent.
    pub fn start(&self, exec: &mut Exec, state: &mut LmState, slot: usize, conditions: &[Condition]) {
        state.decoder.cache.reset(slot);
        exec.set_tokens(&mut state.tokens, &[slot], 0, &self.first_tokens(conditions));
    }

    /// The tokens of a stream's first step under conditions.
    pub(super) fn first_tokens(&self, conditions: &[Condition]) -> Vec<u32> {
        let mut tokens = self.initial.clone();
        self.conditions.fill(conditions, &mut tokens);
        tokens
    }

    /// Runs one step of the live slots: a row each, in their order.
    pub fn step(&self, exec: &mut Exec, state: &mut LmState, live: &[usize]) {
        self.step_rows(exec, state, live);
        self.heads(exec, state, live.len());
    }

    /// As [`Lm::step`], with tokens that stand elsewhere, in these rows.
    pub(super) fn step_from(
        &self,
        exec: &mut Exec,
        state: &mut LmState,
        live: &[usize],
        (tokens, rows): (&Tokens, &[usize]),
    ) {
        self.embed(exec, tokens, rows, &mut state.x);
        self.run(exec, state, live);
        self.heads(exec, state, live.len());
    }

    /// As [`Lm::step`], without logits: for steps whose text is known.
    pub(super) fn step_rows(&self, exec: &mut Exec, state: &mut LmState, live: &[usize]) {
        self.embed(exec, &state.tokens, live, &mut state.x);
        self.run(exec, state, live);
    }

    /// The sums of the embeddings of some rows of tokens.
    fn embed(&self, exec: &mut Exec, tokens: &Tokens, rows: &[usize], x: &mut Buffer) {
        let parts: Vec<EmbedPart<'_>> =
            self.tables.iter().enumerate().map(|(column, table)| EmbedPart { table, column }).collect();
        exec.embed(&EmbedOp { parts: &parts, tokens, slots: rows, place: EveryRow::default() }, x);
    }

    /// The layers and the norm after them.
    fn run(&self, exec: &mut Exec, state: &mut LmState, live: &[usize]) {
        let spans: Vec<Span> = live.iter().map(|&slot| Span { slot, rows: 1 }).collect();
        match state.follows && exec.fills_device(live.len()) {
            true => self.decoder.run(exec, &mut state.x, &spans, &mut state.decoder),
            false => self.decoder.run_early(exec, &mut state.x, &spans, &mut state.decoder),
        }
        self.decoder.normalize(exec, &mut state.x, live.len());
    }

    /// Logits of the text and the extra heads, from rows that are normed.
    pub(super) fn heads(&self, exec: &mut Exec, state: &mut LmState, rows: usize) {
        self.text.run(exec, &state.x, rows, &mut state.logits);
        if let Some(extra) = &self.extra {
            extra.run(exec, &state.x, rows, &mut state.heads);
        }
    }

    /// Draws the text token of each row of the last step; it stands in the slot's [`TEXT`] column.
    pub fn draw(&self, exec: &mut Exec, state: &mut LmState, rows: &[SampleRow]) {
        let op = SampleOp { logits: state.logits.view(), rows, column: TEXT, history: None, next: None };
        exec.sample(op, &mut state.tokens);
    }

    /// Bytes of weights that a step of `rows` rows reads.
    pub fn bytes(&self, rows: usize) -> usize {
        let lookups: usize = self.tables.iter().map(Table::row_bytes).sum();
        let extra = self.extra.as_ref().map_or(0, Linear::bytes);
        self.decoder.bytes() + self.text.bytes() + extra + rows * lookups
    }

    /// Multiply-adds of one row, attention not counted.
    pub fn macs(&self) -> usize {
        self.decoder.macs() + self.text.macs() + self.extra.as_ref().map_or(0, Linear::macs)
    }
}

impl LmState {
    /// Takes the memory of keys and values now, so that lack of it is known before a stream starts.
    pub fn reserve(&mut self, exec: &mut Exec) -> Result<(), CudaError> {
        exec.reserve_cache(&mut self.decoder.cache)
    }

    /// Steps that a slot has had.
    pub fn position(&self, slot: usize) -> usize {
        self.decoder.cache.position(slot)
    }

    /// Sets tokens of slots from `column` on, as many for each.
    pub fn give(&mut self, exec: &mut Exec, slots: &[usize], column: usize, values: &[u32]) {
        exec.set_tokens(&mut self.tokens, slots, column, values);
    }

    /// The tokens of every slot; waits for a device.
    pub fn tokens(&mut self, exec: &mut Exec) -> &Tokens {
        exec.fetch_tokens(&mut self.tokens);
        &self.tokens
    }

    /// Normed rows of the last step, to look at.
    pub fn hidden(&mut self, exec: &mut Exec, rows: usize) -> &[f32] {
        exec.fetch(&mut self.x, rows);
        self.x.head(rows)
    }

    /// Text logits of the last step's rows, to look at.
    pub fn logits(&mut self, exec: &mut Exec, rows: usize) -> &[f32] {
        exec.fetch(&mut self.logits, rows);
        self.logits.head(rows)
    }

    /// Probabilities of the extra heads of the last step's rows: the values of each head of each row.
    pub fn heads(&mut self, exec: &mut Exec, rows: usize) -> Vec<f32> {
        if self.heads.cols() == 0 {
            return Vec::new();
        }
        exec.fetch(&mut self.heads, rows);
        let mut all = self.heads.head(rows).to_vec();
        for head in all.chunks_exact_mut(self.values) {
            let top = head.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
            head.iter_mut().for_each(|v| *v = (*v - top).exp());
            let sum: f32 = head.iter().sum();
            head.iter_mut().for_each(|v| *v /= sum);
        }
        all
    }
}
