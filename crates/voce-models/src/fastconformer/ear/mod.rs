//! The slots of a lane: rows go in, the encoder runs over those of all streams at once, and the search finds tokens.

mod decode;
mod saved;
mod silence;

use std::sync::Arc;

use voce_audio::mel::DEVIATION_GUARD;
use voce_runtime::cuda::Reserved;
use voce_runtime::{Buffer, Exec, FrameSpan, RuntimeError, Span};

use super::config::MelNormalize;
use super::device_mel::DeviceMel;
use super::encoder::EncoderState;
use super::hearing::{Model, Wish};
use super::windows::{Joiner, OVERLAP, WINDOW};
use crate::hearing::{Ear, EarRoom, HearingError, Heed, Offer, Planned, Reading, Rows, Track};
use crate::transducer::{Search, SearchState};

pub(super) use silence::{HELD_STEPS, HYPOTHESES, USUAL_BEAM};

/// Frames of a step that keeps an offline model warm.
const WARM_FRAMES: usize = 8;
/// Frames of an offline utterance that memory is made for at first.
const FIRST_UTTERANCE: usize = 128;

/// A stream in a slot.
struct Slot {
    wish: Wish,
    /// Taken out while it is stepped.
    search: Option<SearchState>,
    /// Mel rows that a saved stream brought along: they come before those that wait.
    kept: Vec<f32>,
    joiner: Joiner,
    /// Readings of the utterance, from a window that was all of it.
    readings: Vec<Reading>,
}

/// A slot's rows of a step, and how many of them were searched.
#[derive(Clone, Copy, Debug)]
struct Part {
    slot: usize,
    row: usize,
    rows: usize,
    done: usize,
    /// Rows of the piece under way.
    piece: usize,
}

/// All slots of a lane.
pub(super) struct FastConformerEar {
    model: Arc<Model>,
    room: EarRoom,
    state: EncoderState,
    search: Search,
    slots: Vec<Option<Slot>>,
    /// Makes mel rows, where a device does it.
    front: Option<DeviceMel>,
    mel: Buffer,
    spans: Vec<FrameSpan>,
    parts: Vec<Part>,
    projected: Buffer,
    piece: Buffer,
    pieces: Vec<Span>,
    searches: Vec<SearchState>,
}

impl FastConformerEar {
    pub(super) fn new(model: Arc<Model>, room: EarRoom) -> Self {
        let slots = room.slots;
        let (bins, width) = (model.config.mel.bins, model.decoder.frame_width());
        // A CPU takes memory as utterances need it; a device has all of it from the start.
        let grows = model.encoder.is_offline() && !model.on_device;
        let frames = if grows { FIRST_UTTERANCE } else { room.slot_frames };
        Self {
            room,
            state: model.encoder.state(slots, frames),
            search: Search::new(&model.decoder, slots),
            slots: (0..slots).map(|_| None).collect(),
            front: model.on_device.then(|| DeviceMel::new(&model.config.mel)),
            mel: Buffer::new(1, bins),
            spans: Vec::with_capacity(slots),
            parts: Vec::with_capacity(slots),
            projected: Buffer::new(1, width),
            piece: Buffer::new(1, width),
            pieces: Vec::with_capacity(slots),
            searches: Vec::with_capacity(slots),
            model,
        }
    }

    fn bins(&self) -> usize {
        self.model.config.mel.bins
    }

    fn factor(&self) -> usize {
        self.model.config.encoder.subsampling_factor
    }

    fn is_offline(&self) -> bool {
        self.model.encoder.is_offline()
    }

    /// Mel rows that a slot's stream brought along and has not used yet.
    fn kept(&self, slot: usize) -> usize {
        self.slots[slot].as_ref().map_or(0, |s| s.kept.len() / self.bins())
    }

    /// Mel rows, kept or waiting, of which the next step of a slot can be made.
    fn needed(&self, slot: usize) -> usize {
        let Some(s) = &self.slots[slot] else { return usize::MAX };
        if self.is_offline() {
            // A window is full when audio goes on after it: else it is the last, and may be shorter.
            return WINDOW * self.factor() + 1;
        }
        self.model.encoder.mel_rows(s.wish.shape.look_ahead, 1, self.state.position(slot) == 0)
    }

    /// A plan that looks at `rows` of all rows and is done with `over` of them.
    fn planned(&self, slot: usize, rows: usize, over: usize, closes: bool) -> Planned {
        let kept = self.kept(slot);
        let mine = kept.min(rows);
        Planned {
            slot,
            kept: mine,
            rows: rows - mine,
            advance: over - over.min(kept),
            frames: rows.div_ceil(self.factor()),
            closes,
        }
    }

    /// Puts a stream into a slot.
    fn begin(&mut self, slot: usize, wish: &Wish) {
        self.model.encoder.start(&mut self.state, slot, wish.shape);
        self.slots[slot] = Some(Slot {
            wish: wish.clone(),
            search: Some(wish.fresh.clone()),
            kept: Vec::new(),
            joiner: Joiner::default(),
            readings: Vec::new(),
        });
    }

    /// Makes room for the mel rows of a step.
    fn make_room(&mut self, rows: usize) {
        if self.mel.rows() < rows {
            self.mel.shape(rows.next_power_of_two(), self.mel.cols());
        }
        self.mel.discard();
    }

