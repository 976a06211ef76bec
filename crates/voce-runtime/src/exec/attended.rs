//! Which attention runs where, and which has run: for logs and for reports about a machine.

use super::{Exec, KvFormat, KvSpec};
use crate::Isa;
use crate::cuda::DeviceInfo;
use crate::simd::kernels;

/// What a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKind {
    /// Itself and what came before: [`super::AttentionOp`].
    Causal,
    /// Its chunk and some rows before: [`super::RelativeAttentionOp`].
    Chunked,
    /// All of its utterance: the same op.
    Whole,
}

/// What decides which kernel runs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// What rows see.
    pub kind: AttentionKind,
    /// How keys and values are stored.
    pub format: KvFormat,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Streams side by side.
    pub streams: usize,
    /// Rows of each.
    pub rows: usize,
    /// Positions that a row sees at most.
    pub positions: usize,
}

impl AttentionShape {
    /// The kernel's name on a CPU with these instructions: keys and values are packed panels, and products run over them.
    pub fn on_cpu(&self, isa: Isa) -> &'static str {
        cpu_kernel(self.format, kernels(isa).bf16_activations)
    }

    /// The kernel's name on a device.
    pub fn on_device(&self, device: &DeviceInfo) -> &'static str {
        crate::cuda::attention_kernel(self, device)
    }
}

fn cpu_kernel(format: KvFormat, rounds: bool) -> &'static str {
    match format {
        KvFormat::F32 => "panels_f32",
        KvFormat::Bf16 | KvFormat::Fp8 if rounds => "panels_bf16_tiles",
        KvFormat::Bf16 | KvFormat::Fp8 => "panels_bf16",
    }
}

/// Attention that has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attended {
    /// The kernel's name.
    pub kernel: &'static str,
    /// How keys and values are stored.
    pub format: KvFormat,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
}

/// Each kind of attention that has run, once.
#[derive(Default)]
pub(crate) struct AttendedSet(Vec<Attended>);

impl AttendedSet {
    /// Notes attention; the first of a kind is told in the log.
    pub(crate) fn note(&mut self, kernel: &'static str, spec: &KvSpec, heads: usize) {
        let KvSpec { format, kv_heads, head_dim, .. } = *spec;
        let ran = Attended { kernel, format, heads, kv_heads, head_dim };
        if !self.0.contains(&ran) {
            tracing::debug!(kernel, ?format, heads, kv_heads, head_dim, "attention");
            self.0.push(ran);
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Attended] {
        &self.0
    }
}

impl Exec {
    /// Each kind of attention that this executor has run, in the order of their first.
    pub fn attended(&self) -> &[Attended] {
        self.cuda.as_ref().map_or(&self.attended, |cuda| &cuda.attended).all()
    }

    /// Notes attention that this CPU runs.
    pub(super) fn note_attention(&mut self, spec: &KvSpec, heads: usize) {
        let kernel = cpu_kernel(spec.format, self.kernels.bf16_activations);
        self.attended.note(kernel, spec, heads);
    }
}
