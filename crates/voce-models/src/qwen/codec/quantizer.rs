//! Codes to rows: the two residual quantisers of the decoder, whose entries add up.

use voce_nn::{Formats, Linear, Loader, WeightError};

use super::config::CodecDecoderConfig;

/// Entries that were used less than this count as used this much.
const LEAST_USED: f32 = 1e-5;

/// The tables of all codebooks, and the projection of their sums.
pub(super) struct Quantizer {
    /// `[codebook][entry][width]`.
    tables: Vec<f32>,
    entries: usize,
    width: usize,
    codebooks: usize,
    /// Of the first codebook's entry and the others' sum, side by side.
    pub(super) proj: Linear,
}

/// A table of entries from their sums and how often each was used.
pub(super) fn table(l: &Loader, sum: &str, entries: usize, width: usize) -> Result<Vec<f32>, WeightError> {
    let mut values = l.tensor(sum, &[entries, width])?;
    let used = l.tensor("cluster_usage", &[entries])?;
    for (row, used) in values.chunks_exact_mut(width).zip(&used) {
        row.iter_mut().for_each(|v| *v /= used.max(LEAST_USED));
    }
    Ok(values)
}

impl Quantizer {
    /// Loads `rvq_first` and `rvq_rest`.
    pub(super) fn load(l: &Loader, c: &CodecDecoderConfig, f: Formats) -> Result<Self, WeightError> {
        let (width, out, codebooks) = (c.codebook_dim / 2, c.codebook_dim, c.num_quantizers);
        let mut tables = Vec::new();
        for book in 0..codebooks {
            let (part, layer) = if book == 0 { ("rvq_first", 0) } else { ("rvq_rest", book - 1) };
            let l = l.sub(part).sub("vq.layers").sub(layer).sub("_codebook");
            tables.append(&mut table(&l, "embedding_sum", c.codebook_size, width)?);
        }
        // Rows are few and their error reaches every sample: never below bf16.
        let proj = Linear::load_with(&l.sub("output_proj"), "joined", out, 2 * width, f.conv, || {
            let of = |part: &str| l.tensor(&format!("{part}.output_proj.weight"), &[out, width, 1]);
            let (first, rest) = (of("rvq_first")?, of("rvq_rest")?);
            let rows = first.chunks_exact(width).zip(rest.chunks_exact(width));
            Ok(rows.flat_map(|(a, b)| a.iter().chain(b).copied()).collect())
        })?;
        Ok(Self { tables, entries: c.codebook_size, width, codebooks, proj })
    }

    /// Values of a row that [`Quantizer::proj`] takes.
    pub(super) fn row(&self) -> usize {
        2 * self.width
    }

    /// Writes a row for each frame of codes.
    pub(super) fn embed(&self, codes: &[u32], rows: &mut [f32]) {
        for (codes, row) in codes.chunks_exact(self.codebooks).zip(rows.chunks_exact_mut(2 * self.width)) {
            let (first, rest) = row.split_at_mut(self.width);
            first.copy_from_slice(self.entry(0, codes[0]));
            rest.fill(0.0);
            for (book, &code) in codes.iter().enumerate().skip(1) {
                rest.iter_mut().zip(self.entry(book, code)).for_each(|(r, v)| *r += v);
            }
        }
    }

    fn entry(&self, book: usize, code: u32) -> &[f32] {
        assert!((code as usize) < self.entries, "code {code} of {} in codebook {book}", self.entries);
        &self.tables[(book * self.entries + code as usize) * self.width..][..self.width]
    }

    /// Bytes of the tables and the projection.
    pub(super) fn bytes(&self) -> usize {
        4 * self.tables.len() + self.proj.bytes()
    }
}
