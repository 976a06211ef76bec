//! The architectures of the published Pocket TTS models, in numbers.
//!
//! A shape is enough to count parameters before a download and to write the model's configuration in the
//! layout in which the models are published, since the model repositories hold weights but no configuration.

use std::fmt::Write as _;

/// Which flow head turns the backbone's output into a latent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadType {
    /// Two time conditions, one step.
    Lsd,
    /// No time condition; the head's output is the latent.
    Drifting,
    /// No time condition; the noise plus the head's output is the latent.
    Pointwise,
}

impl HeadType {
    /// The name used in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            HeadType::Lsd => "lsd",
            HeadType::Drifting => "drifting",
            HeadType::Pointwise => "pointwise",
        }
    }

    const fn time_embedders(self) -> u64 {
        match self {
            HeadType::Lsd => 2,
            HeadType::Drifting | HeadType::Pointwise => 0,
        }
    }
}

/// One side of the codec: its convolutions and its transformer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecSide {
    /// Channels between the convolutions and the transformer.
    pub dimension: u32,
    /// Channels of the layer nearest to the waveform.
    pub n_filters: u32,
    /// Kernel of the first convolution.
    pub kernel_size: u32,
    /// Width of the transformer.
    pub d_model: u32,
    /// Heads of the transformer.
    pub num_heads: u32,
    /// Layers of the transformer.
    pub num_layers: u32,
    /// Positions the transformer sees.
    pub context: u32,
    /// Hidden width of the feed-forward layers.
    pub dim_feedforward: u32,
}

/// Every number that tells one published Pocket TTS architecture from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PocketShape {
    /// Width of the backbone.
    pub d_model: u32,
    /// Width of the queries, where it is not `d_model`.
    pub attn_dim: Option<u32>,
    /// Query heads.
    pub num_heads: u32,
    /// Key and value heads, where fewer than `num_heads`.
    pub num_kv_heads: Option<u32>,
    /// Layers of the backbone.
    pub num_layers: u32,
    /// Hidden width of the feed-forward layers over `d_model`.
    pub hidden_scale: u32,
    /// Hidden width of the feed-forward layers, where it is not `d_model * hidden_scale`.
    pub dim_feedforward: Option<u32>,
    /// Blocks of the flow head.
    pub flow_depth: u32,
    /// Width of the flow head.
    pub flow_dim: u32,
    /// Kind of flow head.
    pub flow_type: HeadType,
    /// Width of the projection that feeds both heads, where there is one.
    pub z_dim: Option<u32>,
    /// Pieces of the tokeniser.
    pub n_bins: u32,
    /// Rank of the text embedding, where it is factored.
    pub rank: Option<u32>,
    /// Whether a learned vector precedes the voice.
    pub insert_bos_before_voice: bool,
    /// Width of the encoder's output.
    pub inner_dim: u32,
    /// Width of the decoder's input.
    pub outer_dim: u32,
    /// The encoder's side of the codec.
    pub encoder: CodecSide,
    /// The decoder's side, where it differs from the encoder's.
    pub decoder: Option<CodecSide>,
}

/// Width of one latent.
pub const LATENT_DIM: u32 = 32;
/// Samples per second of every published model.
pub const SAMPLE_RATE: u32 = 24_000;
const RATIOS: [u64; 3] = [6, 5, 4];
const RESAMPLE_KERNEL: u64 = 32;
const TIME_FREQUENCIES: u64 = 128;

const fn layer_norm(width: u64) -> u64 {
    2 * width
}

const fn linear(from: u64, to: u64) -> u64 {
    from * to + to
}

const fn or(value: Option<u32>, otherwise: u32) -> u64 {
    match value {
        Some(value) => value as u64,
        None => otherwise as u64,
    }
}

impl CodecSide {
    const fn transformer(&self) -> u64 {
        let (d, ff) = (self.d_model as u64, self.dim_feedforward as u64);
        self.num_layers as u64 * (4 * d * d + 2 * d * ff + 2 * layer_norm(d) + 2 * d)
    }

    const fn convolutions(&self) -> u64 {
        let (filters, dimension) = (self.n_filters as u64, self.dimension as u64);
        let widest = filters << RATIOS.len();
        let mut total = self.kernel_size as u64 * dimension * widest;
        let mut wide = widest;
        let mut stage = 0;
        while stage < RATIOS.len() {
            let narrow = wide / 2;
            let hidden = narrow / 2;
            total += wide * narrow * 2 * RATIOS[stage];
            total += 3 * narrow * hidden + hidden + hidden * narrow + narrow;
            wide = narrow;
            stage += 1;
        }
        total
    }

    const fn decoder_parameters(&self) -> u64 {
        let filters = self.n_filters as u64;
        let biases = filters * (8 + 4 + 2 + 1) + 1;
        self.convolutions() + biases + 3 * filters
    }

    const fn encoder_parameters(&self) -> u64 {
        let (filters, dimension) = (self.n_filters as u64, self.dimension as u64);
        let widest = filters << RATIOS.len();
        let biases = filters * (1 + 2 + 4 + 8) + dimension;
        // The wide end has the short kernel and the waveform's end the long one: mirrored against the decoder.
        let ends = 3 * dimension * widest + self.kernel_size as u64 * filters;
        self.convolutions() - self.kernel_size as u64 * dimension * widest + ends + biases
    }
}

impl PocketShape {
    /// The decoder's side of the codec.
    pub const fn decoder_side(&self) -> &CodecSide {
        match &self.decoder {
            Some(side) => side,
            None => &self.encoder,
        }
    }

