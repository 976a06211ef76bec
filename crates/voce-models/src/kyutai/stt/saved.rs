//! A slot's stream as bytes, to go on with later or elsewhere, on a CPU or a device.

use voce_runtime::{Exec, KvFormat, Sampling};

use super::ear::SttEar;
use super::hearing::Wish;
use crate::hearing::HearingError;
use crate::saved::{Reader, Unfit, Writer};

/// First bytes; the last is the version.
const MAGIC: [u8; 8] = *b"vocekst1";

/// What does not fit, with the reason.
fn unfit(e: impl std::fmt::Display) -> HearingError {
    HearingError::Snapshot(e.to_string())
}

/// The request of saved bytes, and what follows.
fn head(bytes: &[u8]) -> Result<(Wish, Reader<'_>), Unfit> {
    let mut r = Reader::new(bytes, MAGIC)?;
    let temperature = r.float()?;
    let (top_k, seed) = (r.position()?, r.number()?);
    Ok((Wish { sampling: Sampling { temperature, top_k, seed, ..Sampling::default() } }, r))
}

impl SttEar {
    /// The request of a saved stream.
    pub(super) fn saved_wish(bytes: &[u8]) -> Result<Wish, HearingError> {
        head(bytes).map(|(wish, _)| wish).map_err(unfit)
    }

    pub(super) fn save_slot(&mut self, exec: &mut Exec, i: usize) -> Vec<u8> {
        let mut w = Writer::new(MAGIC);
        let Some(slot) = &self.slots[i] else { return w.into_bytes() };
        let sampling = slot.wish.sampling;
        w.float(sampling.temperature);
        w.size(sampling.top_k);
        w.number(sampling.seed);
        w.size(slot.frames);
        slot.words.state().into_iter().for_each(|v| w.size(v));
        self.with_codec(|this, codec| {
            let (mimi, state) = (&this.model.mimi, &mut this.mimi);
            match codec {
                Some(codec) => {
                    mimi.save(codec, state, i, &mut w);
                    exec.take_failure(codec);
                }
                None => mimi.save(exec, state, i, &mut w),
            }
        });
        let position = self.lm.position(i);
        w.size(position);
        let tokens = self.ring.save(exec, i, position);
        tokens.into_iter().for_each(|token| w.number(u64::from(token)));
        let cache = &self.lm.decoder.cache;
        let values = exec.read_cache(cache, i, self.kept(position));
        // Values were rounded when they were written: the upper half is all of them.
        if cache.spec().format == KvFormat::F32 {
            w.values(&values)
        } else {
            w.halves(&values)
        }
        w.into_bytes()
    }

    pub(super) fn restore_slot(
        &mut self,
        exec: &mut Exec,
        i: usize,
        wish: Wish,
        bytes: &[u8],
    ) -> Result<(), HearingError> {
        let (saved, mut r) = head(bytes).map_err(unfit)?;
        if saved != wish {
            return Err(unfit("it has another temperature or seed than the request"));
        }
        self.restore_rest(exec, i, &mut r).and_then(|()| r.finish()).map_err(unfit)
    }

    fn restore_rest(&mut self, exec: &mut Exec, i: usize, r: &mut Reader<'_>) -> Result<(), Unfit> {
        let frames = r.position()?;
        let words = [r.position()?, r.position()?, r.count(1)?, r.position()?];
        // A step for each frame, and one before the first.
        let steps = if frames == 0 { 0 } else { frames + 1 };
        if words[0] != steps || words[1] > steps || words[3] > steps {
            return Err(Unfit("it has another number of steps than of frames"));
        }
        self.with_codec(|this, codec| {
            let (mimi, state) = (&this.model.mimi, &mut this.mimi);
            let Some(codec) = codec else { return mimi.restore(exec, state, i, frames, r) };
            let restored = mimi.restore(codec, state, i, frames, r);
            exec.take_failure(codec);
            restored
        })?;
        if r.position()? != steps {
            return Err(Unfit("the language model has seen another number of frames"));
        }
        let columns = self.ring.tokens.cols();
        let token = |r: &mut Reader<'_>| r.count(u32::MAX as usize).map(|t| t as u32);
        let tokens = (0..columns).map(|_| token(r)).collect::<Result<Vec<_>, _>>()?;
        let kept = self.kept(steps);
        let cache = &mut self.lm.decoder.cache;
        let spec = *cache.spec();
        let count = 2 * spec.layers * spec.kv_heads * kept.len() * spec.head_dim;
        let values = if spec.format == KvFormat::F32 { r.values(count)? } else { r.halves(count)? };
        cache.reset(i);
        cache.advance(i, steps);
        exec.write_cache(cache, i, kept, &values);
        self.ring.restore(exec, i, steps, &tokens);
        let Some(slot) = &mut self.slots[i] else { return Err(Unfit("its slot is empty")) };
        (slot.frames, slot.asked) = (frames, steps);
        slot.words.set_state(words);
        Ok(())
    }

    /// Positions that a stream which has come to `end` still sees.
    fn kept(&self, end: usize) -> std::ops::Range<usize> {
        end.saturating_sub(self.model.lm.config().context)..end
    }
}
