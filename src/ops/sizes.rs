//! Sizes that kernels of several families take.

use crate::device::DeviceError;

/// Rows of a batch: kernels count them in 32 bits, and round up to whole tiles and parts.
const MAX_ROWS: usize = 1 << 30;

/// The widest layer: tiles of a matrix of both its widths are counted in 32 bits.
pub(crate) const MAX_WIDTH: usize = 1 << 20;

/// Refuses widths that kernels do not take: they take multiples of 64 up to `most`.
pub(in crate::ops) fn refuse_width(
    launch: &str,
    name: &str,
    width: usize,
    most: usize,
) -> Result<(), DeviceError> {
    if width == 0 || width > most || !width.is_multiple_of(64) {
        return Err(DeviceError::Shapes(format!(
            "{launch} on a GPU: {name} are a multiple of 64 up to {most}, not {width}"
        )));
    }
    Ok(())
}

/// Refuses more rows than kernels count.
pub(in crate::ops) fn refuse_rows(launch: &str, rows: usize) -> Result<(), DeviceError> {
    if rows > MAX_ROWS {
        return Err(DeviceError::Shapes(format!("{launch} on a GPU: at most {MAX_ROWS} rows, not {rows}")));
    }
    Ok(())
}
