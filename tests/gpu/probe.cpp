#include "probe.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "cuda/queue.h"
#include "maker.h"

namespace moeblas::gpu {
namespace {

struct ProbeParams {
  uint32_t n;
  uint32_t row;
  int32_t added;
};

void require(bool held, const std::string& what) {
  if (!held) throw std::runtime_error(what);
}

template <class F>
void as_check(Report& report, const char* name, F&& body) {
  std::string failure;
  try {
    body();
  } catch (const std::exception& e) {
    failure = e.what();
  }
  report.check(name, failure);
}

// The message of a call that must throw Error of this status.
template <class F>
std::string refused(moeblas_status status, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    require(e.status() == status, std::string("other status: ") + e.what());
    require(cudaGetLastError() == cudaSuccess, "an error was left behind for the caller's checks");
    return e.what();
  }
  throw std::runtime_error("nothing was thrown");
}

void require_text(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    require(text.find(part) != std::string::npos, "no \"" + std::string(part) + "\" in: " + text);
  }
}

simt::Step add_step(const int32_t* a, int32_t* out, uint32_t n, uint32_t row, int32_t added) {
  simt::Step step;
  step.kernel = "gpu_probe_add";
  step.groups = {(row + 127) / 128, (n + row - 1) / row, 1};
  step.threads = {128, 1, 1};
  step.point(a);
  step.point(out);
  step.set(ProbeParams{n, row, added});
  return step;
}

constexpr uint32_t kN = 1000;

// Numbers on the device, and how to read them.
struct Numbers {
  CudaLane lane{3 * kN * sizeof(int32_t)};
  int32_t* a = reinterpret_cast<int32_t*>(lane.base());
  int32_t* b = a + kN;
  int32_t* c = b + kN;

