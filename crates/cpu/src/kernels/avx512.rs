//! Linear kernels for AVX-512 with VNNI: two tiles × up to twelve rows in registers.

use super::LANES;
use super::activations::QuantizedRows;
use super::block_format::{BlockFormat, CHUNK, GROUPS, Scales};
use super::operands::{Operands, PrefetchPlan, TileSums, UNPACKED_INPUTS, UnpackedTile};
use forerun_formats::{BlockType, QUANT_BLOCK as BLOCK, WeightType};
use std::arch::x86_64::*;
use std::ops::Range;

/// Largest number of rows of a row block.
pub(super) const ROW_BLOCK: usize = 12;

/// How far ahead activations are prefetched, in bytes.
const PREFETCH_X: usize = 1024;

/// Adds the products of an input range to the sums of both tiles, for every row of the block. The
/// first range starts from zero.
///
/// # Safety
/// The processor must have AVX-512 F, BW, DQ, VL and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn compute(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    // SAFETY: this function enables the features, and `Operands` guarantees the kernels' bounds.
    unsafe {
        match operands.weight_type {
            WeightType::F32 => by_rows_of_floats::<F32>(operands, sums),
            WeightType::Bf16 => by_rows_of_floats::<Bf16>(operands, sums),
            WeightType::F16 => by_rows_of_floats::<F16>(operands, sums),
            WeightType::Quantized(block_type) => match operands.unpacked {
                None => with_block_type(block_type, Compute { operands, sums }),
                Some(_) => compute_unpacked(block_type, operands, sums),
            },
        }
    }
}

/// Computes with unpacked tiles. Unpacked, types differ only by their number of scales, and by
/// whether they have minima or a zero: one type stands for all of its kind.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn compute_unpacked(
    block_type: BlockType,
    operands: &Operands<'_>,
    sums: &mut [TileSums; 2],
) {
    use BlockType as T;
    let format = BlockFormat::of(block_type);
    // SAFETY: as in `compute`.
    unsafe {
        match (format.scales_per_block(), format.scales.has_minima()) {
            (1, false) => Blocks::<{ T::Q4_0 as usize }, true>::by_many_rows(operands, sums),
            (1, true) => Blocks::<{ T::Q4_1 as usize }, true>::by_many_rows(operands, sums),
            (_, false) => Blocks::<{ T::Q3_K as usize }, true>::by_many_rows(operands, sums),
            (_, true) => Blocks::<{ T::Q2_K as usize }, true>::by_many_rows(operands, sums),
        }
    }
}

