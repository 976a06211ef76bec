//! The prediction network of a transducer: embedding, LSTM, and the projection that the joint adds to frames.

use voce_nn::{Embedding, Formats, Linear, Loader, Lstm, LstmScratch, WeightError};
use voce_runtime::cuda::CudaError;
use voce_runtime::{Buffer, Exec, RowList};

use super::PredictorConfig;

/// Embedding, LSTM and `joint.pred`.
pub struct Predictor {
    embedding: Embedding,
    lstm: Lstm,
    project: Linear,
    blank: usize,
    /// The row that stands for the start; none is zeros.
    start: usize,
    hidden: usize,
    joint: usize,
}

/// States of predictors side by side, one per row, with what each has to say to the joint.
pub struct Lanes {
    state: Buffer,
    out: Buffer,
}

impl Lanes {
    /// How many states there is room for.
    pub fn rows(&self) -> usize {
        self.out.rows()
    }

    /// The predictors' part of the joint's input.
    pub fn out(&self) -> &Buffer {
        &self.out
    }

    /// Makes room for more states; those that are there stay.
    pub fn grow(&mut self, exec: &mut Exec, rows: usize) {
        grow(exec, &mut self.state, rows);
        grow(exec, &mut self.out, rows);
    }

    /// The same between two steps: where there is no memory nothing has changed, and the executor goes on.
    pub fn try_grow(&mut self, exec: &mut Exec, rows: usize) -> Result<(), CudaError> {
        try_grow(exec, &mut self.state, rows)?;
        try_grow(exec, &mut self.out, rows)
    }

    /// Appends some lanes to `to`: of each its state, then its output.
    pub fn save(&self, exec: &mut Exec, lanes: &[usize], to: &mut Vec<f32>) {
        let [state, out] = [&self.state, &self.out].map(|from| {
            let mut rows = Buffer::new(lanes.len(), from.cols());
            exec.gather_rows(from, lanes, 0, &mut rows);
            exec.fetch(&mut rows, lanes.len());
            rows
        });
        for i in 0..lanes.len() {
            to.extend_from_slice(state.row(i));
            to.extend_from_slice(out.row(i));
        }
    }

    /// Copies lanes to others, all at once.
    pub fn copy(&mut self, exec: &mut Exec, from: &[usize], to: &[usize]) {
        for lanes in [&mut self.state, &mut self.out] {
            let mut rows = Buffer::new(from.len(), lanes.cols());
            exec.gather_rows(lanes, from, 0, &mut rows);
            exec.scatter_rows(&rows, to, lanes);
        }
    }

    /// Puts saved lanes back, one after the other in `from`; zeros are the state before the first label.
    pub fn restore(&mut self, exec: &mut Exec, lanes: &[usize], from: &[f32]) {
        let (width, all) = (self.state.cols(), self.state.cols() + self.out.cols());
        exec.set_row_parts(&mut self.state, lanes, from, all, 0);
        exec.set_row_parts(&mut self.out, lanes, from, all, width);
    }
}

/// Makes room for more rows of a buffer; what the present ones hold stays, and new ones are zeros.
pub(crate) fn grow(exec: &mut Exec, buffer: &mut Buffer, rows: usize) {
    if let Some(larger) = larger(exec, buffer, rows) {
        *buffer = larger;
    }
}

/// The same between two steps: where there is no memory nothing has changed, and the executor goes on.
pub(crate) fn try_grow(exec: &mut Exec, buffer: &mut Buffer, rows: usize) -> Result<(), CudaError> {
    let Some(larger) = larger(exec, buffer, rows) else { return Ok(()) };
    exec.finish();
    match exec.status() {
        Ok(()) => {
            *buffer = larger;
            Ok(())
        }
        Err(e) => {
            exec.recover()?;
            Err(e)
        }
    }
}

