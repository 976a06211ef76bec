//! Slots of the flow language model: prompts in, a latent a step out, until the model says that it is done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use voce_nn::Watch;
use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError};

use super::flow_lm::{FlowLm, FlowLmState};
use super::noise::Noise;
use super::voice::Voice as Past;
use super::{MIN_FRAMES_BEFORE_EOS, max_frames};
use crate::speech::{Frame, Line, Made, PassageEnd, Prompt, StepTimes, Synth, Voice};

/// Positions of a cache are a multiple of this, so that it seldom has to grow.
const POSITION_STEP: usize = 128;
/// Positions that every slot of a device has from the start: a voice of half a minute, a passage of text and its frames.
const RESERVED_POSITIONS: usize = 768;
/// Tokens of each slot's text for which a device has memory from the start.
const RESERVED_TOKENS: usize = 64;

/// What a model's configuration says about every passage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub frame_rate: f64,
    pub temperature: f32,
    pub eos_threshold: f32,
}

/// A passage in its slot.
struct Slot {
    noise: Noise,
    /// Noise of the next frame, if it was drawn while a device made the last one.
    drawn: Vec<f32>,
    std: f32,
    noise_clamp: Option<f32>,
    steps: usize,
    eos_threshold: f32,
    made: usize,
    limit: usize,
    eos_step: Option<usize>,
    tail: usize,
}

impl Slot {
    fn draw(&mut self, out: &mut [f32]) {
        if self.drawn.is_empty() {
            return self.noise.fill(self.std, self.noise_clamp, out);
        }
        out.copy_from_slice(&self.drawn);
        self.drawn.clear();
    }

    /// What becomes of a frame whose EOS logit is `eos`.
    fn take(&mut self, latent: &[f32], eos: f32) -> Made {
        let t = self.made;
        if eos > self.eos_threshold && self.eos_step.is_none() && t >= MIN_FRAMES_BEFORE_EOS {
            self.eos_step = Some(t);
        }
        if self.eos_step.is_some_and(|e| t >= e + self.tail) {
            return Made { end: Some(PassageEnd::Spoken), ..Made::default() };
        }
        self.made += 1;
        let end = (self.made == self.limit).then_some(PassageEnd::Limit);
        Made { frame: Some(Frame::Latent(latent.to_vec())), end, ..Made::default() }
    }
}

/// Slots of a [`FlowLm`].
pub(super) struct PocketSynth {
    lm: Arc<FlowLm>,
    defaults: Defaults,
    /// Who speaks where nobody is named.
    nobody: Arc<Past>,
    /// Made with the first passage, when its length is known.
    state: Option<FlowLmState>,
    slots: Vec<Option<Slot>>,
    noise: Vec<f32>,
    /// Slots whose step is under way: those that share a number of sampler steps.
    group: Vec<usize>,
    /// What the step has made so far, by slot.
    made: Vec<(usize, Made)>,
    times: [Duration; 2],
    begun: Instant,
    through_backbone: Instant,
}

impl PocketSynth {
    pub(super) fn new(lm: Arc<FlowLm>, nobody: Arc<Past>, defaults: Defaults, slots: usize) -> Self {
        let now = Instant::now();
        Self {
            lm,
            defaults,
            nobody,
            state: None,
            slots: (0..slots).map(|_| None).collect(),
            noise: Vec::new(),
            group: Vec::with_capacity(slots),
            made: Vec::with_capacity(slots),
            times: [Duration::ZERO; 2],
            begun: now,
            through_backbone: now,
        }
    }

    /// Makes the cache hold passages of this many positions.
    fn make_room(&mut self, exec: &mut Exec, positions: usize) -> Result<(), RuntimeError> {
        let positions = positions.next_multiple_of(POSITION_STEP);
        match &mut self.state {
            Some(state) if state.capacity() >= positions => Ok(()),
            Some(state) => self.lm.grow(exec, state, positions),
            None => {
                self.state = Some(self.lm.state(self.slots.len(), positions));
                Ok(())
            }
        }
    }

    /// The first half of a step of some slots; afterwards a device works while the host draws noise for the next one.
    fn begin_group(&mut self, exec: &mut Exec, steps: usize) {
        let Self { lm, state, slots, noise, group, .. } = self;
        let Some(state) = state else { return };
        let latent = lm.latent_dim();
        noise.resize(group.len() * latent, 0.0);
        for (&i, out) in group.iter().zip(noise.chunks_exact_mut(latent)) {
            slots[i].as_mut().expect("live").draw(out);
        }
        self.begun = Instant::now();
        self.through_backbone = self.begun;
        // A look at the rows of a device would stop it.
        let host = exec.shares_memory();
        let mut through = self.begun;
        let mut watch = |_: usize, _: &[f32]| through = Instant::now();
        let watch: Watch<'_> = if host { Some(&mut watch) } else { None };
        lm.begin_step(exec, state, group, noise, steps, watch);
        self.through_backbone = through;
        if !host {
            for &i in group.iter() {
                let s = slots[i].as_mut().expect("live");
                s.drawn.resize(latent, 0.0);
                s.noise.fill(s.std, s.noise_clamp, &mut s.drawn);
            }
        }
    }

    fn finish_group(&mut self, exec: &mut Exec) {
        let Self { lm, state, slots, group, made, .. } = self;
        let Some(state) = state.as_mut().filter(|_| !group.is_empty()) else { return };
        let latent = lm.latent_dim();
        let out = lm.finish_step(exec, state, group.len());
        self.times[0] += self.through_backbone - self.begun;
        self.times[1] += self.through_backbone.elapsed();
        for (row, &i) in group.iter().enumerate() {
            let s = slots[i].as_mut().expect("live");
            made.push((i, s.take(&out.latents[row * latent..][..latent], out.eos.row(row)[0])));
        }
        group.clear();
    }
}

