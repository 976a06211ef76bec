//! Aligned memory: zeroed vectors for activations and huge-page slabs for weights.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// Alignment of every buffer: a cache line, and one AVX-512 register.
pub(crate) const ALIGN: usize = 64;
const HUGE: usize = 2 << 20;
const SLAB: usize = 16 << 20;

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
        // SAFETY: the layout has a non-zero size.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr.cast::<T>()) else { handle_alloc_error(layout) };
        if layout.size() >= HUGE {
            advise_huge(ptr.as_ptr().cast(), layout.size());
        }
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
        let align = if bytes >= HUGE { HUGE } else { ALIGN };
        Layout::from_size_align(bytes, align).expect("buffer size fits in memory")
    }
}

impl<T: Number> Drop for AlignedVec<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len);
        if layout.size() != 0 {
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

/// Asks for huge pages; refusal costs speed only.
fn advise_huge(ptr: *mut u8, len: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the range was just allocated by us; MADV_HUGEPAGE changes no contents.
    unsafe {
        libc::madvise(ptr.cast(), len, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (ptr, len);
}

struct Slab(AlignedVec<u8>);

/// Bytes in a [`WeightArena`] slab: written once when stored, read-only ever after.
#[derive(Clone)]
pub struct Stored {
    slab: Arc<Slab>,
    offset: usize,
    len: usize,
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

/// Packs many weight matrices into few huge-page slabs, so that reading them costs few TLB misses.
#[derive(Default)]
pub struct WeightArena {
    open: Mutex<Option<(Arc<Slab>, usize)>>,
}

impl WeightArena {
    /// An empty arena.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reserves `len` zeroed bytes, lets `fill` write them, and returns a handle to them.
    pub fn store(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> Stored {
        let mut open = self.open.lock().unwrap_or_else(|e| e.into_inner());
        let padded = len.next_multiple_of(ALIGN);
        let (slab, used) = match open.take() {
            Some((slab, used)) if used + padded <= slab.0.len => (slab, used),
            _ => (Arc::new(Slab(AlignedVec::zeroed(padded.max(SLAB)))), 0),
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
