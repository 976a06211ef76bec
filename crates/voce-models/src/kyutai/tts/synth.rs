//! Slots of a model that speaks: text goes in word by word, codes come out some steps later.

use std::sync::Arc;
use std::time::Instant;

use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError, Sampling};

use super::family::Common;
use super::machine::Entry;
use super::passage::PassageState;
use super::voice::{MAX_SPEAKERS, MAX_VOICE_ROWS, Voice as Speaker};
use crate::kyutai::{FrameRow, FrameState, NONE, TEXT};
use crate::speech::{Frame, Line, Made, PassageEnd, Prompt, SpeakRequest, StepTimes, Synth, Voice};

/// Steps of text alone that newcomers may take after each step that others speak in: their audio starts sooner.
const INTERLEAVED: usize = 2;

/// A passage in its slot.
struct Slot {
    passage: PassageState,
    text: Sampling,
    audio: Sampling,
    source: usize,
    /// How far it is guided away from what it would be without text and voice.
    guidance: Option<f32>,
    open: bool,
    /// It goes on in silence when all of it was spoken.
    endless: bool,
    made: usize,
    limit: Option<usize>,
}

/// Whose rows a source holds, and how many slots look at it.
#[derive(Default)]
struct Source {
    of: Option<Arc<Speaker>>,
    filled: bool,
    users: usize,
}

/// Slots of a [`super::KyutaiTts`].
pub(super) struct KyutaiSynth {
    common: Arc<Common>,
    state: FrameState,
    slots: Vec<Option<Slot>>,
    sources: Vec<Source>,
    rows: Vec<FrameRow>,
    begun: Instant,
}

impl KyutaiSynth {
    pub(super) fn new(common: Arc<Common>, slots: usize) -> Self {
        let (frames, looks) = (&common.frames, common.sources.is_some());
        // A stream that is guided has a second slot, after those of all streams.
        let state = match looks {
            true => frames.looking_state(slots, slots, MAX_SPEAKERS * MAX_VOICE_ROWS),
            false => frames.state(if common.guides { 2 * slots } else { slots }),
        };
        let sources = (0..if looks { slots } else { 0 }).map(|_| Source::default()).collect();
        let slots = (0..slots).map(|_| None).collect();
        Self { state, slots, sources, rows: Vec::new(), begun: Instant::now(), common }
    }

    /// The source that holds a voice's rows: one that others look at already, or a free one that is filled now.
    fn source(&mut self, exec: &mut Exec, voice: Option<&Arc<Speaker>>) -> usize {
        let Some(makes) = &self.common.sources else { return 0 };
        let same = |s: &Source| match (&s.of, voice) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        let found = self.sources.iter().position(|s| s.filled && same(s));
        // There are as many sources as slots, so one is free whenever a slot is.
        let place = found.or_else(|| self.sources.iter().position(|s| !s.filled));
        let place = place.or_else(|| self.sources.iter().position(|s| s.users == 0)).unwrap_or_default();
        if found.is_none() {
            match voice.and_then(|v| v.source()) {
                Some(rows) => self.state.set_source(exec, place, rows),
                None => {
                    let nobody = makes.nobody(exec, self.common.frames.lm(), MAX_VOICE_ROWS);
                    self.state.set_source(exec, place, &nobody);
                }
            }
            let source = &mut self.sources[place];
            (source.of, source.filled) = (voice.cloned(), true);
        }
        self.sources[place].users += 1;
        place
    }

    fn begin_one(&mut self, exec: &mut Exec, prompt: &Prompt) {
        let common = self.common.clone();
        let voice = match &prompt.voice {
            Some(Voice::Looked(voice)) => Some(voice),
            _ => None,
        };
        self.free(prompt.slot);
        let source = self.source(exec, voice);
        let conditions = common.conditions(&prompt.request);
        common.frames.start(exec, &mut self.state, prompt.slot, &conditions);
        let guidance = common.guidance(&prompt.request);
        if guidance.is_some() {
            common.frames.start(exec, &mut self.state, self.slots.len() + prompt.slot, &[]);
        }
        let codes = prompt.request.codebooks.unwrap_or(common.frames.depth().codes());
        let prefix = voice.map_or_else(Vec::new, |v| v.codes().to_vec());
        let mut passage = PassageState::new(common.rules, &common.timing, codes, prefix);
        feed(&mut passage, &prompt.line);
        let (text, audio) = common.draws(&prompt.request, prompt.number);
        let (open, limit) = (prompt.line.open, prompt.limit);
        let endless = prompt.request.eos_threshold == Some(f32::INFINITY);
        self.slots[prompt.slot] =
            Some(Slot { passage, text, audio, source, guidance, open, endless, made: 0, limit });
    }

    /// Enqueues one step of slots.
    fn enqueue(&mut self, exec: &mut Exec, live: &[usize]) {
        let common = self.common.clone();
        let column = common.frames.lm().audio();
        self.rows.clear();
        for &i in live {
            let Some(slot) = &self.slots[i] else { continue };
            for (first, codes) in slot.passage.overrides(&common.timing) {
                self.state.give(exec, &[i], column + first, &codes);
            }
            let without = self.slots.len() + i;
            if slot.guidance.is_some() {
                self.state.forget(exec, &common.frames, i, without, &slot.passage.without(&common.timing));
                if slot.passage.is_second() {
                    self.state.give(exec, &[without], TEXT, &[NONE]);
                }
            }
            self.rows.push(FrameRow {
                slot: i,
                text: slot.text,
                branch: Some(slot.passage.branch()),
                audio: slot.audio,
                codes: slot.passage.draws(&common.timing),
                source: slot.source,
                guide: slot.guidance.map(|by| (without, by)),
            });
        }
        if !self.rows.is_empty() {
            common.frames.step(exec, &mut self.state, &mut self.rows);
            exec.begin();
        }
    }