/// Computes as [`compute`] does, with the instructions for bf16.
///
/// # Safety
/// The processor must have AVX-512 F, BW, DQ, VL, VNNI and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
pub(crate) unsafe fn compute_with_bf16(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    // SAFETY: as in `compute`.
    unsafe {
        if operands.weight_type != WeightType::Bf16 {
            return compute(operands, sums);
        }
        match operands.rows {
            1 => bf16_pairs::<1>(operands, sums),
            2 => bf16_pairs::<2>(operands, sums),
            3 => bf16_pairs::<3>(operands, sums),
            4 => bf16_pairs::<4>(operands, sums),
            5 => bf16_pairs::<5>(operands, sums),
            6 => bf16_pairs::<6>(operands, sums),
            7 => bf16_pairs::<7>(operands, sums),
            8 => bf16_pairs::<8>(operands, sums),
            9 => bf16_pairs::<9>(operands, sums),
            10 => bf16_pairs::<10>(operands, sums),
            11 => bf16_pairs::<11>(operands, sums),
            _ => bf16_pairs::<12>(operands, sums),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn by_rows_of_floats<W: Widen>(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    // SAFETY: as in `compute`.
    unsafe {
        match operands.rows {
            1 => floats::<1, W>(operands, sums),
            2 => floats::<2, W>(operands, sums),
            3 => floats::<3, W>(operands, sums),
            4 => floats::<4, W>(operands, sums),
            5 => floats::<5, W>(operands, sums),
            6 => floats::<6, W>(operands, sums),
            7 => floats::<7, W>(operands, sums),
            8 => floats::<8, W>(operands, sums),
            9 => floats::<9, W>(operands, sums),
            10 => floats::<10, W>(operands, sums),
            11 => floats::<11, W>(operands, sums),
            _ => floats::<12, W>(operands, sums),
        }
    }
}

/// Unpacks a range of inputs of a tile. The range starts with a chunk. `inputs` is the number of
/// inputs of the whole tile.
///
/// # Safety
/// The processor must have AVX-512 F, BW, DQ, VL and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn unpack(
    block_type: BlockType,
    tile: &[u8],
    inputs: usize,
    range: &Range<usize>,
    unpacked: &mut UnpackedTile,
) {
    // SAFETY: as in `compute`.
    unsafe { with_block_type(block_type, Unpack { tile, inputs, range, unpacked }) }
}

/// What is done for one block type.
trait ForBlockType {
    /// # Safety
    /// The processor must have AVX-512 F, BW, DQ, VL and VNNI.
    unsafe fn run<const T: usize>(self);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn with_block_type(block_type: BlockType, work: impl ForBlockType) {
    use BlockType as T;
    // SAFETY: as in `compute`.
    unsafe {
        match block_type {
            T::Q4_0 => work.run::<{ T::Q4_0 as usize }>(),
            T::Q4_1 => work.run::<{ T::Q4_1 as usize }>(),
            T::Q5_0 => work.run::<{ T::Q5_0 as usize }>(),
            T::Q5_1 => work.run::<{ T::Q5_1 as usize }>(),
            T::Q8_0 => work.run::<{ T::Q8_0 as usize }>(),
            T::Q2_K => work.run::<{ T::Q2_K as usize }>(),
            T::Q3_K => work.run::<{ T::Q3_K as usize }>(),
            T::Q4_K => work.run::<{ T::Q4_K as usize }>(),
            T::Q5_K => work.run::<{ T::Q5_K as usize }>(),
            T::Q6_K => work.run::<{ T::Q6_K as usize }>(),
            T::IQ4_NL => work.run::<{ T::IQ4_NL as usize }>(),
            T::IQ4_XS => work.run::<{ T::IQ4_XS as usize }>(),
            T::MXFP4 => work.run::<{ T::MXFP4 as usize }>(),
        }
    }
}

struct Compute<'a, 'b> {
    operands: &'a Operands<'b>,
    sums: &'a mut [TileSums; 2],
}

impl ForBlockType for Compute<'_, '_> {
    #[inline(always)]
    unsafe fn run<const T: usize>(self) {
        let Self { operands, sums } = self;
        // SAFETY: the caller guarantees the features.
        unsafe { Blocks::<T, false>::by_rows(operands, sums) }
    }
}

struct Unpack<'a> {
    tile: &'a [u8],
    inputs: usize,
    range: &'a Range<usize>,
    unpacked: &'a mut UnpackedTile,
}

impl ForBlockType for Unpack<'_> {
    #[inline(always)]
    unsafe fn run<const T: usize>(self) {
        // SAFETY: the caller guarantees the features.
        unsafe { Blocks::<T, false>::unpack(self) }
    }
}

/// Widening of a float type to f32: 16 lanes of two adjacent inputs.
trait Widen {
    /// Bytes of one input in a tile.
    const BYTES: usize;

    /// Loads and widens the inputs `2 · pair` and `2 · pair + 1`.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, and `tile` must hold both inputs.
    unsafe fn pair(tile: *const u8, pair: usize) -> [__m512; 2];
}

struct F32;
struct Bf16;
struct F16;

impl Widen for F32 {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [__m512; 2] {
        // SAFETY: the caller guarantees the features and the inputs; tiles are aligned to 64 bytes.
        unsafe {
            let at = tile.add(pair * 128).cast::<f32>();
            [_mm512_load_ps(at), _mm512_load_ps(at.add(16))]
        }
    }
}

impl Widen for Bf16 {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [__m512; 2] {
        // SAFETY: the caller guarantees the features and the inputs. The two inputs of a lane are
        // the halves of one 32-bit number.
        unsafe {
            let both = _mm512_load_si512(tile.add(pair * 64).cast());
            let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(odd)]
        }
    }
}

