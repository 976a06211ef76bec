//! Slots of the talker: prompts in, the codes of a frame a step out, until the model says that it is done.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError, SentTokens};
use voce_text::Tokenizer;

use super::config::{GenerationConfig, QwenConfig};
use super::prompt::{Ask, Layout, Who};
use super::talker::{Draws, Talker};
use super::voice::Voice as Speaker;
use crate::decoder::{FramePrompt, FrameRow, FrameShape, FrameState};
use crate::speech::{Frame, Line, Made, PassageEnd, Prompt, StepTimes, Synth, TextMode, Voice};

/// Positions of a cache are a multiple of this, so that it seldom has to grow.
const POSITION_STEP: usize = 128;
/// Positions that every slot of a device has from the start: a clip of ten seconds, a passage and its frames.
const RESERVED_POSITIONS: usize = 768;
/// Rows of prompts that go through the layers at once: on a CPU, and of each slot and of all on a device.
const PREFILL_ROWS: usize = 64;
const DEVICE_PREFILL_ROWS: usize = 1024;
/// Frames that a token of text may take at most, and frames that every passage may take besides: two seconds a token.
const FRAMES_PER_TOKEN: usize = 25;
/// Frames that a token takes as a rule, a generous one.
const USUAL_FRAMES_PER_TOKEN: usize = 8;

/// What all passages of a model share.
pub(super) struct Common {
    pub config: QwenConfig,
    pub generation: GenerationConfig,
    pub talker: Talker,
    pub tokenizer: Tokenizer,
    /// Tokens that begin the message whose text is spoken.
    pub role: Vec<u32>,
}

/// A passage in its slot.
struct Slot {
    draws: Draws,
    made: usize,
    /// Frames at most, and whether more text allows more.
    limit: usize,
    fixed: bool,
    /// Positions before the first frame.
    prompt: usize,
    /// Text beside the frames to come, and the token beside the last one.
    trailing: VecDeque<u32>,
    beside: u32,
    /// Whether more text may come.
    open: bool,
    /// The first frame was asked for.
    stepped: bool,
    /// A passage whose prompt waits for more text.
    waiting: Option<Waiting>,
}

/// What a prompt is made of.
struct Waiting {
    text: Vec<u32>,
    instruct: Vec<u32>,
    language: Option<u32>,
    voice: Option<Arc<Speaker>>,
    mode: TextMode,
}

impl Waiting {
    fn ask<'a>(&'a self, role: &'a [u32], open: bool) -> Ask<'a> {
        Ask {
            text: &self.text,
            open,
            instruct: &self.instruct,
            role,
            language: self.language,
            who: self.voice.as_ref().map_or(Who::Nobody, |voice| voice.who()),
            mode: self.mode,
        }
    }

    /// Whether the text that a prompt needs is there.
    fn is_ready(&self, common: &Common, open: bool) -> bool {
        !open || self.text.len() >= self.ask(&common.role, open).paired(common.talker.groups()).max(1)
    }
}

/// Slots of a [`Talker`].
pub(super) struct QwenSynth {
    common: Arc<Common>,
    state: Option<FrameState>,
    slots: Vec<Option<Slot>>,
    rows: Vec<FrameRow>,
    /// Slots of a step that found no memory.
    full: Vec<usize>,
    /// Steps that were not fetched yet, and their codes on the way.
    steps: VecDeque<Step>,
    sent: SentTokens,
    fetched: Instant,
}

/// A step until it is fetched.
struct Step {
    begun: Instant,
    /// When a CPU had drawn the first code.
    halfway: Option<Instant>,
    /// How each live slot ends by itself, if it does, and whether it was stepped.
    slots: Vec<(Option<PassageEnd>, bool)>,
}

impl QwenSynth {
    pub(super) fn new(common: Arc<Common>, slots: usize) -> Self {
        Self {
            common,
            state: None,
            slots: (0..slots).map(|_| None).collect(),
            rows: Vec::with_capacity(slots),
            full: Vec::new(),
            steps: VecDeque::new(),
            sent: SentTokens::default(),
            fetched: Instant::now(),
        }
    }

