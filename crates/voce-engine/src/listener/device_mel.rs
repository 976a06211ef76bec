//! The front end of a device: the samples of all streams of a step travel at once and become mel rows there.

use std::sync::Mutex;

use voce_audio::mel::{LOG_GUARD, MEL_FFT, MEL_HOP};
use voce_models::fastconformer::MelConfig;
use voce_runtime::{Buffer, Exec, FrameSpan, MelFilters, MelOp, MelSpan, Staging};

use super::inlet::{Inlet, Layout};
use super::mel_tail::tables;
use super::slot::{Planned, Slot};
use crate::wake::lock;

/// Values that one thread copies before others are asked to help.
const COPIED_ALONE: usize = 1 << 18;

/// Makes mel rows on a device.
pub(super) struct DeviceMel {
    filters: MelFilters,
    layout: Layout,
    staging: Staging,
    spans: Vec<MelSpan>,
}

/// Streams of a step, each with its inlet and what is taken of it, and where their windows go.
struct Share<'a> {
    streams: &'a [(&'a Inlet, Planned)],
    to: &'a mut [f32],
}

impl DeviceMel {
    /// A front end of a model.
    pub(super) fn new(config: &MelConfig) -> Self {
        let tables = tables(config);
        Self {
            filters: MelFilters::new(tables.window().to_vec(), MEL_HOP, MEL_FFT, LOG_GUARD, tables.bands()),
            layout: Layout::windows(config.bins),
            staging: Staging::default(),
            spans: Vec::new(),
        }
    }

    /// Takes what was planned of each slot, and makes the rows in `mel`.
    pub(super) fn run(
        &mut self,
        exec: &mut Exec,
        slots: &[Option<Slot>],
        spans: &[FrameSpan],
        mel: &mut Buffer,
    ) {
        let layout = self.layout;
        let planned = |span: &FrameSpan| slots[span.slot].as_ref().map(|s| (&*s.inlet, s.planned));
        let streams: Vec<(&Inlet, Planned)> = spans.iter().filter_map(planned).collect();
        self.spans.clear();
        let (mut row, mut values) = (0, 0);
        let mut given: Vec<usize> = Vec::new();
        for (_, planned) in &streams {
            given.extend(row..row + planned.given);
            if planned.made() > 0 {
                self.spans.push(MelSpan { rows: planned.made(), to: row + planned.given });
            }
            values += layout.values(planned.made());
            row += planned.rows;
        }
        let mut rows = vec![0.0; given.len() * layout.bins];
        let share = Share { streams: &streams, to: exec.stage(&mut self.staging, values) };
        if given.is_empty() && values > COPIED_ALONE {
            copy_together(exec, layout, share);
        } else {
            copy(layout, share, &mut rows);
        }
        let op = MelOp { filters: &self.filters, samples: &self.staging, spans: &self.spans };
        exec.mel(&op, mel);
        if !given.is_empty() {
            exec.set_rows(mel, &given, &rows);
        }
    }

    /// The mel rows of a stream's windows, on the host.
    pub(super) fn rows_of(&mut self, exec: &mut Exec, windows: &[f32]) -> Vec<f32> {
        let rows = windows.len().saturating_sub(self.layout.overlap) / self.layout.step;
        if rows == 0 {
            return Vec::new();
        }
        exec.stage(&mut self.staging, windows.len()).copy_from_slice(windows);
        let mut mel = Buffer::new(rows, self.layout.bins);
        let op = MelOp { filters: &self.filters, samples: &self.staging, spans: &[MelSpan { rows, to: 0 }] };
        exec.mel(&op, &mut mel);
        exec.fetch(&mut mel, rows);
        mel.head(rows).to_vec()
    }
}

/// Copies the windows of a share, and mel rows that streams brought along to `given`.
fn copy(layout: Layout, share: Share<'_>, mut given: &mut [f32]) {
    let mut to = share.to;
    for (inlet, planned) in share.streams {
        let (rows, others) = given.split_at_mut(planned.given * layout.bins);
        let (windows, rest) = to.split_at_mut(layout.values(planned.made()));
        inlet.take(rows, windows, planned.advance);
        (given, to) = (others, rest);
    }
}

/// Copies windows on all of the executor's threads, each a stretch of about the same length.
fn copy_together(exec: &mut Exec, layout: Layout, share: Share<'_>) {
    let Share { mut streams, mut to } = share;
    let most = to.len().div_ceil(exec.threads());
    let mut shares = Vec::with_capacity(exec.threads());
    while !streams.is_empty() {
        let (mut count, mut length) = (0, 0);
        while count < streams.len() && (length < most || shares.len() + 1 == exec.threads()) {
            length += layout.values(streams[count].1.made());
            count += 1;
        }
        let (mine, others) = streams.split_at(count);
        let (part, rest) = to.split_at_mut(length);
        shares.push(Mutex::new(Some(Share { streams: mine, to: part })));
        (streams, to) = (others, rest);
    }
    exec.together(|id| {
        if let Some(share) = shares.get(id).and_then(|s| lock(s).take()) {
            copy(layout, share, &mut []);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn several_threads_copy_what_one_would() {
        let layout = Layout { bins: 3, step: 4, overlap: 2 };
        for (threads, rows) in
            [(1, vec![5, 1]), (3, vec![1, 50, 2, 2, 9, 1, 30]), (8, vec![7]), (4, vec![2; 9])]
        {
            let filled = || -> Vec<Arc<Inlet>> {
                let fill = |(i, &rows): (usize, &usize)| {
                    let inlet = Inlet::new(Arc::default(), layout, 100);
                    let values: Vec<f32> = (0..layout.values(rows)).map(|v| (1000 * i + v) as f32).collect();
                    inlet.push(&values, rows, 0);
                    inlet
                };
                rows.iter().enumerate().map(fill).collect()
            };
            let total: usize = rows.iter().map(|&r| layout.values(r)).sum();
            let (one, many) = (filled(), filled());
            let run = |together: bool, from: &[Arc<Inlet>], to: &mut [f32]| {
                let planned = |&rows: &usize| Planned { rows, advance: rows, ..Planned::default() };
                let streams: Vec<(&Inlet, Planned)> =
                    from.iter().map(|i| &**i).zip(rows.iter().map(planned)).collect();
                let share = Share { streams: &streams, to };
                if together {
                    copy_together(&mut Exec::new(threads).unwrap(), layout, share);
                } else {
                    copy(layout, share, &mut []);
                }
            };
            let (mut want, mut got) = (vec![-1.0; total], vec![-2.0; total]);
            run(false, &one, &mut want);
            run(true, &many, &mut got);
            assert_eq!(got, want, "{threads} threads");
            assert!(many.iter().all(|i| i.offer(1).rows == 0), "all rows were taken");
        }
    }
}
