// Images of modules: what is in them, and what of it runs on a card.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string>
#include <vector>

#include "cuda.hpp"

namespace mock {

// A kernel as an image describes it.
struct ImageKernel {
    std::string name;
    // Registers of a thread; 0: not known before PTX is compiled.
    int registers = 0;
    // Threads that a block may have at most.
    int max_threads = 1024;
    // Bytes of shared memory that it has besides the dynamic one, of local memory of a thread, and of its parameters
    // (in PTX without gaps between several).
    int shared_bytes = 0;
    int local_bytes = 0;
    uint32_t parameter_bytes = 0;
};

// Code for one architecture.
struct Image {
    // 10 · major + minor of the architecture; whether it is one such as sm_90a, whose code runs nowhere else.
    int architecture = 0;
    bool specific = false;
    // The same of the PTX, in it or that it was made of; the PTX version, 10 · major + minor, is 0 for machine code.
    int virtual_architecture = 0;
    int ptx_version = 0;
    // 10 · major + minor of the toolkit that made machine code; 0: not said.
    int toolkit = 0;
    std::vector<ImageKernel> kernels;
};

// Reads machine code, an ELF file of at most `bytes` bytes; ends the call if it is broken.
Image read_cubin(const void *data, size_t bytes);
// Bytes of an ELF file, for one that stands by itself.
size_t cubin_bytes(const void *data);
bool is_cubin(const void *data);

// Reads the text of PTX; ends the call if it is no PTX.
Image read_ptx(const std::string &text);
// Whether a text begins as PTX does, read no farther than it does.
bool is_ptx(const char *text);

// Chooses as the driver does what of an image, a fatbin, a cubin or PTX, runs on the configured card; ends the call
// with the driver's error if nothing does.
Image choose_image(const void *data);

} // namespace mock