/// A copy of a buffer with more rows, if it has too few.
fn larger(exec: &mut Exec, buffer: &Buffer, rows: usize) -> Option<Buffer> {
    let before = buffer.rows();
    if before >= rows {
        return None;
    }
    let mut larger = Buffer::new(rows.next_power_of_two(), buffer.cols());
    exec.copy_head(buffer, 0, &mut larger, before);
    Some(larger)
}

/// Labels for some lanes: label `labels[r]` takes lane `from[r]` to lane `to[r]`.
#[derive(Clone, Debug, Default)]
pub struct Moves {
    /// Labels; the blank stands for the start.
    pub labels: Vec<u32>,
    /// Lanes that are read.
    pub from: Vec<usize>,
    /// Lanes that are written; none is another label's `from`.
    pub to: Vec<usize>,
}

impl Moves {
    /// Adds all of another's, which is empty afterwards.
    pub fn append(&mut self, other: &mut Self) {
        self.labels.append(&mut other.labels);
        self.from.append(&mut other.from);
        self.to.append(&mut other.to);
    }

    /// Adds one.
    pub fn push(&mut self, label: u32, from: usize, to: usize) {
        self.labels.push(label);
        self.from.push(from);
        self.to.push(to);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.labels.clear();
        self.from.clear();
        self.to.clear();
    }
}

/// Buffers of a step, grown as rows need them and kept.
pub struct PredictorScratch {
    x: Buffer,
    top: Buffer,
    projected: Buffer,
    lstm: LstmScratch,
    labels: Vec<usize>,
}

impl Predictor {
    /// Loads `decoder.prediction.*` and `joint.pred`.
    pub fn load(
        l: &Loader,
        config: &PredictorConfig,
        vocab: usize,
        formats: Formats,
    ) -> Result<Self, WeightError> {
        let prediction = l.sub("decoder.prediction");
        let embed = prediction.sub("embed");
        // The blank's row stands for the start; files that leave it out mean zeros.
        let bare = embed.shape("weight").is_some_and(|s| s.first() == Some(&vocab));
        let rows = if bare { vocab } else { vocab + 1 };
        let hidden = config.hidden;
        Ok(Self {
            embedding: Embedding::load(&embed, rows, hidden, formats.embedding)?,
            lstm: Lstm::load(&prediction.sub("dec_rnn.lstm"), hidden, hidden, config.layers, formats.linear)?,
            project: Linear::load(&l.sub("joint.pred"), config.joint, hidden, formats.linear)?,
            blank: vocab,
            start: if bare { usize::MAX } else { vocab },
            hidden,
            joint: config.joint,
        })
    }

    /// Room for `rows` states.
    pub fn lanes(&self, rows: usize) -> Lanes {
        Lanes { state: Buffer::new(rows, self.lstm.state_width()), out: Buffer::new(rows, self.joint) }
    }

    /// Values of a saved lane.
    pub fn lane_width(&self) -> usize {
        self.lstm.state_width() + self.joint
    }

    /// Buffers for steps of up to `rows` labels, and more when asked.
    pub fn scratch(&self, rows: usize) -> PredictorScratch {
        PredictorScratch {
            x: Buffer::new(rows, self.hidden),
            top: Buffer::new(rows, self.hidden),
            projected: Buffer::new(rows, self.joint),
            lstm: self.lstm.scratch(rows),
            labels: Vec::with_capacity(rows),
        }
    }

    /// Feeds labels.
    pub fn step(&self, exec: &mut Exec, moves: &Moves, lanes: &mut Lanes, scratch: &mut PredictorScratch) {
        let rows = moves.labels.len();
        if rows == 0 {
            return;
        }
        if scratch.x.rows() < rows {
            *scratch = self.scratch(rows.next_power_of_two());
        }
        scratch.labels.clear();
        scratch.labels.extend(moves.labels.iter().map(|&l| {
            let label = l as usize;
            if label < self.blank { label } else { self.start }
        }));
        self.embedding.embed(exec, &scratch.labels, &mut scratch.x);
        self.feed(exec, (&moves.from).into(), (&moves.to).into(), lanes, scratch);
    }

