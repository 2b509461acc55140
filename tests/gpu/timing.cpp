// Times are of replayed CUDA graphs between events, medians of several; weights are more than three
// times what the L2 holds and taken in turn, random, and each answer is checked before it is timed.
#include "timing.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "maker.h"
#include "probe.h"
#include "run_job.h"

namespace moeblas::gpu {
namespace {

constexpr int kRepeats = 15;

// The median seconds of one graph replay.
template <class Body>
double seconds(cudaStream_t stream, Body&& body) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t runnable = nullptr;
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  body();
  check_cuda(cudaStreamEndCapture(stream, &graph), "end of capture");
  check_cuda(cudaGraphInstantiate(&runnable, graph, 0), "instantiate");
  std::vector<float> times;
  for (int i = 0; i < kRepeats + 3; ++i) {
    check_cuda(cudaEventRecord(begin, stream), "event");
    check_cuda(cudaGraphLaunch(runnable, stream), "graph launch");
    check_cuda(cudaEventRecord(end, stream), "event");
    check_cuda(cudaStreamSynchronize(stream), "waiting");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 3) times.push_back(ms);
  }
  cudaGraphExecDestroy(runnable);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] / 1e3;
}

// Bytes that look random.
std::vector<uint8_t> noise(size_t bytes, uint64_t seed) {
  test::Random random(seed);
  std::vector<uint8_t> v((bytes + 7) / 8 * 8);
  for (size_t i = 0; i < v.size(); i += 8) {
    const uint64_t word = random.next();
    std::memcpy(&v[i], &word, 8);
  }
  v.resize(bytes);
  return v;
}

std::vector<uint8_t> numbers(DType dtype, int64_t count, double scale, uint64_t seed) {
  test::Random random(seed);
  std::vector<uint8_t> v(static_cast<size_t>(count) * size_of(dtype));
  for (int64_t i = 0; i < count; ++i) {
    cpu::store_float(v.data(), dtype, i, static_cast<float>(scale * (random.uniform() - 0.5)));
  }
  return v;
}

// Stacked 4-bit experts, on the host and on the device.
struct Experts {
  int64_t e, n, k;
  QuantSpec spec;
  std::vector<uint8_t> codes, scales, biases;
  DeviceMemory d_codes, d_scales, d_biases;

  Experts(int64_t experts, int64_t rows, int64_t cols, const QuantSpec& format)
      : e(experts),
        n(rows),
        k(cols),
        spec(format.resolved()),
        codes(noise(static_cast<size_t>(e * n * k * spec.bits / 8), 1)),
        scales(affine() ? numbers(DType::bf16, groups(), 0.02, 2)
                        : std::vector<uint8_t>(static_cast<size_t>(groups()), uint8_t{120})),
        biases(affine() ? numbers(DType::bf16, groups(), 0.02, 3) : std::vector<uint8_t>(1)),
        d_codes(codes),
        d_scales(scales),
        d_biases(biases) {}
  bool affine() const { return spec.mode == Mode::affine; }
  int64_t groups() const { return e * n * k / spec.group_size; }
  double bytes_per_expert() const {
    const double per_group = affine() ? 4 : 1;
    return static_cast<double>(n * k) * (spec.bits / 8.0 + per_group / spec.group_size);
  }
  Quantized view(bool device) const {
    const Device d = device ? kCuda : Device{};
    const DType scale = affine() ? DType::bf16 : DType::u8;
    Quantized q;
    q.spec = spec;
    q.codes = {device ? d_codes.data() : codes.data(), DType::u32, {e, n, k * spec.bits / 32}, d};
    q.scales = {device ? d_scales.data() : scales.data(), scale, {e, n, k / spec.group_size}, d};
    if (affine()) {
      q.biases = {device ? d_biases.data() : biases.data(), scale, {e, n, k / spec.group_size}, d};
    }
    return q;
  }
};

