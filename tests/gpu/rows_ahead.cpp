#include "rows_ahead.h"

#include <cmath>
#include <thread>

#include "cpu/elements.h"
#include "cuda_lane.h"
#include "maker.h"

namespace moeblas::gpu {
namespace {

// So many tiles, on the average, that there are rows behind those of the first round; none of the
// numbers is a multiple of a tile's. With kTokensOfWider, experts meet some rows more than two
// tiles have, and those that take a few more are chosen.
constexpr int64_t kExperts = 4, kTopK = 4, kTokens = 700, kTokensOfWider = 535, kColumns = 9088;
constexpr int64_t kHostileIds = 60;  // one of so many

constexpr const char* kLayerRow = "ffn_qmm_sm90";

struct Weights {
  QuantSpec spec;
  DType dtype = DType::bf16;  // of x

  bool is_dense() const { return spec.mode == Mode::dense; }
  const char* row() const { return is_dense() ? "mm_sm90" : "qmm_sm90"; }
  bool has_layers() const { return spec.mode != Mode::nvfp4 && !is_dense(); }
  // Copies of rows that are given one by one are of whole blocks.
  int64_t k() const { return is_dense() ? 256 : 192; }
  std::string text() const {
    const int bits = is_dense() ? 16 : spec.resolved().bits;
    return std::string(name(spec.mode)) + " b" + std::to_string(bits) + ", x " + name(dtype);
  }
};
const Weights kWeights[] = {{{Mode::affine, 4, 64}}, {{Mode::affine, 8, 64}},
                            {{Mode::mxfp4}},         {{Mode::nvfp4}},
                            {{Mode::dense}},         {{Mode::dense}, DType::f16}};

// A row's error is a few roundings of 16 bits; a wrong row's is as large as the row.
Judgement judge_rows(DType dtype, int64_t columns, std::span<const uint8_t> got,
                     std::span<const uint8_t> cpu) {
  constexpr double kLimit = 0.03;
  Judgement j;
  const auto rows = static_cast<int64_t>(got.size() / size_of(dtype)) / columns;
  for (int64_t r = 0; r < rows; ++r) {
    double error = 0, size = 0;
    for (int64_t i = r * columns; i < (r + 1) * columns; ++i) {
      const double a = cpu::load_float(got.data(), dtype, i);
      const double b = cpu::load_float(cpu.data(), dtype, i);
      error += (a - b) * (a - b);
      size += b * b;
    }
    const double off = error == 0 ? 0 : std::sqrt(error / size) / kLimit;
    j.worst = std::max(j.worst, off);
    if (off <= 1) continue;  // not NaN
    j.failure = "row " + std::to_string(r) + " differs from the CPU's by " +
                std::to_string(off * kLimit) + " of its size, " + std::to_string(kLimit) +
                " at the most";
    return j;
  }
  return j;
}

// `each`: every pair has a row of x of its own, which are the same rows.
Job gathered(const Weights& of, int64_t tokens, int64_t k, bool each) {
  const DType dtype = of.dtype;
  Maker m("gather_qmm", 5);
  const int64_t copies = each ? kTopK : 1;
  const int x = m.add(Role::input, dtype, {tokens, copies, 1, k});
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < k; ++i) {
      const auto v = static_cast<float>(m.random.normal());
      for (int64_t c = 0; c < copies; ++c) m[x].set((t * copies + c) * k + i, v);
    }
  }
  const PackedAt w = m.packed(of.spec, {kExperts, kColumns, k}, dtype, 0.1, dtype);
  const int ids = m.ids(DType::i32, {tokens, kTopK}, kExperts, kHostileIds);
  const int out = m.add(Role::output, dtype, {tokens, kTopK, 1, kColumns});
  m.job.call = [=](Views v, const Options& o) {
    gather_qmm(v[static_cast<size_t>(x)], w.in(v), {}, v[static_cast<size_t>(ids)], true, false,
               v[static_cast<size_t>(out)], o);
  };
  m.job.judge = [=](const std::string&, std::span<const uint8_t> got,
                    std::span<const uint8_t> cpu) { return judge_rows(dtype, kColumns, got, cpu); };
  return m.job;
}

