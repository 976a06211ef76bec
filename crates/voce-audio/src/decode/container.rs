//! Every other container and codec, through symphonia: aiff, flac, mp3, ogg vorbis, m4a, webm and mkv.
//! Opus inside webm, mkv or mp4 is demuxed here and decoded by the Opus decoder.

use std::sync::Arc;

use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::codecs::audio::well_known::{CODEC_ID_OPUS, CODEC_ID_VORBIS};
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::common::Limit;
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;

use super::opus::{OPUS_RATE, OpusHead, OpusPackets};
use super::source::{Health, Opened};
use super::{Backend, DecodeLimits, DecodeReport, Spec, blanks, ogg_pages, vorbis_books};
use crate::AudioError;

/// Largest tag or picture kept in memory while probing.
const MAX_TAG_BYTES: usize = 64 * 1024;
/// What the demuxer may have read ahead of the packet that it gives.
const READ_AHEAD: u64 = 128 * 1024;
/// What it reads of an Ogg file to find the end of its streams, without keeping it.
const OGG_ENDS: u64 = 8 * 1024 * 1024;
/// What the index of an mp4 may have beside a packet: an hour of speech takes half of it.
const MP4_INDEX: u64 = 4 * 1024 * 1024;
/// Most tracks of a file.
const MAX_TRACKS: usize = 64;
/// Most packets in a row that hold no sound of the chosen track.
const MAX_SILENT_PACKETS: u32 = 1 << 20;

enum Codec {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Box<OpusPackets>),
}

pub(super) struct Container {
    format: Box<dyn FormatReader>,
    codec: Codec,
    track: u32,
    header: Option<Spec>,
    limits: DecodeLimits,
    health: Arc<Health>,
    /// Links of a chained file so far.
    links: usize,
    scratch: Vec<f32>,
    /// What the first block held; later ones are fitted to it.
    first: Option<Spec>,
}

impl Container {
    pub(super) fn open(
        mut opened: Opened,
        hint_extension: Option<&str>,
        limits: &DecodeLimits,
    ) -> Result<Self, AudioError> {
        let known = known_magic(&opened.head);
        hold(&mut opened, limits)?;
        let health = opened.health;
        let stream = MediaSourceStream::new(Box::new(opened.input), Default::default());
        let tags = MetadataOptions::default()
            .limit_tag_bytes(Limit::Maximum(MAX_TAG_BYTES))
            .limit_visual_bytes(Limit::Maximum(0));
        let format = symphonia::default::get_probe()
            .probe(&Hint::new(), stream, FormatOptions::default(), tags)
            .map_err(|e| match e {
                Error::IoError(_) if known => AudioError::Truncated,
                Error::DecodeError(e) | Error::LimitError(e) if known => AudioError::corrupt(e),
                Error::Unsupported(e) if known => AudioError::unsupported(e),
                _ => AudioError::unsupported(match hint_extension {
                    Some(ext) => format!("a .{ext} file with none of the known signatures"),
                    None => "none of the known signatures".into(),
                }),
            })?;
        let (track, codec, header) = choose_track(format.as_ref(), limits)?;
        let (links, scratch, first) = Default::default();
        Ok(Self { format, codec, track, header, limits: *limits, health, links, scratch, first })
    }

    /// Goes on with the next link of a chained file.
    fn next_link(&mut self) -> Result<(), AudioError> {
        self.links += 1;
        if self.links > ogg_pages::MAX_STREAMS {
            return Err(AudioError::unsupported(format!(
                "more than {} streams one after the other",
                ogg_pages::MAX_STREAMS
            )));
        }
        // The demuxer keeps the tags of every link until they are taken.
        while self.format.metadata().pop().is_some() {}
        (self.track, self.codec, _) = choose_track(self.format.as_ref(), &self.limits)?;
        Ok(())
    }

    /// The samples of the next packet of the chosen track, into the scratch block; `None` at the end.
    fn next_packet(&mut self, report: &mut DecodeReport) -> Result<Option<Spec>, AudioError> {
        let packet = match self.format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => return Ok(None),
            Err(Error::ResetRequired) => {
                self.next_link()?;
                return Ok(self.nothing());
            }
            Err(_) => {
                report.truncated = true;
                return Ok(None);
            }
        };
        self.health.packet_done();
        let limit = self.limits.max_packet_bytes;
        if packet.data.len() as u64 > limit {
            return Err(AudioError::PacketTooLarge { limit });
        }
        if packet.track_id != self.track {
            return Ok(self.nothing());
        }
        Ok(match &mut self.codec {
            Codec::Opus(opus) => {
                opus.decode(&packet.data, &mut self.scratch, report);
                Some(Spec { rate: OPUS_RATE, channels: opus.channels() })
            }
            Codec::Symphonia(decoder) => match decoder.decode(&packet) {
                Ok(buffer) => Some(copy_block(&buffer, &mut self.scratch)),
                Err(Error::ResetRequired) => {
                    decoder.reset();
                    self.nothing()
                }
                Err(_) => {
                    report.bad_packets += 1;
                    self.nothing()
                }
            },
        })
    }

    /// A packet without samples.
    fn nothing(&self) -> Option<Spec> {
        Some(self.first.or(self.header).unwrap_or(Spec { rate: 0, channels: 0 }))
    }

    /// Appends the scratch block, fitted to the stream's channels.
    fn emit(&mut self, got: Spec, out: &mut Vec<f32>) -> Result<Spec, AudioError> {
        let want = *self.first.get_or_insert(got);
        if got == want {
            out.extend_from_slice(&self.scratch);
        } else if got.rate != want.rate {
            return Err(AudioError::FormatChanged);
        } else if got.channels == 1 {
            out.extend(self.scratch.iter().flat_map(|&s| std::iter::repeat_n(s, want.channels)));
        } else if want.channels == 1 {
            super::mix_to_mono(&self.scratch, got.channels, out);
        } else {
            return Err(AudioError::FormatChanged);
        }
        Ok(want)
    }
}

