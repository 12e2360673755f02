//! Block types against the Python package `gguf`. `scripts/goldens/make_block_types.py` makes the
//! goldens.

use forerun_formats::BlockType;
use forerun_formats::blocks::{UnpackedBlock, dequantize, first_non_finite, quantize};
use proptest::prelude::*;
use safetensors::SafeTensors;

const GOLDENS: &[u8] = include_bytes!("goldens/block_types.safetensors");

fn golden_bytes(name: &str) -> Vec<u8> {
    SafeTensors::deserialize(GOLDENS).unwrap().tensor(name).unwrap().data().to_vec()
}

fn golden_floats(name: &str) -> Vec<f32> {
    let bytes = golden_bytes(name);
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn weights_of(block_type: BlockType, bytes: &[u8]) -> Vec<f32> {
    let mut weights = vec![f32::NAN; bytes.len() / block_type.bytes() * block_type.weights()];
    dequantize(block_type, bytes, &mut weights);
    weights
}

#[test]
fn weights_are_bit_equal_to_those_of_gguf() {
    for block_type in BlockType::ALL {
        let blocks = golden_bytes(&format!("{block_type}.blocks"));
        let expected = golden_floats(&format!("{block_type}.weights"));
        let weights = weights_of(block_type, &blocks);
        assert_eq!(weights.len(), expected.len(), "{block_type}");
        for (index, (weight, expected)) in weights.iter().zip(&expected).enumerate() {
            assert_eq!(weight.to_bits(), expected.to_bits(), "{block_type} at {index}");
        }
    }
}

#[test]
fn golden_blocks_are_read_and_written() {
    for block_type in BlockType::ALL {
        let mut block = UnpackedBlock::new(block_type);
        let mut written = vec![0xAA; block_type.bytes()];
        for bytes in golden_bytes(&format!("{block_type}.blocks")).chunks(block_type.bytes()) {
            block.read(bytes);
            block.write(&mut written);
            assert_eq!(written, bytes, "{block_type}");
        }
    }
}

fn any_block() -> impl Strategy<Value = (BlockType, Vec<u8>)> {
    prop::sample::select(&BlockType::ALL[..]).prop_flat_map(|block_type| {
        (Just(block_type), prop::collection::vec(any::<u8>(), block_type.bytes()))
    })
}

proptest! {
    #[test]
    fn random_blocks_are_read_and_written((block_type, bytes) in any_block()) {
        let mut block = UnpackedBlock::new(block_type);
        block.read(&bytes);
        let mut written = vec![0xAA; bytes.len()];
        block.write(&mut written);
        // Signalling NaNs become quiet.
        if first_non_finite(block_type, &bytes).is_none_or(|(_, value)| !value.is_nan()) {
            prop_assert_eq!(written, bytes);
        }
    }

    #[test]
    fn the_parts_make_up_the_weights((block_type, bytes) in any_block()) {
        let mut block = UnpackedBlock::new(block_type);
        block.read(&bytes);
        let (group, levels) = (block_type.group(), block_type.levels());
        for (index, weight) in weights_of(block_type, &bytes).into_iter().enumerate() {
            let scale = block.scale() * f32::from(block.scales()[index / group]);
            let minimum = block.minimum() * f32::from(block.minima()[index / group]);
            let expected = scale * f32::from(levels.level(block.quants()[index])) - minimum;
            prop_assert!(weight.to_bits() == expected.to_bits() || weight.is_nan() && expected.is_nan());
        }
    }

    #[test]
    fn blocks_with_non_finite_weights_are_found((block_type, bytes) in any_block()) {
        let finite = weights_of(block_type, &bytes).iter().all(|weight| weight.is_finite());
        let found = first_non_finite(block_type, &bytes);
        prop_assert!(finite || found.is_some_and(|(_, value)| !value.is_finite()));
        // A block of MXFP4 may have small weights only.
        prop_assert!(found.is_none() || !finite || block_type == BlockType::MXFP4);
    }
}

#[test]
fn the_first_block_with_a_non_finite_scale_is_found() {
    for block_type in BlockType::ALL {
        let good = vec![0; block_type.bytes()];
        let mut bad = good.clone();
        let mut block = UnpackedBlock::new(block_type);
        // Every byte in turn: only those with an exponent matter.
        for at in 0..bad.len() {
            bad.fill(0);
            bad[at] = 0xFF;
            block.read(&bad);
            let blocks = [&good[..], &good, &bad, &bad].concat();
            let expected = !block.scale().is_finite() || !block.minimum().is_finite();
            let expected = expected || block_type == BlockType::MXFP4 && at == 0;
            let found = first_non_finite(block_type, &blocks).map(|(index, _)| index);
            assert_eq!(found, expected.then_some(2), "{block_type}, byte {at}");
        }
        assert_eq!(first_non_finite(block_type, &[]), None);
    }
}

fn quantized(block_type: BlockType, weights: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    quantize(block_type, weights, importance, &mut bytes);
    assert_eq!(bytes.len(), weights.len() / block_type.weights() * block_type.bytes());
    bytes
}

#[test]
fn blocks_of_simple_types_are_those_of_gguf() {
    let weights = golden_floats("weights");
    let simple =
        [BlockType::Q4_0, BlockType::Q4_1, BlockType::Q5_0, BlockType::Q5_1, BlockType::Q8_0];
    for block_type in simple {
        let expected = golden_bytes(&format!("{block_type}.quantized"));
        let found = quantized(block_type, &weights, None);
        let size = block_type.bytes();
        for (row, (found, expected)) in found.chunks(size).zip(expected.chunks(size)).enumerate() {
            assert_eq!(found, expected, "{block_type}, row {row}");
        }
        assert_eq!(found.len(), expected.len());
    }
}

/// Returns about normally distributed numbers.
fn samples(count: usize, seed: u32) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(2_654_435_769) | 1;
    let mut uniform = move || {
        // xorshift32
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32
    };
    (0..count).map(move |_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0)
}