// A layer whose first product writes its rows: `k` values of a token, kColumns gates and ups.
Job layered(const QuantSpec& spec, int64_t tokens, int64_t k) {
  constexpr DType dtype = DType::bf16;
  Maker m("moe_ffn", 6);
  const int x = m.floats(dtype, {tokens, k});
  const int ids = m.ids(DType::i32, {tokens, kTopK}, kExperts, kHostileIds);
  const int weights = m.floats(DType::f32, {tokens, kTopK}, 0.5);
  const PackedAt gate_up = m.packed(spec, {kExperts, kColumns, k}, dtype, 0.1, dtype);
  const PackedAt down = m.packed(spec, {kExperts, k, kColumns / 2}, dtype, 0.1, dtype);
  const int out = m.add(Role::output, dtype, {tokens, k});
  m.job.call = [=](Views v, const Options& o) {
    FfnLayer layer;
    layer.gate_up = gate_up.in(v);
    layer.down = down.in(v);
    moe_ffn(v[static_cast<size_t>(x)], layer, v[static_cast<size_t>(ids)],
            v[static_cast<size_t>(weights)], v[static_cast<size_t>(out)], o);
  };
  m.job.judge = [=](const std::string&, std::span<const uint8_t> got,
                    std::span<const uint8_t> cpu) { return judge_rows(dtype, k, got, cpu); };
  return m.job;
}

// The same rows, given one by one.
std::string compare(const Weights& of, int64_t tokens, const std::vector<uint8_t>& ahead,
                    size_t workspace, const Options& options) {
  const Job each = gathered(of, tokens, of.k(), true);
  const Plan plan = plan_on(each, kCuda, options);
  // Else there are no such rows in the job.
  if (plan.workspace_bytes >= workspace) return "no rows are written ahead";
  CudaLane lane(1);
  const Block block(each, plan.workspace_bytes, 0xff);
  const std::vector<uint8_t> got = block.results(call_once(each, lane, block, options));
  return got == ahead ? "" : "rows given one by one: " + difference(each, ahead, got);
}

std::string check_weights(const Weights& of, int64_t tokens, bool layer) {
  constexpr int kReplays = 8;
  const Job job = layer ? layered(of.spec, tokens, of.k()) : gathered(of, tokens, of.k(), false);
  Options options;
  options.kernel = layer ? kLayerRow : of.row();
  size_t workspace = 0;
  try {
    workspace = plan_on(job, kCuda, options).workspace_bytes;
  } catch (const Error& e) {
    if (e.status() != MOEBLAS_UNSUPPORTED) throw;
    return "";  // another device than the kernel is for
  }
  const Block block(job, workspace, 0xff);
  CudaLane lanes[] = {CudaLane(1), CudaLane(1)};
  const std::vector<uint8_t> first = block.results(call_once(job, lanes[0], block, options));
  const Judgement judgement = job.judge("", first, run_on_cpu(job));
  if (!judgement.failure.empty()) return judgement.failure;
  if (!layer) {
    const std::string off = compare(of, tokens, first, workspace, options);
    if (!off.empty()) return off;
  }
  // Two at once, neither of which has all multiprocessors.
  for (CudaLane& lane : lanes) lane.send(block);
  for (int i = 0; i < kReplays / 2; ++i) {
    for (CudaLane& lane : lanes) {
      Options own = options;
      own.stream = lane.stream();
      own.workspace = block.workspace(lane.base());
      own.workspace_bytes = workspace;
      job.call(block.views(lane.base(), kCuda), own);
    }
  }
  for (CudaLane& lane : lanes) {
    const std::vector<uint8_t> got = block.results(lane.fetch(block));
    if (got != first) return "two streams: " + difference(job, got, first);
  }
  for (int i = 0; i < kReplays; ++i) {
    const std::vector<uint8_t> got = block.results(call_once(job, lanes[0], block, options));
    if (got != first) return "call " + std::to_string(i) + ": " + difference(job, got, first);
  }
  return "";
}

}  // namespace

std::vector<std::function<Job()>> smallest_ahead_jobs() {
  std::vector<std::function<Job()>> jobs;
  for (const Weights& of : kWeights) {
    for (const int64_t tokens : {kTokens, kTokensOfWider}) {
      jobs.emplace_back([of, tokens] { return gathered(of, tokens, 64, false); });
    }
  }
  return jobs;
}

std::vector<std::function<Job()>> smallest_ahead_layers() {
  std::vector<std::function<Job()>> jobs;
  for (const Weights& of : kWeights) {
    for (const int64_t tokens : {kTokens, kTokensOfWider}) {
      if (of.has_layers()) jobs.emplace_back([=] { return layered(of.spec, tokens, 64); });
    }
  }
  return jobs;
}

void check_rows_ahead(Report& report) {
  std::vector<std::thread> threads;
  for (const Weights& of : kWeights) {
    threads.emplace_back([&report, &of] {
      for (const bool layer : {false, true}) {
        for (const int64_t tokens : {kTokens, kTokensOfWider}) {
          if (layer && !of.has_layers()) continue;
          std::string failure;
          try {
            failure = check_weights(of, tokens, layer);
          } catch (const std::exception& e) {
            failure = e.what();
          }
          report.check("rows written ahead: " + of.text() + ", " + std::to_string(tokens) +
                           (layer ? " tokens of a layer" : " tokens"),
                       failure);
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace moeblas::gpu
