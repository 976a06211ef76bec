//! Which instruction sets this CPU has, which one the process uses, and how to override it.

use std::fmt;
use std::str::FromStr;

use crate::RuntimeError;

/// The environment variable that forces an instruction set.
pub const CPU_ENV: &str = "VOCE_CPU";

/// An instruction set level, in the order in which the best is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Portable code.
    Scalar,
    /// 128-bit NEON, which every 64-bit ARM CPU has.
    Neon,
    /// NEON with products of four bytes at once (`sdot`): ARM's and Apple's CPUs since 2018.
    Dotprod,
    /// NEON with `sdot` and products of byte matrices (`smmla`): ARM's servers since 2020, Apple's M2.
    I8mm,
    /// 256-bit AVX2 with FMA.
    Avx2,
    /// AVX2 with the integer products of AVX-VNNI, still 256 bit: Intel's CPUs without AVX-512 since 2021.
    AvxVnni,
    /// 512-bit AVX-512 (F, BW, DQ, VL) without VNNI: Intel's servers of 2017.
    Avx512Bw,
    /// 512-bit AVX-512 (F, BW, DQ, VL) with VNNI.
    Avx512,
    /// AVX-512 plus AMX tiles for int8 and bfloat16.
    Amx,
}

impl Isa {
    /// Every level, weakest first.
    pub const ALL: [Isa; 9] = [
        Isa::Scalar,
        Isa::Neon,
        Isa::Dotprod,
        Isa::I8mm,
        Isa::Avx2,
        Isa::AvxVnni,
        Isa::Avx512Bw,
        Isa::Avx512,
        Isa::Amx,
    ];

    /// Whether this CPU (and operating system) can run the level.
    pub fn supported(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Isa::Avx2.supported() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bw => {
                Isa::Avx2.supported()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Isa::Avx512Bw.supported() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512.supported() && crate::simd::amx::permitted(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod => Isa::Neon.supported() && std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => Isa::Dotprod.supported() && std::arch::is_aarch64_feature_detected!("i8mm"),
            // Levels of other architectures.
            _ => false,
        }
    }

    /// The levels this CPU can run, weakest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.supported()).collect()
    }

    /// The best level of this CPU.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.supported()).unwrap_or(Isa::Scalar)
    }

    /// The level to use: `VOCE_CPU` if set (an error if the CPU lacks it), else the best.
    pub fn from_env() -> Result<Isa, RuntimeError> {
        match std::env::var(CPU_ENV) {
            Ok(name) if !name.is_empty() && name != "auto" => {
                let isa: Isa = name.parse()?;
                if isa.supported() { Ok(isa) } else { Err(RuntimeError::IsaUnsupported(isa)) }
            }
            _ => Ok(Isa::best()),
        }
    }

    /// The one asked for, else [`Isa::from_env`]'s.
    pub fn chosen(asked: Option<Isa>) -> Result<Isa, RuntimeError> {
        asked.map_or_else(Isa::from_env, Ok)
    }

    /// The name used in flags, environment and reports.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Dotprod => "dotprod",
            Isa::I8mm => "i8mm",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512Bw => "avx512bw",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = RuntimeError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Isa::ALL.into_iter().find(|isa| isa.name() == s).ok_or_else(|| RuntimeError::UnknownIsa(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_say_so() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse::<Isa>().unwrap(), isa);
        }
        let err = "sse9".parse::<Isa>().unwrap_err().to_string();
        assert!(err.contains("sse9") && err.contains("avx512"), "{err}");
    }

    #[test]
    fn scalar_is_always_there() {
        assert_eq!(Isa::available()[0], Isa::Scalar);
        assert!(Isa::best().supported());
    }
}
