//! AMX tiles: int8 and bf16 panel products through inline assembly.
//!
//! A packed panel is already a column of B tiles: 16 rows of 64 bytes, four int8 or two bf16 inputs for
//! each of 16 outputs. A tile of A is up to 16 rows by 64 bytes. C lives in registers 0-3, as two A tiles
//! by two panels (A in 4-5, B in 6-7) or as one A tile by four panels (A in 4, B in 5-7): four independent
//! sums hide the latency of the tile product.
#![allow(clippy::undocumented_unsafe_blocks)] // every block: tile instructions inside g's operands

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::Cell;
use std::sync::OnceLock;

use super::gemm::Gemm;
use super::lanes::LANES;

const TILE_ROWS: usize = 16;
const TILE_BYTES: usize = 1024;
/// How far ahead of the product weights are fetched, in bytes of a panel.
const PREFETCH: usize = 4 * TILE_BYTES;

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

thread_local! {
    /// Rows of the two A tiles that this thread's tiles are configured for; zero when they are not.
    static CONFIGURED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Configures A tiles of `top` and `bottom` rows; `bottom` 0 means one A tile and four panels.
unsafe fn configure(top: usize, bottom: usize) {
    if CONFIGURED.get() == (top, bottom) {
        return;
    }
    let mut cfg =
        TileConfig { palette: 1, start_row: 0, reserved: [0; 14], bytes_per_row: [0; 16], rows: [0; 16] };
    let tiles = if bottom > 0 {
        [top, top, bottom, bottom, top, bottom, 16, 16]
    } else {
        [top, top, top, top, top, 16, 16, 16]
    };
    for (tile, rows) in tiles.into_iter().enumerate() {
        cfg.rows[tile] = rows as u8;
        cfg.bytes_per_row[tile] = 64;
    }
    unsafe { asm!("ldtilecfg [{}]", in(reg) &cfg, options(nostack, preserves_flags, readonly)) };
    CONFIGURED.set((top, bottom));
}

/// Gives this thread's tiles back, if it has any: a context switch then saves less.
pub fn release() {
    if CONFIGURED.replace((0, 0)) != (0, 0) {
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}

macro_rules! tile_loop {
    ($name:ident, $four:ident, $dot:literal, $step:literal) => {
        /// One A tile by four panels.
        #[inline(always)]
        unsafe fn $four(g: &Gemm, row: usize, panel: usize, c: *mut u8, c_stride: usize) {
            unsafe {
                if g.accumulate {
                    asm!("tileloadd tmm0, [{c} + {s}*1]", "tileloadd tmm1, [{c} + {s}*1 + 64]",
                        "tileloadd tmm2, [{c} + {s}*1 + 128]", "tileloadd tmm3, [{c} + {s}*1 + 192]",
                        c = in(reg) c, s = in(reg) c_stride, options(nostack, preserves_flags, readonly));
                } else {
                    asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        options(nostack, preserves_flags, nomem));
                }
                let mut a = g.a.add(row * g.lda);
                let mut b = g.b.add(panel * g.panel);
                for _ in 0..g.k / $step {
                    // Weights come from beyond the second-level cache: ask for the tiles after next.
                    for p in 0..4 {
                        let ahead = b.wrapping_add(p * g.panel + PREFETCH);
                        for line in 0..TILE_ROWS {
                            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * 64).cast());
                        }
                    }
                    asm!("tileloadd tmm4, [{a} + {lda}*1]", "tileloadd tmm5, [{b0} + {s64}*1]",
                        concat!($dot, " tmm0, tmm4, tmm5"), "tileloadd tmm6, [{b1} + {s64}*1]",
                        concat!($dot, " tmm1, tmm4, tmm6"), "tileloadd tmm7, [{b2} + {s64}*1]",
                        concat!($dot, " tmm2, tmm4, tmm7"), "tileloadd tmm5, [{b3} + {s64}*1]",
                        concat!($dot, " tmm3, tmm4, tmm5"),
                        a = in(reg) a, lda = in(reg) g.lda, s64 = in(reg) 64usize, b0 = in(reg) b,
                        b1 = in(reg) b.add(g.panel), b2 = in(reg) b.add(2 * g.panel),
                        b3 = in(reg) b.add(3 * g.panel), options(nostack, preserves_flags, readonly));
                    a = a.add(64);
                    b = b.add(TILE_BYTES);
                }
                asm!("tilestored [{c} + {s}*1], tmm0", "tilestored [{c} + {s}*1 + 64], tmm1",
                    "tilestored [{c} + {s}*1 + 128], tmm2", "tilestored [{c} + {s}*1 + 192], tmm3",
                    c = in(reg) c, s = in(reg) c_stride, options(nostack, preserves_flags));
            }
        }

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
                    // The first rows bring the weights in for those that follow.
                    if row == 0 {
                        for line in 0..TILE_ROWS {
                            _mm_prefetch::<_MM_HINT_T0>(b0.wrapping_add(PREFETCH + line * 64).cast());
                        }
                        if PANELS == 2 {
                            for line in 0..TILE_ROWS {
                                _mm_prefetch::<_MM_HINT_T0>(b1.wrapping_add(PREFETCH + line * 64).cast());
                            }
                        }
                    }
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
tile_loop!(int8_tiles, int8_four, "tdpbusd", 64);
tile_loop!(bf16_tiles, bf16_four, "tdpbf16ps", 32);

/// Runs the body for blocks of up to 32 rows and, panel by panel, four (one A tile) or two panels (two A
/// tiles), tiles configured. A macro, because a closure would be compiled without the caller's target
/// features.
macro_rules! for_tiles {
    ($g:ident, |$row:ident, $rows:ident, $p:ident, $np:ident| $body:block) => {{
        let mut $row = 0;
        while $row < $g.m {
            let $rows = ($g.m - $row).min(2 * TILE_ROWS);
            let (top, bottom) = ($rows.min(TILE_ROWS), $rows.saturating_sub(TILE_ROWS));
            configure(top, bottom);
            let mut $p = 0;
            while $p < $g.panels {
                let left = $g.panels - $p;
                let $np = if bottom == 0 && left >= 4 { 4 } else { left.min(2) };
                $body
                $p += $np;
            }
            $row += $rows;
        }
    }};
}

/// Bf16 activations by bf16 weights.
///
/// # Safety
/// AMX permitted; pointers of `g` valid for its sizes, A in bf16.
pub unsafe fn bf16(g: &Gemm) {
    unsafe {
        for_tiles!(g, |row, rows, p, np| {
            let c = g.c.add(row * g.ldc + p * LANES).cast::<u8>();
            let stride = g.ldc * 4;
            match (rows > TILE_ROWS, np) {
                (_, 4) => bf16_four(g, row, p, c, stride),
                (true, 2) => bf16_tiles::<2, 2>(g, row, p, c, stride),
                (true, _) => bf16_tiles::<2, 1>(g, row, p, c, stride),
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
            return super::x86_products::int8_avx512(g);
        }
        const WIDTH: usize = 4 * LANES;
        #[repr(align(64))]
        struct Sums([i32; 2 * TILE_ROWS * WIDTH]);
        let mut sums = Sums([0; 2 * TILE_ROWS * WIDTH]);
        let c = sums.0.as_mut_ptr();
        for_tiles!(g, |row, rows, p, np| {
            let stride = WIDTH * 4;
            match (rows > TILE_ROWS, np) {
                (_, 4) => int8_four(g, row, p, c.cast(), stride),
                (true, 2) => int8_tiles::<2, 2>(g, row, p, c.cast(), stride),
                (true, _) => int8_tiles::<2, 1>(g, row, p, c.cast(), stride),
                (_, 2) => int8_tiles::<1, 2>(g, row, p, c.cast(), stride),
                _ => int8_tiles::<1, 1>(g, row, p, c.cast(), stride),
            }
            for n in 0..np {
                let at = (p + n) * LANES;
                let sum = _mm512_loadu_si512(g.b_sum.add(at).cast());
                let scale = _mm512_loadu_ps(g.b_scale.cast::<f32>().add(at));
                for m in 0..rows {
                    let acc = _mm512_loadu_si512(c.add(m * WIDTH + n * LANES).cast());
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
