//! Int8 and int4 panel products in portable form: byte activations against quantised weights.
//!
//! Int8 takes activations as unsigned bytes with a bias of 128, because VNNI and AMX multiply unsigned
//! by signed; the bias is taken out with the precomputed sums of the weights. Without VNNI, x86 takes
//! rows of `split` instead, and NEON takes signed ones. Int4 keeps weights as unsigned nibbles (0..=15, meaning -8..=7) and takes
//! signed activations. Integer sums are exact, so every implementation gives the same bits.

use super::gemm::Gemm;
use super::lanes::LANES;

/// Inputs per int4 scale group.
pub const GROUP: usize = 32;

/// Portable int8 product.
///
/// # Safety
/// Pointers of `g` are valid for its sizes.
#[inline(always)]
pub unsafe fn int8_portable(g: &Gemm) {
    // SAFETY: offsets stay inside the operands.
    unsafe {
        for p in 0..g.panels {
            for m in 0..g.m {
                let a = std::slice::from_raw_parts(g.a.add(m * g.lda), g.k);
                let b = std::slice::from_raw_parts(g.b.add(p * g.panel).cast::<i8>(), g.k * LANES);
                let mut acc = [0i32; LANES];
                for (a4, b4) in a.chunks_exact(4).zip(b.chunks_exact(4 * LANES)) {
                    for (l, acc) in acc.iter_mut().enumerate() {
                        for j in 0..4 {
                            *acc += a4[j] as i32 * b4[4 * l + j] as i32;
                        }
                    }
                }
                finish_int8(g, m, p, &acc);
            }
        }
    }
}

#[inline(always)]
unsafe fn finish_int8(g: &Gemm, m: usize, p: usize, acc: &[i32; LANES]) {
    // SAFETY: row m and panel p are inside the operands.
    unsafe {
        let sa = *g.a_scale.add(m);
        for (l, &acc) in acc.iter().enumerate() {
            let n = p * LANES + l;
            let scale = sa * *g.b_scale.cast::<f32>().add(n);
            *g.c.add(m * g.ldc + n) = (acc - *g.b_sum.add(n)) as f32 * scale;
        }
    }
}

