//! Keys and values of streaming attention: a ring per layer, slot and head.
//!
//! Both lie as packed panels, so that attention is two matrix products: keys as panels of 16 positions
//! (`[position / 16][dim][16]`), values as panels of 16 dimensions (`[dim / 16][position][16]`). In bf16
//! two neighbours along the inner dimension share a lane, as in weight panels.

use crate::memory::AlignedVec;
use crate::simd::lanes::{LANES, round_bf16};

/// Positions that a product over positions takes at once.
pub(super) const TILE: usize = 32;

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
    /// Positions each ring holds; rounded up to 32.
    pub capacity: usize,
    /// Storage.
    pub format: KvFormat,
}

impl KvSpec {
    /// Head dimension padded to the lanes, or to a tile.
    pub(crate) fn width(&self) -> usize {
        self.head_dim.next_multiple_of(if self.format == KvFormat::F32 { LANES } else { TILE })
    }

    /// Values in one head's ring.
    fn ring(&self) -> usize {
        self.capacity * self.width()
    }

    /// Offset in a ring of keys of dimension `d` at ring position `at`.
    fn key(&self, at: usize, d: usize) -> usize {
        let panel = at / LANES * self.width() * LANES;
        panel + self.inner(d, at % LANES)
    }

    /// Offset in a ring of values of dimension `d` at ring position `at`.
    fn value(&self, at: usize, d: usize) -> usize {
        let panel = d / LANES * self.capacity * LANES;
        panel + self.inner(at, d % LANES)
    }

    /// Offset in a panel of inner index `k` and lane `l`.
    fn inner(&self, k: usize, l: usize) -> usize {
        match self.format {
            KvFormat::F32 => k * LANES + l,
            KvFormat::Bf16 => k / 2 * 2 * LANES + 2 * l + k % 2,
        }
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> usize {
        let value = if self.format == KvFormat::F32 { 4 } else { 2 };
        2 * self.layers * self.slots * self.kv_heads * self.ring() * value
    }
}

impl KvSpec {
    /// Writes one head's key (`kv` 0) or value (1) at ring position `at` of the ring at value `ring`.
    ///
    /// # Safety
    /// `base` is the storage of a cache of this shape and `ring` a ring's offset in it that nobody else uses.
    pub(super) unsafe fn put(&self, base: *mut u8, ring: usize, kv: usize, at: usize, values: &[f32]) {
        let key = ring + self.key(at, 0);
        // SAFETY: offsets of a position and a dimension are inside the ring.
        unsafe {
            match (self.format, kv) {
                (KvFormat::F32, 0) => {
                    let to = base.cast::<f32>().add(key);
                    values.iter().enumerate().for_each(|(d, &v)| *to.add(d * LANES) = v);
                }
                // Two neighbours share a lane: one write for both.
                (KvFormat::Bf16, 0) => {
                    let to = base.cast::<u16>().add(key).cast::<u32>();
                    let (pairs, rest) = values.as_chunks::<2>();
                    for (i, [a, b]) in pairs.iter().enumerate() {
                        *to.add(i * LANES) = u32::from(round_bf16(*a)) | u32::from(round_bf16(*b)) << 16;
                    }
                    if let [last] = rest {
                        *to.add(pairs.len() * LANES) = u32::from(round_bf16(*last));
                    }
                }
                (format, _) => {
                    for (panel, values) in values.chunks(LANES).enumerate() {
                        let to = ring + self.value(at, panel * LANES);
                        match format {
                            KvFormat::F32 => {
                                let to = base.cast::<f32>().add(to);
                                std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
                            }
                            KvFormat::Bf16 => {
                                let to = base.cast::<u16>().add(to);
                                values.iter().enumerate().for_each(|(l, &v)| *to.add(2 * l) = round_bf16(v));
                            }
                        }
                    }
                }
            }
        }
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
        let spec = KvSpec { capacity: spec.capacity.next_multiple_of(TILE), ..spec };
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

    /// Offsets in the storage, in values, of a head's keys and values.
    pub(crate) fn rings(&self, layer: usize, slot: usize, head: usize) -> [usize; 2] {
        [self.offset(layer, slot, head, 0), self.offset(layer, slot, head, 1)]
    }

    /// Writes the key (`kv` 0) or value (1) of one head at an absolute position.
    pub fn write(&mut self, at: KvIndex, kv: usize, values: &[f32]) {
        let base = self.base();
        let ring = self.offset(at.layer, at.slot, at.head, kv);
        // SAFETY: the ring is inside the storage, which is exclusively borrowed.
        unsafe {
            self.spec.put(base, ring, kv, at.position % self.spec.capacity, &values[..self.spec.head_dim])
        };
    }

    /// Reads the key (`kv` 0) or value (1) of one head at an absolute position.
    pub fn read(&self, at: KvIndex, kv: usize, out: &mut [f32]) {
        let s = &self.spec;
        let ring = self.offset(at.layer, at.slot, at.head, kv);
        let p = at.position % s.capacity;
        for (d, out) in out[..s.head_dim].iter_mut().enumerate() {
            let o = ring + if kv == 0 { s.key(p, d) } else { s.value(p, d) };
            *out = match &self.data {
                Data::F32(v) => v[o],
                Data::Bf16(v) => f32::from_bits((v[o] as u32) << 16),
            };
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
        // Whole panels of keys; of values, the first positions of each panel.
        let blocks = positions.div_ceil(LANES);
        let pieces =
            [(1, a.width() * LANES * blocks), (a.width() / LANES, positions.next_multiple_of(2) * LANES)];
        for layer in 0..a.layers {
            for head in 0..a.kv_heads {
                for (kv, (panels, len)) in pieces.into_iter().enumerate() {
                    for p in 0..panels {
                        let to = self.offset(layer, slot, head, kv) + p * a.capacity * LANES;
                        let at = from.offset(layer, from_slot, head, kv) + p * b.capacity * LANES;
                        match (&mut self.data, &from.data) {
                            (Data::F32(d), Data::F32(s)) => d[to..to + len].copy_from_slice(&s[at..at + len]),
                            (Data::Bf16(d), Data::Bf16(s)) => {
                                d[to..to + len].copy_from_slice(&s[at..at + len])
                            }
                            _ => unreachable!("formats are equal"),
                        }
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
