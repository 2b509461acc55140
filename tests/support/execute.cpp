#include "support/execute.h"

#include <cstring>
#include <sstream>

#include "support/codec.h"

namespace moeblas::test {
namespace {

Spec infer(const Case& c, const Operands& o) {
  switch (c.op) {
    case Op::quantized_matmul:
      return infer_quantized_matmul(o.x.view, o.quantized(), c.transpose);
    case Op::gather_mm:
      return infer_gather_mm(o.x.view, o.w.view, o.lhs.view, o.rhs.view);
    case Op::gather_qmm:
      return infer_gather_qmm(o.x.view, o.quantized(), o.lhs.view, o.rhs.view, c.transpose);
    case Op::gather_qmv:
      return infer_gather_qmv(o.x.view, o.quantized(), o.rhs.view);
    case Op::segmented_mm:
      return infer_segmented_mm(o.x.view, o.w.view, o.ranges.view);
    case Op::grouped_mm:
      return infer_grouped_mm(o.x.view, o.w.view, o.ranges.view);
    default:
      return infer_grouped_qmm(o.x.view, o.quantized(), o.ranges.view, c.transpose);
  }
}

uint64_t input_hash(const Operands& o) {
  uint64_t h = 0;
  for (const Operand* t :
       {&o.x, &o.w, &o.codes, &o.scales, &o.biases, &o.tensor_scale, &o.lhs, &o.rhs, &o.ranges}) {
    h = h * 31 + t->memory.hash();
  }
  return h;
}

// One run in fresh memory; the bytes of the result, or the failure.
std::string run_once(const Case& c, Side side, uint8_t poison, int threads, Options options,
                     std::vector<uint8_t>& result) {
  const Operands o = build(c, side, poison);
  const uint64_t before = input_hash(o);
  std::string failure;
  with_threads(threads, [&] {
    const Plan query = plan([&](const Options& q) { call(c, o, q); }, options);
    GuardedMemory workspace(query.workspace_bytes, side, poison, 64);
    options.workspace = workspace.data();
    options.workspace_bytes = query.workspace_bytes;
    call(c, o, options);
    // Between the end of the workspace and its guard page.
    const std::span<uint8_t> pages = workspace.pages();
    const auto end = static_cast<size_t>(workspace.data() - pages.data()) + workspace.size();
    for (uint8_t byte : pages.subspan(end)) {
      if (byte != poison) failure = "bytes after the workspace were written";
    }
  });
  if (failure.empty()) failure = stray_write(o.out, poison);
  if (failure.empty() && input_hash(o) != before) failure = "an input was written";
  result = element_bytes(o.out);
  return failure;
}

std::string text(const Shape& shape) {
  std::ostringstream s;
  s << "(";
  for (int i = 0; i < shape.ndim(); ++i) s << (i > 0 ? "," : "") << shape[i];
  s << ")";
  return s.str();
}

}  // namespace

std::string text(const char* label, const Layout& t) {
  if (!t.present) return "";
  std::string s = std::string(" ") + label + "=" + name(t.dtype) + text(t.shape);
  if (!(t.strides == contiguous_strides(t.shape))) s.append("/").append(text(t.strides));
  return s;
}

std::string describe(const Case& c) {
  std::ostringstream s;
  s << name(c.op);
  if (c.format) {
    const QuantSpec spec = c.format->resolved();
    s << " " << name(spec.mode) << " b" << spec.bits << " g" << spec.group_size;
    if (is_product(c.op)) s << (c.transpose ? " w^T" : " w");
  }
  s << " values=" << kValuesNames[static_cast<int>(c.values)]
    << " ids=" << kIdsNames[static_cast<int>(c.ids)] << text("x", c.x) << text("w", c.w)
    << text("codes", c.codes) << text("scales", c.scales) << text("biases", c.biases)
    << text("tensor_scale", c.tensor_scale) << text("lhs", c.lhs) << text("rhs", c.rhs)
    << text("ranges", c.ranges) << text("out", c.out);
  if (c.host_tensor_scale) s << " host_tensor_scale=" << *c.host_tensor_scale;
  if (c.sorted) s << " sorted";
  if (c.deterministic) s << " deterministic";
  if (c.precision == Precision::exact) s << " exact";
  if (c.precision == Precision::fast) s << " fast";
  s << " threads=" << c.threads;
  return s.str();
}

void call(const Case& c, const Operands& o, const Options& options) {
  switch (c.op) {
    case Op::quantized_matmul:
      return quantized_matmul(o.x.view, o.quantized(), c.transpose, o.out.view, options);
    case Op::gather_mm:
      return gather_mm(o.x.view, o.w.view, o.lhs.view, o.rhs.view, c.sorted, o.out.view, options);
    case Op::gather_qmm:
      return gather_qmm(o.x.view, o.quantized(), o.lhs.view, o.rhs.view, c.transpose, c.sorted,
                        o.out.view, options);
    case Op::gather_qmv:
      return gather_qmv(o.x.view, o.quantized(), o.rhs.view, o.out.view, options);
    case Op::segmented_mm:
      return segmented_mm(o.x.view, o.w.view, o.ranges.view, o.out.view, options);
    case Op::grouped_mm:
      return grouped_mm(o.x.view, o.w.view, o.ranges.view, o.out.view, options);
    case Op::grouped_qmm:
      return grouped_qmm(o.x.view, o.quantized(), o.ranges.view, c.transpose, o.out.view, options);
    case Op::quantize:
      return quantize(o.x.view, o.quantized(), options);
    case Op::dequantize:
      return dequantize(o.quantized(), o.x.view, options);
    case Op::to_fp8:
      return to_fp8(o.x.view, o.w.view, options);
    case Op::from_fp8:
      return from_fp8(o.w.view, o.x.view, options);
  }
}

void with_threads(int threads, const std::function<void()>& body) {
  const int before = get_num_threads();
  struct Restore {
    int threads;
    ~Restore() { moeblas_set_num_threads(threads); }
  } restore{before};
  if (threads != before) set_num_threads(threads);
  body();
}

Outcome run_case(const Case& c, const char* kernel) {
  if (!is_product(c.op)) return run_conversion(c, kernel);
  Outcome outcome;
  Options options;
  options.kernel = kernel;
  options.precision = c.precision;
  options.deterministic = c.deterministic;
  try {
    const Operands o = build(c, Side::left, kPoison);
    const Product product = product_of(c, o);
    const Spec spec = infer(c, o);
    if (!(spec.shape == c.out.shape) || !(product.out == c.out.shape) ||
        spec.dtype != c.out.dtype) {
      outcome.failure = "infer gives " + text(spec.shape) + ", the reference " + text(product.out) +
                        ", expected " + text(c.out.shape);
      return outcome;
    }
    try {
      outcome.kernel = plan([&](const Options& q) { call(c, o, q); }, options).kernel;
    } catch (const Error& e) {
      if (kernel == nullptr || e.status() != MOEBLAS_UNSUPPORTED) throw;
      outcome.refusal = e.what();
      return outcome;
    }
    const bool empty = c.out.shape.numel() == 0;
    if (empty != outcome.kernel.empty()) outcome.failure = "a kernel is named for nothing to do";
    const Path path = empty ? Path::decoded : path_of(outcome.kernel);
    const std::vector<Expected> expected = evaluate(product, path, c.x.dtype);

    std::vector<uint8_t> first, second;
    outcome.failure = run_once(c, Side::left, kPoison, 1, options, first);
    if (!outcome.ok()) return outcome;
    outcome.failure = run_once(c, Side::right, kOtherPoison, c.threads, options, second);
    if (!outcome.ok()) return outcome;
    if (first != second) {
      outcome.failure = "two runs differ: memory, poison or threads show through";
      return outcome;
    }
    std::vector<double> got(expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      got[i] = load_value(first.data(), c.out.dtype, static_cast<int64_t>(i));
    }
    outcome.failure =
        compare(expected, got, c.out.dtype, c.values == Values::integers, &outcome.agreement);
  } catch (const std::exception& e) {
    outcome.failure = std::string("unexpected error: ") + e.what();
  }
  return outcome;
}

}  // namespace moeblas::test