    /// Makes the cache hold passages of this many positions.
    fn make_room(&mut self, exec: &mut Exec, positions: usize) -> Result<(), RuntimeError> {
        let positions = positions.next_multiple_of(POSITION_STEP);
        let frames = self.common.talker.frames();
        match &mut self.state {
            Some(state) if state.capacity() >= positions => Ok(()),
            Some(state) => frames.grow(exec, state, positions),
            None => {
                let slots = self.slots.len();
                let prefill = match exec.wants_batches() {
                    true => DEVICE_PREFILL_ROWS.min(slots * PREFILL_ROWS),
                    false => PREFILL_ROWS,
                };
                self.state = Some(frames.state(FrameShape { slots, positions, prefill }));
                Ok(())
            }
        }
    }

    /// Frames that a passage may have after a prompt of `prompt` positions.
    fn limit(&self, tokens: usize, prompt: usize) -> usize {
        let by_text = FRAMES_PER_TOKEN.saturating_mul(tokens + 1);
        let by_model = self.common.generation.max_new_tokens.saturating_sub(1);
        let by_positions = self.common.config.positions().saturating_sub(prompt);
        by_text.min(by_model).min(by_positions).max(1)
    }

    /// What a line is to be spoken as.
    fn waiting(&self, prompt: &Prompt) -> Waiting {
        let common = &*self.common;
        let request = &prompt.request;
        let voice = match &prompt.voice {
            Some(Voice::Prompt(voice)) => Some(voice.clone()),
            _ => None,
        };
        let asked =
            request.language.as_deref().map(crate::speech::language_name).filter(|name| name != super::AUTO);
        let asked = asked.as_deref();
        let language = match &voice {
            Some(voice) => voice.language(&common.config, asked),
            None => asked.and_then(|name| common.config.talker_config.codec_language_id.get(name)).copied(),
        };
        let instruct = request.instruct.as_deref().filter(|text| !text.is_empty());
        let instruct = instruct.filter(|_| common.config.takes_instructions());
        Waiting {
            text: prompt.line.tokens.clone(),
            instruct: instruct.map_or_else(Vec::new, |text| super::instruction(&common.tokenizer, text)),
            language,
            voice,
            mode: super::text_mode(&common.config, request),
        }
    }

    /// Runs the prompts of slots, whose text is there, as few passes as their rows allow.
    fn prefill(&mut self, exec: &mut Exec, ready: Vec<(usize, Waiting, Layout)>) {
        let Some(state) = &mut self.state else { return };
        let prompts: Vec<FramePrompt<'_>> = ready
            .iter()
            .map(|(slot, waiting, layout)| {
                let embedding = waiting.voice.as_ref().and_then(|voice| voice.embedding());
                FramePrompt { slot: *slot, rows: &layout.rows, vector: layout.speaker.zip(embedding) }
            })
            .collect();
        self.common.talker.frames().begin(exec, state, &prompts);
        let columns = self.common.talker.groups() + 1;
        for (i, _, layout) in ready {
            let Some(slot) = &mut self.slots[i] else { continue };
            slot.prompt = layout.rows.len() / columns;
            slot.beside = layout.rows.last().copied().unwrap_or_default();
            slot.trailing = layout.trailing.into();
        }
    }

    /// Gives slots whose prompts waited for text their place in the cache. Those without memory end.
    fn begin_waiting(&mut self, exec: &mut Exec, live: &[usize]) {
        let common = self.common.clone();
        for &i in live {
            let Some(slot) = &mut self.slots[i] else { continue };
            let Some(waiting) = slot.waiting.take() else { continue };
            let layout = waiting.ask(&common.role, slot.open).layout(&common.config);
            let positions = layout.rows.len() / (common.talker.groups() + 1) + 1;
            match self.make_room(exec, positions) {
                Ok(()) => self.prefill(exec, vec![(i, waiting, layout)]),
                Err(_) => self.full.push(i),
            }
        }
    }
}

