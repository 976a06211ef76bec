//! Int8 and int4 products by multiply-adds of bytes, written once over a register of sums.

use super::dots::Dots;
use super::gemm::Gemm;
use super::lanes::LANES;
use super::quant::GROUP;

/// How far ahead of a single row its weights are asked for, in bytes of a panel; several rows ask twice as far ahead, because
/// the caches have to bring a step's weights less often.
const AHEAD: usize = 2048;

/// Bytes of a panel per step of four inputs.
pub(super) const STEP: usize = 4 * LANES;

/// Rows from which on the place of a product's results is asked for.
const ASKING_ROWS: usize = 24;

/// Asks for `width` values of a row from `output` on in the place where the results go: rows of a wide buffer are pages apart,
/// where nothing is fetched ahead otherwise, and who writes them there would wait. Those of few rows are in the caches.
#[inline(always)]
pub(super) unsafe fn ask_for_outputs<V: Dots>(g: &Gemm, row: usize, (output, width): (usize, usize)) {
    if g.to.is_null() || g.m < ASKING_ROWS {
        return;
    }
    let to = g.to.wrapping_add(row * g.ldt + output);
    for line in (0..width).step_by(LANES) {
        // SAFETY: what is asked for need not be valid.
        unsafe { V::prefetch_near(to.wrapping_add(line).cast()) };
    }
}

/// Output `o`'s place in the packed weights, at the first input.
#[inline(always)]
pub(super) unsafe fn weights(g: &Gemm, o: usize) -> *const u8 {
    // SAFETY: output `o` lies in one of the panels.
    unsafe { g.b.add(o / LANES * g.panel + o % LANES * 4) }
}

/// Up to eight rows by two places and two distances, which an address can be made of: a register for each row would leave none
/// for the loop.
#[derive(Clone, Copy)]
struct Near {
    first: *const u8,
    fifth: *const u8,
    distance: usize,
    thrice: usize,
}

impl Near {
    #[inline(always)]
    fn new(g: &Gemm, row: usize) -> Self {
        let first = g.a.wrapping_add(row * g.lda);
        // Hidden, or it would be computed from the other for every row.
        let thrice = std::hint::black_box(3 * g.lda);
        Self { first, fifth: first.wrapping_add(4 * g.lda), distance: g.lda, thrice }
    }

    /// Where a row of the eight begins.
    #[inline(always)]
    fn row(self, m: usize) -> *const u8 {
        let from = if m < 4 { self.first } else { self.fifth };
        match m % 4 {
            0 => from,
            3 => from.wrapping_add(self.thrice),
            by => from.wrapping_add(by * self.distance),
        }
    }
}

/// The sums of `MR` rows by `NR` registers of outputs, of the bytes as they stand in both; two steps `AT_ONCE` where all rows
/// allow it. Weights are to `ASK` for ahead unless rows before these have brought them.
#[inline(always)]
pub(super) unsafe fn int8_sums<
    V: Dots,
    const MR: usize,
    const NR: usize,
    const AT_ONCE: bool,
    const ASK: bool,
