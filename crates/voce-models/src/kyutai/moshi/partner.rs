//! Slots of a dialogue model: a frame heard, a step of text and codes, a frame spoken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError, Sampling, SentTokens, Span, TokenMove, Tokens};
use voce_text::Detokenizer;

use super::family::{Common, Draws, LISTEN, SPEAK, THINK};
use crate::dialogue::{Partner, TalkRequest, Uttered};
use crate::kyutai::delays::Undelay;
use crate::kyutai::{FrameRow, FrameState, TEXT};
use crate::mimi::{MimiDecoderState, MimiTokenizerState};

/// A conversation in its slot.
struct Slot {
    text: Sampling,
    audio: Sampling,
    /// Steps of the language model so far.
    step: usize,
    /// Frames heard so far.
    heard: usize,
    undelay: Undelay,
    words: Detokenizer,
    /// Whether step 0 was in the last call, too.
    fresh: bool,
    /// What the last call says, until it is fetched.
    said: Option<Vec<u32>>,
}

/// Slots of a [`super::Moshi`].
pub(super) struct MoshiPartner {
    common: Arc<Common>,
    state: FrameState,
    encoder: MimiTokenizerState,
    decoder: MimiDecoderState,
    /// Codes that were heard: as many rows for each slot as a delay can look back, and one.
    heard: Tokens,
    /// What step 0 of a conversation drew, while step 1 goes on.
    first: Tokens,
    /// Codes of the last steps, as many rows for each slot; and those of the frame that a slot says.
    drawn: Tokens,
    spoken: Tokens,
    /// What a step drew, on its way to the host.
    sent: SentTokens,
    slots: Vec<Option<Slot>>,
    begun: Instant,
    /// When the host had drawn the last step's tokens, where it draws them itself.
    thought: Instant,
}

impl MoshiPartner {
    pub(super) fn new(common: Arc<Common>, slots: usize) -> Self {
        let rows = slots * (common.frames.config().max_delay() + 1);
        let mut state = common.frames.state(slots);
        // The device encodes a frame while the step that hears it is recorded.
        state.follow();
        Self {
            state,
            encoder: common.mimi.tokenizer().state(slots, slots, 1),
            decoder: common.mimi.decoder().state_for(slots, slots, 1),
            heard: Tokens::new(rows, common.mimi.tokenizer().codebooks(), 0),
            first: Tokens::new(slots, common.frames.config().dep_q + 1, 0),
            drawn: Tokens::new(rows, common.frames.config().dep_q, 0),
            // Codebooks that the model does not draw from are left out.
            spoken: Tokens::new(slots, common.mimi.decoder().codebooks(), u32::MAX),
            sent: SentTokens::default(),
            slots: (0..slots).map(|_| None).collect(),
            begun: Instant::now(),
            thought: Instant::now(),
            common,
        }
    }

    /// The row of a slot's frame among those that were heard, or of a step among those that drew codes.
    fn row(&self, slot: usize, frame: usize) -> usize {
        let kept = self.common.frames.config().max_delay() + 1;
        slot * kept + frame % kept
    }

