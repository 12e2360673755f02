//! Convolutions over the rows of a block.

use super::Isa;
use forerun_vector::{Lanes, Vectorized, vectorize};

/// A convolution over the rows of a block ([`forerun_formats::BlockConv`]).
pub(crate) struct BlockConvolution<'a> {
    /// The stored numbers: `[taps, hidden]`.
    pub(crate) base: &'a [f32],
    /// The rows' own numbers: `[taps, groups]`, at the same place in rows of `own_width` numbers.
    pub(crate) own: &'a [f32],
    pub(crate) own_width: usize,
    /// The number of channels of a group.
    pub(crate) group_size: usize,
    /// The index of each row in its block.
    pub(crate) block_rows: &'a [usize],
}

/// Computes `out[i] = Σ_t (base[t] + own[i][t]) · x[i − t]`, in ascending order of taps. Rows
/// before the block are zeros. `x`, `out`: `[rows, hidden]`.
pub(crate) fn convolve_block(isa: Isa, conv: &BlockConvolution<'_>, x: &[f32], out: &mut [f32]) {
    vectorize(isa, ConvolveBlock { conv, x, out });
}

struct ConvolveBlock<'a> {
    conv: &'a BlockConvolution<'a>,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Vectorized for ConvolveBlock<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { conv, x, out } = self;
        let &BlockConvolution { base, own, own_width, group_size, block_rows } = conv;
        let size = x.len() / block_rows.len().max(1);
        let groups = size / group_size;
        let rows = out.chunks_exact_mut(size).zip(block_rows).enumerate();
        for (row, (out, &in_block)) in rows {
            let own = &own[row * own_width..];
            for (tap, base) in base.chunks_exact(size).take(in_block + 1).enumerate() {
                let x = &x[(row - tap) * size..][..size];
                let own = &own[tap * groups..][..groups];
                let channels = out.chunks_exact_mut(group_size).zip(x.chunks_exact(group_size));
                let channels = channels.zip(base.chunks_exact(group_size)).zip(own);
                for (((out, x), base), own) in channels {
                    for ((out, &x), &base) in out.iter_mut().zip(x).zip(base) {
                        let product = (base + own) * x;
                        *out = if tap == 0 { product } else { *out + product };
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_those_before_them_in_their_block() {
        // Two channels in two groups, two taps, and blocks of two rows and of one.
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let base = [1.0, 10.0, 100.0, 1000.0];
        let own = [0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0];
        let (group_size, own_width) = (1, 4);
        let conv = BlockConvolution {
            base: &base,
            own: &own,
            own_width,
            group_size,
            block_rows: &[0, 1, 0],
        };
        let mut out = [f32::NAN; 6];
        convolve_block(Isa::best(), &conv, &x, &mut out);
        assert_eq!(out, [1.5, 20.0, 3.0 + 100.0, 40.0 + 2002.0, 5.0, 66.0]);
    }
}
