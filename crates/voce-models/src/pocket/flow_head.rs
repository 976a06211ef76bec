//! The sampler head: an MLP with adaptive norms that turns noise into a latent.

use voce_nn::{LayerNorm, Linear, Loader, WeightError};
use voce_runtime::{Activation, Buffer, Exec, Format, Gate, Modulation, Norm, Vector};

use super::config::{FlowConfig, FlowType};

struct Block {
    norm_weight: Vector,
    norm_bias: Vector,
    first: Linear,
    second: Linear,
}

/// The head. All adaptive norms read the same condition, so their projections are one matrix.
pub struct FlowHead {
    kind: FlowType,
    dim: usize,
    latent: usize,
    time: Vec<TimeEmbedder>,
    cond_embed: Linear,
    cond_bias: Vec<f32>,
    input_proj: Linear,
    blocks: Vec<Block>,
    modulation: Linear,
    last: Linear,
}

/// Activations of a [`FlowHead`].
pub struct FlowHeadState {
    y: Buffer,
    x: Buffer,
    hidden: Buffer,
    modulation: Buffer,
    current: Buffer,
    out: Buffer,
    /// Condition bias of each step, for the step count they were made for.
    step_bias: Vec<Vector>,
}

impl FlowHeadState {
    /// The latents that were sampled last.
    pub fn made(&mut self) -> &mut Buffer {
        &mut self.current
    }
}

impl FlowHead {
    /// Loads `flow_net`.
    pub fn load(
        l: &Loader,
        c: &FlowConfig,
        latent: usize,
        cond: usize,
        format: Format,
    ) -> Result<Self, WeightError> {
        let dim = c.dim;
        let time = (0..c.kind.time_conditions())
            .map(|i| TimeEmbedder::load(&l.sub("time_embed").sub(i), dim))
            .collect::<Result<_, _>>()?;
        let (mut rows, mut biases) = (Vec::new(), Vec::new());
        let mut gather = |l: &Loader, n: usize| -> Result<(), WeightError> {
            let l = l.sub("adaLN_modulation.1");
            rows.extend(l.tensor("weight", &[n, dim])?);
            biases.extend(l.optional("bias", &[n])?.unwrap_or(vec![0.0; n]));
            Ok(())
        };
        let mut blocks = Vec::new();
        for i in 0..c.depth {
            let l = l.sub("res_blocks").sub(i);
            gather(&l, 3 * dim)?;
            blocks.push(Block {
                norm_weight: l.tensor("in_ln.weight", &[dim])?.into(),
                norm_bias: l.tensor("in_ln.bias", &[dim])?.into(),
                first: Linear::load(&l.sub("mlp.0"), dim, dim, format)?,
                second: Linear::load(&l.sub("mlp.2"), dim, dim, format)?,
            });
        }
        gather(&l.sub("final_layer"), 2 * dim)?;
        let n = (3 * c.depth + 2) * dim;
        let cond_embed = Linear::load(&l.sub("cond_embed"), dim, cond, format)?;
        Ok(Self {
            kind: c.kind,
            dim,
            latent,
            time,
            cond_bias: cond_embed.bias().map_or(vec![0.0; dim], <[f32]>::to_vec),
            cond_embed,
            input_proj: Linear::load(&l.sub("input_proj"), dim, latent, format)?,
            blocks,
            modulation: Linear::from_values(l, format, n, dim, &rows)?.with_bias(biases),
            last: Linear::load(&l.sub("final_layer.linear"), latent, dim, format)?,
        })
    }

    /// State for up to `rows` latents at once.
    pub fn state(&self, rows: usize) -> FlowHeadState {
        FlowHeadState {
            y: Buffer::new(rows, self.dim),
            x: Buffer::new(rows, self.dim),
            hidden: Buffer::new(rows, self.dim),
            modulation: Buffer::new(rows, self.modulation.matrix().outputs()),
            current: Buffer::new(rows, self.latent),
            out: Buffer::new(rows, self.latent),
            step_bias: Vec::new(),
        }
    }

