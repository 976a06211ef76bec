//! Aligned memory: zeroed vectors for activations and huge-page slabs for weights.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use crate::cuda::Device;

/// Alignment of every buffer: a cache line, and one AVX-512 register.
pub(crate) const ALIGN: usize = 64;
/// Size of a huge page.
const HUGE: usize = 2 << 20;
/// Size of a slab of weights.
const SLAB: usize = 16 << 20;
/// From this size on memory comes from the operating system, which gives pages only once they are touched:
/// the slots that no stream uses cost nothing.
pub(crate) const PAGES_FROM: usize = 1 << 20;

/// The product of lengths, which is one of memory.
pub(crate) fn volume<const N: usize>(lengths: [usize; N]) -> usize {
    let fits = lengths.into_iter().try_fold(1usize, usize::checked_mul);
    fits.filter(|&n| isize::try_from(n).is_ok()).expect("a size that fits in memory")
}

/// Plain numbers: any bit pattern is a value and zero is zero.
///
/// # Safety
/// Implementors have no padding, no invalid bit patterns and no drop glue.
pub unsafe trait Number: Copy + Send + Sync + 'static {}
// SAFETY: primitive numbers.
unsafe impl Number for f32 {}
// SAFETY: primitive numbers.
unsafe impl Number for i32 {}
// SAFETY: primitive numbers.
unsafe impl Number for u32 {}
// SAFETY: primitive numbers.
unsafe impl Number for u16 {}
// SAFETY: primitive numbers.
unsafe impl Number for u8 {}
// SAFETY: primitive numbers.
unsafe impl Number for i8 {}

/// A zero-initialised, 64-byte aligned vector of fixed length.
pub struct AlignedVec<T: Number> {
    ptr: NonNull<T>,
    len: usize,
}

// SAFETY: owns its memory exclusively, like Vec<T>.
unsafe impl<T: Number> Send for AlignedVec<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Number> Sync for AlignedVec<T> {}

impl<T: Number> AlignedVec<T> {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        if layout.size() == 0 {
            return Self { ptr: NonNull::dangling(), len };
        }
        let ptr = if layout.size() >= PAGES_FROM {
            pages::map(layout.size())
        } else {
            // SAFETY: the layout has a non-zero size.
            unsafe { alloc_zeroed(layout) }
        };
        let Some(ptr) = NonNull::new(ptr.cast::<T>()) else { handle_alloc_error(layout) };
        Self { ptr, len }
    }

    /// A copy of `values`.
    pub fn from_slice(values: &[T]) -> Self {
        let mut v = Self::zeroed(values.len());
        v.copy_from_slice(values);
        v
    }

    /// Makes room for at least `len` values; old contents are lost when it grows.
    pub fn reserve_zeroed(&mut self, len: usize) {
        if self.len < len {
            *self = Self::zeroed(len);
        }
    }

    fn layout(len: usize) -> Layout {
        let bytes = len.checked_mul(size_of::<T>()).expect("buffer size fits in memory");
        Layout::from_size_align(bytes, ALIGN).expect("buffer size fits in memory")
    }
}

impl<T: Number> Drop for AlignedVec<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len);
        if layout.size() >= PAGES_FROM {
            // SAFETY: mapped in `zeroed` with this very size.
            unsafe { pages::unmap(self.ptr.as_ptr().cast(), layout.size()) }
        } else if layout.size() != 0 {
            // SAFETY: allocated in `zeroed` with this very layout.
            unsafe { dealloc(self.ptr.as_ptr().cast(), layout) }
        }
    }
}