impl Widen for F16 {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [__m512; 2] {
        // SAFETY: the caller guarantees the features and the inputs.
        //
        // Widening is exact, so the rounding mode does not matter. This form reads memory directly,
        // while `_mm512_cvtph_ps` needs an additional load and a shuffle.
        //
        // Kernels do not use `map` on arrays: it does not have their target features, so if the
        // compiler does not inline it, every number costs a call.
        unsafe {
            let at = tile.add(pair * 64).cast::<__m256i>();
            let (even, odd) = (_mm256_load_si256(at), _mm256_load_si256(at.add(1)));
            [
                _mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>(even),
                _mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>(odd),
            ]
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn floats<const R: usize, W: Widen>(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    let Operands { tiles, inputs, start, ref input_range, .. } = *operands;
    let plan = operands.prefetch_plan();
    let x = &operands.activations.floats[start..start + R * inputs];
    debug_assert!(tiles.iter().all(|tile| tile.len() >= inputs * W::BYTES));
    let x = x[input_range.start * R..input_range.end * R].as_ptr();
    let [first, second] = tiles.map(|tile| tile[input_range.start * W::BYTES..].as_ptr());
    let [mut left, mut right] = load::<R>(input_range, sums);
    for pair in 0..input_range.len() / 2 {
        // SAFETY: both tiles hold the inputs of the range, and `x` holds R numbers for each input.
        // A prefetch may use any address.
        unsafe {
            prefetch(plan, pair * W::BYTES / 32, W::BYTES / 32);
            for line in (0..2 * R).step_by(16) {
                let at = x.wrapping_add(pair * 2 * R + line);
                _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>().wrapping_add(PREFETCH_X));
            }
            let (l, r) = (W::pair(first, pair), W::pair(second, pair));
            for odd in 0..2 {
                for row in 0..R {
                    let x = _mm512_set1_ps(*x.add((pair * 2 + odd) * R + row));
                    left[row] = _mm512_fmadd_ps(x, l[odd], left[row]);
                    right[row] = _mm512_fmadd_ps(x, r[odd], right[row]);
                }
            }
        }
    }
    store(&[left, right], sums);
}

/// Adds the products of two inputs at a time, with the activations rounded to bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
unsafe fn bf16_pairs<const R: usize>(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    const PAIR_BYTES: usize = 4 * LANES;
    let Operands { tiles, inputs, start, ref input_range, .. } = *operands;
    let plan = operands.prefetch_plan();
    let (pairs, first_pair) = (inputs / 2, input_range.start / 2);
    let x = &operands.activations.pairs[start / 2..start / 2 + R * pairs];
    debug_assert!(tiles.iter().all(|tile| tile.len() >= pairs * PAIR_BYTES));
    let x = x[first_pair * R..input_range.end / 2 * R].as_ptr();
    let [first, second] = tiles.map(|tile| tile[first_pair * PAIR_BYTES..].as_ptr());
    let [mut left, mut right] = load::<R>(input_range, sums);
    for pair in 0..input_range.len() / 2 {
        // SAFETY: both tiles hold the inputs of the range, and `x` holds R pairs for each two
        // inputs. A prefetch may use any address.
        unsafe {
            prefetch(plan, pair, 1);
            let x = x.add(pair * R);
            _mm_prefetch::<_MM_HINT_T0>(x.cast::<i8>().wrapping_add(PREFETCH_X));
            let load = |tile: *const u8| -> __m512bh {
                std::mem::transmute(_mm512_load_si512(tile.add(pair * PAIR_BYTES).cast()))
            };
            let (l, r) = (load(first), load(second));
            for row in 0..R {
                let x: __m512bh =
                    std::mem::transmute(_mm512_set1_epi32((*x.add(row)).cast_signed()));
                left[row] = _mm512_dpbf16_ps(left[row], l, x);
                right[row] = _mm512_dpbf16_ps(right[row], r, x);
            }
        }
    }
    store(&[left, right], sums);
}

/// One tile of a block type, and what to prefetch during its computation.
struct Tile<'a> {
    start: *const u8,
    inputs: usize,
    unpacked: Option<&'a UnpackedTile>,
    /// The address to prefetch for the first line of `first_chunk`.
    prefetch: *const u8,
    /// How far to advance that address for every line.
    stride: usize,
    first_chunk: usize,
    /// The cache lines of a whole chunk.
    chunk_lines: usize,
    /// The zero of the quants, or 0 if they have none.
    zero: i32,
}

/// A place in a chunk: a block of 32 inputs of a tile, and what to prefetch meanwhile. If the tile
/// is unpacked, `quants` has a byte for each quant, and `scales` and `minima` have f32.
struct Place {
    /// The lower bits of the quants; the upper bits follow.
    quants: *const u8,
    scales: *const u8,
    minima: *const u8,
    /// The chunk's scales of scales and of minima.
    supers: [__m512; 2],
    prefetch: *const u8,
}

/// The kernel of a block type, given by its place in [`BlockType::ALL`], for tiles as they are
/// stored or unpacked.
struct Blocks<const T: usize, const UNPACKED: bool>;

impl<const T: usize, const UNPACKED: bool> Blocks<T, UNPACKED> {
    const FORMAT: BlockFormat = BlockFormat::of(BlockType::ALL[T]);

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn by_rows(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
        // SAFETY: as in `compute`.
        unsafe {
            match operands.rows {
                1 => Self::blocks::<1>(operands, sums),
                2 => Self::blocks::<2>(operands, sums),
                3 => Self::blocks::<3>(operands, sums),
                4 => Self::blocks::<4>(operands, sums),
                5 => Self::blocks::<5>(operands, sums),
                6 => Self::blocks::<6>(operands, sums),
                7 => Self::blocks::<7>(operands, sums),
                8 => Self::blocks::<8>(operands, sums),
                9 => Self::blocks::<9>(operands, sums),
                10 => Self::blocks::<10>(operands, sums),
                11 => Self::blocks::<11>(operands, sums),
                _ => Self::blocks::<12>(operands, sums),
            }
        }
    }

