// The CUDA clock: memory through the library's own buffer calls, one stream for everything, CUDA
// events around replays of a graph.
#include "bench/cuda_device.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/cuda_loops.h"
#include "moeblas/error.h"

namespace moeblas::bench {
namespace {

using cuda_loops::Arithmetic;
using cuda_loops::check;
using cuda_loops::Unit;

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Seconds between two events around what `work` enqueues.
template <class Work>
double seconds_of(cudaStream_t stream, Work&& work) {
  const Event begin, end;
  check(cudaEventRecord(begin, stream), "an event");
  work();
  check(cudaEventRecord(end, stream), "an event");
  check(cudaEventSynchronize(end), "waiting for the stream");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin, end), "the time between events");
  return ms * 1e-3;
}

class Graph {
 public:
  Graph() = default;
  ~Graph() { reset(); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // What `body` puts on the stream.
  template <class Body>
  void record(cudaStream_t stream, Body&& body) {
    reset();
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "starting a capture");
    try {
      body();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "ending a capture");
    const cudaError_t status = cudaGraphInstantiate(&runnable_, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "making a graph");
    check(cudaGraphUpload(runnable_, stream), "uploading a graph");
    check(cudaStreamSynchronize(stream), "uploading a graph");
  }
  void launch(cudaStream_t stream) { check(cudaGraphLaunch(runnable_, stream), "a graph"); }

 private:
  void reset() {
    if (runnable_ != nullptr) cudaGraphExecDestroy(runnable_);
    runnable_ = nullptr;
  }
  cudaGraphExec_t runnable_ = nullptr;
};

class CudaTimer final : public Timer {
 public:
  CudaTimer(cudaStream_t stream, std::function<void()> call, int64_t sets)
      : stream_(stream), call_(std::move(call)), sets_(sets) {}

  double sample(int64_t calls) override {
    if (calls != recorded_) {
      recorded_ = 0;
      graph_.record(stream_, [&] {
        for (int64_t i = 0; i < calls; ++i) call_();
      });
      recorded_ = calls;
    }
    return seconds_of(stream_, [&] { graph_.launch(stream_); });
  }
  int64_t whole(int64_t calls) const override { return (calls + sets_ - 1) / sets_ * sets_; }

 private:
  cudaStream_t stream_;
  std::function<void()> call_;
  int64_t sets_, recorded_ = 0;
  Graph graph_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int id) : handle_{MOEBLAS_CUDA, id} {
    allocate(1);  // the library's own words if it cannot use this device
    check(cudaSetDevice(id), "choosing the device");
    check(cudaGetDeviceProperties(&properties_, id), "asking for the device's properties");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }
  ~CudaDevice() override { cudaStreamDestroy(stream_); }

  std::string kind() const override { return "cuda"; }
  std::string model() const override { return properties_.name; }
  moeblas::Device handle() const override { return handle_; }
  void* stream() const override { return stream_; }
  int64_t cache_bytes() const override { return properties_.l2CacheSize; }
  // What is free, less some room for workspaces and graphs.
  int64_t memory_bytes() const override {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for free memory");
    return static_cast<int64_t>(free / 10 * 9);
  }
  // Long beside the launch of a graph and the resolution of events, half a microsecond.
  double sample_seconds() const override { return 0.002; }

  Memory allocate(int64_t bytes) override {
    void* p = nullptr;
    moeblas::check(
        moeblas_buffer_alloc({handle_.type, handle_.id}, std::max<size_t>(bytes, 1), &p));
    const moeblas_device where{handle_.type, handle_.id};
    return Memory(p, [where](void* buffer) { moeblas_buffer_free(where, buffer); });
  }
  bool allocates_lazily() const override { return false; }
  // Both wait for the device.
  void upload(void* to, const void* from, int64_t bytes) override {
    moeblas::check(moeblas_buffer_copy({handle_.type, handle_.id}, to, {MOEBLAS_CPU, 0}, from,
                                       static_cast<size_t>(bytes)));
  }
  void download(void* to, const void* from, int64_t bytes) override {
    moeblas::check(moeblas_buffer_copy({MOEBLAS_CPU, 0}, to, {handle_.type, handle_.id}, from,
                                       static_cast<size_t>(bytes)));
  }
  // In the order of the stream that also runs the calls.
  void fill(void* to, uint8_t byte, int64_t bytes) override {
    check(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), stream_), "filling memory");
  }
  void generate(void* to, const Source& source, int64_t first, int64_t count) override {
    cuda_loops::generate(to, source, first, count, stream_);
  }

  Ceilings ceilings(const Regime& regime) override;

  std::unique_ptr<Timer> timer(std::function<void()> call, int64_t sets) override {
    return std::make_unique<CudaTimer>(stream_, std::move(call), sets);
  }

 private:
  // The shortest of several passes: a ceiling is what the machine can do.
  template <class Work>
  double best(const Regime& regime, Work&& work);
  double arithmetic(const Regime& regime, Unit unit, std::string& isa);

  moeblas::Device handle_;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  Memory pages_;  // what the ceilings read, kept from group to group
  int64_t page_bytes_ = 0;
};

