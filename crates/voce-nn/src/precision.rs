//! What precision a user asks for, and the storage format it means for each kind of weight.

use std::fmt;
use std::str::FromStr;

use voce_runtime::{Format, Isa, KvFormat};

/// The precision of a model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 32-bit floats: the reference.
    F32,
    /// bfloat16 everywhere.
    Bf16,
    /// Int8 linears; convolutions bf16 on AMX, else f32.
    Int8,
    /// Four-bit backbone, the rest as int8.
    Int4,
    /// e4m3 linears, keys and values; on GPUs from Ada on.
    Fp8,
}

impl Precision {
    /// Every precision that CPUs have kernels for, most exact first.
    pub const ON_CPU: [Precision; 4] = [Precision::F32, Precision::Bf16, Precision::Int8, Precision::Int4];
    /// Every precision that some GPU has kernels for, most exact first.
    pub const ON_GPU: [Precision; 4] = [Precision::F32, Precision::Bf16, Precision::Int8, Precision::Fp8];

    /// The name used in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Int8 => "int8",
            Precision::Int4 => "int4",
            Precision::Fp8 => "fp8",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A precision name that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("unknown precision '{0}': use auto, f32, bf16, int8, int4 or, on a GPU, fp8")]
pub struct UnknownPrecision(pub String);

impl FromStr for Precision {
    type Err = UnknownPrecision;

    /// `auto` is int8: as fast as the kernels go without a loss that listeners hear.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        if s == "auto" {
            return Ok(Precision::Int8);
        }
        let mut all = Precision::ON_CPU.into_iter().chain([Precision::Fp8]);
        all.find(|p| p.name() == s).ok_or_else(|| UnknownPrecision(s.to_owned()))
    }
}

/// Storage formats of a model by role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formats {
    /// Large layers of the autoregressive backbone, read once per step.
    pub backbone: Format,
    /// Smaller linears around it.
    pub linear: Format,
    /// Convolutions.
    pub conv: Format,
    /// Embedding tables: f32 or bf16.
    pub embedding: Format,
    /// Keys and values.
    pub kv: KvFormat,
}

impl Formats {
    /// The formats of a precision on a GPU, which has tensor cores for bf16 and no kernels for four bits; [`Precision::Fp8`]
    /// wants a device that [has it](voce_runtime::cuda::DeviceInfo::has_fp8).
    pub fn on_device(precision: Precision) -> Self {
        Self::new(precision, Isa::Amx)
    }

    /// The formats of a precision on an instruction set, of which none has kernels for [`Precision::Fp8`].
    pub fn new(precision: Precision, isa: Isa) -> Self {
        // Without tiles a bf16 product is an f32 one that widens first: slower, and no more exact.
        let conv = if isa >= Isa::Amx { Format::Bf16 } else { Format::F32 };
        let small = |backbone| Formats {
            backbone,
            linear: Format::Int8,
            conv,
            embedding: Format::Bf16,
            kv: KvFormat::Bf16,
        };
        match precision {
            Precision::F32 => Formats {
                backbone: Format::F32,
                linear: Format::F32,
                conv: Format::F32,
                embedding: Format::F32,
                kv: KvFormat::F32,
            },
            Precision::Bf16 => Formats {
                backbone: Format::Bf16,
                linear: Format::Bf16,
                conv: Format::Bf16,
                embedding: Format::Bf16,
                kv: KvFormat::Bf16,
            },
            Precision::Fp8 => Formats { linear: Format::Fp8, kv: KvFormat::Fp8, ..small(Format::Fp8) },
            Precision::Int8 => small(Format::Int8),
            Precision::Int4 => small(Format::Int4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for p in Precision::ON_CPU.into_iter().chain(Precision::ON_GPU) {
            assert_eq!(p.name().parse::<Precision>().unwrap(), p);
        }
        assert_eq!("auto".parse::<Precision>().unwrap(), Precision::Int8);
        assert!("fp3".parse::<Precision>().unwrap_err().to_string().contains("fp3"));
    }

    #[test]
    fn f32_is_f32_everywhere() {
        let f = Formats::new(Precision::F32, Isa::Amx);
        assert!([f.backbone, f.linear, f.conv, f.embedding].iter().all(|x| *x == Format::F32));
        assert_eq!(f.kv, KvFormat::F32);
    }
}
