//! Rows that products alone read: a device may keep them as those take them, rounded or not yet activated.

use super::{Buffer, View};
use crate::matrix::Format;

/// Rows of a buffer that products alone read, for as long as this lives: ops write them, [`super::LinearOp::x`] takes them,
/// and nobody looks inside. Afterwards the buffer holds nothing until it is written again.
#[derive(Debug)]
pub struct ProductRows<'b> {
    buffer: &'b mut Buffer,
    pub(crate) kept: Kept,
}

/// How rows are kept for products.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The format of the weights that the rows are multiplied by.
    pub format: Format,
    /// Whether a product after `Norm::SwiGlu` reads them.
    pub gated: bool,
    /// What a device holds instead of the rows.
    pub pending: Option<Pending>,
}

/// What a device holds instead of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pending {
    /// Rows in bf16 that the next product has yet to scale, bias and activate.
    Narrow {
        /// The kernels' number of the activation.
        act: u32,
        /// Where the bias is on the device; 0 for none.
        bias: u64,
        /// Where the scales of rows and of columns are, which are multiplied in first; 0 for none.
        scales: [u64; 2],
    },
    /// Rows whose first half is the gated unit's result; the second half means nothing.
    Gated,
}

impl Buffer {
    /// Its rows for products by weights of one format.
    pub fn for_products(&mut self, format: Format) -> ProductRows<'_> {
        ProductRows { buffer: self, kept: Kept { format, gated: false, pending: None } }
    }
}

impl ProductRows<'_> {
    /// The same for products after [`super::Norm::SwiGlu`]: each row is both halves of a gated unit.
    pub fn gated(mut self) -> Self {
        self.kept.gated = true;
        self
    }
}

impl Drop for ProductRows<'_> {
    fn drop(&mut self) {
        self.buffer.void = self.kept.pending.is_some();
    }
}

/// What a product reads.
#[derive(Clone)]
pub struct Input<'a> {
    pub(crate) view: View<'a>,
    pub(crate) kept: Option<&'a Kept>,
}

impl<'a> From<&'a ProductRows<'_>> for Input<'a> {
    fn from(rows: &'a ProductRows<'_>) -> Self {
        Self { view: rows.buffer.view(), kept: Some(&rows.kept) }
    }
}

impl<'a> From<View<'a>> for Input<'a> {
    fn from(view: View<'a>) -> Self {
        Self { view, kept: None }
    }
}

impl<'a> From<&'a Buffer> for Input<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        buffer.view().into()
    }
}

impl Input<'_> {
    /// What a device holds instead of the rows.
    pub(crate) fn pending(&self) -> Option<Pending> {
        self.kept.and_then(|k| k.pending)
    }
}

/// Where an op's result goes: a [`Buffer`], or [`ProductRows`] that may be kept as products take them.
pub trait Target: private::Sealed {
    /// The rows, to write.
    fn output(&mut self) -> Output<'_>;
}

mod private {
    pub trait Sealed {}
    impl Sealed for super::Buffer {}
    impl Sealed for super::ProductRows<'_> {}
}

impl Target for Buffer {
    fn output(&mut self) -> Output<'_> {
        Output { buffer: self, kept: None }
    }
}

impl Target for ProductRows<'_> {
    fn output(&mut self) -> Output<'_> {
        self.kept.pending = None;
        Output { buffer: self.buffer, kept: Some(&mut self.kept) }
    }
}

/// Rows that an op writes.
#[derive(Debug)]
pub struct Output<'a> {
    pub(crate) buffer: &'a mut Buffer,
    pub(crate) kept: Option<&'a mut Kept>,
}

impl Output<'_> {
    /// Whether products alone read the rows, by weights of this format.
    pub(crate) fn is_for(&self, format: Format) -> bool {
        self.kept.as_ref().is_some_and(|k| k.format == format)
    }

    /// Notes what a device holds instead of the rows.
    pub(crate) fn keep(&mut self, pending: Pending) {
        let kept = self.kept.as_mut().expect("rows that only products read");
        kept.pending = Some(pending);
    }
}