    /// Feeds labels that an op on a device has found to the lanes that it has named: `labels[r]` takes lane `from[r]` to
    /// lane `to[r]`.
    pub fn step_found(
        &self,
        exec: &mut Exec,
        [labels, from, to]: [RowList<'_>; 3],
        lanes: &mut Lanes,
        scratch: &mut PredictorScratch,
    ) {
        if scratch.x.rows() < labels.len() {
            *scratch = self.scratch(labels.len().next_power_of_two());
        }
        self.embedding.embed_found(exec, labels, &mut scratch.x);
        self.feed(exec, from, to, lanes, scratch);
    }

    /// Takes lanes on by the embeddings in `scratch.x`.
    fn feed(
        &self,
        exec: &mut Exec,
        from: RowList<'_>,
        to: RowList<'_>,
        lanes: &mut Lanes,
        scratch: &mut PredictorScratch,
    ) {
        self.lstm.step(exec, &scratch.x, from, to, &mut lanes.state, &mut scratch.lstm);
        exec.gather_rows(&lanes.state, to, self.lstm.output().start, &mut scratch.top);
        self.project.run(exec, &scratch.top, to.len(), &mut scratch.projected);
        exec.scatter_rows(&scratch.projected, to, &mut lanes.out);
    }

    /// Bytes that one step reads.
    pub fn bytes(&self) -> usize {
        self.lstm.bytes() + self.project.bytes()
    }

    /// Multiply-adds per label.
    pub fn macs(&self) -> usize {
        self.lstm.macs() + self.project.macs()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use voce_nn::weights::{RandomWeights, Tensor};
    use voce_nn::{Precision, Weights};
    use voce_runtime::Isa;

    use super::*;

    const VOCAB: usize = 5;

    /// Random weights whose embedding has these rows: a label's of the whole table, none for zeros.
    struct Rows(Vec<Option<usize>>);

    impl Weights for Rows {
        fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
            let random = RandomWeights::new(1, |_| false);
            if !name.contains("embed") {
                return random.get(name, expected);
            }
            let all = random.get(name, &[VOCAB + 1, expected[1]])?.expect("made up").values;
            let row = |r: &Option<usize>| match r {
                Some(r) => all[r * expected[1]..(r + 1) * expected[1]].to_vec(),
                None => vec![0.0; expected[1]],
            };
            let values = self.0.iter().flat_map(row).collect();
            Ok(Some(Tensor { shape: expected.to_vec(), values }))
        }

        fn shape(&self, name: &str) -> Option<Vec<usize>> {
            name.contains("embed").then(|| vec![self.0.len(), 8])
        }
    }

    /// What the joint is told after one label.
    fn after(table: Vec<Option<usize>>, label: usize) -> Vec<f32> {
        let config = PredictorConfig { hidden: 8, layers: 1, joint: 6, max_symbols: 1 };
        let formats = Formats::new(Precision::F32, Isa::Scalar);
        let predictor =
            Predictor::load(&Loader::new(Arc::new(Rows(table))), &config, VOCAB, formats).unwrap();
        let mut exec = Exec::with_isa(1, Isa::Scalar).unwrap();
        let (mut lanes, mut scratch) = (predictor.lanes(1), predictor.scratch(1));
        let mut moves = Moves::default();
        moves.push(label as u32, 0, 0);
        predictor.step(&mut exec, &moves, &mut lanes, &mut scratch);
        lanes.out().row(0).to_vec()
    }

    #[test]
    fn the_start_is_the_blanks_row_and_zeros_where_a_file_has_none() {
        let labels: Vec<_> = (0..VOCAB).map(Some).collect();
        let with = |last| labels.iter().copied().chain([last]).collect::<Vec<_>>();
        assert_eq!(after(with(Some(2)), VOCAB), after(labels.clone(), 2));
        assert_eq!(after(labels.clone(), VOCAB), after(with(None), VOCAB));
        assert_ne!(after(with(Some(2)), VOCAB), after(with(None), VOCAB));
    }
}