    /// Parameters of the backbone's layers.
    pub const fn backbone_parameters(&self) -> u64 {
        let d = self.d_model as u64;
        let attn = or(self.attn_dim, self.d_model);
        let kv = attn / self.num_heads as u64 * or(self.num_kv_heads, self.num_heads);
        let ff = or(self.dim_feedforward, self.d_model * self.hidden_scale);
        self.num_layers as u64 * (d * (attn + 2 * kv) + attn * d + 2 * d * ff + 2 * layer_norm(d))
    }

    /// Parameters of the text embedding.
    pub const fn embedding_parameters(&self) -> u64 {
        let (rows, d) = (self.n_bins as u64 + 1, self.d_model as u64);
        match self.rank {
            Some(rank) => (rows + d) * rank as u64,
            None => rows * d,
        }
    }

    /// Parameters of the language model: embedding, backbone and flow head.
    pub const fn flow_parameters(&self) -> u64 {
        let (latent, d) = (LATENT_DIM as u64, self.d_model as u64);
        let z = or(self.z_dim, self.d_model);
        let z_proj = if self.z_dim.is_some() { d * z } else { 0 };
        let bos = if self.insert_bos_before_voice { d } else { 0 };
        let speaker = d * self.inner_dim as u64;
        let small = 3 * latent + bos + latent * d + layer_norm(d) + z_proj + z + 1 + speaker;
        self.embedding_parameters() + self.backbone_parameters() + self.head_parameters(z) + small
    }

    const fn head_parameters(&self, z: u64) -> u64 {
        let (latent, w) = (LATENT_DIM as u64, self.flow_dim as u64);
        let block = layer_norm(w) + 2 * linear(w, w) + linear(w, 3 * w);
        let time = TIME_FREQUENCIES + linear(2 * TIME_FREQUENCIES, w) + linear(w, w) + w;
        linear(z, w)
            + linear(latent, w)
            + self.flow_depth as u64 * block
            + linear(w, latent)
            + linear(w, 2 * w)
            + self.flow_type.time_embedders() * time
    }

    /// Parameters that only voice cloning needs: the codec's encoder.
    pub const fn encoder_parameters(&self) -> u64 {
        let downsample = self.inner_dim as u64 * self.encoder.dimension as u64 * RESAMPLE_KERNEL;
        self.encoder.encoder_parameters() + self.encoder.transformer() + downsample
    }

    /// Parameters of the codec's decoder.
    pub const fn decoder_parameters(&self) -> u64 {
        let outer = self.outer_dim as u64;
        let side = self.decoder_side();
        side.decoder_parameters() + side.transformer() + outer * LATENT_DIM as u64 + outer * RESAMPLE_KERNEL
    }

    /// Parameters in the weight file.
    pub const fn parameters(&self) -> u64 {
        self.flow_parameters() + self.encoder_parameters() + self.decoder_parameters()
    }

    /// Appends the `flow_lm` and `mimi` sections in the published layout.
    pub(super) fn write_yaml(&self, out: &mut String, tokenizer: &str, tokenizer_path: &str) {
        let option = |value: Option<u32>| value.map_or("null".to_owned(), |v| v.to_string());
        let _ = write!(
            out,
            "flow_lm:\n  insert_bos_before_voice: {}\n  dtype: float32\n  z_dim: {}\n  flow:\n    depth: {}\n    \
             dim: {}\n    type: {}\n  transformer:\n    d_model: {}\n    hidden_scale: {}\n    max_period: 10000\n    \
             num_heads: {}\n    num_layers: {}\n    attn_dim: {}\n    num_kv_heads: {}\n    dim_feedforward: {}\n  \
             lookup_table:\n    dim: {}\n    n_bins: {}\n    tokenizer: {tokenizer}\n    tokenizer_path: \
             {tokenizer_path}\n    rank: {}\n",
            self.insert_bos_before_voice,
            option(self.z_dim),
            self.flow_depth,
            self.flow_dim,
            self.flow_type.name(),
            self.d_model,
            self.hidden_scale,
            self.num_heads,
            self.num_layers,
            option(self.attn_dim),
            option(self.num_kv_heads),
            option(self.dim_feedforward),
            self.d_model,
            self.n_bins,
            option(self.rank),
        );
        let _ = write!(
            out,
            "mimi:\n  dtype: float32\n  sample_rate: {SAMPLE_RATE}\n  channels: 1\n  frame_rate: 12.5\n  inner_dim: \
             {}\n  outer_dim: {}\n  quantizer:\n    dimension: {LATENT_DIM}\n    output_dimension: {}\n",
            self.inner_dim, self.outer_dim, self.outer_dim,
        );
        write_side(out, "", &self.encoder);
        if let Some(decoder) = &self.decoder {
            write_side(out, "decoder_", decoder);
        }
    }
}

fn write_side(out: &mut String, prefix: &str, side: &CodecSide) {
    let _ = write!(
        out,
        "  {prefix}seanet:\n    dimension: {}\n    channels: 1\n    n_filters: {}\n    n_residual_layers: 1\n    \
         ratios: [6, 5, 4]\n    kernel_size: {}\n    residual_kernel_size: 3\n    last_kernel_size: 3\n    \
         dilation_base: 2\n    pad_mode: constant\n    compress: 2\n  {prefix}transformer:\n    d_model: {}\n    \
         num_heads: {}\n    num_layers: {}\n    layer_scale: 0.01\n    context: {}\n    dim_feedforward: {}\n    \
         input_dimension: {}\n    output_dimensions: [{}]\n",
        side.dimension,
        side.n_filters,
        side.kernel_size,
        side.d_model,
        side.num_heads,
        side.num_layers,
        side.context,
        side.dim_feedforward,
        side.dimension,
        side.dimension,
    );
}
