//! The instruction sets that the kernels are compiled for.

use std::fmt;
use std::sync::OnceLock;

/// An instruction set that the kernels are compiled for.
///
/// Results are equal bit for bit on the same instruction set. AVX-512 and AVX2 use fused multiply-add
/// in linear layers and in attention (scores and weighted sums of values); the portable kernels round
/// each product before the addition. All other kernels give the same bits on every instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain loops, for any processor.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
}

/// An invalid value of the environment variable `FORERUN_ISA`.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum IsaError {
    /// The value is not the name of an instruction set.
    #[error("FORERUN_ISA is {0:?}, but must be avx512, avx2 or portable")]
    Unknown(String),
    /// The processor does not support the instruction set.
    #[error(
        "FORERUN_ISA is {requested}, but this processor supports only {best} and lower: unset it, or \
         set it to a lower one"
    )]
    Missing {
        /// The requested instruction set.
        requested: Isa,
        /// The best instruction set of this processor.
        best: Isa,
    },
}

impl Isa {
    /// Returns the best instruction set that this processor supports.
    #[must_use]
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(Self::detect)
    }

    fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni");
            if avx512 {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// Returns the instruction set that the environment variable `FORERUN_ISA` names, or the best
    /// one if it is not set.
    ///
    /// # Errors
    /// If the variable does not name an instruction set, or one that the processor does not support.
    pub fn from_environment() -> Result<Self, IsaError> {
        let best = Self::best();
        let Some(value) = std::env::var_os("FORERUN_ISA") else { return Ok(best) };
        let value = value.to_string_lossy().into_owned();
        let requested = Self::all().into_iter().find(|isa| isa.to_string() == value);
        match requested {
            None => Err(IsaError::Unknown(value)),
            Some(requested) if requested > best => Err(IsaError::Missing { requested, best }),
            Some(requested) => Ok(requested),
        }
    }

    /// Returns all instruction sets that this processor supports, the best one last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::all().into_iter().filter(|&isa| isa <= Self::best()).collect()
    }

    /// Returns whether linear layers and attention add products without rounding them first.
    #[must_use]
    pub fn is_fused(self) -> bool {
        self != Self::Portable
    }

    fn all() -> [Self; 3] {
        [Self::Portable, Self::Avx2, Self::Avx512]
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        })
    }
}
