#include "support/source_case.h"

#include "moeblas/ops.h"
#include "support/block_operand.h"
#include "support/cases.h"
#include "support/codec.h"

namespace moeblas::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr QuantSpec kBlocks[] = {kMxfp4, kMxfp8, kNvfp4};

Shape joined(Shape shape, std::initializer_list<int64_t> more) {
  for (int64_t size : more) shape.push_back(size);
  return shape;
}

// What quantize writes for one orientation.
struct Packed {
  Operand codes, scales, biases;

  Quantized view(const QuantSpec& spec, bool swizzled) const {
    Quantized q{spec, codes.view, scales.view, biases.view};
    if (swizzled) q.scale_layout = ScaleLayout::swizzled_128x4;
    return q;
  }
};

struct SourceOperands {
  Operand w, tensor_scale;
  Packed rows, columns;
};

Packed packed(const SourceCase& c, int64_t rows, int64_t cols, bool swizzled, Side side,
              uint8_t poison) {
  const int64_t groups = cols / c.spec.group_size;
  const Shape padded = swizzled ? swizzled_shape(rows, groups) : Shape{rows, groups};
  const Shape scales = joined(c.batch, {padded[0], padded[1]});
  Packed p;
  p.codes = {plain(DType::u32, joined(c.batch, {rows, cols * c.spec.bits / 32})), side, poison};
  p.scales = {plain(c.scale_dtype, scales), side, poison};
  if (c.spec.mode == Mode::affine) p.biases = {plain(c.scale_dtype, scales), side, poison};
  return p;
}

SourceOperands build(const SourceCase& c, Side side, uint8_t poison) {
  SourceOperands o;
  o.w = {c.w, side, kPoison};
  o.tensor_scale = {c.tensor_scale, side, kPoison};
  o.rows = packed(c, c.rows, c.cols, c.swizzled, side, poison);
  if (c.dual) o.columns = packed(c, c.cols, c.rows, c.swizzled, side, poison);
  Random random(c.seed);
  Case numbers;
  numbers.values = random.one_in(4) ? Values::specials : Values::normal;
  fill_floats(random, numbers, o.w, 0, o.w.numel(), random.pick({0, -6, 5}));
  for (int64_t i = 0; c.tensor_scale.present && i < o.tensor_scale.numel(); ++i) {
    o.tensor_scale.set(i, 0.01 + random.uniform());
  }
  return o;
}

std::string describe(const SourceCase& c) {
  return std::string(c.dual ? "quantize_dual " : "quantize ") + name(c.spec.mode) + " b" +
         std::to_string(c.spec.bits) + " g" + std::to_string(c.spec.group_size) +
         (c.swizzled ? " swizzled" : "") + text("w", c.w) + text("tensor_scale", c.tensor_scale) +
         (c.host_tensor_scale ? " host tensor_scale" : "") +
         " threads=" + std::to_string(c.threads);
}

Quantized with_tensor_scale(const SourceCase& c, const SourceOperands& o, Quantized q) {
  q.tensor_scale = o.tensor_scale.view;
  q.host_tensor_scale = c.host_tensor_scale;
  return q;
}

// Codes, scales in rows and biases of w, by plain quantize.
std::vector<std::vector<uint8_t>> quantized_rows(const SourceCase& c, const SourceOperands& o,
                                                 const TensorView& w, int64_t rows, int64_t cols) {
  const Packed p = packed(c, rows, cols, false, Side::right, kPoison);
  quantize(w, with_tensor_scale(c, o, p.view(c.spec, false)));
  std::vector<std::vector<uint8_t>> bytes{element_bytes(p.codes), element_bytes(p.scales)};
  if (p.biases.view) bytes.push_back(element_bytes(p.biases));
  return bytes;
}

// Scales in rows, moved to where the swizzled layout has them, zeros elsewhere.
std::vector<uint8_t> swizzled_scales(const std::vector<uint8_t>& in_rows, int64_t matrices,
                                     int64_t rows, int64_t groups) {
  const auto size = static_cast<size_t>(swizzled_shape(rows, groups).numel());
  std::vector<uint8_t> all(static_cast<size_t>(matrices) * size, 0);
  for (int64_t i = 0; i < matrices * rows * groups; ++i) {
    const int64_t matrix = i / (rows * groups), row = i / groups % rows;
    const auto byte = static_cast<size_t>(swizzled_byte(row, i % groups, groups));
    all[static_cast<size_t>(matrix) * size + byte] = in_rows[static_cast<size_t>(i)];
  }
  return all;
}

