//! Prints the folder of the mock `libcuda.so`, for `LD_LIBRARY_PATH`.

fn main() {
    println!("{}", setrank_emulator::driver::directory().display());
}
