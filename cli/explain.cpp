// moeblas explain: which kernel a call would use, and why not an earlier one. Only shapes are made
// up; no data exists.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "commands.h"
#include "moeblas/kernels.h"

namespace moeblas::cli {
namespace {

struct Sizes {
  std::string op = "gather_qmm";
  std::string mode = "affine";
  std::string dtype = "bfloat16";
  std::string scale_dtype = "bfloat16";
  std::string kernel;
  int bits = 0;
  int group_size = 0;
  int64_t m = 1, n = 4096, k = 4096, experts = 8, tokens = 1, top_k = 2, segments = 16;
  bool no_transpose = false;
  bool deterministic = false;
  int precision = 0;
};

const std::map<std::string, DType> kDTypes = {
    {"float32", DType::f32}, {"float16", DType::f16}, {"bfloat16", DType::bf16}};
const std::map<std::string, Mode> kModes = {{"affine", Mode::affine},
                                            {"mxfp4", Mode::mxfp4},
                                            {"mxfp8", Mode::mxfp8},
                                            {"nvfp4", Mode::nvfp4}};

// A quantized stack of `experts` matrices (0: one matrix) without data.
Quantized weights(const Sizes& s, int64_t experts) {
  const QuantSpec spec = QuantSpec{kModes.at(s.mode), s.bits, s.group_size}.resolved();
  const int64_t rows = s.no_transpose ? s.k : s.n, cols = s.no_transpose ? s.n : s.k;
  const Shape shape = experts > 0 ? Shape{experts, rows, cols} : Shape{rows, cols};
  const QuantizedSpec tensors = infer_quantize(
      TensorView(nullptr, DType::f32, shape), spec,
      spec.mode == Mode::affine ? std::optional(kDTypes.at(s.scale_dtype)) : std::nullopt);
  Quantized q;
  q.spec = spec;
  q.codes = {nullptr, tensors.codes.dtype, tensors.codes.shape};
  q.scales = {nullptr, tensors.scales.dtype, tensors.scales.shape};
  if (tensors.biases) q.biases = {nullptr, tensors.biases->dtype, tensors.biases->shape};
  return q;
}

TensorView empty(const Spec& spec) { return {nullptr, spec.dtype, spec.shape}; }

using Call = std::function<void(const Sizes&, const Options&)>;

const std::map<std::string, Call> kCalls = {
    {"quantized_matmul",
     [](const Sizes& s, const Options& o) {
       const TensorView x(nullptr, kDTypes.at(s.dtype), {s.m, s.k});
       const Quantized w = weights(s, 0);
       quantized_matmul(x, w, !s.no_transpose, empty(infer_quantized_matmul(x, w, !s.no_transpose)),
                        o);
     }},
    {"gather_qmm",
     [](const Sizes& s, const Options& o) {
       const TensorView x(nullptr, kDTypes.at(s.dtype), {s.tokens, 1, s.m, s.k});
       const TensorView ids(nullptr, DType::i32, {s.tokens, s.top_k});
       const Quantized w = weights(s, s.experts);
       gather_qmm(x, w, {}, ids, !s.no_transpose, false,
                  empty(infer_gather_qmm(x, w, {}, ids, !s.no_transpose)), o);
     }},
    {"gather_qmv",
     [](const Sizes& s, const Options& o) {
       const TensorView x(nullptr, kDTypes.at(s.dtype), {s.tokens * s.top_k, s.k});
       const TensorView ids(nullptr, DType::i32, {s.tokens * s.top_k});
       const Quantized w = weights(s, s.experts);
       gather_qmv(x, w, ids, empty(infer_gather_qmv(x, w, ids)), o);
     }},
    {"grouped_qmm",
     [](const Sizes& s, const Options& o) {
       const TensorView x(nullptr, kDTypes.at(s.dtype), {s.tokens * s.top_k, s.k});
       const TensorView offsets(nullptr, DType::i32, {s.experts});
       const Quantized w = weights(s, s.experts);
       grouped_qmm(x, w, offsets, !s.no_transpose,
                   empty(infer_grouped_qmm(x, w, offsets, !s.no_transpose)), o);
     }},
    {"gather_mm",
     [](const Sizes& s, const Options& o) {
       const TensorView a(nullptr, kDTypes.at(s.dtype), {s.tokens, 1, s.m, s.k});
       const TensorView b(nullptr, kDTypes.at(s.dtype), {s.experts, s.k, s.n});
       const TensorView ids(nullptr, DType::i32, {s.tokens, s.top_k});
       gather_mm(a, b, {}, ids, false, empty(infer_gather_mm(a, b, {}, ids)), o);
     }},
    {"grouped_mm",
     [](const Sizes& s, const Options& o) {
       const TensorView x(nullptr, kDTypes.at(s.dtype), {s.tokens * s.top_k, s.k});
       const TensorView w(nullptr, kDTypes.at(s.dtype), {s.experts, s.k, s.n});
       const TensorView offsets(nullptr, DType::i32, {s.experts});
       grouped_mm(x, w, offsets, empty(infer_grouped_mm(x, w, offsets)), o);
     }},
    {"segmented_mm",
     [](const Sizes& s, const Options& o) {
       const TensorView a(nullptr, kDTypes.at(s.dtype), {s.m, s.k});
       const TensorView b(nullptr, kDTypes.at(s.dtype), {s.k, s.n});
       const TensorView segments(nullptr, DType::i32, {s.segments, 2});
       segmented_mm(a, b, segments, empty(infer_segmented_mm(a, b, segments)), o);
     }},
    {"quantize",
     [](const Sizes& s, const Options& o) {
       quantize({nullptr, kDTypes.at(s.dtype), {s.n, s.k}}, weights(s, 0), o);
     }},
    {"dequantize",
     [](const Sizes& s, const Options& o) {
       const Quantized w = weights(s, 0);
       dequantize(w, empty(infer_dequantize(w, kDTypes.at(s.dtype))), o);
     }},
};

void explain(const Sizes& s) {
  Options options;
  options.precision = static_cast<Precision>(s.precision);
  options.deterministic = s.deterministic;
  if (!s.kernel.empty()) options.kernel = s.kernel.c_str();
  const Plan p = plan([&](const Options& o) { kCalls.at(s.op)(s, o); }, options);
  std::printf("%skernel: %s\nworkspace: %zu bytes\n", p.explanation.c_str(),
              p.kernel.empty() ? "none" : p.kernel.c_str(), p.workspace_bytes);
}

}  // namespace

void add_explain(CLI::App& app) {
  auto* command =
      app.add_subcommand("explain", "Which kernel a call would use, and why not an earlier one");
  auto s = std::make_shared<Sizes>();
  command->add_option("op", s->op, "The operation")->required()->check(CLI::IsMember(kCalls));
  command->add_option("--m", s->m, "Rows of each matrix of x")->check(CLI::NonNegativeNumber);
  command->add_option("--n", s->n, "Outputs")->check(CLI::NonNegativeNumber);
  command->add_option("--k", s->k, "Inputs")->check(CLI::NonNegativeNumber);
  command->add_option("--experts", s->experts, "Matrices of w")->check(CLI::NonNegativeNumber);
  command->add_option("--tokens", s->tokens, "Tokens")->check(CLI::NonNegativeNumber);
  command->add_option("--top-k", s->top_k, "Experts per token")->check(CLI::NonNegativeNumber);
  command->add_option("--segments", s->segments, "Segments of K")->check(CLI::NonNegativeNumber);
  command->add_option("--mode", s->mode, "Quantization mode")->check(CLI::IsMember(kModes));
  command->add_option("--bits", s->bits, "Bits per code (0: the mode's default)");
  command->add_option("--group-size", s->group_size, "Values per scale (0: the mode's default)");
  command->add_option("--dtype", s->dtype, "Of x")->check(CLI::IsMember(kDTypes));
  command->add_option("--scale-dtype", s->scale_dtype, "Of affine scales")
      ->check(CLI::IsMember(kDTypes));
  command->add_flag("--no-transpose", s->no_transpose, "w is (K, N) instead of (N, K)");
  command->add_flag("--deterministic", s->deterministic, "Rows must not depend on other rows");
  command->add_option("--precision", s->precision, "0 native, 1 exact, 2 fast")
      ->check(CLI::Range(0, 2));
  command->add_option("--kernel", s->kernel, "Force this row");
  command->callback([s] { explain(*s); });
}

}  // namespace moeblas::cli
