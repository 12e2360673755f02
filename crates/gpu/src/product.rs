//! The dispatches of products with matrices.

use crate::kernel::Kernel;
use crate::matrix::GpuMatrix;
use crate::pacer::work_of_product;
use crate::parameters::Linear;
use crate::recorder::Recorder;
use crate::tensor_tiles::LEAST_ROUNDED_ROWS;
use std::ops::Range;
use wgpu::Buffer;

/// Where a product goes.
#[derive(Clone, Copy)]
pub(crate) enum Store {
    /// It replaces what is there.
    Set,
    /// It is multiplied by this factor, and added.
    Add(f32),
}

impl Store {
    /// Returns whether it is added, and the factor.
    pub(crate) fn parts(self) -> (bool, f32) {
        match self {
            Self::Set => (false, 1.0),
            Self::Add(factor) => (true, factor),
        }
    }
}

/// The rows of a product. They follow one another in `x` and in `y`.
#[derive(Clone, Copy)]
pub(crate) struct ProductRows {
    pub(crate) rows: u32,
    /// The first number that is read of `x`, a multiple of four.
    pub(crate) first_x: u32,
    /// The row of `y` that is written first.
    pub(crate) first_y: u32,
}

impl ProductRows {
    /// Returns the first rows of `x` and of `y`.
    pub(crate) fn first(rows: u32) -> Self {
        Self { rows, first_x: 0, first_y: 0 }
    }

    /// Returns rows with the same numbers in `x` and in `y`, for a matrix with so many inputs.
    pub(crate) fn range(rows: Range<u32>, inputs: usize) -> Self {
        let first_x = rows.start * inputs as u32;
        Self { rows: rows.len() as u32, first_x, first_y: rows.start }
    }
}

impl Recorder<'_> {
    /// Records a product with a matrix. `unused` is bound where there is no bias.
    pub(crate) fn product(
        &mut self,
        matrix: &GpuMatrix,
        (x, y): (&Buffer, &Buffer),
        (rows, store): (ProductRows, Store),
        unused: &Buffer,
    ) {
        let ProductRows { rows, first_x, first_y } = rows;
        let shapes = self.device().product_shapes();
        let mut rounded = None;
        for part in &matrix.parts {
            let has_bias = if part.bias.is_some() { Linear::HAS_BIAS } else { 0 };
            let (adds, factor) = store.parts();
            let adds = if adds { Linear::ADDS } else { 0 };
            let mut parameters = Linear {
                x_offset: first_x / 4,
                y_offset: first_y * matrix.outputs as u32 + part.first_output as u32,
                y_stride: matrix.outputs as u32,
                flags: has_bias | adds,
                factor,
                ..Linear::new([rows, part.outputs as u32, matrix.inputs as u32])
            };
            let bias = part.bias.as_ref().unwrap_or(unused);
            let outputs = part.outputs as u32;
            let kernel = Kernel::linear(part.weight_type, [rows, outputs], shapes);
            let groups = linear_groups(kernel, outputs, rows);
            // All parts have the same inputs.
            let inputs = match kernel {
                Kernel::TensorLinear { .. } if rows >= LEAST_ROUNDED_ROWS => {
                    let all = [first_x / 4, rows * parameters.quarters];
                    rounded.get_or_insert_with(|| self.rounded(x, all)).as_ref()
                }
                _ => None,
            };
            let (kernel, x) = match inputs {
                Some(inputs) => {
                    parameters.x_offset = 0;
                    (kernel.with_rounded_inputs(), inputs)
                }
                None => (kernel, x),
            };
            self.dispatch(kernel, &[&part.weights, x, bias, y], &parameters, groups);
            self.add_work(work_of_product(part.weights.size(), rows));
        }
        self.cost.weight_bytes += matrix.bytes();
    }
}

pub(crate) fn linear_groups(kernel: Kernel, outputs: u32, rows: u32) -> [u32; 3] {
    match kernel {
        Kernel::Linear { rows: at_once, outputs: each, teams, .. } => {
            [rows.div_ceil(at_once), outputs.div_ceil(teams * each), 1]
        }
        Kernel::TensorLinear { tiles, .. } => {
            let [of_rows, of_outputs] = tiles.of_block();
            [rows.div_ceil(of_rows), outputs.div_ceil(of_outputs), 1]
        }
        _ => unreachable!("a product"),
    }
}
