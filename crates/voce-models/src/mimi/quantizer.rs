//! The split residual quantiser: the nearest entries of each codebook by a product and an argmax, and entries by code.
//!
//! Two parts quantise the same latents, each by codebooks of which one takes what those before it have left. Codes are
//! tokens where the executor is: nothing of a search comes to the host.

use std::sync::Arc;

use voce_nn::{Linear, Loader, WeightError};
use voce_runtime::{
    Buffer, EmbedOp, EmbedPart, EveryRow, Exec, Format, Gate, SampleOp, SampleRow, SampledRows, Sampling,
    Table, Tokens,
};

use super::kyutai_config::SplitQuantizerConfig;

/// Entries that were used less than this count as used this much.
const LEAST_USED: f32 = 1e-5;

/// The entries of one codebook.
fn entries(l: &Loader, c: &SplitQuantizerConfig, book: usize) -> Result<Vec<f32>, WeightError> {
    let (part, layer) = if book < c.first { ("rvq_first", book) } else { ("rvq_rest", book - c.first) };
    let l = l.sub(part).sub("vq.layers").sub(layer).sub("_codebook");
    let mut entries = l.tensor("embedding_sum", &[c.bins, c.dimension])?;
    let used = l.tensor("cluster_usage", &[c.bins])?;
    for (row, used) in entries.chunks_exact_mut(c.dimension).zip(&used) {
        row.iter_mut().for_each(|v| *v /= used.max(LEAST_USED));
    }
    Ok(entries)
}

/// The entries of codebooks, first part first.
pub struct Codebooks {
    tables: Vec<Table>,
    /// Codebooks of the first part.
    first: usize,
    config: SplitQuantizerConfig,
}

impl Codebooks {
    /// Loads the first `count` codebooks of `rvq_first` and `rvq_rest`.
    pub fn load(l: &Loader, c: &SplitQuantizerConfig, count: usize) -> Result<Self, WeightError> {
        let table = |book| l.table_of(&entries(l, c, book)?, c.bins, c.dimension, Format::F32);
        let tables = (0..count).map(table).collect::<Result<_, WeightError>>()?;
        Ok(Self { tables, first: c.first.min(count), config: *c })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.tables.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Entries of each.
    pub fn entries(&self) -> usize {
        self.config.bins
    }

    /// Bytes of the entries of all of them.
    pub fn bytes(&self) -> usize {
        4 * self.len() * self.config.bins * self.config.dimension
    }

    /// Both parts' codebooks.
    fn parts(&self) -> [std::ops::Range<usize>; 2] {
        [0..self.first, self.first..self.len()]
    }
}

/// A part's 1x1 convolution; none where both sides have one width and the file has no such tensor.
fn projection(l: &Loader, outputs: usize, inputs: usize) -> Result<Option<Linear>, WeightError> {
    if outputs == inputs && !l.has("weight") {
        return Ok(None);
    }
    // Latents are few and their error decides codes: never below f32.
    let layer = Linear::load_with(l, "weight", outputs, inputs, Format::F32, || {
        l.tensor("weight", &[outputs, inputs, 1])
    });
    layer.map(Some)
}

/// Products with a codebook's entries, less half of each entry's own square.
fn scores(l: &Loader, c: &SplitQuantizerConfig, entries: &[f32]) -> Result<Linear, WeightError> {
    let half = |row: &[f32]| -0.5 * row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    let bias = entries.chunks_exact(c.dimension).map(|row| half(row) as f32).collect();
    Ok(Linear::from_values(l, Format::F32, c.bins, c.dimension, entries)?.with_bias(bias))
}

/// Latents to codes.
pub struct SplitSearch {
    books: Arc<Codebooks>,
    input: [Option<Linear>; 2],
    /// Products with the entries, less half of each entry's own square: the largest is that of the nearest.
    scores: Vec<Linear>,
}

/// Buffers of a search.
pub struct SearchState {
    x: Buffer,
    scores: Buffer,
}

impl SplitSearch {
    /// Loads `quantizer` for codebooks that were loaded.
    pub fn load(l: &Loader, books: Arc<Codebooks>) -> Result<Self, WeightError> {
        let c = books.config;
        let input = |part: &str| projection(&l.sub(part).sub("input_proj"), c.dimension, c.input_dimension);
        let scores = (0..books.len()).map(|book| scores(l, &c, &entries(l, &c, book)?));
        let scores = scores.collect::<Result<_, WeightError>>()?;
        Ok(Self { input: [input("rvq_first")?, input("rvq_rest")?], scores, books })
    }

    /// A search of a codec with names of its own: the projections of both parts, and the entries of every codebook.
    pub(crate) fn from_entries(
        l: &Loader,
        c: SplitQuantizerConfig,
        input: [Option<Linear>; 2],
        entries: &[Vec<f32>],
    ) -> Result<Self, WeightError> {
        let tables = entries.iter().map(|e| l.table_of(e, c.bins, c.dimension, Format::F32));
        let scores = entries.iter().map(|e| scores(l, &c, e));
        let books = Codebooks { tables: tables.collect::<Result<_, _>>()?, first: c.first, config: c };
        Ok(Self { input, scores: scores.collect::<Result<_, _>>()?, books: Arc::new(books) })
    }

