//! How far values and choices are from the published package's.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

/// Differences of rows, and how many choices are the package's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    /// Values that were compared.
    pub values: usize,
    /// The largest difference, relative to the largest value of its row.
    pub worst: f32,
    error: f64,
    signal: f64,
    /// Choices that are the package's.
    pub same: usize,
    /// Choices that were compared.
    pub of: usize,
    /// The widest margin of the package, relative to the largest value of its row, at which a choice was another.
    pub missed: f32,
}

/// The place of the largest value.
pub fn best(row: &[f32]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
}

impl Meter {
    /// Compares values.
    pub fn add(&mut self, got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len(), "lengths");
        let scale = largest(want);
        for (g, w) in got.iter().zip(want) {
            let off = (g - w).abs();
            self.worst = self.worst.max(off / scale);
            self.error += f64::from(off) * f64::from(off);
            self.signal += f64::from(*w) * f64::from(*w);
        }
        self.values += got.len();
    }

    /// Compares logits, and which of them is the best.
    pub fn choose(&mut self, got: &[f32], want: &[f32]) {
        self.add(got, want);
        let choice = best(want);
        let second =
            want.iter().enumerate().filter(|(i, _)| *i != choice).fold(f32::MIN, |m, (_, v)| m.max(*v));
        self.chose(best(got) == choice, (want[choice] - second) / largest(want));
    }

    /// Counts a choice that the package made by `margin`.
    pub fn chose(&mut self, same: bool, margin: f32) {
        self.of += 1;
        self.same += usize::from(same);
        if !same {
            self.missed = self.missed.max(margin);
        }
    }

    /// The ratio of signal to difference in decibels.
    pub fn db(&self) -> f64 {
        10.0 * (self.signal / self.error.max(1e-30)).log10()
    }

    /// The share of choices that are the package's.
    pub fn share(&self) -> f64 {
        self.same as f64 / self.of.max(1) as f64
    }
}

fn largest(row: &[f32]) -> f32 {
    row.iter().fold(1e-6f32, |m, v| m.max(v.abs()))
}
