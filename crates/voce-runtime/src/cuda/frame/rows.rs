//! Rows that a program's blocks exchange: what each version of a row is read from, and whether a place may be written again.
//!
//! A row has two places that its versions use in turn. A value's flag says which use of its place it belongs to; the flag of a
//! use changes from launch to launch where a launch uses the place an odd number of times.

use std::collections::HashMap;

use super::Row;
use crate::cuda::driver::Address;

const PLAIN: u32 = 0;
const EXCHANGE: u32 = 1;
const TABLE_BF16: u32 = 2;
const TABLE_F32: u32 = 3;
const FLAG: u32 = 1 << 8;
const FLIPS: u32 = 1 << 9;

impl Row {
    /// Whether it comes from other blocks.
    pub(super) fn is_exchanged(&self) -> bool {
        self.how & 3 == EXCHANGE
    }
}

/// A row of a table that the last draw names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TableRow {
    pub at: Address,
    pub stride: u32,
    pub narrow: bool,
    /// How many draws there were when it was named.
    pub draw: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// Memory, as it was before the program.
    Plain,
    /// The exchange, from this phase on.
    Exchange {
        by: usize,
    },
    Table(TableRow),
}

/// A version of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    row: usize,
    number: usize,
}

struct Known {
    at: Address,
    len: usize,
    versions: Vec<Source>,
    /// The last phase that read a version.
    read: Vec<usize>,
}

/// The rows of a program.
#[derive(Default)]
pub(super) struct Rows {
    rows: Vec<Known>,
    index: HashMap<Address, usize>,
    /// The latest phase of which the phase under way has seen every block's results.
    synced: Option<usize>,
}

impl Rows {
    fn row(&mut self, at: Address, len: usize) -> Option<usize> {
        let rows = &mut self.rows;
        let i = *self.index.entry(at).or_insert_with(|| {
            rows.push(Known { at, len, versions: vec![Source::Plain], read: vec![0] });
            rows.len() - 1
        });
        let known = &mut self.rows[i];
        known.len = known.len.max(len);
        Some(i)
    }

    /// The newest version of a row, which `phase` reads: all of it, in every block, or only some.
    pub(super) fn read(
        &mut self,
        at: Address,
        len: usize,
        phase: usize,
        draws: usize,
        whole: bool,
    ) -> Option<Version> {
        let row = self.row(at, len)?;
        let known = &mut self.rows[row];
        let number = known.versions.len() - 1;
        known.read[number] = known.read[number].max(phase);
        match known.versions[number] {
            Source::Table(table) if table.draw != draws => return None,
            Source::Exchange { by } if whole => self.synced = self.synced.max(Some(by)),
            _ => {}
        }
        Some(Version { row, number })
    }

    /// The newest version of a row, of which every block reads what it will write itself.
    pub(super) fn own(&mut self, at: Address, len: usize, draws: usize) -> Option<Version> {
        let row = self.row(at, len)?;
        let number = self.rows[row].versions.len() - 1;
        match self.rows[row].versions[number] {
            Source::Table(table) if table.draw != draws => None,
            _ => Some(Version { row, number }),
        }
    }

    /// A new version of a row, which all blocks make in `phase`; none where somebody could still read what is overwritten.
    pub(super) fn write(&mut self, at: Address, len: usize, phase: usize) -> Option<Version> {
        let row = self.row(at, len)?;
        let synced = self.synced;
        let known = &mut self.rows[row];
        let number = known.versions.len();
        // Memory holds every version, the exchange every second one.
        let plain = (number == 1).then_some(0);
        let before = number.checked_sub(2).filter(|n| known.versions[*n] != Source::Plain);
        let safe = |n: usize| known.read[n] == 0 || synced.is_some_and(|s| s >= known.read[n]);
        if !plain.into_iter().chain(before).all(safe) {
            return None;
        }
        known.versions.push(Source::Exchange { by: phase });
        known.read.push(0);
        Some(Version { row, number })
    }

    /// A new version of a row, which is read from a table.
    pub(super) fn name(&mut self, at: Address, len: usize, table: TableRow) -> Option<()> {
        let row = self.row(at, len)?;
        let known = &mut self.rows[row];
        known.versions.push(Source::Table(table));
        known.read.push(0);
        Some(())
    }

