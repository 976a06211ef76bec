//! A stream's search as bytes, to go on with later or elsewhere. Options are not part of it: they come anew.

use std::sync::Arc;

use voce_runtime::{Buffer, Exec};

use super::bank::Place;
use super::ctc_beam::Prefix;
use super::fusion::FusionState;
use super::hypothesis::{Hyp, Node, ROOT};
use super::state::{Beam, Kind, SearchState};
use super::{Decoder, Search, SearchError, SearchOptions};
use crate::saved::{self, Writer};

/// First bytes of a snapshot; the last is the version.
const MAGIC: [u8; 8] = *b"vocesea1";
/// The most tokens or nodes that a snapshot may have: an utterance of ten minutes with every symbol that its frames may have.
const MAX_ITEMS: usize = 1 << 17;
/// The most values of predictors or frames that a snapshot may have.
const MAX_VALUES: usize = 1 << 26;

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

impl From<saved::Unfit> for SearchSnapshotError {
    fn from(e: saved::Unfit) -> Self {
        Unfit(e.0)
    }
}

type Result<T> = std::result::Result<T, SearchSnapshotError>;

impl Search {
    /// A stream of this search as bytes, for [`SearchState::from_bytes`].
    pub fn save(&self, exec: &mut Exec, state: &SearchState) -> Vec<u8> {
        let mut w = Writer::new(MAGIC);
        w.size(state.kind.tag());
        w.size(state.options.beam);
        w.size(state.frames);
        w.size(state.begin);
        w.size(state.taken);
        w.tokens(&state.stable);
        match &state.kind {
            Kind::Greedy(g) => {
                w.floats(&self.values(exec, &g.place, &[0]));
                w.size(g.carry);
                fusion(&mut w, g.fusion);
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
                nodes(&mut w, &b.tree.nodes);
                w.size(b.hyps.len());
                for h in &b.hyps {
                    let lane = match &b.place {
                        Place::Lanes(_) => used.iter().position(|&u| u == h.lane).unwrap_or(0),
                        Place::Nowhere | Place::Saved(_) => h.lane,
                    };
                    w.double(h.score);
                    w.size(h.node as usize);
                    [h.len, h.hash as usize, h.time, h.symbols, lane].into_iter().for_each(|v| w.size(v));
                    fusion(&mut w, h.fusion);
                }
            }
            Kind::Ctc(c) => {
                w.size(c.last.unwrap_or(u32::MAX) as usize);
                fusion(&mut w, c.fusion);
                w.double(c.score);
            }
            Kind::CtcBeam(b) => {
                nodes(&mut w, &b.tree.nodes);
                w.size(b.prefixes.len());
                for p in &b.prefixes {
                    [p.blank, p.label, p.bonus].into_iter().for_each(|v| w.double(v));
                    let words = [p.node as usize, p.len, p.last as usize, p.hash as usize, p.before as usize];
                    words.into_iter().for_each(|v| w.size(v));
                    fusion(&mut w, p.fusion);
                }
            }
        }
        w.into_bytes()
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
        let read = saved::Reader::new(bytes, MAGIC)?;
        let mut r = Reader { read, fusion: options.fusion_states(), vocab: decoder.vocab() };
        if r.read.number()? != state.kind.tag() as u64 || r.read.number()? != options.beam as u64 {
            return Err(Unfit("another method or beam"));
        }
        (state.frames, state.begin) = (r.read.position()?, r.read.position()?);
        state.taken = r.read.position()?;
        state.stable = r.read.tokens(r.vocab, MAX_ITEMS)?;
        if state.taken > state.stable.len() {
            return Err(Unfit("more labels were taken than there are"));
        }
        let (lane, width) = (decoder.lane_width(), decoder.frame_width());
        match &mut state.kind {
            Kind::Greedy(g) => {
                let values = r.read.any_floats(MAX_VALUES)?;
                g.carry = r.read.position()?;
                g.fusion = r.fusion()?;
                g.score = r.read.double()?;
                if !values.is_empty() {
                    if values.len() != lane {
                        return Err(Unfit("another predictor"));
                    }
                    g.place = Place::Saved(values);
                }
            }
            Kind::Beam(b) => {
                let values = r.read.any_floats(MAX_VALUES)?;
                b.saved = r.read.any_floats(MAX_VALUES)?;
                b.tree.nodes = r.nodes()?;
                let (lanes, held) = (values.len() / lane, b.saved.len() / width);
                let fits = values.len() == lanes * lane && b.saved.len() == held * width;
                if !fits || lanes > options.beam || held > state.frames {
                    return Err(Unfit("another predictor or joint"));
                }
                let nodes = b.tree.nodes.len();
                for _ in 0..r.read.count(options.beam)? {
                    let h = Hyp {
                        score: r.read.double()?,
                        node: r.node(nodes)?,
                        len: r.read.position()?,
                        hash: r.read.number()?,
                        time: r.read.position()?,
                        symbols: r.read.position()?,
                        lane: r.read.count(options.beam)?,
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
                let last = r.read.number()?;
                c.last = if last == u64::from(u32::MAX) { None } else { Some(r.label(last, 1)?) };
                c.fusion = r.fusion()?;
                c.score = r.read.double()?;
            }
            Kind::CtcBeam(b) => {
                b.tree.nodes = r.nodes()?;
                let nodes = b.tree.nodes.len();
                b.prefixes.clear();
                for _ in 0..r.read.count(options.beam)? {
                    let (blank, label, bonus) = (r.read.double()?, r.read.double()?, r.read.double()?);
                    let (node, len, last) = (r.node(nodes)?, r.read.position()?, r.read.number()?);
                    let last = if last == u64::from(u32::MAX) { u32::MAX } else { r.label(last, 0)? };
                    let (hash, before) = (r.read.number()?, r.read.number()?);
                    let fusion = r.fusion()?;
                    b.prefixes.push(Prefix { blank, label, bonus, node, len, last, hash, before, fusion });
                }
                if b.prefixes.is_empty() {
                    return Err(Unfit("it has no prefix"));
                }
            }
        }
        state.options = Arc::new(options.clone());
        r.read.finish()?;
        Ok(state)
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

fn fusion(w: &mut Writer, s: FusionState) {
    w.number(u64::from(s.boost));
    w.number(u64::from(s.lm));
}

fn nodes(w: &mut Writer, nodes: &[Node]) {
    w.size(nodes.len());
    for n in nodes {
        w.number(u64::from(n.parent));
        w.token(&n.token);
    }
}

/// Reads for one model and one search.
struct Reader<'a> {
    read: saved::Reader<'a>,
    /// States of phrases and language model.
    fusion: (usize, usize),
    vocab: usize,
}

impl Reader<'_> {
    /// A label, or one of `more` classes after them.
    fn label(&self, v: u64, more: usize) -> Result<u32> {
        if v < (self.vocab + more) as u64 { Ok(v as u32) } else { Err(Unfit("a label is out of range")) }
    }

    fn fusion(&mut self) -> Result<FusionState> {
        let (boost, lm) = (self.read.number()?, self.read.number()?);
        if boost >= self.fusion.0 as u64 || lm >= self.fusion.1 as u64 {
            return Err(Unfit("other phrases or another language model"));
        }
        Ok(FusionState { boost: boost as u32, lm: lm as u32 })
    }

    fn node(&mut self, below: usize) -> Result<u32> {
        let v = self.read.number()?;
        let known = v == u64::from(ROOT) || v < below as u64;
        if known { Ok(v as u32) } else { Err(Unfit("a label has no parent")) }
    }

    fn nodes(&mut self) -> Result<Vec<Node>> {
        let n = self.read.count(MAX_ITEMS)?;
        let vocab = self.vocab;
        (0..n).map(|i| Ok(Node { parent: self.node(i)?, token: self.read.token(vocab)? })).collect()
    }
}
