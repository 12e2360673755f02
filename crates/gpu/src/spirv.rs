//! Shaders as SPIR-V whose arithmetic no driver may change.
//!
//! WGSL lets a compiler contract `a * b + c` to a fused operation, and reorder sums. SPIR-V forbids
//! both for results with the decoration `NoContraction`, which naga does not emit. So its output is
//! decorated here: every addition, subtraction, multiplication and division of floats, and `Fma`.

use wgpu::naga::back::spv;
use wgpu::naga::front::wgsl;
use wgpu::naga::valid::{Capabilities, ValidationFlags, Validator};

const HEADER_WORDS: usize = 5;

/// The instructions and their numbers in the SPIR-V specification.
mod op {
    pub(super) const EXT_INST: u32 = 12;
    pub(super) const FIRST_TYPE: u32 = 19;
    pub(super) const LAST_TYPE: u32 = 39;
    pub(super) const DECORATE: u32 = 71;
    /// `OpFAdd`, `OpFSub`, `OpFMul`, `OpFDiv`, and products of vectors and scalars.
    pub(super) const FLOATS: [u32; 5] = [129, 131, 133, 136, 142];
    /// `Fma` of `GLSL.std.450`.
    pub(super) const FMA: u32 = 50;
    pub(super) const NO_CONTRACTION: u32 = 42;
}

/// Compiles WGSL of this crate to SPIR-V words.
///
/// # Panics
/// If the source is not valid WGSL: a programming error, because all sources are part of this
/// crate.
pub(crate) fn compile(source: &str) -> Vec<u32> {
    let module = match wgsl::parse_str(source) {
        Ok(module) => module,
        Err(error) => panic!("{}", error.emit_to_string(source)),
    };
    let info = match Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module) {
        Ok(info) => info,
        Err(error) => panic!("{}", error.emit_to_string(source)),
    };
    let options = spv::Options {
        lang_version: (1, 3),
        // Both double the time of a pass. Loops here end, and shared memory is written before it is
        // read.
        force_loop_bounding: false,
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        ..spv::Options::default()
    };
    let words =
        spv::write_vec(&module, &info, &options, None).expect("valid modules can be written");
    without_contraction(&words)
}

/// Decorates every result of float arithmetic with `NoContraction`.
fn without_contraction(words: &[u32]) -> Vec<u32> {
    let mut results = Vec::new();
    // Decorations come before the first type.
    let mut first_type = None;
    for (at, instruction) in instructions(words) {
        let code = instruction[0] & 0xffff;
        if first_type.is_none() && (op::FIRST_TYPE..=op::LAST_TYPE).contains(&code) {
            first_type = Some(at);
        }
        let is_fma = code == op::EXT_INST && instruction[4] == op::FMA;
        if op::FLOATS.contains(&code) || is_fma {
            results.push(instruction[2]);
        }
    }
    let (before, after) = words.split_at(first_type.unwrap_or(words.len()));
    let decorations =
        results.into_iter().flat_map(|id| [(3 << 16) | op::DECORATE, id, op::NO_CONTRACTION]);
    before.iter().copied().chain(decorations).chain(after.iter().copied()).collect()
}

/// Returns the instructions and where they begin.
fn instructions(words: &[u32]) -> impl Iterator<Item = (usize, &[u32])> {
    let mut at = HEADER_WORDS;
    std::iter::from_fn(move || {
        let length = (*words.get(at)? >> 16) as usize;
        let start = at;
        at += length.max(1);
        Some((start, words.get(start..at)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_operation_is_decorated() {
        let words = compile(
            "@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
             @compute @workgroup_size(1)
             fn main(@builtin(global_invocation_id) at: vec3<u32>) {
                let x = y[at.x];
                let i = at.x * 3u + 1u;
                y[i] = fma(x, x, x) + x * x.x - x / x;
             }",
        );
        let count = |code| {
            let all = instructions(&words).map(|(_, instruction)| instruction);
            all.filter(|instruction| instruction[0] & 0xffff == code).count()
        };
        let decorations = instructions(&words).filter(|(_, instruction)| {
            instruction[0] & 0xffff == op::DECORATE && instruction[2] == op::NO_CONTRACTION
        });
        let floats: usize = op::FLOATS.into_iter().map(count).sum();
        assert_eq!((floats, decorations.count()), (4, 5));
    }
}
