//! e4m3 on the host: codes as the kernels of `fp8.cuh` make them, for weights and for caches that move to a device.

/// The largest value.
pub(crate) const MAX: f32 = 448.0;
/// The largest value of a row below which the row counts as zeros.
const TINY: f32 = 1e-30;
/// The smallest exponent of a row: its smallest code is still a bf16.
const LEAST_EXPONENT: i32 = 8;

/// The nearest code, ties to even; what is larger than 448 becomes that, what is no number stays none.
pub(crate) fn encode(x: f32) -> u8 {
    let (bits, size) = (x.to_bits(), x.abs());
    let sign = (bits >> 24) as u8 & 0x80;
    if x.is_nan() {
        return sign | 0x7f;
    }
    // Below 2^-6 codes are multiples of 2^-9.
    if size < 1.0 / 64.0 {
        return sign | (size * 512.0).round_ties_even() as u8;
    }
    let size = size.min(MAX).to_bits();
    let code = (size + 0x7ffff + (size >> 20 & 1)) >> 20;
    sign | (code - (120 << 3)) as u8
}

/// A code's value.
pub(crate) fn decode(code: u8) -> f32 {
    let size = code & 0x7f;
    let value = match size {
        0x7f => f32::NAN,
        0..8 => f32::from(size) / 512.0,
        _ => f32::from_bits((u32::from(size) << 20) + (120 << 23)),
    };
    if code & 0x80 == 0 { value } else { -value }
}

/// The scale of a row of weights whose largest value is `top`, and what its values are multiplied by.
pub(crate) fn scale(top: f32) -> (f32, f32) {
    if top > TINY { (top / MAX, MAX / top) } else { (0.0, 0.0) }
}

/// Keeps a row of keys or values, and returns its exponent: the smallest power of two by which its largest value fits.
pub(crate) fn keep_row(values: &[f32], codes: &mut [u8]) -> u8 {
    let top = crate::matrix::max_abs(values).to_bits();
    let over = i32::from(top & 0x7f_ffff > 0x60_0000);
    let exponent = if top == 0 { 127 } else { ((top >> 23) as i32 + over - 8).max(LEAST_EXPONENT) as u32 };
    let inverse = f32::from_bits((254 - exponent) << 23);
    codes.iter_mut().zip(values).for_each(|(code, v)| *code = encode(v * inverse));
    exponent as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_own_nearest() {
        for code in 0..=255u8 {
            let value = decode(code);
            assert_eq!(value.is_nan(), code & 0x7f == 0x7f, "{code:#x}");
            assert_eq!(encode(value), code);
        }
        assert_eq!([0x08, 0x38, 0x7e, 0x01].map(decode), [1.0 / 64.0, 1.0, 448.0, 1.0 / 512.0]);
    }

    #[test]
    fn values_between_codes_go_to_the_nearer_one_and_ties_to_the_even() {
        for code in 0..0x7eu8 {
            let (low, high) = (decode(code), decode(code + 1));
            let middle = (low + high) / 2.0;
            let even = code + code % 2;
            for (value, want) in
                [(middle, even), (middle.next_down(), code), (middle.next_up(), code + 1), (low, code)]
            {
                assert_eq!(encode(value), want, "{value}");
                assert_eq!(encode(-value), want | 0x80, "-{value}");
            }
        }
    }

    #[test]
    fn what_is_too_large_saturates_and_nothing_finite_becomes_nan() {
        for x in [448.1, 464.0, 465.0, 1e9, f32::MAX, f32::INFINITY] {
            assert_eq!((encode(x), encode(-x)), (0x7e, 0xfe), "{x}");
        }
        for i in 0..1u32 << 16 {
            let x = f32::from_bits(i << 16 | 0x1234);
            assert_eq!(encode(x) & 0x7f == 0x7f, x.is_nan(), "{x}");
        }
    }

    #[test]
    fn a_row_that_was_kept_is_kept_again_as_it_is() {
        let mut codes = [0u8; 5];
        for top in [1e-38f32, 3e-20, 0.01, 0.9, 1.0, 1.75, 1.76, 225.0, 448.0, 449.0, 3e37] {
            let row = [top, -top / 3.0, top / 100.0, top * 0.031, 0.0];
            let exponent = keep_row(&row, &mut codes);
            let values = codes.map(|c| decode(c) * f32::from_bits(u32::from(exponent) << 23));
            for (kept, x) in values.iter().zip(row) {
                assert!((kept - x).abs() <= x.abs() / 16.0 || top < 1e-35, "{kept} for {x}");
                assert_eq!(kept.to_bits() & 0xffff, 0, "a bf16");
            }
            let again = keep_row(&values, &mut codes);
            assert_eq!(codes.map(|c| decode(c) * f32::from_bits(u32::from(again) << 23)), values);
        }
        assert_eq!((keep_row(&[0.0; 5], &mut codes), codes), (127, [0; 5]));
    }
}
