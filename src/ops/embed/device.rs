//! Ordinal embeddings on a GPU: the kernels of `kernels/embed.cu`.

use half::bf16;

use super::{ByTableRow, EmbedPlan, EmbedShape};
use crate::device::abi::{EmbedBackward, EmbedForward};
use crate::device::{Arena, Buffer, DeviceError, Gpu, Operands, Package, parameter};

parameter!(EmbedForward: |self| {
    let EmbedForward { rows, width, rankings, n_max, .. } = self;
    format!("{rows} documents of width {width}, {rankings} rankings of at most {n_max}")
});

parameter!(EmbedBackward: |self| format!("tables of width {}", self.width));

/// A batch's ordinals on a GPU: by document, and the documents sorted by what they add to.
#[derive(Debug)]
pub struct DeviceOrdinals {
    shape: EmbedShape,
    /// `[R, N]`
    ordinals: Buffer<i32>,
    /// `[R·n_max + 1]`
    starts: Buffer<i32>,
    documents: Buffer<i32>,
}

impl DeviceOrdinals {
    /// Puts `ordinals` `[R][N]`, each a row of a table of `n_max`, or negative where the ranking lacks the document, into
    /// `package`.
    ///
    /// # Errors
    ///
    /// An ordinal beyond the table, rankings of different lengths, and too small a package.
    pub fn new(package: &mut Package<'_>, ordinals: &[Vec<i32>], n_max: usize) -> Result<Self, DeviceError> {
        let sorted = ByTableRow::new(ordinals, n_max)?;
        let documents = ordinals.first().map_or(0, Vec::len);
        Ok(DeviceOrdinals {
            shape: EmbedShape { documents, rankings: ordinals.len(), n_max },
            ordinals: package.put(&ordinals.concat())?,
            starts: package.put(&sorted.starts)?,
            documents: package.put(&sorted.documents)?,
        })
    }

    /// Bytes that it takes of a package at most.
    pub fn bytes(documents: usize, rankings: usize, n_max: usize) -> usize {
        let by_document = rankings * documents;
        Arena::bytes_for([by_document, rankings * n_max + 1, by_document].map(|len| len * size_of::<i32>()))
    }
}

/// Queues y `[N, C]` = x `[N, C]` + Σ_r tables `[R, n_max, C]` at each document's ordinals, rounded once; a negative one
/// adds nothing. Without x, y is changed in place.
///
/// # Errors
///
/// Sizes that do not fit, buffers that overlap or are of another GPU, and what the driver refuses.
pub fn embed_forward(
    gpu: &Gpu,
    y: &mut Buffer<bf16>,
    x: Option<&Buffer<bf16>>,
    tables: &Buffer<f32>,
    ordinals: &DeviceOrdinals,
    width: usize,
) -> Result<(), DeviceError> {
    let shape = ordinals.shape;
    let plan = EmbedPlan::new(shape, width)?;
    let mut operands = Operands::new(gpu, "ordinal embeddings");
    operands.reads("tables [R, n_max, C]", tables, shape.table_rows() * width)?;
    operands.reads("ordinals [R, N]", &ordinals.ordinals, shape.rankings * shape.documents)?;
    if let Some(x) = x {
        operands.reads("x [N, C]", x, shape.documents * width)?;
    }
    operands.updates("y [N, C]", y, shape.documents * width)?;
    let Some(launch) = plan.forward() else { return Ok(()) };
    let to = y.pointer_mut::<u16>();
    let parameter = EmbedForward {
        x: x.map_or(to.cast_const(), Buffer::pointer),
        tables: tables.pointer(),
        ordinals: ordinals.ordinals.pointer(),
        y: to,
        ..plan.forward_numbers()
    };
    // SAFETY: the buffers have the kernel's sizes, y is apart or read by the thread that writes it, ordinals are below
    // n_max, and memory that is given back is freed in the stream's order.
    unsafe { gpu.launch(&launch, &parameter) }
}

/// Queues d_tables `[R, n_max, C]` += dy `[N, C]` at each document's ordinals.
///
/// # Errors
///
/// As [`embed_forward`].
pub fn embed_backward(
    gpu: &Gpu,
    d_tables: &mut Buffer<f32>,
    dy: &Buffer<bf16>,
    ordinals: &DeviceOrdinals,
    width: usize,
) -> Result<(), DeviceError> {
    let shape = ordinals.shape;
    let plan = EmbedPlan::new(shape, width)?;
    let mut operands = Operands::new(gpu, "gradients of ordinal embeddings");
    operands.reads("dy [N, C]", dy, shape.documents * width)?;
    operands.reads("starts", &ordinals.starts, shape.table_rows() + 1)?;
    operands.reads("documents", &ordinals.documents, ordinals.documents.len())?;
    operands.updates("d_tables [R, n_max, C]", d_tables, shape.table_rows() * width)?;
    let Some(launch) = plan.backward() else { return Ok(()) };
    let parameter = EmbedBackward {
        dy: dy.pointer(),
        starts: ordinals.starts.pointer(),
        documents: ordinals.documents.pointer(),
        d_tables: d_tables.pointer_mut(),
        ..plan.backward_numbers()
    };
    // SAFETY: as in `embed_forward`; documents are rows of dy.
    unsafe { gpu.launch(&launch, &parameter) }
}
