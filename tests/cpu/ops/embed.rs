//! Ordinal embeddings.

use setrank::ops::embed;

use super::{check, dot, normals};

#[test]
fn adds_rows_and_collects_gradients() {
    // 40 columns: more than one piece of the gradient.
    let hidden = 40;
    let (table, x) = (normals(5 * hidden, 1), normals(4 * hidden, 2));
    let indices = [4, -1, 0, 4];
    let mut y = x.clone();
    embed::forward(&mut y, &table, &indices, hidden);
    for (row, &index) in indices.iter().enumerate() {
        for column in 0..hidden {
            let added = if index < 0 { 0.0 } else { table[index as usize * hidden + column] };
            assert_eq!(y[row * hidden + column], x[row * hidden + column] + added);
        }
    }
    let dy = normals(4 * hidden, 3);
    let mut d_table = vec![1.0; table.len()];
    embed::backward(&mut d_table, &dy, &indices, hidden);
    d_table.iter_mut().for_each(|d| *d -= 1.0);
    check("d_table", &table, &d_table, |table| {
        let mut y = x.clone();
        embed::forward(&mut y, table, &indices, hidden);
        dot(&y, &dy)
    });
}
