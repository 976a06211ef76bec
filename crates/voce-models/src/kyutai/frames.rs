//! A step of text and audio: the backbone, a draw of text, and the depth transformer's codes, without a look at the host.
//!
//! What a step draws stands in a slot's tokens and is what its next step sees. Callers that know better write over it
//! in between: by [`FrameState::give`], or, for text that depends on the draw itself, by a [`Branch`].

use std::time::Instant;

use voce_nn::{CrossState, Formats, Loader, WeightError};
use voce_runtime::cuda::CudaError;
use voce_runtime::{
    BranchOp, Exec, KvCache, SampleOp, SampleRow, Sampling, SentTokens, Span, TokenMove, Tokens,
};

use super::conditions::Condition;
use super::config::KyutaiConfig;
use super::depth::{Depth, DepthRow, DepthState};
use super::lm::{Lm, LmState, NONE, TEXT};

/// Text and second text.
pub type TextPair = [u32; 2];

/// What is shown the logits of every draw: its number, the slots of the rows, and their logits.
pub type DrawWatch<'a> = &'a mut dyn FnMut(usize, &[usize], &[f32]);

/// What becomes of a drawn text token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The text where `key` was drawn.
    pub then: TextPair,
    /// The text where anything else was.
    pub otherwise: TextPair,
    /// The token that decides.
    pub key: u32,
    /// Whether the draw decides anything, be it that both texts are the same.
    pub free: bool,
}

/// One stream's part of a step.
#[derive(Clone, Copy, Debug)]
pub struct FrameRow {
    /// The stream.
    pub slot: usize,
    /// How its text is drawn.
    pub text: Sampling,
    /// What becomes of the draw; none takes it as it is.
    pub branch: Option<Branch>,
    /// How its codes are drawn.
    pub audio: Sampling,
    /// Codes that are drawn; none in a step of text alone.
    pub codes: usize,
    /// Which source it looks at, for models that look at one.
    pub source: usize,
    /// The slot of the same stream without its text and voice, and how far its codes are guided away from that; for
    /// models that look at no source.
    pub guide: Option<(usize, f32)>,
}

/// The networks of a model that makes audio.
pub struct FrameLm {
    lm: Lm,
    depth: Depth,
}

/// State of all streams.
pub struct FrameState {
    lm: LmState,
    depth: DepthState,
    /// Steps that each slot has had.
    steps: Vec<u32>,
    halfway: Instant,
}

impl FrameLm {
    /// Loads a model from a source in either naming; `None` where it makes no audio.
    pub fn load(
        exec: &mut Exec,
        l: &Loader,
        config: &KyutaiConfig,
        formats: Formats,
    ) -> Result<Option<Self>, WeightError> {
        let lm = Lm::load(exec, l, config, formats)?;
        Ok(Depth::load(exec, l, config, formats)?.map(|depth| Self { lm, depth }))
    }

    /// The backbone.
    pub fn lm(&self) -> &Lm {
        &self.lm
    }

    /// The depth transformer.
    pub fn depth(&self) -> &Depth {
        &self.depth
    }

    /// The configuration.
    pub fn config(&self) -> &KyutaiConfig {
        self.lm.config()
    }

    /// State of `slots` streams side by side.
    pub fn state(&self, slots: usize) -> FrameState {
        FrameState {
            lm: self.lm.state(slots),
            depth: self.depth.state(slots),
            steps: vec![0; slots],
            halfway: Instant::now(),
        }
    }

    /// State of `slots` streams that look at up to `sources` sources of `positions` rows.
    pub fn looking_state(&self, slots: usize, sources: usize, positions: usize) -> FrameState {
        let mut state = self.state(slots);
        state.lm.decoder.cross = Some(self.lm.decoder().cross_state(sources, positions, slots));
        state
    }

    /// Starts a stream in a slot under conditions.
    pub fn start(&self, exec: &mut Exec, state: &mut FrameState, slot: usize, conditions: &[Condition]) {
        self.lm.start(exec, &mut state.lm, slot, conditions);
        state.steps[slot] = 0;
    }