    /// What the last step drew, for each of its slots.
    fn collect(&mut self, exec: &mut Exec, live: &[usize], out: &mut Vec<Made>) {
        let common = self.common.clone();
        let (audio, all) = (common.frames.lm().audio(), common.frames.depth().codes());
        let drawn = common.frames.lm().columns();
        let tokens = self.state.tokens(exec);
        for &i in live {
            let Some(slot) = &mut self.slots[i] else {
                out.push(Made { end: Some(PassageEnd::Spoken), ..Made::default() });
                continue;
            };
            let row = tokens.row(i);
            let whole = slot.passage.take(&common.timing, row[drawn], &row[audio..audio + all]);
            slot.made += usize::from(whole.is_some());
            let limit = slot.limit.is_some_and(|n| slot.made >= n).then_some(PassageEnd::Limit);
            let over = slot.passage.is_over(&common.timing) && !slot.endless;
            let end = over.then_some(PassageEnd::Spoken).or(limit);
            let (frame, words) = whole.map_or((None, Vec::new()), |w| (Some(Frame::Codes(w.codes)), w.words));
            out.push(Made { frame, words, end });
        }
    }

    /// Steps of text alone for those whose audio has not started, while others speak.
    fn hurry(&mut self, exec: &mut Exec, live: &[usize]) {
        let common = self.common.clone();
        let leads = |s: &Slot| s.passage.leads(&common.timing);
        let speaks = live.iter().any(|&i| self.slots[i].as_ref().is_some_and(|s| !leads(s)));
        for _ in 0..if speaks { INTERLEAVED } else { 0 } {
            let new: Vec<usize> = live
                .iter()
                .copied()
                .filter(|&i| self.slots[i].as_ref().is_some_and(leads) && !self.wants_text(i))
                .collect();
            if new.is_empty() {
                return;
            }
            self.enqueue(exec, &new);
            // A step of text alone makes no frame and ends nothing.
            self.collect(exec, &new, &mut Vec::new());
        }
    }

    /// Steps of every slot, which nobody hears.
    fn rehearse(&mut self, exec: &mut Exec, slots: &[usize]) {
        for &slot in slots {
            let line = Line { open: true, ..Line::default() };
            let request = Arc::new(SpeakRequest::default());
            self.begin_one(exec, &Prompt { slot, line, voice: None, request, number: 0, limit: None });
        }
        for _ in 0..self.common.timing.lead + 2 {
            self.enqueue(exec, slots);
            self.collect(exec, slots, &mut Vec::new());
        }
        slots.iter().for_each(|&slot| self.free(slot));
    }
}

/// Gives a passage the words of a line.
fn feed(passage: &mut PassageState, line: &Line) {
    let mut from = 0;
    for word in &line.words {
        let tokens = line.tokens[from..from + word.tokens].to_vec();
        from += word.tokens;
        passage.machine.push(Entry { text: word.text.clone(), tokens, padding: word.pause });
    }
}

impl Synth for KyutaiSynth {
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        if exec.shares_memory() {
            return Ok(Reserved::default());
        }
        self.state.reserve(exec)?;
        if let Some(sources) = &self.common.sources {
            sources.nobody(exec, self.common.frames.lm(), MAX_VOICE_ROWS);
        }
        let all: Vec<usize> = (0..self.slots.len()).collect();
        let reserved = exec.rehearse(|exec| self.rehearse(exec, &all))?;
        self.sources.iter_mut().for_each(|source| *source = Source::default());
        Ok(reserved)
    }

    fn begin(&mut self, exec: &mut Exec, prompts: &[Prompt]) -> Result<(), RuntimeError> {
        prompts.iter().for_each(|prompt| self.begin_one(exec, prompt));
        Ok(())
    }

    fn feed(&mut self, slot: usize, line: Line) {
        let Some(slot) = &mut self.slots[slot] else { return };
        slot.open = line.open;
        feed(&mut slot.passage, &line);
    }

    fn wants_text(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_some_and(|s| s.open && s.passage.is_short())
    }

    fn step(&mut self, exec: &mut Exec, live: &[usize]) {
        self.begun = Instant::now();
        self.enqueue(exec, live);
    }

    fn fetch(&mut self, exec: &mut Exec, live: &[usize], out: &mut Vec<Made>) -> StepTimes {
        let drawn = self.state.halfway();
        self.collect(exec, live, out);
        // A device's time is told as a whole: the host only knows when it asked for it.
        let now = Instant::now();
        let halfway = if exec.shares_memory() { drawn.clamp(self.begun, now) } else { now };
        self.hurry(exec, live);
        let now = Instant::now();
        vec![(super::family::BACKBONE, halfway - self.begun), (super::family::DEPTH, now - halfway)]
    }

    fn free(&mut self, slot: usize) {
        if let Some(slot) = self.slots[slot].take()
            && let Some(source) = self.sources.get_mut(slot.source)
        {
            source.users = source.users.saturating_sub(1);
        }
    }

    fn warm(&mut self, exec: &mut Exec) {
        // Before the first voice there is nothing to look at, and nothing that could have cooled down.
        if self.sources.is_empty() || self.sources.iter().any(|s| s.filled) {
            self.rehearse(exec, &[0]);
        }
    }
}