/// Puts bounds in front of a demuxer that has none of its own.
fn hold(opened: &mut Opened, limits: &DecodeLimits) -> Result<(), AudioError> {
    let is_ogg = opened.head.starts_with(b"OggS");
    let is_mp4 = opened.head.get(4..8) == Some(b"ftyp");
    if let Some(file) = opened.input.held() {
        if is_ogg {
            ogg_pages::check(file, limits.max_packet_bytes)?;
        }
        let blanks = blanks::find(file);
        opened.input.blank(blanks);
    }
    let can_seek = opened.input.can_seek();
    if is_mp4 && !can_seek {
        opened.health.cap_input(limits.max_mp4_stream_bytes);
    }
    let beside = if is_mp4 {
        MP4_INDEX
    } else if is_ogg && can_seek {
        OGG_ENDS
    } else {
        READ_AHEAD
    };
    opened.health.leash(limits.max_packet_bytes, beside);
    Ok(())
}

/// Whether the first bytes belong to a format this backend reads, for clearer errors.
fn known_magic(head: &[u8]) -> bool {
    let starts: [&[u8]; 4] = [b"FORM", b"fLaC", b"OggS", &[0x1a, 0x45, 0xdf, 0xa3]];
    starts.iter().any(|m| head.starts_with(m))
        || head.get(4..8) == Some(b"ftyp")
        || matches!(head, [0xff, b, ..] if b & 0xe0 == 0xe0)
}

fn choose_track(
    format: &dyn FormatReader,
    limits: &DecodeLimits,
) -> Result<(u32, Codec, Option<Spec>), AudioError> {
    if format.tracks().len() > MAX_TRACKS {
        return Err(AudioError::unsupported(format!("more than {MAX_TRACKS} tracks")));
    }
    let track = format
        .default_track(TrackType::Audio)
        .or_else(|| format.first_track(TrackType::Audio))
        .ok_or_else(|| AudioError::unsupported("no audio track"))?;
    let params = track
        .codec_params
        .as_ref()
        .and_then(|p| p.audio())
        .ok_or_else(|| AudioError::unsupported("no audio track with a known codec"))?;
    let header = match (params.sample_rate, params.channels.as_ref().map(|c| c.count())) {
        (Some(rate), Some(channels)) => Some(Spec { rate, channels }),
        _ => None,
    };
    // Before the decoder exists, so that a forged header allocates nothing.
    if let Some(spec) = header {
        limits.check_spec(spec.rate, spec.channels)?;
    }
    Ok((track.id, make_codec(params)?, header))
}

fn make_codec(params: &AudioCodecParameters) -> Result<Codec, AudioError> {
    if params.codec == CODEC_ID_OPUS {
        let head = OpusHead::parse(params.extra_data.as_deref().unwrap_or_default())?;
        return Ok(Codec::Opus(Box::new(OpusPackets::new(head)?)));
    }
    if params.codec == CODEC_ID_VORBIS {
        vorbis_books::check(params.extra_data.as_deref().unwrap_or_default())?;
    }
    symphonia::default::get_codecs()
        .make_audio_decoder(params, &AudioDecoderOptions::default())
        .map(Codec::Symphonia)
        .map_err(|e| match e {
            Error::Unsupported(e) => AudioError::unsupported(e),
            other => AudioError::corrupt(other.to_string()),
        })
}

impl Backend for Container {
    fn spec(&self) -> Option<Spec> {
        self.header
    }

    fn next(&mut self, out: &mut Vec<f32>, report: &mut DecodeReport) -> Result<Option<Spec>, AudioError> {
        for _ in 0..MAX_SILENT_PACKETS {
            self.scratch.clear();
            let Some(got) = self.next_packet(report)? else { return Ok(None) };
            if !self.scratch.is_empty() {
                return self.emit(got, out).map(Some);
            }
        }
        Err(AudioError::corrupt("packets without number that hold no sound"))
    }
}

fn copy_block(buffer: &GenericAudioBufferRef<'_>, block: &mut Vec<f32>) -> Spec {
    buffer.copy_to_vec_interleaved(block);
    Spec { rate: buffer.spec().rate(), channels: buffer.spec().channels().count() }
}