  Numbers() { set(0); }
  void set(int32_t from) {
    std::vector<int32_t> v(kN);
    for (uint32_t i = 0; i < kN; ++i) v[i] = from + static_cast<int32_t>(i);
    check_cuda(cudaMemcpy(a, v.data(), kN * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  void expect(int32_t first) {
    std::vector<int32_t> v(kN);
    check_cuda(cudaStreamSynchronize(lane.cuda_stream()), "waiting");
    check_cuda(cudaMemcpy(v.data(), c, kN * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (uint32_t i = 0; i < kN; ++i) {
      require(v[i] == first + static_cast<int32_t>(i),
              "element " + std::to_string(i) + " is " + std::to_string(v[i]));
    }
  }
};

}  // namespace

void check_queue(Report& report) {
  // First of all: arguments are compared until a kernel's have fitted once.
  as_check(report, "queue: a plan whose arguments do not fit its kernel is refused", [] {
    Numbers n;
    simt::Step step;
    step.kernel = "gpu_probe_add";
    step.threads = {32, 1, 1};
    step.point(n.a);
    step.set(ProbeParams{0, 0, 0});
    require_text(refused(MOEBLAS_INTERNAL_ERROR,
                         [&] { cuda::Queue("some_op", 0, n.lane.cuda_stream()).run(step); }),
                 {"gpu_probe_add", "argument 1"});
  });
  as_check(report, "queue: steps follow each other on the caller's stream", [] {
    Numbers n;
    cuda::Queue queue("gpu_check", 0, n.lane.cuda_stream());
    queue.run(add_step(n.a, n.b, kN, 100, 5));
    queue.run(add_step(n.b, n.c, kN, kN, 7));
    n.expect(12);
  });
  as_check(report, "queue: capture, replay with other input", [] {
    Numbers n;
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
    check_cuda(cudaStreamBeginCapture(n.lane.cuda_stream(), cudaStreamCaptureModeGlobal),
               "capture");
    {
      cuda::Queue queue("gpu_check", 0, n.lane.cuda_stream());
      queue.run(add_step(n.a, n.b, kN, 100, 1));
      queue.run(add_step(n.b, n.c, kN, 100, 1));
    }
    check_cuda(cudaStreamEndCapture(n.lane.cuda_stream(), &graph), "end of capture");
    check_cuda(cudaGraphInstantiate(&runnable, graph, 0), "instantiate");
    for (int from : {0, 1000, -7}) {
      n.set(from);
      check_cuda(cudaGraphLaunch(runnable, n.lane.cuda_stream()), "graph launch");
      n.expect(from + 2);
    }
    cudaGraphExecDestroy(runnable);
    cudaGraphDestroy(graph);
  });
  as_check(report, "queue: what cannot be launched is named, and leaves nothing behind", [] {
    Numbers n;
    const auto run = [&](auto&& change) {
      simt::Step step = add_step(n.a, n.c, kN, 100, 3);
      change(step);
      cuda::Queue("some_op", 0, n.lane.cuda_stream()).run(step);
    };
    run([](simt::Step& s) { s.groups[1] = 0; });  // nothing to do
    require_text(refused(MOEBLAS_INTERNAL_ERROR,
                         [&] { run([](simt::Step& s) { s.kernel = "no_such_kernel"; }); }),
                 {"some_op", "no_such_kernel"});
    require_text(
        refused(MOEBLAS_DEVICE_ERROR, [&] { run([](simt::Step& s) { s.threads[0] = 2048; }); }),
        {"some_op", "gpu_probe_add", "2048"});
    require_text(
        refused(MOEBLAS_DEVICE_ERROR, [&] { run([](simt::Step& s) { s.groups[1] = 65536; }); }),
        {"some_op", "gpu_probe_add", "65536"});
    run([](simt::Step&) {});
    n.expect(3);
  });
  as_check(report, "a device that is not there", [] {
    Maker m("to_fp8", 1);
    const int x = m.floats(DType::f32, {4});
    const int out = m.add(Role::output, DType::u8, {4});
    m.job.call = [=](Views v, const Options& o) {
      to_fp8(v[static_cast<size_t>(x)], v[static_cast<size_t>(out)], o);
    };
    require_text(refused(MOEBLAS_UNSUPPORTED, [&] { plan_on(m.job, {MOEBLAS_CUDA, 77}, {}); }),
                 {"to_fp8", "cuda:77", "no device 77"});
  });
  as_check(report, "a child of a fork is told", [] {
    const pid_t child = fork();
    if (child == 0) _exit(std::strstr(moeblas_info(), "forked") != nullptr ? 0 : 1);
    int status = 0;
    require(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
            "the child saw no reason");
  });
}

void check_memory(Report& report) {
  as_check(report, "buffers: to the device, within it, and back", [] {
    const moeblas_device host{MOEBLAS_CPU, 0}, device{MOEBLAS_CUDA, 0};
    constexpr size_t kBytes = 1 << 20;
    std::vector<uint8_t> there(kBytes), back(kBytes);
    test::Random random(3);
    for (auto& byte : there) byte = static_cast<uint8_t>(random.below(256));
    void *a = nullptr, *b = nullptr;
    check(moeblas_buffer_alloc(device, kBytes, &a));
    check(moeblas_buffer_alloc(device, kBytes, &b));
    require(reinterpret_cast<uintptr_t>(a) % 64 == 0, "not aligned to 64");
    check(moeblas_buffer_copy(device, a, host, there.data(), kBytes));
    check(moeblas_buffer_copy(device, b, device, a, kBytes));
    check(moeblas_buffer_copy(host, back.data(), device, b, kBytes));
    require(there == back, "the bytes that came back differ");
    check(moeblas_buffer_free(device, a));
    check(moeblas_buffer_free(device, b));
    void* none = &none;
    require(moeblas_buffer_alloc(device, size_t{1} << 60, &none) == MOEBLAS_OUT_OF_MEMORY &&
                none == &none,
            "an absurd size is not out of memory");
    require(cudaGetLastError() == cudaSuccess, "an error was left behind");
  });
}

void check_calls(Report& report) {
  Maker m("gather_qmm", 7);
  const int x = m.floats(DType::f32, {3, 1, 64});
  const PackedAt w = m.packed({Mode::affine, 4, 32}, {4, 8, 64}, DType::f32, 1);
  const int ids = m.ids(DType::i32, {3}, 4, 0);
  const int out = m.add(Role::output, DType::f32, {3, 1, 8});
  m.job.call = [=](Views v, const Options& o) {
    gather_qmm(v[static_cast<size_t>(x)], w.in(v), {}, v[static_cast<size_t>(ids)], true, false,
               v[static_cast<size_t>(out)], o);
  };
  try {
    plan_on(m.job, kCuda, {});
  } catch (const Error&) {
    return;  // no row yet
  }
  CudaLane lane(1 << 20);
  as_check(report, "check_ids: names the position, refuses capture", [&] {
    m[ids].set_integer(1, 9);
    Block block(m.job, 0, 0);
    lane.send(block);
    const auto views = block.views(lane.base(), kCuda);
    Options options;
    options.stream = lane.cuda_stream();
    options.check_ids = true;
    require_text(refused(MOEBLAS_INVALID_ARGUMENT, [&] { m.job.call(views, options); }),
                 {"gather_qmm", "9", "position 1", "0 to 3"});
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(lane.cuda_stream(), cudaStreamCaptureModeThreadLocal),
               "capture");
    const std::string text = refused(MOEBLAS_INVALID_ARGUMENT, [&] { m.job.call(views, options); });
    check_cuda(cudaStreamEndCapture(lane.cuda_stream(), &graph), "the capture was broken");
    cudaGraphDestroy(graph);
    require_text(text, {"gather_qmm", "check_ids", "captured"});
    m[ids].set_integer(1, 2);
  });
  as_check(report, "workspace of the library's own, eager and captured", [&] {
    const std::vector<uint8_t> cpu = run_on_cpu(m.job);
    Block block(m.job, 0, 0xff);
    const auto views = block.views(lane.base(), kCuda);
    Options options;
    options.stream = lane.cuda_stream();
    lane.send(block);
    m.job.call(views, options);
    const auto first = block.results(lane.fetch(block));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runnable = nullptr;
    check_cuda(cudaStreamBeginCapture(lane.cuda_stream(), cudaStreamCaptureModeThreadLocal),
               "capture");
    m.job.call(views, options);
    check_cuda(cudaStreamEndCapture(lane.cuda_stream(), &graph), "end of capture");
    check_cuda(cudaGraphInstantiate(&runnable, graph, 0), "instantiate");
    for (int i = 0; i < 3; ++i) {
      lane.send(block);
      check_cuda(cudaGraphLaunch(runnable, lane.cuda_stream()), "graph launch");
      require(block.results(lane.fetch(block)) == first, "a replay differs from the call");
    }
    cudaGraphExecDestroy(runnable);
    cudaGraphDestroy(graph);
  });
}

}  // namespace moeblas::gpu