impl Synth for QwenSynth {
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        if exec.shares_memory() {
            return Ok(Reserved::default());
        }
        self.make_room(exec, RESERVED_POSITIONS)?;
        let Some(state) = &mut self.state else { return Ok(Reserved::default()) };
        let talker = &self.common.talker;
        let rows = talker.nothing().repeat(PREFILL_ROWS);
        let vector = vec![0.0; self.common.config.hidden()];
        let slots = 0..self.slots.len();
        let prompt = |slot| FramePrompt { slot, rows: &rows, vector: Some((0, &vector[..])) };
        let prompts: Vec<FramePrompt<'_>> = slots.clone().map(prompt).collect();
        let draws = talker.draws(&self.common.generation, &crate::speech::SpeakRequest::default(), 0);
        let live: Vec<FrameRow> = slots.clone().map(|slot| talker.row(slot, &draws, 0)).collect();
        let texts = vec![0; live.len()];
        let all: Vec<usize> = slots.collect();
        // Everybody begins at once, and speaks: no step is larger.
        Ok(exec.rehearse(|exec| {
            for _ in 0..2 {
                talker.frames().begin(exec, state, &prompts);
                state.give(exec, &all, talker.groups(), &texts);
                talker.frames().step(exec, state, &live);
                state.tokens(exec);
            }
        })?)
    }

    fn begin(&mut self, exec: &mut Exec, prompts: &[Prompt]) -> Result<(), RuntimeError> {
        let common = self.common.clone();
        let columns = common.talker.groups() + 1;
        let (mut ready, mut waiting) = (Vec::new(), Vec::new());
        let mut positions = 1;
        for prompt in prompts {
            let asked = self.waiting(prompt);
            if !asked.is_ready(&common, prompt.line.open) {
                waiting.push((prompt, asked));
                continue;
            }
            let layout = asked.ask(&common.role, prompt.line.open).layout(&common.config);
            let (rows, tokens) = (layout.rows.len() / columns, prompt.line.tokens.len());
            let usual = USUAL_FRAMES_PER_TOKEN * (tokens + 1);
            positions = positions.max(rows + prompt.limit.map_or(usual, |n| n.min(usual)) + 1);
            ready.push((prompt, asked, layout));
        }
        self.make_room(exec, positions)?;
        let slot = |prompt: &Prompt, rows: usize, waiting| Slot {
            draws: common.talker.draws(&common.generation, &prompt.request, prompt.number),
            made: 0,
            limit: match prompt.limit {
                Some(n) => n.min(common.config.positions().saturating_sub(rows)).max(1),
                None => self.limit(prompt.line.tokens.len(), rows),
            },
            fixed: prompt.limit.is_some(),
            prompt: rows,
            trailing: VecDeque::new(),
            beside: 0,
            open: prompt.line.open,
            stepped: false,
            waiting,
        };
        let mut slots: Vec<(usize, Slot)> =
            ready.iter().map(|(p, _, layout)| (p.slot, slot(p, layout.rows.len() / columns, None))).collect();
        slots.extend(waiting.into_iter().map(|(p, asked)| (p.slot, slot(p, 0, Some(asked)))));
        slots.into_iter().for_each(|(i, slot)| self.slots[i] = Some(slot));
        self.prefill(exec, ready.into_iter().map(|(p, asked, layout)| (p.slot, asked, layout)).collect());
        Ok(())
    }

    fn feed(&mut self, slot: usize, line: Line) {
        let eos = self.common.config.tts_eos_token_id;
        let more = FRAMES_PER_TOKEN.saturating_mul(line.tokens.len());
        let most = self.common.generation.max_new_tokens.saturating_sub(1);
        let Some(slot) = &mut self.slots[slot] else { return };
        if !slot.fixed {
            let room = self.common.config.positions().saturating_sub(slot.prompt);
            slot.limit = slot.limit.saturating_add(more).min(most).min(room).max(1);
        }
        slot.open = line.open;
        match &mut slot.waiting {
            Some(waiting) => waiting.text.extend(line.tokens),
            None => {
                slot.trailing.extend(line.tokens);
                slot.trailing.extend((!line.open).then_some(eos));
            }
        }
    }

    fn wants_text(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_some_and(|s| match &s.waiting {
            Some(waiting) => !waiting.is_ready(&self.common, s.open),
            None => s.open && s.stepped && s.trailing.is_empty(),
        })
    }

    fn runs_ahead(&self, exec: &Exec) -> bool {
        !exec.shares_memory()
    }

    fn step(&mut self, exec: &mut Exec, live: &[usize]) {
        let begun = Instant::now();
        self.full.clear();
        self.rows.clear();
        self.begin_waiting(exec, live);
        let longest = |state: &FrameState| live.iter().map(|&i| state.position(i)).max().unwrap_or_default();
        let (capacity, longest) = self.state.as_ref().map_or((0, 0), |s| (s.capacity(), longest(s)));
        let lacks = longest >= capacity && self.make_room(exec, capacity + capacity / 2).is_err();
        let common = self.common.clone();
        let mut step = Step { begun, halfway: None, slots: Vec::with_capacity(live.len()) };
        let (mut texts, mut changed) = (Vec::new(), Vec::new());
        for &i in live {
            let (Some(slot), Some(state)) = (&mut self.slots[i], &self.state) else {
                step.slots.push((Some(PassageEnd::NoMemory), false));
                continue;
            };
            if self.full.contains(&i) || lacks && state.position(i) >= capacity {
                step.slots.push((Some(PassageEnd::NoMemory), false));
                continue;
            }
            if slot.made >= slot.limit {
                // The step before was its last, which nobody has fetched yet.
                step.slots.push((Some(PassageEnd::Limit), false));
                continue;
            }
            if slot.stepped {
                let token = slot.trailing.pop_front().unwrap_or(common.config.tts_pad_token_id);
                if token != slot.beside {
                    slot.beside = token;
                    texts.push(token);
                    changed.push(i);
                }
            }
            slot.stepped = true;
            self.rows.push(common.talker.row(i, &slot.draws, slot.made));
            slot.made += 1;
            step.slots.push(((slot.made >= slot.limit).then_some(PassageEnd::Limit), true));
        }
        if let Some(state) = self.state.as_mut().filter(|_| !self.rows.is_empty()) {
            state.give(exec, &changed, common.talker.groups(), &texts);
            // A device that is still at the step before has no use for the first part of this one.
            exec.hold_back(!self.steps.is_empty());
            common.talker.frames().step(exec, state, &self.rows);
            exec.hold_back(false);
            state.send(exec, &mut self.sent);
            step.halfway = exec.shares_memory().then(|| state.halfway());
        }
        self.steps.push_back(step);
    }

    fn fetch(&mut self, exec: &mut Exec, live: &[usize], out: &mut Vec<Made>) -> StepTimes {
        let Some(step) = self.steps.pop_front() else { return StepTimes::new() };
        let (groups, eos) = (self.common.talker.groups(), self.common.talker.eos());
        let any = step.slots.iter().any(|(_, stepped)| *stepped);
        let tokens = if any { exec.receive_tokens(&mut self.sent) } else { &[] };
        for (&i, &(end, stepped)) in live.iter().zip(&step.slots) {
            let codes = tokens.chunks_exact(groups + 1).nth(i).map(|row| &row[..groups]);
            out.push(match codes.filter(|_| stepped) {
                Some(codes) if codes[0] == eos => Made { end: Some(PassageEnd::Spoken), ..Made::default() },
                Some(codes) => Made { frame: Some(Frame::Codes(codes.to_vec())), end, ..Made::default() },
                None => Made { end, ..Made::default() },
            });
        }
        // A device had the steps before to do first.
        let (begun, now) = (step.begun.max(self.fetched), Instant::now());
        self.fetched = now;
        let halfway = step.halfway.map_or(now, |at| at.clamp(begun, now));
        vec![(super::TALKER, halfway - begun), (super::PREDICTOR, now - halfway)]
    }

    fn free(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    fn warm(&mut self, exec: &mut Exec) {
        if self.make_room(exec, 1).is_err() {
            return;
        }
        let talker = &self.common.talker;
        let Some(state) = &mut self.state else { return };
        let draws = talker.draws(&self.common.generation, &crate::speech::SpeakRequest::default(), 0);
        let prompt = FramePrompt { slot: 0, rows: talker.nothing(), vector: None };
        talker.frames().begin(exec, state, &[prompt]);
        talker.frames().step(exec, state, &[talker.row(0, &draws, 0)]);
        state.tokens(exec);
    }
}
