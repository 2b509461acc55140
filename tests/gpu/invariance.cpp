#include "invariance.h"

#include <cstring>

#include "cuda_lane.h"
#include "maker.h"

namespace moeblas::gpu {
namespace {

// A job whose tensors `by_row` have a first dimension of `rows`; the last of them is the output.
struct Sliced {
  Maker made;
  std::vector<int> by_row;
  int64_t rows;
};

constexpr int64_t kN = 128, kK = 384, kExperts = 4, kTopK = 2;

struct Part {
  int64_t first, count;
};
constexpr Part kParts[] = {{0, 1},  {77, 1},  {149, 1}, {0, 2},  {0, 5},
                           {0, 16}, {30, 17}, {0, 40},  {0, 64}, {10, 100}};
constexpr int64_t kRows = 150;

Sliced dense(const QuantSpec& spec, DType dtype) {
  Sliced s{Maker("quantized_matmul", 1), {}, kRows};
  Maker& m = s.made;
  const int x = m.floats(dtype, {kRows, kK});
  const PackedAt w = m.packed(spec, {kN, kK}, dtype, 0.1);
  const int out = m.add(Role::output, dtype, {kRows, kN});
  s.by_row = {x, out};
  m.job.call = [=](Views v, const Options& o) {
    quantized_matmul(v[static_cast<size_t>(x)], w.in(v), true, v[static_cast<size_t>(out)], o);
  };
  return s;
}

Sliced gathered(const QuantSpec& spec, DType dtype) {
  Sliced s{Maker("gather_qmm", 2), {}, kRows};
  Maker& m = s.made;
  const int x = m.floats(dtype, {kRows, 1, 1, kK});
  const PackedAt w = m.packed(spec, {kExperts, kN, kK}, dtype, 0.1);
  const int ids = m.ids(DType::i32, {kRows, kTopK}, kExperts, 9);
  const int out = m.add(Role::output, dtype, {kRows, kTopK, 1, kN});
  s.by_row = {x, ids, out};
  m.job.call = [=](Views v, const Options& o) {
    gather_qmm(v[static_cast<size_t>(x)], w.in(v), {}, v[static_cast<size_t>(ids)], true, false,
               v[static_cast<size_t>(out)], o);
  };
  return s;
}

Sliced layer(const QuantSpec& spec, DType dtype) {
  Sliced s{Maker("moe_ffn", 3), {}, kRows};
  Maker& m = s.made;
  const int x = m.floats(dtype, {kRows, kK});
  const PackedAt gate_up = m.packed(spec, {kExperts, 2 * kN, kK}, dtype, 0.1);
  const PackedAt down = m.packed(spec, {kExperts, kK, kN}, dtype, 0.1);
  const int ids = m.ids(DType::i32, {kRows, kTopK}, kExperts, 9);
  const int weights = m.floats(DType::f32, {kRows, kTopK});
  const int out = m.add(Role::output, dtype, {kRows, kK});
  s.by_row = {x, ids, weights, out};
  m.job.call = [=](Views v, const Options& o) {
    FfnLayer f;
    f.gate_up = gate_up.in(v);
    f.down = down.in(v);
    moe_ffn(v[static_cast<size_t>(x)], f, v[static_cast<size_t>(ids)],
            v[static_cast<size_t>(weights)], v[static_cast<size_t>(out)], o);
  };
  return s;
}

std::vector<TensorView> views_of(const Sliced& s, std::vector<TensorView> views, const Part& part) {
  for (int i : s.by_row) {
    TensorView& v = views[static_cast<size_t>(i)];
    v.data = static_cast<char*>(v.data) +
             part.first * v.strides[0] * static_cast<int64_t>(size_of(v.dtype));
    v.shape[0] = part.count;
  }
  return views;
}

std::string compare_parts(const Sliced& s) {
  const Job& job = s.made.job;
  const Block block(job, 0, 0xff);
  CudaLane lane(block.size() + 256);
  Options options;
  options.deterministic = true;
  options.stream = lane.stream();
  std::string kernel;
  const auto run = [&](const Part& part) {
    lane.send(block);
    const auto views = views_of(s, block.views(lane.base(), kCuda), part);
    const Plan p = plan([&](const Options& o) { job.call(views, o); }, options);
    if (kernel.empty()) kernel = p.kernel;
    if (p.kernel != kernel) {
      throw std::runtime_error(std::to_string(part.count) + " rows are " + p.kernel + "'s, all " +
                               kernel + "'s");
    }
    job.call(views, options);
    return block.results(lane.fetch(block));
  };
  const std::vector<uint8_t> all = run({0, s.rows});
  const size_t row = all.size() / static_cast<size_t>(s.rows);
  for (const Part& part : kParts) {
    const std::vector<uint8_t> some = run(part);
    for (int64_t r = part.first; r < part.first + part.count; ++r) {
      const size_t at = static_cast<size_t>(r) * row;
      if (std::memcmp(&some[at], &all[at], row) != 0) {
        return kernel + ": row " + std::to_string(r) + " differs in a call of " +
               std::to_string(part.count) + " rows";
      }
    }
  }
  return "";
}

}  // namespace

void check_invariance(Report& report) {
  const QuantSpec formats[] = {{Mode::affine, 2, 64}, {Mode::affine, 3, 64}, {Mode::affine, 4, 64},
                               {Mode::affine, 5, 64}, {Mode::affine, 6, 64}, {Mode::affine, 8, 64},
                               {Mode::affine, 4, 16}, {Mode::mxfp4},         {Mode::mxfp8},
                               {Mode::nvfp4},         {Mode::dense}};
  using Make = Sliced (*)(const QuantSpec&, DType);
  const std::pair<const char*, Make> operations[] = {
      {"quantized_matmul", dense}, {"gather_qmm", gathered}, {"moe_ffn", layer}};
  for (const auto& [op, make] : operations) {
    std::string failure;
    for (const QuantSpec& spec : formats) {
      for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        const Sliced s = make(spec, dtype);
        if (!failure.empty()) continue;
        try {
          failure = compare_parts(s);
        } catch (const std::exception& e) {
          failure = e.what();
        }
        if (!failure.empty()) failure = s.made.job.line + ": " + failure;
      }
    }
    report.check(std::string("deterministic: a row is the same among others, ") + op, failure);
  }
}

}  // namespace moeblas::gpu