    /// One step of the language model for slots that have heard enough for it.
    fn think(&mut self, exec: &mut Exec, live: &[usize]) {
        let common = self.common.clone();
        let (c, audio) = (common.frames.config(), common.frames.lm().audio());
        let initial = common.frames.lm().initial();
        let mut moves = Vec::new();
        for &i in live {
            let Some(slot) = &self.slots[i] else { continue };
            // Streams that start later still see where they start from, whatever was drawn for them.
            if slot.step <= c.delays[TEXT] {
                self.state.give(exec, &[i], TEXT, &initial[TEXT..=TEXT]);
            }
            for k in 0..c.n_q {
                let column = audio + k;
                let delay = c.delays[k + 1];
                if slot.step <= delay {
                    self.state.give(exec, &[i], column, &initial[column..=column]);
                } else if k >= c.dep_q {
                    // The first frame is heard in two steps: step 0 sees no audio at all.
                    let frame = (slot.step - delay).saturating_sub(1);
                    moves.push(TokenMove { from: [self.row(i, frame), k - c.dep_q], to: [i, column] });
                }
            }
        }
        self.state.move_in(exec, &self.heard, &moves);
        let mut rows: Vec<FrameRow> = live
            .iter()
            .filter_map(|&slot| {
                let s = self.slots[slot].as_ref()?;
                Some(FrameRow {
                    slot,
                    text: s.text,
                    branch: None,
                    audio: s.audio,
                    codes: c.dep_q,
                    source: 0,
                    guide: None,
                })
            })
            .collect();
        common.frames.step(exec, &mut self.state, &mut rows);
        moves.clear();
        for &i in live {
            let Some(slot) = &self.slots[i] else { continue };
            let row = self.row(i, slot.step);
            moves.extend((0..c.dep_q).map(|k| TokenMove { from: [i, audio + k], to: [row, k] }));
        }
        self.state.move_out(exec, &moves, &mut self.drawn);
        for &i in live {
            if let Some(slot) = &mut self.slots[i] {
                slot.step += 1;
            }
        }
    }

    /// Step 0 of conversations that are new: it hears nothing, and what it drew is kept aside for [`Self::collect`].
    fn think_first(&mut self, exec: &mut Exec, new: &[usize]) {
        self.think(exec, new);
        let columns = self.columns();
        let moves: Vec<TokenMove> = new
            .iter()
            .flat_map(|&i| {
                columns.clone().enumerate().map(move |(k, c)| TokenMove { from: [i, c], to: [i, k] })
            })
            .collect();
        self.state.move_out(exec, &moves, &mut self.first);
        for &i in new {
            if let Some(slot) = &mut self.slots[i] {
                slot.fresh = true;
            }
        }
    }

    /// Columns of what a step draws: text and codes.
    fn columns(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let (codes, audio) = (self.common.frames.config().dep_q, self.common.frames.lm().audio());
        std::iter::once(TEXT).chain(audio..audio + codes)
    }

    /// What the last call drew, for each live slot.
    fn collect(&mut self, exec: &mut Exec, live: &[usize]) {
        let columns = self.columns();
        if live.iter().any(|&i| self.slots[i].as_ref().is_some_and(|s| s.fresh)) {
            exec.fetch_tokens(&mut self.first);
        }
        let tokens = exec.receive_tokens(&mut self.sent);
        let width = tokens.len() / self.slots.len();
        for &i in live {
            let Some(slot) = &mut self.slots[i] else { continue };
            if std::mem::take(&mut slot.fresh) {
                slot.undelay.push(self.first.row(i));
            }
            let drawn: Vec<u32> = columns.clone().map(|c| tokens[i * width + c]).collect();
            slot.said = slot.undelay.push(&drawn);
        }
    }

    /// Begins to decode the frames that are complete with the last step, without a look at their codes.
    fn speak(&mut self, exec: &mut Exec, live: &[usize]) {
        let config = self.common.frames.config();
        let longest = config.max_delay();
        let (mut slots, mut moves) = (Vec::new(), Vec::new());
        for &i in live {
            let Some(slot) = self.slots[i].as_ref().filter(|s| s.step > longest) else { continue };
            slots.push(i);
            let oldest = slot.step - 1 - longest;
            let from = |k: usize| [self.row(i, oldest + config.delays[k + 1]), k];
            moves.extend((0..config.dep_q).map(|k| TokenMove { from: from(k), to: [i, k] }));
        }
        if slots.is_empty() {
            return;
        }
        exec.move_tokens(&self.drawn, &moves, &mut self.spoken);
        self.common.mimi.decoder().begin_found(exec, &mut self.decoder, &slots, &self.spoken, 0);
    }

    /// A frame of silence in every slot of `live`, which are left as they were found: unused.
    fn rehearse(&mut self, exec: &mut Exec, live: &[usize]) {
        let silence = vec![0.0; live.len() * self.common.mimi.tokenizer().frame_size()];
        live.iter().for_each(|&slot| self.start(exec, slot, &TalkRequest::default()));
        for _ in 0..2 {
            self.step(exec, live, &silence);
            self.fetch(exec, live, &mut Vec::new());
        }
        live.iter().for_each(|&slot| self.free(slot));
    }
}

