//! AMX tiles: int8 and bf16 panel products through inline assembly.
//!
//! A packed panel is already a column of B tiles: 16 rows of 64 bytes, four int8 or two bf16 inputs for
//! each of 16 outputs. A tile of A is up to 16 rows by 64 bytes. Up to two A tiles by two panels share
//! the eight tile registers: C in 0-3, A in 4-5, B in 6-7.
#![allow(clippy::undocumented_unsafe_blocks)] // every block: tile instructions inside g's operands

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::gemm::Gemm;
use super::lanes::LANES;

const TILE_ROWS: usize = 16;
const TILE_BYTES: usize = 1024;

/// Whether the CPU has AMX int8 and bf16 and the kernel lets this process use tiles.
pub fn permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| {
        let leaf7 = __cpuid_count(7, 0).edx;
        let (bf16, tile, int8) = (leaf7 >> 22 & 1, leaf7 >> 24 & 1, leaf7 >> 25 & 1);
        bf16 & tile & int8 == 1 && request_tiles()
    })
}

/// Linux grants the large tile state on request (arch_prctl ARCH_REQ_XCOMP_PERM, XTILEDATA).
fn request_tiles() -> bool {
    #[cfg(target_os = "linux")]
    {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: a plain system call with integer arguments.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    false
}

#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

/// Two A tiles of `top` and `bottom` rows (bottom may be 0).
unsafe fn configure(top: usize, bottom: usize) {
    let mut cfg =
        TileConfig { palette: 1, start_row: 0, reserved: [0; 14], bytes_per_row: [0; 16], rows: [0; 16] };
    let bottom = bottom.max(1);
    for (tile, rows) in [top, top, bottom, bottom, top, bottom, 16, 16].into_iter().enumerate() {
        cfg.rows[tile] = rows as u8;
        cfg.bytes_per_row[tile] = 64;
    }
    unsafe { asm!("ldtilecfg [{}]", in(reg) &cfg, options(nostack, preserves_flags, readonly)) };
}

unsafe fn release() {
    unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
}

macro_rules! tile_loop {
    ($name:ident, $dot:literal, $step:literal) => {
        /// Runs the k loop of `ROWS` A tiles by `PANELS` panels and stores the C tiles at `c`.
        #[inline(always)]
        unsafe fn $name<const ROWS: usize, const PANELS: usize>(
            g: &Gemm,
            row: usize,
            panel: usize,
            c: *mut u8,
            c_stride: usize,
        ) {
            unsafe {
                asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    options(nostack, preserves_flags, nomem));
                if g.accumulate {
                    let s = c_stride;
                    asm!("tileloadd tmm0, [{c} + {s}*1]", c = in(reg) c, s = in(reg) s,
                        options(nostack, preserves_flags, readonly));
                    if PANELS == 2 {
                        asm!("tileloadd tmm1, [{c} + {s}*1]", c = in(reg) c.add(64), s = in(reg) s,
                            options(nostack, preserves_flags, readonly));
                    }
                    if ROWS == 2 {
                        let c = c.add(TILE_ROWS * s);
                        asm!("tileloadd tmm2, [{c} + {s}*1]", c = in(reg) c, s = in(reg) s,
                            options(nostack, preserves_flags, readonly));
                        if PANELS == 2 {
                            asm!("tileloadd tmm3, [{c} + {s}*1]", c = in(reg) c.add(64), s = in(reg) s,
                                options(nostack, preserves_flags, readonly));
                        }
                    }
                }
                let mut a0 = g.a.add(row * g.lda);
                let mut a1 = g.a.add((row + if ROWS == 2 { TILE_ROWS } else { 0 }) * g.lda);
                let mut b0 = g.b.add(panel * g.panel);
                let mut b1 = g.b.add((panel + PANELS - 1) * g.panel);
                for _ in 0..g.k / $step {
                    asm!("tileloadd tmm6, [{b0} + {s64}*1]", "tileloadd tmm4, [{a0} + {lda}*1]",
                        concat!($dot, " tmm0, tmm4, tmm6"),
                        b0 = in(reg) b0, a0 = in(reg) a0, s64 = in(reg) 64usize, lda = in(reg) g.lda,
                        options(nostack, preserves_flags, readonly));
                    if PANELS == 2 {
                        asm!("tileloadd tmm7, [{b1} + {s64}*1]", concat!($dot, " tmm1, tmm4, tmm7"),
                            b1 = in(reg) b1, s64 = in(reg) 64usize,
                            options(nostack, preserves_flags, readonly));
                    }
                    if ROWS == 2 {
                        asm!("tileloadd tmm5, [{a1} + {lda}*1]", concat!($dot, " tmm2, tmm5, tmm6"),
                            a1 = in(reg) a1, lda = in(reg) g.lda,
                            options(nostack, preserves_flags, readonly));
                        if PANELS == 2 {
                            asm!(concat!($dot, " tmm3, tmm5, tmm7"), options(nostack, preserves_flags, nomem));
                        }
                    }
                    a0 = a0.add(64);
                    a1 = a1.add(64);
                    b0 = b0.add(TILE_BYTES);
                    b1 = b1.add(TILE_BYTES);
                }
                asm!("tilestored [{c} + {s}*1], tmm0", c = in(reg) c, s = in(reg) c_stride,
                    options(nostack, preserves_flags));
                if PANELS == 2 {
                    asm!("tilestored [{c} + {s}*1], tmm1", c = in(reg) c.add(64), s = in(reg) c_stride,
                        options(nostack, preserves_flags));
                }
                if ROWS == 2 {
                    let c = c.add(TILE_ROWS * c_stride);
                    asm!("tilestored [{c} + {s}*1], tmm2", c = in(reg) c, s = in(reg) c_stride,
                        options(nostack, preserves_flags));
                    if PANELS == 2 {
                        asm!("tilestored [{c} + {s}*1], tmm3", c = in(reg) c.add(64), s = in(reg) c_stride,
                            options(nostack, preserves_flags));
                    }
                }
            }
        }
    };
}
tile_loop!(int8_tiles, "tdpbusd", 64);
tile_loop!(bf16_tiles, "tdpbf16ps", 32);

