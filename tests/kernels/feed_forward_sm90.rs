//! The row-wise network by matrix instructions of warpgroups.

use std::mem::offset_of;

use setrank::device::abi::FeedForwardWgmma;
use setrank::device::{Gpu, Limits, TensorMap};
use setrank::ops::check::Deviation;
use setrank::ops::feed_forward::check::warpgroups::SHAPES;
use setrank::ops::feed_forward::check::{Problem, projecting};
use setrank::ops::feed_forward::{Blocks, FeedForwardShape};
use setrank::ops::linear::Activation;
use setrank::rng::{Rng, Stream};
use setrank_emulator::driver::{self, Configuration};
use setrank_emulator::emulate::{self, Config, Sums};
use setrank_emulator::kernels::Kernels;
use setrank_emulator::launch::{Launch, tensor_map};

use crate::attention::counted::row;
use crate::family::{self, Bug, Case, Counted, Family, WRONG_RESULTS, WrongLaunch};
use crate::feed_forward::{
    a_period_left_out, added_rows_of_the_first_block, buffers, numbers, pairs_that_lanes_do_not_swap,
    projects_as_a_kernel_of_its_own, rows_behind_the_last, stays_in_its_row, weights_that_are_too_short,
};
use crate::ladder::ladder;
use crate::warpgroups::{
    UNWRITTEN, a_block_that_exits_too_early, fewer_bytes_than_come, mbarriers_that_copies_do_not_see,
    mbarriers_that_the_other_block_has_not_made, operands_that_are_replaced,
    operands_that_one_block_alone_gets_back, the_other_phase,
};

ladder!(FAMILY, of_sm_90);

pub const FAMILY: Family =
    Family { name: "feed_forward_sm90", cases, counted, bugs: &BUGS, wrong_launches: &WRONG_LAUNCHES };

/// Bugs are planted in the narrowest kernel: the others are the same template.
const NARROW: &str = "feed_forward_wgmma_c64";

/// In what the kernels of both directions share: each is to find it in its own.
pub const fn rows_that_products_may_not_see(kernels: &'static str) -> Bug {
    Bug {
        what: "rows that products may not see yet",
        file: "feed_forward_sm90.cuh",
        right: "        ptx::fence_proxy_async();\n        ptx::barrier_sync(group(), GROUP);\n",
        wrong: "        ptx::barrier_sync(group(), GROUP);\n",
        kernels,
        found_by: &["which has not called fence_proxy_async since"],
    }
}

pub const fn rows_behind_the_last_that_are_stored(kernels: &'static str) -> Bug {
    Bug {
        what: "rows behind the last that are stored",
        file: "feed_forward_sm90.cuh",
        right: "if (row < valid) ptx::store_global(reinterpret_cast<uint4 *>(to.at",
        wrong: "ptx::store_global(reinterpret_cast<uint4 *>(to.at",
        kernels,
        found_by: &["store_global of 16 bytes at byte", WRONG_RESULTS],
    }
}

