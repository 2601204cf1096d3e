//! The kernels: on the emulator and in the PTX interpreter, with planted bugs, through the driver's interface; what nvcc
//! made of them, their sources, and the logic of build.rs. All of it is left out where the emulator does not run.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod attention;
mod attention_naive;
mod attention_sm90;
mod buffers;
mod build_script;
mod built;
mod counters;
mod cubin;
mod device;
mod embed;
mod family;
mod feed_forward;
mod feed_forward_backward;
mod feed_forward_backward_sm90;
mod feed_forward_sm90;
mod feeding;
mod gather;
mod graphs;
mod host;
mod ladder;
mod layer_norm;
mod linear;
mod linear_few_rows;
mod linear_sm90;
mod linear_wide;
mod loss;
mod model;
mod norm_linear;
mod operands;
mod optimizer;
mod partial_sums;
mod rbf;
mod rbf_sm90;
mod resources;
mod row_sums;
mod sass;
mod score;
mod score_loss;
mod sources;
mod step;
mod unpad;
mod warpgroups;
