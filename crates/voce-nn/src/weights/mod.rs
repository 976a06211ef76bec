//! Weights by name: where tensors come from, and errors that say which one is wrong.

mod gguf_file;
mod gguf_head;
mod random;
mod safetensors_file;
mod sharded;
mod span;
mod tar_file;
mod torch_file;
mod torch_pickle;
mod zip_index;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use gguf_file::GgufFile;
pub use gguf_head::{MAX_GGUF_DIMENSIONS, MAX_GGUF_ENTRIES, MAX_GGUF_NAME, MAX_GGUF_TENSORS};
pub use random::RandomWeights;
pub use safetensors_file::SafetensorsFile;
pub use sharded::{MAX_SHARDS, ShardedSafetensors};
pub use span::FileSpan;
pub use tar_file::{MAX_HEADER_BYTES, MAX_MEMBERS, MAX_RATIO, MAX_UNPACKED, TarFile};
pub use torch_file::TorchFile;
pub use torch_pickle::{MAX_NAME, MAX_OPCODES, MAX_PICKLE, MAX_TENSORS};

use voce_runtime::cuda::{CudaError, Device};
use voce_runtime::{Format, Matrix, Table, WeightArena};

use crate::PackedCache;

/// Why weights cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    /// A tensor the configuration asks for is not in the file.
    #[error(
        "tensor '{name}' is missing (expected shape {expected:?}): is the file complete and of this model?"
    )]
    Missing {
        /// Its name.
        name: String,
        /// The shape asked for.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the configuration says.
    #[error(
        "tensor '{name}' has shape {got:?}, expected {expected:?}: the config does not belong to these weights"
    )]
    Shape {
        /// Its name.
        name: String,
        /// The shape asked for.
        expected: Vec<usize>,
        /// The shape found.
        got: Vec<usize>,
    },
    /// A tensor of a type that weights cannot have.
    #[error("tensor '{name}' has type {dtype}, expected a floating point type")]
    Type {
        /// Its name.
        name: String,
        /// The type found.
        dtype: String,
    },
    /// Not a number among the weights.
    #[error(
        "tensor '{name}' holds {count} values that are NaN or infinite: the file is damaged, fetch it again"
    )]
    NotFinite {
        /// Its name.
        name: String,
        /// How many.
        count: usize,
    },
    /// The file is not a safetensors file, or is cut short.
    #[error("{path}: not a whole safetensors file ({reason}): fetch it again")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file is not a GGUF file, or is cut short.
    #[error("{path}: not a whole GGUF file ({reason}): fetch it again")]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An archive or a checkpoint in it that cannot be read.
    #[error("{path}: {reason}")]
    Archive {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A checkpoint that is a program.
    #[error(
        "{path}: this checkpoint would run code ({what}): only plain tensors are read; do not trust this file"
    )]
    Code {
        /// The file.
        path: PathBuf,
        /// What it would do.
        what: String,
    },
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's word.
        source: std::io::Error,
    },
    /// A device cannot hold the weights.
    #[error(transparent)]
    Device(#[from] CudaError),
}

/// Raw values of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Values, row-major.
    pub values: Vec<f32>,
}

/// A place tensors come from.
pub trait Weights: Send + Sync {
    /// The tensor, or `None` if it is not there. `expected` is a hint for sources that make tensors up.
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError>;

    /// The shape of a tensor, if it is there.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;
}

/// Opens a file of weights, GGUF by its first bytes and safetensors else.
pub fn open(path: &Path) -> Result<Arc<dyn Weights>, WeightError> {
    Ok(if gguf_file::is_gguf(path)? {
        Arc::new(GgufFile::open(path)?)
    } else {
        Arc::new(SafetensorsFile::open(path)?)
    })
}

/// Names and shapes of all tensors of a file that [`open`] opens.
pub fn shapes(path: &Path) -> Result<Vec<(String, Vec<usize>)>, WeightError> {
    let owned = |(name, shape): (&str, &[usize])| (name.to_owned(), shape.to_vec());
    Ok(if gguf_file::is_gguf(path)? {
        GgufFile::open(path)?.tensors().map(owned).collect()
    } else {
        SafetensorsFile::open(path)?.tensors().map(owned).collect()
    })
}