    /// Computes a row block of several. Each has at least half as many rows as the largest one,
    /// because their sizes are about equal.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn by_many_rows(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
        assert!(operands.rows >= ROW_BLOCK / 2);
        // SAFETY: as in `compute`.
        unsafe {
            match operands.rows {
                6 => Self::blocks::<6>(operands, sums),
                7 => Self::blocks::<7>(operands, sums),
                8 => Self::blocks::<8>(operands, sums),
                9 => Self::blocks::<9>(operands, sums),
                10 => Self::blocks::<10>(operands, sums),
                11 => Self::blocks::<11>(operands, sums),
                _ => Self::blocks::<12>(operands, sums),
            }
        }
    }

    /// Whether both tiles are read at the same time. One row reads memory in one stream; many rows
    /// need all registers for one tile.
    const fn together(rows: usize) -> bool {
        let most = if Self::FORMAT.bits == 8 { 8 } else { 3 };
        !UNPACKED && 1 < rows && rows <= most
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn blocks<const R: usize>(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
        let Operands { tiles, inputs, start, ref input_range, activations, .. } = *operands;
        let format = Self::stored_format(operands.weight_type);
        debug_assert!(tiles.iter().all(|tile| tile.len() >= format.tile_bytes(inputs)));
        let plan = operands.prefetch_plan();
        let (first_place, blocks) = (start / BLOCK, inputs / BLOCK);
        let x = activations.quantized(first_place..first_place + R * blocks);
        let tile = |side: usize| Tile {
            start: tiles[side].as_ptr(),
            inputs,
            unpacked: operands.unpacked.map(|tiles| &tiles[side]),
            prefetch: plan.from[side],
            stride: plan.stride,
            first_chunk: input_range.start / CHUNK,
            chunk_lines: format.whole_chunk_bytes() / 64,
            zero: format.zero,
        };
        let mut totals = load::<R>(input_range, sums);
        // SAFETY: each tile holds `blocks` blocks of 16 outputs, and the activations hold the same
        // number of blocks of R rows.
        unsafe {
            if Self::together(R) {
                let tiles = [tile(0), tile(1)];
                let [mut left, mut right] = totals;
                for (chunk, blocks) in chunks_of(input_range) {
                    let [mut first, mut second] =
                        [Self::place(&tiles[0], chunk), Self::place(&tiles[1], chunk)];
                    for block in blocks {
                        Self::add_block::<R>(&tiles[0], &mut first, block, x, &mut left);
                        Self::add_block::<R>(&tiles[1], &mut second, block, x, &mut right);
                    }
                }
                totals = [left, right];
            } else {
                for (side, totals) in totals.iter_mut().enumerate() {
                    let (tile, mut sums) = (tile(side), *totals);
                    for (chunk, blocks) in chunks_of(input_range) {
                        let mut place = Self::place(&tile, chunk);
                        for block in blocks {
                            Self::add_block::<R>(&tile, &mut place, block, x, &mut sums);
                        }
                    }
                    *totals = sums;
                }
            }
        }
        store(&totals, sums);
    }

    /// Returns the format of the stored tiles. Unpacked tiles may be of another type of the same
    /// kind.
    #[inline(always)]
    fn stored_format(weight_type: WeightType) -> BlockFormat {
        match weight_type {
            WeightType::Quantized(block_type) if UNPACKED => BlockFormat::of(block_type),
            _ => Self::FORMAT,
        }
    }

    /// Adds the products of 32 inputs, and advances the place by them. It is part of functions that
    /// enable the processor's features.
    #[inline(always)]
    unsafe fn add_block<const R: usize>(
        tile: &Tile<'_>,
        place: &mut Place,
        block: usize,
        x: QuantizedRows<'_>,
        totals: &mut [__m512; R],
    ) {
        let format = &Self::FORMAT;
        let row_place = |row: usize| block * R + row;
        // SAFETY: the caller guarantees the features, the block and its activations. A prefetch may
        // use any address.
        unsafe {
            let lines = tile.chunk_lines.div_ceil(CHUNK / BLOCK);
            let prefetch = |lines: Range<usize>| {
                for line in lines {
                    let at = place.prefetch.wrapping_add(line * tile.stride);
                    _mm_prefetch::<_MM_HINT_T1>(at.cast());
                }
            };
            // Measured: bytes are faster if prefetches alternate with products, other types if they
            // come first.
            let spread = Self::together(R) && format.bits == 8;
            if !spread {
                prefetch(0..lines);
            }
            let parts = format.scales_per_block();
            for part in 0..parts {
                let mut dots = [_mm512_setzero_si512(); R];
                if format.zero != 0 {
                    let shift = _mm_cvtsi32_si128(tile.zero.ilog2() as i32);
                    for (row, dot) in dots.iter_mut().enumerate() {
                        let sum = _mm512_set1_epi32(x.negative_sum(row_place(row), part, parts));
                        *dot = _mm512_sll_epi32(sum, shift);
                    }
                }
                for group in part * GROUPS / parts..(part + 1) * GROUPS / parts {
                    if spread {
                        prefetch(group * lines / GROUPS..(group + 1) * lines / GROUPS);
                    }
                    let quants = Self::quants(place, group);
                    for (row, dot) in dots.iter_mut().enumerate() {
                        let x = _mm512_set1_epi32(x.group(row_place(row), group));
                        *dot = _mm512_dpbusd_epi32(*dot, quants, x);
                    }
                }
                let [scale, minimum] = Self::scale(place, part);
                for (row, (total, dot)) in totals.iter_mut().zip(dots).enumerate() {
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(x.scale(row_place(row))));
                    *total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, *total);
                    if format.scales.has_minima() {
                        let sum = _mm512_set1_ps(x.scaled_sum(row_place(row), part, parts));
                        *total = match UNPACKED || format.scales == Scales::HalfAndMinimum {
                            true => _mm512_fmadd_ps(minimum, sum, *total),
                            false => _mm512_fnmadd_ps(minimum, sum, *total),
                        };
                    }
                }
            }
            place.prefetch = place.prefetch.wrapping_add(lines * tile.stride);
            Self::advance(place);
        }
    }

    /// Returns the first place of a chunk.
    ///
    /// # Safety
    /// The tile must have the chunk. If it is unpacked, the chunk must be in the unpacked range.
    #[inline(always)]
    unsafe fn place(tile: &Tile<'_>, chunk: usize) -> Place {
        let ahead = (chunk - tile.first_chunk) * tile.chunk_lines * tile.stride;
        let prefetch = tile.prefetch.wrapping_add(ahead);
        // SAFETY: the caller guarantees the chunk and the features.
        unsafe {
            let none = _mm512_setzero_ps();
            if UNPACKED && let Some(unpacked) = tile.unpacked {
                let block = (chunk - tile.first_chunk) * (CHUNK / BLOCK);
                let parts = block * Self::FORMAT.scales_per_block();
                let quants = unpacked.quants[block * GROUPS..].as_ptr().cast::<u8>();
                let [scales, minima] = [&unpacked.scales, &unpacked.minima]
                    .map(|of| of[parts..].as_ptr().cast::<u8>());
                return Place { quants, scales, minima, supers: [none; 2], prefetch };
            }
            let at = Self::FORMAT.place(tile.inputs, chunk * (CHUNK / BLOCK));
            let [quants, scales, supers] =
                [at.lower, at.scales, at.supers].map(|at| tile.start.add(at));
            let supers = match Self::FORMAT.scales {
                Scales::Super32 { minima } | Scales::Super16 { minima } => {
                    [half(supers), if minima { half(supers.add(2 * LANES)) } else { none }]
                }
                _ => [none; 2],
            };
            Place { quants, scales, minima: scales, supers, prefetch }
        }
    }

    /// Advances a place by 32 inputs.
    #[inline(always)]
    fn advance(place: &mut Place) {
        let format = &Self::FORMAT;
        let [quants, scales] = match UNPACKED {
            true => [BLOCK * LANES, format.scales_per_block() * 4 * LANES],
            false => [format.quant_bytes(), format.scale_bytes()],
        };
        place.quants = place.quants.wrapping_add(quants);
        place.scales = place.scales.wrapping_add(scales);
        place.minima = place.minima.wrapping_add(scales);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn unpack(Unpack { tile, inputs, range, unpacked }: Unpack<'_>) {
        assert!(range.len() <= UNPACKED_INPUTS && tile.len() >= Self::FORMAT.tile_bytes(inputs));
        let parts = Self::FORMAT.scales_per_block();
        let tile = Tile {
            start: tile.as_ptr(),
            inputs,
            unpacked: None,
            prefetch: tile.as_ptr(),
            stride: 0,
            first_chunk: range.start / CHUNK,
            chunk_lines: Self::FORMAT.whole_chunk_bytes() / 64,
            zero: Self::FORMAT.zero,
        };
        let first_block = range.start / BLOCK;
        for (chunk, blocks) in chunks_of(range) {
            // SAFETY: the tile has the blocks, and the unpacked tile has room for the range. A
            // vector is written to 64 bytes.
            unsafe {
                let mut place = Self::place(&tile, chunk);
                for index in blocks.start - first_block..blocks.end - first_block {
                    let quants = &mut unpacked.quants[index * GROUPS..(index + 1) * GROUPS];
                    for (group, quants) in quants.iter_mut().enumerate() {
                        let vector = Self::quants(&place, group);
                        _mm512_store_si512(quants.as_mut_ptr().cast(), vector);
                    }
                    for part in 0..parts {
                        let [scale, minimum] = Self::scale(&place, part);
                        let at = index * parts + part;
                        _mm512_store_ps(unpacked.scales[at].as_mut_ptr().cast(), scale);
                        if Self::FORMAT.scales.has_minima() {
                            // What is added.
                            let minimum = match Self::FORMAT.scales {
                                Scales::HalfAndMinimum => minimum,
                                _ => _mm512_xor_ps(minimum, _mm512_set1_ps(-0.0)),
                            };
                            _mm512_store_ps(unpacked.minima[at].as_mut_ptr().cast(), minimum);
                        }
                    }
                    Self::advance(&mut place);
                }
            }
        }
    }

    /// Returns the quants of a group of four inputs, each in the byte of its output and input.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn quants(&Place { quants: lower, .. }: &Place, group: usize) -> __m512i {
        // SAFETY: the caller guarantees 32 inputs.
        unsafe {
            let format = &Self::FORMAT;
            let (bits, upper_bits) = (format.lower_bits(), format.upper_bits());
            if bits == 8 || UNPACKED {
                return _mm512_load_si512(lower.add(group * 64).cast());
            }
            let per_byte = 8 / bits;
            let vector = _mm512_load_si512(lower.add(group / per_byte * 64).cast());
            let mask = _mm512_set1_epi8((1 << bits) - 1);
            let quants = shift(vector, -((group % per_byte * bits) as i32));
            if upper_bits == 0 {
                let quants = _mm512_and_si512(quants, mask);
                return match format.table {
                    Some(table) => {
                        let table = _mm_loadu_si128(table.as_ptr().cast());
                        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), quants)
                    }
                    None => quants,
                };
            }
            let per_byte = 8 / upper_bits;
            let upper = lower.add(format.lower_bytes() + group / per_byte * 64);
            let vector = _mm512_load_si512(upper.cast());
            let upper = shift(vector, bits as i32 - (group % per_byte * upper_bits) as i32);
            // Bits of the mask come from the lower bits, all others from the upper bits.
            const SELECT: i32 = 0b1100_1010;
            let both = _mm512_ternarylogic_epi32::<SELECT>(mask, quants, upper);
            _mm512_and_si512(both, _mm512_set1_epi8((1 << format.bits) - 1))
        }
    }

    /// Returns the scales of 32 or 16 inputs, and their minima: to subtract if they have scales of
    /// their own, else to add.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn scale(place: &Place, part: usize) -> [__m512; 2] {
        let &Place { scales, minima, supers: [super_scale, super_minimum], .. } = place;
        // SAFETY: the caller guarantees the scales of 32 inputs.
        unsafe {
            let none = _mm512_setzero_ps();
            if UNPACKED {
                let [scale, minimum] =
                    [scales, minima].map(|of| of.cast::<f32>().add(part * LANES));
                return [
                    _mm512_load_ps(scale),
                    match Self::FORMAT.scales.has_minima() {
                        true => _mm512_load_ps(minimum),
                        false => none,
                    },
                ];
            }
            let integer = |at: *const u8| {
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())))
            };
            match Self::FORMAT.scales {
                Scales::Half => [half(scales), none],
                Scales::HalfAndMinimum => [half(scales), half(scales.add(2 * LANES))],
                Scales::Exponent => {
                    let exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(scales.cast()));
                    // Half of two to the power of the exponent minus 127: the levels are doubled.
                    let normal = _mm512_sub_epi32(exponents, _mm512_set1_epi32(1));
                    let normal = _mm512_slli_epi32::<23>(normal);
                    let subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponents);
                    let is_small = _mm512_cmplt_epu32_mask(exponents, _mm512_set1_epi32(2));
                    let bits = _mm512_mask_blend_epi32(is_small, normal, subnormal);
                    [_mm512_castsi512_ps(bits), none]
                }
                Scales::Super32 { minima } | Scales::Super16 { minima } => {
                    let scale = _mm512_mul_ps(super_scale, integer(scales.add(part * LANES)));
                    if !minima {
                        return [scale, none];
                    }
                    let minima = scales.add(LANES * (Self::FORMAT.scales_per_block() + part));
                    [scale, _mm512_mul_ps(super_minimum, integer(minima))]
                }
            }
        }
    }
}

