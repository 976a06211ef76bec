//! Voices: the backbone's past after a voice prompt, as the published files keep it.

use voce_nn::weights::SafetensorsFile;
use voce_nn::{Formats, Loader, WeightError, Weights};
use voce_runtime::{Exec, KvCache, KvIndex, KvSpec};

use super::config::PocketConfig;
use super::flow_lm::FlowLm;
use crate::mimi::MimiEncoder;
use crate::speech::{VoiceData, VoiceError, VoiceTensor};

/// The most positions a voice may have: two minutes of prompt.
pub const MAX_VOICE_POSITIONS: usize = 1_500;

/// A voice ready to speak with.
pub struct Voice {
    cache: KvCache,
    positions: usize,
}

impl Voice {
    /// No voice at all: what an unconditioned model starts from.
    pub fn empty(lm: &FlowLm) -> Self {
        Self { cache: KvCache::new(lm.cache_spec(1, 1)), positions: 0 }
    }

    /// A voice of these conditioning rows (each of the backbone's width).
    pub fn from_rows(exec: &mut Exec, lm: &FlowLm, rows: &[f32]) -> Result<Self, VoiceError> {
        let positions = rows.len() / lm.dim();
        if positions > MAX_VOICE_POSITIONS {
            return Err(too_long(positions));
        }
        let mut state = lm.state(1, positions.max(1));
        lm.prefill_rows(exec, &mut state, 0, rows);
        let mut cache = KvCache::new(lm.cache_spec(1, positions.max(1)));
        exec.copy_prefix(&mut cache, 0, state.cache(), 0, positions);
        Self { cache, positions }.settled(exec)
    }

    /// Reads an exported voice: keys and values per layer, or conditioning rows that need a prefill.
    pub fn read(file: &SafetensorsFile, exec: &mut Exec, lm: &FlowLm) -> Result<Self, VoiceError> {
        for name in ["audio_prompt", "emb"] {
            if let Some(shape) = file.shape(name) {
                let expected = [1, shape.get(1).copied().unwrap_or(0), lm.dim()];
                let wrong = || WeightError::Shape {
                    name: name.into(),
                    expected: expected.to_vec(),
                    got: shape.clone(),
                };
                if shape != expected {
                    return Err(wrong().into());
                }
                let rows = file.get(name, &shape)?.ok_or_else(wrong)?.values;
                return Self::from_rows(exec, lm, &rows);
            }
        }
        let spec = lm.cache_spec(1, 1);
        let first = "transformer.layers.0.self_attn/cache";
        let Some(shape) = file.shape(first) else {
            let names: Vec<&str> = file.tensors().map(|(n, _)| n).take(3).collect();
            return Err(VoiceError::Other(format!("no tensor '{first}' (it holds {})", names.join(", "))));
        };
        let stored = shape.get(2).copied().unwrap_or(0);
        let positions = Self::offset(file, stored)?;
        if positions > MAX_VOICE_POSITIONS {
            return Err(too_long(positions));
        }
        let mut cache = KvCache::new(lm.cache_spec(1, positions.max(1)));
        for layer in 0..spec.layers {
            let name = format!("transformer.layers.{layer}.self_attn/cache");
            let expected = vec![2, 1, stored, spec.kv_heads, spec.head_dim];
            let Some(t) = file.get(&name, &expected)? else {
                return Err(WeightError::Missing { name, expected }.into());
            };
            if t.shape != expected {
                return Err(WeightError::Shape { name, expected, got: t.shape }.into());
            }
            let row = spec.kv_heads * spec.head_dim;
            for kv in 0..2 {
                for position in 0..positions {
                    for head in 0..spec.kv_heads {
                        let at = (kv * stored + position) * row + head * spec.head_dim;
                        let values = &t.values[at..at + spec.head_dim];
                        if values.iter().any(|v| !v.is_finite()) {
                            return Err(WeightError::NotFinite { name, count: 1 }.into());
                        }
                        cache.write(KvIndex { layer, slot: 0, head, position }, kv, values);
                    }
                }
            }
        }
        let extra = format!("transformer.layers.{}.self_attn/cache", spec.layers);
        if file.shape(&extra).is_some() {
            return Err(VoiceError::Other(format!("it has more than this model's {} layers", spec.layers)));
        }
        cache.advance(0, positions);
        Self { cache, positions }.settled(exec)
    }

    /// Where the executor's ops are, and ready for those of others.
    fn settled(mut self, exec: &mut Exec) -> Result<Self, VoiceError> {
        exec.reserve_cache(&mut self.cache).map_err(VoiceError::Device)?;
        exec.finish();
        Ok(self)
    }

    /// How many of the stored positions are filled: `offset`, or the length of an older `current_end`.
    fn offset(file: &SafetensorsFile, stored: usize) -> Result<usize, VoiceError> {
        let positions = match file.integers("transformer.layers.0.self_attn/offset")? {
            Some(v) => v.first().and_then(|&n| usize::try_from(n).ok()).unwrap_or(usize::MAX),
            None => match file.shape("transformer.layers.0.self_attn/current_end") {
                Some(shape) => shape.first().copied().unwrap_or(0),
                None => stored,
            },
        };
        if positions > stored {
            return Err(VoiceError::Other(format!("it claims {positions} positions and holds {stored}")));
        }
        Ok(positions)
    }

