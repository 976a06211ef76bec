//! Chance that can be had again: the same number gives the same throws.

/// A small generator.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }

    /// Words, signs, and now and then a letter from far away.
    pub(crate) fn text(&mut self, longest: usize) -> String {
        let letters =
            ['a', 'e', 'T', ' ', ' ', '.', ',', '7', '"', '\\', '\n', '\u{0}', 'é', '漢', '🙂', '\u{202e}'];
        (0..self.below(longest + 1)).map(|_| *self.pick(&letters)).collect()
    }

    /// Cuts, flips, doubles or adds some bytes.
    pub(crate) fn break_bytes(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len().max(1));
        match self.below(5) {
            0 => bytes.truncate(at),
            1 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            2 if !bytes.is_empty() => bytes[at] = *self.pick(&[0, 0x7f, 0x80, 0xff, b'"', b'{', 0xc1]),
            3 => {
                let more: Vec<u8> = bytes.iter().skip(at).take(16).copied().collect();
                bytes.splice(at..at, more);
            }
            _ => {
                let more = self.bytes(4);
                bytes.splice(at.min(bytes.len())..at.min(bytes.len()), more);
            }
        }
    }
}
