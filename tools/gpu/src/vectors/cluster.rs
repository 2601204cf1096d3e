//! What blocks of a cluster do together.

use super::{Matrix, Vector, words};

/// Columns of a box.
const BOX: usize = 64;
/// Blocks, and rows of the box that each copies.
const BLOCKS: usize = 2;
const ROWS: usize = 8;

/// Boxes inside of a matrix, and over its right and its lower edge, from each block to both.
pub fn boxes() -> Vec<Vector> {
    let matrix = Matrix { rows: 21, columns: 136, box_rows: ROWS as u32 };
    let input = words(matrix.rows * matrix.columns / 2);
    let value = |row: usize, column: usize| -> u32 {
        let at = row * matrix.columns + column;
        let inside = row < matrix.rows && column < matrix.columns;
        if inside { input[at / 2] >> (16 * (at % 2)) & 0xffff } else { 0 }
    };
    let of = |(column, row): (usize, usize)| {
        let places =
            (0..BLOCKS * ROWS).flat_map(|at| (0..BOX / 2).map(move |pair| (row + at, column + 2 * pair)));
        let block: Vec<u32> = places.map(|(row, at)| value(row, at) | value(row, at + 1) << 16).collect();
        let vector = Vector::new("boxes", 128, &input, [column as i32, row as i32], block.repeat(BLOCKS));
        Vector { blocks: BLOCKS as u32, matrix: Some(matrix), ..vector }
    };
    [(0, 0), (64, 3), (128, 1), (72, 16)].map(of).into()
}
