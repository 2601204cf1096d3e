//! Problems of ordinal embeddings on a GPU, their exact answers, and what a kernel's answers are held against.

use half::bf16;

use super::{
    ByTableRow, DeviceOrdinals, EmbedPlan, EmbedShape, backward, embed_backward, embed_forward, forward,
};
use crate::device::{DeviceError, Gpu, Uploads};
use crate::ops::check::draw::{Draw, plain_evaluations};
use crate::ops::check::rounding::{to_bf16, to_f32};
use crate::ops::check::{Checked, Deviation, SEED, deviation, room, uploaded};
use crate::ops::values::wide;
use crate::rng::{Rng, Stream};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// y
    Forward {
        /// Whether y is x.
        in_place: bool,
    },
    /// d_tables
    Backward,
}

/// Ordinal embeddings of a batch.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Sizes.
    pub shape: EmbedShape,
    /// C
    pub width: usize,
    /// What is computed.
    pub pass: Pass,
    /// `[R][N]`
    pub ordinals: Vec<Vec<i32>>,
    /// x or dy `[N, C]`
    pub rows: Vec<bf16>,
    /// The tables, or what their gradients are added to `[R, n_max, C]`.
    pub tables: Vec<f32>,
}

impl Problem {
    /// Normally distributed numbers; a tenth of the documents is in no ranking, and some rows of tables are of no document
    /// while others are of many.
    pub fn random(shape: EmbedShape, width: usize, pass: Pass, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let EmbedShape { documents, rankings, n_max } = shape;
        let mut ordinal = || {
            let [absent, at] = [0, 1].map(|_| rng.normal().abs());
            if absent < 0.125 { -1 } else { ((at * n_max as f64 / 2.0) as usize).min(n_max - 1) as i32 }
        };
        let ordinals =
            (0..rankings).map(|_| (0..documents).map(|_| ordinal()).collect()).collect::<Vec<Vec<i32>>>();
        let rows = (0..documents * width).map(|_| bf16::from_f64(rng.normal())).collect();
        let tables = (0..rankings * n_max * width).map(|_| rng.normal() as f32).collect();
        Problem { shape, width, pass, ordinals, rows, tables }
    }

    /// The plan of its launch.
    pub fn plan(&self) -> Result<EmbedPlan, DeviceError> {
        EmbedPlan::new(self.shape, self.width)
    }

    /// The documents by table row.
    pub fn sorted(&self) -> Result<ByTableRow, DeviceError> {
        ByTableRow::new(&self.ordinals, self.shape.n_max)
    }

    /// What each value of the result is the sum of.
    fn terms(&self) -> Vec<Vec<f32>> {
        let of_table = self.shape.n_max * self.width;
        let starts: Vec<f32> = match self.pass {
            Pass::Forward { .. } => self.rows.iter().map(|value| value.to_f32()).collect(),
            Pass::Backward => self.tables.clone(),
        };
        let mut terms: Vec<Vec<f32>> = starts.into_iter().map(|start| vec![start]).collect();
        for (ranking, ordinals) in self.ordinals.iter().enumerate() {
            for (document, &ordinal) in ordinals.iter().enumerate() {
                let Ok(ordinal) = usize::try_from(ordinal) else { continue };
                let row = document * self.width;
                let of_row = ranking * of_table + ordinal * self.width;
                for column in 0..self.width {
                    let (row, of_row) = (row + column, of_row + column);
                    match self.pass {
                        Pass::Forward { .. } => terms[row].push(self.tables[of_row]),
                        Pass::Backward => terms[of_row].push(self.rows[row].to_f32()),
                    }
                }
            }
        }
        terms
    }

    /// The answer in f64, by the CPU's own operation.
    fn exact(&self) -> Vec<f64> {
        let mut rows = wide(&self.rows);
        let mut tables: Vec<f64> = self.tables.iter().copied().map(f64::from).collect();
        let of_table = self.shape.n_max * self.width;
        for (table, ordinals) in tables.chunks_mut(of_table).zip(&self.ordinals) {
            match self.pass {
                Pass::Forward { .. } => forward(&mut rows, table, ordinals, self.width),
                Pass::Backward => backward(table, &rows, ordinals, self.width),
            }
        }
        if self.pass == Pass::Backward { tables } else { rows }
    }