    /// Whether memory will have every row as the recording would have left it.
    pub(super) fn are_stored(&self) -> bool {
        self.rows.iter().all(|r| !matches!(r.versions.last(), Some(Source::Table(_))))
    }

    /// Where all rows are exchanged: two places each, and how many values they are together.
    pub(super) fn lay_out(&self) -> (Vec<[usize; 2]>, usize) {
        let mut end = 0;
        let mut place = |len: usize| {
            let at = end;
            end += len.next_multiple_of(32);
            at
        };
        let places = self.rows.iter().map(|r| [place(r.len), place(r.len)]).collect();
        (places, end)
    }

    /// A version as the kernel reads it, or writes it.
    pub(super) fn resolve(&self, version: Version, places: &[[usize; 2]]) -> Row {
        let known = &self.rows[version.row];
        match known.versions[version.number] {
            Source::Plain => Row { at: known.at, area: 0, how: PLAIN },
            Source::Table(t) => {
                Row { at: t.at, area: t.stride, how: if t.narrow { TABLE_BF16 } else { TABLE_F32 } }
            }
            Source::Exchange { .. } => {
                let half = version.number % 2;
                let uses = |up_to: usize| {
                    let own =
                        |n: &usize| n % 2 == half && matches!(known.versions[*n], Source::Exchange { .. });
                    (0..=up_to).filter(own).count() as u32
                };
                let flag = if uses(version.number) % 2 == 1 { FLAG } else { 0 };
                let flips = if uses(known.versions.len() - 1) % 2 == 1 { FLIPS } else { 0 };
                let area = places[version.row][half] as u32;
                Row { at: known.at, area, how: EXCHANGE | flag | flips }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Address = 0x1000;
    const Y: Address = 0x2000;

    #[test]
    fn flags_tell_the_uses_of_a_place_apart() {
        let mut rows = Rows::default();
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for step in 0..3 {
            x.push(rows.write(X, 64, 2 * step + 1).unwrap());
            rows.read(X, 64, 2 * step + 2, 0, true).unwrap();
            y.push(rows.write(Y, 32, 2 * step + 2).unwrap());
            rows.read(Y, 32, 2 * step + 3, 0, true).unwrap();
        }
        let (places, len) = rows.lay_out();
        assert_eq!(len, 2 * 64 + 2 * 32);
        let how = |v: &Version| rows.resolve(*v, &places);
        let [first, second, third] = [how(&x[0]), how(&x[1]), how(&x[2])];
        assert_ne!(first.area, second.area, "two places in turn");
        assert_eq!(first.area, third.area);
        // Versions 1 and 3 share a place that a launch uses twice; version 2 has the other, which it uses once.
        assert_eq!(first.how, EXCHANGE | FLAG);
        assert_eq!(third.how, EXCHANGE);
        assert_eq!(second.how, EXCHANGE | FLAG | FLIPS);
    }

    #[test]
    fn a_place_is_not_written_while_somebody_may_read_it() {
        let mut rows = Rows::default();
        rows.read(X, 8, 1, 0, true).unwrap();
        assert!(rows.write(X, 8, 1).is_none(), "memory is read by blocks that are slower");
        let mut rows = Rows::default();
        rows.read(X, 8, 1, 0, true).unwrap();
        rows.write(Y, 8, 1).unwrap();
        rows.read(Y, 8, 2, 0, true).unwrap();
        assert!(rows.write(X, 8, 2).is_some(), "every block had read it when it made what was read since");
    }

    #[test]
    fn rows_of_tables_belong_to_the_last_draw() {
        let mut rows = Rows::default();
        let table = TableRow { at: 64, stride: 16, narrow: true, draw: 1 };
        rows.name(X, 16, table).unwrap();
        assert!(!rows.are_stored());
        let version = rows.read(X, 16, 1, 1, true).unwrap();
        assert_eq!(rows.resolve(version, &[[0, 0]]), Row { at: 64, area: 16, how: TABLE_BF16 });
        assert!(rows.read(X, 16, 2, 2, true).is_none());
    }
}