fn weights(count: usize, seed: u32) -> Vec<f32> {
    samples(count, seed).map(|sample| 0.02 * sample).collect()
}

fn importance(count: usize, seed: u32) -> Vec<f32> {
    samples(count, seed).map(f32::exp).collect()
}

fn squared_error(a: &[f32], b: &[f32], importance: &[f32]) -> f64 {
    let pairs = a.iter().zip(b).zip(importance.iter().cycle());
    pairs.map(|((a, b), importance)| f64::from(*importance) * f64::from(a - b).powi(2)).sum()
}

fn error_of(block_type: BlockType, weights: &[f32], importance: Option<&[f32]>) -> f64 {
    let restored = weights_of(block_type, &quantized(block_type, weights, importance));
    squared_error(weights, &restored, importance.unwrap_or(&[1.0]))
}

/// Returns the least squared error of a group for any scale and minimum, by trying very many.
fn least_error(levels: &[f32], weights: &[f32], importance: &[f32], minimum: bool) -> f64 {
    let [low, high] = [levels[0], levels[levels.len() - 1]];
    let peak = weights.iter().fold(0.0_f32, |peak, weight| peak.max(weight.abs()));
    let shares = |count: i16| (1..=count).map(move |step| f32::from(step) / f32::from(count));
    let (mut scales, mut minima) = (Vec::new(), vec![0.0]);
    if minimum {
        scales.extend(shares(200).map(|share| 2.2 * share * peak / high));
        minima.extend(shares(100).map(|share| 1.1 * share * peak));
    } else {
        let largest = 2.2 * peak / high.max(-low);
        scales.extend(shares(2000).flat_map(|share| [share * largest, -share * largest]));
    }
    let mut least = f64::INFINITY;
    for scale in scales {
        for minimum in &minima {
            let rounded = weights.iter().map(|weight| {
                let value = (weight + minimum) / scale;
                let above = levels.partition_point(|level| *level < value).min(levels.len() - 1);
                let below = above.saturating_sub(1);
                let nearest =
                    if value - levels[below] < levels[above] - value { below } else { above };
                scale * levels[nearest] - minimum
            });
            least = least.min(squared_error(weights, &rounded.collect::<Vec<_>>(), importance));
        }
    }
    least
}

