//! Keys and values of streaming attention: a ring per layer, slot and head, in the memory of the executor that first uses them.
//!
//! On a device they are rows `[layer][slot][head][keys, values][position][width]`. On a CPU both lie as packed panels, so that attention is two matrix products: keys as panels of 16 positions
//! (`[position / 16][dim][16]`), values as panels of 16 dimensions (`[dim / 16][position][16]`). In bf16
//! two neighbours along the inner dimension share a lane, as in weight panels.

use std::ops::Range;
use std::sync::OnceLock;

use super::Exec;
use crate::cuda::{CudaError, Memory};
use crate::memory::{AlignedVec, volume};
use crate::simd::lanes::{LANES, round_bf16};

/// Positions that a product over positions takes at once.
pub(super) const TILE: usize = 32;

/// The last position that a slot can come to: far beyond any stream, and sums of it with rows do not overflow.
pub const MAX_POSITION: usize = isize::MAX as usize / 2;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvFormat {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// e4m3 with a power of two for each head's row; on CPUs bfloat16 stands for it.
    Fp8,
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
            KvFormat::Bf16 | KvFormat::Fp8 => k / 2 * 2 * LANES + 2 * l + k % 2,
        }
    }

    /// Bytes of a value on a device.
    pub(crate) fn value_bytes(&self) -> usize {
        match self.format {
            KvFormat::F32 => 4,
            KvFormat::Bf16 => 2,
            KvFormat::Fp8 => 1,
        }
    }

    /// Bytes of a ring on a device; behind one of e4m3 is a byte for each of its rows.
    fn ring_bytes(&self) -> usize {
        self.ring() * self.value_bytes() + if self.format == KvFormat::Fp8 { self.capacity } else { 0 }
    }

    /// Rings of the whole cache.
    fn rings(&self) -> usize {
        2 * self.layers * self.slots * self.kv_heads
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> usize {
        self.rings() * self.ring_bytes()
    }

    /// Values of one slot's keys and values over `positions` positions.
    pub(crate) fn slice_len(&self, positions: usize) -> usize {
        2 * self.layers * self.kv_heads * positions * self.head_dim
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
                (KvFormat::Bf16 | KvFormat::Fp8, 0) => {
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
                            KvFormat::Bf16 | KvFormat::Fp8 => {
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

impl Data {
    fn new(spec: &KvSpec) -> Self {
        let values = spec.rings() * spec.ring();
        match spec.format {
            KvFormat::F32 => Data::F32(AlignedVec::zeroed(values)),
            KvFormat::Bf16 | KvFormat::Fp8 => Data::Bf16(AlignedVec::zeroed(values)),
        }
    }
}

enum Storage {
    Host(Data),
    Device(Memory),
}

/// Rings of keys and values, and each slot's position.
pub struct KvCache {
    spec: KvSpec,
    /// Made by the executor that first uses it.
    storage: OnceLock<Storage>,
    positions: Vec<usize>,
    /// Positions that come and go together.
    frame: usize,
}

impl KvCache {
    /// Empty rings.
    pub fn new(spec: KvSpec) -> Self {
        let capacity = spec.capacity.checked_next_multiple_of(TILE).expect("a size that fits in memory");
        let spec = KvSpec { capacity, ..spec };
        // Checked here as bytes of the largest format, so that offsets in the storage cannot overflow later.
        volume([8, spec.layers, spec.slots, spec.kv_heads, capacity, spec.width()]);
        Self { spec, storage: OnceLock::new(), positions: vec![0; spec.slots], frame: 1 }
    }

    /// The same cache for streams whose positions come in frames of this many: what leaves the window does so with all
    /// of a frame, so that the first row of a frame sees no more of the past than the last.
    pub fn in_frames(mut self, positions: usize) -> Self {
        assert!(positions > 0, "a frame has positions");
        self.frame = positions;
        self
    }

    /// Positions of a frame.
    pub(crate) fn frame(&self) -> usize {
        self.frame
    }

    /// The first position that a row sees through a window.
    pub(crate) fn first_seen(&self, window: Option<usize>, position: usize) -> usize {
        let end = (position / self.frame + 1) * self.frame;
        // A window shorter than a frame still has the row itself.
        window.map_or(0, |w| end.saturating_sub(w).min(position))
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
        let at = &mut self.positions[slot];
        assert!(rows <= MAX_POSITION - *at, "a stream of at most {MAX_POSITION} positions");
        *at += rows;
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

    fn host(&self) -> &Data {
        match self.storage.get_or_init(|| Storage::Host(Data::new(&self.spec))) {
            Storage::Host(data) => data,
            Storage::Device(_) => panic!("a cache on a device is used by that device's executor"),
        }
    }

    fn host_mut(&mut self) -> &mut Data {
        self.host();
        match self.storage.get_mut() {
            Some(Storage::Host(data)) => data,
            _ => unreachable!("the host's storage was made or found"),
        }
    }

    /// Its memory on a device, if it is there.
    pub(crate) fn memory(&self) -> Option<&Memory> {
        match self.storage.get() {
            Some(Storage::Device(memory)) => Some(memory),
            _ => None,
        }
    }

    /// What it holds in the device's layout, if the host has it.
    pub(crate) fn rows_if_host(&self) -> Option<Vec<u8>> {
        let Some(Storage::Host(_)) = self.storage.get() else { return None };
        let s = &self.spec;
        let (value, row) = (s.value_bytes(), s.width() * s.value_bytes());
        let mut bytes = vec![0u8; s.bytes()];
        let mut values = vec![0f32; s.head_dim];
        for (ring, rows) in bytes.chunks_exact_mut(s.ring_bytes()).enumerate() {
            let (rows, exponents) = rows.split_at_mut(s.capacity * row);
            let (kv, head) = (ring % 2, ring / 2 % s.kv_heads);
            let (slot, layer) = (ring / 2 / s.kv_heads % s.slots, ring / 2 / s.kv_heads / s.slots);
            for (position, to) in rows.chunks_exact_mut(row).enumerate() {
                self.read(KvIndex { layer, slot, head, position }, kv, &mut values);
                if s.format == KvFormat::Fp8 {
                    exponents[position] = crate::fp8::keep_row(&values, to);
                    continue;
                }
                // A bf16 value is the upper half of its f32.
                for (to, v) in to.chunks_exact_mut(value).zip(&values) {
                    to.copy_from_slice(&v.to_le_bytes()[4 - value..]);
                }
            }
        }
        Some(bytes)
    }

    /// Puts it on a device.
    pub(crate) fn set_memory(&mut self, memory: Memory) {
        self.storage = OnceLock::from(Storage::Device(memory));
    }

    /// Places of a slot's keys (0) and values (1) in the order of [`Exec::read_cache`].
    fn places(&self, slot: usize, positions: Range<usize>) -> impl Iterator<Item = (KvIndex, usize)> + use<> {
        let (heads, n, start) = (self.spec.kv_heads, positions.len(), positions.start);
        (0..2 * self.spec.layers * heads * n).map(move |i| {
            let (kv, position, ring) = (i % 2, start + i / 2 % n, i / 2 / n);
            (KvIndex { layer: ring / heads, slot, head: ring % heads, position }, kv)
        })
    }

    /// The storage, for ops that write several heads at once.
    pub(crate) fn base(&mut self) -> *mut u8 {
        match self.host_mut() {
            Data::F32(d) => d.as_mut_ptr().cast(),
            Data::Bf16(d) => d.as_mut_ptr().cast(),
        }
    }

    /// Offsets in the storage, in values, of a head's keys and values.
    pub(crate) fn rings(&self, layer: usize, slot: usize, head: usize) -> [usize; 2] {
        [self.offset(layer, slot, head, 0), self.offset(layer, slot, head, 1)]
    }

    fn check(&self, at: KvIndex, kv: usize) {
        let s = &self.spec;
        let there = at.layer < s.layers && at.slot < s.slots && at.head < s.kv_heads && kv < 2;
        assert!(there, "{at:?} of {s:?}");
    }

    /// Writes the key (`kv` 0) or value (1) of one head at an absolute position; not for caches on a device.
    pub fn write(&mut self, at: KvIndex, kv: usize, values: &[f32]) {
        self.check(at, kv);
        let base = self.base();
        let ring = self.offset(at.layer, at.slot, at.head, kv);
        // SAFETY: the ring is inside the storage, as was checked, and the storage is exclusively borrowed.
        unsafe {
            self.spec.put(base, ring, kv, at.position % self.spec.capacity, &values[..self.spec.head_dim])
        };
    }

    /// Reads the key (`kv` 0) or value (1) of one head at an absolute position; not for caches on a device.
    pub fn read(&self, at: KvIndex, kv: usize, out: &mut [f32]) {
        self.check(at, kv);
        let s = &self.spec;
        let ring = self.offset(at.layer, at.slot, at.head, kv);
        let p = at.position % s.capacity;
        let data = self.host();
        for (d, out) in out[..s.head_dim].iter_mut().enumerate() {
            let o = ring + if kv == 0 { s.key(p, d) } else { s.value(p, d) };
            *out = match data {
                Data::F32(v) => v[o],
                Data::Bf16(v) => f32::from_bits((v[o] as u32) << 16),
            };
        }
    }

    fn check_prefix(&self, from: &KvCache, from_slot: usize, positions: usize) {
        let (a, b) = (self.spec, from.spec);
        assert!(
            a.layers == b.layers
                && a.kv_heads == b.kv_heads
                && a.head_dim == b.head_dim
                && a.format == b.format,
            "caches of one model"
        );
        assert!(positions <= a.capacity && positions <= b.capacity, "prefix fits both rings");
        assert!(from_slot < b.slots, "slot {from_slot} of {}", b.slots);
    }

    /// Copies the first `positions` positions of a slot of another cache of the same heads into `slot`, and sets
    /// its position; for caches that may be on a device there is [`Exec::copy_prefix`].
    pub fn copy_prefix(&mut self, slot: usize, from: &KvCache, from_slot: usize, positions: usize) {
        self.check_prefix(from, from_slot, positions);
        assert!(slot < self.spec.slots, "slot {slot} of {}", self.spec.slots);
        let (a, b) = (self.spec, from.spec);
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
                        match (self.host_mut(), from.host()) {
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

impl Exec {
    /// Gives a cache its memory where this executor's ops run, with what it holds, so that lack of it is known
    /// before a stream begins. Without this, an op does it at first use.
    pub fn reserve_cache(&mut self, cache: &mut KvCache) -> Result<(), CudaError> {
        self.cuda.as_mut().map_or(Ok(()), |cuda| cuda.reserve_cache(cache))
    }

    /// Copies the first `positions` positions of a slot of another cache of the same heads into `slot` of `cache`,
    /// and sets its position.
    pub fn copy_prefix(
        &mut self,
        cache: &mut KvCache,
        slot: usize,
        from: &KvCache,
        from_slot: usize,
        positions: usize,
    ) {
        self.copy_prefix_to(cache, &[slot], from, from_slot, positions);
    }

    /// As [`Exec::copy_prefix`], into several slots at once; none is named twice.
    pub fn copy_prefix_to(
        &mut self,
        cache: &mut KvCache,
        slots: &[usize],
        from: &KvCache,
        from_slot: usize,
        positions: usize,
    ) {
        cache.check_prefix(from, from_slot, positions);
        self.scratch.marks.check(cache.spec.slots, slots.iter().copied());
        match &mut self.cuda {
            None => slots.iter().for_each(|&slot| cache.copy_prefix(slot, from, from_slot, positions)),
            Some(cuda) if from.memory().is_some() => {
                cuda.copy_prefix(cache, slots, from, from_slot, positions)
            }
            Some(_) => {
                let values = self.read_cache(from, from_slot, 0..positions);
                slots.iter().for_each(|&slot| self.write_cache(cache, slot, 0..positions, &values));
            }
        }
        slots.iter().for_each(|&slot| cache.positions[slot] = positions);
    }

    /// A slot's keys and values at absolute positions, as `[layer][head][position][key, value][head_dim]`; waits for
    /// a device that has them.
    pub fn read_cache(&mut self, cache: &KvCache, slot: usize, positions: Range<usize>) -> Vec<f32> {
        assert!(slot < cache.spec.slots && positions.len() <= cache.spec.capacity, "rows of the cache");
        if let Some(cuda) = &mut self.cuda
            && cache.memory().is_some()
        {
            return cuda.read_cache(cache, slot, positions);
        }
        let dim = cache.spec.head_dim;
        let mut values = vec![0f32; cache.spec.slice_len(positions.len())];
        if self.cuda.is_some() && cache.storage.get().is_none() {
            // Nothing was written yet, and memory for it would be the host's.
            return values;
        }
        for ((at, kv), to) in cache.places(slot, positions).zip(values.chunks_exact_mut(dim)) {
            cache.read(at, kv, to);
        }
        values
    }

    /// Puts what [`Exec::read_cache`] gave into a slot; its position stays.
    pub fn write_cache(&mut self, cache: &mut KvCache, slot: usize, positions: Range<usize>, values: &[f32]) {
        assert!(slot < cache.spec.slots && positions.len() <= cache.spec.capacity, "rows of the cache");
        assert_eq!(values.len(), cache.spec.slice_len(positions.len()), "values of the rows");
        match &mut self.cuda {
            Some(cuda) => cuda.write_cache(cache, slot, positions, values),
            None => {
                let dim = cache.spec.head_dim;
                for ((at, kv), from) in cache.places(slot, positions).zip(values.chunks_exact(dim)) {
                    cache.write(at, kv, from);
                }
            }
        }
    }
}
