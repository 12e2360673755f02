//! Where the scales and the integers of a block lie in its bytes. Reading and writing use the same
//! table.

use crate::BlockType;

pub(super) struct Layout {
    pub(super) scale: Scale,
    pub(super) minimum: Minimum,
    pub(super) groups: Groups,
    /// The number of weights in a group.
    pub(super) group: usize,
    /// The quants, in the order of the weights.
    pub(super) quants: Planes,
    pub(super) levels: Levels,
}

/// The scale of a whole block.
#[derive(Clone, Copy)]
pub(super) enum Scale {
    /// An f16 at this byte.
    Half(usize),
    /// The first byte is an exponent. Half of its power of two, because the levels are doubled.
    HalfPower,
}

/// The factor of a block's minima.
#[derive(Clone, Copy)]
pub(super) enum Minimum {
    None,
    /// An f16 at this byte.
    Half(usize),
    /// An f16 at this byte that is added, whereas the minima of other types are subtracted.
    Added(usize),
}

/// The integers that the groups of a block have.
#[derive(Clone, Copy)]
pub(super) enum Groups {
    /// None: the block is one group.
    One,
    /// Scales: the stored numbers minus `offset`, wrapped to 8 bits.
    Scales { stored: Planes, offset: u8 },
    /// Unsigned scales, and after them as many minima.
    ScalesAndMinima(Planes),
    /// Eight scales and eight minima of 6 bits, in 12 bytes from this one on.
    SixBit(usize),
}

/// Integers whose lowest bits are in the first plane, the next bits in the second.
pub(super) type Planes = &'static [Plane];

/// Some bits of each integer of a sequence. Of each `run` bytes, the lowest bits belong to `run`
/// successive integers, the next bits to the `run` integers after these, and so on.
#[derive(Clone, Copy)]
pub(super) struct Plane {
    /// The number of bits of an integer: 1, 2, 4 or 8.
    width: usize,
    /// The first byte.
    start: usize,
    /// The number of bytes.
    len: usize,
    run: usize,
}

/// What the quants of a block stand for: their levels, integers of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    /// A level is the quant minus this number, wrapped to 8 bits.
    Offset(u8),
    /// A level is the quant's entry in this table.
    Table(&'static [i8; 16]),
}

/// The levels of [`BlockType::IQ4_NL`] and [`BlockType::IQ4_XS`].
pub const IQ4_LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The levels of [`BlockType::MXFP4`]: the doubled values of E2M1. Negative zero is zero.
pub const MXFP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

const fn plane(width: usize, start: usize, len: usize, run: usize) -> Plane {
    Plane { width, start, len, run }
}

static Q4_0: Layout = Layout {
    scale: Scale::Half(0),
    minimum: Minimum::None,
    groups: Groups::One,
    group: 32,
    quants: &[plane(4, 2, 16, 16)],
    levels: Levels::Offset(8),
};

static Q4_1: Layout = Layout {
    minimum: Minimum::Added(2),
    quants: &[plane(4, 4, 16, 16)],
    levels: Levels::Offset(0),
    ..Q4_0
};

static Q5_0: Layout = Layout {
    quants: &[plane(4, 6, 16, 16), plane(1, 2, 4, 1)],
    levels: Levels::Offset(16),
    ..Q4_0
};

static Q5_1: Layout = Layout { quants: &[plane(4, 8, 16, 16), plane(1, 4, 4, 1)], ..Q4_1 };

static Q8_0: Layout = Layout { quants: &[plane(8, 2, 32, 32)], levels: Levels::Offset(0), ..Q4_0 };

static Q2_K: Layout = Layout {
    scale: Scale::Half(80),
    minimum: Minimum::Half(82),
    groups: Groups::ScalesAndMinima(&[plane(4, 0, 16, 16)]),
    group: 16,
    quants: &[plane(2, 16, 64, 32)],
    levels: Levels::Offset(0),
};

static Q3_K: Layout = Layout {
    scale: Scale::Half(108),
    minimum: Minimum::None,
    groups: Groups::Scales { stored: &[plane(4, 96, 8, 8), plane(2, 104, 4, 4)], offset: 32 },
    group: 16,
    quants: &[plane(2, 32, 64, 32), plane(1, 0, 32, 32)],
    levels: Levels::Offset(4),
};

static Q4_K: Layout = Layout {
    scale: Scale::Half(0),
    minimum: Minimum::Half(2),
    groups: Groups::SixBit(4),
    group: 32,
    quants: &[plane(4, 16, 128, 32)],
    levels: Levels::Offset(0),
};

static Q5_K: Layout = Layout { quants: &[plane(4, 48, 128, 32), plane(1, 16, 32, 32)], ..Q4_K };

