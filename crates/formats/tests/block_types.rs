//! Block types against the Python package `gguf`. `scripts/goldens/make_block_types.py` makes the goldens.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_formats::BlockType;
use forerun_formats::blocks::{UnpackedBlock, dequantize, first_non_finite};
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

/// Returns the weights of whole blocks.
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