std::string check_side(const SourceCase& c, const SourceOperands& o, const TensorView& w,
                       int64_t rows, int64_t cols, std::span<const std::vector<uint8_t>> got) {
  std::vector<std::vector<uint8_t>> expected = quantized_rows(c, o, w, rows, cols);
  if (c.swizzled) {
    expected[1] = swizzled_scales(expected[1], c.batch.numel(), rows, cols / c.spec.group_size);
  }
  constexpr const char* kParts[] = {"codes", "scales", "biases"};
  for (size_t i = 0; i < expected.size(); ++i) {
    if (got[i] != expected[i]) return std::string(kParts[i]) + " are not those of quantize";
  }
  return "";
}

// What is wrong with a result.
std::string judge(const SourceCase& c, const Result& result) {
  const SourceOperands o = build(c, Side::left, kPoison);
  const std::span got(result.outputs);
  const size_t parts = c.spec.mode == Mode::affine ? 3 : 2;
  const std::string wrong = check_side(c, o, o.w.view, c.rows, c.cols, got.first(parts));
  if (!wrong.empty()) return "rows: " + wrong;
  if (!c.dual) return "";
  // A transposed copy, not a view: what a caller without quantize_dual would make.
  TensorView view = o.w.view;
  const int last = view.ndim() - 1;
  std::swap(view.shape[last], view.shape[last - 1]);
  std::swap(view.strides[last], view.strides[last - 1]);
  Operand copy(plain(view.dtype, view.shape), Side::right, kPoison);
  for (int64_t i = 0; i < view.numel(); ++i) {
    copy.set(i, load_value(view.data, view.dtype, offset_of(i, view.shape, view.strides)));
  }
  const std::string columns =
      check_side(c, o, copy.view, c.cols, c.rows, got.subspan(parts, parts));
  return columns.empty() ? "" : "columns: " + columns;
}

}  // namespace

SourceCase make_source_case(uint64_t seed, bool dual) {
  SourceCase c;
  c.seed = seed;
  c.dual = dual;
  Random random(seed * 2 + dual);
  const DType dtype = kFloats[seed % 3];
  c.spec = kBlocks[seed / 3 % 3];
  if (dual && seed / 9 % 2 == 1) {
    const auto formats = all_formats();
    c.spec = formats[seed / 18 % formats.size()];
  }
  const bool affine = c.spec.mode == Mode::affine;
  c.swizzled = !affine && (!dual || random.one_in(2));
  if (affine) c.scale_dtype = draw_float(random);
  for (int64_t i = random.between(0, 2); i > 0; --i) c.batch.push_back(random.between(1, 3));
  if (random.one_in(40)) c.batch = {0};
  const int64_t unit = packed_unit(c.spec);
  const auto size = [&] { return unit * random.pick<int64_t>({0, 1, 1, 2, 3, 4, 5}); };
  c.cols = size();
  c.rows = dual               ? size()
           : random.one_in(3) ? random.pick<int64_t>({127, 128, 129, 257, 31, 33})
                              : random.between(0, 9);
  // The transpose of many large matrices says no more than that of one.
  if (c.batch.numel() * c.rows * c.cols > 60'000) c.batch = {};
  c.w = drawn(random, dtype, joined(c.batch, {c.rows, c.cols}), false, true);
  if (c.spec.mode == Mode::nvfp4) {
    if (random.one_in(3))
      c.tensor_scale = plain(DType::f32, {});
    else if (random.one_in(2))
      c.tensor_scale = plain(DType::f32, {c.batch.numel()});
    else if (random.one_in(2))
      c.host_tensor_scale = 0.037f;
  }
  if (random.one_in(5)) c.threads = random.pick({2, 3, 8});
  return c;
}

SeededCase seeded(const SourceCase& c) {
  const auto prepare = [c](Side side, uint8_t poison) {
    auto o = std::make_shared<SourceOperands>(build(c, side, poison));
    Call call;
    call.inputs = {&o->w, &o->tensor_scale};
    for (const Packed* p : {&o->rows, &o->columns}) {
      for (const Operand* t : {&p->codes, &p->scales, &p->biases}) {
        if (t->view) call.outputs.push_back(t);
      }
    }
    call.run = [c, p = o.get()](const Options& options) {
      const Quantized rows = with_tensor_scale(c, *p, p->rows.view(c.spec, c.swizzled));
      if (!c.dual) return quantize(p->w.view, rows, options);
      quantize_dual(p->w.view, rows, p->columns.view(c.spec, c.swizzled), options);
    };
    call.memory = o;
    return call;
  };
  return {describe(c), prepare, [c, prepare](const char* kernel) {
            Result result;
            Outcome outcome = run_twice(prepare, c.threads, forcing(kernel), result);
            if (outcome.ran()) outcome.failure = judge(c, result);
            return outcome;
          }};
}

}  // namespace moeblas::test
