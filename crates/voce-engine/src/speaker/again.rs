//! Passages that did not end: they are spoken again in halves, and those that fail again are counted.

use std::collections::VecDeque;

use voce_models::speech::{Line, PassageEnd, Speech};

/// How often a passage is halved: its quarters are spoken as they come.
const HALVINGS: u32 = 2;
/// Where the numbers of halves begin: no request has as many passages.
const HALF: u32 = 48;

/// Where a part stands in the order of a request's speech: its passage, and which piece of it where it is spoken in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub passage: usize,
    pub piece: usize,
}

impl Order {
    /// What comes after this.
    pub(super) fn after(self, goes_on: bool) -> Self {
        if goes_on {
            Self { piece: self.piece + 1, ..self }
        } else {
            Self { passage: self.passage + 1, piece: 0 }
        }
    }
}

/// A line with its order, and what is left to be said of its passage after it.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub line: Line,
    pub order: Order,
    pub number: u64,
    halvings: u32,
    after: VecDeque<(Line, u64, u32)>,
    /// Frames made of it.
    pub frames: usize,
}

impl Said {
    pub(super) fn new(line: Line, passage: usize, number: u64) -> Self {
        let order = Order { passage, piece: 0 };
        Self { line, order, number, halvings: 0, after: VecDeque::new(), frames: 0 }
    }

    /// Whether it is spoken for the first time.
    pub(super) fn is_new(&self) -> bool {
        self.halvings == 0
    }

    /// Whether more of its passage is to come.
    pub(super) fn goes_on(&self) -> bool {
        !self.after.is_empty()
    }

    /// What of its passage comes after it, if anything does.
    pub(super) fn next(mut self) -> Option<Self> {
        let (line, number, halvings) = self.after.pop_front()?;
        let order = self.order.after(true);
        Some(Self { line, order, number, halvings, after: self.after, frames: 0 })
    }

    /// Its halves in its stead, the first of them with the second after it, where it ended without an end and can be cut.
    /// Noise is theirs alone: it depends on the passage's number and on which half of which half this is.
    pub(super) fn again(&self, end: PassageEnd, speech: &dyn Speech, heard: bool) -> Option<Self> {
        if end != PassageEnd::Limit || self.halvings == HALVINGS {
            return None;
        }
        let [first, second] = speech.halves(&self.line)?;
        let (passage, half) = (self.number & ((1 << HALF) - 1), self.number >> HALF);
        let number = |n| (2 * half + n) << HALF | passage;
        let mut after = self.after.clone();
        after.push_front((second, number(2), self.halvings + 1));
        // The listener has heard the failed passage: the halves follow it.
        let order = if heard { self.order.after(true) } else { self.order };
        Some(Self { line: first, order, number: number(1), halvings: self.halvings + 1, after, frames: 0 })
    }
}
