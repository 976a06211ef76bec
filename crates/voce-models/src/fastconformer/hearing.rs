//! FastConformer as a model that hears: what it is, what it can be asked, and what its streams are made of.

use std::io::BufRead;
use std::sync::Arc;

use voce_audio::mel::MEL_HOP;
use voce_nn::{Formats, Loader, Precision, WeightError};
use voce_runtime::Exec;
use voce_text::Tokenizer;

use super::config::{Attention, FastConformerConfig, Head, MelNormalize};
use super::ear::FastConformerEar;
use super::encoder::{Encoder, StreamShape};
use super::front::{MelFront, layout};
use super::windows::WINDOW;
use super::{footprint, phrases};
use crate::Digest;
use crate::hearing::{
    Ear, EarRoom, Footprint, Front, Hearing, HearingError, HearingInfo, Track, TrackRequest,
};
use crate::stage::{Per, StageInfo};
use crate::transducer::{Decoder, Method, Ngram, SearchState};

/// The token with which some models end an utterance.
const END_TOKEN: &str = "<EOU>";

/// A recogniser's weights.
pub struct FastConformer(Arc<Model>);

/// What all lanes of a recogniser share.
pub(super) struct Model {
    pub config: FastConformerConfig,
    pub encoder: Encoder,
    pub decoder: Decoder,
    pub tokenizer: Tokenizer,
    pub formats: Formats,
    /// Whether a device makes the mel rows.
    pub on_device: bool,
    info: HearingInfo,
    fingerprint: u64,
}

/// What a recogniser is loaded from.
pub struct FastConformerParts {
    /// Its shape, which the weights have settled.
    pub config: FastConformerConfig,
    /// Its tokeniser.
    pub tokenizer: Tokenizer,
    /// What was asked for.
    pub precision: Precision,
    /// What that means here.
    pub formats: Formats,
    /// Whether it runs on a device.
    pub on_device: bool,
    /// Languages that it hears, as far as that is known; of a model with a prompt, those of the prompt count.
    pub languages: Vec<String>,
}

/// A checked request.
#[derive(Clone)]
pub(super) struct Wish {
    pub shape: StreamShape,
    /// The search before its first frame.
    pub fresh: SearchState,
    pub nbest: usize,
}

impl Wish {
    /// Whether tokens may change after they were found.
    pub(super) fn has_beam(&self) -> bool {
        self.fresh.options().method != Method::Greedy
    }
}

impl FastConformer {
    /// Loads the weights, under canonical names.
    pub fn load(parts: FastConformerParts, loader: &Loader, exec: &mut Exec) -> Result<Self, WeightError> {
        let FastConformerParts { config, tokenizer, precision, formats, on_device, languages } = parts;
        let fingerprint = fingerprint(&config, loader, precision, formats)?;
        let encoder = Encoder::load(loader, &config, formats, exec)?;
        let decoder = Decoder::load(loader, &config, formats)?;
        let mut info = info(&config, &encoder, &decoder, &tokenizer, formats, on_device);
        match &config.prompt {
            Some(prompt) => info.languages = prompt.languages.iter().map(|(code, _)| code.clone()).collect(),
            None => info.languages = languages,
        }
        let model = Model { config, encoder, decoder, tokenizer, formats, on_device, info, fingerprint };
        Ok(Self(Arc::new(model)))
    }

    /// Its shape.
    pub fn config(&self) -> &FastConformerConfig {
        &self.0.config
    }
}

fn info(
    config: &FastConformerConfig,
    encoder: &Encoder,
    decoder: &Decoder,
    tokenizer: &Tokenizer,
    formats: Formats,
    on_device: bool,
) -> HearingInfo {
    let factor = config.encoder.subsampling_factor;
    let (frame_size, sample_rate) = (factor * MEL_HOP, config.mel.sample_rate);
    let frame_ms = (frame_size * 1000 / sample_rate) as u32;
    let look_aheads = match &config.encoder.attention {
        Attention::Full => &[][..],
        Attention::Chunked { look_aheads, .. } => look_aheads,
    };
    let chunks = || look_aheads.iter().map(|n| n + 1);
    let offline = look_aheads.is_empty();
    let most_frames = chunks().max().unwrap_or(WINDOW);
    HearingInfo {
        family: "FastConformer",
        sample_rate,
        layout: layout(&config.mel, on_device),
        frame_size,
        chunks_ms: chunks().map(|n| n as u32 * frame_ms).collect(),
        least_frames: chunks().min().unwrap_or(1),
        most_frames,
        // A window is full when audio goes on after it.
        window: if offline { WINDOW * factor + 1 } else { most_frames * factor },
        delay: 0,
        word_ends: false,
        pauses: Vec::new(),
        // Normalised features do not depend on loudness.
        raises: config.mel.normalize == MelNormalize::None,
        languages: Vec::new(),
        takes_language: config.prompt.is_some(),
        head: decoder.name(),
        vocab: config.vocab,
        durations: matches!(config.head, Head::Tdt { .. }),
        end_token: tokenizer.id(END_TOKEN).filter(|&id| (id as usize) < config.vocab),
        one_lane: false,
        phases: ["encoder", "search"],
        stages: stages(encoder, decoder, frame_ms, chunks().next().unwrap_or(WINDOW), formats),
    }
}

