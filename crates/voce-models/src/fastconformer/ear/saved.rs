//! A slot's stream as bytes, to go on with later or elsewhere, on a CPU or a device.

use voce_runtime::Exec;

use super::super::encoder::StreamShape;
use super::super::hearing::{Model, Wish};
use super::super::windows::{Joiner, WINDOW};
use super::FastConformerEar;
use crate::hearing::HearingError;
use crate::saved::{Reader, Unfit, Writer};
use crate::transducer::SearchState;

/// First bytes; the last is the version.
const MAGIC: [u8; 8] = *b"voceear1";
/// Most tokens of a window that the next may still change.
const MAX_OPEN: usize = 2048;

/// What does not fit, with the reason.
fn unfit(e: impl std::fmt::Display) -> HearingError {
    HearingError::Snapshot(e.to_string())
}

/// The head of saved bytes, and what follows.
fn head<'a>(model: &Model, bytes: &'a [u8]) -> Result<(StreamShape, Reader<'a>), Unfit> {
    let mut r = Reader::new(bytes, MAGIC)?;
    let shape = StreamShape { look_ahead: r.position()?, language: r.position()? };
    model.encoder.check_shape(shape)?;
    Ok((shape, r))
}

impl FastConformerEar {
    /// Chunk and language of a saved stream.
    pub(crate) fn saved_shape(model: &Model, bytes: &[u8]) -> Result<StreamShape, HearingError> {
        head(model, bytes).map(|(shape, _)| shape).map_err(unfit)
    }

    pub(super) fn save_slot(&mut self, exec: &mut Exec, i: usize, waiting: &[f32]) -> Vec<u8> {
        let mut w = Writer::new(MAGIC);
        let Some(slot) = &self.slots[i] else { return w.into_bytes() };
        let StreamShape { look_ahead, language } = slot.wish.shape;
        w.size(look_ahead);
        w.size(language);
        let mut rows = slot.kept.clone();
        match &mut self.front {
            Some(front) => rows.extend(front.rows_of(exec, waiting)),
            None => rows.extend_from_slice(waiting),
        }
        w.floats(&rows);
        w.tokens(&slot.joiner.open);
        w.size(slot.joiner.next);
        let offline = self.is_offline();
        w.bytes(&if offline { Vec::new() } else { self.model.encoder.save(exec, &self.state, i) });
        w.bytes(&slot.search.as_ref().map(|s| self.search.save(exec, s)).unwrap_or_default());
        w.into_bytes()
    }

    pub(super) fn restore_slot(
        &mut self,
        exec: &mut Exec,
        i: usize,
        wish: &Wish,
        bytes: &[u8],
    ) -> Result<(), HearingError> {
        let model = self.model.clone();
        let (shape, mut r) = head(&model, bytes).map_err(unfit)?;
        if shape != wish.shape {
            return Err(unfit("it has another chunk or language than the request"));
        }
        let (bins, vocab, factor) = (self.bins(), model.config.vocab, self.factor());
        let read = |r: &mut Reader<'_>| {
            let kept = r.floats((WINDOW * factor + 1) * bins)?;
            let joiner = Joiner { open: r.tokens(vocab, MAX_OPEN)?, next: r.position()? };
            if !kept.len().is_multiple_of(bins) {
                return Err(Unfit("its rows do not fit"));
            }
            Ok((kept, joiner, r.bytes()?.to_vec(), r.bytes()?.to_vec()))
        };
        let (kept, joiner, encoder, search) = read(&mut r).map_err(unfit)?;
        r.finish().map_err(unfit)?;
        let search = SearchState::from_bytes(&search, &model.decoder, wish.fresh.options()).map_err(unfit)?;
        if !self.is_offline() {
            model.encoder.restore(exec, &mut self.state, i, &encoder).map_err(unfit)?;
            // The encoder's bytes have a chunk and a language of their own.
            if self.state.shape(i) != shape {
                return Err(unfit("it has two chunks or two languages"));
            }
        }
        if search.frames() != self.state.position(i) {
            return Err(unfit("it was searched for another number of frames than were made"));
        }
        let Some(slot) = &mut self.slots[i] else { return Err(unfit("its slot is empty")) };
        (slot.kept, slot.joiner, slot.search) = (kept, joiner, Some(search));
        Ok(())
    }
}
