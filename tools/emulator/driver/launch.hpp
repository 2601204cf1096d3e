// Launches of kernels, by themselves or as a part of a graph.
#pragma once

#include "driver.hpp"

namespace mock {

struct Launch {
    std::shared_ptr<Function> function;
    uint32_t grid[3], block[3], shared_bytes;
    // The value of its one parameter.
    std::vector<char> parameter;
    // Which launch it is, counted from 1; 0 while it is only a node of a graph.
    uint64_t number = 0;
    // The fault that it is told to have, or 0.
    CUresult told_fault = CUDA_SUCCESS;
    bool in_graph = false;
};

// What a launch is, for messages.
std::string describe(const Launch &launch);

// Gives a launch the next number, and the fault that it is told to have; ends the call if it is told to fail at once.
void number(Launch &launch);

// Runs a launch that has its number.
CUresult run(const Launch &launch);

// Whether the user has asked that each launch is done when its call returns.
bool launches_wait();

} // namespace mock
