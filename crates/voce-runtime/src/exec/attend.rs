//! Attention of a block of query rows over one head's rings: what every attention op ends in.

use crate::matrix::{Format, Matrix};
use crate::simd::gemm::Gemm;
use crate::simd::lanes::LANES;
use crate::simd::{Activation, Kernels};

use super::kv_cache::TILE;

/// Query heads that may share a key head.
pub(super) const MAX_GROUP: usize = 64;
/// Query rows of one slot that share a pass over its keys.
pub(super) const QUERY_ROWS: usize = 16;

/// One head's rings.
pub(super) struct Tile {
    pub k: *const u8,
    pub v: *const u8,
    pub width: usize,
    pub capacity: usize,
    pub bf16: bool,
}

/// A block of query rows, `group` queries each, at consecutive positions.
pub(super) struct Queries<'a> {
    /// `rows * group` rows of the tile's width, scaled.
    pub q: &'a [f32],
    /// Position of the first row.
    pub at: usize,
    /// How many rows.
    pub rows: usize,
    /// Queries per row.
    pub group: usize,
}

/// Scores by distance, added to those of the keys; for one query per row.
pub(super) struct Relative<'a> {
    /// Query rows for the distances, of the tile's width, scaled.
    pub q: &'a [f32],
    /// A row per distance, `farthest` first, one less each.
    pub distances: &'a Matrix,
    /// Distance (query position minus key position) of the first row.
    pub farthest: usize,
    /// Room for the rows' scores: see [`Relative::room`].
    pub scores: &'a mut [f32],
}

impl Relative<'_> {
    /// Values of score room that a block of rows over `keys` positions (rounded out to tiles) needs.
    pub(super) fn room(keys: usize) -> usize {
        QUERY_ROWS * (keys + QUERY_ROWS + 2 * LANES).next_multiple_of(LANES)
    }
}

impl Tile {
    /// Attention of a block of rows; `seen` gives the first position a row sees and the one after its last.
    ///
    /// # Safety
    /// The rings hold every position the rows see; `result` has as many rows as there are queries, and
    /// `scores` and `narrow` as many of the seen positions rounded out to tiles.
    #[allow(clippy::too_many_arguments)] // two call sites
    pub(super) unsafe fn attend(
        &self,
        kn: &Kernels,
        queries: &Queries<'_>,
        seen: impl Fn(usize) -> (usize, usize),
        relative: Option<Relative<'_>>,
        scores: &mut [f32],
        narrow: &mut [f32],
        result: &mut [f32],
    ) {
        let Queries { q, at, rows, group } = *queries;
        let last = at + rows - 1;
        // Tiles begin at multiples of their size: how sums are grouped depends on positions alone.
        let base = seen(at).0 / TILE * TILE;
        let len = (seen(last).1 - base).next_multiple_of(TILE);
        let (value, m) = (if self.bf16 { 2 } else { 4 }, rows * group);
        let gemm = if self.bf16 { kn.gemm_bf16 } else { kn.gemm_f32 };
        // The left operand as the product wants it: f32 as it is, or rounded to bf16.
        let rounded = self.bf16 && kn.bf16_activations;
        let narrow = narrow.as_mut_ptr();
        let operand = |rows: *const f32, width: usize| {
            if !rounded {
                return (rows.cast::<u8>(), 4);
            }
            // SAFETY: `narrow` has room for m rows of either operand.
            unsafe { (kn.map_bf16)(rows, m * width, Activation::None, narrow.cast()) };
            (narrow.cast::<u8>().cast_const(), 2)
        };
        let (a, a_value) = operand(q.as_ptr(), self.width);
        // The window is one or more runs of the ring: (position in the window, in the ring, length). Rounded
        // out to panels it may overlap itself; what is seen twice is outside every row's window once.
        let run = |index: usize| {
            let ring = (base + index) % self.capacity;
            (index, ring, (len - index).min(self.capacity - ring))
        };
        let next = |&(index, _, n): &(usize, usize, usize)| (index + n < len).then(|| run(index + n));
        let runs = || std::iter::successors(Some(run(0)), next);
        let mut g = Gemm {
            a,
            lda: self.width * a_value,
            m,
            k: self.width,
            b: self.k,
            panel: self.width * LANES * value,
            panels: 0,
            c: scores.as_mut_ptr(),
            ldc: len,
            a_scale: std::ptr::null(),
            b_scale: std::ptr::null(),
            b_sum: std::ptr::null(),
            a_sums: std::ptr::null(),
            accumulate: false,
            to: std::ptr::null(),
            ldt: 0,
        };
        for (index, ring, len) in runs() {
            g.panels = len / LANES;
            // SAFETY: panels of the run are inside the ring, columns inside the scores.
            unsafe {
                g.b = self.k.add(ring * self.width * value);
                g.c = scores.as_mut_ptr().add(index);
                gemm(&g);
            }
        }
        if let Some(relative) = relative {
            assert_eq!(group, 1, "relative scores are per query head");
            let (a, a_value) = operand(relative.q.as_ptr(), self.width);
            // SAFETY: `scores` has m rows of `len`; the operand is m rows of the tile's width.
            unsafe { self.add_relative(kn, queries, &seen, relative, (a, a_value), base, len, scores) };
        }
        let mut totals = [0f32; QUERY_ROWS * MAX_GROUP];
        for (i, total) in totals[..m].iter_mut().enumerate() {
            let (first, end) = seen(at + i / group);
            // SAFETY: row i of the scores.
            *total = unsafe { (kn.softmax)(scores.as_mut_ptr().add(i * len), first - base, end - base, len) };
        }
        let (a, a_value) = operand(scores.as_ptr(), len);
        g.lda = len * a_value;
        g.ldc = self.width;
        g.panels = self.width / LANES;
        g.panel = self.capacity * LANES * value;
        g.c = result.as_mut_ptr();
        for (index, ring, len) in runs() {
            // SAFETY: positions of the run are inside each panel of values.
            unsafe {
                g.a = a.add(index * a_value);
                g.b = self.v.add(ring * LANES * value);
                g.k = len;
                gemm(&g);
            }
            g.accumulate = true;
        }
        for (row, total) in result.chunks_exact_mut(self.width).zip(&totals[..m]) {
            row.iter_mut().for_each(|x| *x *= 1.0 / total);
        }
    }