const BUGS: [Bug; 43] = [
    Bug {
        what: "registers that are not fenced",
        file: "feed_forward_sm90.cu",
        right: "            ptx::wgmma_fence(inner, results, hidden);\n",
        wrong: "",
        kernels: NARROW,
        found_by: &["wgmma_fence has not had the registers of d"],
    },
    Bug {
        what: "inner rows that are not fenced",
        file: "feed_forward_sm90.cu",
        right: "        ptx::wgmma_fence(results, hidden);\n",
        wrong: "        ptx::wgmma_fence(results);\n",
        kernels: NARROW,
        found_by: &["registers of a were written since wgmma_fence had them"],
    },
    rows_that_products_may_not_see(NARROW),
    Bug {
        what: "rows that are multiplied before all are there",
        file: "feed_forward_sm90.cuh",
        right: "        ptx::fence_proxy_async();\n        ptx::barrier_sync(group(), GROUP);\n",
        wrong: "        ptx::fence_proxy_async();\n",
        kernels: NARROW,
        found_by: &[UNWRITTEN, "is under way"],
    },
    Bug {
        what: "inner rows that are not waited for",
        file: "feed_forward_sm90.cu",
        right: "            ptx::wgmma_wait<1>(inner);\n",
        wrong: "            ptx::wgmma_wait<2>(inner);\n",
        kernels: NARROW,
        found_by: &["of these results is still under way"],
    },
    Bug {
        what: "results that are not waited for",
        file: "feed_forward_sm90.cu",
        right: "            ptx::wgmma_wait<0>(results);\n            ring.release();\n",
        wrong: "            ring.release();\n",
        kernels: NARROW,
        found_by: &["under way", "is overwritten while a wgmma_m64k16_bf16 reads it"],
    },
    Bug {
        what: "weights of fc1 that are given back before they are multiplied",
        file: "feed_forward_sm90.cu",
        right: "            ptx::wgmma_wait<1>(inner);\n            next.release();\n",
        wrong: "            next.release();\n            ptx::wgmma_wait<1>(inner);\n",
        kernels: NARROW,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it"],
    },
    Bug {
        what: "weights of fc2 that are given back before they are multiplied",
        file: "feed_forward_sm90.cu",
        right: "            ptx::wgmma_wait<0>(results);\n            ring.release();\n",
        wrong: "            ring.release();\n            ptx::wgmma_wait<0>(results);\n",
        kernels: NARROW,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it"],
    },
    the_other_phase(NARROW),
    Bug {
        what: "weights of other columns",
        file: "feed_forward_sm90.cuh",
        right: "k / 4 * TILE + k % 4 * 32);",
        wrong: "k / 4 * TILE + k % 2 * 32);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first chunk's bias for all",
        file: "feed_forward_sm90.cu",
        right: "load_bias(p.bias1 + chunk);",
        wrong: "load_bias(p.bias1);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "no ReLU",
        file: "feed_forward_sm90.cuh",
        right: "{ return value < 0.0f ? 0.0f : value; }",
        wrong: "{ return value; }",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows that y takes the place of while they are multiplied",
        file: "feed_forward_sm90.cu",
        right: "        if (is_projecting()) ptx::barrier_sync(group(), GROUP);\n",
        wrong: "",
        kernels: NARROW,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it", "fence_proxy_async", WRONG_RESULTS],
    },
    Bug {
        what: "no residual",
        file: "feed_forward_sm90.cu",
        right: "low = bf16_low(rounded) + bf16_low(other);",
        wrong: "low = bf16_low(rounded);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a sum of two lanes",
        file: "feed_forward_sm90.cu",
        right: "return own + ptx::shuffle_xor(own, 2);",
        wrong: "return own;",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    rows_behind_the_last(NARROW, &["of `x` of"]),
    a_period_left_out(NARROW, &["of `added` of"]),
    added_rows_of_the_first_block(NARROW),
    Bug {
        what: "rows of the LayerNorm before that nobody puts there",
        file: "norm_rows.cuh",
        right: "            ptx::store_shared(place(row + i), packed);\n",
        wrong: "",
        kernels: NARROW,
        found_by: &[UNWRITTEN],
    },
    Bug {
        what: "statistics behind the last",
        file: "feed_forward_sm90.cu",
        right: "(lane() & 3) == 0 && row < valid",
        wrong: "(lane() & 3) == 0 && row <= valid",
        kernels: NARROW,
        found_by: &["of `statistics` of"],
    },
    mbarriers_that_copies_do_not_see(NARROW),
    mbarriers_that_the_other_block_has_not_made(NARROW),
    a_block_that_exits_too_early(NARROW),
    fewer_bytes_than_come(NARROW),
    Bug {
        what: "weights for one block alone",
        file: "feed_forward_sm90.cuh",
        right: "ptx::tensor_load(to, map, chunk, block * PART, full(), ALL_BLOCKS);",
        wrong: "ptx::tensor_load(to, map, chunk, block * PART, full(), 1 << block);",
        kernels: NARROW,
        found_by: &["deadlock"],
    },
    operands_that_are_replaced(NARROW),
    operands_that_one_block_alone_gets_back(NARROW),
    Bug {
        what: "columns of the chunk behind",
        file: "feed_forward_sm90.cu",
        right: "ring.load2(p.weight2, chunk - CHUNK);",
        wrong: "ring.load2(p.weight2, chunk);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "rows of the other block's part",
        file: "feed_forward_sm90.cuh",
        right: "k * 64, chunk + block * PART",
        wrong: "k * 64, chunk",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "weights that a warpgroup without rows keeps",
        file: "ring_sm90.cuh",
        right: "            wait();\n            release();\n",
        wrong: "            wait();\n",
        kernels: NARROW,
        found_by: &["deadlock"],
    },
    Bug {
        what: "weights that a warpgroup without rows does not wait for",
        file: "ring_sm90.cuh",
        right: "            wait();\n            release();\n",
        wrong: "            release();\n",
        kernels: NARROW,
        found_by: &["is overwritten while", "one arrival more", "the block ends before"],
    },
    Bug {
        what: "rows of y that products may not see yet",
        file: "feed_forward_sm90.cu",
        right: "        if (!is_projecting()) return;\n        show();\n",
        wrong: "        if (!is_projecting()) return;\n",
        kernels: NARROW,
        found_by: &["which has not called fence_proxy_async since"],
    },
    Bug {
        what: "the last weights of fc2 that are kept",
        file: "feed_forward_sm90.cu",
        right: "        ring.release();\n        add_x();",
        wrong: "        add_x();",
        kernels: NARROW,
        found_by: &["deadlock"],
    },
    Bug {
        what: "a projection's weights that are kept",
        file: "feed_forward_sm90.cu",
        right: "            ring.release();\n            activate(p.projection",
        wrong: "            activate(p.projection",
        kernels: NARROW,
        found_by: &["deadlock"],
    },
    Bug {
        what: "a projection's weights that are given back before they are multiplied",
        file: "feed_forward_sm90.cu",
        right: "            ptx::wgmma_wait<0>(inner);\n            ring.release();\n            activate(p.projection",
        wrong: "            ring.release();\n            ptx::wgmma_wait<0>(inner);\n            activate(p.projection",
        kernels: NARROW,
        found_by: &["is overwritten while a wgmma_m64k16_bf16 reads it"],
    },
    Bug {
        what: "a projection's registers that are not fenced",
        file: "feed_forward_sm90.cu",
        right: "            ptx::wgmma_fence(inner);\n            multiply_rows",
        wrong: "            multiply_rows",
        kernels: NARROW,
        found_by: &["wgmma_fence has not had the registers of d"],
    },
    Bug {
        what: "a projection without its ReLU",
        file: "feed_forward_sm90.cu",
        right: "activate(p.projection.relu != 0);",
        wrong: "activate(false);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first columns' bias for all of a projection",
        file: "feed_forward_sm90.cu",
        right: "load_bias(p.projection.bias + column);",
        wrong: "load_bias(p.projection.bias);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "the first columns' weights for all of a projection",
        file: "feed_forward_sm90.cu",
        right: "ring.load1(p.projection, column);",
        wrong: "ring.load1(p.projection, 0);",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a projection's results in the place of the first",
        file: "feed_forward_sm90.cu",
        right: "out.columns(first, column)",
        wrong: "out.columns(first, 0)",
        kernels: NARROW,
        found_by: &[WRONG_RESULTS],
    },
    Bug {
        what: "a projection's loads that a warpgroup without rows does not follow",
        file: "feed_forward_sm90.cu",
        right: "(2 * p.network.inner + p.network.projection.outputs) / CHUNK",
        wrong: "2 * p.network.inner / CHUNK",
        kernels: NARROW,
        found_by: &["deadlock"],
    },
    pairs_that_lanes_do_not_swap(NARROW),
    rows_behind_the_last_that_are_stored(NARROW),
];

const WRONG_LAUNCHES: [WrongLaunch; 4] = [
    WrongLaunch::a_cluster_too_few(NARROW),
    WrongLaunch::a_block_too_many(NARROW, &["no multiple of its clusters' 2"]),
    WrongLaunch::too_little_shared_memory(NARROW),
    weights_that_are_too_short(NARROW),
];

/// A problem that warpgroups solve.
struct ByWarpgroups(Problem);

impl family::Problem for ByWarpgroups {
    fn launch(&self, _limits: &Limits) -> Launch {
        let ByWarpgroups(problem) = self;
        let (shape, numbers) = (problem.shape, numbers(problem));
        let parameter = FeedForwardWgmma::new(weight_maps(shape, numbers.projection.outputs), numbers);
        let weights = [
            offset_of!(FeedForwardWgmma, weight1),
            offset_of!(FeedForwardWgmma, weight2),
            offset_of!(FeedForwardWgmma, projection),
        ];
        let buffers = buffers(problem, offset_of!(FeedForwardWgmma, network), weights);
        family::launch(shape.plan(Blocks::Warpgroups).expect("a problem has rows"), &parameter, buffers)
    }

    fn deviations(&self, launch: &Launch) -> Vec<(&'static str, Deviation)> {
        family::Problem::deviations(&self.0, launch)
    }
}

/// The tensor maps of fc1's and fc2's weights, and of a projection's to so many columns, if any.
pub fn weight_maps(shape: FeedForwardShape, outputs: i32) -> [TensorMap; 3] {
    let (FeedForwardShape { width, inner, .. }, [box1, box2]) = (shape, shape.box_rows());
    let of_projection = match outputs {
        0 => TensorMap::default(),
        _ => tensor_map([outputs as usize, width], [box1, 64]),
    };
    [tensor_map([inner, width], [box1, 64]), tensor_map([width, inner], [box2, 64]), of_projection]
}

/// Clusters of full blocks, and with blocks of which a warpgroup has rows, or none; weights that go round, and that do not.
fn cases() -> Vec<Case> {
    projecting(Blocks::Warpgroups, SHAPES, 1)
        .map(|problem| Case::new(Limits::SM_90, ByWarpgroups(problem)))
        .into()
}

fn counted() -> Vec<Counted> {
    let shape = FeedForwardShape { rows: 256, width: 256, inner: 1024 };
    let FeedForwardShape { rows, width, inner } = shape;
    let alone = || Problem::random(shape, rows, true, 1);
    let projecting = alone().projecting(3, 32, Activation::Relu, 1);
    let name = format!("{rows}x{width}x{inner}");
    [(name.clone(), alone(), 2 * inner), (name + " and 768", projecting, 2 * inner + 3 * width)]
        .into_iter()
        .map(|(shape, problem, of_row_and_column)| Counted {
            shape,
            problem: Box::new(ByWarpgroups(problem)),
            useful_products: (rows * width * of_row_and_column) as f64 / (16.0 * 8.0 * 16.0),
        })
        .collect()
}

/// By what is counted: products without padding, an operand's bytes once a product, of 64 columns a quarter more, and no
/// conflicts; each row is read once and written once, and weights once for 256 rows.
#[test]
fn counters_reach_their_aims() {
    for (shape, outputs) in [("256x256x1024", 0.0), ("256x256x1024 and 768", 768.0)] {
        let row = row("feed_forward_wgmma_c256", shape);
        let (rows, width, inner) = (256.0, 256.0, 1024.0);
        let of_projection = 2.0 * outputs * (rows + width);
        let rows_and_weights = rows * (10.0 * width + 16.0) + 4.0 * width * inner + of_projection;
        assert!(row.bytes <= 1.01 * rows_and_weights, "{} bytes, not {rows_and_weights}", row.bytes);
        let [network, projection] = [2.0 * inner, outputs].map(|columns| rows * width * columns / 2048.0);
        assert!(network + projection >= 0.95 * row.products, "{} products", row.products);
        assert!(row.wavefronts <= 1.04 * network + 1.3 * projection, "{} wavefronts", row.wavefronts);
        // Pairs of blocks ask for weights once; the rest are rows, and parameters by warps of 16 rows.
        let asked = 2.0 * width * (2.0 * inner + outputs) + 4.0 * rows * width;
        assert!(row.requested <= 1.15 * asked, "{} bytes are asked for, not {asked}", row.requested);
        assert!(row.conflicts <= 1.01, "{}", row.conflicts);
    }
}

#[test]
fn any_number_of_rows() {
    every_row(7, |shape, period, at| ByWarpgroups(Problem::random(shape, period, at % 2 == 0, at)));
}

/// Rows that fill warpgroups and blocks, that nearly do, and that just do not, and numbers of all sizes at random.
/// A problem is of its shape, the period of the rows that are added, and its number.
pub fn every_row<P: family::Problem + 'static>(seed: u64, of: impl Fn(FeedForwardShape, usize, u64) -> P) {
    let mut rng = Rng::new(seed, Stream::Synth, 0);
    let mut shapes: Vec<FeedForwardShape> = [1, 15, 63, 64, 65, 127, 128, 129, 500]
        .map(|rows| FeedForwardShape { rows, width: 64, inner: 64 })
        .into();
    shapes.extend((0..4).map(|number| FeedForwardShape {
        rows: 1 + rng.below(400) as usize,
        width: 64 * (1 + number),
        inner: 64 * (1 + rng.below(6) as usize),
    }));
    for (at, shape) in (seed..).zip(shapes) {
        // A fifth or a third of the rows, where there is such a number.
        let times = [5, 3].into_iter().find(|&times| shape.rows.is_multiple_of(times));
        let period = shape.rows / times.unwrap_or(1);
        let case = Case::new(Limits::SM_90, of(shape, period, at));
        let mut launch = case.launch();
        emulate::run(&Kernels::repository(), &mut launch, &Config::default().workers(2))
            .unwrap_or_else(|report| panic!("{shape:?}: {report}"));
        assert_eq!(case.wrong(&launch), [], "{shape:?}");
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    stays_in_its_row(ByWarpgroups);
}

/// The LayerNorm before has the bits of the kernel of warps, and that those of LayerNorm's own; so have products, where cards add
/// both alike.
#[test]
fn rows_are_those_of_the_kernel_of_warps() {
    for shape in SHAPES {
        let problem = || Problem::random(shape, shape.rows, true, 2);
        let expected = family::emulated(&problem(), Sums::Nearest);
        let found = family::emulated(&ByWarpgroups(problem()), Sums::Nearest);
        for name in ["attended", "statistics before", "output"] {
            assert!(family::bytes(&found, name) == family::bytes(&expected, name), "{name}: {shape:?}");
        }
    }
}

/// What a linear layer's kernel makes of the results, where cards add both alike, and nothing else changes.
#[test]
fn projections_are_those_of_a_kernel_of_their_own() {
    every_row(9, |shape, period, at| {
        let problem = || Problem::random(shape, period, true, at);
        let activation = if at % 2 == 0 { Activation::Relu } else { Activation::Identity };
        let (times, width) = (1 + at as usize % 3, if shape.rows.is_multiple_of(2) { 32 } else { 64 });
        let projecting = || problem().projecting(times, width, activation, at);
        projects_as_a_kernel_of_its_own(problem(), projecting(), Sums::Nearest, ByWarpgroups);
        ByWarpgroups(projecting())
    });
}

#[test]
fn cards_without_such_instructions_are_refused() {
    let compute_capability = (8, 0);
    driver::with(&Configuration { compute_capability, ..Configuration::default() }, |_| {
        let problem = Problem::random(FeedForwardShape { rows: 1, width: 64, inner: 64 }, 1, true, 1);
        let error = problem.by(Blocks::Warpgroups).solve(&Gpu::new(0).unwrap()).unwrap_err().to_string();
        assert!(error.contains("compute capability 8.0, but kernels by wgmma run on 9.0 alone"), "{error}");
    })
    .unwrap();
}
