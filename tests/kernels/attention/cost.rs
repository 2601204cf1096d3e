//! What attention costs by its counters: the table in `docs/kernels.md`.

use std::path::Path;
use std::{env, fs};

use super::counted::{ONE_HEAD, Row, SHAPES, STREAMED, Shape, row};
use crate::family::ACCEPT_COUNTERS as ACCEPT;

/// Rates of an H100: bytes, products of warps by wgmma and by mma.sync, exponentials and wavefronts in a nanosecond.
const BYTES: f64 = 3.0e3;
const PRODUCTS_OF_WARPGROUPS: f64 = 798e3 / 4096.0;
const PRODUCTS: f64 = 0.65 * PRODUCTS_OF_WARPGROUPS;
const EXPONENTIALS: f64 = 3.6e3;
const WAVEFRONTS: f64 = 132.0 * 1.7;

const LAYERS: f64 = 6.0;
const HEADS: f64 = 8.0;

/// A line: what, the kernels that do it, the matrix products that it needs, and blocks that a multiprocessor has at once.
struct Line {
    what: &'static str,
    kernels: &'static [&'static str],
    shape: &'static str,
    products: usize,
    blocks: &'static str,
}

const LINES: [Line; 12] = [
    Line {
        what: "forward, keys stay",
        kernels: &["attention_forward_d32"],
        shape: "360",
        products: 2,
        blocks: "3: registers of 12 warps with three tiles of queries each",
    },
    Line {
        what: "forward, by warpgroups",
        kernels: &["attention_forward_wgmma_d32"],
        shape: "360",
        products: 2,
        blocks: "2: registers of 8 warps that attend and 4 that load",
    },
    Line {
        what: "forward, streamed",
        kernels: &["attention_forward_d32"],
        shape: "360 streamed",
        products: 2,
        blocks: "3",
    },
    Line {
        what: "forward, not fused",
        kernels: &["attention_naive_scores_d32", "attention_naive_softmax", "attention_naive_product_d32"],
        shape: "360, one head",
        products: 2,
        blocks: "8 to 16: registers",
    },
    Line {
        what: "forward, 20 points ask (split)",
        kernels: &["attention_forward_split_d32"],
        shape: "20 to 360",
        products: 2,
        blocks: "3",
    },
    Line {
        what: "forward, 20 points are asked",
        kernels: &["attention_forward_d32"],
        shape: "360 to 20",
        products: 2,
        blocks: "3",
    },
    Line {
        what: "backward, sets stay",
        kernels: &["attention_backward_d32"],
        shape: "360",
        products: 5,
        blocks: "1: 8 warps with all registers, a set in shared memory",
    },
    Line {
        what: "backward, by warpgroups",
        kernels: &["attention_backward_wgmma_d32"],
        shape: "360, one head",
        products: 5,
        blocks: "1: registers of 8 warps that hold 32 keys each, of 4 that load and sum",
    },
    Line {
        what: "backward, streamed",
        kernels: &["attention_d_queries_d32", "attention_d_keys_d32"],
        shape: "360 streamed",
        products: 5,
        blocks: "2 and 4: registers",
    },
    Line {
        what: "backward, not fused",
        kernels: &[
            "attention_naive_scores_d32",
            "attention_naive_weights",
            "attention_naive_product_transposed_d32",
            "attention_naive_scores_d32",
            "attention_naive_d_scores",
            "attention_naive_product_d32",
            "attention_naive_product_transposed_d32",
        ],
        shape: "360, one head",
        products: 5,
        blocks: "8 to 16: registers",
    },
    Line {
        what: "backward, 20 points ask",
        kernels: &["attention_backward_induce_d32"],
        shape: "20 to 360",
        products: 5,
        blocks: "2: registers of 8 warps that hold the points; 32 KB on their way",
    },
    Line {
        what: "backward, 20 points are asked",
        kernels: &["attention_backward_attend_d32"],
        shape: "360 to 20",
        products: 5,
        blocks: "2: as where they ask",
    },
];

impl Line {
    fn shape(&self) -> &'static Shape {
        let mut shapes = SHAPES.iter().chain([&STREAMED, &ONE_HEAD]);
        shapes.find(|shape| shape.name == self.shape).expect("a shape that is counted")
    }

    fn text(&self) -> String {
        let shape = self.shape();
        let rows: Vec<Row> = self.kernels.iter().map(|kernel| row(kernel, shape.name)).collect();
        let sum = |of: fn(&Row) -> f64| rows.iter().map(of).sum::<f64>();
        let (bytes, products) = (sum(|row| row.bytes), sum(|row| row.products));
        let (exponentials, wavefronts) = (sum(|row| row.exponentials), sum(|row| row.wavefronts));
        // Of a document in all layers.
        let time = |count: f64, rate: f64| count / shape.documents() * HEADS * LAYERS / rate;
        let rate = if self.kernels[0].contains("wgmma") { PRODUCTS_OF_WARPGROUPS } else { PRODUCTS };
        let least = [
            time(shape.bytes(self.products == 5, 32), BYTES),
            time(shape.products(self.products, 32), rate),
            time(shape.pairs(), EXPONENTIALS),
        ];
        let floor = least.into_iter().fold(0.0, f64::max);
        let times = [
            ("bytes", time(bytes, BYTES)),
            ("products", time(products, rate)),
            ("exponentials", time(exponentials, EXPONENTIALS)),
            ("wavefronts", time(wavefronts, WAVEFRONTS)),
        ];
        let (limit, most) =
            times.into_iter().fold(("", 0.0), |most, at| if at.1 > most.1 { at } else { most });
        let [of_bytes, of_products, of_exponentials, of_wavefronts] = times.map(|(_, time)| time);
        format!(
            "| {} | {floor:.2} | {of_bytes:.2} | {of_products:.2} ({:.0} %) | {of_exponentials:.2} ({:.2}) | \
             {of_wavefronts:.2} ({:.2}) | {most:.2}: {limit} | {} |\n",
            self.what,
            100.0 * shape.products(self.products, 32) / products,
            exponentials / shape.pairs(),
            wavefronts / products,
            self.blocks,
        )
    }
}

const BEGIN: &str = "| attention | floor |";

/// The table is what `counters.txt` makes of it.
#[test]
fn the_documented_cost_is_what_the_counters_say() {
    let mut table = format!(
        "{BEGIN} bytes | products (useful) | exponentials (a pair) | wavefronts (a product) | most | blocks at once |\n\
         |---|---|---|---|---|---|---|---|\n"
    );
    LINES.iter().for_each(|line| table += &line.text());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/kernels.md");
    let page = fs::read_to_string(&path).unwrap();
    let begin = page.find(BEGIN).expect("docs/kernels.md has the table");
    let end = begin + page[begin..].find("\n\n").expect("a line behind it") + 1;
    if env::var_os(ACCEPT).is_some() {
        fs::write(&path, format!("{}{table}{}", &page[..begin], &page[end..])).unwrap();
        return;
    }
    assert!(page[begin..end] == table, "set {ACCEPT}=1 if that is meant. Now:\n{table}");
}