/// Returns the chunks of a range of inputs, which starts with a chunk, and the blocks of each.
#[inline(always)]
fn chunks_of(range: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let end = range.end / BLOCK;
    (range.start / CHUNK..range.end.div_ceil(CHUNK)).map(move |chunk| {
        let first = chunk * (CHUNK / BLOCK);
        (chunk, first..(first + CHUNK / BLOCK).min(end))
    })
}

/// Widens 16 f16 numbers.
///
/// # Safety
/// There must be 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn half(at: *const u8) -> __m512 {
    // SAFETY: the caller guarantees the bytes.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(at.cast()) })
}

/// Shifts the bits of bytes to the left, or to the right if `by` is negative. Bits that leave a
/// byte enter its neighbour.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn shift(bytes: __m512i, by: i32) -> __m512i {
    match by {
        1.. => _mm512_sll_epi16(bytes, _mm_cvtsi32_si128(by)),
        0 => bytes,
        _ => _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(-by)),
    }
}

/// Prefetches `count` cache lines of both tiles' weights, from the `line`-th line of the plan on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn prefetch(plan: PrefetchPlan, line: usize, count: usize) {
    for line in line..line + count {
        for from in plan.from {
            _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(line * plan.stride).cast());
        }
    }
}

/// Loads the sums of the previous input ranges, which are zeros for the first range.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn load<const R: usize>(input_range: &Range<usize>, sums: &[TileSums; 2]) -> [[__m512; R]; 2] {
    let mut totals = [[_mm512_setzero_ps(); R]; 2];
    if input_range.start == 0 {
        return totals;
    }
    for (totals, sums) in totals.iter_mut().zip(sums) {
        for (total, sums) in totals.iter_mut().zip(sums) {
            // SAFETY: a row of sums has 16 lanes.
            *total = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
        }
    }
    totals
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn store<const R: usize>(totals: &[[__m512; R]; 2], sums: &mut [TileSums; 2]) {
    for (sums, totals) in sums.iter_mut().zip(totals) {
        for (sums, &total) in sums.iter_mut().zip(totals) {
            // SAFETY: a row of sums has 16 lanes.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), total) };
        }
    }
}
