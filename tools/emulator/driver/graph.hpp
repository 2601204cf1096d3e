// Graphs: work with its order, and what was made of one to be launched.
#pragma once

#include "capture.hpp"

namespace mock {

struct Graph {
    std::vector<GraphNode> nodes;
};

struct GraphExec {
    std::vector<GraphNode> nodes;
    // Its latest launch, which the next one waits for.
    std::shared_ptr<Operation> last;
};

CUgraph make_graph(Context &context, std::vector<GraphNode> nodes);

} // namespace mock