impl Partner for MoshiPartner {
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        self.state.reserve(exec)?;
        let all: Vec<usize> = (0..self.slots.len()).collect();
        Ok(exec.rehearse(|exec| self.rehearse(exec, &all))?)
    }

    fn start(&mut self, exec: &mut Exec, slot: usize, request: &TalkRequest) {
        let common = self.common.clone();
        let config = common.frames.config();
        let draws = Draws::new(config, request);
        let sampling =
            |temperature, top_k| Sampling { temperature, top_k, seed: request.seed, ..Sampling::default() };
        common.frames.start(exec, &mut self.state, slot, &common.conditions());
        self.encoder.reset(slot);
        self.decoder.reset(slot);
        self.slots[slot] = Some(Slot {
            text: sampling(draws.text_temperature, draws.text_top_k),
            audio: sampling(draws.temperature, draws.top_k),
            step: 0,
            heard: 0,
            undelay: Undelay::new(&config.delays[..=config.dep_q], config.max_delay()),
            words: common.tokenizer.detokenizer(),
            fresh: false,
            said: None,
        });
    }

    fn step(&mut self, exec: &mut Exec, live: &[usize], samples: &[f32]) {
        self.begun = Instant::now();
        let spans: Vec<Span> = live.iter().map(|&slot| Span { slot, rows: 1 }).collect();
        let frame = |i: &usize| self.slots[*i].as_ref().map_or(0, |s| s.heard);
        let rows: Vec<usize> = live.iter().map(|i| self.row(*i, frame(i))).collect();
        let tokenizer = self.common.mimi.tokenizer();
        tokenizer.encode(exec, &mut self.encoder, &spans, samples, &rows, &mut self.heard, 0);
        // A device begins with it while the rest is still being asked for.
        exec.begin();
        // Who is new has a step before the first that hears anything. It waits for nothing but itself.
        let new: Vec<usize> =
            live.iter().copied().filter(|&i| self.slots[i].as_ref().is_some_and(|s| s.step == 0)).collect();
        if !new.is_empty() {
            self.think_first(exec, &new);
        }
        self.think(exec, live);
        self.thought = Instant::now();
        self.state.send(exec, &mut self.sent);
        self.speak(exec, live);
        exec.begin();
    }

    fn fetch(
        &mut self,
        exec: &mut Exec,
        live: &[usize],
        out: &mut Vec<Uttered>,
    ) -> Vec<(&'static str, Duration)> {
        self.collect(exec, live);
        let thought = if exec.shares_memory() { self.thought } else { Instant::now() };
        let decoder = self.common.mimi.decoder();
        let size = decoder.frame_size();
        let speaks = live.iter().any(|&i| self.slots[i].as_ref().is_some_and(|s| s.said.is_some()));
        let samples = if speaks { decoder.finish_decode(exec, &mut self.decoder) } else { &[] };
        let config = self.common.frames.config();
        let silent = [config.existing_text_padding_id, config.existing_text_end_padding_id];
        let mut frames = samples.chunks_exact(size);
        for &i in live {
            let Some(slot) = &mut self.slots[i] else {
                out.push(Uttered::default());
                continue;
            };
            slot.heard += 1;
            let Some(said) = slot.said.take() else {
                out.push(Uttered::default());
                continue;
            };
            let text = if silent.contains(&said[0]) { String::new() } else { slot.words.push(said[0]) };
            let samples = frames.next().map_or_else(Vec::new, <[f32]>::to_vec);
            out.push(Uttered { samples, text, tokens: said, ended: false });
        }
        let now = Instant::now();
        vec![(LISTEN, Duration::ZERO), (THINK, thought - self.begun), (SPEAK, now - thought)]
    }

    fn free(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    fn warm(&mut self, exec: &mut Exec) {
        self.rehearse(exec, &[0]);
    }
}