    /// The codebooks.
    pub fn books(&self) -> &Codebooks {
        &self.books
    }

    /// Buffers for searches of up to `rows` latents.
    pub fn state(&self, rows: usize) -> SearchState {
        let c = &self.books.config;
        SearchState { x: Buffer::new(rows, c.dimension), scores: Buffer::new(rows, c.bins) }
    }

    /// Writes the codes of a latent for each of `slots`, which are rows of `tokens`, from `column` on.
    pub fn search(
        &self,
        exec: &mut Exec,
        state: &mut SearchState,
        latents: &Buffer,
        slots: &[usize],
        tokens: &mut Tokens,
        column: usize,
    ) {
        let count = slots.len();
        let sampling = Sampling::default();
        let rows: Vec<SampleRow> = slots.iter().map(|&slot| SampleRow { slot, step: 0, sampling }).collect();
        for (part, input) in self.books.parts().into_iter().zip(&self.input) {
            if part.is_empty() {
                continue;
            }
            match input {
                Some(input) => input.run(exec, latents, count, &mut state.x),
                None => exec.copy_head(latents, 0, &mut state.x, count),
            }
            let last = part.end - 1;
            for book in part {
                self.scores[book].run(exec, &state.x, count, &mut state.scores);
                let next = (book < last).then_some(SampledRows {
                    table: &self.books.tables[book],
                    out: &mut state.x,
                    place: EveryRow::default(),
                    less: true,
                });
                let op = SampleOp {
                    logits: state.scores.view(),
                    rows: &rows,
                    column: column + book,
                    history: None,
                    next,
                };
                exec.sample(op, tokens);
            }
        }
    }

    /// Multiply-adds of a latent.
    pub fn macs(&self) -> usize {
        self.input.iter().flatten().chain(&self.scores).map(Linear::macs).sum()
    }

    /// Bytes of weights read by a search.
    pub fn bytes(&self) -> usize {
        self.input.iter().flatten().chain(&self.scores).map(Linear::bytes).sum()
    }
}

/// Codes to latents.
pub struct SplitLookup {
    books: Arc<Codebooks>,
    output: [Option<Linear>; 2],
}

/// Sums of entries, of each part.
pub struct LookupState {
    sums: Buffer,
}

impl SplitLookup {
    /// Loads `quantizer` for codebooks that were loaded.
    pub fn load(l: &Loader, books: Arc<Codebooks>) -> Result<Self, WeightError> {
        let c = books.config;
        let output =
            |part: &str| projection(&l.sub(part).sub("output_proj"), c.output_dimension, c.dimension);
        Ok(Self { output: [output("rvq_first")?, output("rvq_rest")?], books })
    }

    /// The codebooks.
    pub fn books(&self) -> &Codebooks {
        &self.books
    }

    /// Buffers for up to `rows` latents.
    pub fn state(&self, rows: usize) -> LookupState {
        LookupState { sums: Buffer::new(rows, self.books.config.dimension) }
    }

    /// Puts the latent of each of `slots`, which are rows of `tokens` with a frame's codes from `column` on, into the
    /// first rows of `out`.
    pub fn run(
        &self,
        exec: &mut Exec,
        state: &mut LookupState,
        tokens: &Tokens,
        slots: &[usize],
        column: usize,
        out: &mut Buffer,
    ) {
        let count = slots.len();
        let mut is_first = true;
        for (part, output) in self.books.parts().into_iter().zip(&self.output) {
            if part.is_empty() {
                continue;
            }
            let parts: Vec<EmbedPart<'_>> = part
                .map(|book| EmbedPart { table: &self.books.tables[book], column: column + book })
                .collect();
            let op = EmbedOp { parts: &parts, tokens, slots, place: EveryRow::default() };
            exec.embed(&op, &mut state.sums);
            match output {
                Some(output) => {
                    let mut op = output.op(&state.sums, count);
                    if !is_first {
                        op.gate = Gate::Add;
                    }
                    exec.linear(&op, out);
                }
                None if is_first => exec.copy_head(&state.sums, 0, out, count),
                None => exec.add_scaled(&state.sums, 1.0, count, out),
            }
            is_first = false;
        }
    }

    /// Multiply-adds of a latent.
    pub fn macs(&self) -> usize {
        self.output.iter().flatten().map(Linear::macs).sum()
    }

    /// Bytes of weights that a latent reads.
    pub fn bytes(&self) -> usize {
        let entries = 4 * self.books.len() * self.books.config.dimension;
        entries + self.output.iter().flatten().map(Linear::bytes).sum::<usize>()
    }
}
