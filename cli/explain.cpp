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
#include "numbers.h"

namespace moeblas::cli {
namespace {

struct Sizes {
  std::string op = "gather_qmm";
  std::string mode = "affine";
  std::string dtype = "bfloat16";
  std::string scale_dtype = "bfloat16";
  std::string precision = "native";
  std::string device = "cpu";
  std::string kernel;
  int bits = 0;
  int group_size = 0;
  int64_t m = 1, n = 4096, k = 4096, experts = 8, tokens = 1, top_k = 2, segments = 16;
  bool no_transpose = false;
  bool deterministic = false;
};

const std::map<std::string, DType> kDTypes = {
    {"float32", DType::f32}, {"float16", DType::f16}, {"bfloat16", DType::bf16}};
const std::map<std::string, Mode> kModes = {{"dense", Mode::dense},
                                            {"affine", Mode::affine},
                                            {"mxfp4", Mode::mxfp4},
                                            {"mxfp8", Mode::mxfp8},
                                            {"nvfp4", Mode::nvfp4}};
const std::map<std::string, Precision> kPrecisions = {
    {"native", Precision::native}, {"exact", Precision::exact}, {"fast", Precision::fast}};
// The first of each kind: what a kernel asks of a device, others of a machine's mostly have too.
const std::map<std::string, Device> kDevices = {
    {"cpu", {MOEBLAS_CPU, 0}}, {"cuda", {MOEBLAS_CUDA, 0}}, {"metal", {MOEBLAS_METAL, 0}}};

TensorView tensor(const Sizes& s, DType dtype, const Shape& shape) {
  return {nullptr, dtype, shape, kDevices.at(s.device)};
}
TensorView tensor(const Sizes& s, const Spec& spec) { return tensor(s, spec.dtype, spec.shape); }
TensorView activations(const Sizes& s, const Shape& shape) {
  return tensor(s, kDTypes.at(s.dtype), shape);
}

QuantSpec format(const Sizes& s) { return {kModes.at(s.mode), s.bits, s.group_size}; }
// Of affine scales; the other modes have one dtype.
std::optional<DType> scale_dtype(const Sizes& s) {
  if (kModes.at(s.mode) != Mode::affine) return {};
  return kDTypes.at(s.scale_dtype);
}
Quantized quantized(const Sizes& s, const QuantizedSpec& tensors) {
  Quantized q{
      .spec = format(s), .codes = tensor(s, tensors.codes), .scales = tensor(s, tensors.scales)};
  if (tensors.biases) q.biases = tensor(s, *tensors.biases);
  return q;
}

// A quantized stack of matrices without data, or a dense one.
Quantized weights(const Sizes& s, const Shape& shape) {
  const TensorView values = activations(s, shape);
  if (kModes.at(s.mode) == Mode::dense) return {.spec = format(s), .codes = values};
  return quantized(s, infer_quantize(values, format(s), scale_dtype(s)));
}

// `experts` matrices (0: one) of n outputs and k inputs, as a product's w.
Quantized weights(const Sizes& s, int64_t experts) {
  const int64_t rows = s.no_transpose ? s.k : s.n, cols = s.no_transpose ? s.n : s.k;
  return weights(s, experts > 0 ? Shape{experts, rows, cols} : Shape{rows, cols});
}

// x of a product of two quantized operands, which is quantized on the fly.
Quantized block_x(const Sizes& s, const Shape& shape) {
  return {.spec = format(s), .codes = activations(s, shape)};
}

using Call = std::function<void(const Sizes&, const Options&)>;

const std::map<std::string, Call> kCalls = {
    {"quantized_matmul",
     [](const Sizes& s, const Options& o) {
       const TensorView x = activations(s, {s.m, s.k});
       const Quantized w = weights(s, 0);
       quantized_matmul(x, w, !s.no_transpose,
                        tensor(s, infer_quantized_matmul(x, w, !s.no_transpose)), o);
     }},
    {"gather_qmm",
     [](const Sizes& s, const Options& o) {
       const TensorView x = activations(s, {s.tokens, 1, s.m, s.k});
       const TensorView ids = tensor(s, DType::i32, {s.tokens, s.top_k});
       const Quantized w = weights(s, s.experts);
       gather_qmm(x, w, {}, ids, !s.no_transpose, false,
                  tensor(s, infer_gather_qmm(x, w, {}, ids, !s.no_transpose)), o);
     }},
    {"gather_qmv",
     [](const Sizes& s, const Options& o) {
       const TensorView x = activations(s, {s.tokens * s.top_k, s.k});
       const TensorView ids = tensor(s, DType::i32, {s.tokens * s.top_k});
       const Quantized w = weights(s, s.experts);
       gather_qmv(x, w, ids, tensor(s, infer_gather_qmv(x, w, ids)), o);
     }},
    {"grouped_qmm",
     [](const Sizes& s, const Options& o) {
       const TensorView x = activations(s, {s.tokens * s.top_k, s.k});
       const TensorView offsets = tensor(s, DType::i32, {s.experts});
       const Quantized w = weights(s, s.experts);
       grouped_qmm(x, w, offsets, !s.no_transpose,
                   tensor(s, infer_grouped_qmm(x, w, offsets, !s.no_transpose)), o);
     }},
    {"gather_mm",
     [](const Sizes& s, const Options& o) {
       const TensorView a = activations(s, {s.tokens, 1, s.m, s.k});
       const TensorView b = activations(s, {s.experts, s.k, s.n});
       const TensorView ids = tensor(s, DType::i32, {s.tokens, s.top_k});
       gather_mm(a, b, {}, ids, false, tensor(s, infer_gather_mm(a, b, {}, ids)), o);
     }},
    {"grouped_mm",
     [](const Sizes& s, const Options& o) {
       const TensorView x = activations(s, {s.tokens * s.top_k, s.k});
       const TensorView w = activations(s, {s.experts, s.k, s.n});
       const TensorView offsets = tensor(s, DType::i32, {s.experts});
       grouped_mm(x, w, offsets, tensor(s, infer_grouped_mm(x, w, offsets)), o);
     }},
    {"segmented_mm",
     [](const Sizes& s, const Options& o) {
       const TensorView a = activations(s, {s.m, s.k});
       const TensorView b = activations(s, {s.k, s.n});
       const TensorView segments = tensor(s, DType::i32, {s.segments, 2});
       segmented_mm(a, b, segments, tensor(s, infer_segmented_mm(a, b, segments)), o);
     }},
    {"qqmm",
     [](const Sizes& s, const Options& o) {
       const Quantized w = weights(s, Shape{s.n, s.k}), x = block_x(s, {s.m, s.k});
       qqmm(x, w, tensor(s, infer_qqmm(x, w)), {}, o);
     }},
    {"gather_qqmm",
     [](const Sizes& s, const Options& o) {
       const Quantized w = weights(s, Shape{s.experts, s.n, s.k});
       const Quantized x = block_x(s, {s.tokens, 1, s.m, s.k});
       const TensorView ids = tensor(s, DType::i32, {s.tokens, s.top_k});
       gather_qqmm(x, w, {}, ids, false, tensor(s, infer_gather_qqmm(x, w, {}, ids)), {}, o);
     }},
    {"grouped_qqmm",
     [](const Sizes& s, const Options& o) {
       const Quantized w = weights(s, Shape{s.experts, s.n, s.k});
       const Quantized x = block_x(s, {s.tokens * s.top_k, s.k});
       const TensorView offsets = tensor(s, DType::i32, {s.experts});
       grouped_qqmm(x, w, offsets, tensor(s, infer_grouped_qqmm(x, w, offsets)), {}, o);
     }},
    {"moe_route",
     [](const Sizes& s, const Options& o) {
       const TensorView logits = activations(s, {s.tokens, s.experts});
       const Router router{.top_k = static_cast<int>(s.top_k)};
       const RouteSpecs out = infer_moe_route(logits, {}, router);
       moe_route(logits, {}, router, tensor(s, out.ids), tensor(s, out.weights), o);
     }},
    {"moe_permute",
     [](const Sizes& s, const Options& o) {
       const TensorView x = activations(s, {s.tokens, s.k});
       const TensorView ids = tensor(s, DType::i32, {s.tokens, s.top_k});
       const PermuteSpecs out = infer_moe_permute(x, ids, {}, s.experts);
       moe_permute(x, ids, {}, s.experts, tensor(s, out.rows), tensor(s, out.offsets),
                   tensor(s, out.inverse), o);
     }},
    {"moe_unpermute",
     [](const Sizes& s, const Options& o) {
       const TensorView y = activations(s, {s.tokens * s.top_k, s.k});
       const TensorView inverse = tensor(s, DType::i32, {s.tokens, s.top_k});
       const TensorView shares = tensor(s, DType::f32, {s.tokens, s.top_k});
       moe_unpermute(y, inverse, shares, tensor(s, infer_moe_unpermute(y, inverse, shares)), o);
     }},
    {"moe_ffn",
     [](const Sizes& s, const Options& o) {
       const TensorView x = activations(s, {s.tokens, s.k});
       const TensorView ids = tensor(s, DType::i32, {s.tokens, s.top_k});
       const TensorView shares = tensor(s, DType::f32, {s.tokens, s.top_k});
       FfnLayer layer;
       layer.gate_up = weights(s, Shape{s.experts, 2 * s.n, s.k});
       layer.down = weights(s, Shape{s.experts, s.k, s.n});
       moe_ffn(x, layer, ids, shares, tensor(s, infer_moe_ffn(x, layer, ids, shares)), o);
     }},
    {"quantize",
     [](const Sizes& s, const Options& o) {
       quantize(activations(s, {s.n, s.k}), weights(s, Shape{s.n, s.k}), o);
     }},
    {"quantize_dual",
     [](const Sizes& s, const Options& o) {
       const TensorView w = activations(s, {s.n, s.k});
       const DualSpecs out = infer_quantize_dual(w, format(s), scale_dtype(s));
       quantize_dual(w, quantized(s, out.rows), quantized(s, out.columns), o);
     }},
    {"to_fp8",
     [](const Sizes& s, const Options& o) {
       const TensorView x = activations(s, {s.n, s.k});
       to_fp8(x, tensor(s, infer_to_fp8(x)), o);
     }},
    {"from_fp8",
     [](const Sizes& s, const Options& o) {
       const TensorView x = tensor(s, DType::u8, {s.n, s.k});
       from_fp8(x, tensor(s, infer_from_fp8(x, kDTypes.at(s.dtype))), o);
     }},
    {"dequantize",
     [](const Sizes& s, const Options& o) {
       const Quantized w = weights(s, Shape{s.n, s.k});
       dequantize(w, tensor(s, infer_dequantize(w, kDTypes.at(s.dtype))), o);
     }},
};

void explain(const Sizes& s) {
  Options options;
  options.precision = kPrecisions.at(s.precision);
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
  command->add_option("--m", s->m, "Rows of each matrix of x")->check(not_negative());
  command->add_option("--n", s->n, "Outputs; of moe_ffn the rows of gate, and of up")
      ->check(not_negative());
  command->add_option("--k", s->k, "Inputs; of moe_ffn x's columns")->check(not_negative());
  command->add_option("--experts", s->experts, "Matrices of w")->check(not_negative());
  command->add_option("--tokens", s->tokens, "Tokens")->check(not_negative());
  command->add_option("--top-k", s->top_k, "Experts per token")->check(not_negative());
  command->add_option("--segments", s->segments, "Segments of K")->check(not_negative());
  command->add_option("--mode", s->mode, "Quantization mode")->check(CLI::IsMember(kModes));
  command->add_option("--bits", s->bits, "Bits per code (0: the mode's default)");
  command->add_option("--group-size", s->group_size, "Values per scale (0: the mode's default)");
  command->add_option("--dtype", s->dtype, "Of x")->check(CLI::IsMember(kDTypes));
  command->add_option("--scale-dtype", s->scale_dtype, "Of affine scales")
      ->check(CLI::IsMember(kDTypes));
  command->add_flag("--no-transpose", s->no_transpose, "w is (K, N) instead of (N, K)");
  command->add_flag("--deterministic", s->deterministic, "Rows must not depend on other rows");
  command->add_option("--precision", s->precision, "Of options")
      ->check(CLI::IsMember(kPrecisions))
      ->capture_default_str();
  command->add_option("--device", s->device, "Where the tensors are")
      ->check(CLI::IsMember(kDevices))
      ->capture_default_str();
  command->add_option("--kernel", s->kernel, "Force this row");
  command->callback([s] { explain(*s); });
}

}  // namespace moeblas::cli
