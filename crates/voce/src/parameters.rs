//! How many parameters the parts of a model have, and what they weigh at a precision.

use std::path::Path;

use voce_engine::store::pocket_shape::PocketShape;
use voce_nn::weights::SafetensorsFile;
use voce_nn::{Formats, Precision};
use voce_runtime::Isa;

use crate::failure::{Failure, Outcome};

/// Parameters by part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Parameters {
    /// Read once a frame.
    pub(crate) backbone: u64,
    /// Sampler head and what surrounds the backbone.
    pub(crate) head: u64,
    /// Text embedding.
    pub(crate) embedding: u64,
    /// The codec's decoder.
    pub(crate) decoder: u64,
    /// The codec's encoder, which only voice cloning needs.
    pub(crate) encoder: u64,
}

impl Parameters {
    /// Of a published shape.
    pub(crate) fn of_shape(shape: &PocketShape) -> Self {
        let n = u64::from;
        let d = n(shape.d_model);
        let attention = n(shape.attn_dim.unwrap_or(shape.d_model));
        let kv = attention / n(shape.num_heads) * n(shape.num_kv_heads.unwrap_or(shape.num_heads));
        let hidden = n(shape.dim_feedforward.unwrap_or(shape.d_model * shape.hidden_scale));
        let backbone =
            n(shape.num_layers) * (d * (attention + 2 * kv) + attention * d + 2 * d * hidden + 4 * d);
        let rows = n(shape.n_bins) + 1;
        let embedding = shape.rank.map_or(rows * d, |rank| (rows + d) * n(rank));
        Self {
            backbone,
            embedding,
            head: shape.flow_parameters().saturating_sub(backbone + embedding),
            decoder: shape.decoder_parameters(),
            encoder: shape.encoder_parameters(),
        }
    }

    /// Of weight files, by the names of their tensors.
    pub(crate) fn of_files(paths: &[impl AsRef<Path>]) -> Outcome<Self> {
        let mut all = Self::default();
        for path in paths {
            let file = SafetensorsFile::open(path.as_ref()).map_err(|e| Failure::failed(e.to_string()))?;
            for (name, shape) in file.tensors() {
                let count = shape.iter().map(|&n| n as u64).product::<u64>();
                *all.part(name) += count;
            }
        }
        Ok(all)
    }

    fn part(&mut self, name: &str) -> &mut u64 {
        let name = name.strip_prefix("flow_lm.").unwrap_or(name);
        let name = name.strip_prefix("mimi.").unwrap_or(name);
        match name.split('.').next().unwrap_or_default() {
            "transformer" => &mut self.backbone,
            "conditioner" => &mut self.embedding,
            "encoder" | "encoder_transformer" | "downsample" => &mut self.encoder,
            "decoder" | "decoder_transformer" | "upsample" | "quantizer" => &mut self.decoder,
            _ => &mut self.head,
        }
    }

    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.backbone + self.head + self.embedding + self.decoder + self.encoder
    }

    /// About how many bytes of weights speaking keeps in memory; the encoder is loaded for cloning only.
    pub(crate) fn resident_bytes(&self, precision: Precision, isa: Isa) -> u64 {
        let f = Formats::new(precision, isa);
        weigh(self.backbone, f.backbone)
            + weigh(self.head, f.linear)
            + weigh(self.embedding, f.embedding)
            + weigh(self.decoder, f.conv)
    }

    /// About how many bytes a frame reads; the codec's are read once for four frames.
    pub(crate) fn frame_bytes(&self, precision: Precision, isa: Isa) -> u64 {
        let f = Formats::new(precision, isa);
        weigh(self.backbone, f.backbone) + weigh(self.head, f.linear) + weigh(self.decoder, f.conv) / 4
    }
}

fn weigh(parameters: u64, format: voce_runtime::Format) -> u64 {
    (parameters as f64 * format.bits() / 8.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use voce_engine::store::catalogue;

    #[test]
    fn shapes_add_up() {
        for entry in catalogue::entries() {
            let parts = Parameters::of_shape(&entry.shape);
            assert_eq!(parts.total(), entry.parameters(), "{}", entry.alias);
            let [f32, int4] = [Precision::F32, Precision::Int4].map(|p| parts.resident_bytes(p, Isa::Scalar));
            assert!(int4 < f32);
        }
    }
}
