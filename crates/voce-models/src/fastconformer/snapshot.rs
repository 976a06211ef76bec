//! A stream's encoder state as bytes: what it keeps of the past, whatever the ring's length or the slot.

use voce_runtime::{Exec, KvFormat};

use super::Attention;
use super::encoder::{Encoder, EncoderState, StreamShape};
use crate::saved::{Reader, Unfit, Writer};

/// First bytes of a snapshot; the last is the version.
const MAGIC: [u8; 8] = *b"voceenc2";

/// A snapshot that does not fit.
#[derive(Debug, thiserror::Error)]
#[error("the snapshot does not fit this model: {0}")]
pub struct SnapshotError(#[from] Unfit);

impl Encoder {
    /// What a slot's stream needs to go on elsewhere.
    pub fn save(&self, exec: &mut Exec, state: &EncoderState, slot: usize) -> Vec<u8> {
        let mut w = Writer::new(MAGIC);
        let shape = state.shapes[slot];
        let position = state.cache.position(slot);
        let spec = *state.cache.spec();
        let is_f32 = usize::from(spec.format == KvFormat::F32);
        for v in
            [spec.layers, spec.kv_heads, spec.head_dim, is_f32, shape.look_ahead, shape.language, position]
        {
            w.size(v);
        }
        for conv in &state.convs {
            w.values(&exec.save_conv(conv, slot));
        }
        for stage in state.subsampling.stages() {
            let (seen, rows) = exec.save_subsample(stage, slot);
            w.size(seen);
            w.values(&rows);
        }
        let values = exec.read_cache(&state.cache, slot, self.kept(position));
        match spec.format {
            KvFormat::F32 => w.values(&values),
            // Values were rounded when they were written: the upper half is all of them. So it is with e4m3, whose rows have
            // powers of two, and a stream may go on in the other of the two.
            KvFormat::Bf16 | KvFormat::Fp8 => w.halves(&values),
        }
        w.into_bytes()
    }

    /// Puts a saved stream into a slot. One that fails leaves the slot to be started anew.
    pub fn restore(
        &self,
        exec: &mut Exec,
        state: &mut EncoderState,
        slot: usize,
        bytes: &[u8],
    ) -> Result<(), SnapshotError> {
        let mut r = Reader::new(bytes, MAGIC)?;
        let spec = *state.cache.spec();
        let expected = [spec.layers, spec.kv_heads, spec.head_dim, usize::from(spec.format == KvFormat::F32)];
        for expected in expected {
            if r.number()? != expected as u64 {
                return Err(Unfit("another model or precision").into());
            }
        }
        let shape = StreamShape { look_ahead: r.position()?, language: r.position()? };
        self.check_shape(shape)?;
        let position = r.position()?;
        // Between steps a stream has whole chunks behind it; anything else would ask rings for more than they hold.
        if !self.is_offline() && !position.is_multiple_of(shape.look_ahead + 1) {
            return Err(Unfit("its position is inside a chunk").into());
        }
        self.start(state, slot, shape);
        for conv in &mut state.convs {
            let rows = r.values(conv.slot_len())?;
            exec.restore_conv(conv, slot, &rows);
        }
        let mut rows = if position == 0 { 0 } else { self.mel_rows(position - 1, 1, true) };
        for stage in state.subsampling.stages_mut() {
            let seen = r.position()?;
            if seen != rows {
                return Err(Unfit("it has seen another number of rows than it has made frames of").into());
            }
            rows = stage.yields(slot, rows, false);
            let kept = r.values(stage.slot_len())?;
            exec.restore_subsample(stage, slot, seen, &kept);
        }
        state.cache.advance(slot, position);
        let kept = self.kept(position);
        let count = 2 * spec.layers * spec.kv_heads * kept.len() * spec.head_dim;
        let values = match spec.format {
            KvFormat::F32 => r.values(count)?,
            KvFormat::Bf16 | KvFormat::Fp8 => r.halves(count)?,
        };
        r.finish()?;
        exec.write_cache(&mut state.cache, slot, kept, &values);
        Ok(())
    }

    /// Fails for a chunk or a language that the model has not.
    pub(super) fn check_shape(&self, shape: StreamShape) -> Result<(), Unfit> {
        let known = match &self.config().attention {
            Attention::Full => true,
            Attention::Chunked { look_aheads, .. } => look_aheads.contains(&shape.look_ahead),
        };
        if known && self.has_language(shape.language) {
            Ok(())
        } else {
            Err(Unfit("it asks for a chunk or a language that the model has not"))
        }
    }

    /// The positions that a stream which has come to `end` still sees.
    fn kept(&self, end: usize) -> std::ops::Range<usize> {
        let left = match &self.config().attention {
            Attention::Full => 0,
            Attention::Chunked { left, .. } => *left,
        };
        end.saturating_sub(left)..end
    }
}