impl<T: Number> Deref for AlignedVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised values (zeroed at allocation).
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Number> DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` initialised values, exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Number> Clone for AlignedVec<T> {
    fn clone(&self) -> Self {
        Self::from_slice(self)
    }
}

impl<T: Number + std::fmt::Debug> std::fmt::Debug for AlignedVec<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedVec(len {})", self.len)
    }
}

/// Memory straight from the operating system: zeroed, untouched, aligned to huge pages.
#[cfg(unix)]
mod pages {
    use super::HUGE;

    /// Maps `len` bytes; null when there are none left.
    pub(super) fn map(len: usize) -> *mut u8 {
        let (flags, size) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, len + HUGE);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return std::ptr::null_mut();
        }
        let start = (base as usize).next_multiple_of(HUGE);
        let before = start - base as usize;
        let end = (start + len).next_multiple_of(page());
        // SAFETY: whole pages at both ends of the mapping just made, outside of what is returned.
        unsafe {
            if before > 0 {
                libc::munmap(base, before);
            }
            let after = base as usize + size.next_multiple_of(page()) - end;
            if after > 0 {
                libc::munmap(end as *mut _, after);
            }
        }
        base.cast::<u8>().wrapping_add(before)
    }

    /// Gives back what [`map`] gave.
    ///
    /// # Safety
    /// `ptr` and `len` are those of a `map`.
    pub(super) unsafe fn unmap(ptr: *mut u8, len: usize) {
        // SAFETY: the mapping is whole pages from `ptr` on.
        unsafe { libc::munmap(ptr.cast(), len.next_multiple_of(page())) };
    }

    fn page() -> usize {
        // SAFETY: a plain query.
        unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
    }
}

#[cfg(not(unix))]
mod pages {
    use super::HUGE;
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, HUGE).expect("size fits in memory")
    }

    pub(super) fn map(len: usize) -> *mut u8 {
        // SAFETY: callers ask for at least a megabyte.
        unsafe { alloc_zeroed(layout(len)) }
    }

    pub(super) unsafe fn unmap(ptr: *mut u8, len: usize) {
        // SAFETY: allocated in `map` with this layout.
        unsafe { dealloc(ptr, layout(len)) }
    }
}

/// Makes the allocator return large blocks to the operating system when they are freed, instead of keeping
/// them for later: loading a model frees many. For programs, at their start.
pub fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets two numbers of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, PAGES_FROM as libc::c_int);
        libc::mallopt(libc::M_TRIM_THRESHOLD, PAGES_FROM as libc::c_int);
    }
}

/// Asks for huge pages; refusal costs speed only.
fn advise_huge(memory: &mut AlignedVec<u8>) {
    #[cfg(target_os = "linux")]
    // SAFETY: the range is ours; MADV_HUGEPAGE changes no contents.
    unsafe {
        libc::madvise(memory.ptr.as_ptr().cast(), memory.len, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

struct Slab(AlignedVec<u8>);

/// Bytes in a [`WeightArena`] slab: written once when stored, read-only ever after.
#[derive(Clone)]
pub struct Stored {
    slab: Arc<Slab>,
    offset: usize,
    len: usize,
}

impl Default for Stored {
    /// No bytes.
    fn default() -> Self {
        Self { slab: Arc::new(Slab(AlignedVec::zeroed(0))), offset: 0, len: 0 }
    }
}

impl Stored {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `offset..offset + len` lies in the slab, was written before this handle existed, and
        // no other handle or later `store` touches that range.
        unsafe { std::slice::from_raw_parts(self.slab.0.ptr.as_ptr().add(self.offset), self.len) }
    }
}

/// Where weight matrices go: into few huge-page slabs, so that reading them costs few TLB misses, or to a device.
#[derive(Default)]
pub struct WeightArena {
    open: Mutex<Option<(Arc<Slab>, usize)>>,
    device: Option<Arc<Device>>,
}

impl WeightArena {
    /// An empty arena.
    pub fn new() -> Self {
        Self::default()
    }

    /// An arena whose matrices live on a device.
    pub fn on(device: Arc<Device>) -> Self {
        Self { device: Some(device), ..Self::default() }
    }

    /// The device that matrices go to, if it is not the host.
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }

    /// Reserves `len` zeroed bytes, lets `fill` write them, and returns a handle to them.
    pub fn store(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> Stored {
        let mut open = self.open.lock().unwrap_or_else(|e| e.into_inner());
        let padded = len.checked_next_multiple_of(ALIGN).expect("a size that fits in memory");
        let (slab, used) = match open.take() {
            Some((slab, used)) if padded <= slab.0.len - used => (slab, used),
            _ => {
                let mut memory = AlignedVec::zeroed(padded.max(SLAB));
                advise_huge(&mut memory);
                (Arc::new(Slab(memory)), 0)
            }
        };
        // SAFETY: `used..used + len` has been handed out to nobody yet, and the lock is held.
        fill(unsafe { std::slice::from_raw_parts_mut(slab.0.ptr.as_ptr().add(used), len) });
        *open = Some((slab.clone(), used + padded));
        Stored { slab, offset: used, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_aligned_and_zeroed() {
        for len in [1, 17, 1 << 20] {
            let v = AlignedVec::<f32>::zeroed(len);
            assert_eq!(v.as_ptr() as usize % ALIGN, 0);
            assert!(v.iter().all(|&x| x == 0.0));
        }
    }

    #[test]
    fn sizes_beyond_memory_panic() {
        for len in [usize::MAX, usize::MAX - ALIGN + 2, isize::MAX as usize + 1] {
            let arena = WeightArena::new();
            arena.store(10, |b| b.fill(1));
            let store = std::panic::AssertUnwindSafe(|| arena.store(len, |_| panic!("nothing to fill")));
            let why = std::panic::catch_unwind(store).map(drop).unwrap_err();
            let text = why.downcast_ref::<String>().map(String::as_str);
            let why = text.or_else(|| why.downcast_ref::<&str>().copied()).unwrap_or_default();
            assert!(why.contains("fits in memory"), "{len}: {why}");
            // And the arena goes on.
            assert_eq!(arena.store(3, |b| b.fill(7)).bytes(), [7; 3]);
        }
        assert_eq!(volume([3, 5, 7]), 105);
        assert_eq!(volume([usize::MAX, 0]), 0);
        assert_eq!(volume([isize::MAX as usize, 1]), isize::MAX as usize);
        for lengths in [[isize::MAX as usize + 1, 1], [1 << 40, 1 << 40], [usize::MAX, 2]] {
            assert!(std::panic::catch_unwind(|| volume(lengths)).is_err(), "{lengths:?}");
        }
    }

    #[test]
    fn arena_gives_back_what_was_stored() {
        let arena = WeightArena::new();
        let handles: Vec<_> =
            (0..40usize).map(|i| arena.store(i * 70_001 + 1, |b| b.fill(i as u8))).collect();
        for (i, h) in handles.iter().enumerate() {
            assert_eq!(h.bytes().len(), i * 70_001 + 1);
            assert_eq!(h.bytes().as_ptr() as usize % ALIGN, 0);
            assert!(h.bytes().iter().all(|&b| b == i as u8));
        }
    }
}
