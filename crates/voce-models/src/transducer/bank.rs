//! Rows of a search's buffers that streams hold between steps: predictors' lanes, and frames that beams have not
//! passed yet. A stream has a handle; what the rows hold is with the search, on its device.

use std::sync::{Arc, Mutex, PoisonError};

/// The rows of one buffer, and who has them.
#[derive(Debug, Default)]
pub(super) struct Bank {
    shelf: Arc<Shelf>,
    /// Rows that were ever given out.
    total: usize,
}

/// Rows that nobody has.
#[derive(Debug, Default)]
struct Shelf(Mutex<Vec<usize>>);

/// Rows that are free again when this is dropped.
#[derive(Debug)]
pub(super) struct Rows {
    shelf: Arc<Shelf>,
    rows: Vec<usize>,
}

impl Bank {
    /// A bank whose first rows are never given out.
    pub(super) fn after(total: usize) -> Self {
        Self { shelf: Arc::default(), total }
    }

    /// Gives out rows that hold anything; the buffer must then have room for [`Bank::total`].
    pub(super) fn take(&mut self, count: usize) -> Rows {
        let mut free = self.shelf.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = free.len() - count.min(free.len());
        let mut rows = Vec::with_capacity(count);
        rows.extend(free.drain(kept..).rev());
        let more = count - rows.len();
        rows.extend(self.total..self.total + more);
        self.total += more;
        Rows { shelf: self.shelf.clone(), rows }
    }

    /// Rows that the buffer needs.
    pub(super) fn total(&self) -> usize {
        self.total
    }
}

impl Rows {
    /// Their numbers, if they are of this bank.
    pub(super) fn of(&self, bank: &Bank) -> &[usize] {
        assert!(Arc::ptr_eq(&self.shelf, &bank.shelf), "a stream stays with its search, or is saved between");
        &self.rows
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.shelf.0.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.rows);
    }
}

/// Where a stream's predictors are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Nowhere yet: before the first frame.
    Nowhere,
    /// Here, one after the other, until the next step.
    Saved(Vec<f32>),
    /// In lanes of the search. A copied stream shares them until one of the two is stepped.
    Lanes(Arc<Rows>),
}

impl Place {
    /// The lanes of a stream that a step has given them.
    pub(super) fn lanes(&self, bank: &Bank) -> &[usize] {
        match self {
            Place::Lanes(rows) => rows.of(bank),
            Place::Nowhere | Place::Saved(_) => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_given_out_once_and_come_back() {
        let mut bank = Bank::default();
        let (a, b) = (bank.take(2), bank.take(3));
        assert_eq!((a.of(&bank), b.of(&bank), bank.total()), (&[0, 1][..], &[2, 3, 4][..], 5));
        drop(a);
        let c = bank.take(3);
        let mut all = [b.of(&bank), c.of(&bank)].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5]);
        assert_eq!(bank.total(), 6);
        drop((b, c));
        assert_eq!((bank.take(6).len(), bank.total()), (6, 6));
    }

    #[test]
    #[should_panic(expected = "stays with its search")]
    fn rows_of_another_bank_are_noticed() {
        Bank::default().take(1).of(&Bank::default());
    }
}
