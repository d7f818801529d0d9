//! Small matrices over GF(2^8), and their inverses.

use crate::field::{inverse, multiply};

/// A matrix of coefficients, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Matrix {
    columns: usize,
    cells: Vec<u8>,
}

impl Matrix {
    pub(crate) fn from_rows(columns: usize, rows: impl IntoIterator<Item = Vec<u8>>) -> Matrix {
        let mut cells = Vec::new();
        for row in rows {
            assert_eq!(row.len(), columns, "rows of one length");
            cells.extend(row);
        }
        Matrix { columns, cells }
    }

    pub(crate) fn identity(size: usize) -> Matrix {
        Matrix::from_rows(size, (0..size).map(|row| unit_row(size, row)))
    }

    pub(crate) fn rows(&self) -> usize {
        self.cells.len() / self.columns
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Row by row.
    pub(crate) fn cells(&self) -> &[u8] {
        &self.cells
    }

    pub(crate) fn row(&self, row: usize) -> &[u8] {
        &self.cells[row * self.columns..][..self.columns]
    }

    fn row_mut(&mut self, row: usize) -> &mut [u8] {
        &mut self.cells[row * self.columns..][..self.columns]
    }

    /// The row vector `row` times this matrix.
    pub(crate) fn times_row(&self, row: &[u8]) -> Vec<u8> {
        let mut product = vec![0; self.columns];
        for (index, factor) in row.iter().enumerate() {
            add_multiple(&mut product, *factor, self.row(index));
        }
        product
    }

    /// The inverse by Gauss-Jordan elimination; none if the matrix is singular.
    pub(crate) fn inverse(mut self) -> Option<Matrix> {
        let size = self.rows();
        assert_eq!(size, self.columns, "only a square matrix has an inverse");
        let mut result = Matrix::identity(size);
        for column in 0..size {
            let pivot = (column..size).find(|row| self.row(*row)[column] != 0)?;
            self.swap_rows(column, pivot);
            result.swap_rows(column, pivot);
            let scale = inverse(self.row(column)[column]);
            self.scale_row(column, scale);
            result.scale_row(column, scale);
            let (pivot_row, pivot_result) = (self.row(column).to_vec(), result.row(column).to_vec());
            for row in (0..size).filter(|row| *row != column) {
                let factor = self.row(row)[column];
                add_multiple(self.row_mut(row), factor, &pivot_row);
                add_multiple(result.row_mut(row), factor, &pivot_result);
            }
        }
        Some(result)
    }

    fn swap_rows(&mut self, one: usize, other: usize) {
        for column in 0..self.columns {
            self.cells.swap(one * self.columns + column, other * self.columns + column);
        }
    }

    fn scale_row(&mut self, row: usize, factor: u8) {
        if factor != 1 {
            self.row_mut(row).iter_mut().for_each(|cell| *cell = multiply(*cell, factor));
        }
    }
}

/// The row that takes the one value at `index` as it is.
pub(crate) fn unit_row(columns: usize, index: usize) -> Vec<u8> {
    (0..columns).map(|column| u8::from(column == index)).collect()
}

/// Most factors of a decoding matrix are zero, so they are worth a look.
fn add_multiple(target: &mut [u8], factor: u8, source: &[u8]) {
    if factor != 0 {
        for (target, source) in target.iter_mut().zip(source) {
            *target ^= multiply(factor, *source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_times_its_inverse_is_the_identity() {
        // The first column of the first row is zero, so rows must be swapped.
        let matrix = Matrix::from_rows(3, [vec![0, 7, 200], vec![3, 1, 90], vec![5, 5, 1]]);
        let inverse = matrix.clone().inverse().expect("not singular");
        let product = Matrix::from_rows(3, (0..3).map(|row| inverse.times_row(matrix.row(row))));
        assert_eq!(product, Matrix::identity(3));
    }

    #[test]
    fn a_singular_matrix_has_no_inverse() {
        assert_eq!(Matrix::from_rows(2, [vec![3, 5], vec![3, 5]]).inverse(), None);
    }
}
