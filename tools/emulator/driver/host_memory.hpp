// Pinned host memory.
#pragma once

#include "driver.hpp"

namespace mock {

// Whether all of these bytes are pinned: copies of them are asynchronous.
bool is_pinned(const void *pointer, size_t bytes);

// Frees, or unpins, what is pinned in a context.
void unpin_all(const Context &context);

} // namespace mock
