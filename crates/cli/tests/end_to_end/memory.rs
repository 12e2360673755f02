//! Models that do not fit in memory.

use crate::common::{Models, Run, edit_json};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// The width of the model's MLP: its matrices have 3 · 48 · 1,000,000 weights in each layer.
const WIDTH: usize = 1_000_000;

/// The model's file fits into this address space, next to the 1 GiB that the allocator reserves,
/// but its weights of four bytes do not.
const ADDRESS_SPACE: u64 = (1024 + 1400) << 20;

/// Gives a model an MLP of another width, with zeros that take no space on the disk.
fn widen(model: &Path) {
    edit_json(&model.join("config.json"), |config| config["intermediate_size"] = json!(WIDTH));
    let file = model.join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let header = &rest[..u64::from_le_bytes(*length) as usize];
    let mut header: Value = serde_json::from_slice(header).unwrap();
    header.as_object_mut().unwrap().remove("__metadata__");
    let mut end = 0;
    for (name, tensor) in header.as_object_mut().unwrap() {
        let shape = tensor["shape"].as_array().unwrap().iter();
        let mut shape: Vec<usize> = shape.map(|size| size.as_u64().unwrap() as usize).collect();
        match &mut shape[..] {
            [_, inputs] if name.contains("down_proj") => *inputs = WIDTH,
            [outputs, _] if name.contains("mlp") => *outputs = WIDTH,
            _ => {}
        }
        let start = end;
        end += shape.iter().product::<usize>() * 2;
        *tensor = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] });
    }
    let mut header = header.to_string();
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let mut file = File::create(file).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + end as u64).unwrap();
}

/// The target, or the drafter, is too large for the address space that its file leaves.
#[test]
fn models_that_do_not_fit_are_refused_before_loading() {
    for (layers, model) in [(4, Models::target as fn(&Models) -> _), (2, Models::drafter)] {
        let models = Models::pair();
        widen(&model(&models));
        let run = Run::generate_with_drafter(&models).words("--prompt Hi --dtype f32");
        let finished = run.with_address_space(ADDRESS_SPACE).finish();
        let words = ["MiB of memory, but only", "MiB are available", "--dtype", "int8"];
        finished.assert_refused("too large", &words);
        let needed = finished.errors.split_once("need ").unwrap().1.split_once(' ').unwrap().0;
        // Weights of four bytes, and a little for everything else.
        let weights = (layers * 3 * 48 * WIDTH * 4) >> 20;
        let expected = weights..weights + 100;
        assert!(expected.contains(&needed.parse().unwrap()), "{}", finished.errors);
        assert!(!finished.errors.contains("panicked"), "{}", finished.errors);
    }
    // The same limit is enough for small models.
    let models = Models::pair();
    let run = Run::generate_with_drafter(&models).words("--prompt Hi -n 1");
    run.with_address_space(ADDRESS_SPACE).succeed();
}
