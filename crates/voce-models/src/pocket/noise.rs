//! Gaussian noise for samplers: reproducible from a seed, whatever runs beside.

/// A generator of normal deviates (xoshiro256++ and Box-Muller).
#[derive(Clone, Debug)]
pub(super) struct Noise {
    state: [u64; 4],
    spare: Option<f32>,
}

impl Noise {
    /// The noise of passage `passage` of a request with `seed`.
    pub(super) fn new(seed: u64, passage: u64) -> Self {
        // splitmix64 spreads the two numbers over the state.
        let mut x = seed ^ passage.wrapping_mul(0xd134_2543_de82_ef95);
        let state = std::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Self { state, spare: None }
    }

    fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    fn normal(&mut self) -> f32 {
        if let Some(v) = self.spare.take() {
            return v;
        }
        let unit = |b: u64| ((b >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let (u, v) = (unit(self.bits()), unit(self.bits()));
        let r = (-2.0 * u.ln()).sqrt();
        let (sin, cos) = (2.0 * std::f64::consts::PI * v).sin_cos();
        self.spare = Some((r * sin) as f32);
        (r * cos) as f32
    }

    /// Fills `out` with deviates of standard deviation `std`, drawn again while beyond `clamp`.
    pub(super) fn fill(&mut self, std: f32, clamp: Option<f32>, out: &mut [f32]) {
        if std == 0.0 {
            return out.fill(0.0);
        }
        for o in out {
            *o = loop {
                let v = self.normal() * std;
                if clamp.is_none_or(|c| v.abs() <= c) {
                    break v;
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviates_are_normal_reproducible_and_differ_by_passage() {
        let draw = |seed, passage| {
            let mut v = vec![0f32; 20_000];
            Noise::new(seed, passage).fill(0.5, None, &mut v);
            v
        };
        let v = draw(1, 0);
        let mean = v.iter().sum::<f32>() / v.len() as f32;
        let var = v.iter().map(|x| x * x).sum::<f32>() / v.len() as f32;
        assert!(mean.abs() < 0.02 && (var - 0.25).abs() < 0.01, "{mean} {var}");
        assert_eq!(v, draw(1, 0));
        assert_ne!(v, draw(1, 1));
        assert_ne!(v, draw(2, 0));
    }

    #[test]
    fn the_clamp_holds_and_zero_is_silent() {
        let mut v = vec![1f32; 1000];
        Noise::new(3, 0).fill(1.0, Some(0.7), &mut v);
        assert!(v.iter().all(|x| x.abs() <= 0.7));
        Noise::new(3, 0).fill(0.0, None, &mut v);
        assert!(v.iter().all(|&x| x == 0.0));
    }
}
