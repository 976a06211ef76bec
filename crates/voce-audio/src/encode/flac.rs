//! FLAC out, mono 16-bit: fixed predictors of order 0 to 4 and partitioned Rice codes, frame by frame.
//! Speech comes out at about half its size; no state but one block is held.

use super::AudioSink;
use super::bits::{BitWriter, crc8, crc16};
use crate::AudioError;
use crate::output::Output;
use crate::wav::f32_to_i16;

const BLOCK: usize = 4096;
const MAX_ORDER: usize = 4;
const MAX_PARTITION_ORDER: u32 = 6;
const MAX_RICE: u32 = 14;
/// Offset of the STREAMINFO body in the file.
const INFO_OFFSET: u64 = 8;

/// Writes mono FLAC; at the end the header gets the length, where the output can be patched.
pub struct FlacWriter<O: Output> {
    output: O,
    sample_rate: u32,
    block: Vec<i32>,
    frame: u32,
    samples: u64,
    frame_bytes: (u32, u32),
    bits: BitWriter,
}

impl<O: Output> FlacWriter<O> {
    /// Writes the header to `output`.
    pub fn new(mut output: O, sample_rate: u32) -> Result<Self, AudioError> {
        if sample_rate == 0 || sample_rate > 655_350 {
            return Err(AudioError::Encode { detail: format!("flac at {sample_rate} Hz") });
        }
        let frame_bytes = (0, 0);
        // One metadata block of 34 bytes, and it is the last one.
        output.put(b"fLaC\x80\x00\x00\x22")?;
        output.put(&stream_info(sample_rate, 0, frame_bytes))?;
        let block = Vec::with_capacity(BLOCK);
        Ok(Self { output, sample_rate, block, frame: 0, samples: 0, frame_bytes, bits: BitWriter::default() })
    }

    fn put_block(&mut self) -> Result<(), AudioError> {
        encode_frame(&self.block, self.frame, &mut self.bits);
        self.output.put(&self.bits.bytes)?;
        let size = self.bits.bytes.len() as u32;
        let (min, max) = self.frame_bytes;
        self.frame_bytes = (if min == 0 { size } else { min.min(size) }, max.max(size));
        self.frame += 1;
        self.samples += self.block.len() as u64;
        self.block.clear();
        Ok(())
    }
}

impl<O: Output> AudioSink for FlacWriter<O> {
    fn write(&mut self, samples: &[f32]) -> Result<(), AudioError> {
        for &s in samples {
            self.block.push(i32::from(f32_to_i16(s)));
            if self.block.len() == BLOCK {
                self.put_block()?;
            }
        }
        Ok(())
    }

    /// Pushes out whole blocks; FLAC allows no short block before the last.
    fn flush(&mut self) -> Result<(), AudioError> {
        self.output.flush()
    }

    fn finish(&mut self) -> Result<(), AudioError> {
        if !self.block.is_empty() {
            self.put_block()?;
        }
        self.output.patch(INFO_OFFSET, &stream_info(self.sample_rate, self.samples, self.frame_bytes))?;
        self.output.commit()
    }
}

/// The STREAMINFO body; zero lengths mean "unknown", as does the zero checksum.
fn stream_info(sample_rate: u32, samples: u64, frame_bytes: (u32, u32)) -> [u8; 34] {
    let mut bits = BitWriter::default();
    bits.put(BLOCK as u32, 16);
    bits.put(BLOCK as u32, 16);
    bits.put(frame_bytes.0, 24);
    bits.put(frame_bytes.1, 24);
    bits.put(sample_rate, 20);
    bits.put(0, 3); // channels - 1
    bits.put(15, 5); // bits - 1
    bits.put((samples >> 32) as u32 & 0xf, 4);
    bits.put(samples as u32, 32);
    let mut info = [0; 34];
    info[..bits.bytes.len()].copy_from_slice(&bits.bytes);
    info
}

fn encode_frame(block: &[i32], number: u32, bits: &mut BitWriter) {
    bits.clear();
    bits.put(0xfff8, 16); // sync, fixed block size
    let full = block.len() == BLOCK;
    bits.put(if full { 0b1100 } else { 0b0111 }, 4);
    bits.put(0b0000, 4); // rate as in STREAMINFO
    bits.put(0b0000, 4); // mono
    bits.put(0b100, 3); // 16 bits
    bits.put(0, 1);
    put_utf8(number, bits);
    if !full {
        bits.put(block.len() as u32 - 1, 16);
    }
    let header = crc8(&bits.bytes);
    bits.put(u32::from(header), 8);
    put_subframe(block, bits);
    bits.align();
    let sum = crc16(&bits.bytes);
    bits.put(u32::from(sum), 16);
}

