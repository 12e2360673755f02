//! Matrices as views of slices, and their products on one thread.

use rayon::prelude::*;

/// A matrix in a slice: entry `(row, column)` lies at `row · row_stride + column · column_stride`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Rows one behind the other.
    pub(crate) fn new(data: &'a [f32], columns: usize) -> Self {
        Self::strided(data, data.len() / columns, columns, columns)
    }

    /// `rows` rows of `columns` entries, `row_stride` apart.
    pub(crate) fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(last(rows, columns, row_stride) <= data.len(), "a matrix larger than its slice");
        Self { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// Rows become columns; nothing is moved.
    pub(crate) fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// Where a product goes: rows of entries side by side.
pub(crate) struct MatrixMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// Rows one behind the other.
    pub(crate) fn new(data: &'a mut [f32], columns: usize) -> Self {
        let rows = data.len() / columns;
        Self::strided(data, rows, columns, columns)
    }

    /// `rows` rows of `columns` entries, `row_stride` apart.
    pub(crate) fn strided(
        data: &'a mut [f32],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> Self {
        assert!(last(rows, columns, row_stride) <= data.len(), "a matrix larger than its slice");
        Self { data, rows, columns, row_stride }
    }
}

/// How far entries reach.
fn last(rows: usize, columns: usize, row_stride: usize) -> usize {
    if rows == 0 || columns == 0 { 0 } else { (rows - 1) * row_stride + columns }
}

/// What happens to what stands where a product goes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Write {
    /// It is replaced.
    Replace,
    /// The product is added to it.
    Add,
}

/// `out = scale · a b`, or `out += scale · a b`. The same bits for the same shapes.
pub(crate) fn multiply(
    out: &mut MatrixMut<'_>,
    a: Matrix<'_>,
    b: Matrix<'_>,
    scale: f32,
    write: Write,
) {
    assert_eq!((out.rows, out.columns), (a.rows, b.columns), "shapes of a matrix product");
    assert_eq!(a.columns, b.rows, "shapes of a matrix product");
    // SAFETY: constructors and `transposed` keep every entry within its slice, `out` is borrowed
    // alone, and the shapes agree.
    unsafe {
        gemm::gemm(
            out.rows,
            out.columns,
            a.columns,
            out.data.as_mut_ptr(),
            1,
            out.row_stride as isize,
            write == Write::Add,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            scale,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// A matrix of rows of `columns` numbers with rows and columns exchanged. A product with weights as
/// they lie, `[outputs, inputs]`, would rearrange them for every few rows of its other factor.
pub(crate) fn transpose(values: &[f32], columns: usize) -> Vec<f32> {
    /// Rows of the result that are filled together, from the same lines of memory.
    const TOGETHER: usize = 16;
    let rows = values.len() / columns;
    let mut out = vec![0.0; values.len()];
    out.par_chunks_mut(TOGETHER * rows).enumerate().for_each(|(block, out)| {
        let first = block * TOGETHER;
        let width = out.len() / rows;
        for (row, values) in values.chunks_exact(columns).enumerate() {
            for (column, &value) in values[first..first + width].iter().enumerate() {
                out[column * rows + row] = value;
            }
        }
    });
    out
}
