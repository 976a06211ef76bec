//! Keys and values of streaming attention: a ring per layer, slot and head.

use crate::memory::AlignedVec;
use crate::simd::lanes::{LANES, round_bf16};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvFormat {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
}

/// Shape of a [`KvCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpec {
    /// Layers.
    pub layers: usize,
    /// Streams that can run side by side.
    pub slots: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Positions each ring holds.
    pub capacity: usize,
    /// Storage.
    pub format: KvFormat,
}

impl KvSpec {
    /// Head dimension padded to the lanes.
    pub(crate) fn width(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Values in one head's ring.
    fn ring(&self) -> usize {
        self.capacity * self.width()
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> usize {
        let value = if self.format == KvFormat::F32 { 4 } else { 2 };
        2 * self.layers * self.slots * self.kv_heads * self.ring() * value
    }
}

enum Data {
    F32(AlignedVec<f32>),
    Bf16(AlignedVec<u16>),
}

/// Rings of keys and values, and each slot's position.
pub struct KvCache {
    spec: KvSpec,
    data: Data,
    positions: Vec<usize>,
}

impl KvCache {
    /// Empty rings.
    pub fn new(spec: KvSpec) -> Self {
        let values = 2 * spec.layers * spec.slots * spec.kv_heads * spec.ring();
        let data = match spec.format {
            KvFormat::F32 => Data::F32(AlignedVec::zeroed(values)),
            KvFormat::Bf16 => Data::Bf16(AlignedVec::zeroed(values)),
        };
        Self { spec, data, positions: vec![0; spec.slots] }
    }

    /// Its shape.
    pub fn spec(&self) -> &KvSpec {
        &self.spec
    }

    /// The next position of a slot.
    pub fn position(&self, slot: usize) -> usize {
        self.positions[slot]
    }

    /// Moves a slot on, after all layers have run over its rows.
    pub fn advance(&mut self, slot: usize, rows: usize) {
        self.positions[slot] += rows;
    }

    /// Starts a slot anew.
    pub fn reset(&mut self, slot: usize) {
        self.positions[slot] = 0;
    }

    /// First value of a head's ring of keys (`kv` 0) or values (1).
    fn offset(&self, layer: usize, slot: usize, head: usize, kv: usize) -> usize {
        let s = &self.spec;
        (((layer * s.slots + slot) * s.kv_heads + head) * 2 + kv) * s.ring()
    }

    /// The storage, for ops that write several heads at once.
    pub(crate) fn base(&mut self) -> *mut u8 {
        match &mut self.data {
            Data::F32(d) => d.as_mut_ptr().cast(),
            Data::Bf16(d) => d.as_mut_ptr().cast(),
        }
    }

    /// Byte offsets in the storage of a head's keys and values.
    pub(crate) fn rings(&self, layer: usize, slot: usize, head: usize) -> (usize, usize) {
        let value = if self.spec.format == KvFormat::F32 { 4 } else { 2 };
        (self.offset(layer, slot, head, 0) * value, self.offset(layer, slot, head, 1) * value)
    }

    /// Writes the key (`kv` 0) or value (1) of one head at an absolute position.
    pub fn write(&mut self, at: KvIndex, kv: usize, values: &[f32]) {
        let (width, dim) = (self.spec.width(), self.spec.head_dim);
        let o = self.offset(at.layer, at.slot, at.head, kv) + at.position % self.spec.capacity * width;
        match &mut self.data {
            Data::F32(d) => d[o..o + dim].copy_from_slice(&values[..dim]),
            Data::Bf16(d) => {
                d[o..o + dim].iter_mut().zip(values).for_each(|(d, &v)| *d = round_bf16(v));
            }
        }
    }

    /// Reads the key (`kv` 0) or value (1) of one head at an absolute position.
    pub fn read(&self, at: KvIndex, kv: usize, out: &mut [f32]) {
        let (width, dim) = (self.spec.width(), self.spec.head_dim);
        let o = self.offset(at.layer, at.slot, at.head, kv) + at.position % self.spec.capacity * width;
        match &self.data {
            Data::F32(d) => out[..dim].copy_from_slice(&d[o..o + dim]),
            Data::Bf16(d) => {
                out[..dim]
                    .iter_mut()
                    .zip(&d[o..o + dim])
                    .for_each(|(x, &b)| *x = f32::from_bits((b as u32) << 16));
            }
        }
    }

    /// Copies the first `positions` positions of a slot of another cache of the same heads into `slot`,
    /// and sets its position.
    pub fn copy_prefix(&mut self, slot: usize, from: &KvCache, from_slot: usize, positions: usize) {
        let (a, b) = (self.spec, from.spec);
        assert!(
            a.layers == b.layers
                && a.kv_heads == b.kv_heads
                && a.head_dim == b.head_dim
                && a.format == b.format,
            "caches of one model"
        );
        assert!(positions <= a.capacity && positions <= b.capacity, "prefix fits both rings");
        let len = positions * a.width();
        for layer in 0..a.layers {
            for head in 0..a.kv_heads {
                for kv in 0..2 {
                    let to = self.offset(layer, slot, head, kv);
                    let at = from.offset(layer, from_slot, head, kv);
                    match (&mut self.data, &from.data) {
                        (Data::F32(d), Data::F32(s)) => d[to..to + len].copy_from_slice(&s[at..at + len]),
                        (Data::Bf16(d), Data::Bf16(s)) => d[to..to + len].copy_from_slice(&s[at..at + len]),
                        _ => unreachable!("formats are equal"),
                    }
                }
            }
        }
        self.positions[slot] = positions;
    }
}

/// A place in a [`KvCache`].
#[derive(Clone, Copy, Debug)]
pub struct KvIndex {
    /// Layer.
    pub layer: usize,
    /// Slot.
    pub slot: usize,
    /// Key/value head.
    pub head: usize,
    /// Absolute position.
    pub position: usize,
}
