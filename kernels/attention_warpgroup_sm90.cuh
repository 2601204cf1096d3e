// What attention's warpgroups share.
#pragma once

#include "attention.h"
#include "attention_sm90.h"

#include "warpgroup_sm90.cuh"

namespace attention::wgmma {

using namespace warpgroup;

// Rows of a product of a warpgroup, and of what goes round in shared memory at a time.
constexpr int ROWS = ATTENTION_SM90_ROWS;

} // namespace attention::wgmma
