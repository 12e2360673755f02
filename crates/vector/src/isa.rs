//! The instruction sets that the kernels are compiled for.

use std::fmt;
use std::sync::OnceLock;

/// An instruction set that the kernels are compiled for. Each kind of processor has its own ones,
/// in ascending order.
///
/// Results are equal bit for bit on the same instruction set. AVX-512, AVX2 and NEON use fused
/// multiply-add in linear layers and in attention (scores and weighted sums of values); the
/// portable kernels round each product before the addition. With BF16 and with AMX, products with
/// bf16 weights round the activations to bf16, and each adds in an order of its own. All other
/// kernels give the same bits on every instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain loops, for any processor.
    Portable,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same, and AVX-512 BF16: products of two bf16 numbers each.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// The same, and AMX: a matrix unit that multiplies tiles of bf16 numbers.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// NEON, with the products of bytes that the processor has (none, DotProd or I8MM). These are
    /// exact, so the bits do not depend on them.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// An invalid value of the environment variable `FORERUN_ISA`.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum IsaError {
    /// The value is not the name of an instruction set.
    #[error("FORERUN_ISA is {0:?}, but must be {names}", names = Isa::names())]
    Unknown(String),
    /// The processor does not support the instruction set.
    #[error(
        "FORERUN_ISA is {requested}, but this processor supports only {best} and lower: unset it, or \
         set it to a lower one"
    )]
    Missing { requested: Isa, best: Isa },
}

impl Isa {
    /// The instruction sets of this kind of processor, the best one last.
    #[cfg(target_arch = "x86_64")]
    const ALL: &[Self] = &[Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Amx];
    #[cfg(target_arch = "aarch64")]
    const ALL: &[Self] = &[Self::Portable, Self::Neon];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    const ALL: &[Self] = &[Self::Portable];

    /// Returns the best instruction set that this processor supports.
    #[must_use]
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(Self::detect)
    }

    #[cfg(target_arch = "x86_64")]
    fn detect() -> Self {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        let bf16 = is_x86_feature_detected!("avx512bf16");
        match (avx512, avx2) {
            (true, _) if bf16 && crate::amx::is_permitted() => Self::Amx,
            (true, _) if bf16 => Self::Avx512Bf16,
            (true, _) => Self::Avx512,
            (_, true) => Self::Avx2,
            _ => Self::Portable,
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn detect() -> Self {
        match std::arch::is_aarch64_feature_detected!("neon") {
            true => Self::Neon,
            false => Self::Portable,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn detect() -> Self {
        Self::Portable
    }

    /// Returns the instruction set that the environment variable `FORERUN_ISA` names, or the best
    /// one if it is not set.
    ///
    /// # Errors
    /// If the variable does not name an instruction set, or one that the processor does not
    /// support.
    pub fn from_environment() -> Result<Self, IsaError> {
        let best = Self::best();
        let Some(value) = std::env::var_os("FORERUN_ISA") else { return Ok(best) };
        let value = value.to_string_lossy().into_owned();
        let requested = Self::ALL.iter().copied().find(|isa| isa.to_string() == value);
        match requested {
            None => Err(IsaError::Unknown(value)),
            Some(requested) if requested > best => Err(IsaError::Missing { requested, best }),
            Some(requested) => Ok(requested),
        }
    }

    /// Returns all instruction sets that this processor supports, the best one last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.iter().copied().filter(|&isa| isa <= Self::best()).collect()
    }

    /// Returns whether linear layers and attention add products without rounding them first.
    #[must_use]
    pub fn is_fused(self) -> bool {
        self != Self::Portable
    }

    /// Returns whether activations are rounded to bf16 before their products with bf16 weights.
    #[must_use]
    pub fn rounds_to_bf16(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self, Self::Avx512Bf16 | Self::Amx);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Returns whether products with bf16 weights are computed by a matrix unit, in tiles of 32
    /// inputs.
    #[must_use]
    pub fn has_matrix_unit(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self == Self::Amx;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Returns the names of the instruction sets, such as `avx2 or portable`.
    fn names() -> String {
        let names = Self::ALL.iter().rev().map(ToString::to_string);
        let names: Vec<String> = names.collect();
        match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => names.concat(),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => "avx512bf16",
            #[cfg(target_arch = "x86_64")]
            Self::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_lists_the_names_of_this_kind_of_processor() {
        let names = if cfg!(target_arch = "x86_64") {
            "amx, avx512bf16, avx512, avx2 or portable"
        } else if cfg!(target_arch = "aarch64") {
            "neon or portable"
        } else {
            "portable"
        };
        let expected = format!("FORERUN_ISA is \"sse\", but must be {names}");
        assert_eq!(IsaError::Unknown("sse".into()).to_string(), expected);
    }
}