/// Returns the sorted levels of a type.
fn levels(block_type: BlockType) -> Vec<f32> {
    let count: u8 = match block_type {
        BlockType::Q2_K => 4,
        BlockType::Q3_K => 8,
        BlockType::Q5_0 | BlockType::Q5_1 | BlockType::Q5_K => 32,
        BlockType::Q6_K => 64,
        _ => 16,
    };
    let mut levels: Vec<f32> =
        (0..count).map(|quant| f32::from(block_type.levels().level(quant))).collect();
    levels.sort_by(f32::total_cmp);
    levels
}

/// The types whose groups have a minimum.
const WITH_MINIMA: [BlockType; 5] =
    [BlockType::Q4_1, BlockType::Q5_1, BlockType::Q2_K, BlockType::Q4_K, BlockType::Q5_K];

#[test]
fn no_other_scales_have_much_less_error() {
    for block_type in BlockType::ALL {
        let limit = match block_type {
            // With levels this fine, some of very many scales suits the weights by chance.
            BlockType::Q8_0 => continue,
            // Its scales are powers of two.
            BlockType::MXFP4 => continue,
            // Their integer scales are too coarse for the best ones.
            BlockType::Q5_K | BlockType::Q6_K => 1.07,
            _ => 1.03,
        };
        let with_minimum = WITH_MINIMA.contains(&block_type);
        let group = block_type.group();
        let (mut least, mut found) = (0.0, 0.0);
        for seed in 1..=3 {
            let (weights, importance) = (weights(256, seed), importance(256, seed + 10));
            found += error_of(block_type, &weights, Some(&importance));
            for (weights, importance) in weights.chunks(group).zip(importance.chunks(group)) {
                least += least_error(&levels(block_type), weights, importance, with_minimum);
            }
        }
        let ratio = f64::sqrt(found / least);
        assert!(ratio < limit, "{block_type}: {ratio} times the least root mean square error");
    }
}

#[test]
fn no_other_exponent_has_less_error() {
    let (block_type, all) = (BlockType::MXFP4, (weights(512, 4), importance(512, 5)));
    for (weights, importance) in all.0.chunks(32).zip(all.1.chunks(32)) {
        let found = error_of(block_type, weights, Some(importance));
        for exponent in 100..=150 {
            let scale = 2.0_f32.powi(exponent - 128);
            let restored: Vec<f32> = weights
                .iter()
                .map(|weight| {
                    let values = levels(block_type).into_iter().map(|level| scale * level);
                    let distance = |value: &f32| (value - weight).abs();
                    values.min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap()
                })
                .collect();
            let error = squared_error(weights, &restored, importance);
            assert!(found <= error * 1.000_01, "{exponent} has error {error}, not {found}");
        }
    }
}

#[test]
fn importance_reduces_the_error_of_important_weights() {
    let (weights, importance) = (weights(4096, 7), importance(512, 8));
    for block_type in BlockType::ALL {
        let with = error_of(block_type, &weights, Some(&importance));
        let blocks = quantized(block_type, &weights, None);
        let without = squared_error(&weights, &weights_of(block_type, &blocks), &importance);
        assert!(with < without, "{block_type}: {with}, but {without} without importance");
        // Only the proportions matter.
        let doubled: Vec<f32> = importance.iter().map(|importance| 2.0 * importance).collect();
        let blocks = |importance: &[f32]| quantized(block_type, &weights, Some(importance));
        assert_eq!(blocks(&importance), blocks(&doubled), "{block_type}");
    }
}

#[test]
fn a_search_is_at_least_as_good_as_ggmls_reference() {
    let (weights, equal) = (weights(4096, 9), [1.0; 256]);
    for block_type in [BlockType::Q4_0, BlockType::Q4_1, BlockType::Q5_0, BlockType::Q5_1] {
        let reference = error_of(block_type, &weights, None);
        let searched = error_of(block_type, &weights, Some(&equal));
        assert!(searched < reference, "{block_type}: {searched}, reference {reference}");
    }
}

