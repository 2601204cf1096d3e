//! The table of counts, and how it is written.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::Serialize;

use crate::config::Encoder;
use crate::device::choice::{Fusion, MatrixKernels};

/// What kernels did, of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Bytes that warps ask of global memory: of each request whole sectors of 32, each once.
    pub requested: f64,
    /// Distinct bytes of it that are touched.
    pub unique: f64,
    /// Matrix products of a warp, m16n8k16.
    pub products: f64,
    /// Exponentials.
    pub exponentials: f64,
    /// Cycles of shared memory.
    pub wavefronts: f64,
}

impl Counts {
    /// Operations of the products.
    pub fn operations(&self) -> f64 {
        2.0 * 16.0 * 8.0 * 16.0 * self.products
    }

    /// Each count from those of two.
    pub fn zip(&self, other: &Counts, with: impl Fn(f64, f64) -> f64) -> Counts {
        Counts {
            requested: with(self.requested, other.requested),
            unique: with(self.unique, other.unique),
            products: with(self.products, other.products),
            exponentials: with(self.exponentials, other.exponentials),
            wavefronts: with(self.wavefronts, other.wavefronts),
        }
    }

    fn all(&self) -> [f64; 5] {
        [self.requested, self.unique, self.products, self.exponentials, self.wavefronts]
    }
}

/// Counts of kernels, by their names.
pub type Kernels = BTreeMap<String, Counts>;

/// What was counted of one batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Rung {
    /// Kind of block.
    pub encoder: Encoder,
    /// Documents of each set.
    pub size: usize,
    /// What is fused.
    pub fuse: Fusion,
    /// By which matrix instructions.
    pub matrix: MatrixKernels,
    /// Launches of a step of six blocks.
    pub launches: f64,
    /// A document's, of a model of one block.
    pub first: Kernels,
    /// A document's, of each block besides: its kernels do what is between it and the block before, too.
    pub block: Kernels,
}

impl Rung {
    /// What is fused, and by which matrix instructions.
    pub fn kernels(&self) -> (Fusion, MatrixKernels) {
        (self.fuse, self.matrix)
    }

    /// A document's, of a step of a model with so many blocks, at least 1.
    pub fn step(&self, blocks: usize) -> Kernels {
        let mut all = self.first.clone();
        for (kernel, counts) in &self.block {
            let sum = all.entry(kernel.clone()).or_default();
            *sum = sum.zip(counts, |first, block| first + (blocks as f64 - 1.0) * block);
        }
        all
    }
}

/// All that was counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    rungs: Vec<Rung>,
}

const HEADER: &str = "\
# What the emulator counts of a training step of 220 features, C 256, H 8, G 1024, M 20, of a document, on a card of compute
# capability 9.0, what a step does once left out: the kernels of a model of one block, and what each block besides adds. A
# rung's first line has the launches of a step of six blocks.
# Written by: SETRANK_ACCEPT_COUNTERS=1 cargo test --features cuda --test kernels a_step_costs
encoder\tsize\tfuse\tmatrix\tpart\tkernel\trequested\tunique\tproducts\texponentials\twavefronts
";

impl Table {
    /// The table of this program's kernels.
    ///
    /// # Panics
    ///
    /// Never: a test reads it.
    pub fn counted() -> Self {
        include_str!("counts.tsv").parse().expect("the table is read by a test")
    }

    /// Of each encoder, size and rung.
    pub fn rungs(&self) -> &[Rung] {
        &self.rungs
    }

    /// Adds one.
    pub fn add(&mut self, rung: Rung) {
        self.rungs.push(rung);
    }
}

fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEADER)?;
        for rung in &self.rungs {
            let [encoder, fuse, matrix] = [name(&rung.encoder), name(&rung.fuse), name(&rung.matrix)];
            let begin = format!("{encoder}\t{}\t{fuse}\t{matrix}", rung.size);
            writeln!(f, "{begin}\tstep\tlaunches\t{}", rung.launches)?;
            for (part, kernels) in [("first", &rung.first), ("block", &rung.block)] {
                for (kernel, counts) in kernels {
                    write!(f, "{begin}\t{part}\t{kernel}")?;
                    counts.all().iter().try_for_each(|count| write!(f, "\t{count:.3}"))?;
                    writeln!(f)?;
                }
            }
        }
        Ok(())
    }
}

impl FromStr for Table {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut table = Table::default();
        let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
        for (number, line) in lines.skip(1) {
            table.read(line).ok_or_else(|| format!("line {}: `{line}`", number + 1))?;
        }
        Ok(table)
    }
}

impl Table {
    fn read(&mut self, line: &str) -> Option<()> {
        let mut words = line.split('\t');
        let encoder = Encoder::from_str(words.next()?, false).ok()?;
        let size = words.next()?.parse().ok()?;
        let fuse = Fusion::from_str(words.next()?, false).ok()?;
        let matrix = MatrixKernels::from_str(words.next()?, false).ok()?;
        let (part, kernel) = (words.next()?, words.next()?.to_owned());
        let numbers = words.map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>()?;
        if let ("step", &[launches]) = (part, &numbers[..]) {
            let (first, block) = (Kernels::new(), Kernels::new());
            self.rungs.push(Rung { encoder, size, fuse, matrix, launches, first, block });
            return Some(());
        }
        let &[requested, unique, products, exponentials, wavefronts] = &numbers[..] else { return None };
        let rung = self
            .rungs
            .last_mut()
            .filter(|rung| (rung.encoder, rung.size, rung.kernels()) == (encoder, size, (fuse, matrix)))?;
        let of_part = match part {
            "first" => &mut rung.first,
            "block" => &mut rung.block,
            _ => return None,
        };
        of_part.insert(kernel, Counts { requested, unique, products, exponentials, wavefronts });
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_as_it_is_written() {
        let text = include_str!("counts.tsv");
        assert_eq!(Table::counted().to_string(), text);
        for (wrong, line) in [
            ("a\nmsab\t40\tall\tmma\tblock\tx\t1\t1\t1\t1\t1\n", "line 2: `msab\t40\tall\tmma\tblock"),
            ("a\nmsab\t40\tall\tmma\tstep\tlaunches\tx\n", "line 2"),
            ("a\nnone\t40\tall\tmma\tstep\tlaunches\t1\n", "line 2"),
        ] {
            let error = wrong.parse::<Table>().unwrap_err();
            assert!(error.starts_with(line), "{error}");
        }
    }
}
