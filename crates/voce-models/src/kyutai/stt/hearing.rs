//! The recogniser as a model that hears: what it is, what it can be asked, and what its streams are made of.

use std::io::BufRead;
use std::sync::Arc;

use voce_nn::{Formats, Loader, Precision, WeightError};
use voce_runtime::{Exec, Format, KvFormat, KvSpec, Sampling};
use voce_text::Tokenizer;

use super::ear::SttEar;
use super::front::Frames;
use crate::Digest;
use crate::hearing::{
    Ear, EarRoom, Footprint, Front, Hearing, HearingError, HearingInfo, RowLayout, Track, TrackRequest,
};
use crate::kyutai::{KyutaiConfig, Lm};
use crate::mimi::{Codebooks, KyutaiMimiConfig, MimiTokenizer, published};
use crate::stage::{Per, StageInfo};
use crate::transducer::Ngram;

/// Frames of one stream that a step takes where several wait: the codec reads its weights once for them.
pub(super) const MOST_FRAMES: usize = 8;
/// Pauses that the published heads foresee, in seconds.
const PAUSES: [f32; 4] = [0.5, 1.0, 2.0, 3.0];
/// Text tokens that are drawn from, where not the best is taken.
const TOP_K: usize = 25;
/// Bytes of tables and of what libraries work in.
const TABLES: usize = 8 << 20;
/// Bytes of an f32.
const F32: usize = 4;

/// A recogniser's weights.
pub struct Stt(Arc<Model>);

/// What all lanes of a recogniser share.
pub(super) struct Model {
    pub lm: Lm,
    pub mimi: MimiTokenizer,
    pub mimi_config: KyutaiMimiConfig,
    pub tokenizer: Tokenizer,
    /// Steps by which text comes after its audio.
    pub delay: usize,
    /// Samples of silence that a stream begins with.
    pub prefix: usize,
    formats: Formats,
    /// Temperature of streams that ask for none.
    temperature: f32,
    info: HearingInfo,
    fingerprint: u64,
}

impl Model {
    /// Frames that the silence before a stream takes, or a part of.
    pub(super) fn prefix_frames(&self) -> usize {
        self.prefix.div_ceil(self.info.frame_size)
    }
}

/// What a recogniser is loaded from.
pub struct SttParts {
    /// The language model.
    pub config: KyutaiConfig,
    /// The codec.
    pub mimi: KyutaiMimiConfig,
    /// The tokeniser.
    pub tokenizer: Tokenizer,
    /// Steps by which text comes after its audio, where not the configuration says it.
    pub delay: Option<usize>,
    /// Temperature of streams that ask for none, where not the configuration says it.
    pub temperature: Option<f32>,
    /// What was asked for.
    pub precision: Precision,
    /// What that means here.
    pub formats: Formats,
    /// Languages that it hears, as far as that is known.
    pub languages: Vec<String>,
}

/// A checked request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wish {
    pub sampling: Sampling,
}

/// Formats of the codec: codes decide what is heard, and its weights and rings are few beside the language model's.
fn codec_formats(f: Formats) -> Formats {
    let linear = if f.linear == Format::Fp8 { Format::Bf16 } else { f.linear };
    let kv = if f.kv == KvFormat::Fp8 { KvFormat::Bf16 } else { f.kv };
    Formats { linear, kv, ..f }
}

/// Steps of a delay in seconds. Kyutai's own server counts the 2.5 s of its larger model as 32 steps.
fn steps(seconds: f64, rate: f64) -> usize {
    let steps = seconds * rate;
    if steps == 31.25 { 32 } else { steps.round().max(0.0) as usize }
}

