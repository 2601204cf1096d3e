// Functions: what a launch may ask of them.
#pragma once

#include "driver.hpp"

namespace mock {

// The function that a handle means in this context.
std::shared_ptr<Function> function_of(Context &context, CUfunction handle);

// Threads that a block of it may have: as many as its code allows and its registers suffice for.
int max_threads(const Function &function);

} // namespace mock
