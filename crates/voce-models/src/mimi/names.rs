//! Mimi's published file under the names that its parts are loaded by.

use std::sync::Arc;

use voce_nn::weights::{Tensor, Weights};
use voce_nn::{Loader, WeightError};

/// A published file, in which wrappers of convolutions and of projections show in the names.
struct PublishedNames {
    l: Loader,
}

/// The loader of a Mimi whose tensors have the names of the published file.
pub fn published(l: &Loader) -> Loader {
    l.with_source(Arc::new(PublishedNames { l: l.clone() }))
}

/// Other names under which a tensor may be found.
fn others(name: &str) -> Vec<String> {
    let (module, what) = name.rsplit_once('.').unwrap_or(("", name));
    if module.ends_with("self_attn.in_proj") {
        return vec![format!("{module}_{what}"), format!("{module}s.0.{what}")];
    }
    if module.ends_with("self_attn.out_proj") {
        return vec![format!("{module}s.0.{what}")];
    }
    for wrapper in ["conv", "convtr"] {
        if module.rsplit('.').next() == Some(wrapper) {
            return vec![format!("{module}.{wrapper}.{what}")];
        }
    }
    for (module, old) in [("cluster_usage", "cluster_size"), ("embedding_sum", "embed_sum")] {
        if let Some(prefix) = name.strip_suffix(module) {
            return vec![format!("{prefix}{old}")];
        }
    }
    Vec::new()
}

impl PublishedNames {
    fn find(&self, name: &str) -> String {
        let found = others(name).into_iter().find(|other| self.l.has(other));
        found.filter(|_| !self.l.has(name)).unwrap_or_else(|| name.to_owned())
    }
}

impl Weights for PublishedNames {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let name = self.find(name);
        if !self.l.has(&name) {
            return Ok(None);
        }
        let shape = self.l.shape(&name).filter(|s| !s.is_empty()).unwrap_or_else(|| expected.to_vec());
        Ok(Some(Tensor { values: self.l.tensor(&name, &shape)?, shape }))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.l.shape(&self.find(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_names_are_found() {
        for (here, there) in [
            ("encoder.model.0.conv.weight", "encoder.model.0.conv.conv.weight"),
            ("decoder.model.2.convtr.bias", "decoder.model.2.convtr.convtr.bias"),
            ("downsample.conv.conv.weight", "downsample.conv.conv.conv.weight"),
            ("upsample.convtr.convtr.weight", "upsample.convtr.convtr.convtr.weight"),
            ("x.layers.0.self_attn.in_proj.weight", "x.layers.0.self_attn.in_proj_weight"),
        ] {
            assert_eq!(others(here)[0], there);
        }
        assert!(others("quantizer.rvq_first.input_proj.weight").is_empty());
    }
}
