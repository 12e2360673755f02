//! The block types of GGUF files: quantised weights in blocks that share scales.

use crate::table_enum::table_enum;
use std::fmt;
use std::str::FromStr;

table_enum! {
    /// A block type of ggml. A row of a matrix is a sequence of blocks, so its length must be a
    /// multiple of [`Self::weights`].
    #[expect(non_camel_case_types, reason = "the names that GGUF files and llama.cpp use")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum BlockType;

    /// Returns the code in GGUF files, and the weights and the bytes of a block.
    fn format() -> (u32, usize, usize);

    /// 4 bits and a scale for 32 weights.
    Q4_0 = (2, 32, 18),
    /// 4 bits, a scale and a minimum for 32 weights.
    Q4_1 = (3, 32, 20),
    /// 5 bits and a scale for 32 weights.
    Q5_0 = (6, 32, 22),
    /// 5 bits, a scale and a minimum for 32 weights.
    Q5_1 = (7, 32, 24),
    /// 8 bits and a scale for 32 weights.
    Q8_0 = (8, 32, 34),
    /// 2 bits, with 4-bit scales and minima for 16 weights, in blocks of 256.
    Q2_K = (10, 256, 84),
    /// 3 bits, with 6-bit scales for 16 weights, in blocks of 256.
    Q3_K = (11, 256, 110),
    /// 4 bits, with 6-bit scales and minima for 32 weights, in blocks of 256.
    Q4_K = (12, 256, 144),
    /// 5 bits, with 6-bit scales and minima for 32 weights, in blocks of 256.
    Q5_K = (13, 256, 176),
    /// 6 bits, with 8-bit scales for 16 weights, in blocks of 256.
    Q6_K = (14, 256, 210),
    /// 4-bit indices of 16 fixed values and a scale for 32 weights.
    IQ4_NL = (20, 32, 18),
    /// 4-bit indices of 16 fixed values, with 6-bit scales for 32 weights, in blocks of 256.
    IQ4_XS = (23, 256, 136),
    /// 4-bit floats (E2M1) and a power of two for 32 weights, of the OCP Microscaling
    /// specification.
    MXFP4 = (39, 32, 17),
}

impl BlockType {
    /// Returns the code in GGUF files (`ggml_type`).
    #[must_use]
    pub fn code(self) -> u32 {
        self.format().0
    }

    /// Returns the number of weights in a block.
    #[must_use]
    pub fn weights(self) -> usize {
        self.format().1
    }

    /// Returns the number of bytes of a block.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.format().2
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