>(
    g: &Gemm,
    row: usize,
    output: usize,
) -> [[V; NR]; MR] {
    // SAFETY: rows `row..row + MR` and `NR` registers of outputs from `output` on are inside the operands.
    unsafe {
        let mut acc = [[V::none(); NR]; MR];
        let near = Near::new(g, row);
        let mut b = [g.b; NR];
        for n in 0..NR {
            b[n] = weights(g, output + n * V::OUTPUTS);
        }
        let beside = (NR * V::OUTPUTS).div_ceil(LANES).saturating_sub(1) * g.panel;
        let ahead = if MR == 1 { AHEAD } else { 2 * AHEAD };
        // Rows are multiples of 64 inputs long: two steps at once leave the ports of products to them. Behind the end of a panel
        // comes the one that its register takes next.
        let (end, turn) = (g.k / 8, g.panel.saturating_sub(ahead) / (2 * STEP));
        for (from, to, on) in [(0, turn.min(end), ahead), (turn.min(end), end, ahead + beside)] {
            for pair in from..to {
                let mut w = [[V::splat(0); NR]; 2];
                for odd in [false, true] {
                    let (k, w) = (2 * pair + odd as usize, &mut w[odd as usize]);
                    for n in 0..NR {
                        if ASK && n * V::OUTPUTS % LANES == 0 {
                            V::prefetch(b[n].wrapping_add(k * STEP).wrapping_add(on));
                        }
                        w[n] = V::load(b[n].add(k * STEP)).prepared(odd);
                    }
                    if AT_ONCE {
                        continue;
                    }
                    for m in 0..MR {
                        let x = V::spread(near.row(m).add(4 * k));
                        for n in 0..NR {
                            acc[m][n] = V::dot(acc[m][n], w[n], x);
                        }
                    }
                }
                if AT_ONCE {
                    for m in 0..MR {
                        let a = near.row(m).add(8 * pair);
                        let x = [V::spread(a), V::spread(a.add(4))];
                        for n in 0..NR {
                            acc[m][n] = V::dot_two(acc[m][n], [w[0][n], w[1][n]], x);
                        }
                    }
                }
            }
        }
        let mut sums = [[V::splat(0); NR]; MR];
        for m in 0..MR {
            for n in 0..NR {
                sums[m][n] = V::sums(acc[m][n]);
            }
        }
        sums
    }
}

/// A block of outputs from whole rows.
#[inline(always)]
unsafe fn int8_block<V: Dots, const MR: usize, const NR: usize, const ASK: bool>(
    g: &Gemm,
    row: usize,
    output: usize,
) {
    // SAFETY: rows `row..row + MR` and `NR` registers of outputs from `output` on are inside the operands.
    unsafe {
        for m in 0..MR {
            ask_for_outputs::<V>(g, row + m, (output, NR * V::OUTPUTS));
        }
        let acc = int8_sums::<V, MR, NR, false, ASK>(g, row, output);
        for m in 0..MR {
            for n in 0..NR {
                let o = output + n * V::OUTPUTS;
                let mut sum = acc[m][n];
                if V::BIASED {
                    sum = sum.sub(V::load(g.b_sum.add(o).cast()));
                }
                let c = g.c.add((row + m) * g.ldc + o);
                sum.store_scaled(g.b_scale.cast::<f32>().add(o), *g.a_scale.add(row + m), c);
            }
        }
    }
}

/// The product of whole rows: biased, or signed where [`Dots::BIASED`] is not.
///
/// # Safety
/// The CPU has V's instructions; pointers of `g` valid for its sizes.
#[inline(always)]
pub(super) unsafe fn int8<V: Dots>(g: &Gemm) {
    // SAFETY: blocks stay inside the operands.
    unsafe {
        let end = g.panels * LANES;
        let mut o = 0;
        while o < end {
            let nr = match (end - o) / V::OUTPUTS {
                8.. if V::OUTPUTS < LANES && g.m == 1 => 8,
                4.. if V::OUTPUTS != 8 || g.m == 1 => 4,
                2.. if V::OUTPUTS == 8 => 2,
                _ => 1,
            };
            let mut r = 0;
            while r < g.m {
                let mr = match g.m - r {
                    6.. if V::ROWS >= 6 => 6,
                    4.. if V::ROWS >= 4 => 4,
                    2.. => 2,
                    _ => 1,
                };
                match (mr, nr) {
                    (6, _) if V::OUTPUTS == 4 => int8_block::<V, 6, 4, true>(g, r, o),
                    (6, _) => int8_block::<V, 6, 2, true>(g, r, o),
                    // A block by four registers of 512 bit waits for no weights, and asking is a seventh of its instructions.
                    (4, 4) if r > 0 && V::OUTPUTS == LANES => int8_block::<V, 4, 4, false>(g, r, o),
                    (4, 4) => int8_block::<V, 4, 4, true>(g, r, o),
                    (4, 2) => int8_block::<V, 4, 2, true>(g, r, o),
                    (4, _) => int8_block::<V, 4, 1, true>(g, r, o),
                    (2, 4) => int8_block::<V, 2, 4, true>(g, r, o),
                    (2, 2) => int8_block::<V, 2, 2, true>(g, r, o),
                    (2, _) => int8_block::<V, 2, 1, true>(g, r, o),
                    (_, 8) => int8_block::<V, 1, 8, true>(g, r, o),
                    (_, 4) => int8_block::<V, 1, 4, true>(g, r, o),
                    (_, 2) => int8_block::<V, 1, 2, true>(g, r, o),
                    _ => int8_block::<V, 1, 1, true>(g, r, o),
                }
                r += mr;
            }
            o += nr * V::OUTPUTS;
        }
    }
}