/// A number in the variable-length form of UTF-8, extended to 31 bits.
fn put_utf8(n: u32, bits: &mut BitWriter) {
    if n < 0x80 {
        return bits.put(n, 8);
    }
    let more = (1..=5).find(|&k| n >> (6 * k) < 1 << (6 - k)).unwrap_or(5);
    let lead = 0xff << (7 - more) & 0xff;
    bits.put(lead | (n >> (6 * more) & ((1 << (6 - more)) - 1)), 8);
    for k in (0..more).rev() {
        bits.put(0x80 | (n >> (6 * k) & 0x3f), 8);
    }
}

fn put_subframe(block: &[i32], bits: &mut BitWriter) {
    if block.iter().all(|&s| s == block[0]) {
        bits.put(0b0000_0000, 8);
        return bits.put(block[0] as u32, 16);
    }
    let (order, residual) = best_predictor(block);
    let plan = RicePlan::best(&residual, order, block.len());
    if plan.cost + 16 * order as u64 >= 16 * block.len() as u64 {
        bits.put(0b0000_0010, 8); // verbatim
        return block.iter().for_each(|&s| bits.put(s as u32, 16));
    }
    bits.put((0b00_1000 | order as u32) << 1, 8);
    block[..order].iter().for_each(|&s| bits.put(s as u32, 16));
    plan.put(&residual, order, block.len(), bits);
}

/// The order of difference with the smallest residual, and that residual.
fn best_predictor(block: &[i32]) -> (usize, Vec<i32>) {
    let mut best = (0, block.to_vec());
    let mut best_sum = u64::MAX;
    let mut diff = block.to_vec();
    for order in 0..=MAX_ORDER.min(block.len() - 1) {
        if order > 0 {
            diff = diff.windows(2).map(|w| w[1] - w[0]).collect();
        }
        let sum = diff.iter().map(|d| u64::from(d.unsigned_abs())).sum();
        if sum < best_sum {
            best_sum = sum;
            best = (order, diff.clone());
        }
    }
    best
}

fn zigzag(v: i32) -> u32 {
    (v << 1 ^ v >> 31) as u32
}

struct RicePlan {
    partition_order: u32,
    parameters: Vec<u32>,
    cost: u64,
}

impl RicePlan {
    fn best(residual: &[i32], order: usize, block: usize) -> Self {
        let mut best = Self { partition_order: 0, parameters: Vec::new(), cost: u64::MAX };
        for po in 0..=MAX_PARTITION_ORDER {
            if !block.is_multiple_of(1 << po) || block >> po <= order {
                break;
            }
            let (mut cost, mut parameters) = (6, Vec::new());
            for part in parts(residual, order, block, po) {
                let (k, bits) = best_rice(part);
                parameters.push(k);
                cost += 4 + bits;
            }
            if cost < best.cost {
                best = Self { partition_order: po, parameters, cost };
            }
        }
        best
    }

    fn put(&self, residual: &[i32], order: usize, block: usize, bits: &mut BitWriter) {
        bits.put(0b00, 2);
        bits.put(self.partition_order, 4);
        for (part, &k) in parts(residual, order, block, self.partition_order).zip(&self.parameters) {
            bits.put(k, 4);
            for &r in part {
                let v = zigzag(r);
                bits.unary(v >> k);
                bits.put(v, k);
            }
        }
    }
}

/// The residual cut into its partitions; the first is shorter by the warm-up samples.
fn parts(residual: &[i32], order: usize, block: usize, po: u32) -> impl Iterator<Item = &[i32]> {
    let size = block >> po;
    (0..1usize << po).map(move |i| &residual[(i * size).saturating_sub(order)..(i + 1) * size - order])
}

/// The best Rice parameter and its cost in bits, from the mean and its neighbours.
fn best_rice(part: &[i32]) -> (u32, u64) {
    let cost = |k: u32| part.iter().map(|&r| u64::from(zigzag(r) >> k) + 1 + u64::from(k)).sum::<u64>();
    let mean = part.iter().map(|&r| u64::from(zigzag(r))).sum::<u64>() / part.len().max(1) as u64;
    let guess = (mean.max(1).ilog2()).min(MAX_RICE);
    (guess.saturating_sub(1)..=(guess + 1).min(MAX_RICE))
        .map(|k| (k, cost(k)))
        .min_by_key(|c| c.1)
        .unwrap_or((0, 0))
}
