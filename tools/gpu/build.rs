//! With the feature `cuda`: compiles the micro-kernels, those of the vectors in src, to fatbins. Without: nothing.

#[cfg(feature = "cuda")]
#[path = "build/cuda.rs"]
mod cuda;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "cuda")]
    if let Err(error) = cuda::build() {
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
    }
}
