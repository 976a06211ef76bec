//! The front end of a device: the windows of all streams of a step travel at once and become mel rows there.

use std::sync::{Mutex, PoisonError};

use voce_audio::mel::{LOG_GUARD, MEL_FFT, MEL_HOP};
use voce_runtime::{Buffer, Exec, MelFilters, MelOp, MelSpan, Staging};

use super::config::MelConfig;
use super::front::{layout, tables};
use crate::hearing::{Planned, RowLayout, Rows};

/// Values that one thread copies before others are asked to help.
const COPIED_ALONE: usize = 1 << 18;

/// Makes mel rows on a device.
pub(super) struct DeviceMel {
    filters: MelFilters,
    layout: RowLayout,
    bins: usize,
    staging: Staging,
    spans: Vec<MelSpan>,
}

/// Streams of a step, and where their windows go.
struct Share<'a> {
    streams: &'a [Planned],
    to: &'a mut [f32],
}

impl DeviceMel {
    /// A front end of a model.
    pub(super) fn new(config: &MelConfig) -> Self {
        let tables = tables(config);
        Self {
            filters: MelFilters::new(tables.window().to_vec(), MEL_HOP, MEL_FFT, LOG_GUARD, tables.bands()),
            layout: layout(config, true),
            bins: config.bins,
            staging: Staging::default(),
            spans: Vec::new(),
        }
    }

    /// Makes the rows of each stream in `mel`, behind those that it kept.
    pub(super) fn run(&mut self, exec: &mut Exec, planned: &[Planned], rows: &dyn Rows, mel: &mut Buffer) {
        self.spans.clear();
        let (mut row, mut values) = (0, 0);
        for p in planned {
            if p.rows > 0 {
                self.spans.push(MelSpan { rows: p.rows, to: row + p.kept });
            }
            values += self.layout.values(p.rows);
            row += p.kept + p.rows;
        }
        let share = Share { streams: planned, to: exec.stage(&mut self.staging, values) };
        if values > COPIED_ALONE {
            copy_together(exec, self.layout, share, rows);
        } else {
            copy(self.layout, share, rows);
        }
        if !self.spans.is_empty() {
            let op = MelOp { filters: &self.filters, samples: &self.staging, spans: &self.spans };
            exec.mel(&op, mel);
        }
    }

    /// The mel rows of a stream's windows, on the host.
    pub(super) fn rows_of(&mut self, exec: &mut Exec, windows: &[f32]) -> Vec<f32> {
        let rows = windows.len().saturating_sub(self.layout.overlap) / self.layout.step;
        if rows == 0 {
            return Vec::new();
        }
        exec.stage(&mut self.staging, windows.len()).copy_from_slice(windows);
        let mut mel = Buffer::new(rows, self.bins);
        let op = MelOp { filters: &self.filters, samples: &self.staging, spans: &[MelSpan { rows, to: 0 }] };
        exec.mel(&op, &mut mel);
        exec.fetch(&mut mel, rows);
        mel.head(rows).to_vec()
    }
}

/// Copies the windows of a share.
fn copy(layout: RowLayout, share: Share<'_>, rows: &dyn Rows) {
    let mut to = share.to;
    for planned in share.streams {
        let (windows, rest) = to.split_at_mut(layout.values(planned.rows));
        rows.take(planned, windows);
        to = rest;
    }
}

/// Copies windows on all of the executor's threads, each a stretch of about the same length.
fn copy_together(exec: &mut Exec, layout: RowLayout, share: Share<'_>, rows: &dyn Rows) {
    let Share { mut streams, mut to } = share;
    let most = to.len().div_ceil(exec.threads());
    let mut shares = Vec::with_capacity(exec.threads());
    while !streams.is_empty() {
        let (mut count, mut length) = (0, 0);
        while count < streams.len() && (length < most || shares.len() + 1 == exec.threads()) {
            length += layout.values(streams[count].rows);
            count += 1;
        }
        let (mine, others) = streams.split_at(count);
        let (part, rest) = to.split_at_mut(length);
        shares.push(Mutex::new(Some(Share { streams: mine, to: part })));
        (streams, to) = (others, rest);
    }
    exec.together(|id| {
        let mine = shares.get(id).and_then(|s| s.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(share) = mine {
            copy(layout, share, rows);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Rows that tell whose they are, and count how many were taken.
    struct Numbered(Vec<AtomicUsize>);

    impl Rows for Numbered {
        fn take(&self, planned: &Planned, out: &mut [f32]) {
            out.iter_mut().enumerate().for_each(|(v, out)| *out = (1000 * planned.slot + v) as f32);
            self.0[planned.slot].fetch_add(planned.advance, Ordering::Relaxed);
        }
    }

    #[test]
    fn several_threads_copy_what_one_would() {
        let layout = RowLayout { hop: 4, step: 4, overlap: 2 };
        for (threads, rows) in
            [(1, vec![5, 1]), (3, vec![1, 50, 0, 2, 9, 1, 30]), (8, vec![7]), (4, vec![2; 9])]
        {
            let plan =
                |(slot, &rows): (usize, &usize)| Planned { slot, rows, advance: rows, ..Planned::default() };
            let planned: Vec<Planned> = rows.iter().enumerate().map(plan).collect();
            let total: usize = rows.iter().map(|&r| layout.values(r)).sum();
            let numbered = || Numbered(rows.iter().map(|_| AtomicUsize::new(0)).collect());
            let (one, many) = (numbered(), numbered());
            let (mut want, mut got) = (vec![-1.0; total], vec![-2.0; total]);
            copy(layout, Share { streams: &planned, to: &mut want }, &one);
            let share = Share { streams: &planned, to: &mut got };
            copy_together(&mut Exec::new(threads).unwrap(), layout, share, &many);
            assert_eq!(got, want, "{threads} threads");
            let taken = |n: &Numbered| n.0.iter().map(|n| n.load(Ordering::Relaxed)).collect::<Vec<_>>();
            assert_eq!((taken(&one), taken(&many)), (rows.clone(), rows.clone()), "all rows were taken");
        }
    }
}
