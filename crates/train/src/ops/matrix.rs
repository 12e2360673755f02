//! Matrix views of slices, and their products on one thread.

use rayon::prelude::*;

/// A matrix view of a slice. The index of entry `(row, column)` is
/// `row · row_stride + column · column_stride`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Creates a view of contiguous rows.
    pub(crate) fn new(data: &'a [f32], columns: usize) -> Self {
        Self::strided(data, data.len() / columns, columns, columns)
    }

    /// Creates a view of `rows` rows of `columns` entries, `row_stride` apart.
    ///
    /// # Panics
    /// If the matrix is larger than the slice.
    pub(crate) fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(required_len(rows, columns, row_stride) <= data.len(), "matrix exceeds its slice");
        Self { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// Returns the transposed view. No data is moved.
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

/// The output of a matrix product. The entries of a row are contiguous.
pub(crate) struct MatrixMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// Creates a view of contiguous rows.
    pub(crate) fn new(data: &'a mut [f32], columns: usize) -> Self {
        let rows = data.len() / columns;
        Self::strided(data, rows, columns, columns)
    }

    /// Creates a view of `rows` rows of `columns` entries, `row_stride` apart.
    ///
    /// # Panics
    /// If the matrix is larger than the slice.
    pub(crate) fn strided(
        data: &'a mut [f32],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> Self {
        assert!(required_len(rows, columns, row_stride) <= data.len(), "matrix exceeds its slice");
        Self { data, rows, columns, row_stride }
    }
}

/// Returns the smallest slice length that holds such a matrix.
fn required_len(rows: usize, columns: usize, row_stride: usize) -> usize {
    if rows == 0 || columns == 0 { 0 } else { (rows - 1) * row_stride + columns }
}

/// How a product is written to its output.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Write {
    /// Overwrite the output.
    Replace,
    /// Add the product to the output.
    Add,
}

/// Computes `out = scale · a b`, or `out += scale · a b`. The same inputs of the same shapes give
/// the same bits.
///
/// # Panics
/// If the shapes do not agree.
pub(crate) fn multiply(
    out: &mut MatrixMut<'_>,
    a: Matrix<'_>,
    b: Matrix<'_>,
    scale: f32,
    write: Write,
) {
    assert_eq!(
        (out.rows, out.columns),
        (a.rows, b.columns),
        "matrix product of incompatible shapes"
    );
    assert_eq!(a.columns, b.rows, "matrix product of incompatible shapes");
    if out.rows == 0 || out.columns == 0 {
        return;
    }
    if a.columns == 0 {
        // Sums of nothing.
        if write == Write::Replace {
            for row in 0..out.rows {
                out.data[row * out.row_stride..][..out.columns].fill(0.0);
            }
        }
        return;
    }
    // SAFETY: the constructors and `transposed` keep every entry within its slice, `out` is
    // borrowed exclusively, and the shapes agree.
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

/// Computes `out = a b`, as [`multiply`] does. The rows of `out` are contiguous.
pub(crate) fn set_product(out: &mut [f32], a: Matrix<'_>, b: Matrix<'_>) {
    multiply(&mut MatrixMut::new(out, b.columns), a, b, 1.0, Write::Replace);
}

/// Computes `out += a b`, as [`multiply`] does. The rows of `out` are contiguous.
pub(crate) fn add_product(out: &mut [f32], a: Matrix<'_>, b: Matrix<'_>) {
    multiply(&mut MatrixMut::new(out, b.columns), a, b, 1.0, Write::Add);
}

/// Transposes a matrix of rows of `columns` values.
///
/// A product with weights in their stored layout, `[outputs, inputs]`, would repack them for every
/// few rows of the other factor. Transposing them once is faster.
pub(crate) fn transpose(values: &[f32], columns: usize) -> Vec<f32> {
    /// Rows of the result that are filled together, so that each cache line is read once.
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
