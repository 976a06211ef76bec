//! A stream's search as bytes, to go on with later or elsewhere. Options are not part of it: they come anew.

use std::sync::Arc;

use voce_runtime::{Buffer, Exec};

use super::bank::Place;
use super::ctc_beam::Prefix;
use super::fusion::FusionState;
use super::hypothesis::{Hyp, Node, ROOT};
use super::state::{Beam, Kind, SearchState};
use super::{Decoder, Search, SearchError, SearchOptions, Token};

/// First bytes of a snapshot; the last is the version.
const MAGIC: [u8; 8] = *b"vocesea1";
/// The most tokens or nodes that a snapshot may have.
const MAX_ITEMS: usize = 1 << 24;

/// A snapshot that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SearchSnapshotError {
    /// It does not fit.
    #[error("the search's snapshot does not fit this model and these options: {0}")]
    Unfit(&'static str),
    /// The options do not fit the model.
    #[error(transparent)]
    Options(#[from] SearchError),
}

use SearchSnapshotError::Unfit;

type Result<T> = std::result::Result<T, SearchSnapshotError>;

impl Search {
    /// A stream of this search as bytes, for [`SearchState::from_bytes`].
    pub fn save(&self, exec: &mut Exec, state: &SearchState) -> Vec<u8> {
        let mut w = Writer(MAGIC.to_vec());
        w.number(state.kind.tag());
        w.number(state.options.beam);
        w.number(state.frames);
        w.number(state.begin);
        w.number(state.taken);
        w.tokens(state.stable.iter());
        match &state.kind {
            Kind::Greedy(g) => {
                w.floats(&self.values(exec, &g.place, &[0]));
                w.number(g.carry);
                w.fusion(g.fusion);
                w.double(g.score);
            }
            Kind::Beam(b) => {
                // Lanes in the order in which hypotheses first have them.
                let mut used = Vec::new();
                b.hyps.iter().for_each(|h| {
                    if !used.contains(&h.lane) {
                        used.push(h.lane);
                    }
                });
                w.floats(&self.values(exec, &b.place, &used));
                w.floats(&self.backlog(exec, b, state.frames));
                w.nodes(&b.tree.nodes);
                w.number(b.hyps.len());
                for h in &b.hyps {
                    let lane = match &b.place {
                        Place::Lanes(_) => used.iter().position(|&u| u == h.lane).unwrap_or(0),
                        Place::Nowhere | Place::Saved(_) => h.lane,
                    };
                    w.double(h.score);
                    w.number(h.node as usize);
                    [h.len, h.hash as usize, h.time, h.symbols, lane].into_iter().for_each(|v| w.number(v));
                    w.fusion(h.fusion);
                }
            }
            Kind::Ctc(c) => {
                w.number(c.last.unwrap_or(u32::MAX) as usize);
                w.fusion(c.fusion);
                w.double(c.score);
            }
            Kind::CtcBeam(b) => {
                w.nodes(&b.tree.nodes);
                w.number(b.prefixes.len());
                for p in &b.prefixes {
                    [p.blank, p.label, p.bonus].into_iter().for_each(|v| w.double(v));
                    let words = [p.node as usize, p.len, p.last as usize, p.hash as usize, p.before as usize];
                    words.into_iter().for_each(|v| w.number(v));
                    w.fusion(p.fusion);
                }
            }
        }
        w.0
    }

    /// The values of lanes: all that are saved, or some of those that the search has.
    fn values(&self, exec: &mut Exec, place: &Place, some: &[usize]) -> Vec<f32> {
        match (place, &self.lanes) {
            (Place::Saved(values), _) => values.clone(),
            (Place::Lanes(rows), Some(lanes)) => {
                let rows = rows.of(&self.bank);
                let mut values = Vec::new();
                lanes.save(exec, &some.iter().map(|&i| rows[i]).collect::<Vec<_>>(), &mut values);
                values
            }
            _ => Vec::new(),
        }
    }

    /// The frames that a beam has still to pass.
    fn backlog(&self, exec: &mut Exec, beam: &Beam, end: usize) -> Vec<f32> {
        if !beam.saved.is_empty() {
            return beam.saved.clone();
        }
        let rows: Vec<usize> =
            beam.frames.iter().flat_map(|rows| rows.of(&self.frame_bank)).copied().collect();
        let needed = &rows[rows.len() - beam.needed(end).min(rows.len())..];
        let mut values = Buffer::new(needed.len(), self.frames.cols());
        exec.gather_rows(&self.frames, needed, 0, &mut values);
        exec.fetch(&mut values, needed.len());
        values.head(needed.len()).to_vec()
    }
}

impl SearchState {
    /// A state from [`Search::save`], for the same model and options of the same shape.
    pub fn from_bytes(bytes: &[u8], decoder: &Decoder, options: &SearchOptions) -> Result<Self> {
        let mut state = SearchState::new(decoder, options)?;
        let mut r = Reader { left: bytes, fusion: options.fusion_states(), vocab: decoder.vocab() };
        if r.take(8)? != MAGIC {
            return Err(Unfit("it was not written by this version"));
        }
        if r.number()? != state.kind.tag() || r.number()? != options.beam {
            return Err(Unfit("another method or beam"));
        }
        (state.frames, state.begin) = (r.position()?, r.position()?);
        state.taken = r.number()?;
        state.stable = r.tokens()?;
        if state.taken > state.stable.len() {
            return Err(Unfit("more labels were taken than there are"));
        }
        let (lane, width) = (decoder.lane_width(), decoder.frame_width());
        match &mut state.kind {
            Kind::Greedy(g) => {
                let values = r.floats()?;
                g.carry = r.position()?;
                g.fusion = r.fusion()?;
                g.score = r.double()?;
                if !values.is_empty() {
                    if values.len() != lane {
                        return Err(Unfit("another predictor"));
                    }
                    g.place = Place::Saved(values);
                }
            }
            Kind::Beam(b) => {
                let values = r.floats()?;
                b.saved = r.floats()?;
                b.tree.nodes = r.nodes()?;
                let (lanes, held) = (values.len() / lane, b.saved.len() / width);
                let fits = values.len() == lanes * lane && b.saved.len() == held * width;
                if !fits || lanes > options.beam || held > state.frames {
                    return Err(Unfit("another predictor or joint"));
                }
                let nodes = b.tree.nodes.len();
                for _ in 0..r.count(options.beam)? {
                    let h = Hyp {
                        score: r.double()?,
                        node: r.node(nodes)?,
                        len: r.position()?,
                        hash: r.number()? as u64,
                        time: r.position()?,
                        symbols: r.position()?,
                        lane: r.number()?,
                        fusion: r.fusion()?,
                    };
                    let other = |o: &Hyp| o.lane == h.lane && (o.hash, o.len) != (h.hash, h.len);
                    if h.lane >= lanes || h.time < state.frames - held || b.hyps.iter().any(other) {
                        return Err(Unfit("a hypothesis without its state"));
                    }
                    b.hyps.push(h);
                }
                if !b.hyps.is_empty() {
                    b.place = Place::Saved(values);
                }
            }
            Kind::Ctc(c) => {
                let last = r.number()?;
                c.last = if last == u32::MAX as usize { None } else { Some(r.label(last, 1)?) };
                c.fusion = r.fusion()?;
                c.score = r.double()?;
            }
            Kind::CtcBeam(b) => {
                b.tree.nodes = r.nodes()?;
                let nodes = b.tree.nodes.len();
                b.prefixes.clear();
                for _ in 0..r.count(options.beam)? {
                    let (blank, label, bonus) = (r.double()?, r.double()?, r.double()?);
                    let (node, len, last) = (r.node(nodes)?, r.position()?, r.number()?);
                    let last = if last == u32::MAX as usize { u32::MAX } else { r.label(last, 0)? };
                    let (hash, before) = (r.number()? as u64, r.number()? as u64);
                    let fusion = r.fusion()?;
                    b.prefixes.push(Prefix { blank, label, bonus, node, len, last, hash, before, fusion });
                }
                if b.prefixes.is_empty() {
                    return Err(Unfit("it has no prefix"));
                }
            }
        }
        state.options = Arc::new(options.clone());
        if r.left.is_empty() { Ok(state) } else { Err(Unfit("it is too long")) }
    }
}

impl Kind {
    fn tag(&self) -> usize {
        match self {
            Kind::Greedy(_) => 0,
            Kind::Beam(_) => 1,
            Kind::Ctc(_) => 2,
            Kind::CtcBeam(_) => 3,
        }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, v: usize) {
        self.0.extend_from_slice(&(v as u64).to_le_bytes());
    }

    fn double(&mut self, v: f64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    fn floats(&mut self, v: &[f32]) {
        self.number(v.len());
        v.iter().for_each(|x| self.0.extend_from_slice(&x.to_le_bytes()));
    }

    fn fusion(&mut self, s: FusionState) {
        self.number(s.boost as usize);
        self.number(s.lm as usize);
    }

    fn token(&mut self, t: &Token) {
        [t.id as usize, t.frame, t.duration].into_iter().for_each(|v| self.number(v));
        [t.log_prob, t.confidence].into_iter().for_each(|v| self.0.extend_from_slice(&v.to_le_bytes()));
    }

    fn tokens<'a>(&mut self, tokens: impl ExactSizeIterator<Item = &'a Token>) {
        self.number(tokens.len());
        tokens.for_each(|t| self.token(t));
    }

    fn nodes(&mut self, nodes: &[Node]) {
        self.number(nodes.len());
        for n in nodes {
            self.number(n.parent as usize);
            self.token(&n.token);
        }
    }
}

struct Reader<'a> {
    left: &'a [u8],
    fusion: (usize, usize),
    vocab: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.left.split_at_checked(n).ok_or(Unfit("it is cut short"))?;
        self.left = tail;
        Ok(head)
    }

    fn word(&mut self) -> Result<[u8; 8]> {
        self.take(8)?.try_into().map_err(|_| Unfit("it is cut short"))
    }

    fn number(&mut self) -> Result<usize> {
        usize::try_from(u64::from_le_bytes(self.word()?)).map_err(|_| Unfit("a number is out of range"))
    }

    /// A number of frames or labels.
    fn position(&mut self) -> Result<usize> {
        let v = self.number()?;
        if v > u32::MAX as usize { Err(Unfit("a position is out of range")) } else { Ok(v) }
    }

    fn count(&mut self, most: usize) -> Result<usize> {
        let v = self.number()?;
        if v > most { Err(Unfit("it has more items than it may")) } else { Ok(v) }
    }

    fn double(&mut self) -> Result<f64> {
        let v = f64::from_le_bytes(self.word()?);
        if v.is_nan() { Err(Unfit("a score is no number")) } else { Ok(v) }
    }

    fn float(&mut self) -> Result<f32> {
        let bytes = self.take(4)?.try_into().map_err(|_| Unfit("it is cut short"))?;
        Ok(f32::from_le_bytes(bytes))
    }

    fn floats(&mut self) -> Result<Vec<f32>> {
        let n = self.count(self.left.len() / 4)?;
        let bytes = self.take(4 * n)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    /// A label, or one of `more` classes after them.
    fn label(&self, v: usize, more: usize) -> Result<u32> {
        if v < self.vocab + more { Ok(v as u32) } else { Err(Unfit("a label is out of range")) }
    }

    fn fusion(&mut self) -> Result<FusionState> {
        let (boost, lm) = (self.number()?, self.number()?);
        if boost >= self.fusion.0 || lm >= self.fusion.1 {
            return Err(Unfit("other phrases or another language model"));
        }
        Ok(FusionState { boost: boost as u32, lm: lm as u32 })
    }

    fn token(&mut self) -> Result<Token> {
        let id = self.number()?;
        let id = self.label(id, 0)?;
        let (frame, duration) = (self.position()?, self.position()?);
        Ok(Token { id, frame, duration, log_prob: self.float()?, confidence: self.float()? })
    }

    fn tokens(&mut self) -> Result<Vec<Token>> {
        let n = self.count(MAX_ITEMS)?;
        (0..n).map(|_| self.token()).collect()
    }

    fn node(&mut self, below: usize) -> Result<u32> {
        let v = self.number()?;
        if v == ROOT as usize || v < below { Ok(v as u32) } else { Err(Unfit("a label has no parent")) }
    }

    fn nodes(&mut self) -> Result<Vec<Node>> {
        let n = self.count(MAX_ITEMS)?;
        (0..n).map(|i| Ok(Node { parent: self.node(i)?, token: self.token()? })).collect()
    }
}
