//! From the encoder's frames to tokens: piece by piece where rules may end an utterance, or window by window.

use voce_runtime::{Buffer, Exec, Span};

use super::{FastConformerEar, Part, Slot};
use crate::hearing::{Heard, Heed, Planned, Reading, Verdict};
use crate::transducer::{Hypothesis, SearchState};

impl Slot {
    /// The readings that were asked for.
    fn readings(&self, found: &[Hypothesis]) -> Vec<Reading> {
        let reading = |h: &Hypothesis| Reading {
            tokens: h.tokens.iter().map(|t| t.id).collect(),
            score: h.score as f32,
        };
        found.iter().take(self.wish.nbest).map(reading).collect()
    }
}

impl FastConformerEar {
    /// Searches the frames of a step; a piece ends where a rule may end its utterance.
    pub(super) fn decode_pieces(&mut self, exec: &mut Exec, heed: &mut dyn Heed) {
        loop {
            for part in &mut self.parts {
                part.piece = heed.until(part.slot, part.rows - part.done);
            }
            if !self.search_pieces(exec) {
                return;
            }
            for k in 0..self.parts.len() {
                let Part { slot, piece, .. } = self.parts[k];
                self.parts[k].done += piece;
                if piece > 0 {
                    self.tell(exec, slot, piece, heed);
                }
            }
        }
    }

    /// Searches windows whole, and joins what is found with the window before.
    pub(super) fn decode_windows(&mut self, exec: &mut Exec, planned: &[Planned], heed: &mut dyn Heed) {
        self.parts.iter_mut().for_each(|part| part.piece = part.rows);
        self.search_pieces(exec);
        let slots: Vec<usize> = planned.iter().map(|p| p.slot).collect();
        self.end_beams(exec, &slots);
        for (p, part) in planned.iter().zip(&self.parts) {
            let frames = part.rows;
            let Some(slot) = &mut self.slots[p.slot] else { continue };
            let Some(search) = slot.search.replace(slot.wish.fresh.clone()) else { continue };
            let found = search.finish();
            // Readings of parts of an utterance are not readings of the whole.
            let whole = p.closes && slot.joiner.is_fresh();
            slot.readings = if whole { slot.readings(&found) } else { Vec::new() };
            let best = found.into_iter().next().map(|h| h.tokens).unwrap_or_default();
            let mut certain = Vec::new();
            slot.joiner.take(best, p.closes, &mut certain);
            heed.heard_whole(p.slot, Heard { frames, certain: &certain, guess: &slot.joiner.open });
        }
    }

    /// One look at the pieces of all parts. Returns whether there were any.
    fn search_pieces(&mut self, exec: &mut Exec) -> bool {
        let model = self.model.clone();
        self.pieces.clear();
        let mut whole = true;
        for part in &mut self.parts {
            whole &= part.piece == part.rows;
            let search =
                self.slots[part.slot].as_mut().filter(|_| part.piece > 0).and_then(|s| s.search.take());
            match search {
                Some(search) => {
                    self.pieces.push(Span { slot: part.slot, rows: part.piece });
                    self.searches.push(search);
                }
                None => part.piece = 0,
            }
        }
        if self.pieces.is_empty() {
            return false;
        }
        let frames = if whole {
            &mut self.projected
        } else {
            cut(exec, &self.parts, &self.projected, &mut self.piece)
        };
        self.search.step(exec, &model.decoder, frames, &self.pieces, &mut self.searches);
        self.put_back();
        true
    }

    /// Gives the searches of a step back to their slots.
    fn put_back(&mut self) {
        for (piece, search) in self.pieces.iter().zip(self.searches.drain(..)) {
            if let Some(slot) = &mut self.slots[piece.slot] {
                slot.search = Some(search);
            }
        }
    }

    /// Tells what the search found in `frames` more frames of a stream.
    fn tell(&mut self, exec: &mut Exec, i: usize, frames: usize, heed: &mut dyn Heed) {
        let Some(slot) = &mut self.slots[i] else { return };
        let Some(search) = &mut slot.search else { return };
        let guess = if slot.wish.has_beam() { search.tentative() } else { Vec::new() };
        match heed.heard(i, Heard { frames, certain: search.take_stable(), guess: &guess }) {
            Verdict::GoOn => {}
            Verdict::Cut { keep } => search.forget_taken(keep),
            Verdict::End => {
                self.conclude(exec, &[i], heed);
                if let Some(search) = self.slots[i].as_mut().and_then(|s| s.search.as_mut()) {
                    search.go_on(&self.model.decoder);
                }
            }
        }
    }

    /// Lets searches come to an end, and tells what they found.
    pub(super) fn conclude(&mut self, exec: &mut Exec, slots: &[usize], heed: &mut dyn Heed) {
        if self.is_offline() {
            // Each window was concluded with its step.
            for &i in slots {
                let Some(slot) = &mut self.slots[i] else { continue };
                let (readings, guess) = (std::mem::take(&mut slot.readings), slot.joiner.open.as_slice());
                heed.concluded(i, Heard { frames: 0, certain: &[], guess }, readings);
            }
            return;
        }
        self.end_beams(exec, slots);
        for &i in slots {
            let Some(slot) = &mut self.slots[i] else { continue };
            let Some(mut search) = slot.search.take() else { continue };
            let (has_beam, wants_readings) = (slot.wish.has_beam(), slot.wish.nbest > 0);
            let readings = if wants_readings { slot.readings(&search.finish()) } else { Vec::new() };
            let guess = if has_beam { best_end(&search) } else { Vec::new() };
            heed.concluded(i, Heard { frames: 0, certain: search.take_stable(), guess: &guess }, readings);
            slot.search = Some(search);
        }
    }

    /// Lets the beams of some slots come to the end of their frames, together.
    fn end_beams(&mut self, exec: &mut Exec, slots: &[usize]) {
        self.pieces.clear();
        for &i in slots {
            let slot = self.slots[i].as_mut().filter(|s| s.wish.has_beam());
            if let Some(search) = slot.and_then(|s| s.search.take()) {
                self.pieces.push(Span { slot: i, rows: 0 });
                self.searches.push(search);
            }
        }
        if !self.pieces.is_empty() {
            let model = self.model.clone();
            self.search.flush(exec, &model.decoder, &mut self.searches);
            self.put_back();
        }
    }
}

/// What the best reading of a search that has ended says after its stable tokens.
fn best_end(search: &SearchState) -> Vec<crate::hearing::Token> {
    let stable = search.stable().len();
    search.finish().into_iter().next().map(|best| best.tokens[stable..].to_vec()).unwrap_or_default()
}

/// The rows of the pieces under way, one after the other.
fn cut<'a>(exec: &mut Exec, parts: &[Part], all: &Buffer, out: &'a mut Buffer) -> &'a mut Buffer {
    out.shape(parts.iter().map(|p| p.piece).sum(), all.cols());
    let rows: Vec<usize> = parts.iter().flat_map(|p| (0..p.piece).map(|k| p.row + p.done + k)).collect();
    exec.gather_rows(all, &rows, 0, out);
    out
}