    /// Puts the rows that streams brought along where those of the step begin, and lets go of those that are over.
    fn take_kept(&mut self, exec: &mut Exec, planned: &[Planned]) {
        let (bins, window) = (self.bins(), (WINDOW - OVERLAP) * self.factor());
        let offline = self.is_offline();
        let mut row = 0;
        for p in planned {
            if p.kept > 0
                && let Some(slot) = &mut self.slots[p.slot]
            {
                let values = &slot.kept[..p.kept * bins];
                if self.front.is_some() {
                    let rows: Vec<usize> = (row..row + p.kept).collect();
                    exec.set_rows(&mut self.mel, &rows, values);
                } else {
                    for (i, values) in values.chunks_exact(bins).enumerate() {
                        self.mel.row_mut(row + i).copy_from_slice(values);
                    }
                }
                let over = if offline && !p.closes { window.min(p.kept) } else { p.kept };
                slot.kept.drain(..over * bins);
            }
            row += p.kept + p.rows;
        }
    }
}

impl Ear for FastConformerEar {
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        self.reserve_all(exec)
    }

    fn start(&mut self, exec: &mut Exec, slot: usize, track: &Track) -> Result<(), RuntimeError> {
        let wish: &Wish = track.family().expect("a track of this model");
        self.slots[slot] = None;
        self.make_room_for(exec, wish)?;
        self.begin(slot, wish);
        Ok(())
    }

    fn free(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    fn wants(&self, slot: usize) -> usize {
        self.needed(slot).saturating_sub(self.kept(slot)).max(1)
    }

    fn plan(&self, slot: usize, offer: Offer, frames: usize) -> Option<Planned> {
        let shape = self.slots[slot].as_ref()?.wish.shape;
        let (needed, rows) = (self.needed(slot), self.kept(slot) + offer.rows);
        if rows < needed {
            return (offer.closes && rows > 0).then(|| self.planned(slot, rows, rows, true));
        }
        if self.is_offline() {
            let factor = self.factor();
            return Some(self.planned(slot, WINDOW * factor, (WINDOW - OVERLAP) * factor, false));
        }
        let encoder = &self.model.encoder;
        let most = (frames / (shape.look_ahead + 1)).max(1);
        let there = 1 + (rows - needed) / encoder.mel_rows(shape.look_ahead, 1, false);
        let rows = encoder.mel_rows(shape.look_ahead, there.min(most), self.state.position(slot) == 0);
        Some(self.planned(slot, rows, rows, false))
    }

    fn take(&mut self, exec: &mut Exec, planned: &[Planned], rows: &dyn Rows) {
        let model = self.model.clone();
        let offline = self.is_offline();
        self.spans.clear();
        for p in planned {
            if offline && let Some(slot) = &self.slots[p.slot] {
                model.encoder.start(&mut self.state, p.slot, slot.wish.shape);
            }
            let span = FrameSpan { slot: p.slot, rows: p.kept + p.rows, last: p.closes || offline };
            self.spans.push(span);
        }
        self.make_room(self.spans.iter().map(|s| s.rows).sum());
        match &mut self.front {
            Some(front) => front.run(exec, planned, rows, &mut self.mel),
            None => {
                let (mut row, bins) = (0, self.bins());
                for p in planned {
                    let all = self.mel.head_mut(row + p.kept + p.rows);
                    rows.take(p, &mut all[(row + p.kept) * bins..]);
                    row += p.kept + p.rows;
                }
            }
        }
        self.take_kept(exec, planned);
        if model.config.mel.normalize == MelNormalize::PerFeature {
            exec.standardise(&mut self.mel, &self.spans, DEVIATION_GUARD);
        }
    }

    fn encode(&mut self, exec: &mut Exec, _: &[Planned]) {
        let model = self.model.clone();
        let (x, spans) = model.encoder.step(exec, &mut self.state, &self.mel, &self.spans);
        self.parts.clear();
        let mut rows = 0;
        for s in spans {
            self.parts.push(Part { slot: s.slot, row: rows, rows: s.rows, done: 0, piece: 0 });
            rows += s.rows;
        }
        if rows > 0 {
            self.projected.shape(rows, model.decoder.frame_width());
            model.decoder.project(exec, x, rows, &mut self.projected);
        }
    }

    fn decode(&mut self, exec: &mut Exec, planned: &[Planned], heed: &mut dyn Heed) {
        if self.is_offline() {
            self.decode_windows(exec, planned, heed);
        } else {
            self.decode_pieces(exec, heed);
        }
    }

    fn flush(&mut self, exec: &mut Exec, slots: &[usize], heed: &mut dyn Heed) {
        self.conclude(exec, slots, heed);
    }

    fn save(&mut self, exec: &mut Exec, slot: usize, waiting: &[f32]) -> Vec<u8> {
        self.save_slot(exec, slot, waiting)
    }

    fn restore(
        &mut self,
        exec: &mut Exec,
        slot: usize,
        track: &Track,
        saved: &[u8],
    ) -> Result<(), HearingError> {
        let wish: &Wish = track.family().expect("a track of this model");
        self.restore_slot(exec, slot, wish, saved)
    }

    fn warm(&mut self, exec: &mut Exec, streams: usize, track: &Track) {
        let wish: &Wish = track.family().expect("a track of this model");
        let frames = if self.is_offline() { WARM_FRAMES } else { wish.shape.look_ahead + 1 };
        self.run_silence(exec, streams.min(self.room.frames / frames), frames, wish);
    }
}
