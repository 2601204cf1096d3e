//! What comes before the first block: documents' features where they are needed, the rbf input, ordinal embeddings.

use criterion::Criterion;
use setrank::data::layout::{Grid, Occupied};
use setrank::ops::embed::{DeviceOrdinals, embed_backward, embed_forward};
use setrank::ops::gather::{RowNumbers, gather_rows};
use setrank::ops::linear::{Activation, DeviceLinear};
use setrank::ops::partial_sums::PendingSums;
use setrank::ops::rbf::{DeviceRbf, RbfShape, rbf_backward, rbf_forward};
use setrank::ops::unpad::{DeviceGrid, unpad};

use crate::card::{Card, FEATURE_COLUMNS, FEATURES, HIDDEN, SIZES};
use crate::timing::Measured;

/// A batch's features out of those of a data set that stay on the GPU, and out of grids with padding.
pub fn gathering(criterion: &mut Criterion, card: &Card) {
    let (gpu, rows) = (&card.gpu, card.documents);
    Measured::rows("gather", "rows of a data set", rows).launches(criterion, card, |memory| {
        // Documents of one query are neighbours, queries are not.
        let number = |row: usize| (row / SIZES[0] * 7919 * SIZES[0] + row % SIZES[0]) % rows;
        let numbers: Vec<i32> = (0..rows).map(|row| number(row) as i32).collect();
        let numbers =
            memory.package(RowNumbers::bytes(rows), |package| RowNumbers::new(package, &numbers, rows))?;
        let from = memory.normals(rows * FEATURE_COLUMNS, 1.0)?;
        let mut to = memory.taken(from.len())?;
        Ok(Box::new(move || gather_rows(gpu, &mut to, &from, &numbers, None, FEATURE_COLUMNS)))
    });
    // Sets that fill the best part of their cells.
    let (size, n_max) = (SIZES[0], 64);
    let sets = card.sets(size);
    let masked = (0..sets * n_max).map(|cell| cell % n_max < size).collect();
    let occupied = [("padded", Occupied::Lengths(vec![size; sets])), ("masked", Occupied::Mask(masked))];
    for (name, occupied) in occupied {
        Measured::rows("unpad", name, sets * size).launches(criterion, card, |memory| {
            let features = (0..sets * n_max * FEATURES).map(|at| (at % 251) as f32 / 251.0).collect();
            let occupied = occupied.clone();
            let grid = Grid { occupied, n_max, num_features: FEATURES, features, ..Grid::default() };
            let mut arena = memory.arena(DeviceGrid::bytes(&grid))?;
            let grid = DeviceGrid::new(gpu, &mut arena, &grid, FEATURE_COLUMNS)?;
            let mut rows = memory.taken(sets * size * FEATURE_COLUMNS)?;
            Ok(Box::new(move || unpad(gpu, &mut rows, &grid)))
        });
    }
}

/// The rbf input's first layer, of a tenth of the features: of all, backward takes as long as the whole model.
pub fn rbf(criterion: &mut Criterion, card: &Card) {
    let (gpu, rows, group) = (&card.gpu, card.documents, &card.group("rbf"));
    let shape = RbfShape { rows, features: FEATURES / 10, stride: 64, centers: 100, outputs: 4 * HIDDEN };
    let (columns, weights) = (shape.columns(), shape.outputs * shape.width());
    Measured::rows(group, "forward", rows).launches(criterion, card, |memory| {
        let (x, centers) = (memory.normals(rows * shape.stride, 0.2)?, memory.wide_normals(columns, 0.3)?);
        let (weight, bias) = (memory.normals(weights, 0.02)?, memory.filled(shape.outputs, 0.0)?);
        let mut y = memory.taken(rows * shape.outputs)?;
        Ok(Box::new(move || {
            let rbf = DeviceRbf { centers: &centers, layer: DeviceLinear { weight: &weight, bias: &bias } };
            rbf_forward(gpu, &mut y, &x, rbf, Activation::Relu, shape)
        }))
    });
    Measured::rows(group, "backward", rows).launches(criterion, card, |memory| {
        let (x, centers) = (memory.normals(rows * shape.stride, 0.2)?, memory.wide_normals(columns, 0.3)?);
        let (weight, bias) = (memory.normals(weights, 0.02)?, memory.filled(shape.outputs, 0.0)?);
        let dy = memory.normals(rows * shape.outputs, 1.0)?;
        let (mut d_centers, mut d_weight) = (memory.filled(columns, 0.0)?, memory.filled(weights, 0.0)?);
        let mut d_bias = memory.filled(shape.outputs, 0.0)?;
        let scratch = memory.taken(shape.scratch_len(gpu.limits()))?;
        Ok(Box::new(move || {
            let rbf = DeviceRbf { centers: &centers, layer: DeviceLinear { weight: &weight, bias: &bias } };
            let gradients = (&mut d_centers, &mut d_weight, &mut d_bias);
            let sums = &mut PendingSums::new(scratch.alias());
            rbf_backward(gpu, gradients.0, gradients.1, gradients.2, &dy, &x, rbf, sums, shape)
        }))
    });
}

/// Ordinal embeddings of one ranking.
pub fn ordinals(criterion: &mut Criterion, card: &Card) {
    let (gpu, size) = (&card.gpu, SIZES[1]);
    let rows = card.documents;
    let ranking: [Vec<i32>; 1] = [(0..rows).map(|row| (row % size) as i32).collect()];
    let bytes = DeviceOrdinals::bytes(rows, 1, size);
    Measured::rows("embed", "forward", rows).launches(criterion, card, |memory| {
        let ordinals = memory.package(bytes, |package| DeviceOrdinals::new(package, &ranking, size))?;
        let (x, tables) = (memory.normals(rows * HIDDEN, 1.0)?, memory.wide_normals(size * HIDDEN, 1.0)?);
        let mut y = memory.taken(rows * HIDDEN)?;
        Ok(Box::new(move || embed_forward(gpu, &mut y, Some(&x), &tables, &ordinals, HIDDEN)))
    });
    Measured::rows("embed", "backward", rows).launches(criterion, card, |memory| {
        let ordinals = memory.package(bytes, |package| DeviceOrdinals::new(package, &ranking, size))?;
        let (dy, mut d_tables) = (memory.normals(rows * HIDDEN, 1.0)?, memory.filled(size * HIDDEN, 0.0)?);
        Ok(Box::new(move || embed_backward(gpu, &mut d_tables, &dy, &ordinals, HIDDEN)))
    });
}