impl Stt {
    /// Loads the language model and the codec's encoder.
    pub fn load(parts: SttParts, lm: &Loader, mimi: &Loader, exec: &mut Exec) -> Result<Self, WeightError> {
        let SttParts {
            config,
            mimi: mimi_config,
            tokenizer,
            delay,
            temperature,
            precision,
            formats,
            languages,
        } = parts;
        let fingerprint = fingerprint(&config, &mimi_config, [lm, mimi], precision, formats)?;
        let stt = config.stt_config.unwrap_or_default();
        let rate = mimi_config.frame_rate;
        let delay = delay.unwrap_or_else(|| steps(stt.audio_delay_seconds, rate));
        let prefix = (stt.audio_silence_prefix_seconds.max(0.0) * mimi_config.sample_rate as f64) as usize;
        let temperature = temperature.or(config.lm_gen_config.temp_text).unwrap_or(0.0);
        let named = &published(mimi);
        let books = Arc::new(Codebooks::load(&named.sub("quantizer"), &mimi_config.quantizer, config.n_q)?);
        let mimi = MimiTokenizer::load(named, &mimi_config, codec_formats(formats), books)?;
        let lm = Lm::load(exec, lm, &config, formats)?;
        let info = HearingInfo { languages, ..info(&lm, &mimi, &mimi_config, delay, formats) };
        Ok(Self(Arc::new(Model {
            lm,
            mimi,
            mimi_config,
            tokenizer,
            delay,
            prefix,
            formats,
            temperature,
            info,
            fingerprint,
        })))
    }

    /// Steps by which text comes after its audio.
    pub fn delay(&self) -> usize {
        self.0.delay
    }
}

/// Pauses that heads foresee.
fn pauses(heads: usize) -> Vec<f32> {
    (0..heads).map(|h| PAUSES.get(h).copied().unwrap_or(h as f32)).collect()
}

fn info(
    lm: &Lm,
    mimi: &MimiTokenizer,
    config: &KyutaiMimiConfig,
    delay: usize,
    formats: Formats,
) -> HearingInfo {
    let (frame_size, sample_rate) = (config.frame_size(), config.sample_rate);
    let codec = StageInfo {
        name: "codec",
        bytes: mimi.bytes(),
        macs: mimi.macs_per_frame(),
        per: Per::Frame,
        per_second: Some(config.frame_rate),
        together: 1,
        format: codec_formats(formats).linear,
        prompts: false,
    };
    let backbone = StageInfo {
        name: "backbone",
        bytes: lm.bytes(1),
        macs: lm.macs(),
        format: formats.backbone,
        ..codec
    };
    HearingInfo {
        family: "Kyutai STT",
        sample_rate,
        layout: RowLayout { hop: frame_size, step: frame_size, overlap: 0 },
        frame_size,
        chunks_ms: vec![(frame_size * 1000 / sample_rate) as u32],
        least_frames: 1,
        most_frames: MOST_FRAMES,
        window: 1,
        delay,
        word_ends: true,
        pauses: pauses(lm.config().extra_heads_num_heads),
        raises: false,
        languages: Vec::new(),
        takes_language: false,
        head: "text",
        vocab: lm.config().text_out(),
        durations: true,
        end_token: None,
        one_lane: true,
        phases: ["codec", "backbone"],
        stages: vec![codec, backbone],
    }
}

/// Tells models and precisions apart. Streams go on where keys and values are kept in the same format.
fn fingerprint(
    config: &KyutaiConfig,
    mimi: &KyutaiMimiConfig,
    [lm_weights, mimi_weights]: [&Loader; 2],
    precision: Precision,
    formats: Formats,
) -> Result<u64, WeightError> {
    let mut digest = Digest::default();
    digest.text(&format!("{:?} {:?}", config.backbone(), mimi));
    digest.text(precision.name());
    digest.text(&format!("{:?}", formats.kv));
    let norm = |name: String| (name, vec![1, 1, config.dim]);
    let mut tensors = vec![norm("out_norm.alpha".into())];
    for layer in 0..config.num_layers {
        tensors.push(norm(format!("transformer.layers.{layer}.norm1.alpha")));
    }
    tensors.push(("text_linear.weight".into(), vec![config.text_out(), config.dim]));
    digest.weights(lm_weights.source().as_ref(), &tensors)?;
    let q = &mimi.quantizer;
    let proj = ("quantizer.rvq_first.input_proj.weight".into(), vec![q.dimension, q.input_dimension, 1]);
    digest.weights(mimi_weights.source().as_ref(), &[proj])?;
    Ok(digest.finish())
}

