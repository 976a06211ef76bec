//! Tokens by slot, where the executor is: what sampling writes and embeddings read without a look at the host.

use std::collections::VecDeque;
use std::sync::OnceLock;

use super::{Buffer, Exec};
use crate::cuda::{Memory, Pinned};
use crate::memory::{AlignedVec, PAGES_FROM, volume};

/// A row of 32-bit words for each slot: tokens, or one bit for each token.
///
/// On a device executor the words live there from their first use; [`Exec::fetch_tokens`] brings them back, and
/// reading without it panics.
#[derive(Debug)]
pub struct Tokens {
    pub(super) words: Vec<u32>,
    pub(super) slots: usize,
    pub(super) cols: usize,
    /// The device has newer words.
    pub(super) stale: bool,
    pub(crate) device: OnceLock<Memory>,
}

/// Words on their way from a device to the host, in the order in which they were sent.
#[derive(Default)]
pub struct SentTokens {
    under_way: VecDeque<Parcel>,
    received: Option<Parcel>,
    spare: Vec<Parcel>,
}

/// Words that a device writes by itself.
struct Parcel {
    /// Dropped before the words that it pins; that waits for copies which are under way.
    #[expect(dead_code, reason = "held for as long as the words")]
    pinned: Option<Pinned>,
    words: AlignedVec<u32>,
    len: usize,
    /// When they are there.
    moment: Option<usize>,
}

impl Tokens {
    /// Rows of `cols` words for `slots` slots, all of them `fill`.
    pub fn new(slots: usize, cols: usize, fill: u32) -> Self {
        Self { words: vec![fill; volume([slots, cols])], slots, cols, stale: false, device: OnceLock::new() }
    }

    /// One bit per slot and token of a vocabulary, none of them set: which tokens a slot has had.
    pub fn history(slots: usize, vocab: usize) -> Self {
        Self::new(slots, vocab.div_ceil(32), 0)
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Words per slot.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// A slot's words.
    pub fn row(&self, slot: usize) -> &[u32] {
        assert!(!self.stale, "fetched before the host reads it");
        &self.words[slot * self.cols..(slot + 1) * self.cols]
    }

    /// Notes that the device has newer words.
    pub(crate) fn make_stale(&mut self) {
        self.stale = true;
    }

    /// The host's copy, which may be older than the device's.
    pub(crate) fn host(&self) -> &[u32] {
        &self.words
    }

    pub(crate) fn host_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }
}

/// One word from a row and column of tokens to those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenMove {
    /// Row and column that it is read from.
    pub from: [usize; 2],
    /// Row and column that it is written to.
    pub to: [usize; 2],
}

/// What stands in some columns after a draw: `then` where the drawn token is `key`, else `otherwise`.
pub struct BranchOp<'a> {
    /// Whose tokens; no slot is named twice.
    pub slots: &'a [usize],
    /// The column of the drawn token, which is none of those written.
    pub drawn: usize,
    /// The token that decides.
    pub key: u32,
    /// The first column that is written.
    pub column: usize,
    /// As many words for each slot as columns are written.
    pub then: &'a [u32],
    /// The same for every other token.
    pub otherwise: &'a [u32],
}

impl Exec {
    /// Copies words from one list of tokens to another, without a look at the host; no place is written twice.
    pub fn move_tokens(&mut self, from: &Tokens, moves: &[TokenMove], to: &mut Tokens) {
        for TokenMove { from: [row, column], to: [to_row, to_column] } in moves {
            assert!(*row < from.slots && *column < from.cols, "words to read");
            assert!(*to_row < to.slots && *to_column < to.cols, "places to write");
        }
        if moves.is_empty() {
            return;
        }
        if let Some(cuda) = &mut self.cuda {
            cuda.move_tokens(from, moves, to);
            to.stale = true;
            return;
        }
        for m in moves {
            to.words[m.to[0] * to.cols + m.to[1]] = from.row(m.from[0])[m.from[1]];
        }
    }

    /// As [`Exec::move_tokens`], within one list; no place that is read is written.
    pub fn copy_tokens(&mut self, moves: &[TokenMove], tokens: &mut Tokens) {
        for TokenMove { from, to } in moves {
            assert!(
                [from, to].iter().all(|[row, column]| *row < tokens.slots && *column < tokens.cols),
                "places"
            );
        }
        if moves.is_empty() {
            return;
        }
        if let Some(cuda) = &mut self.cuda {
            cuda.move_tokens(tokens, moves, tokens);
            tokens.stale = true;
            return;
        }
        for m in moves {
            tokens.words[m.to[0] * tokens.cols + m.to[1]] = tokens.words[m.from[0] * tokens.cols + m.from[1]];
        }
    }

    /// Writes to slots' tokens what a drawn token decides, without a look at the host.
    pub fn branch_tokens(&mut self, op: &BranchOp<'_>, tokens: &mut Tokens) {
        if op.slots.is_empty() {
            return;
        }
        let each = op.then.len() / op.slots.len();
        assert!(op.then.len() == each * op.slots.len() && op.otherwise.len() == op.then.len(), "words fit");
        assert!(op.column <= tokens.cols && each <= tokens.cols - op.column, "columns fit");
        assert!(
            op.drawn < tokens.cols && !(op.column..op.column + each).contains(&op.drawn),
            "a column beside"
        );
        self.scratch.marks.check(tokens.slots, op.slots.iter().copied());
        if each == 0 {
            return;
        }
        if let Some(cuda) = &mut self.cuda {
            cuda.branch_tokens(op, tokens, each);
            tokens.stale = true;
            return;
        }
        for (r, &slot) in op.slots.iter().enumerate() {
            let row = &mut tokens.words[slot * tokens.cols..][..tokens.cols];
            let from = if row[op.drawn] == op.key { op.then } else { op.otherwise };
            row[op.column..op.column + each].copy_from_slice(&from[r * each..][..each]);
        }
    }