/// Runs the body for blocks of up to 32 rows by 2 panels with tiles configured for them. A macro, because
/// a closure would be compiled without the caller's target features.
macro_rules! for_tiles {
    ($g:ident, |$row:ident, $rows:ident, $row_tiles:ident, $p:ident, $np:ident| $body:block) => {{
        let mut $row = 0;
        while $row < $g.m {
            let $rows = ($g.m - $row).min(2 * TILE_ROWS);
            let (top, bottom) = ($rows.min(TILE_ROWS), $rows.saturating_sub(TILE_ROWS));
            configure(top, bottom);
            let $row_tiles = if bottom > 0 { 2 } else { 1 };
            let mut $p = 0;
            while $p < $g.panels {
                let $np = ($g.panels - $p).min(2);
                $body
                $p += $np;
            }
            $row += $rows;
        }
        release();
    }};
}

/// Bf16 activations by bf16 weights.
///
/// # Safety
/// AMX permitted; pointers of `g` valid for its sizes, A in bf16.
pub unsafe fn bf16(g: &Gemm) {
    unsafe {
        for_tiles!(g, |row, rows, row_tiles, p, np| {
            let c = g.c.add(row * g.ldc + p * LANES).cast::<u8>();
            let stride = g.ldc * 4;
            match (row_tiles, np) {
                (2, 2) => bf16_tiles::<2, 2>(g, row, p, c, stride),
                (2, _) => bf16_tiles::<2, 1>(g, row, p, c, stride),
                (_, 2) => bf16_tiles::<1, 2>(g, row, p, c, stride),
                _ => bf16_tiles::<1, 1>(g, row, p, c, stride),
            }
        });
    }
}

/// Biased-byte activations by int8 weights; small row counts go to VNNI, whose bits are the same.
///
/// # Safety
/// AMX permitted; pointers of `g` valid for its sizes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub unsafe fn int8(g: &Gemm) {
    unsafe {
        if g.m < MIN_ROWS {
            return super::quant::x86::int8_avx512(g);
        }
        #[repr(align(64))]
        struct Sums([i32; 2 * TILE_ROWS * 2 * LANES]);
        let mut sums = Sums([0; 2 * TILE_ROWS * 2 * LANES]);
        let c = sums.0.as_mut_ptr();
        for_tiles!(g, |row, rows, row_tiles, p, np| {
            let stride = 2 * LANES * 4;
            match (row_tiles, np) {
                (2, 2) => int8_tiles::<2, 2>(g, row, p, c.cast(), stride),
                (2, _) => int8_tiles::<2, 1>(g, row, p, c.cast(), stride),
                (_, 2) => int8_tiles::<1, 2>(g, row, p, c.cast(), stride),
                _ => int8_tiles::<1, 1>(g, row, p, c.cast(), stride),
            }
            for n in 0..np {
                let at = (p + n) * LANES;
                let sum = _mm512_loadu_si512(g.b_sum.add(at).cast());
                let scale = _mm512_loadu_ps(g.b_scale.cast::<f32>().add(at));
                for m in 0..rows {
                    let acc = _mm512_loadu_si512(c.add(m * 2 * LANES + n * LANES).cast());
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*g.a_scale.add(row + m)));
                    let v = _mm512_cvtepi32_ps(_mm512_sub_epi32(acc, sum));
                    _mm512_storeu_ps(g.c.add((row + m) * g.ldc + at), _mm512_mul_ps(v, scale));
                }
            }
        });
    }
}

/// Rows from which tiles beat VNNI.
const MIN_ROWS: usize = 4;
