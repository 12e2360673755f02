//! The block types of GGUF files: quantised weights in blocks that share scales.

use std::fmt;
use std::str::FromStr;

/// A block type of ggml. A row of a matrix is a sequence of blocks, so its length must be a
/// multiple of [`Self::weights`].
#[expect(non_camel_case_types, reason = "the names that GGUF files and llama.cpp use")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockType {
    /// 4 bits and a scale for 32 weights.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32 weights.
    Q4_1,
    /// 5 bits and a scale for 32 weights.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32 weights.
    Q5_1,
    /// 8 bits and a scale for 32 weights.
    Q8_0,
    /// 2 bits, with 4-bit scales and minima for 16 weights, in blocks of 256.
    Q2_K,
    /// 3 bits, with 6-bit scales for 16 weights, in blocks of 256.
    Q3_K,
    /// 4 bits, with 6-bit scales and minima for 32 weights, in blocks of 256.
    Q4_K,
    /// 5 bits, with 6-bit scales and minima for 32 weights, in blocks of 256.
    Q5_K,
    /// 6 bits, with 8-bit scales for 16 weights, in blocks of 256.
    Q6_K,
    /// 4-bit indices of 16 fixed values and a scale for 32 weights.
    IQ4_NL,
    /// 4-bit indices of 16 fixed values, with 6-bit scales for 32 weights, in blocks of 256.
    IQ4_XS,
    /// 4-bit floats (E2M1) and a power of two for 32 weights, of the OCP Microscaling
    /// specification.
    MXFP4,
}

impl BlockType {
    /// All block types.
    pub const ALL: [Self; 13] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
    ];

    /// Returns the code in GGUF files (`ggml_type`).
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2_K => 10,
            Self::Q3_K => 11,
            Self::Q4_K => 12,
            Self::Q5_K => 13,
            Self::Q6_K => 14,
            Self::IQ4_NL => 20,
            Self::IQ4_XS => 23,
            Self::MXFP4 => 39,
        }
    }

    /// Returns the number of weights in a block.
    #[must_use]
    pub fn weights(self) -> usize {
        match self {
            Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q8_0
            | Self::IQ4_NL
            | Self::MXFP4 => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
        }
    }

    /// Returns the number of bytes of a block.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_XS => 136,
            Self::MXFP4 => 17,
        }
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names of the variants are the names of the types.
        formatter.write_str(&format!("{self:?}").to_ascii_lowercase())
    }
}

/// The error for an unknown name of a block type.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a block type")]
pub struct UnknownBlockType(pub String);

impl FromStr for BlockType {
    type Err = UnknownBlockType;

    fn from_str(text: &str) -> Result<Self, UnknownBlockType> {
        let found = Self::ALL.into_iter().find(|block| block.to_string() == text.to_lowercase());
        found.ok_or_else(|| UnknownBlockType(text.to_owned()))
    }
}
