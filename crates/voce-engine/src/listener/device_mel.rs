//! The front end of a device: the samples of all streams of a step travel at once and become mel rows there.

use std::sync::Mutex;

use voce_audio::mel::{LOG_GUARD, MEL_FFT, MEL_HOP};
use voce_models::fastconformer::MelConfig;
use voce_runtime::pool::Pool;
use voce_runtime::{Buffer, Exec, FrameSpan, MelFilters, MelOp, MelSpan, RuntimeError, Staging};

use super::inlet::Layout;
use super::mel_tail::tables;
use super::slot::Slot;
use crate::wake::lock;

/// Values that one thread copies before others are asked to help.
const COPIED_ALONE: usize = 1 << 18;
/// Threads that copy at most: a few have all of the memory's bandwidth.
const COPIERS: usize = 8;

/// Makes mel rows on a device.
pub(super) struct DeviceMel {
    filters: MelFilters,
    layout: Layout,
    staging: Staging,
    spans: Vec<MelSpan>,
    pool: Pool,
}

/// A stream's rows of a step: its inlet's windows, and where they go.
struct Share<'a> {
    slots: &'a [Option<Slot>],
    spans: &'a [FrameSpan],
    to: &'a mut [f32],
}

impl DeviceMel {
    /// A front end of a model; `threads` may copy samples.
    pub(super) fn new(config: &MelConfig, threads: usize) -> Result<Self, RuntimeError> {
        let tables = tables(config);
        Ok(Self {
            filters: MelFilters::new(tables.window().to_vec(), MEL_HOP, MEL_FFT, LOG_GUARD, tables.bands()),
            layout: Layout::windows(config.bins),
            staging: Staging::default(),
            spans: Vec::new(),
            pool: Pool::new(threads.clamp(1, COPIERS))?,
        })
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
        self.spans.clear();
        let (mut row, mut values) = (0, 0);
        let mut given: Vec<usize> = Vec::new();
        for span in spans {
            let first = slots[span.slot].as_ref().map_or(0, |s| s.planned.given);
            given.extend(row..row + first);
            if span.rows > first {
                self.spans.push(MelSpan { rows: span.rows - first, to: row + first });
            }
            values += layout.values(span.rows - first);
            row += span.rows;
        }
        let mut rows = vec![0.0; given.len() * layout.bins];
        let to = exec.stage(&mut self.staging, values);
        let work = Share { slots, spans, to };
        if given.is_empty() && values > COPIED_ALONE {
            copy_together(&mut self.pool, layout, work, values);
        } else {
            copy(layout, work, &mut rows);
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
    for span in share.spans {
        let Some(slot) = &share.slots[span.slot] else { continue };
        let planned = slot.planned;
        let (rows, others) = given.split_at_mut(planned.given * layout.bins);
        let (windows, rest) = to.split_at_mut(layout.values(planned.rows - planned.given));
        slot.inlet.take(rows, windows, planned.advance);
        (given, to) = (others, rest);
    }
}

/// Copies windows on several threads, each a stretch of about the same length.
fn copy_together(pool: &mut Pool, layout: Layout, work: Share<'_>, values: usize) {
    let Share { slots, mut spans, mut to } = work;
    let most = values.div_ceil(pool.threads());
    let mut shares = Vec::with_capacity(pool.threads());
    while !spans.is_empty() {
        let (mut count, mut length) = (0, 0);
        while count < spans.len() && (length < most || shares.len() + 1 == pool.threads()) {
            length += layout.values(spans[count].rows);
            count += 1;
        }
        let (mine, others) = spans.split_at(count);
        let (part, rest) = to.split_at_mut(length);
        shares.push(Mutex::new(Some(Share { slots, spans: mine, to: part })));
        (spans, to) = (others, rest);
    }
    pool.run(|id| {
        if let Some(share) = shares.get(id).and_then(|s| lock(s).take()) {
            copy(layout, share, &mut []);
        }
    });
}
