// moeblas: bfloat16 in and out, weights as a checkpoint has them.
#include <cstring>
#include <numeric>

#include "bench/pages.h"
#include "library.h"
#include "moeblas/kernels.h"

namespace compare {
namespace {

using namespace moeblas;

int64_t bytes_of(const Spec& spec) {
  int64_t count = 1;
  for (int i = 0; i < spec.shape.ndim(); ++i) count *= spec.shape[i];
  return count * static_cast<int64_t>(size_of(spec.dtype));
}

// One tensor of the format, as quantized from the pool and as the stack of matrices.
struct Part {
  bench::Memory pool, stack;
  DType dtype = DType::other;
  int64_t row = 0, columns = 0;  // bytes and elements of a row

  Part() = default;
  explicit Part(const Spec& spec)
      : pool(bench::allocate_pages(bytes_of(spec))),
        dtype(spec.dtype),
        row(bytes_of(spec) / kPool),
        columns(spec.shape[1]) {}
  TensorView of_pool() const { return {pool.get(), dtype, {kPool, columns}}; }
  void expand(const Workload& w) {
    stack = bench::allocate_pages(w.matrices() * w.n * row);
    auto* to = static_cast<char*>(stack.get());
    for (int64_t i = 0; i < w.matrices() * w.n; ++i)
      std::memcpy(to + i * row, static_cast<char*>(pool.get()) + pool_row(i / w.n, i % w.n) * row,
                  static_cast<size_t>(row));
  }
  TensorView matrix(const Workload& w, int64_t i) const {
    return {static_cast<char*>(stack.get()) + i * w.n * row, dtype, {w.n, columns}};
  }
  TensorView all(const Workload& w) const {
    return {stack.get(), dtype, {w.experts, w.n, columns}};
  }
};

struct State {
  Inputs in;
  QuantSpec spec;
  Part codes, scales, biases;
  bench::Memory out, workspace;
  std::vector<Quantized> w;  // per set
  Options options;
};

Product product(const Inputs& inputs, const QuantSpec& spec, const char* format) {
  auto s = std::make_shared<State>();
  s->in = inputs;
  s->spec = spec;
  const Workload& w = s->in.work;
  Product p;
  p.library = "moeblas";
  p.format = format;
  p.limit = kBf16Limit;
  p.limit_is = "results are bfloat16";

  const TensorView pool(const_cast<float*>(s->in.pool.data()), DType::f32, {kPool, w.k});
  const QuantizedSpec specs = infer_quantize(
      pool, spec, spec.mode == Mode::affine ? std::optional(DType::bf16) : std::nullopt);
  s->codes = Part(specs.codes);
  s->scales = Part(specs.scales);
  if (specs.biases) s->biases = Part(*specs.biases);
  Quantized packed{.spec = spec, .codes = s->codes.of_pool(), .scales = s->scales.of_pool()};
  if (specs.biases) packed.biases = s->biases.of_pool();
  quantize(pool, packed);
  p.weights.resize(s->in.pool.size());
  dequantize(packed, TensorView(p.weights.data(), DType::f32, {kPool, w.k}));
  const int64_t row = s->codes.row + s->scales.row + s->biases.row;
  p.bits_per_weight = 8.0 * static_cast<double>(row) / static_cast<double>(w.k);

  for (Part* part : {&s->codes, &s->scales, &s->biases}) {
    if (part->row > 0) part->expand(w);
  }
  for (int i = 0; i < w.sets; ++i) {
    Quantized q{.spec = spec};
    const auto view = [&](const Part& part) {
      return w.experts == 0 ? part.matrix(w, i) : part.all(w);
    };
    q.codes = view(s->codes);
    q.scales = view(s->scales);
    if (specs.biases) q.biases = view(s->biases);
    s->w.push_back(q);
  }
  s->out = bench::allocate_pages(w.outputs() * w.n * 2);
  const auto call = [s = s.get()](int set, const Options& options) {
    const Workload& work = s->in.work;
    auto* x = const_cast<uint16_t*>(s->in.x_bf16.data());
    const Quantized& q = s->w[static_cast<size_t>(set)];
    if (work.experts == 0) {
      quantized_matmul(TensorView(x, DType::bf16, {work.rows, work.k}), q, true,
                       TensorView(s->out.get(), DType::bf16, {work.rows, work.n}), options);
    } else {
      auto* ids = s->in.ids[static_cast<size_t>(set)].data();
      gather_qmm(TensorView(x, DType::bf16, {work.rows, 1, 1, work.k}), q, {},
                 TensorView(ids, DType::i32, {work.rows, work.top_k}), true, false,
                 TensorView(s->out.get(), DType::bf16, {work.rows, work.top_k, 1, work.n}),
                 options);
    }
  };
  const Plan chosen = plan([&](const Options& o) { call(0, o); });
  p.kernel = chosen.kernel;
  s->workspace = bench::allocate_pages(static_cast<int64_t>(chosen.workspace_bytes));
  s->options.workspace = s->workspace.get();
  s->options.workspace_bytes = chosen.workspace_bytes;
  p.call = [s, call](int set) { call(set, s->options); };
  p.poison = [s] {
    std::memset(s->out.get(), 0xff, static_cast<size_t>(s->in.work.outputs() * s->in.work.n * 2));
  };
  p.result = [s](int) {
    const auto* out = static_cast<const uint16_t*>(s->out.get());
    std::vector<float> values(static_cast<size_t>(s->in.work.outputs() * s->in.work.n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = from_bf16(out[i]);
    return values;
  };
  return p;
}

}  // namespace

Library ours() {
  return {"moeblas", MOEBLAS_VERSION_STRING, [](int threads) { set_num_threads(threads); },
          [](const Inputs& in, const std::vector<std::string>& formats) {
            std::vector<Product> products;
            const auto add = [&](const char* name, QuantSpec spec) {
              if (wanted(formats, name)) products.push_back(product(in, spec, name));
            };
            add("mxfp4", {Mode::mxfp4, 4, 32});
            add("affine4 g64", {Mode::affine, 4, 64});
            add("affine4 g32", {Mode::affine, 4, 32});
            add("affine8 g64", {Mode::affine, 8, 64});
            return products;
          }};
}

}  // namespace compare