    /// Adds to each row's scores those of its distances to the keys it sees.
    ///
    /// # Safety
    /// `scores` has a row of `len` values per query row, the first at position `base`; the operand holds
    /// the query rows for distances.
    #[allow(clippy::too_many_arguments)] // one call site
    unsafe fn add_relative(
        &self,
        kn: &Kernels,
        queries: &Queries<'_>,
        seen: &impl Fn(usize) -> (usize, usize),
        relative: Relative<'_>,
        (a, a_value): (*const u8, usize),
        base: usize,
        len: usize,
        scores: &mut [f32],
    ) {
        let Queries { at, rows, .. } = *queries;
        let d = relative.distances;
        assert_eq!(d.format, if self.bf16 { Format::Bf16 } else { Format::F32 }, "distances as the cache");
        assert!(d.kp <= self.width, "distances of the head's width");
        let first = seen(at).0;
        let end = seen(at + rows - 1).1;
        // Row r meets key j at index farthest - (at + r) + j of the distances.
        let index = |r: usize, j: usize| relative.farthest + j - (at + r);
        assert!(relative.farthest + first >= at + rows - 1, "the farthest distance is tabulated");
        assert!(index(0, end - 1) < d.n, "the nearest distance is tabulated");
        let low = index(rows - 1, first) / LANES * LANES;
        let panels = (index(0, end - 1) + 1 - low).div_ceil(LANES);
        let ldc = panels * LANES;
        assert!(rows * ldc <= relative.scores.len(), "room for relative scores");
        let gemm = if self.bf16 { kn.gemm_bf16 } else { kn.gemm_f32 };
        let panel = d.panel_bytes();
        // SAFETY: the panels are inside the matrix (its outputs are padded to whole panels).
        unsafe {
            gemm(&Gemm {
                a,
                lda: self.width * a_value,
                m: rows,
                k: d.kp,
                b: d.data.bytes().as_ptr().add(low / LANES * panel),
                panel,
                panels,
                c: relative.scores.as_mut_ptr(),
                ldc,
                a_scale: std::ptr::null(),
                b_scale: std::ptr::null(),
                b_sum: std::ptr::null(),
                a_sums: std::ptr::null(),
                accumulate: false,
                to: std::ptr::null(),
                ldt: 0,
            });
        }
        for r in 0..rows {
            let (first, end) = seen(at + r);
            let from = r * ldc + index(r, first) - low;
            let scores = &mut scores[r * len + first - base..r * len + end - base];
            scores.iter_mut().zip(&relative.scores[from..]).for_each(|(s, d)| *s += d);
        }
    }
}
