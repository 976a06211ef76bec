//! MP3 out, behind the `mp3` feature: the format that OpenAI's clients ask for by name.

use voce_audio::{AudioError, AudioSink};

use super::audio_out::Made;

/// Rates that MP3 has.
pub(crate) const RATES: [u32; 9] = [8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];

/// Whether this build writes MP3.
pub(crate) const HAS_MP3: bool = cfg!(feature = "mp3");

#[cfg(not(feature = "mp3"))]
pub(crate) fn sink(_: Made, _: u32) -> Result<Box<dyn AudioSink>, AudioError> {
    Err(AudioError::Encode { detail: "this build has no mp3".into() })
}

#[cfg(feature = "mp3")]
pub(crate) fn sink(made: Made, rate: u32) -> Result<Box<dyn AudioSink>, AudioError> {
    let config = rusty_mp3::Mp3EncoderConfig { bitrate_kbps: BITRATE, vbr_quality: None };
    Ok(Box::new(Mp3 { encoder: rusty_mp3::Mp3Encoder::new(config), made, rate, packets: 0 }))
}

/// Kilobits per second; enough for mono speech.
#[cfg(feature = "mp3")]
const BITRATE: u32 = 64;

#[cfg(feature = "mp3")]
struct Mp3 {
    encoder: rusty_mp3::Mp3Encoder,
    made: Made,
    rate: u32,
    packets: u64,
}

#[cfg(feature = "mp3")]
impl Mp3 {
    fn drain(&mut self) -> Result<(), AudioError> {
        use voce_audio::output::Output as _;
        while let Ok(packet) = self.encoder.next_packet() {
            // The first packet holds the length, which a stream does not know yet.
            if self.packets > 0 {
                self.made.put(&packet)?;
            }
            self.packets += 1;
        }
        Ok(())
    }
}

#[cfg(feature = "mp3")]
impl AudioSink for Mp3 {
    fn write(&mut self, samples: &[f32]) -> Result<(), AudioError> {
        let refuse = |e: rusty_mp3::Error| AudioError::Encode { detail: format!("mp3: {e}") };
        self.encoder.push_pcm_f32(samples, 1, self.rate).map_err(refuse)?;
        self.drain()
    }

    fn flush(&mut self) -> Result<(), AudioError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), AudioError> {
        self.encoder.finish();
        self.drain()
    }
}
