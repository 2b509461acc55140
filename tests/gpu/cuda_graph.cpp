#include "cuda_graph.h"

namespace moeblas::gpu {
namespace {

class Graph {
 public:
  template <class Body>
  Graph(cudaStream_t stream, Body&& body) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
               "beginning capture");
    std::string failure;
    try {
      body();
    } catch (const std::exception& e) {
      failure = e.what();
    }
    const cudaError_t status = cudaStreamEndCapture(stream, &graph);
    if (!failure.empty()) throw std::runtime_error("while captured: " + failure);
    check_cuda(status, "ending capture");
    const cudaError_t made = cudaGraphInstantiate(&runnable_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(made, "instantiating a graph");
  }
  ~Graph() { cudaGraphExecDestroy(runnable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch() { check_cuda(cudaGraphLaunch(runnable_, stream_), "launching a graph"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t runnable_ = nullptr;
};

std::string check_graph(const Job& job, CudaLane& lane, size_t workspace, Options options,
                        int& replays) {
  Block block(job, workspace, kPoison);
  lane.send(block);
  Options captured = options;
  captured.stream = lane.stream();
  captured.workspace = block.workspace(lane.base());
  captured.workspace_bytes = workspace;
  const std::vector<TensorView> views = block.views(lane.base(), lane.device());
  Graph graph(lane.cuda_stream(), [&] { job.call(views, captured); });
  const auto replay = [&](const char* what) -> std::string {
    const std::vector<uint8_t> called = block.results(call_once(job, lane, block, options));
    lane.send(block);
    graph.launch();
    const std::vector<uint8_t> replayed = block.results(lane.fetch(block));
    ++replays;
    const std::string d = difference(job, replayed, called);
    return d.empty() ? d : std::string("replayed with ") + what + ": " + d;
  };
  std::string failure = replay("the same ids");
  if (!failure.empty()) return failure;
  change_ids(job, block, OtherIds::reversed, block.bytes());
  failure = replay("the ids reversed");
  if (!failure.empty()) return failure;
  change_ids(job, block, OtherIds::none, block.bytes());
  return replay("ids that select nothing");
}

}  // namespace

void check_captured(const Job& job, CudaLane& lane, const char* kernel, Outcome& outcome) {
  if (!outcome.failure.empty() || outcome.kernel.empty()) return;
  Options options;
  options.kernel = kernel;
  try {
    outcome.failure = check_graph(job, lane, outcome.workspace_bytes, options, outcome.replays);
  } catch (const std::exception& e) {
    outcome.failure = std::string("unexpected error: ") + e.what();
  }
}

}  // namespace moeblas::gpu
