//! With the feature `cuda`: compiles the kernels and makes Rust declarations of their headers. Without: nothing.

#[cfg(feature = "cuda")]
#[path = "tools/build/mod.rs"]
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
