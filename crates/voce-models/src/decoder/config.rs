//! Shapes of decoder-only models, and those of published models by name.

use voce_nn::{DecoderConfig, DecoderNames};
use voce_runtime::{MAX_SAMPLED, RopeStyle};

/// Names that [`FrameConfig::named`] knows.
pub const SHAPES: [&str; 4] = ["qwen3-tts-tiny", "qwen3-tts-0.6b", "qwen3-tts-1.7b", "stt-1b"];

/// The decoder that draws the rest of a frame's tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictorConfig {
    /// Its layers.
    pub decoder: DecoderConfig,
    /// Tokens that it draws.
    pub tokens: usize,
    /// Values of each.
    pub vocab: usize,
}

/// Shape of a [`super::FrameDecoder`].
///
/// A frame's tokens are the drawn one, those of the predictor, and those that are given from outside; the sum of their
/// embeddings is the input of the next frame.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameConfig {
    /// The layers.
    pub decoder: DecoderConfig,
    /// Values of the token that is drawn.
    pub vocab: usize,
    /// Rows of its embedding: the values, and those that only stand at a beginning.
    pub embeddings: usize,
    /// What draws the rest of a frame.
    pub predictor: Option<PredictorConfig>,
    /// Rows of the embeddings of each token that is given.
    pub given: Vec<usize>,
}

fn qwen(hidden: usize, layers: usize) -> DecoderConfig {
    DecoderConfig {
        layers,
        hidden,
        ffn: 3 * hidden,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        rope: Some(RopeStyle::Halves),
        theta: 1e6,
        eps: 1e-6,
        head_norm: true,
        window: None,
        names: DecoderNames::Qwen3,
    }
}

impl FrameConfig {
    /// The shape of a published model; [`SHAPES`] has the names.
    pub fn named(name: &str) -> Option<Self> {
        let talker = |hidden| Self {
            decoder: qwen(hidden, 28),
            vocab: 3072,
            embeddings: 3072,
            predictor: Some(PredictorConfig { decoder: qwen(1024, 5), tokens: 15, vocab: 2048 }),
            // Text, in the talker's width.
            given: vec![151_936],
        };
        Some(match name {
            // Made up: to try what uses the others.
            "qwen3-tts-tiny" => {
                let small = |hidden| DecoderConfig { heads: 4, kv_heads: 2, head_dim: 16, ..qwen(hidden, 2) };
                let predictor = PredictorConfig { decoder: small(32), tokens: 3, vocab: 64 };
                Self {
                    decoder: small(64),
                    vocab: 96,
                    embeddings: 96,
                    predictor: Some(predictor),
                    given: vec![50],
                }
            }
            "qwen3-tts-0.6b" => talker(1024),
            "qwen3-tts-1.7b" => talker(2048),
            "stt-1b" => Self {
                decoder: DecoderConfig {
                    layers: 16,
                    ffn: 5632,
                    kv_heads: 16,
                    rope: Some(RopeStyle::Interleaved),
                    theta: 1e5,
                    eps: 1e-8,
                    head_norm: false,
                    window: Some(750),
                    names: DecoderNames::Moshi,
                    ..qwen(2048, 16)
                },
                vocab: 8000,
                embeddings: 8001,
                predictor: None,
                given: vec![2049; 32],
            },
            _ => return None,
        })
    }

    /// Tokens of a frame: drawn, predicted, given.
    pub fn columns(&self) -> usize {
        self.drawn() + self.given.len()
    }

    /// Tokens that the model draws in a frame.
    pub fn drawn(&self) -> usize {
        1 + self.predictor.as_ref().map_or(0, |p| p.tokens)
    }

    /// Why it cannot be run, if it cannot.
    pub fn check(&self) -> Result<(), String> {
        self.decoder.check()?;
        let mut vocabularies = vec![self.vocab];
        if let Some(p) = &self.predictor {
            p.decoder.check()?;
            vocabularies.push(p.vocab);
            if p.tokens == 0 || p.decoder.window.is_some() {
                return Err("a predictor draws at least one token and sees all of its frame".into());
            }
        }
        if vocabularies.iter().any(|v| !(1..=MAX_SAMPLED).contains(v)) {
            return Err(format!("a token has 1 to {MAX_SAMPLED} values"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_shapes_have_their_sizes() {
        let millions = |c: &DecoderConfig| {
            let heads = (c.heads + c.kv_heads) * 2 * c.head_dim;
            c.layers * c.hidden * (heads + 3 * c.ffn) / 100_000
        };
        for name in SHAPES {
            FrameConfig::named(name).unwrap().check().unwrap();
        }
        let large = FrameConfig::named("qwen3-tts-1.7b").unwrap();
        assert_eq!((millions(&large.decoder), large.drawn(), large.columns()), (14_092, 16, 17));
        assert_eq!(millions(&large.predictor.unwrap().decoder), 786);
        assert_eq!(millions(&FrameConfig::named("qwen3-tts-0.6b").unwrap().decoder), 4_404);
        let stt = FrameConfig::named("stt-1b").unwrap();
        assert_eq!((millions(&stt.decoder), stt.drawn(), stt.columns()), (8_220, 1, 33));
        assert!(FrameConfig::named("stt").is_none());
    }

    #[test]
    fn what_cannot_be_run_is_named() {
        let mut config = FrameConfig::named("qwen3-tts-0.6b").unwrap();
        config.vocab = MAX_SAMPLED + 1;
        assert!(config.check().unwrap_err().contains("values"));
        config.vocab = 10;
        config.predictor.as_mut().unwrap().tokens = 0;
        assert!(config.check().unwrap_err().contains("predictor"));
    }
}
