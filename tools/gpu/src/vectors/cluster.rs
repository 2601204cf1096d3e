//! What blocks of a cluster do together.

use super::{InPanels, Matrix, Vector, words};

/// Columns of a box.
const BOX: usize = 64;
/// Blocks, and rows of the box that each copies.
const BLOCKS: usize = 2;
const ROWS: usize = 8;

/// Boxes inside of a matrix, and over its right and its lower edge, from each block to both.
pub fn boxes() -> Vec<Vector> {
    let matrix = Matrix { rows: 21, columns: 136, box_rows: ROWS as u32, panels: None };
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

/// Boxes of panels inside of a matrix, over its last row, over its last panel, and behind both.
pub fn panels_of_32() -> Vec<Vector> {
    in_panels("panels_of_32", 32, true)
}

/// The same of wider ones, behind each other and side by side.
pub fn panels_of_64() -> Vec<Vector> {
    [in_panels("panels_of_64", 64, true), in_panels("panels_of_64", 64, false)].concat()
}

fn in_panels(kernel: &'static str, width: usize, apart: bool) -> Vec<Vector> {
    const OF_BOX: usize = 2;
    let (rows, count) = (21, 7);
    let panels = Some(InPanels { width, of_box: OF_BOX as u32, apart });
    let matrix = Matrix { rows, columns: count * width, box_rows: ROWS as u32, panels };
    let input = words(rows * matrix.columns / 2);
    let pair = |panel: usize, row: usize, column: usize| -> u32 {
        let at = match apart {
            true => (panel * rows + row) * width + column,
            false => row * matrix.columns + panel * width + column,
        };
        if row < rows && panel < count { input[at / 2] } else { 0 }
    };
    let of = |(row, panel): (usize, usize)| {
        let mut block = Vec::new();
        for panel in panel..panel + BLOCKS * OF_BOX {
            for row in row..row + ROWS {
                block.extend((0..width).step_by(2).map(|column| pair(panel, row, column)));
            }
        }
        let vector = Vector::new(kernel, 128, &input, [row as i32, panel as i32], block.repeat(BLOCKS));
        Vector { blocks: BLOCKS as u32, matrix: Some(matrix), ..vector }
    };
    [(0, 0), (3, 1), (16, 2), (5, 4), (24, 6)].map(of).into()
}