    /// One step of the rows' streams; what they drew is read by [`FrameState::tokens`].
    pub fn step(&self, exec: &mut Exec, state: &mut FrameState, rows: &mut [FrameRow]) {
        self.run(exec, state, rows, None);
    }

    /// As [`FrameLm::step`], showing the logits of every draw: its number, the slots of the rows, and their logits. The
    /// text's is 0.
    pub fn step_watched(
        &self,
        exec: &mut Exec,
        state: &mut FrameState,
        rows: &mut [FrameRow],
        watch: DrawWatch<'_>,
    ) {
        self.run(exec, state, rows, Some(watch));
    }

    fn run(
        &self,
        exec: &mut Exec,
        state: &mut FrameState,
        rows: &mut [FrameRow],
        mut watch: Option<DrawWatch<'_>>,
    ) {
        // Those with codes are the first rows, those with most of them first; who looks at the same is side by side.
        rows.sort_by_key(|r| (usize::MAX - r.codes, r.source, r.slot));
        let audio = rows.partition_point(|r| r.codes > 0);
        let nulls =
            |rows: &[FrameRow]| -> Vec<usize> { rows.iter().filter_map(|r| Some(r.guide?.0)).collect() };
        let of = |rows: &[FrameRow]| -> Vec<usize> { rows.iter().map(|r| r.slot).collect() };
        // The depth transformer's rows come first, those that it guides away from among them.
        let (speak, wait) = rows.split_at(audio);
        let live: Vec<usize> = [of(speak), nulls(speak), of(wait), nulls(wait)].concat();
        if let Some(cross) = &mut state.lm.decoder.cross {
            look(cross, rows);
        }
        // Text that does not depend on the draw needs none.
        let draws_text = watch.is_some() || rows.iter().any(|r| r.branch.is_none_or(|b| b.free));
        match draws_text {
            true => self.lm.step(exec, &mut state.lm, &live),
            false => self.lm.step_rows(exec, &mut state.lm, &live),
        }
        if let Some(watch) = &mut watch {
            watch(0, &live, state.lm.logits(exec, live.len()));
        }
        self.draw_text(exec, state, &live, rows, draws_text);
        state.halfway = Instant::now();
        let draws = self.draws();
        let audio: Vec<DepthRow> = speak
            .iter()
            .map(|r| {
                let step = state.steps[r.slot].wrapping_mul(draws).wrapping_add(1);
                let first = SampleRow { slot: r.slot, step, sampling: r.audio };
                DepthRow { first, codes: r.codes, guide: r.guide }
            })
            .collect();
        if !audio.is_empty() {
            let (lm, column) = (&mut state.lm, self.lm.audio());
            let mut seen = watch.map(|watch| {
                |step: usize, logits: &[f32]| {
                    let rows = audio.partition_point(|r| r.codes > step);
                    watch(step + 1, &live[..rows], logits);
                }
            });
            let seen = seen.as_mut().map(|seen| seen as &mut dyn FnMut(usize, &[f32]));
            self.depth.draw(exec, &mut state.depth, &lm.x, &audio, column, &mut lm.tokens, seen);
        }
        live.iter().for_each(|&slot| state.steps[slot] = state.steps[slot].wrapping_add(1));
    }

    /// Draws of a step, so that each has a random number of its own.
    fn draws(&self) -> u32 {
        self.depth.codes() as u32 + 1
    }

    /// Draws the text of all live rows; what those without a condition draw, nobody looks at.
    fn draw_text(
        &self,
        exec: &mut Exec,
        state: &mut FrameState,
        live: &[usize],
        rows: &[FrameRow],
        draws_text: bool,
    ) {
        let draws: Vec<SampleRow> = live
            .iter()
            .map(|&slot| {
                let step = state.steps[slot].wrapping_mul(self.draws());
                let row = rows.iter().find(|r| r.slot == slot);
                SampleRow { slot, step, sampling: row.map_or_else(Sampling::default, |r| r.text) }
            })
            .collect();
        let lm = &mut state.lm;
        let Some(key) = rows.iter().find_map(|r| r.branch).map(|b| b.key) else {
            return self.lm.draw(exec, lm, &draws);
        };
        let drawn = self.lm.drawn();
        if draws_text {
            let op =
                SampleOp { logits: lm.logits.view(), rows: &draws, column: drawn, history: None, next: None };
            exec.sample(op, &mut lm.tokens);
        }
        let columns = self.lm.audio();
        let pairs = |of: fn(&Branch) -> TextPair| -> Vec<u32> {
            let none = [NONE; 2];
            rows.iter().flat_map(|r| r.branch.as_ref().map_or(none, of).into_iter().take(columns)).collect()
        };
        let (then, otherwise) = (pairs(|b| b.then), pairs(|b| b.otherwise));
        let slots: Vec<usize> = rows.iter().map(|r| r.slot).collect();
        let op = BranchOp { slots: &slots, drawn, key, column: TEXT, then: &then, otherwise: &otherwise };
        exec.branch_tokens(&op, &mut lm.tokens);
    }
}

