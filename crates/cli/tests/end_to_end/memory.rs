//! Models that do not fit in memory.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{Models, Run, edit_json};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// The width of the model's MLP: its matrices have 3 · 2 · 48 · 1,000,000 weights.
const WIDTH: usize = 1_000_000;

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
    for drafter in [false, true] {
        let models = Models::pair();
        widen(&if drafter { models.drafter() } else { models.target() });
        let run = Run::generate_with_drafter(&models).with(&["--prompt", "Hi", "--dtype", "f32"]);
        let finished = run.with_address_space(1400 << 20).finish();
        let words = ["MiB of memory, but only", "MiB are available", "--dtype", "int8"];
        finished.assert_refused("too large", &words);
        // 288 million weights of four bytes.
        let needed = finished.errors.split_once("need ").unwrap().1.split_once(' ').unwrap().0;
        assert!((1100..1300).contains(&needed.parse().unwrap()), "{}", finished.errors);
        assert!(!finished.errors.contains("panicked"), "{}", finished.errors);
    }
    // The same limit is enough for small models.
    let run = Run::generate_with_drafter(&Models::pair()).with(&["--prompt", "Hi", "-n", "1"]);
    run.with_address_space(1400 << 20).succeed();
}