// The largest |a - b| over the largest |b|; results of two backends, both bf16.
double distance(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  double off = 0, size = 0;
  for (int64_t i = 0; i < std::ssize(b) / 2; ++i) {
    const double x = cpu::load_float(a.data(), DType::bf16, i);
    const double y = cpu::load_float(b.data(), DType::bf16, i);
    off = std::max(off, std::isnan(x) ? HUGE_VAL : std::fabs(x - y));
    size = std::max(size, std::fabs(y));
  }
  return off / size;
}

// One bf16 rounding of the largest result on either side, and the two float32 sums.
constexpr double kMostDistance = 0x1p-7;

void time_read(Report& report, cudaStream_t stream) {
  constexpr size_t kBytes = size_t{4} << 30;
  const DeviceMemory words(kBytes), out(4);
  check_cuda(cudaMemset(words.data(), 0x5a, kBytes), "cudaMemset");
  const double s = seconds(stream, [&] {
    launch_read(words.data(), kBytes / 16, reinterpret_cast<uint32_t*>(out.data()), stream);
  });
  report.timing("read", {{"TB/s", static_cast<double>(kBytes) / s / 1e12}});
}

// Decode: one token, its k experts; the tokens of one replay choose others in turn.
void time_gather_qmv(Report& report, const char* name, const Experts& w, int64_t tokens, int64_t k,
                     cudaStream_t stream) {
  const int64_t turns = std::max<int64_t>(1, w.e / (tokens * k)), pairs = tokens * k;
  std::vector<int32_t> ids(static_cast<size_t>(turns * pairs));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(static_cast<int64_t>(i) % w.e);
  const auto x = numbers(DType::bf16, pairs * w.k, 2, 5);
  std::vector<uint8_t> id_bytes(ids.size() * 4);
  std::memcpy(id_bytes.data(), ids.data(), id_bytes.size());
  const DeviceMemory d_x(x), d_ids(id_bytes), d_out(static_cast<size_t>(turns * pairs * w.n * 2));
  Options options;
  options.stream = stream;
  const auto call = [&](int64_t turn, const Options& o) {
    gather_qmv({d_x.data(), DType::bf16, {pairs, w.k}, kCuda}, w.view(true),
               {d_ids.data() + turn * pairs * 4, DType::i32, {pairs}, kCuda},
               {d_out.data() + turn * pairs * w.n * 2, DType::bf16, {pairs, w.n}, kCuda}, o);
  };
  const Plan p = plan([&](const Options& o) { call(0, o); }, options);
  const DeviceMemory workspace(std::max<size_t>(p.workspace_bytes, 1));
  options.workspace = workspace.data();
  options.workspace_bytes = p.workspace_bytes;
  call(0, options);
  std::vector<uint8_t> got(static_cast<size_t>(pairs * w.n * 2)), cpu(got.size());
  check_cuda(cudaStreamSynchronize(stream), "waiting");
  check_cuda(cudaMemcpy(got.data(), d_out.data(), got.size(), cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  gather_qmv({x.data(), DType::bf16, {pairs, w.k}}, w.view(false),
             {id_bytes.data(), DType::i32, {pairs}}, {cpu.data(), DType::bf16, {pairs, w.n}});
  const double off = distance(got, cpu);
  report.check(std::string("timed answer: ") + name,
               off <= kMostDistance ? "" : "off by " + std::to_string(off));
  const double s = seconds(stream,
                           [&] {
                             for (int64_t turn = 0; turn < turns; ++turn) call(turn, options);
                           }) /
                   static_cast<double>(turns);
  report.fact(std::string("kernel of ") + name, p.kernel);
  report.timing(name, {{"us", s * 1e6},
                       {"TB/s", w.bytes_per_expert() * static_cast<double>(pairs) / s / 1e12}});
}

// gather_qmm of T tokens with k experts each; every expert gets as many rows.
void time_gather_qmm(Report& report, const char* name, const Experts& w, int64_t tokens, int64_t k,
                     cudaStream_t stream) {
  const int64_t pairs = tokens * k;
  std::vector<int32_t> ids(static_cast<size_t>(pairs));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(static_cast<int64_t>(i) % w.e);
  test::Random random(9);
  for (size_t i = ids.size() - 1; i > 0; --i) {
    std::swap(ids[i], ids[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
  }
  const auto x = numbers(DType::bf16, tokens * w.k, 2, 5);
  std::vector<uint8_t> id_bytes(ids.size() * 4);
  std::memcpy(id_bytes.data(), ids.data(), id_bytes.size());
  const DeviceMemory d_x(x), d_ids(id_bytes), d_out(static_cast<size_t>(pairs * w.n * 2));
  Options options;
  options.stream = stream;
  const auto call = [&](const Options& o) {
    gather_qmm({d_x.data(), DType::bf16, {tokens, 1, 1, w.k}, kCuda}, w.view(true), {},
               {d_ids.data(), DType::i32, {tokens, k}, kCuda}, true, false,
               {d_out.data(), DType::bf16, {tokens, k, 1, w.n}, kCuda}, o);
  };
  const Plan p = plan(call, options);
  const DeviceMemory workspace(std::max<size_t>(p.workspace_bytes, 1));
  options.workspace = workspace.data();
  options.workspace_bytes = p.workspace_bytes;
  call(options);
  // The first tokens alone on the CPU.
  const int64_t few = std::min<int64_t>(tokens, 4);
  std::vector<uint8_t> got(static_cast<size_t>(few * k * w.n * 2)), cpu(got.size());
  check_cuda(cudaStreamSynchronize(stream), "waiting");
  check_cuda(cudaMemcpy(got.data(), d_out.data(), got.size(), cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  gather_qmm({x.data(), DType::bf16, {few, 1, 1, w.k}}, w.view(false), {},
             {id_bytes.data(), DType::i32, {few, k}}, true, false,
             {cpu.data(), DType::bf16, {few, k, 1, w.n}});
  const double off = distance(got, cpu);
  report.check(std::string("timed answer: ") + name,
               off <= kMostDistance ? "" : "off by " + std::to_string(off));
  const double s = seconds(stream, [&] { call(options); });
  const double distinct = static_cast<double>(std::min(w.e, pairs));
  report.fact(std::string("kernel of ") + name, p.kernel);
  report.timing(name, {{"us", s * 1e6},
                       {"TFLOP/s", 2.0 * static_cast<double>(pairs * w.n) *
                                       static_cast<double>(w.k) / s / 1e12},
                       {"TB/s of distinct experts", w.bytes_per_expert() * distinct / s / 1e12}});
}

}  // namespace

void run_timings(Report& report) {
  set_num_threads(0);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  time_read(report, stream);
  const QuantSpec affine4{Mode::affine, 4, 64}, mxfp4{Mode::mxfp4};
  for (const auto& [spec, format] : {std::pair{affine4, "affine4"}, std::pair{mxfp4, "mxfp4"}}) {
    const auto named = [&](const char* what) { return std::string(what) + " " + format; };
    {
      const Experts mixtral(8, 2 * 14336, 4096, spec);
      time_gather_qmv(report, named("gather_qmv Mixtral gate+up T=1").c_str(), mixtral, 1, 2,
                      stream);
    }
    const Experts qwen(128, 2 * 768, 2048, spec);
    time_gather_qmv(report, named("gather_qmv Qwen3-30B gate+up T=1").c_str(), qwen, 1, 8, stream);
    time_gather_qmm(report, named("gather_qmm Qwen3-30B gate+up T=64, unsorted").c_str(), qwen, 64,
                    8, stream);
    time_gather_qmm(report, named("gather_qmm Qwen3-30B gate+up 256 rows per expert").c_str(), qwen,
                    4096, 8, stream);
  }
  check_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

}  // namespace moeblas::gpu