    /// The tensors of the published export.
    pub fn export(&self, exec: &mut Exec) -> Vec<VoiceTensor> {
        let s = *self.cache.spec();
        let mut tensors = Vec::new();
        let kept = exec.read_cache(&self.cache, 0, 0..self.positions);
        for layer in 0..s.layers {
            let mut values = Vec::with_capacity(2 * self.positions * s.kv_heads * s.head_dim);
            for kv in 0..2 {
                for position in 0..self.positions {
                    for head in 0..s.kv_heads {
                        let row = ((layer * s.kv_heads + head) * self.positions + position) * 2 + kv;
                        values.extend_from_slice(&kept[row * s.head_dim..][..s.head_dim]);
                    }
                }
            }
            let base = format!("transformer.layers.{layer}.self_attn");
            tensors.push(VoiceTensor {
                name: format!("{base}/cache"),
                shape: vec![2, 1, self.positions, s.kv_heads, s.head_dim],
                data: VoiceData::Floats(values),
            });
            for (key, value) in [("offset", self.positions as i64), ("pad", 0)] {
                tensors.push(VoiceTensor {
                    name: format!("{base}/{key}"),
                    shape: vec![1],
                    data: VoiceData::Integers(vec![value]),
                });
            }
        }
        tensors
    }

    /// Whether it was made for a model of this shape, with keys and values in this format.
    pub fn fits(&self, lm: &FlowLm) -> bool {
        let (own, model) = (*self.cache.spec(), lm.cache_spec(1, 1));
        KvSpec { capacity: 1, ..own } == model
    }

    /// Positions of the prompt.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Bytes of its keys and values.
    pub fn bytes(&self) -> usize {
        self.cache.spec().bytes()
    }

    pub(super) fn cache(&self) -> &KvCache {
        &self.cache
    }
}

fn too_long(positions: usize) -> VoiceError {
    VoiceError::TooLong { positions, most: MAX_VOICE_POSITIONS }
}

/// Frames that the encoder takes at once.
const ENCODE_FRAMES: usize = 4;

/// Turns audio into a voice: the codec's encoder and the projection into the backbone.
pub struct VoiceEncoder {
    mimi: MimiEncoder,
    /// `[dim][latent]`.
    projection: Vec<f32>,
    bos: Option<Vec<f32>>,
    dim: usize,
}

impl VoiceEncoder {
    /// Whether the weights have one. A model that was trained without it may be published with zeros in its place.
    pub fn is_in(l: &Loader, c: &PocketConfig) -> Result<bool, VoiceError> {
        if !l.has("mimi.encoder.model.0.conv.weight") {
            return Ok(false);
        }
        let lm = l.sub("flow_lm");
        let latent = c.mimi.inner_dim.unwrap_or(c.mimi.seanet.dimension);
        let shape = [c.flow_lm.transformer.d_model, latent];
        Ok(lm.tensor("speaker_proj_weight", &shape)?.iter().any(|w| *w != 0.0))
    }

    /// Loads `mimi.encoder*`, `flow_lm.speaker_proj_weight` and, if configured, `flow_lm.bos_before_voice`.
    pub fn load(l: &Loader, c: &PocketConfig, f: Formats) -> Result<Self, VoiceError> {
        if !Self::is_in(l, c)? {
            return Err(VoiceError::NoEncoder);
        }
        let mimi = MimiEncoder::load(&l.sub("mimi"), &c.mimi, f)?;
        let dim = c.flow_lm.transformer.d_model;
        let lm = l.sub("flow_lm");
        let projection = lm.tensor("speaker_proj_weight", &[dim, mimi.latent_dim()])?;
        let bos = c
            .flow_lm
            .insert_bos_before_voice
            .then(|| lm.tensor("bos_before_voice", &[1, 1, dim]))
            .transpose()?;
        Ok(Self { mimi, projection, bos, dim })
    }

    /// The codec's encoder.
    pub fn codec(&self) -> &MimiEncoder {
        &self.mimi
    }

    /// Conditioning rows of a prompt (mono, at the codec's rate), the learnt first row included.
    pub fn rows(&self, exec: &mut Exec, samples: &[f32]) -> Vec<f32> {
        let frame = self.mimi.frame_size();
        let mut padded = samples.to_vec();
        padded.resize(samples.len().next_multiple_of(frame), 0.0);
        let mut state = self.mimi.state(ENCODE_FRAMES);
        let mut rows = self.bos.clone().unwrap_or_default();
        for part in padded.chunks(ENCODE_FRAMES * frame) {
            let latents = self.mimi.encode(exec, &mut state, part);
            for latent in latents.chunks_exact(self.mimi.latent_dim()) {
                let project = |w: &[f32]| w.iter().zip(latent).map(|(w, x)| w * x).sum::<f32>();
                rows.extend(self.projection.chunks_exact(latent.len()).map(project));
            }
        }
        debug_assert_eq!(rows.len() % self.dim, 0);
        rows
    }
}
