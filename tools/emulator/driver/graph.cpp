#include "graph.hpp"

#include <algorithm>

#include "work.hpp"

namespace mock {

CUgraph make_graph(Context &context, std::vector<GraphNode> nodes) {
    auto graph = std::make_shared<Graph>(Graph{std::move(nodes)});
    const CUgraph handle = graph.get();
    context.graphs[handle] = std::move(graph);
    return handle;
}

namespace {

enum : uint64_t {
    AUTO_FREE_ON_LAUNCH = 1,
    UPLOAD = 2,
    DEVICE_LAUNCH = 4,
    USE_NODE_PRIORITY = 8,
};

// What an update found, as CUgraphExecUpdateResultInfo has it.
enum UpdateResult : int {
    UPDATE_SUCCESS = 0,
    UPDATE_TOPOLOGY_CHANGED = 2,
    UPDATE_NODE_TYPE_CHANGED = 3,
    UPDATE_PARAMETERS_CHANGED = 5,
};

struct UpdateInfo {
    UpdateResult result;
    const GraphNode *node, *from;
};

const Graph &graph_of(Context &context, CUgraph handle) {
    const auto found = context.graphs.find(handle);
    if (found == context.graphs.end())
        refuse(CUDA_ERROR_INVALID_VALUE, "%p is no graph of the current context", static_cast<void *>(handle));
    return *found->second;
}

GraphExec &exec_of(Context &context, CUgraphExec handle) {
    const auto found = context.graph_execs.find(handle);
    if (found == context.graph_execs.end())
        refuse(CUDA_ERROR_INVALID_VALUE, "%p is no instantiated graph of the current context",
               static_cast<void *>(handle));
    return *found->second;
}

// What a node may become in place. Parameters, grid and function of a kernel may change, and addresses; of a memset the
// manual leaves open whether another size goes, so that here none does.
UpdateResult compare(const GraphNode &node, const GraphNode &next) {
    const auto is_copy = [](const GraphNode &of) {
        return of.kind != GraphNode::KERNEL && of.kind != GraphNode::MEMSET;
    };
    if (node.after != next.after)
        return UPDATE_TOPOLOGY_CHANGED;
    if (is_copy(node) != is_copy(next) || (!is_copy(node) && node.kind != next.kind))
        return UPDATE_NODE_TYPE_CHANGED;
    const bool resized = node.kind == GraphNode::MEMSET && node.bytes != next.bytes;
    return node.kind != next.kind || resized ? UPDATE_PARAMETERS_CHANGED : UPDATE_SUCCESS;
}

UpdateInfo compare(const GraphExec &exec, const Graph &graph) {
    if (exec.nodes.size() != graph.nodes.size())
        return {UPDATE_TOPOLOGY_CHANGED, nullptr, nullptr};
    for (size_t node = 0; node < graph.nodes.size(); ++node) {
        const UpdateResult result = compare(exec.nodes[node], graph.nodes[node]);
        if (result != UPDATE_SUCCESS)
            return {result, &graph.nodes[node], nullptr};
    }
    return {UPDATE_SUCCESS, nullptr, nullptr};
}

struct Step {
    std::function<CUresult()> run;
    std::vector<size_t> after;
};

// Runs the steps in one of the orders that they allow.
CUresult run(const std::vector<Step> &steps) {
    std::vector<size_t> waiting(steps.size());
    for (size_t step = 0; step < steps.size(); ++step)
        waiting[step] = step;
    while (!waiting.empty()) {
        const auto is_waiting = [&](size_t step) {
            return std::find(waiting.begin(), waiting.end(), step) != waiting.end();
        };
        std::vector<size_t> ready;
        for (const size_t step : waiting) {
            const std::vector<size_t> &after = steps[step].after;
            if (std::none_of(after.begin(), after.end(), is_waiting))
                ready.push_back(step);
            // In any order is as in the first one, unless one is to be taken at random.
            if (!ready.empty() && !driver().configuration.random_streams)
                break;
        }
        const size_t next = ready[driver().configuration.random_streams ? driver().random() % ready.size() : 0];
        waiting.erase(std::find(waiting.begin(), waiting.end(), next));
        const CUresult result = steps[next].run();
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

} // namespace
} // namespace mock

using namespace mock;

MOCK_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph handle, uint64_t flags) {
    return call_in_context(__func__, [&](Context &context) {
        output(exec);
        const Graph &graph = graph_of(context, handle);
        if (flags & ~(AUTO_FREE_ON_LAUNCH | UPLOAD | DEVICE_LAUNCH | USE_NODE_PRIORITY) ||
            (flags & AUTO_FREE_ON_LAUNCH && flags & DEVICE_LAUNCH))
            refuse(CUDA_ERROR_INVALID_VALUE, "flags %llu are unknown, or exclude one another",
                   static_cast<unsigned long long>(flags));
        if (flags & (UPLOAD | DEVICE_LAUNCH))
            refuse(CUDA_ERROR_NOT_SUPPORTED, "flags %llu are not supported", static_cast<unsigned long long>(flags));
        auto made = std::make_shared<GraphExec>(GraphExec{graph.nodes, nullptr});
        *exec = made.get();
        context.graph_execs[*exec] = std::move(made);
        ++driver().counters.graph_instances;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle, UpdateInfo *info) {
    return call_in_context(__func__, [&](Context &context) {
        GraphExec &exec = exec_of(context, handle);
        const Graph &graph = graph_of(context, graph_handle);
        output(info) = compare(exec, graph);
        if (info->result != UPDATE_SUCCESS)
            return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
        // Launches that are queued keep what they were launched with.
        exec.nodes = graph.nodes;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
    return call_in_context(__func__, [&](Context &context) {
        exec_of(context, handle);
        Stream &stream = stream_of(context, stream_handle);
        refuse_capturing(stream, "the upload of a graph");
        enqueue(stream, [] { return CUDA_SUCCESS; });
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    return call_in_context(__func__, [&](Context &context) {
        GraphExec &exec = exec_of(context, handle);
        Stream &stream = stream_of(context, stream_handle);
        if (stream.context != &context)
            refuse(CUDA_ERROR_INVALID_VALUE, "the stream is of another context than the graph");
        if (is_capturing(stream)) {
            // The real driver makes it a node.
            stream.capture->state = Capture::INVALIDATED;
            refuse(CUDA_ERROR_NOT_SUPPORTED, "graphs inside of graphs are not supported");
        }
        std::vector<Step> steps;
        for (const GraphNode &node : exec.nodes) {
            std::function<CUresult()> work = node.run;
            if (node.kind == GraphNode::KERNEL) {
                auto launch = std::make_shared<Launch>(*node.launch);
                launch->in_graph = true;
                number(*launch);
                work = [launch] { return run(*launch); };
            }
            steps.push_back({std::move(work), node.after});
        }
        exec.last = enqueue(stream, [steps = std::move(steps)] { return run(steps); }, exec.last);
        for (const GraphNode &node : exec.nodes)
            count(node);
        ++driver().counters.graph_launches;
        if (!launches_wait())
            return CUDA_SUCCESS;
        finish(exec.last);
        return context.device->fault;
    });
}

MOCK_EXPORT CUresult cuGraphGetNodes(CUgraph handle, const GraphNode **nodes, size_t *count) {
    return call_in_context(__func__, [&](Context &context) {
        const Graph &graph = graph_of(context, handle);
        const size_t room = output(count);
        *count = graph.nodes.size();
        if (nodes)
            for (size_t node = 0; node < room; ++node)
                nodes[node] = node < *count ? &graph.nodes[node] : nullptr;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuGraphDestroy(CUgraph handle) {
    return call_in_context(__func__, [&](Context &context) {
        graph_of(context, handle);
        context.graphs.erase(handle);
        return CUDA_SUCCESS;
    });
}

// What was launched still runs.
MOCK_EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
    return call_in_context(__func__, [&](Context &context) {
        exec_of(context, handle);
        context.graph_execs.erase(handle);
        return CUDA_SUCCESS;
    });
}
