//! Hashes of what a step records: fast, since it is done at every step, and wide, since a graph is found by it.

use std::hash::Hasher;

const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];

/// Two independent sums over 64-bit words.
#[derive(Clone, Copy)]
pub(super) struct Fingerprint([u64; 2]);

impl Default for Fingerprint {
    fn default() -> Self {
        Self([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344])
    }
}

impl Fingerprint {
    #[inline]
    fn word(&mut self, w: u64) {
        for (sum, factor) in self.0.iter_mut().zip(FACTORS) {
            // Both halves of the product: each bit of the word reaches all of the sum.
            let wide = u128::from(sum.rotate_left(29) ^ w) * u128::from(factor);
            *sum = (wide as u64) ^ (wide >> 64) as u64 ^ w.rotate_left(17);
        }
    }

    /// Both sums, mixed.
    pub(super) fn wide(&self) -> (u64, u64) {
        let mix = |x: u64| {
            let x = (x ^ (x >> 32)).wrapping_mul(FACTORS[0]);
            x ^ (x >> 29)
        };
        (mix(self.0[0]), mix(self.0[1]))
    }

    /// The hash of bytes.
    pub(super) fn of(bytes: &[u8]) -> (u64, u64) {
        let mut f = Self::default();
        f.write(bytes);
        f.wide()
    }
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|w| self.word(u64::from_le_bytes(*w)));
        let mut last = [0u8; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
        self.word(bytes.len() as u64);
    }

    fn write_u8(&mut self, v: u8) {
        self.word(v.into());
    }

    fn write_u16(&mut self, v: u16) {
        self.word(v.into());
    }

    fn write_u32(&mut self, v: u32) {
        self.word(v.into());
    }

    fn write_u64(&mut self, v: u64) {
        self.word(v);
    }

    fn write_usize(&mut self, v: usize) {
        self.word(v as u64);
    }

    fn finish(&self) -> u64 {
        self.wide().0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn bytes_that_differ_a_little_have_hashes_that_differ() {
        let mut seen = HashSet::new();
        let mut bytes = vec![0u8; 67];
        assert!(seen.insert(Fingerprint::of(&bytes)));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                let (a, b) = Fingerprint::of(&bytes);
                assert!(seen.insert((a, b)), "byte {at} bit {bit}");
                bytes[at] ^= 1 << bit;
            }
        }
        for len in 0..67 {
            assert!(seen.insert(Fingerprint::of(&bytes[..len])), "zeros of length {len}");
        }
    }
}
