//! Tables on their way to a device: what differs from step to step is written into page-locked memory, from where the device
//! copies it by itself. Short recordings go by pageable memory, which a driver sends among its commands: the copy engine would
//! take longer to begin than they take to be sent.
//!
//! A table's place on the device is the same in every recording that has the same tables, or graphs would not be found
//! again. Its place on the host moves on with every recording, so that the next one can be written while the device still
//! copies the one before.

use std::sync::Arc;

use super::driver::Address;
use super::memory::{Device, Memory, Pinned};
use crate::memory::AlignedVec;

/// Bytes of an area, unless a table is larger.
pub(super) const TABLES: usize = 1 << 20;
/// Areas' worth of recordings that may be on their way. An executor that always has a step under way never finds all of
/// them copied: it waits for the device once they are full.
const AHEAD: usize = 15;
/// Where a table may start, in bytes.
const ALIGN: usize = 16;
/// Bytes up to which a driver sends pageable memory among its commands.
const INLINE: usize = 64 << 10;

/// Device memory for tables, and what is to be copied there.
pub(super) struct Area {
    memory: Memory,
    /// Dropped before the memory that it pins.
    _pinned: Option<Pinned>,
    /// On pages of its own: what shares a page with page-locked memory may be taken for such.
    host: AlignedVec<u8>,
    /// A short recording, in memory that is not page-locked.
    short: Vec<u8>,
    /// Where this recording starts on the host, and its bytes.
    start: usize,
    len: usize,
}

impl Area {
    pub(super) fn new(device: &Arc<Device>, memory: Memory) -> Self {
        let host = AlignedVec::zeroed(memory.bytes + AHEAD * TABLES);
        // Where memory cannot be page-locked, the driver copies it before it returns.
        Self { _pinned: Pinned::new(device, &host[..]), memory, host, short: Vec::new(), start: 0, len: 0 }
    }

    /// Whether there is room for a table.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.len.next_multiple_of(ALIGN) + bytes <= self.memory.bytes
    }

    /// Adds a table, and returns where it is in the area.
    pub(super) fn put(&mut self, table: &[u8]) -> usize {
        let at = self.len.next_multiple_of(ALIGN);
        let place = &mut self.host[self.start + self.len..self.start + at + table.len()];
        let (gap, place) = place.split_at_mut(at - self.len);
        gap.fill(0);
        place.copy_from_slice(table);
        self.len = at + table.len();
        at
    }

    /// Whether this recording has these bytes there.
    pub(super) fn has(&self, at: usize, bytes: &[u8]) -> bool {
        self.recorded()[at..].starts_with(bytes)
    }

    /// Where something in the area is on the device.
    pub(super) fn address(&self, at: usize) -> Address {
        self.memory.at + at as u64
    }

    /// The bytes of this recording as they are to be sent.
    pub(super) fn sent(&mut self) -> &[u8] {
        if self.len > INLINE {
            return self.recorded();
        }
        self.short.clear();
        self.short.extend_from_slice(&self.host[self.start..self.start + self.len]);
        &self.short
    }

    /// The bytes of this recording.
    fn recorded(&self) -> &[u8] {
        &self.host[self.start..self.start + self.len]
    }

    /// The next recording begins. Returns whether it first has to wait for the copies of those before.
    pub(super) fn next(&mut self) -> bool {
        if self.len > INLINE {
            self.start += self.len.next_multiple_of(ALIGN);
        }
        self.len = 0;
        self.start + self.memory.bytes > self.host.len()
    }

    /// All copies are done.
    pub(super) fn arrived(&mut self) {
        if self.len == 0 {
            self.start = 0;
        }
    }
}
