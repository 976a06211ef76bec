//! The tokens that steps see, in a ring of rows for each slot: the codec writes codes of frames to come while the language
//! model still reads those of the step before.

use voce_runtime::{Exec, Tokens};

use crate::kyutai::{Lm, TEXT};

/// Rows of tokens, one for each position of a stream: 0 sees no audio, and every frame has one.
pub(super) struct TokenRing {
    pub tokens: Tokens,
    /// Rows of a slot.
    kept: usize,
}

impl TokenRing {
    /// For steps of up to `slot_frames` frames, two of them under way.
    pub(super) fn new(lm: &Lm, slots: usize, slot_frames: usize) -> Self {
        // Frames of two steps, and a row where the second draws the text of the frame after it.
        let kept = 2 * slot_frames + 2;
        Self { tokens: Tokens::new(slots * kept, lm.columns() + 1, u32::MAX), kept }
    }

    /// The row of a slot's position.
    pub(super) fn row(&self, slot: usize, position: usize) -> usize {
        slot * self.kept + position % self.kept
    }

    /// A stream starts in a slot. Codes of later positions stay as they are: the codec may be writing them.
    pub(super) fn start(&mut self, exec: &mut Exec, lm: &Lm, slot: usize) {
        let first = lm.first_tokens(&[]);
        let row = self.row(slot, 0);
        exec.set_tokens(&mut self.tokens, &[row], 0, &first);
        let after = lm.codebooks().end;
        let conditions = &first[after..];
        if !conditions.is_empty() {
            let rows: Vec<usize> = (row..row + self.kept).collect();
            exec.set_tokens(&mut self.tokens, &rows, after, &conditions.repeat(self.kept));
        }
    }

    /// What a stream that has come to a position goes on with: the text that was drawn last, and the codes before it.
    /// Waits for a device.
    pub(super) fn save(&mut self, exec: &mut Exec, slot: usize, position: usize) -> Vec<u32> {
        exec.fetch_tokens(&mut self.tokens);
        let mut tokens = self.tokens.row(self.row(slot, position.saturating_sub(1))).to_vec();
        tokens[TEXT] = self.tokens.row(self.row(slot, position))[TEXT];
        tokens
    }

    /// Goes on where [`TokenRing::save`] was called.
    pub(super) fn restore(&mut self, exec: &mut Exec, slot: usize, position: usize, tokens: &[u32]) {
        let mut rows = vec![self.row(slot, position)];
        if position > 0 {
            rows.push(self.row(slot, position - 1));
        }
        exec.set_tokens(&mut self.tokens, &rows, 0, &tokens.repeat(rows.len()));
    }
}
