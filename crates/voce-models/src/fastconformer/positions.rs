//! Relative positions: sinusoids of distances, projected by each layer once and packed like keys.

use voce_nn::{Linear, Loader, WeightError};
use voce_runtime::{Buffer, Exec, Format, KvFormat, Matrix, RelativePositions};

use super::EncoderConfig;

/// Projects distances for each layer.
pub(super) struct PositionProjections {
    layers: Vec<Linear>,
    dim: usize,
    heads: usize,
    format: Format,
}

impl PositionProjections {
    pub(super) fn load(encoder: &Loader, c: &EncoderConfig, kv: KvFormat) -> Result<Self, WeightError> {
        let format = if kv == KvFormat::F32 { Format::F32 } else { Format::Bf16 };
        let layers = (0..c.layers)
            .map(|i| {
                let l = encoder.sub("layers").sub(i).sub("self_attn").sub("linear_pos");
                Linear::load(&l, c.dim, c.dim, format)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { layers, dim: c.dim, heads: c.heads, format })
    }

    /// Projections of the distances `farthest` down to `-ahead`, for each layer.
    pub(super) fn project(&self, exec: &mut Exec, farthest: usize, ahead: usize) -> Vec<RelativePositions> {
        let (n, head) = (farthest + ahead + 1, self.dim / self.heads);
        let mut table = Buffer::new(n, self.dim);
        for i in 0..n {
            sinusoid(farthest as f32 - i as f32, table.row_mut(i));
        }
        let mut projected = Buffer::new(n, self.dim);
        let arena = exec.arena();
        let mut values = vec![0f32; n * head];
        let mut layer = |linear: &Linear| {
            linear.run(exec, &table, n, &mut projected);
            exec.fetch(&mut projected, n);
            let heads: Vec<Matrix> = (0..self.heads)
                .map(|h| {
                    for (i, to) in values.chunks_exact_mut(head).enumerate() {
                        to.copy_from_slice(&projected.row(i)[h * head..(h + 1) * head]);
                    }
                    exec.pack(&arena, self.format, n, head, &values)
                })
                .collect();
            RelativePositions { heads, farthest }
        };
        self.layers.iter().map(&mut layer).collect()
    }
}

/// Sines and cosines of a distance, in turn.
fn sinusoid(distance: f32, out: &mut [f32]) {
    let dim = out.len() as f32;
    for (i, pair) in out.chunks_exact_mut(2).enumerate() {
        let frequency = 1.0 / 10_000f32.powf(2.0 * i as f32 / dim);
        let angle = (distance * frequency) as f64;
        (pair[0], pair[1]) = (angle.sin() as f32, angle.cos() as f32);
    }
}