static Q6_K: Layout = Layout {
    scale: Scale::Half(208),
    minimum: Minimum::None,
    groups: Groups::Scales { stored: &[plane(8, 192, 16, 16)], offset: 0 },
    group: 16,
    quants: &[plane(4, 0, 128, 64), plane(2, 128, 64, 32)],
    levels: Levels::Offset(32),
};

static IQ4_NL: Layout = Layout { levels: Levels::Table(&IQ4_LEVELS), ..Q4_0 };

static IQ4_XS: Layout = Layout {
    groups: Groups::Scales { stored: &[plane(4, 4, 4, 1), plane(2, 2, 2, 1)], offset: 32 },
    quants: &[plane(4, 8, 128, 16)],
    ..IQ4_NL
};

static MXFP4: Layout = Layout {
    scale: Scale::HalfPower,
    quants: &[plane(4, 1, 16, 16)],
    levels: Levels::Table(&MXFP4_LEVELS),
    ..Q4_0
};

impl Layout {
    pub(super) fn of(block_type: BlockType) -> &'static Self {
        match block_type {
            BlockType::Q4_0 => &Q4_0,
            BlockType::Q4_1 => &Q4_1,
            BlockType::Q5_0 => &Q5_0,
            BlockType::Q5_1 => &Q5_1,
            BlockType::Q8_0 => &Q8_0,
            BlockType::Q2_K => &Q2_K,
            BlockType::Q3_K => &Q3_K,
            BlockType::Q4_K => &Q4_K,
            BlockType::Q5_K => &Q5_K,
            BlockType::Q6_K => &Q6_K,
            BlockType::IQ4_NL => &IQ4_NL,
            BlockType::IQ4_XS => &IQ4_XS,
            BlockType::MXFP4 => &MXFP4,
        }
    }
}

impl Plane {
    /// Adds the plane's bits to the integers `out`, from bit `shift` on. Those bits must be zero.
    fn read(&self, block: &[u8], shift: usize, out: &mut [u8]) {
        let mask = u8::MAX >> (8 - self.width);
        let stored = block[self.start..][..self.len].chunks_exact(self.run);
        for (bytes, out) in stored.zip(out.chunks_exact_mut(self.run * (8 / self.width))) {
            for (part, out) in out.chunks_exact_mut(self.run).enumerate() {
                for (byte, out) in bytes.iter().zip(out) {
                    *out |= ((byte >> (part * self.width)) & mask) << shift;
                }
            }
        }
    }

    /// Adds the bits of `integers` from bit `shift` on to a block, whose bytes of this plane must
    /// be zero.
    fn write(&self, integers: &[u8], shift: usize, block: &mut [u8]) {
        let mask = u8::MAX >> (8 - self.width);
        let stored = block[self.start..][..self.len].chunks_exact_mut(self.run);
        for (bytes, integers) in stored.zip(integers.chunks_exact(self.run * (8 / self.width))) {
            for (part, integers) in integers.chunks_exact(self.run).enumerate() {
                for (byte, integer) in bytes.iter_mut().zip(integers) {
                    *byte |= ((integer >> shift) & mask) << (part * self.width);
                }
            }
        }
    }
}

pub(super) fn read_planes(planes: Planes, block: &[u8], out: &mut [u8]) {
    out.fill(0);
    let mut shift = 0;
    for plane in planes {
        plane.read(block, shift, out);
        shift += plane.width;
    }
}

/// Writes integers to a block whose bytes are zero.
pub(super) fn write_planes(planes: Planes, integers: &[u8], block: &mut [u8]) {
    let mut shift = 0;
    for plane in planes {
        plane.write(integers, shift, block);
        shift += plane.width;
    }
}

/// Reads eight scales and eight minima. The first four of each are the low 6 bits of a byte, whose
/// upper 2 bits belong to one of the last four. The last four bytes have the lower halves of these.
pub(super) fn read_six_bit(stored: &[u8], scales: &mut [u8], minima: &mut [u8]) {
    for index in 0..4 {
        let (scale, minimum, low) = (stored[index], stored[index + 4], stored[index + 8]);
        scales[index] = scale & 63;
        minima[index] = minimum & 63;
        scales[index + 4] = low & 15 | scale >> 6 << 4;
        minima[index + 4] = low >> 4 | minimum >> 6 << 4;
    }
}

/// Writes what [`read_six_bit`] reads.
pub(super) fn write_six_bit(scales: &[u8], minima: &[u8], stored: &mut [u8]) {
    for index in 0..4 {
        stored[index] = scales[index] | scales[index + 4] >> 4 << 6;
        stored[index + 4] = minima[index] | minima[index + 4] >> 4 << 6;
        stored[index + 8] = scales[index + 4] & 15 | minima[index + 4] << 4;
    }
}
