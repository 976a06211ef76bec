//! A most-significant-bit-first writer and the two checksums that FLAC frames carry.

#[derive(Default)]
pub(super) struct BitWriter {
    pub(super) bytes: Vec<u8>,
    held: u64,
    count: u32,
}

impl BitWriter {
    /// Appends the low `bits` bits of `value`, 32 at most.
    pub(super) fn put(&mut self, value: u32, bits: u32) {
        let masked = u64::from(value) & ((1u64 << bits) - 1);
        self.held = self.held << bits | masked;
        self.count += bits;
        while self.count >= 8 {
            self.count -= 8;
            self.bytes.push((self.held >> self.count) as u8);
        }
        self.held &= (1 << self.count) - 1;
    }

    /// `zeros` zero bits and a one.
    pub(super) fn unary(&mut self, mut zeros: u32) {
        while zeros >= 32 {
            self.put(0, 32);
            zeros -= 32;
        }
        self.put(1, zeros + 1);
    }

    pub(super) fn align(&mut self) {
        if self.count > 0 {
            self.put(0, 8 - self.count);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self { bytes: std::mem::take(&mut self.bytes), ..Self::default() };
        self.bytes.clear();
    }
}

/// CRC with polynomial x^8 + x^2 + x + 1.
pub(super) fn crc8(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |crc: u8, &b| {
        (0..8).fold(crc ^ b, |c, _| if c & 0x80 != 0 { c << 1 ^ 0x07 } else { c << 1 })
    })
}

const CRC16_TABLE: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut c = (i as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 0x8000 != 0 { c << 1 ^ 0x8005 } else { c << 1 };
            bit += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
};

/// CRC with polynomial x^16 + x^15 + x^2 + 1.
pub(super) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &b| crc << 8 ^ CRC16_TABLE[usize::from((crc >> 8) as u8 ^ b)])
}
