//! G.711: the two 8-bit telephone laws, both ways.

const BIAS: i32 = 0x84;
const MULAW_CLIP: i32 = 32_635;

pub(crate) fn mulaw_to_i16(byte: u8) -> i16 {
    let b = !byte;
    let magnitude = ((i32::from(b & 0x0f) << 3) + BIAS) << ((b >> 4) & 7);
    (if b & 0x80 != 0 { BIAS - magnitude } else { magnitude - BIAS }) as i16
}

pub(crate) fn i16_to_mulaw(sample: i16) -> u8 {
    let sign = if sample < 0 { 0x80 } else { 0 };
    let magnitude = i32::from(sample).abs().min(MULAW_CLIP) + BIAS;
    let exponent = (magnitude.ilog2() - 7) as i32;
    let mantissa = (magnitude >> (exponent + 3)) & 0x0f;
    !(sign | (exponent << 4) as u8 | mantissa as u8)
}

pub(crate) fn alaw_to_i16(byte: u8) -> i16 {
    let b = byte ^ 0x55;
    let mantissa = i32::from(b & 0x0f);
    let magnitude = match (b >> 4) & 7 {
        0 => (mantissa << 4) + 8,
        e => ((mantissa << 4) + 0x108) << (e - 1),
    };
    (if b & 0x80 != 0 { magnitude } else { -magnitude }) as i16
}

pub(crate) fn i16_to_alaw(sample: i16) -> u8 {
    let sign = if sample >= 0 { 0x80 } else { 0 };
    let magnitude = if sample >= 0 { i32::from(sample) } else { -i32::from(sample) - 1 };
    let coded = if magnitude < 256 {
        magnitude >> 4
    } else {
        let exponent = magnitude.ilog2() as i32 - 7;
        exponent << 4 | ((magnitude >> (exponent + 3)) & 0x0f)
    };
    (sign | coded as u8) ^ 0x55
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_of_both_laws() {
        assert_eq!([0xff, 0x7f, 0x80, 0x00].map(mulaw_to_i16), [0, 0, 32124, -32124]);
        assert_eq!([0xd5, 0x55, 0xaa, 0x2a].map(alaw_to_i16), [8, -8, 32256, -32256]);
        assert_eq!([0, 32767, -32768].map(i16_to_mulaw), [0xff, 0x80, 0x00]);
        assert_eq!([0, 32767, -32768].map(i16_to_alaw), [0xd5, 0xaa, 0x2a]);
    }

    #[test]
    fn every_code_survives_a_round_trip() {
        for byte in 0..=255u8 {
            assert_eq!(i16_to_alaw(alaw_to_i16(byte)), byte);
            // 0x7f is negative zero, which encodes as zero.
            let want = if byte == 0x7f { 0xff } else { byte };
            assert_eq!(i16_to_mulaw(mulaw_to_i16(byte)), want);
        }
    }

    #[test]
    fn the_error_stays_within_a_step() {
        for s in (-32768..=32767i32).step_by(7) {
            let s = s as i16;
            let step = (i32::from(s).abs() / 16).max(16);
            assert!((i32::from(mulaw_to_i16(i16_to_mulaw(s))) - i32::from(s)).abs() <= step + 644, "{s}");
            assert!((i32::from(alaw_to_i16(i16_to_alaw(s))) - i32::from(s)).abs() <= step + 512, "{s}");
        }
    }
}
