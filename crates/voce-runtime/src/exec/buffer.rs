//! Activations and constants: in host memory, and on a device where ops run there.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::cuda::{Memory, Pinned};
use crate::memory::{AlignedVec, volume};

/// Row-major f32 activations of fixed capacity.
///
/// On a device executor a buffer has a twin in the device's memory. What the host writes goes there before the
/// next op that uses it; what ops write comes back by [`crate::Exec::fetch`], and reading without it panics.
#[derive(Debug)]
pub struct Buffer {
    /// Dropped before the data, which it may have pinned.
    pub(crate) twin: Twin,
    pub(super) data: AlignedVec<f32>,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// A device holds something else than rows: what [`super::ProductRows`] left there.
    pub(crate) void: bool,
    /// Whether several executors read it.
    pub(crate) shared: bool,
}

/// A buffer's other half on a device.
#[derive(Debug, Default)]
pub(crate) struct Twin {
    pub(crate) memory: Mutex<Option<Memory>>,
    /// The device has newer values.
    pub(crate) host_stale: AtomicBool,
    /// Values that the host has written and the device has not seen.
    pub(crate) written: Mutex<Range<usize>>,
    /// How often many values were fetched; after a few times the host's memory is pinned for it.
    pub(crate) fetches: u32,
    pub(crate) pinned: Option<Pinned>,
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        let mut copy = Self { shared: self.shared, ..Self::new(self.rows, self.cols) };
        let len = self.rows * self.cols;
        copy.head_mut(self.rows).copy_from_slice(&self.values()[..len]);
        copy
    }
}

impl Buffer {
    /// Zeros.
    pub fn new(rows: usize, cols: usize) -> Self {
        let data = AlignedVec::zeroed(volume([rows, cols]));
        Self { data, rows, cols, void: false, shared: false, twin: Twin::default() }
    }

    /// The same, for several executors of a device to read: its values are on the device before the first op that reads
    /// them, and no op may write it.
    pub fn shared(self) -> Self {
        Self { shared: true, ..self }
    }

    /// Gives it another shape, growing only when there is no room. Its contents are undefined afterwards.
    pub fn shape(&mut self, rows: usize, cols: usize) {
        let len = volume([rows, cols]);
        if self.data.len() < len {
            (self.twin.pinned, self.twin.fetches) = (None, 0);
        }
        self.data.reserve_zeroed(len);
        (self.rows, self.cols) = (rows, cols);
        self.discard();
    }

    /// The same values as rows of another length.
    pub fn regroup(&mut self, rows: usize, cols: usize) {
        assert_eq!(volume([rows, cols]), self.rows * self.cols, "as many values");
        (self.rows, self.cols) = (rows, cols);
    }

    /// Forgets what ops have written on a device, so that the host can write anew.
    pub fn discard(&mut self) {
        *self.twin.host_stale.get_mut() = false;
    }

    /// Rows it has room for.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// One row.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values()[i * self.cols..(i + 1) * self.cols]
    }

    /// One row, to write.
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        let cols = self.cols;
        self.values_mut(i * cols..(i + 1) * cols)
    }

    /// The first `rows` rows.
    pub fn head(&self, rows: usize) -> &[f32] {
        &self.values()[..rows * self.cols]
    }

    /// The first `rows` rows, to write.
    pub fn head_mut(&mut self, rows: usize) -> &mut [f32] {
        let cols = self.cols;
        self.values_mut(0..rows * cols)
    }

    /// Everything.
    pub fn view(&self) -> View<'_> {
        View { buffer: self, cols: 0..self.cols }
    }

    /// Some columns.
    pub fn columns(&self, cols: Range<usize>) -> View<'_> {
        assert!(cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        View { buffer: self, cols }
    }

    /// Values there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.data.len()
    }

    /// The host's copy, which may be older than the device's.
    pub(crate) fn host(&self) -> &[f32] {
        &self.data
    }

    /// The host's copy, to write, even where the device has newer values.
    pub(crate) fn host_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    fn values(&self) -> &[f32] {
        assert!(!self.twin.host_stale.load(Ordering::Relaxed), "fetched before the host reads it");
        &self.data
    }

    fn values_mut(&mut self, range: Range<usize>) -> &mut [f32] {
        assert!(!*self.twin.host_stale.get_mut(), "fetched or discarded before the host writes it");
        let written = self.twin.written.get_mut().unwrap_or_else(|e| e.into_inner());
        *written = if Range::is_empty(written) {
            range.clone()
        } else {
            written.start.min(range.start)..written.end.max(range.end)
        };
        &mut self.data[range]
    }
}

/// Some columns of a buffer.
#[derive(Clone)]
pub struct View<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) cols: Range<usize>,
}

impl View<'_> {
    pub(crate) fn width(&self) -> usize {
        self.cols.len()
    }

    pub(crate) fn stride(&self) -> usize {
        self.buffer.cols
    }

    pub(crate) fn rows(&self) -> usize {
        self.buffer.rows
    }

    pub(super) fn ptr(&self) -> *const f32 {
        self.buffer.data[self.cols.start..].as_ptr()
    }
}

impl<'a> From<&'a Buffer> for View<'a> {
    fn from(b: &'a Buffer) -> Self {
        b.view()
    }
}

/// Parameters that never change: biases, norms, small kernels. On a device from their first use there.
#[derive(Debug, Default)]
pub struct Vector {
    values: Box<[f32]>,
    pub(crate) device: OnceLock<Memory>,
}

impl From<Vec<f32>> for Vector {
    fn from(values: Vec<f32>) -> Self {
        Self { values: values.into(), device: OnceLock::new() }
    }
}

impl Clone for Vector {
    fn clone(&self) -> Self {
        self.values.to_vec().into()
    }
}

impl Deref for Vector {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.values
    }
}

impl FromIterator<f32> for Vector {
    fn from_iter<I: IntoIterator<Item = f32>>(values: I) -> Self {
        values.into_iter().collect::<Vec<_>>().into()
    }
}
