//! The depth transformer: the codes of a frame one after the other, each from those before it.

use voce_nn::{Decoder, DecoderState, Formats, Linear, Loader, TransformerShape, Watch, WeightError};
use voce_runtime::{
    Buffer, EmbedOp, EmbedPart, EveryRow, Exec, Format, Gate, Guide, SampleOp, SampleRow, SampledRows, Span,
    Table, Tokens,
};

use super::config::KyutaiConfig;
use super::embedding::{table, text_tables};
use super::lm::TEXT;
use super::names::DepthNames;

/// The networks that draw the codes of a frame.
pub struct Depth {
    /// Layers of each set of weights.
    sets: Vec<Decoder>,
    /// The set of each step.
    schedule: Vec<usize>,
    /// The way from the backbone into each set.
    ways: Vec<Linear>,
    /// Embeddings of the text, which the first step sees.
    text: Vec<Table>,
    /// Embeddings of each code but the last.
    codes: Vec<Table>,
    heads: Vec<Linear>,
    card: usize,
    width: usize,
}

/// Buffers of a [`Depth`]. Nothing of a frame outlives it.
pub struct DepthState {
    decoder: DecoderState,
    x: Buffer,
    logits: Buffer,
}

/// One stream's part of a frame.
#[derive(Clone, Copy, Debug)]
pub struct DepthRow {
    /// The draw of its first code; later ones count on from its step.
    pub first: SampleRow,
    /// Codes that are drawn.
    pub codes: usize,
    /// The slot of the same stream without its condition, and how far it is guided away from that.
    pub guide: Option<(usize, f32)>,
}

impl Depth {
    /// Loads the networks from a source in either naming; `None` where the model draws no codes.
    pub fn load(
        exec: &mut Exec,
        l: &Loader,
        config: &KyutaiConfig,
        formats: Formats,
    ) -> Result<Option<Self>, WeightError> {
        if config.dep_q == 0 {
            return Ok(None);
        }
        let (c, l, width) = (config, DepthNames::over(l, config), config.depformer_dim);
        // Many passes of few bits would add up what they lose.
        let backbone = if formats.backbone == Format::Int4 { formats.linear } else { formats.backbone };
        let formats = Formats { backbone, ..formats };
        let rank = c.depformer_low_rank_embeddings;
        let set = |i| Decoder::load(&l.sub("depth").sub(i), c.depth(), formats);
        let way = |i| Linear::load(&l.sub("depth").sub(i).sub("linear_in"), width, c.dim, formats.linear);
        let step = |i| l.sub("step").sub(i);
        let head = |i| Linear::load(&step(i).sub("linear_out"), c.card, width, formats.linear);
        let mut codes = Vec::new();
        for i in 1..c.dep_q {
            codes.push(table(exec, &step(i).sub("emb"), c.card + 1, width, rank, formats)?);
        }
        Ok(Some(Self {
            // Sets before ways, and layers of a set in order: files that hold all sets of a layer together are read once
            // a layer and set.
            sets: (0..c.sets()).map(set).collect::<Result<_, _>>()?,
            ways: (0..c.sets()).map(way).collect::<Result<_, _>>()?,
            schedule: c.schedule(),
            text: text_tables(exec, &step(0).sub("emb"), c, width, rank, formats)?,
            codes,
            heads: (0..c.dep_q).map(head).collect::<Result<_, _>>()?,
            card: c.card,
            width,
        }))
    }

    /// Codes of a frame.
    pub fn codes(&self) -> usize {
        self.heads.len()
    }

    /// Buffers for `slots` streams side by side.
    pub fn state(&self, slots: usize) -> DepthState {
        let shape = TransformerShape { slots, rows: slots, rows_per_slot: 1, positions: self.codes() };
        DepthState {
            decoder: self.sets[0].state(shape),
            x: Buffer::new(slots, self.width),
            logits: Buffer::new(slots, self.card),
        }
    }