impl Hearing for Stt {
    fn info(&self) -> &HearingInfo {
        &self.0.info
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    fn track(&self, ask: &TrackRequest<'_>, saved: Option<&[u8]>) -> Result<Track, HearingError> {
        ask.check()?;
        let model = &self.0;
        let family = model.info.family;
        for (asked, option) in [
            (ask.beam > 1, "beam"),
            (ask.nbest > 1, "n-best list"),
            (!ask.hotwords.is_empty(), "hotwords"),
            (ask.lm.is_some(), "language model"),
        ] {
            if asked {
                return Err(HearingError::Unsupported { family, option });
            }
        }
        if let Some(ms) = ask.chunk_ms.filter(|ms| !model.info.chunks_ms.contains(ms)) {
            return Err(HearingError::Chunk { asked: ms, has: model.info.chunks_ms.clone() });
        }
        model.info.check_language(ask.language)?;
        let before = saved.map(SttEar::saved_wish).transpose()?;
        let temperature =
            ask.temperature.or(before.map(|w| w.sampling.temperature)).unwrap_or(model.temperature);
        let seed = ask.seed.or(before.map(|w| w.sampling.seed)).unwrap_or_default();
        let top_k = model.lm.config().lm_gen_config.top_k_text.unwrap_or(TOP_K);
        let wish = Wish { sampling: Sampling { temperature, top_k, seed, ..Sampling::default() } };
        if before.is_some_and(|b| b != wish) {
            return Err(HearingError::Snapshot("it has another temperature or seed than the request".into()));
        }
        Ok(Track::new(1, None, wish))
    }

    fn language_model(&self, _: &mut dyn BufRead) -> Result<Arc<Ngram>, HearingError> {
        Err(HearingError::Unsupported { family: self.0.info.family, option: "language model" })
    }

    fn front(&self) -> Box<dyn Front> {
        Box::new(Frames::new(self.0.info.frame_size, self.0.prefix))
    }

    fn resume_front(&self, saved: &[u8]) -> Result<Box<dyn Front>, HearingError> {
        let front = Frames::resume(self.0.info.frame_size, self.0.prefix, saved);
        front.map(|f| Box::new(f) as _).map_err(|e| HearingError::Snapshot(e.to_string()))
    }

    fn ear(&self, room: EarRoom) -> Box<dyn Ear> {
        Box::new(SttEar::new(self.0.clone(), room))
    }

    fn footprint(&self, _: EarRoom) -> Footprint {
        let model = &self.0;
        let (c, s) = (model.lm.config(), &model.mimi_config.seanet);
        let d = c.backbone();
        let ring = KvSpec {
            layers: d.layers,
            slots: 1,
            kv_heads: d.kv_heads,
            head_dim: d.head_dim,
            capacity: c.context + 1,
            format: model.formats.kv,
        };
        // A row of each step's buffers, and its logits.
        let row = (d.hidden * 8 + 2 * d.ffn + c.text_out()) * F32;
        // The widest rows of a frame's convolutions, what is made of them, and both in the weights' format.
        let frame = (6 * model.info.frame_size * s.n_filters + 2 * model.mimi_config.quantizer.bins) * F32;
        let past = 16 * s.dimension * F32 * 64;
        Footprint {
            slot: ring.bytes() + model.mimi.encoder().slot_bytes() + row + past,
            frame,
            fixed: TABLES,
        }
    }

    fn fingerprint(&self) -> u64 {
        self.0.fingerprint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_those_of_the_published_servers() {
        assert_eq!((steps(0.5, 12.5), steps(2.5, 12.5)), (6, 32));
        assert_eq!((steps(0.0, 12.5), steps(0.96, 12.5), steps(-1.0, 12.5)), (0, 12, 0));
        assert_eq!(pauses(5), [0.5, 1.0, 2.0, 3.0, 4.0]);
    }
}