impl Synth for PocketSynth {
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        if exec.shares_memory() {
            return Ok(Reserved::default());
        }
        let slots = self.slots.len();
        let mut state = self.lm.state(slots, RESERVED_POSITIONS);
        let all: Vec<usize> = (0..slots).collect();
        let streams: Vec<_> = all.iter().map(|&slot| (slot, &*self.nobody)).collect();
        let text = [0; RESERVED_TOKENS];
        let texts: Vec<(usize, &[u32])> = all.iter().map(|&slot| (slot, &text[..])).collect();
        let noise = vec![0.0; slots * self.lm.latent_dim()];
        // Everybody begins at once, and speaks: no step is larger.
        let reserved = exec.rehearse(|exec| {
            for _ in 0..2 {
                self.lm.start_all(exec, &mut state, &streams);
                self.lm.prefill_texts(exec, &mut state, &texts);
                self.lm.step(exec, &mut state, &all, &noise, 1);
            }
        })?;
        self.state = Some(state);
        Ok(reserved)
    }

    fn begin(&mut self, exec: &mut Exec, prompts: &[Prompt]) -> Result<(), RuntimeError> {
        let guesses = prompts.iter().map(|p| max_frames(p.line.tokens.len(), self.defaults.frame_rate));
        let limits: Vec<usize> = guesses.collect();
        let past = |prompt: &Prompt| match &prompt.voice {
            Some(Voice::Past(voice)) => voice.clone(),
            _ => self.nobody.clone(),
        };
        let voices: Vec<Arc<Past>> = prompts.iter().map(past).collect();
        let positions = prompts.iter().zip(&limits).zip(&voices).map(|((p, &guess), voice)| {
            // What the text should take; a request with a limit of its own may grow beyond.
            voice.positions() + p.line.tokens.len() + p.limit.map_or(guess, |n| guess.min(n))
        });
        self.make_room(exec, positions.max().unwrap_or(1))?;
        for (prompt, guess) in prompts.iter().zip(limits) {
            let request = &prompt.request;
            let temperature = match request.greedy {
                true => 0.0,
                false => request.temperature.unwrap_or(self.defaults.temperature),
            };
            self.slots[prompt.slot] = Some(Slot {
                noise: Noise::new(request.seed, prompt.number),
                drawn: Vec::new(),
                std: temperature.sqrt(),
                noise_clamp: request.noise_clamp,
                steps: request.steps,
                eos_threshold: request.eos_threshold.unwrap_or(self.defaults.eos_threshold),
                made: 0,
                limit: prompt.limit.unwrap_or(guess),
                eos_step: None,
                tail: prompt.line.tail,
            });
        }
        let Some(state) = &mut self.state else { return Ok(()) };
        let streams: Vec<_> = prompts.iter().zip(&voices).map(|(p, voice)| (p.slot, &**voice)).collect();
        self.lm.start_all(exec, state, &streams);
        let texts: Vec<_> = prompts.iter().map(|p| (p.slot, &p.line.tokens[..])).collect();
        self.lm.prefill_texts(exec, state, &texts);
        Ok(())
    }

    fn feed(&mut self, _slot: usize, _line: Line) {
        unreachable!("lines of this family are never open");
    }

    fn wants_text(&self, _slot: usize) -> bool {
        false
    }

    fn step(&mut self, exec: &mut Exec, live: &[usize]) {
        self.made.clear();
        self.group.clear();
        self.times = [Duration::ZERO; 2];
        let Some((capacity, longest)) = self.state.as_ref().map(|state| {
            (state.capacity(), live.iter().map(|&i| state.position(i)).max().unwrap_or_default())
        }) else {
            return;
        };
        let full = longest >= capacity && self.make_room(exec, capacity + capacity / 2).is_err();
        let Self { state, slots, made, .. } = self;
        let has_room = |i: usize| !full || state.as_ref().is_some_and(|s| s.position(i) < capacity);
        let mut groups: Vec<usize> = Vec::new();
        for &i in live {
            if has_room(i) {
                groups.extend(slots[i].as_ref().map(|s| s.steps));
            } else {
                made.push((i, Made { end: Some(PassageEnd::NoMemory), ..Made::default() }));
            }
        }
        groups.sort_unstable();
        groups.dedup();
        for (n, &steps) in groups.iter().enumerate() {
            if n > 0 {
                self.finish_group(exec);
            }
            let Self { state, slots, group, .. } = self;
            let has_room = |i: usize| !full || state.as_ref().is_some_and(|s| s.position(i) < capacity);
            let mine = |i: &usize| slots[*i].as_ref().is_some_and(|s| s.steps == steps) && has_room(*i);
            group.extend(live.iter().copied().filter(mine));
            self.begin_group(exec, steps);
        }
    }

    fn fetch(&mut self, exec: &mut Exec, live: &[usize], out: &mut Vec<Made>) -> StepTimes {
        self.finish_group(exec);
        // In the order of `live`, which groups of several numbers of sampler steps are not in.
        if self.made.iter().map(|(i, _)| *i).ne(live.iter().copied()) {
            self.made.sort_by_key(|(i, _)| live.iter().position(|l| l == i));
        }
        out.extend(self.made.drain(..).map(|(_, made)| made));
        vec![("backbone", self.times[0]), ("head", self.times[1])]
    }

    fn free(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    fn warm(&mut self, exec: &mut Exec) {
        if self.make_room(exec, 1).is_err() {
            return;
        }
        let Some(state) = &mut self.state else { return };
        self.lm.start(exec, state, 0, &self.nobody);
        self.noise.clear();
        self.noise.resize(self.lm.latent_dim(), 0.0);
        self.lm.step(exec, state, &[0], &self.noise, 1);
    }
}