    /// How far a kernel's answer is off. Sums of many documents are larger: each is held against those of like many.
    pub fn deviation(&self, kernel: &[f64]) -> Deviation {
        let (exact, terms) = (self.exact(), self.terms());
        if kernel.len() != exact.len() {
            return Deviation { found: f64::INFINITY, ..Deviation::default() };
        }
        let round = match self.pass {
            Pass::Forward { .. } => to_bf16,
            Pass::Backward => to_f32,
        };
        let sum = |terms: &[f32], draw: Draw| {
            let sum = draw.order(terms.len()).iter().fold(0.0, |sum, &at| sum + terms[at]);
            round(f64::from(sum))
        };
        let plain = plain_evaluations(exact.len(), |draw| -> Vec<f64> {
            terms.iter().map(|terms| sum(terms, draw)).collect()
        });
        let mut worst = Deviation::default();
        for bits in 0..usize::BITS {
            let of_class = |values: &[f64]| -> Vec<f64> {
                let values = values.iter().zip(&terms);
                values.filter(|(_, terms)| terms.len().ilog2() == bits).map(|(&value, _)| value).collect()
            };
            let plain: Vec<Vec<f64>> = plain.iter().map(|plain| of_class(plain)).collect();
            let plain: Vec<&[f64]> = plain.iter().map(|plain| &plain[..]).collect();
            worst = worst.worse(deviation(&of_class(kernel), &plain, &of_class(&exact), round));
        }
        worst
    }

    /// The answer of a GPU.
    pub fn solve(&self, gpu: &Gpu) -> Result<Vec<f64>, DeviceError> {
        let EmbedShape { documents, rankings, n_max } = self.shape;
        let package = room(gpu, DeviceOrdinals::bytes(documents, rankings, n_max))?;
        let ordinals = Uploads::default()
            .send(gpu, package, |package| DeviceOrdinals::new(package, &self.ordinals, n_max))?;
        let (mut rows, mut tables) = (uploaded(gpu, &self.rows)?, uploaded(gpu, &self.tables)?);
        match self.pass {
            Pass::Forward { in_place: true } => {
                embed_forward(gpu, &mut rows, None, &tables, &ordinals, self.width)?;
                Ok(wide(&gpu.download(&rows)?))
            }
            Pass::Forward { in_place: false } => {
                let mut y = uploaded(gpu, &vec![bf16::NAN; self.rows.len()])?;
                embed_forward(gpu, &mut y, Some(&rows), &tables, &ordinals, self.width)?;
                Ok(wide(&gpu.download(&y)?))
            }
            Pass::Backward => {
                embed_backward(gpu, &mut tables, &rows, &ordinals, self.width)?;
                Ok(gpu.download(&tables)?.into_iter().map(f64::from).collect())
            }
        }
    }
}

/// Both passes, the last block of documents half empty, and a width that leaves threads over.
pub const PASSES: [(Pass, EmbedShape, usize); 4] = [
    (Pass::Forward { in_place: false }, EmbedShape { documents: 45, rankings: 2, n_max: 12 }, 64),
    (Pass::Forward { in_place: true }, EmbedShape { documents: 13, rankings: 3, n_max: 12 }, 192),
    (Pass::Backward, EmbedShape { documents: 150, rankings: 2, n_max: 5 }, 64),
    (Pass::Backward, EmbedShape { documents: 90, rankings: 1, n_max: 7 }, 192),
];

/// Runs ordinal embeddings on the device and holds them against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_shapes(gpu, |shape| shape)
}

/// The same for so many documents.
pub fn run_at(gpu: &Gpu, documents: usize) -> Result<Vec<Checked>, DeviceError> {
    of_shapes(gpu, |shape| EmbedShape { documents, ..shape })
}

fn of_shapes(gpu: &Gpu, change: impl Fn(EmbedShape) -> EmbedShape) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for (pass, shape, width) in PASSES {
        let shape = change(shape);
        let problem = Problem::random(shape, width, pass, SEED);
        let found = problem.solve(gpu)?;
        let what = format!("ordinal embeddings, {pass:?}, {shape:?}, width {width}");
        checked.push(Checked::new(what, problem.deviation(&found), || (found, problem.exact())));
    }
    Ok(checked)
}
