//! Guidance: rows moved away from what the model says without a condition.

use super::{Buffer, Exec};

/// One row that is guided, and the row it is moved away from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guide {
    /// The row, which becomes `without + (row - without) * by`.
    pub row: usize,
    /// The row of the same values without the condition, which stays.
    pub without: usize,
    /// How far; 1 changes nothing.
    pub by: f32,
}

impl Exec {
    /// Guides rows in place; no row is both guided and one to move away from, and none is named twice.
    pub fn guide_rows(&mut self, guides: &[Guide], x: &mut Buffer) {
        assert!(
            guides.iter().all(|g| g.row < x.rows && g.without < x.rows && g.row != g.without),
            "rows fit"
        );
        if guides.is_empty() {
            return;
        }
        if let Some(cuda) = &mut self.cuda {
            return cuda.guide_rows(guides, x);
        }
        for g in guides {
            for i in 0..x.cols {
                let without = x.row(g.without)[i];
                let value = &mut x.row_mut(g.row)[i];
                *value = without + (*value - without) * g.by;
            }
        }
    }
}
