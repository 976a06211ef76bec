//! The periodic activation of audio decoders, with a sine of its own.

use super::lanes::{F32s, LANES};
use super::vector::{load, store};

/// Pi in parts that a multiple of up to some ten thousand takes away without loss.
const PI: [f32; 3] = [3.140_625, 9.675_026e-4, 1.509_958e-7];
/// sin(r) / r in powers of r^2, for |r| up to half of pi: error under 4e-9 before rounding.
const SINE: [f32; 5] = [1.0, -0.166_666_48, 8.332_9e-3, -1.980_089e-4, 2.590_472_4e-6];

/// sin(y)^2 to 4e-7 for |y| up to 1e4; between 0 and 1 for any number. Its period is pi, so no quadrant matters.
///
/// # Safety
/// As for [`F32s`].
#[inline(always)]
pub unsafe fn sine_squared<V: F32s>(y: V) -> V {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let n = y.mul(V::splat(std::f32::consts::FRAC_1_PI)).round();
        let r = n.fma(V::splat(-PI[0]), y);
        let r = n.fma(V::splat(-PI[1]), r);
        let r = n.fma(V::splat(-PI[2]), r);
        let half = std::f32::consts::FRAC_PI_2;
        let r = r.max(V::splat(-half)).min(V::splat(half));
        let z = r.mul(r);
        let p = V::splat(SINE[4]);
        let p = p.fma(z, V::splat(SINE[3]));
        let p = p.fma(z, V::splat(SINE[2]));
        let p = p.fma(z, V::splat(SINE[1]));
        let p = p.fma(z, V::splat(SINE[0]));
        let s = p.mul(r);
        s.mul(s)
    }
}

/// `out = x + gain * sin(rate * x)^2` of one row, each channel with its own parameters. `out` may be `x`.
///
/// # Safety
/// All pointers hold `n` values; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn snake_row<V: F32s>(x: *const f32, n: usize, rate: *const f32, gain: *const f32, out: *mut f32) {
    // SAFETY: chunks stay in 0..n.
    unsafe {
        let mut i = 0;
        while i < n {
            let len = LANES.min(n - i);
            let v = load::<V>(x.add(i), len);
            let s = sine_squared(v.mul(load::<V>(rate.add(i), len)));
            store(s.fma(load::<V>(gain.add(i), len), v), out.add(i), len);
            i += len;
        }
    }
}