template <class Work>
double CudaDevice::best(const Regime& regime, Work&& work) {
  constexpr int kPasses = 7;
  seconds_of(stream_, work);  // wakes the units
  for (double heated = 0; heated < regime.heat;) heated += seconds_of(stream_, work);
  double shortest = HUGE_VAL;
  for (int pass = 0; pass < kPasses; ++pass) {
    rest(regime.rest);
    shortest = std::min(shortest, seconds_of(stream_, work));
  }
  return shortest;
}

double CudaDevice::arithmetic(const Regime& regime, Unit unit, std::string& isa) {
  constexpr double kSeconds = 0.001;
  const Memory memory = allocate(sizeof(Arithmetic));
  auto* done = static_cast<Arithmetic*>(memory.get());
  const auto pass = [&](int32_t steps) {
    return [=, this] { cuda_loops::arithmetic(unit, steps, done, stream_); };
  };
  int32_t steps = 16;
  while (seconds_of(stream_, pass(steps)) < kSeconds && steps < 1 << 24) steps *= 2;
  const double seconds = best(regime, pass(steps));
  Arithmetic measured{};
  download(&measured, done, sizeof measured);
  if (measured.instruction == 0) return 0;
  constexpr const char* kUnits[] = {"f32", "bf16", "f16", "fp8"};
  isa += (isa.empty() ? "" : ", ") + std::string(kUnits[static_cast<int>(unit)]) + " " +
         cuda_loops::kInstructions[measured.instruction];
  return measured.flop / seconds;
}

Ceilings CudaDevice::ceilings(const Regime& regime) {
  constexpr int64_t kWord = 16;
  if (!pages_) {
    // Many times the cache, and long beside a launch; or what a small device can spare.
    page_bytes_ = std::min(int64_t{4} << 30, memory_bytes() / 8 / (2 * kWord) * (2 * kWord));
    pages_ = allocate(page_bytes_);
    generate(pages_.get(), Source::codes(QuantizedData()), 0, page_bytes_ / 4);
  }
  const Memory sink = allocate(4);
  auto* from = static_cast<char*>(pages_.get());
  const int64_t half = page_bytes_ / 2;
  const auto rate = [&](auto work) {
    return static_cast<double>(page_bytes_) / best(regime, work);
  };
  Ceilings c;
  c.read = rate([&] { cuda_loops::read(from, page_bytes_ / kWord, sink.get(), stream_); });
  // Whichever is faster, a kernel or the driver's own way.
  c.copy =
      std::max(rate([&] { cuda_loops::copy(from + half, from, half / kWord, stream_); }), rate([&] {
                 check(cudaMemcpyAsync(from + half, from, static_cast<size_t>(half),
                                       cudaMemcpyDeviceToDevice, stream_),
                       "copying");
               }));
  c.f32 = arithmetic(regime, Unit::f32, c.isa);
  c.bf16 = arithmetic(regime, Unit::bf16, c.isa);
  c.f16 = arithmetic(regime, Unit::f16, c.isa);
  c.fp8 = arithmetic(regime, Unit::fp8, c.isa);
  return c;
}

}  // namespace

std::unique_ptr<Device> make_cuda_device(int id) { return std::make_unique<CudaDevice>(id); }

}  // namespace moeblas::bench
