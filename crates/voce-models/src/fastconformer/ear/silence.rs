//! Steps that nobody hears: to keep a model warm, and to take the memory that the largest steps need.

use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError};

use super::super::config::Attention;
use super::super::encoder::StreamShape;
use super::super::hearing::Wish;
use super::FastConformerEar;
use crate::hearing::{Ear, Heard, Heed, Planned, Reading, Rows, Verdict};
use crate::transducer::{MAX_BEAM, SearchOptions, SearchState};

/// Hypotheses of beams that a lane of a device has room for from the start.
pub(in crate::fastconformer) const HYPOTHESES: usize = 2048;
/// A beam that many streams may have at once.
pub(in crate::fastconformer) const USUAL_BEAM: usize = 4;
/// Steps of frames that a beam holds: those of its last step, and those that it has yet to pass.
pub(in crate::fastconformer) const HELD_STEPS: usize = 2;

/// Rows of silence.
struct Silence;

impl Rows for Silence {
    fn take(&self, _: &Planned, out: &mut [f32]) {
        out.fill(0.0);
    }
}

/// Somebody who does not listen, and looks at the rules in the middle of a step.
struct Deaf;

impl Heed for Deaf {
    fn until(&self, _: usize, left: usize) -> usize {
        left.div_ceil(2)
    }

    fn heard(&mut self, _: usize, _: Heard<'_>) -> Verdict {
        Verdict::GoOn
    }

    fn heard_whole(&mut self, _: usize, _: Heard<'_>) {}

    fn concluded(&mut self, _: usize, _: Heard<'_>, _: Vec<Reading>) {}

    fn word_ended(&mut self, _: usize, _: usize) {}

    fn pauses(&mut self, _: usize, _: &[f32]) {}
}

impl FastConformerEar {
    /// Runs a step of `frames` frames of silence of each of `streams` streams, and lets go of them.
    pub(super) fn run_silence(&mut self, exec: &mut Exec, streams: usize, frames: usize, wish: &Wish) {
        let streams = streams.clamp(1, self.room.slots);
        let (rows, closes) = (frames * self.factor(), self.is_offline());
        let plan = |slot| Planned { slot, kept: 0, rows, advance: 0, frames, closes };
        let planned: Vec<Planned> = (0..streams).map(plan).collect();
        planned.iter().for_each(|p| self.begin(p.slot, wish));
        self.take(exec, &planned, &Silence);
        self.encode(exec, &planned);
        self.decode(exec, &planned, &mut Deaf);
        let slots: Vec<usize> = (0..streams).collect();
        self.flush(exec, &slots, &mut Deaf);
        slots.into_iter().for_each(|slot| self.free(slot));
    }

    /// The wish of a stream with chunks of `chunk` frames and a beam.
    fn wish(&self, chunk: usize, beam: usize) -> Option<Wish> {
        let fresh = SearchState::new(&self.model.decoder, &SearchOptions::with_beam(beam)).ok()?;
        Some(Wish { shape: StreamShape { look_ahead: chunk - 1, language: 0 }, fresh, nbest: 0 })
    }

    /// Takes the memory of all slots and of every largest step: few streams of many frames each, many of few, and beams.
    pub(super) fn reserve_all(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        if exec.shares_memory() {
            return Ok(Reserved::default());
        }
        let model = self.model.clone();
        model.encoder.prepare(exec, &mut self.state, self.room.slot_frames)?;
        let room = self.room;
        let chunks = match &model.config.encoder.attention {
            Attention::Full => vec![room.slot_frames],
            Attention::Chunked { look_aheads, .. } => look_aheads.iter().map(|n| n + 1).collect(),
        };
        let longest = chunks.iter().max().copied().unwrap_or(1);
        // What takes most comes first: memory that grows is there twice for a moment.
        let beam = |beam| (room.frames.min(HYPOTHESES / beam * longest) / longest, longest, longest, beam);
        let mut sizes = vec![beam(MAX_BEAM), beam(USUAL_BEAM)];
        for &chunk in &chunks {
            let whole = room.slot_frames / chunk * chunk;
            sizes.push((room.frames / whole, whole, chunk, 1));
            sizes.push((room.frames / chunk, chunk, chunk, 1));
        }
        let (beams, hypotheses) =
            (room.slots.min(HYPOTHESES / USUAL_BEAM), HYPOTHESES.min(room.slots * MAX_BEAM));
        let reserved = exec.rehearse(|exec| {
            // A rehearsal counts what is missing, and goes on.
            let _ =
                self.search.make_room(exec, room.slots, hypotheses, HELD_STEPS * room.slot_frames * beams);
            for (streams, frames, chunk, beam) in sizes {
                let Some(wish) = self.wish(chunk, beam) else { continue };
                (0..2).for_each(|_| self.run_silence(exec, streams, frames, &wish));
            }
        })?;
        Ok(reserved)
    }

    /// Makes sure that a stream finds what its beam needs before it starts.
    pub(super) fn make_room_for(&mut self, exec: &mut Exec, wish: &Wish) -> Result<(), RuntimeError> {
        if exec.shares_memory() || !wish.has_beam() {
            return Ok(());
        }
        let others = || self.slots.iter().flatten().map(|s| &s.wish).filter(|w| w.has_beam()).chain([wish]);
        let hypotheses = others().map(|w| w.fresh.options().beam).sum();
        let frames = HELD_STEPS * self.room.slot_frames * others().count();
        self.search.make_room(exec, self.room.slots, hypotheses, frames)?;
        Ok(())
    }
}