/// Loads tensors under a prefix and packs them.
#[derive(Clone)]
pub struct Loader {
    source: Arc<dyn Weights>,
    arena: Arc<WeightArena>,
    cache: Option<Arc<PackedCache>>,
    prefix: String,
}

impl Loader {
    /// A loader at the root of `source`.
    pub fn new(source: Arc<dyn Weights>) -> Self {
        Self { source, arena: Arc::new(WeightArena::new()), cache: None, prefix: String::new() }
    }

    /// The same loader with its matrices on a device.
    pub fn on(mut self, device: Arc<Device>) -> Self {
        self.arena = Arc::new(WeightArena::on(device));
        self.cache = None;
        self
    }

    /// The same loader with packed weights kept in a cache.
    pub fn with_cache(mut self, cache: Arc<PackedCache>) -> Self {
        self.cache = Some(cache);
        self
    }

    /// A loader at the root of another source whose matrices go where this one's go.
    pub fn with_source(&self, source: Arc<dyn Weights>) -> Self {
        Self { source, prefix: String::new(), ..self.clone() }
    }

    /// Where the tensors come from.
    pub fn source(&self) -> Arc<dyn Weights> {
        self.source.clone()
    }

    /// A loader for names that begin with `part.`.
    pub fn sub(&self, part: impl std::fmt::Display) -> Self {
        Self {
            source: self.source.clone(),
            arena: self.arena.clone(),
            cache: self.cache.clone(),
            prefix: self.name(&part.to_string()) + ".",
        }
    }

    /// A loader of the same tensors whose packed weights have memory of their own, for those soon dropped.
    pub fn apart(&self) -> Self {
        let arena = self.arena.device().map_or_else(WeightArena::new, |d| WeightArena::on(d.clone()));
        Self { arena: Arc::new(arena), ..self.clone() }
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whether a tensor is there.
    pub fn has(&self, name: &str) -> bool {
        self.source.shape(&self.name(name)).is_some()
    }

    /// The shape of a tensor, if it is there.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.source.shape(&self.name(name))
    }

    /// A tensor of exactly this shape, all finite.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let name = self.name(name);
        let Some(t) = self.source.get(&name, shape)? else {
            return Err(WeightError::Missing { name, expected: shape.to_vec() });
        };
        if t.shape != shape {
            return Err(WeightError::Shape { name, expected: shape.to_vec(), got: t.shape });
        }
        let count = t.values.iter().filter(|v| !v.is_finite()).count();
        if count > 0 {
            return Err(WeightError::NotFinite { name, count });
        }
        Ok(t.values)
    }

    /// A tensor that may be absent.
    pub fn optional(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>, WeightError> {
        if self.has(name) { self.tensor(name, shape).map(Some) } else { Ok(None) }
    }

    /// Packs the row-major `[n][k]` values that `make` gives, or takes them from the cache, where they are
    /// known by `name`.
    pub fn packed(
        &self,
        name: &str,
        format: Format,
        n: usize,
        k: usize,
        make: impl FnOnce() -> Result<Vec<f32>, WeightError>,
    ) -> Result<Matrix, WeightError> {
        let Some(cache) = &self.cache else {
            return self.pack(format, n, k, &make()?);
        };
        let name = self.name(name);
        if let Some(matrix) = cache.get(&self.arena, &name, format, n, k) {
            return Ok(matrix);
        }
        let matrix = self.pack(format, n, k, &make()?)?;
        cache.put(&name, &matrix);
        Ok(matrix)
    }

    /// An embedding table, f32 or bf16, where matrices go.
    pub fn table(&self, name: &str, rows: usize, dim: usize, format: Format) -> Result<Table, WeightError> {
        self.table_of(&self.tensor(name, &[rows, dim])?, rows, dim, format)
    }

    /// An embedding table from values that are already at hand.
    pub fn table_of(
        &self,
        values: &[f32],
        rows: usize,
        dim: usize,
        format: Format,
    ) -> Result<Table, WeightError> {
        Ok(Table::new(&self.arena, format, rows, dim, values)?)
    }

    /// Packs row-major `[n][k]` values.
    pub fn pack(&self, format: Format, n: usize, k: usize, values: &[f32]) -> Result<Matrix, WeightError> {
        Ok(Matrix::pack(&self.arena, format, n, k, values)?)
    }
}
