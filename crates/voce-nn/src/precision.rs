//! What precision a user asks for, and the storage format it means for each kind of weight.

use std::fmt;
use std::str::FromStr;

use voce_runtime::{Format, Isa, KvFormat};

use crate::ConvFormat;

/// The precision of a model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 32-bit floats: the reference.
    F32,
    /// bfloat16 everywhere.
    Bf16,
    /// Int8 linears; convolutions bf16 on AMX, else f32, and those of speech codecs int8 where f32 is slow.
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

    /// What `auto` stands for on an instruction set, and why: what ran fastest there of what sounds the same. The
    /// figures are in docs/performance.md.
    pub fn auto(isa: Isa) -> (Precision, &'static str) {
        match isa {
            Isa::Scalar => (
                Precision::Bf16,
                "without vector products of bytes, floats are several times as fast as int8; bf16 reads half of what f32 does",
            ),
            Isa::Neon => (
                Precision::Int8,
                "bytes are multiplied at the rate of f32, and a quarter of the memory is read",
            ),
            Isa::Dotprod => (
                Precision::Int8,
                "sdot multiplies four bytes for every float of f32, and a quarter of the memory is read",
            ),
            Isa::I8mm => (
                Precision::Int8,
                "smmla multiplies eight bytes for every float of f32, and a quarter of the memory is read",
            ),
            Isa::Avx2 => (
                Precision::Int8,
                "pairs of bytes are multiplied at twice the rate of f32, and a quarter of the memory is read",
            ),
            Isa::Avx512Bw => (
                Precision::Int8,
                "pairs of bytes are multiplied at 1.7 times the rate of f32, and a quarter of the memory is read",
            ),
            Isa::AvxVnni | Isa::Avx512 => (
                Precision::Int8,
                "VNNI multiplies four bytes at once, several times the rate of f32, and a quarter of the memory is read",
            ),
            Isa::Amx => (
                Precision::Int8,
                "tiles multiply bytes at twice the rate of bf16, and half of its memory is read",
            ),
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

    /// `auto` is int8, as on every CPU with vector products of bytes; [`Precision::auto`] knows the instruction set.
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
    /// Convolutions that make samples of a codec's latents.
    pub codec: ConvFormat,
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
        // Where registers are narrow or lack VNNI, convolutions in f32 would be the larger part of a codec's time.
        // Narrow ones gain nothing there by pairs of bytes and little by VNNI; a bound for all says the same samples on all.
        let codec = match isa {
            Isa::Dotprod | Isa::I8mm | Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Bw => {
                ConvFormat { format: Format::Int8, outputs: 64 }
            }
            Isa::Scalar | Isa::Neon | Isa::Avx512 | Isa::Amx => conv.into(),
        };
        let small = |backbone| Formats {
            backbone,
            linear: Format::Int8,
            conv,
            codec,
            embedding: Format::Bf16,
            kv: KvFormat::Bf16,
        };
        match precision {
            Precision::F32 => Formats {
                backbone: Format::F32,
                linear: Format::F32,
                conv: Format::F32,
                codec: Format::F32.into(),
                embedding: Format::F32,
                kv: KvFormat::F32,
            },
            Precision::Bf16 => Formats {
                backbone: Format::Bf16,
                linear: Format::Bf16,
                conv: Format::Bf16,
                codec: Format::Bf16.into(),
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

    /// Levels whose codecs convolve bytes.
    const BYTES: [Isa; 5] = [Isa::Dotprod, Isa::I8mm, Isa::Avx2, Isa::AvxVnni, Isa::Avx512Bw];

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
        assert!(
            [f.backbone, f.linear, f.conv, f.codec.format, f.embedding].iter().all(|x| *x == Format::F32)
        );
        assert_eq!(f.kv, KvFormat::F32);
    }

    #[test]
    fn auto_is_int8_wherever_bytes_have_vector_products() {
        for isa in Isa::ALL {
            let (precision, reason) = Precision::auto(isa);
            let wanted = if isa == Isa::Scalar { Precision::Bf16 } else { Precision::Int8 };
            assert_eq!(precision, wanted, "{isa}");
            assert!(!reason.is_empty());
        }
    }

    #[test]
    fn codecs_convolve_bytes_only_where_floats_are_slow_and_bytes_were_asked_for() {
        for isa in Isa::ALL {
            let narrow = BYTES.contains(&isa);
            for precision in Precision::ON_CPU {
                let f = Formats::new(precision, isa);
                let small = matches!(precision, Precision::Int8 | Precision::Int4);
                assert_eq!(
                    f.codec.format,
                    if narrow && small { Format::Int8 } else { f.conv },
                    "{precision} on {isa}"
                );
            }
        }
    }

    #[test]
    fn levels_that_convolve_bytes_say_the_same_samples() {
        for precision in Precision::ON_CPU {
            let codecs = BYTES.map(|isa| Formats::new(precision, isa).codec);
            assert!(codecs.iter().all(|codec| *codec == codecs[0]), "{precision}: {codecs:?}");
        }
    }
}