/// Returns blocks of weights that are unlike those of models.
fn extreme_weights() -> Vec<Vec<f32>> {
    let one = |value: f32| (0..256).map(|index| if index == 77 { value } else { 0.0 }).collect();
    let alternating =
        |value: f32| (0..256).map(|index| if index % 2 == 0 { value } else { -value }).collect();
    let sizes = [1.0, 0.37, 65504.0, 1.0e6, f32::MAX, 1.0e-6, 3.0e-8, 1.0e-20, 1.0e-42];
    let of_size = |size: f32| {
        let spread = weights(256, 3).into_iter().map(|weight| 10.0 * weight * size).collect();
        [vec![size; 256], vec![-size; 256], one(size), one(-size), alternating(size), spread]
    };
    let mut all: Vec<Vec<f32>> = sizes.into_iter().flat_map(of_size).collect();
    all.push(vec![0.0; 256]);
    all.push(vec![-0.0; 256]);
    // Groups of very different size.
    all.push((0..256).map(|index| 10.0_f32.powi(index / 16 - 8)).collect());
    all
}

#[test]
fn extreme_weights_make_finite_blocks() {
    let none = [0.0; 256];
    let one: Vec<f32> = (0..256).map(|index| if index == 200 { f32::MAX } else { 0.0 }).collect();
    for block_type in BlockType::ALL {
        for weights in extreme_weights() {
            for importance in [None, Some(&none[..]), Some(&one), Some(&[1.0; 256])] {
                let blocks = quantized(block_type, &weights, importance);
                assert_eq!(
                    first_non_finite(block_type, &blocks),
                    None,
                    "{block_type}: {weights:?}"
                );
                let restored = weights_of(block_type, &blocks);
                let peak = weights.iter().fold(0.0_f32, |peak, weight| peak.max(weight.abs()));
                for (weight, restored) in weights.iter().zip(restored) {
                    // The smallest steps of f16, times the highest levels of a group, may be far
                    // from tiny weights, but no weight becomes much larger than the others.
                    let near = (weight - restored).abs() <= 1.01 * peak + 1.0e-6;
                    assert!(near, "{block_type}: {weight} became {restored}");
                }
            }
        }
    }
}

#[test]
fn equal_and_alternating_weights_are_nearly_exact() {
    for block_type in BlockType::ALL {
        for size in [0.37_f32, -2.5, 1.0e-2] {
            for alternate in [1.0, -1.0] {
                let weights: Vec<f32> = (0..256)
                    .map(|index| if index % 2 == 0 { size } else { size * alternate })
                    .collect();
                let restored = weights_of(block_type, &quantized(block_type, &weights, None));
                for (weight, restored) in weights.iter().zip(restored) {
                    // The quants of these types cannot represent both signs equally well.
                    let limit = match block_type {
                        BlockType::MXFP4 => 0.25,
                        BlockType::Q3_K => 0.15,
                        BlockType::Q4_0 | BlockType::IQ4_NL | BlockType::IQ4_XS => 0.13,
                        BlockType::Q5_0 => 0.07,
                        _ => 0.01,
                    };
                    let error = (weight - restored).abs() / size.abs();
                    assert!(error <= limit, "{block_type}: {weight} became {restored}");
                }
            }
        }
    }
}

#[test]
fn blocks_of_rows_do_not_depend_on_their_neighbours() {
    let (weights, importance) = (weights(1024, 5), importance(512, 6));
    for block_type in BlockType::ALL {
        let all = quantized(block_type, &weights, Some(&importance));
        let rows = weights.chunks(512).map(|row| quantized(block_type, row, Some(&importance)));
        assert_eq!(all, rows.collect::<Vec<_>>().concat(), "{block_type}");
    }
}

proptest! {
    #[test]
    fn quantised_weights_change_little_when_they_are_quantised_again(
        block_type in prop::sample::select(&BlockType::ALL[..]),
        seed in any::<u32>(),
    ) {
        let first = weights_of(block_type, &quantized(block_type, &weights(256, seed), None));
        let again = weights_of(block_type, &quantized(block_type, &first, None));
        let (moved, size) = (squared_error(&first, &again, &[1.0]), squared_error(&first, &[0.0; 256], &[1.0]));
        prop_assert!(moved <= 0.01 * size, "{}: {} of {}", block_type, moved, size);
    }
}
