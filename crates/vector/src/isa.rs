//! Which instructions the kernels use.

use std::fmt;
use std::sync::OnceLock;

/// An instruction set for which there are kernels.
///
/// Bits are equal within one: AVX-512 and AVX2 fuse multiplication and addition in linear layers,
/// the portable kernels round in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Whatever the compiler makes of plain loops.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
}

/// A value of `FORERUN_ISA` that cannot be had.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum IsaError {
    /// Not a name.
    #[error("FORERUN_ISA is {0:?}; it may be avx512, avx2 or portable")]
    Unknown(String),
    /// A name of what this processor does not have.
    #[error("FORERUN_ISA asks for {wanted}, but this processor's best is {best}")]
    Missing {
        /// What was asked for.
        wanted: Isa,
        /// What there is.
        best: Isa,
    },
}

impl Isa {
    /// The best that this processor has.
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

    /// The best, or the lower one that the environment variable `FORERUN_ISA` names.
    ///
    /// # Errors
    /// If the variable names nothing, or more than the processor has.
    pub fn from_environment() -> Result<Self, IsaError> {
        let best = Self::best();
        let Some(value) = std::env::var_os("FORERUN_ISA") else { return Ok(best) };
        let value = value.to_string_lossy().into_owned();
        let wanted = Self::all().into_iter().find(|isa| isa.to_string() == value);
        match wanted {
            None => Err(IsaError::Unknown(value)),
            Some(wanted) if wanted > best => Err(IsaError::Missing { wanted, best }),
            Some(wanted) => Ok(wanted),
        }
    }

    /// All instruction sets that this processor has, the best last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::all().into_iter().filter(|&isa| isa <= Self::best()).collect()
    }

    /// Whether a linear layer's products are added without rounding in between.
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