    /// Samples `rows` latents from `noise` given the conditions; `norm` is applied to those first.
    pub fn sample<'s>(
        &self,
        exec: &mut Exec,
        cond: &Buffer,
        norm: Option<&LayerNorm>,
        noise: &[f32],
        steps: usize,
        s: &'s mut FlowHeadState,
    ) -> &'s mut Buffer {
        let rows = noise.len() / self.latent;
        let steps = if self.time.is_empty() { 1 } else { steps };
        if s.step_bias.len() != steps {
            s.step_bias = (0..steps).map(|i| self.step_bias(i, steps).into()).collect();
        }
        s.current.discard();
        s.current.head_mut(rows).copy_from_slice(noise);
        for step in 0..steps {
            let mut op = self.cond_embed.op(cond, rows);
            op.bias = Some(&s.step_bias[step]);
            if let Some(norm) = norm {
                op.norm = norm.norm();
            }
            exec.linear(&op, &mut s.y);
            let mut op = self.modulation.op(&s.y, rows);
            op.norm = Norm::Activation(Activation::Silu);
            exec.linear(&op, &mut s.modulation);
            self.input_proj.run(exec, &s.current, rows, &mut s.x);
            let part = |i: usize| s.modulation.columns(i * self.dim..(i + 1) * self.dim);
            for (i, b) in self.blocks.iter().enumerate() {
                let mut op = b.first.op(&s.x, rows);
                op.norm = Norm::Layer {
                    weight: Some(&b.norm_weight),
                    bias: Some(&b.norm_bias),
                    eps: 1e-6,
                    modulation: Some(Modulation { shift: part(3 * i), scale: part(3 * i + 1) }),
                };
                op.act = Activation::Silu;
                let mut hidden = b.second.rows_in(&mut s.hidden);
                exec.linear(&op, &mut hidden);
                let mut op = b.second.op(&hidden, rows);
                op.gate = Gate::Gated(part(3 * i + 2));
                exec.linear(&op, &mut s.x);
            }
            let at = 3 * self.blocks.len();
            let mut op = self.last.op(&s.x, rows);
            op.norm = Norm::Layer {
                weight: None,
                bias: None,
                eps: 1e-6,
                modulation: Some(Modulation { shift: part(at), scale: part(at + 1) }),
            };
            exec.linear(&op, &mut s.out);
            match self.kind {
                FlowType::Drifting => exec.copy_head(&s.out, 0, &mut s.current, rows),
                _ => exec.add_scaled(&s.out, 1.0 / steps as f32, rows, &mut s.current),
            }
        }
        &mut s.current
    }

    /// The condition's bias plus the mean of the time embeddings of a step.
    fn step_bias(&self, step: usize, steps: usize) -> Vec<f32> {
        let mut bias = self.cond_bias.clone();
        for (i, t) in self.time.iter().enumerate() {
            let at = (step + i) as f32 / steps as f32;
            let n = self.time.len() as f32;
            bias.iter_mut().zip(t.embed(at)).for_each(|(b, e)| *b += e / n);
        }
        bias
    }

    /// Bytes of weights that one step reads.
    pub fn bytes(&self) -> usize {
        self.linears().map(Linear::bytes).sum()
    }

    /// Multiply-adds of one step for one latent.
    pub fn macs(&self) -> usize {
        self.linears().map(Linear::macs).sum()
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        let blocks = self.blocks.iter().flat_map(|b| [&b.first, &b.second]);
        blocks.chain([&self.cond_embed, &self.input_proj, &self.modulation, &self.last])
    }
}

/// Sinusoids through a small MLP; only ever evaluated at a few fixed times, when a state is made.
struct TimeEmbedder {
    freqs: Vec<f32>,
    first: (Vec<f32>, Vec<f32>),
    second: (Vec<f32>, Vec<f32>),
    alpha: Vec<f32>,
}

/// Sinusoids and cosinusoids of a time embedding.
const TIME_FEATURES: usize = 256;

impl TimeEmbedder {
    fn load(l: &Loader, dim: usize) -> Result<Self, WeightError> {
        let half = TIME_FEATURES / 2;
        // The frequencies are stored with the weights, and rounded with them.
        let freqs = match l.optional("freqs", &[half])? {
            Some(freqs) => freqs,
            None => (0..half).map(|i| (-(10_000f32.ln()) * i as f32 / half as f32).exp()).collect(),
        };
        let linear = |name: &str, inputs| -> Result<_, WeightError> {
            let l = l.sub(name);
            Ok((l.tensor("weight", &[dim, inputs])?, l.tensor("bias", &[dim])?))
        };
        Ok(Self {
            freqs,
            first: linear("mlp.0", TIME_FEATURES)?,
            second: linear("mlp.2", dim)?,
            alpha: l.tensor("mlp.3.alpha", &[dim])?,
        })
    }

    fn embed(&self, t: f32) -> Vec<f32> {
        let angles = || self.freqs.iter().map(|f| t * f);
        let x: Vec<f32> = angles().map(f32::cos).chain(angles().map(f32::sin)).collect();
        let dense = |x: &[f32], (w, b): &(Vec<f32>, Vec<f32>)| -> Vec<f32> {
            let rows = w.chunks_exact(x.len()).zip(b);
            rows.map(|(row, b)| b + row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>()).collect()
        };
        let mut h = dense(&x, &self.first);
        h.iter_mut().for_each(|v| *v /= 1.0 + (-*v).exp());
        let mut y = dense(&h, &self.second);
        // Scaled by the deviation around the mean, yet not centred.
        let mean = y.iter().sum::<f32>() / y.len() as f32;
        let var = y.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / (y.len() as f32 - 1.0);
        let inv = 1.0 / (var + 1e-5).sqrt();
        y.iter_mut().zip(&self.alpha).for_each(|(v, a)| *v *= a * inv);
        y
    }
}
