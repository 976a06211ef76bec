//! Caches in device memory: where they are, and how their rows come and go.

use std::ops::Range;

use super::driver::{Address, Shape};
use super::queue::Args;
use super::{Cuda, CudaError, bytes, choice, program};
use crate::exec::{KvCache, KvFormat};

/// Blocks that share a ring when it is copied.
const COPY_BLOCKS: u32 = 8;

/// Arguments of `move_kv_*`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KvMoveArgs {
    cache: Address,
    values: Address,
    place: Address,
    layers: u32,
    slots: u32,
    kv_heads: u32,
    dim: u32,
    width: u32,
    capacity: u32,
    count: u32,
    out: u32,
}

/// Arguments of `copy_kv`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KvCopyArgs {
    to: Address,
    from: Address,
    place: Address,
    kv_heads: u32,
    pieces: u32,
    to_slots: u32,
    from_slots: u32,
    to_capacity: u32,
    from_capacity: u32,
    exponents: u32,
    pad: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for KvMoveArgs {}
// SAFETY: as above.
unsafe impl Args for KvCopyArgs {}

impl Cuda {
    /// Puts a cache on the device, with what it holds.
    pub(crate) fn reserve_cache(&mut self, cache: &mut KvCache) -> Result<(), CudaError> {
        if let Some(memory) = cache.memory() {
            self.queue.own(memory);
            return Ok(());
        }
        let memory = match cache.rows_if_host() {
            Some(rows) => self.device().store(&rows)?,
            None => self.device().alloc(cache.spec().bytes())?,
        };
        cache.set_memory(memory);
        Ok(())
    }

    /// Where a cache is on the device.
    pub(super) fn cache(&mut self, cache: &mut KvCache) -> Address {
        if let Some(memory) = cache.memory() {
            self.queue.own(memory);
            return memory.at;
        }
        let whose = std::ptr::from_ref(cache) as usize;
        let memory = match cache.rows_if_host() {
            Some(rows) => self.queue.store(&rows, whose),
            None => self.queue.alloc(cache.spec().bytes(), whose),
        };
        memory.map_or(0, |memory| {
            let at = memory.at;
            cache.set_memory(memory);
            at
        })
    }

    /// A slot's rows to (`out`) or from f32 `[layer][head][position][keys, values][dim]` in scratch memory.
    fn move_kv(&mut self, cache: &KvCache, slot: usize, positions: Range<usize>, values: Address, out: bool) {
        let spec = cache.spec();
        let count = positions.len() as u32;
        let args = KvMoveArgs {
            cache: cache.memory().map_or(0, |m| m.at),
            values,
            place: self.queue.table(&[slot as u32, positions.start as u32]),
            layers: spec.layers as u32,
            slots: spec.slots as u32,
            kv_heads: spec.kv_heads as u32,
            dim: spec.head_dim as u32,
            width: spec.width() as u32,
            capacity: spec.capacity as u32,
            count,
            out: u32::from(out),
        };
        let grid = [args.layers * args.kv_heads * count, 1, 1];
        self.queue.launch(choice::move_kv(spec.format), Shape { grid, block: 128, shared: 0 }, &args);
    }

    pub(crate) fn read_cache(&mut self, cache: &KvCache, slot: usize, positions: Range<usize>) -> Vec<f32> {
        let mut values = vec![0f32; cache.spec().slice_len(positions.len())];
        let at = self.queue.reserve(&mut self.scratch.moved, values.len() * 4);
        self.move_kv(cache, slot, positions, at, true);
        self.queue.download(at, &mut values);
        values
    }

    pub(crate) fn write_cache(
        &mut self,
        cache: &mut KvCache,
        slot: usize,
        positions: Range<usize>,
        values: &[f32],
    ) {
        self.cache(cache);
        let at = self.queue.reserve(&mut self.scratch.moved, values.len() * 4);
        self.queue.upload(at, bytes(values));
        self.move_kv(cache, slot, positions, at, false);
    }

    /// Copies positions of a slot to slots of another cache; both caches are on the device.
    pub(crate) fn copy_prefix(
        &mut self,
        cache: &mut KvCache,
        slots: &[usize],
        from: &KvCache,
        from_slot: usize,
        positions: usize,
    ) {
        let to = self.cache(cache);
        let (a, b) = (cache.spec(), from.spec());
        let places: Vec<[u32; 3]> =
            slots.iter().map(|&slot| [slot, from_slot, positions].map(|v| v as u32)).collect();
        let args = KvCopyArgs {
            to,
            from: from.memory().map_or(0, |m| m.at),
            place: self.queue.table(&places),
            kv_heads: a.kv_heads as u32,
            pieces: (a.width() * a.value_bytes() / 16) as u32,
            to_slots: a.slots as u32,
            from_slots: b.slots as u32,
            to_capacity: a.capacity as u32,
            from_capacity: b.capacity as u32,
            exponents: u32::from(a.format == KvFormat::Fp8),
            pad: 0,
        };
        // As many as the third dimension of a grid takes are far more than fit a device.
        let grid = [(a.layers * a.kv_heads * 2) as u32, COPY_BLOCKS, slots.len() as u32];
        self.queue.launch(program::COPY_KV, Shape { grid, block: 256, shared: 0 }, &args);
    }
}