#[inline(always)]
unsafe fn int4_block<V: Dots, const MR: usize, const NR: usize>(g: &Gemm, row: usize, output: usize) {
    // SAFETY: rows `row..row + MR` and `NR` registers of outputs from `output` on are inside the operands.
    unsafe {
        let groups = g.k / GROUP;
        let mut sum = [[V::zeros(); MR]; NR];
        for grp in 0..groups {
            for n in 0..NR {
                let o = output + n * V::OUTPUTS;
                let b = weights(g, o).add(grp * GROUP * LANES / 2);
                let mut part = [V::none_small(); MR];
                for block in 0..GROUP / 8 {
                    if MR == 1 {
                        V::prefetch(b.wrapping_add(4096 + block * STEP));
                    }
                    let (low, high) = V::load(b.add(block * STEP)).nibbles();
                    for m in 0..MR {
                        let a = g.a.add((row + m) * g.lda + grp * GROUP + block * 8);
                        part[m] = V::dot_small(part[m], low, V::spread(a));
                        part[m] = V::dot_small(part[m], high, V::spread(a.add(4)));
                    }
                }
                let scale =
                    V::load_bf16(g.b_scale.cast::<u16>().add((o / LANES * groups + grp) * LANES + o % LANES));
                for m in 0..MR {
                    let less = V::splat(*g.a_sums.add((row + m) * groups + grp));
                    sum[n][m] = V::total(part[m]).sub(less).add_scaled(scale, sum[n][m]);
                }
            }
        }
        for n in 0..NR {
            for m in 0..MR {
                let c = g.c.add((row + m) * g.ldc + output + n * V::OUTPUTS);
                V::store_floats(sum[n][m], *g.a_scale.add(row + m), c);
            }
        }
    }
}

/// The product of four-bit weights and signed rows.
///
/// # Safety
/// The CPU has V's instructions; pointers of `g` valid for its sizes.
#[inline(always)]
pub(super) unsafe fn int4<V: Dots>(g: &Gemm) {
    // SAFETY: blocks stay inside the operands.
    unsafe {
        let end = g.panels * LANES;
        let mut o = 0;
        while o < end {
            let nr = if (end - o) / V::OUTPUTS >= 2 { 2 } else { 1 };
            let mut r = 0;
            while r < g.m {
                let mr = match g.m - r {
                    4.. => 4,
                    2.. => 2,
                    _ => 1,
                };
                match (mr, nr) {
                    (4, 2) => int4_block::<V, 4, 2>(g, r, o),
                    (4, _) => int4_block::<V, 4, 1>(g, r, o),
                    (2, 2) => int4_block::<V, 2, 2>(g, r, o),
                    (2, _) => int4_block::<V, 2, 1>(g, r, o),
                    (_, 2) => int4_block::<V, 1, 2>(g, r, o),
                    _ => int4_block::<V, 1, 1>(g, r, o),
                }
                r += mr;
            }
            o += nr * V::OUTPUTS;
        }
    }
}
