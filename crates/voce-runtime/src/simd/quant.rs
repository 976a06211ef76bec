//! Int8 and int4 panel products: byte activations against quantised weights.
//!
//! Int8 takes activations as unsigned bytes with a bias of 128, because VNNI and AMX multiply unsigned
//! by signed; the bias is taken out with the precomputed sums of the weights. Int4 keeps weights as
//! unsigned nibbles (0..=15, meaning -8..=7) and takes signed activations. Integer sums are exact, so
//! every implementation gives the same bits.

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

/// AVX2 and AVX-512 VNNI forms.
#[cfg(target_arch = "x86_64")]
pub mod x86 {
    #![allow(clippy::undocumented_unsafe_blocks)] // every block: intrinsics inside g's operands
    use super::*;
    use std::arch::x86_64::*;

    /// Int8 with `madd` on widened bytes (exact, unlike `maddubs`).
    ///
    /// # Safety
    /// AVX2; pointers of `g` valid for its sizes.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn int8_avx2(g: &Gemm) {
        unsafe {
            for p in 0..g.panels {
                for m in 0..g.m {
                    let a = g.a.add(m * g.lda).cast::<i32>();
                    let b = g.b.add(p * g.panel);
                    let mut acc = [_mm256_setzero_si256(); 4];
                    for k in 0..g.k / 4 {
                        let a4 = _mm256_cvtepu8_epi16(_mm_set1_epi32(a.add(k).read_unaligned()));
                        for (i, acc) in acc.iter_mut().enumerate() {
                            let w = _mm_loadu_si128(b.add(k * 64 + i * 16).cast());
                            *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(_mm256_cvtepi8_epi16(w), a4));
                        }
                    }
                    let mut pairs = [0i32; 32];
                    for (i, acc) in acc.iter().enumerate() {
                        _mm256_storeu_si256(pairs.as_mut_ptr().add(i * 8).cast(), *acc);
                    }
                    let sums: [i32; LANES] = std::array::from_fn(|l| pairs[2 * l] + pairs[2 * l + 1]);
                    finish_int8(g, m, p, &sums);
                }
            }
        }
    }

    /// Int4 compiled for AVX2 from the portable form.
    ///
    /// # Safety
    /// AVX2; pointers of `g` valid for its sizes.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn int4_avx2(g: &Gemm) {
        unsafe { int4_portable(g) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn int8_block<const MR: usize, const NR: usize>(g: &Gemm, row: usize, panel: usize) {
        unsafe {
            let mut acc = [[_mm512_setzero_si512(); MR]; NR];
            let mut a = [g.a.cast::<i32>(); MR];
            let mut b = [g.b; NR];
            for (m, a) in a.iter_mut().enumerate() {
                *a = g.a.add((row + m) * g.lda).cast();
            }
            for (n, b) in b.iter_mut().enumerate() {
                *b = g.b.add((panel + n) * g.panel);
            }
            for k in 0..g.k / 4 {
                for n in 0..NR {
                    if MR == 1 && k % 16 == 0 {
                        // A panel tile is 1 KiB: fetch the one eight tiles ahead.
                        _mm_prefetch::<_MM_HINT_T0>(b[n].add(k * 64 + 8192).cast());
                    }
                    let w = _mm512_loadu_si512(b[n].add(k * 64).cast());
                    for m in 0..MR {
                        let x = _mm512_set1_epi32(a[m].add(k).read_unaligned());
                        acc[n][m] = _mm512_dpbusd_epi32(acc[n][m], x, w);
                    }
                }
            }
            for n in 0..NR {
                let at = (panel + n) * LANES;
                let sum = _mm512_loadu_si512(g.b_sum.add(at).cast());
                let scale = _mm512_loadu_ps(g.b_scale.cast::<f32>().add(at));
                for m in 0..MR {
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*g.a_scale.add(row + m)));
                    let v = _mm512_cvtepi32_ps(_mm512_sub_epi32(acc[n][m], sum));
                    _mm512_storeu_ps(g.c.add((row + m) * g.ldc + at), _mm512_mul_ps(v, scale));
                }
            }
        }
    }

    /// Int8 with VNNI.
    ///
    /// # Safety
    /// AVX-512 with VNNI; pointers of `g` valid for its sizes.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub unsafe fn int8_avx512(g: &Gemm) {
        unsafe {
            let mut p = 0;
            while p < g.panels {
                let np = if g.panels - p >= 4 { 4 } else { 1 };
                let mut r = 0;
                while r < g.m {
                    let left = g.m - r;
                    match (np, left) {
                        (4, 4..) => int8_block::<4, 4>(g, r, p),
                        (4, 2..) => int8_block::<2, 4>(g, r, p),
                        (4, _) => int8_block::<1, 4>(g, r, p),
                        (_, 4..) => int8_block::<4, 1>(g, r, p),
                        (_, 2..) => int8_block::<2, 1>(g, r, p),
                        _ => int8_block::<1, 1>(g, r, p),
                    }
                    r += if left >= 4 {
                        4
                    } else if left >= 2 {
                        2
                    } else {
                        1
                    };
                }
                p += np;
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn int4_block<const MR: usize, const NR: usize>(g: &Gemm, row: usize, panel: usize) {
        unsafe {
            let groups = g.k / GROUP;
            let nibble = _mm512_set1_epi8(15);
            let mut sum = [[_mm512_setzero_ps(); MR]; NR];
            for grp in 0..groups {
                for n in 0..NR {
                    let mut acc: [__m512i; MR] =
                        std::array::from_fn(|m| _mm512_set1_epi32(-*g.a_sums.add((row + m) * groups + grp)));
                    let b = g.b.add((panel + n) * g.panel + grp * GROUP * LANES / 2);
                    if MR == 1 {
                        for line in 0..4 {
                            _mm_prefetch::<_MM_HINT_T0>(b.add(4096 + line * 64).cast());
                        }
                    }
                    for block in 0..GROUP / 8 {
                        let w = _mm512_loadu_si512(b.add(block * 64).cast());
                        let lo = _mm512_and_si512(w, nibble);
                        let hi = _mm512_and_si512(_mm512_srli_epi16::<4>(w), nibble);
                        for (m, acc) in acc.iter_mut().enumerate() {
                            let a = g.a.add((row + m) * g.lda + grp * GROUP + block * 8).cast::<i32>();
                            *acc = _mm512_dpbusd_epi32(*acc, lo, _mm512_set1_epi32(a.read_unaligned()));
                            let next = a.add(1).read_unaligned();
                            *acc = _mm512_dpbusd_epi32(*acc, hi, _mm512_set1_epi32(next));
                        }
                    }
                    let scales = g.b_scale.cast::<u16>().add(((panel + n) * groups + grp) * LANES);
                    let scale = _mm512_cvtepu16_epi32(_mm256_loadu_si256(scales.cast()));
                    let scale = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(scale));
                    for m in 0..MR {
                        let v = _mm512_cvtepi32_ps(acc[m]);
                        // Not fused, to give the bits of the portable form.
                        sum[n][m] = _mm512_add_ps(sum[n][m], _mm512_mul_ps(v, scale));
                    }
                }
            }
            for n in 0..NR {
                for m in 0..MR {
                    let v = _mm512_mul_ps(sum[n][m], _mm512_set1_ps(*g.a_scale.add(row + m)));
                    _mm512_storeu_ps(g.c.add((row + m) * g.ldc + (panel + n) * LANES), v);
                }
            }
        }
    }

    /// Int4 with VNNI.
    ///
    /// # Safety
    /// AVX-512 with VNNI; pointers of `g` valid for its sizes.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub unsafe fn int4_avx512(g: &Gemm) {
        unsafe {
            let mut p = 0;
            while p < g.panels {
                let np = if g.panels - p >= 2 { 2 } else { 1 };
                let mut r = 0;
                while r < g.m {
                    let left = g.m - r;
                    match (np, left) {
                        (2, 4..) => int4_block::<4, 2>(g, r, p),
                        (2, _) => int4_block::<1, 2>(g, r, p),
                        (_, 4..) => int4_block::<4, 1>(g, r, p),
                        _ => int4_block::<1, 1>(g, r, p),
                    }
                    r += if left >= 4 { 4 } else { 1 };
                }
                p += np;
            }
        }
    }
}
