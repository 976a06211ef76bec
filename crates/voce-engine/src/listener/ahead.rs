//! Hearing ahead of a stream: what a copy of its state makes of the rows that wait and of silence behind them.

use std::sync::Mutex;

use voce_models::hearing::{Heard, Heed, Planned, Reading, RowLayout, Rows, Token, Verdict};

use super::inlet::Ahead;
use crate::wake::lock;

/// Rows that wait, and those that come behind them if nothing else does.
pub(super) struct Behind {
    layout: RowLayout,
    rows: usize,
    /// Values, and how many are over.
    values: Mutex<(Vec<f32>, usize)>,
}

impl Behind {
    pub(super) fn new(layout: RowLayout, (mut values, rows): (Vec<f32>, usize), ahead: Ahead) -> Self {
        values.extend(ahead.values);
        Self { layout, rows: rows + ahead.rows, values: Mutex::new((values, 0)) }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }
}

impl Rows for Behind {
    fn take(&self, planned: &Planned, out: &mut [f32]) {
        let mut values = lock(&self.values);
        let (values, over) = &mut *values;
        match values.get(*over..*over + out.len()) {
            Some(rows) => out.copy_from_slice(rows),
            None => out.fill(0.0),
        }
        *over += planned.advance * self.layout.step;
    }
}

/// Somebody who takes down all tokens and has no rules.
#[derive(Default)]
pub(super) struct Eager {
    certain: Vec<Token>,
    guess: Vec<Token>,
}

impl Eager {
    pub(super) fn tokens(mut self) -> Vec<Token> {
        self.certain.append(&mut self.guess);
        self.certain
    }

    fn take(&mut self, heard: Heard<'_>) {
        self.certain.extend_from_slice(heard.certain);
        self.guess.clear();
        self.guess.extend_from_slice(heard.guess);
    }
}

impl Heed for Eager {
    fn until(&self, _: usize, left: usize) -> usize {
        left
    }

    fn heard(&mut self, _: usize, heard: Heard<'_>) -> Verdict {
        self.take(heard);
        Verdict::GoOn
    }

    fn heard_whole(&mut self, _: usize, heard: Heard<'_>) {
        self.take(heard);
    }

    fn concluded(&mut self, _: usize, heard: Heard<'_>, _: Vec<Reading>) {
        self.take(heard);
    }

    fn word_ended(&mut self, _: usize, _: usize) {}

    fn pauses(&mut self, _: usize, _: &[f32]) {}
}
