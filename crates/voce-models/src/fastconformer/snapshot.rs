//! A stream's encoder state as bytes: what it keeps of the past, whatever the ring's length or the slot.

use voce_runtime::{Exec, KvFormat};

use super::Attention;
use super::encoder::{Encoder, EncoderState, StreamShape};

/// First bytes of a snapshot; the last is the version.
const MAGIC: [u8; 8] = *b"voceenc1";

/// A snapshot that does not fit.
#[derive(Debug, thiserror::Error)]
#[error("the snapshot does not fit this model: {0}")]
pub struct SnapshotError(&'static str);

impl Encoder {
    /// What a slot's stream needs to go on elsewhere.
    pub fn save(&self, exec: &mut Exec, state: &EncoderState, slot: usize) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let mut number = |v: usize| out.extend_from_slice(&(v as u64).to_le_bytes());
        let shape = state.shapes[slot];
        let position = state.cache.position(slot);
        let spec = *state.cache.spec();
        number(spec.layers);
        number(spec.kv_heads);
        number(spec.head_dim);
        number(usize::from(spec.format == KvFormat::F32));
        number(shape.look_ahead);
        number(shape.language);
        number(position);
        let mut floats = |v: &[f32]| v.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes()));
        for conv in &state.convs {
            floats(&exec.save_conv(conv, slot));
        }
        for stage in state.subsampling.stages() {
            let (seen, rows) = exec.save_subsample(stage, slot);
            floats(&[f32::from_bits(seen as u32)]);
            floats(&rows);
        }
        for x in exec.read_cache(&state.cache, slot, self.kept(position)) {
            match spec.format {
                KvFormat::F32 => out.extend_from_slice(&x.to_le_bytes()),
                // The value was rounded when it was written: its upper half is all of it. So it is with e4m3, whose rows
                // have powers of two, and a stream may go on in the other of the two.
                KvFormat::Bf16 | KvFormat::Fp8 => {
                    out.extend_from_slice(&((x.to_bits() >> 16) as u16).to_le_bytes())
                }
            }
        }
        out
    }

    /// Puts a saved stream into a slot.
    pub fn restore(
        &self,
        exec: &mut Exec,
        state: &mut EncoderState,
        slot: usize,
        bytes: &[u8],
    ) -> Result<(), SnapshotError> {
        let mut from = Reader(bytes);
        if from.take(8)? != MAGIC {
            return Err(SnapshotError("it was not written by this version"));
        }
        let spec = *state.cache.spec();
        let expected = [spec.layers, spec.kv_heads, spec.head_dim, usize::from(spec.format == KvFormat::F32)];
        for expected in expected {
            if from.number()? != expected {
                return Err(SnapshotError("another model or precision"));
            }
        }
        let shape = StreamShape { look_ahead: from.number()?, language: from.number()? };
        let known = match &self.config().attention {
            Attention::Full => true,
            Attention::Chunked { look_aheads, .. } => look_aheads.contains(&shape.look_ahead),
        };
        if !known || !self.has_language(shape.language) {
            return Err(SnapshotError("it asks for a chunk or a language that the model has not"));
        }
        let position = from.number()?;
        if position > u32::MAX as usize {
            return Err(SnapshotError("its position is out of range"));
        }
        self.start(state, slot, shape);
        for conv in &mut state.convs {
            let rows = from.floats(conv.slot_len())?;
            exec.restore_conv(conv, slot, &rows);
        }
        for stage in state.subsampling.stages_mut() {
            let seen = from.floats(1)?[0].to_bits() as usize;
            let rows = from.floats(stage.slot_len())?;
            exec.restore_subsample(stage, slot, seen, &rows);
        }
        state.cache.advance(slot, position);
        let kept = self.kept(position);
        let count = 2 * spec.layers * spec.kv_heads * kept.len() * spec.head_dim;
        let values = match spec.format {
            KvFormat::F32 => from.floats(count)?,
            KvFormat::Bf16 | KvFormat::Fp8 => from.halves(count)?,
        };
        exec.write_cache(&mut state.cache, slot, kept, &values);
        if from.0.is_empty() { Ok(()) } else { Err(SnapshotError("it is too long")) }
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

/// What is left of a snapshot.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], SnapshotError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(SnapshotError("it is cut short"))?;
        self.0 = tail;
        Ok(head)
    }

    fn number(&mut self) -> Result<usize, SnapshotError> {
        let bytes = self.take(8)?.try_into().expect("eight bytes");
        usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| SnapshotError("a number is out of range"))
    }

    fn floats(&mut self, n: usize) -> Result<Vec<f32>, SnapshotError> {
        let bytes = self.take(4 * n)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    fn halves(&mut self, n: usize) -> Result<Vec<f32>, SnapshotError> {
        let bytes = self.take(2 * n)?;
        let wide = |b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
        Ok(bytes.as_chunks::<2>().0.iter().map(wide).collect())
    }
}
