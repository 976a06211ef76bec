//! Ogg Opus out (RFC 7845), streaming: 20 ms packets, a page every few packets, exact length at the end.

use std::hash::{BuildHasher, RandomState};

use ogg::writing::{PacketWriteEndInfo, PacketWriter};
use ropus::{Application, Bitrate, Channels, Encoder, Signal};

use super::AudioSink;
use crate::output::Output;
use crate::{AudioError, Resampler};

/// Largest packet Opus makes of 20 ms.
const MAX_PACKET: usize = 1500;
const GRANULE_RATE: u64 = 48_000;
/// Opus rates; other inputs are resampled to the next one up.
const RATES: [u32; 5] = [8_000, 12_000, 16_000, 24_000, 48_000];

/// How an Opus stream is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpusOptions {
    /// Bits per second, 6,000 to 510,000.
    pub bitrate: u32,
    /// Effort, 0 to 10.
    pub complexity: u8,
    /// 20 ms packets per Ogg page: fewer for lower delay, more for less overhead.
    pub packets_per_page: u32,
}

impl Default for OpusOptions {
    fn default() -> Self {
        Self { bitrate: 32_000, complexity: 5, packets_per_page: 5 }
    }
}

/// Writes mono speech as Ogg Opus.
pub struct OpusWriter<O: Output> {
    output: O,
    pages: PacketWriter<'static, Vec<u8>>,
    serial: u32,
    encoder: Encoder,
    resampler: Option<Resampler>,
    options: OpusOptions,
    /// Samples at the encoder's rate not yet in a packet.
    queue: Vec<f32>,
    frame: usize,
    /// Samples at the encoder's rate taken in all.
    taken: u64,
    packets: u64,
    pre_skip: u64,
    /// 48 kHz samples per sample at the encoder's rate.
    scale: u64,
    /// The last packet waits, because only the end of the stream tells whether it is the last.
    held: Option<Vec<u8>>,
}

impl<O: Output> OpusWriter<O> {
    /// Writes the two header pages to `output`; any rate is taken.
    pub fn new(output: O, sample_rate: u32, options: OpusOptions) -> Result<Self, AudioError> {
        let rate = RATES.into_iter().find(|&r| r >= sample_rate).unwrap_or(48_000);
        let refuse = |e: &dyn std::fmt::Display| AudioError::Encode { detail: format!("opus: {e}") };
        if sample_rate == 0 {
            return Err(refuse(&"a rate of 0 Hz"));
        }
        let encoder = Encoder::builder(rate, Channels::Mono, Application::Voip)
            .bitrate(Bitrate::Bits(options.bitrate.clamp(6_000, 510_000)))
            .complexity(options.complexity.min(10))
            .signal(Signal::Voice)
            .build()
            .map_err(|e| refuse(&e))?;
        let scale = GRANULE_RATE / u64::from(rate);
        let pre_skip = u64::from(encoder.lookahead()) * scale;
        let mut this = Self {
            output,
            pages: PacketWriter::new(Vec::new()),
            serial: RandomState::new().hash_one(0u8) as u32,
            encoder,
            resampler: (rate != sample_rate).then(|| Resampler::new(sample_rate, rate)),
            options,
            queue: Vec::new(),
            frame: rate as usize / 50,
            taken: 0,
            packets: 0,
            pre_skip,
            scale,
            held: None,
        };
        let mut head = b"OpusHead\x01\x01".to_vec();
        head.extend((pre_skip as u16).to_le_bytes());
        head.extend(sample_rate.to_le_bytes());
        head.extend([0, 0, 0]); // gain, mapping family
        let vendor = b"voce";
        let mut tags = b"OpusTags".to_vec();
        tags.extend((vendor.len() as u32).to_le_bytes());
        tags.extend(vendor);
        tags.extend(0u32.to_le_bytes());
        this.page(head, PacketWriteEndInfo::EndPage, 0)?;
        this.page(tags, PacketWriteEndInfo::EndPage, 0)?;
        Ok(this)
    }

    /// Gives the output back.
    pub fn into_output(self) -> O {
        self.output
    }

    fn page(&mut self, packet: Vec<u8>, end: PacketWriteEndInfo, granule: u64) -> Result<(), AudioError> {
        let refuse = |e: std::io::Error| AudioError::Encode { detail: format!("ogg: {e}") };
        self.pages.write_packet(packet, self.serial, end, granule).map_err(refuse)?;
        let bytes = self.pages.inner_mut();
        if !bytes.is_empty() {
            self.output.put(bytes)?;
            bytes.clear();
        }
        Ok(())
    }

    /// Encodes every whole frame in the queue.
    fn encode_queue(&mut self) -> Result<(), AudioError> {
        let mut at = 0;
        while self.queue.len() - at >= self.frame {
            let mut packet = vec![0; MAX_PACKET];
            let n = self
                .encoder
                .encode_float(&self.queue[at..at + self.frame], &mut packet)
                .map_err(|e| AudioError::Encode { detail: format!("opus: {e}") })?;
            packet.truncate(n);
            at += self.frame;
            if let Some(previous) = self.held.replace(packet) {
                let page_full = self.packets.is_multiple_of(u64::from(self.options.packets_per_page.max(1)));
                let end =
                    if page_full { PacketWriteEndInfo::EndPage } else { PacketWriteEndInfo::NormalPacket };
                let granule = self.packets * self.frame as u64 * self.scale;
                self.page(previous, end, granule)?;
            }
            self.packets += 1;
        }
        self.queue.drain(..at);
        Ok(())
    }
}

impl<O: Output> AudioSink for OpusWriter<O> {
    fn write(&mut self, samples: &[f32]) -> Result<(), AudioError> {
        let before = self.queue.len();
        match &mut self.resampler {
            Some(resampler) => resampler.process(samples, &mut self.queue),
            None => self.queue.extend_from_slice(samples),
        }
        self.taken += (self.queue.len() - before) as u64;
        self.encode_queue()
    }

    fn flush(&mut self) -> Result<(), AudioError> {
        self.output.flush()
    }

    fn finish(&mut self) -> Result<(), AudioError> {
        if let Some(resampler) = &mut self.resampler {
            let before = self.queue.len();
            resampler.finish(&mut self.queue);
            self.taken += (self.queue.len() - before) as u64;
        }
        // The encoder is late by the pre-skip: feed silence until the last sample is out.
        let granule = self.pre_skip + self.taken * self.scale;
        let frame_granule = self.frame as u64 * self.scale;
        let packets = granule.div_ceil(frame_granule).max(1);
        let queued = (packets - self.packets) as usize * self.frame;
        self.queue.resize(queued, 0.0);
        self.encode_queue()?;
        if let Some(last) = self.held.take() {
            self.page(last, PacketWriteEndInfo::EndStream, granule)?;
        }
        self.output.commit()
    }
}