    /// Draws the codes of a frame for rows that are the first of `hidden`, those with most codes first, then the rows that
    /// some are guided away from, in the order of those; the drawn stand in each slot's tokens from `column` on. The text
    /// that a frame belongs to stands there already.
    #[expect(clippy::too_many_arguments, reason = "a pass with its state, its inputs and its output")]
    pub fn draw(
        &self,
        exec: &mut Exec,
        state: &mut DepthState,
        hidden: &Buffer,
        rows: &[DepthRow],
        column: usize,
        tokens: &mut Tokens,
        mut watch: Watch<'_>,
    ) {
        let guided = || rows.iter().filter_map(|r| r.guide.map(|(without, _)| (r.first.slot, without)));
        let followed: Vec<usize> = guided().map(|(slot, _)| slot).collect();
        // Rows without a condition see the tokens of those with it.
        let slots: Vec<usize> = rows.iter().map(|r| r.first.slot).chain(followed.iter().copied()).collect();
        let own = rows.iter().map(|r| r.first.slot).chain(guided().map(|(_, without)| without));
        let mut spans: Vec<Span> = own.map(|slot| Span { slot, rows: 1 }).collect();
        spans.iter().for_each(|span| state.decoder.cache.reset(span.slot));
        let by = rows.iter().enumerate().filter_map(|(row, r)| r.guide.map(|(_, by)| (row, by)));
        let guides: Vec<Guide> =
            by.enumerate().map(|(i, (row, by))| Guide { row, without: rows.len() + i, by }).collect();
        let parts: Vec<EmbedPart<'_>> =
            self.text.iter().enumerate().map(|(i, table)| EmbedPart { table, column: TEXT + i }).collect();
        exec.embed(
            &EmbedOp { parts: &parts, tokens, slots: &slots, place: EveryRow::default() },
            &mut state.x,
        );
        let steps = rows.first().map_or(0, |r| r.codes);
        let mut draws = Vec::with_capacity(rows.len());
        for step in 0..steps {
            let drawn = rows.partition_point(|r| r.codes > step);
            // With rows to be guided away from, all stay to the end: those follow the last of the others.
            let live = if guides.is_empty() { drawn } else { spans.len() };
            spans.truncate(live);
            let set = self.schedule[step];
            let mut op = self.ways[set].op(hidden, live);
            op.gate = Gate::Add;
            exec.linear(&op, &mut state.x);
            self.sets[set].run(exec, &mut state.x, &spans, &mut state.decoder);
            self.heads[step].run(exec, &state.x, live, &mut state.logits);
            exec.guide_rows(&guides, &mut state.logits);
            if let Some(watch) = &mut watch {
                exec.fetch(&mut state.logits, drawn);
                watch(step, state.logits.head(drawn));
            }
            draws.clear();
            let draw = |r: &DepthRow| SampleRow { step: r.first.step.wrapping_add(step as u32), ..r.first };
            draws.extend(rows[..drawn].iter().map(draw));
            let next = self.codes.get(step).filter(|_| step + 1 < steps);
            let next = next.map(|table| SampledRows {
                table,
                out: &mut state.x,
                place: EveryRow::default(),
                less: false,
            });
            let logits = state.logits.view();
            let op = SampleOp { logits, rows: &draws, column: column + step, history: None, next };
            exec.sample(op, tokens);
            if let Some(table) = self.codes.get(step).filter(|_| step + 1 < steps && !followed.is_empty()) {
                let parts = [EmbedPart { table, column: column + step }];
                let place = EveryRow { first: rows.len(), step: 1 };
                exec.embed(&EmbedOp { parts: &parts, tokens, slots: &followed, place }, &mut state.x);
            }
        }
    }

    /// Bytes of weights that the first `codes` passes of a frame read.
    pub fn bytes(&self, codes: usize) -> usize {
        self.each(codes, Linear::bytes, Decoder::bytes)
    }

    /// Multiply-adds of the first `codes` passes of one stream's frame, attention not counted.
    pub fn macs(&self, codes: usize) -> usize {
        self.each(codes, Linear::macs, Decoder::macs)
    }

    fn each(&self, codes: usize, linear: fn(&Linear) -> usize, set: fn(&Decoder) -> usize) -> usize {
        let steps = self.schedule.iter().zip(&self.heads).take(codes);
        steps.map(|(&s, head)| set(&self.sets[s]) + linear(&self.ways[s]) + linear(head)).sum()
    }
}
