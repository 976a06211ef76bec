//! A stream's encoder state as values: what its convolutions and its window remember.

use voce_runtime::{ConvState, Exec, KvFormat};

use super::encoder::MimiEncoderState;
use super::tokenizer::{MimiTokenizer, MimiTokenizerState};
use crate::saved::{Reader, Unfit, Writer};

/// All convolutions of a state, in order.
fn convolutions(state: &mut MimiEncoderState) -> impl Iterator<Item = &mut ConvState> {
    let [high, low] = &mut state.seanet;
    high.histories().chain(low.histories()).chain([&mut state.downsample])
}

impl MimiTokenizer {
    /// Writes what a slot's stream needs to go on elsewhere.
    pub fn save(&self, exec: &mut Exec, state: &mut MimiTokenizerState, slot: usize, w: &mut Writer) {
        let state = &mut state.encoder;
        let position = state.transformer.cache.position(slot);
        let is_f32 = state.transformer.cache.spec().format == KvFormat::F32;
        w.size(position);
        if position == 0 {
            return;
        }
        for conv in convolutions(state) {
            w.values(&exec.save_conv(conv, slot));
        }
        let values = exec.read_cache(&state.transformer.cache, slot, self.kept(position));
        // Values were rounded when they were written: the upper half is all of them.
        if is_f32 { w.values(&values) } else { w.halves(&values) }
    }

    /// Puts what [`MimiTokenizer::save`] wrote into a slot, which has come to `frames` frames. One that fails leaves the
    /// slot to be started anew.
    pub fn restore(
        &self,
        exec: &mut Exec,
        state: &mut MimiTokenizerState,
        slot: usize,
        frames: usize,
        r: &mut Reader<'_>,
    ) -> Result<(), Unfit> {
        state.reset(slot);
        let position = r.position()?;
        if position != frames * self.encoder().steps() {
            return Err(Unfit("the codec has seen another number of frames"));
        }
        if position == 0 {
            return Ok(());
        }
        for conv in convolutions(&mut state.encoder) {
            let rows = r.values(conv.slot_len())?;
            exec.restore_conv(conv, slot, &rows);
        }
        let cache = &mut state.encoder.transformer.cache;
        let spec = *cache.spec();
        let kept = self.kept(position);
        let count = 2 * spec.layers * spec.kv_heads * kept.len() * spec.head_dim;
        let values = if spec.format == KvFormat::F32 { r.values(count)? } else { r.halves(count)? };
        cache.advance(slot, position);
        exec.write_cache(cache, slot, kept, &values);
        Ok(())
    }

    /// Positions that a stream which has come to `end` still sees.
    fn kept(&self, end: usize) -> std::ops::Range<usize> {
        let window = self.encoder().transformer().config().window.unwrap_or(end);
        end.saturating_sub(window)..end
    }
}