/// What a frame goes through; `together` of them are a step of a stream that is served alone.
fn stages(
    encoder: &Encoder,
    decoder: &Decoder,
    frame_ms: u32,
    together: usize,
    formats: Formats,
) -> Vec<StageInfo> {
    let encoder = StageInfo {
        name: "encoder",
        bytes: encoder.bytes(),
        macs: encoder.macs(),
        per: Per::Frame,
        per_second: Some(1e3 / f64::from(frame_ms)),
        together,
        format: formats.backbone,
        prompts: false,
    };
    let search = StageInfo {
        name: "search",
        bytes: decoder.frame_bytes(),
        macs: decoder.frame_macs(),
        format: formats.linear,
        ..encoder
    };
    let labels = StageInfo {
        name: "labels",
        bytes: decoder.label_bytes(),
        macs: decoder.label_macs(),
        per: Per::Label,
        per_second: None,
        together: 1,
        ..search
    };
    let has_labels = labels.macs > 0;
    [encoder, search].into_iter().chain(has_labels.then_some(labels)).collect()
}

/// Tells models and precisions apart. Streams go on where keys and values are kept in the same format.
fn fingerprint(
    config: &FastConformerConfig,
    loader: &Loader,
    precision: Precision,
    formats: Formats,
) -> Result<u64, WeightError> {
    let mut digest = Digest::default();
    // The order of a list of languages means nothing, and the same model lists them in other orders elsewhere.
    let mut plain = config.clone();
    plain.prompt.iter_mut().for_each(|p| p.languages.sort_unstable());
    digest.text(&format!("{plain:?}"));
    digest.text(precision.name());
    digest.text(&format!("{:?}", formats.kv));
    digest.weights(loader.source().as_ref(), &config.tensors())?;
    Ok(digest.finish())
}

impl Model {
    /// Chunk and language of a request; `saved` are those of a stream that goes on.
    fn shape(&self, ask: &TrackRequest<'_>, saved: Option<StreamShape>) -> Result<StreamShape, HearingError> {
        let chunks = &self.info.chunks_ms;
        let look_ahead = match ask.chunk_ms.or(chunks.first().copied()) {
            None => 0,
            Some(ms) if chunks.contains(&ms) => (ms / self.info.frame_ms()) as usize - 1,
            Some(ms) => return Err(HearingError::Chunk { asked: ms, has: chunks.clone() }),
        };
        self.info.check_language(ask.language)?;
        let language = match (ask.language, &self.config.prompt) {
            (_, None) => 0,
            (asked, Some(p)) => asked.and_then(|code| p.slot(code)).unwrap_or(p.default),
        };
        let Some(saved) = saved else { return Ok(StreamShape { look_ahead, language }) };
        let same = |asked: bool, was, is| !asked || was == is;
        if same(ask.chunk_ms.is_some(), saved.look_ahead, look_ahead)
            && same(ask.language.is_some(), saved.language, language)
        {
            return Ok(saved);
        }
        Err(HearingError::Snapshot("it has another chunk or language than the request".into()))
    }
}

impl Hearing for FastConformer {
    fn info(&self) -> &HearingInfo {
        &self.0.info
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    fn track(&self, ask: &TrackRequest<'_>, saved: Option<&[u8]>) -> Result<Track, HearingError> {
        ask.check()?;
        let model = &self.0;
        if ask.temperature.is_some_and(|t| t > 0.0) {
            let (family, option) = (model.info.family, "temperature");
            return Err(HearingError::Unsupported { family, option });
        }
        let saved = saved.map(|bytes| FastConformerEar::saved_shape(model, bytes)).transpose()?;
        let shape = model.shape(ask, saved)?;
        let options = phrases::search_options(ask, &model.tokenizer, model.config.vocab)?;
        let fresh =
            SearchState::new(&model.decoder, &options).map_err(|e| HearingError::Search(e.to_string()))?;
        let wish = Wish { shape, fresh, nbest: ask.nbest };
        let chunk = if model.encoder.is_offline() { WINDOW } else { shape.look_ahead + 1 };
        let recheck = (wish.has_beam() && !model.encoder.is_offline()).then_some(chunk);
        Ok(Track::new(chunk, recheck, wish))
    }

    fn language_model(&self, from: &mut dyn BufRead) -> Result<Arc<Ngram>, HearingError> {
        let tokenizer = &self.0.tokenizer;
        let piece = |id: u32| tokenizer.piece(id).unwrap_or_default();
        let pieces: Vec<&str> = (0..self.0.config.vocab as u32).map(piece).collect();
        let model = Ngram::read(from, &pieces).map_err(|e| HearingError::Search(e.to_string()))?;
        Ok(Arc::new(model))
    }

    fn front(&self) -> Box<dyn Front> {
        Box::new(MelFront::new(&self.0.config.mel, self.0.on_device))
    }

    fn resume_front(&self, saved: &[u8]) -> Result<Box<dyn Front>, HearingError> {
        let front = MelFront::resume(&self.0.config.mel, self.0.on_device, saved);
        front.map(|f| Box::new(f) as _).map_err(|e| HearingError::Snapshot(e.to_string()))
    }

    fn ear(&self, room: EarRoom) -> Box<dyn Ear> {
        Box::new(FastConformerEar::new(self.0.clone(), room))
    }

    fn footprint(&self, room: EarRoom) -> Footprint {
        footprint::of(&self.0.config, self.0.formats, room)
    }

    fn fingerprint(&self) -> u64 {
        self.0.fingerprint
    }
}