/// Portable int4 product.
///
/// # Safety
/// Pointers of `g` are valid for its sizes.
#[inline(always)]
pub unsafe fn int4_portable(g: &Gemm) {
    // SAFETY: offsets stay inside the operands.
    unsafe {
        let groups = g.k / GROUP;
        for p in 0..g.panels {
            for m in 0..g.m {
                let a = g.a.add(m * g.lda).cast::<i8>();
                let mut sum = [0f32; LANES];
                for grp in 0..groups {
                    let mut acc = [-*g.a_sums.add(m * groups + grp); LANES];
                    for block in 0..GROUP / 8 {
                        let k0 = grp * GROUP + block * 8;
                        let b = g.b.add(p * g.panel + k0 * LANES / 2);
                        for (l, acc) in acc.iter_mut().enumerate() {
                            for j in 0..4 {
                                let byte = *b.add(4 * l + j);
                                *acc += (byte & 15) as i32 * *a.add(k0 + j) as i32;
                                *acc += (byte >> 4) as i32 * *a.add(k0 + 4 + j) as i32;
                            }
                        }
                    }
                    let scales = g.b_scale.cast::<u16>().add((p * groups + grp) * LANES);
                    for l in 0..LANES {
                        sum[l] += acc[l] as f32 * f32::from_bits((*scales.add(l) as u32) << 16);
                    }
                }
                for (l, s) in sum.iter().enumerate() {
                    *g.c.add(m * g.ldc + p * LANES + l) = s * *g.a_scale.add(m);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::{ByteRows, Kernels, kernels};

    /// Bytes of both signs: the extremes, and values of no pattern. As inputs of split rows, all pairs are too large for 16 bits,
    /// or some, or only those of two steps together, or none.
    const BYTES: [fn(usize, usize) -> i8; 10] = [
        |_, _| 127,
        |_, _| -127,
        |_, _| -128,
        |_, i| if i % 2 == 0 { 127 } else { -128 },
        |_, i| if i % 2 == 0 { -127 } else { 127 },
        |r, i| if (i / 2 + r).is_multiple_of(2) { 127 } else { -127 },
        |r, i| if (i + r) % 3 == 0 { -128 } else { 127 },
        |r, i| ((i * 2_654_435_761 + r * 40_503) >> 7) as i8,
        |r, i| (((i * 7_919 + r * 104_729) % 129) as i32 - 64) as i8,
        |r, i| (((i * 7_919 + r * 104_729) % 33) as i32 - 16) as i8,
    ];
    const SHAPES: [(usize, usize, usize); 14] = [
        (1, 64, 1),
        (1, 512, 5),
        (2, 128, 4),
        (3, 64, 2),
        (4, 192, 3),
        (5, 1088, 1),
        (7, 64, 9),
        (17, 256, 4),
        (23, 1088, 5),
        (33, 128, 5),
        (64, 64, 4),
        (24, 2112, 1),
        (29, 1088, 7),
        (70, 64, 4),
    ];

    struct Case {
        rows: Vec<u8>,
        weights: Vec<u8>,
        scales: Vec<u8>,
        weight_sums: Vec<i32>,
        group_sums: Vec<i32>,
        row_scales: Vec<f32>,
    }

    impl Case {
        /// The product on one instruction set; `row` is the distance between rows.
        fn run(&self, kn: &Kernels, int8: bool, (m, k, panels): (usize, usize, usize)) -> Vec<u32> {
            let row = self.rows.len() / m;
            let mut c = vec![f32::NAN; m * panels * LANES];
            let g = Gemm {
                a: self.rows.as_ptr(),
                lda: row,
                m,
                k,
                b: self.weights.as_ptr(),
                panel: self.weights.len() / panels,
                panels,
                c: c.as_mut_ptr(),
                ldc: panels * LANES,
                a_scale: self.row_scales.as_ptr(),
                b_scale: self.scales.as_ptr(),
                b_sum: self.weight_sums.as_ptr(),
                a_sums: self.group_sums.as_ptr(),
                accumulate: false,
                to: std::ptr::null(),
                ldt: 0,
            };
            // SAFETY: the operands have the sizes that `g` states, and the CPU has the instructions of `kn`.
            unsafe { if int8 { (kn.gemm_int8)(&g) } else { (kn.gemm_int4)(&g) } };
            (kn.release)();
            c.iter().map(|v| v.to_bits()).collect()
        }
    }

    fn row_scales(m: usize) -> Vec<f32> {
        (0..m).map(|r| 0.013 + r as f32 * 0.0007).collect()
    }

    #[test]
    fn int8_products_are_exact_on_every_instruction_set() {
        for (m, k, panels) in SHAPES {
            let n = panels * LANES;
            for (x, w) in BYTES.iter().flat_map(|x| BYTES.iter().map(move |w| (*x, *w))) {
                let mut weights = vec![0u8; k * n];
                let mut weight_sums = vec![0i32; n];
                for (o, i) in (0..n).flat_map(|o| (0..k).map(move |i| (o, i))) {
                    weights[(o / LANES * k + i / 4 * 4) * LANES + o % LANES * 4 + i % 4] = w(o, i) as u8;
                    weight_sums[o] += 128 * w(o, i) as i32;
                }
                let scale = |o: usize| 0.002 + o as f32 * 0.0003;
                let scales = (0..n).flat_map(|o| scale(o).to_le_bytes()).collect();
                // No value is quantised to -128.
                let x = |r: usize, i: usize| x(r, i).max(-127);
                let biased: Vec<u8> = (0..m * k).map(|at| (x(at / k, at % k) as i32 + 128) as u8).collect();
                let mut want = Vec::new();
                for (r, o) in (0..m).flat_map(|r| (0..n).map(move |o| (r, o))) {
                    let sum: i64 = (0..k).map(|i| x(r, i) as i64 * w(o, i) as i64).sum();
                    want.push((sum as f32 * (row_scales(m)[r] * scale(o))).to_bits());
                }
                let mut case = Case {
                    rows: biased.clone(),
                    weights,
                    scales,
                    weight_sums,
                    group_sums: Vec::new(),
                    row_scales: row_scales(m),
                };
                for isa in Isa::available() {
                    let kn = kernels(isa);
                    case.rows = match kn.byte_rows {
                        ByteRows::Biased => biased.clone(),
                        ByteRows::Signed => biased.iter().map(|b| b ^ 0x80).collect(),
                        ByteRows::Split => split_rows(&biased, k),
                    };
                    assert!(case.run(kn, true, (m, k, panels)) == want, "{isa}, {m} rows of {k} by {n}");
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn split_rows(biased: &[u8], k: usize) -> Vec<u8> {
        let row = crate::simd::split::row_bytes(k);
        let mut rows = vec![0u8; biased.len() / k * row];
        for (from, to) in biased.chunks_exact(k).zip(rows.chunks_exact_mut(row)) {
            let signed: Vec<i8> = from.iter().map(|b| (b ^ 0x80) as i8).collect();
            // SAFETY: a table that takes split rows belongs to a CPU with AVX2; the row has room for its rest.
            unsafe { crate::simd::split::split(&signed, to.as_mut_ptr()) };
        }
        rows
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn split_rows(biased: &[u8], _: usize) -> Vec<u8> {
        biased.to_vec()
    }

    #[test]
    fn bytes_of_a_row_are_small_on_average_or_reach_the_largest() {
        let k = 192;
        let even: Vec<f32> = (0..k).map(|i| (i as f32 * 0.7).sin()).collect();
        let with = |peak: f32| {
            let mut row = even.clone();
            row[70] = peak;
            row
        };
        let mean = |row: &[f32]| row.iter().map(|v| v.abs()).sum::<f32>() / row.len() as f32;
        // One that is spread evenly, where the mean decides, where the largest does, and nothing.
        let (wide, peaked) = (with(-3.0), with(-9.0));
        let cases = [
            (&with(-1.0), 1.6 / 127.0),
            (&wide, mean(&wide) / 23.0),
            (&peaked, 9.0 / 127.0),
            (&vec![0.0; k], 0.0),
        ];
        for (row, want) in cases {
            for isa in Isa::available() {
                let kn = kernels(isa);
                let mut bytes = vec![0u8; crate::simd::split_row_bytes(k)];
                // SAFETY: a row of `k` values, and room for a row of any kind.
                let scale = unsafe { (kn.quantize_int8)(row.as_ptr(), k, k, bytes.as_mut_ptr()) };
                assert!((scale - want).abs() <= 1e-6 * want, "{isa}: {scale} for {want}");
                if matches!(kn.byte_rows, ByteRows::Split) {
                    continue;
                }
                let zero = if matches!(kn.byte_rows, ByteRows::Biased) { 0x80 } else { 0 };
                for (&b, &v) in bytes.iter().zip(row) {
                    let off = (b ^ zero) as i8 as f32 * scale - v;
                    assert!(off.abs() <= 0.5001 * scale, "{isa}: {off} of {scale}");
                }
            }
        }
    }

    #[test]
    fn int4_products_have_the_portable_bits_on_every_instruction_set() {
        for (m, k, panels) in SHAPES {
            let (n, groups) = (panels * LANES, k / GROUP);
            for (x, w) in BYTES.iter().flat_map(|x| BYTES.iter().map(move |w| (*x, *w))) {
                let weights = (0..k * n / 2).map(|at| w(at / 64, at) as u8).collect();
                let scales =
                    (0..panels * groups * LANES).flat_map(|at| (0x3c00u16 + at as u16 % 300).to_le_bytes());
                let group = |r: usize, g: usize| (0..GROUP).map(|i| x(r, g * GROUP + i) as i32).sum::<i32>();
                let case = Case {
                    rows: (0..m * k).map(|at| x(at / k, at % k) as u8).collect(),
                    weights,
                    scales: scales.collect(),
                    weight_sums: Vec::new(),
                    group_sums: (0..m * groups).map(|at| 8 * group(at / groups, at % groups)).collect(),
                    row_scales: row_scales(m),
                };
                let want = case.run(kernels(Isa::Scalar), false, (m, k, panels));
                for isa in Isa::available() {
                    let got = case.run(kernels(isa), false, (m, k, panels));
                    assert!(got == want, "{isa}, {m} rows of {k} by {n}");
                }
            }
        }
    }
}
