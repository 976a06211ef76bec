//! The arithmetic of sampling, operation by operation that of `sampling.cu`: a CPU and a device choose the same token.
//!
//! Random numbers come from Philox4x32-10, a function of a seed and a counter. Logarithm and exponential are sums of
//! a few products without fused operations, so that they are the same bits everywhere.

/// The first word of Philox4x32-10.
pub(super) fn philox(key: [u32; 2], counter: [u32; 4]) -> u32 {
    let (mut key, mut c) = (key, counter);
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
        }
        let (a, b) = (0xd251_1f53u64 * u64::from(c[0]), 0xcd9e_8d57u64 * u64::from(c[2]));
        c = [(b >> 32) as u32 ^ c[1] ^ key[0], b as u32, (a >> 32) as u32 ^ c[3] ^ key[1], a as u32];
    }
    c[0]
}

/// Natural logarithm of a normal number above 0, within a few units of the last place.
pub(super) fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 23) as i32 - 127;
    let mut m = f32::from_bits(bits & 0x007f_ffff | 0x3f80_0000);
    if m > std::f32::consts::SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    // ln m = 2 atanh s, |s| < 0.172.
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut p = 0.111_111_11f32;
    for c in [0.142_857_14f32, 0.2, 0.333_333_34, 1.0] {
        p = p * z + c;
    }
    exponent as f32 * std::f32::consts::LN_2 + (s + s) * p
}

/// `2^30 exp(d)` for `d <= 0`, rounded down; what is below `exp(-21)` is nothing.
pub(super) fn weight(d: f32) -> u32 {
    if d.is_nan() || d <= -21.0 {
        return 0;
    }
    let n = (0.5 - d * std::f32::consts::LOG2_E) as i32;
    let r = d + n as f32 * std::f32::consts::LN_2;
    let mut p = 0.001_388_888_9f32;
    for c in [0.008_333_334f32, 0.041_666_668, 0.166_666_67, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    (p * f32::from_bits((127 + 30 - n as u32) << 23)) as u32
}

/// A number of the standard Gumbel distribution: the largest of `ln p + gumbel` over classes is at class `i` with
/// probability `p_i`.
pub(super) fn gumbel(seed: u64, step: u32, index: u32) -> f32 {
    let word = philox([seed as u32, (seed >> 32) as u32], [index, step, 0, 0]);
    // 2^-24 to 1 - 2^-24, exactly.
    let u = ((word >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0);
    -ln(-ln(u))
}

/// Numbers in the order of floats; 0 is below all of them.
pub(super) fn key_of(x: f32) -> u32 {
    let bits = x.to_bits();
    bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 }
}

/// What [`key_of`] was given.
pub(super) fn value_of(key: u32) -> f32 {
    f32::from_bits(key ^ if key >> 31 == 1 { 1 << 31 } else { u32::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_numbers() {
        assert_eq!(philox([0; 2], [0; 4]), 0x6627_e8d5);
        assert_eq!(philox([u32::MAX; 2], [u32::MAX; 4]), 0x408f_276d);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(philox([0xa409_3822, 0x299f_31d0], pi), 0xd16c_fe09);
    }

    #[test]
    fn logarithm_and_exponential_are_close() {
        for i in 1..20_000 {
            let x = (i as f32 * 0.37).exp2().min(1e30) * 1e-6 + f32::MIN_POSITIVE;
            let (got, want) = (ln(x) as f64, (x as f64).ln());
            assert!((got - want).abs() <= 3e-7 * want.abs().max(0.3), "ln {x}: {got} {want}");
            let d = -(i as f32) * 0.001;
            let (got, want) = (f64::from(weight(d)), 2f64.powi(30) * (d as f64).exp());
            assert!((got - want).abs() <= 2e-6 * want + 1.0, "exp {d}: {got} {want}");
        }
        assert_eq!((weight(0.0), weight(-22.0), weight(f32::NEG_INFINITY)), (1 << 30, 0, 0));
        for u in [f32::EPSILON / 2.0, 1.0 - f32::EPSILON / 2.0] {
            assert!((-ln(-ln(u))).is_finite());
        }
    }

    #[test]
    fn keys_keep_the_order() {
        let values = [f32::MIN, -2.0, -1e-30, -0.0, 0.0, 1e-30, 3.5, f32::MAX];
        for pair in values.windows(2) {
            assert!(key_of(pair[0]) < key_of(pair[1]), "{pair:?}");
        }
        assert!(values.iter().all(|v| value_of(key_of(*v)).to_bits() == v.to_bits() && key_of(*v) > 0));
    }
}