/// Which sources the rows look at: neighbours that look at the same read it together.
fn look(cross: &mut CrossState, rows: &[FrameRow]) {
    cross.spans.clear();
    for r in rows {
        match cross.spans.last_mut() {
            Some(last) if last.slot == r.source => last.rows += 1,
            _ => cross.spans.push(Span { slot: r.source, rows: 1 }),
        }
    }
}

impl FrameState {
    /// Takes the memory of keys and values now, so that lack of it is known before a stream starts.
    pub fn reserve(&mut self, exec: &mut Exec) -> Result<(), CudaError> {
        self.lm.reserve(exec)?;
        match &mut self.lm.decoder.cross {
            Some(cross) => exec.reserve_cache(&mut cross.cache),
            None => Ok(()),
        }
    }

    /// When the last step on the host had drawn its text.
    pub fn halfway(&self) -> Instant {
        self.halfway
    }

    /// Puts what a source gave to all layers into one of the state's.
    pub fn set_source(&mut self, exec: &mut Exec, source: usize, from: &KvCache) {
        if let Some(cross) = &mut self.lm.decoder.cross {
            exec.copy_prefix(&mut cross.cache, source, from, 0, from.position(0));
        }
    }

    /// Sets tokens of slots from `column` on, as many for each.
    pub fn give(&mut self, exec: &mut Exec, slots: &[usize], column: usize, values: &[u32]) {
        self.lm.give(exec, slots, column, values);
    }

    /// Makes codebooks of the slot `without` nothing, and others those of `slot`.
    pub(super) fn forget(
        &mut self,
        exec: &mut Exec,
        model: &FrameLm,
        slot: usize,
        without: usize,
        (nothing, same): &(Vec<usize>, Vec<usize>),
    ) {
        let audio = model.lm.audio();
        nothing.iter().for_each(|k| self.give(exec, &[without], audio + k, &[NONE]));
        let moves: Vec<TokenMove> =
            same.iter().map(|k| TokenMove { from: [slot, audio + k], to: [without, audio + k] }).collect();
        exec.copy_tokens(&moves, &mut self.lm.tokens);
    }

    /// Copies tokens that a device may have into slots'.
    pub fn move_in(&mut self, exec: &mut Exec, from: &Tokens, moves: &[TokenMove]) {
        exec.move_tokens(from, moves, &mut self.lm.tokens);
    }

    /// Copies slots' tokens to where the next step does not write over them.
    pub fn move_out(&self, exec: &mut Exec, moves: &[TokenMove], to: &mut Tokens) {
        exec.move_tokens(&self.lm.tokens, moves, to);
    }

    /// From now on steps follow other work of the device, which is under way while they are asked for.
    pub fn follow(&mut self) {
        self.lm.follows = true;
    }

    /// Sends the tokens of every slot to the host, which [`Exec::receive_tokens`] waits for.
    pub fn send(&self, exec: &mut Exec, sent: &mut SentTokens) {
        exec.send_tokens(&self.lm.tokens, sent);
    }

    /// The tokens of every slot; waits for a device.
    pub fn tokens(&mut self, exec: &mut Exec) -> &Tokens {
        self.lm.tokens(exec)
    }

    /// Normed rows of the last step, in the order that the step gave its rows, to look at.
    pub fn hidden(&mut self, exec: &mut Exec, rows: usize) -> &[f32] {
        self.lm.hidden(exec, rows)
    }
}