    /// Puts words of the host into some slots from `column` on, the same number for each; no slot is named twice.
    pub fn set_tokens(&mut self, tokens: &mut Tokens, slots: &[usize], column: usize, values: &[u32]) {
        if slots.is_empty() {
            return;
        }
        let each = values.len() / slots.len();
        assert_eq!(values.len(), each * slots.len(), "as many words for each slot");
        assert!(column <= tokens.cols && each <= tokens.cols - column, "words fit");
        self.scratch.marks.check(tokens.slots, slots.iter().copied());
        if each == 0 {
            return;
        }
        if let Some(cuda) = &mut self.cuda {
            cuda.set_tokens(tokens, slots, column, values);
            tokens.stale = true;
            return;
        }
        for (&slot, values) in slots.iter().zip(values.chunks_exact(each)) {
            tokens.words[slot * tokens.cols + column..][..each].copy_from_slice(values);
        }
    }

    /// Brings words that ops have written back to the host, where [`Tokens::row`] can be read.
    pub fn fetch_tokens(&mut self, tokens: &mut Tokens) {
        if let Some(cuda) = &mut self.cuda
            && tokens.stale
        {
            cuda.fetch_tokens(tokens);
            tokens.stale = false;
        }
    }

    /// Sends words as they are after the ops so far to the host, and does not wait: [`Exec::receive_tokens`] does.
    pub fn send_tokens(&mut self, tokens: &Tokens, sent: &mut SentTokens) {
        let mut parcel = self.parcel(tokens.words.len(), sent);
        let to = &mut parcel.words[..parcel.len];
        match &mut self.cuda {
            None => to.copy_from_slice(&tokens.words),
            Some(cuda) => parcel.moment = Some(cuda.send_tokens(tokens, to)),
        }
        sent.under_way.push_back(parcel);
    }

    /// As [`Exec::send_tokens`], the first rows of a buffer: a word is the bits of a value.
    pub fn send_rows(&mut self, buffer: &Buffer, rows: usize, sent: &mut SentTokens) {
        let mut parcel = self.parcel(rows * buffer.cols(), sent);
        let to = &mut parcel.words[..parcel.len];
        match &mut self.cuda {
            None => to.iter_mut().zip(buffer.head(rows)).for_each(|(word, value)| *word = value.to_bits()),
            Some(cuda) => parcel.moment = Some(cuda.send_rows(buffer, to)),
        }
        sent.under_way.push_back(parcel);
    }

    /// A parcel for some words: one that was received before, if it fits.
    fn parcel(&self, len: usize, sent: &mut SentTokens) -> Parcel {
        if let Some(spare) = sent.spare.pop().filter(|p| p.words.len() >= len) {
            return Parcel { len, ..spare };
        }
        let Some(cuda) = &self.cuda else {
            return Parcel { pinned: None, words: AlignedVec::zeroed(len), len, moment: None };
        };
        // On pages of its own: what shares a page with page-locked memory may be taken for such.
        let words = AlignedVec::zeroed(len.max(PAGES_FROM / size_of::<u32>()));
        Parcel { pinned: Pinned::new(cuda.device(), &words[..]), words, len, moment: None }
    }

    /// The words that were sent first of those that were not received yet, slot by slot; waits for a device. Nothing where
    /// nothing is under way.
    pub fn receive_tokens<'s>(&mut self, sent: &'s mut SentTokens) -> &'s [u32] {
        sent.spare.extend(sent.received.take());
        let parcel = sent.under_way.pop_front();
        if let (Some(cuda), Some(moment)) = (&mut self.cuda, parcel.as_ref().and_then(|p| p.moment)) {
            cuda.pass(moment);
        }
        sent.received = parcel;
        sent.received.as_ref().map_or(&[], |p| &p.words[..p.len])
    }

    /// Empties a slot's history.
    pub fn forget(&mut self, history: &mut Tokens, slot: usize) {
        let none = vec![0; history.cols];
        self.set_tokens(history, &[slot], 0, &none);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_received_makes_room_for_what_is_sent_next() {
        let (mut exec, mut sent) = (Exec::new(1).unwrap(), SentTokens::default());
        let mut tokens = Tokens::new(2, 1, 0);
        for round in 0..20 {
            exec.set_tokens(&mut tokens, &[1], 0, &[round]);
            exec.send_tokens(&tokens, &mut sent);
            exec.send_tokens(&tokens, &mut sent);
            assert_eq!(exec.receive_tokens(&mut sent), [0, round]);
            assert_eq!(exec.receive_tokens(&mut sent), [0, round]);
            // Two were under way while one was being read.
            assert!(sent.under_way.is_empty() && sent.spare.len() <= 2, "{}", sent.spare.len());
        }
    }
}
