#include "support/operands.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "support/codec.h"

namespace moeblas::test {
namespace {

double draw_value(Random& random, const Case& c, int exponent) {
  switch (c.values) {
    case Values::integers:
      return static_cast<double>(random.between(-4, 4));
    case Values::positive:
      return std::ldexp(0.5 + random.uniform(), exponent);
    case Values::specials:
      if (random.one_in(60)) {
        return random.pick({std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()});
      }
      [[fallthrough]];
    default:
      return std::ldexp(random.normal(), exponent);
  }
}

uint8_t draw_code_byte(Random& random, const Case& c, const QuantSpec& spec) {
  auto byte = static_cast<uint8_t>(random.below(256));
  if (spec.mode == Mode::affine) return byte;
  if (spec.mode == Mode::mxfp8) {
    // Exponents that leave room for exact sums.
    if (c.values == Values::integers) {
      byte = static_cast<uint8_t>((byte & 0x87) | random.between(6, 9) << 3);
    }
    if ((byte & 0x7f) == 0x7f) byte ^= 0x10;  // NaN
  }
  const uint8_t signs = spec.mode == Mode::mxfp8 ? 0x80 : 0x88;
  return c.values == Values::positive ? byte & static_cast<uint8_t>(~signs) : byte;
}

void draw_affine(Random& random, const Case& c, int bits, double& scale, double& bias) {
  const double middle = std::ldexp(1.0, bits - 1);
  switch (c.values) {
    case Values::integers:
      scale = random.pick({-2.0, -1.0, -0.5, 0.5, 1.0, 2.0});
      bias = static_cast<double>(random.between(-8, 8));
      break;
    case Values::positive:
      scale = std::ldexp(0.01 + 0.2 * random.uniform(), c.scale_exponent);
      bias = scale * random.uniform();
      break;
    default:
      scale = std::ldexp((0.05 + random.uniform()) / middle, c.scale_exponent);
      if (random.one_in(2)) scale = -scale;
      bias = -scale * middle * (0.5 + random.uniform());
      break;
  }
}

uint8_t draw_scale_byte(Random& random, const Case& c, const QuantSpec& spec) {
  const bool exact = c.values == Values::integers;
  if (spec.mode != Mode::nvfp4) {
    const int64_t spread = exact ? 1 : 3;
    return static_cast<uint8_t>(127 + c.scale_exponent + random.between(-spread, spread));
  }
  if (exact) return static_cast<uint8_t>(random.between(6, 8) << 3);
  int64_t byte = random.between(4, 10) << 3 | random.below(8);
  if (c.values == Values::ends) byte = random.below(0x7f);
  // The format allows a negative scale, though no encoder writes one.
  if (c.values != Values::positive && random.one_in(16)) byte |= 0x80;
  return static_cast<uint8_t>(byte);
}

double draw_tensor_scale(Random& random, const Case& c) {
  if (c.values == Values::integers) return random.pick({0.5, 1.0, 2.0});
  return std::ldexp(0.25 + random.uniform(), c.scale_exponent);
}

int64_t out_of_range(Random& random, int64_t count) {
  return random.pick<int64_t>(
      {-1, -1, count, count, count + 1, -count - 1, std::numeric_limits<int64_t>::min(),
       std::numeric_limits<int64_t>::max(), int64_t{1} << 31, int64_t{1} << 32});
}

void fill_segments(Random& random, Ids kind, Operand& t, int64_t k) {
  const int64_t parts = t.numel() / 2;
  for (int64_t i = 0; i < parts; ++i) {
    int64_t start = random.between(0, k), end = random.between(0, k);
    switch (kind) {
      case Ids::uniform:
        if (start > end) std::swap(start, end);
        break;
      case Ids::sorted:
        start = i * k / parts;
        end = (i + 1) * k / parts;
        break;
      case Ids::one:
        start = 0;
        end = k;
        break;
      case Ids::mixed:
        if (random.one_in(4)) start = -random.between(1, 1 + k);
        if (random.one_in(4)) end = k + random.between(1, 1 + k);
        if (random.one_in(8)) start = out_of_range(random, k + 1);
        if (random.one_in(8)) end = out_of_range(random, k + 1);
        break;
      case Ids::none:
        if (start < end) std::swap(start, end);
        break;
    }
    store_index(t.view.data, t.view.dtype, t.offset(2 * i), start);
    store_index(t.view.data, t.view.dtype, t.offset(2 * i + 1), end);
  }
}

void fill_indices(Random& random, const Case& c, Operands& o, const Product& p) {
  if (c.lhs.present) {
    fill_ids(random, random.one_in(3) ? c.ids : Ids::uniform, o.lhs, p.x.count());
  }
  if (c.rhs.present) fill_ids(random, c.ids, o.rhs, p.w.count());
  if (c.ranges.present && c.op == Op::segmented_mm) {
    fill_segments(random, c.ids, o.ranges, p.x.cols());
  } else if (c.ranges.present) {
    fill_offsets(random, c.ids, o.ranges, c.x.shape[0]);
  }
}

// Dense weights are scaled so that they, as x, may be anything.
void fill_dense(Random& random, const Case& c, Operand& w, int64_t first, int64_t count) {
  Case plain = c;
  if (c.values == Values::specials) plain.values = Values::normal;
  fill_floats(random, plain, w, first, count, c.scale_exponent);
}

void fill_product(Random& random, const Case& c, Operands& o) {
  Product p = product_of(c, o);
  // The pairs above were formed from poison; only sizes count so far.
  fill_indices(random, c, o, p);
  p = product_of(c, o);
  const int64_t m = p.x.rows(), k = p.x.cols();
  std::set<int64_t> xs, ws, ks;
  for (const Pair& pair : p.pairs) {
    if (!pair.selected) continue;
    xs.insert(pair.x);
    ws.insert(pair.w);
    if (c.op != Op::segmented_mm) continue;
    for (int64_t i = pair.begin; i < pair.end; ++i) ks.insert(i);
  }
  if (c.op == Op::segmented_mm) {
    const int64_t n = p.w.cols();
    for (int64_t i : ks) {
      for (int64_t row = 0; row < m; ++row) {
        fill_floats(random, c, o.x, row * k + i, 1, c.x_exponent);
      }
      fill_dense(random, c, o.w, i * n, n);
    }
    return;
  }
  for (int64_t x : xs) fill_floats(random, c, o.x, x * m * k, m * k, c.x_exponent);
  for (int64_t w : ws) {
    if (c.format) {
      fill_quantized(random, c, o, w * p.w.rows(), p.w.rows(), w);
    } else {
      const int64_t size = p.w.rows() * p.w.cols();
      fill_dense(random, c, o.w, w * size, size);
    }
  }
}

}  // namespace

void fill_ids(Random& random, Ids kind, Operand& t, int64_t count) {
  const int64_t one = count > 0 ? random.below(count) : 0;
  for (int64_t i = 0; i < t.numel(); ++i) {
    int64_t id = count == 0 || kind == Ids::none || (kind == Ids::mixed && random.one_in(3))
                     ? out_of_range(random, count)
                 : kind == Ids::one    ? one
                 : kind == Ids::sorted ? i * count / t.numel()
                                       : random.below(count);
    store_index(t.view.data, t.view.dtype, t.offset(i), id);
  }
}

void fill_offsets(Random& random, Ids kind, Operand& t, int64_t rows) {
  const int64_t experts = t.numel();
  std::vector<int64_t> ends;
  for (int64_t e = 0; e < experts; ++e) ends.push_back(random.between(0, rows));
  const int64_t one = experts > 0 ? random.below(experts) : 0;
  if (kind != Ids::mixed) std::sort(ends.begin(), ends.end());
  for (int64_t e = 0; e < experts; ++e) {
    int64_t end = ends[static_cast<size_t>(e)];
    if (kind == Ids::sorted) end = (e + 1) * rows / experts;
    if (kind == Ids::one) end = e < one ? 0 : rows;
    if (kind == Ids::none) end = -random.between(0, 3);
    if (kind == Ids::mixed && random.one_in(5)) end = out_of_range(random, rows);
    store_index(t.view.data, t.view.dtype, t.offset(e), end);
  }
}

Operand::Operand(const Layout& layout, Side side, uint8_t fill) {
  if (!layout.present) return;
  const auto element = static_cast<int64_t>(size_of(layout.dtype));
  int64_t low = 0, high = 0;
  for (int i = 0; i < layout.shape.ndim(); ++i) {
    (layout.strides[i] < 0 ? low : high) +=
        std::max<int64_t>(layout.shape[i] - 1, 0) * layout.strides[i];
  }
  const bool empty = layout.shape.numel() == 0;
  const int64_t bytes = empty ? 0 : (high - low + 1) * element;
  memory = GuardedMemory(static_cast<size_t>(bytes), side, fill, static_cast<size_t>(element));
  view = {memory.data() - (empty ? 0 : low) * element, layout.dtype, layout.shape, layout.strides};
}

double Operand::get(int64_t flat) const { return load_value(view.data, view.dtype, offset(flat)); }
void Operand::set(int64_t flat, double value) {
  store_value(view.data, view.dtype, offset(flat), value);
}
uint8_t* Operand::byte(int64_t flat) const {
  return static_cast<uint8_t*>(view.data) +
         offset(flat) * static_cast<int64_t>(size_of(view.dtype));
}

Quantized Operands::quantized() const {
  if (w.view) return {.spec = {Mode::dense}, .codes = w.view};
  return {spec, codes.view, scales.view, biases.view, tensor_scale.view, host_tensor_scale};
}

void fill_floats(Random& random, const Case& c, Operand& t, int64_t first, int64_t count,
                 int exponent) {
  for (int64_t i = first; i < first + count; ++i) t.set(i, draw_value(random, c, exponent));
}

void fill_quantized(Random& random, const Case& c, Operands& o, int64_t first_row, int64_t rows,
                    int64_t matrix) {
  const int64_t words = o.codes.view.shape.back(), groups = o.scales.view.shape.back();
  const auto width = static_cast<int64_t>(size_of(o.codes.view.dtype));
  for (int64_t i = first_row * words; i < (first_row + rows) * words; ++i) {
    for (int64_t b = 0; b < width; ++b) o.codes.byte(i)[b] = draw_code_byte(random, c, o.spec);
  }
  for (int64_t i = first_row * groups; i < (first_row + rows) * groups; ++i) {
    if (o.spec.mode == Mode::affine) {
      double scale, bias;
      draw_affine(random, c, o.spec.bits, scale, bias);
      o.scales.set(i, scale);
      o.biases.set(i, bias);
    } else {
      *o.scales.byte(i) = draw_scale_byte(random, c, o.spec);
    }
  }
  if (!o.tensor_scale.view) return;
  const int64_t at = o.tensor_scale.view.ndim() == 0 ? 0 : matrix;
  if (at < o.tensor_scale.numel()) o.tensor_scale.set(at, draw_tensor_scale(random, c));
}

Operands build(const Case& c, Side side, uint8_t poison) {
  const bool encode = c.op == Op::quantize || c.op == Op::to_fp8;
  const bool decode = c.op == Op::dequantize || c.op == Op::from_fp8;
  const uint8_t written = encode ? poison : kPoison;
  Operands o;
  o.x = {c.x, side, decode ? poison : kPoison};
  o.w = {c.w, side, written};
  o.codes = {c.codes, side, written};
  o.scales = {c.scales, side, written};
  o.biases = {c.biases, side, written};
  o.tensor_scale = {c.tensor_scale, side, kPoison};
  o.lhs = {c.lhs, side, kPoison};
  o.rhs = {c.rhs, side, kPoison};
  o.ranges = {c.ranges, side, kPoison};
  o.out = {c.out, side, poison};
  o.host_tensor_scale = c.host_tensor_scale;
  if (c.format) o.spec = c.format->resolved();
  Random random(c.seed ^ 0x5deece66d1234567u);
  if (is_product(c.op)) fill_product(random, c, o);
  return o;
}

Product product_of(const Case& c, const Operands& o) {
  switch (c.op) {
    case Op::quantized_matmul:
      return quantized_matmul_product(o.x.view, o.quantized(), c.transpose);
    case Op::gather_mm:
      return gather_mm_product(o.x.view, o.w.view, o.lhs.view, o.rhs.view);
    case Op::gather_qmm:
      return gather_qmm_product(o.x.view, o.quantized(), o.lhs.view, o.rhs.view, c.transpose);
    case Op::gather_qmv:
      return gather_qmv_product(o.x.view, o.quantized(), o.rhs.view);
    case Op::segmented_mm:
      return segmented_mm_product(o.x.view, o.w.view, o.ranges.view);
    case Op::grouped_mm:
      return grouped_mm_product(o.x.view, o.w.view, o.ranges.view);
    default:
      return grouped_qmm_product(o.x.view, o.quantized(), o.ranges.view, c.transpose);
  }
}

std::string stray_write(const Operand& t, uint8_t fill) {
  const std::span<uint8_t> pages = t.memory.pages();
  if (std::all_of(pages.begin(), pages.end(), [=](uint8_t b) { return b == fill; })) return "";
  std::vector<bool> element(pages.size());
  const auto width = static_cast<int64_t>(size_of(t.view.dtype));
  for (int64_t i = 0; i < t.numel(); ++i) {
    for (int64_t b = 0; b < width; ++b) {
      element[static_cast<size_t>(t.byte(i) + b - pages.data())] = true;
    }
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    if (!element[i] && pages[i] != fill) {
      return "byte " + std::to_string(pages.data() + i - t.memory.data()) +
             " was written, which belongs to no element";
    }
  }
  return "";
}

std::vector<uint8_t> element_bytes(const Operand& t) {
  std::vector<uint8_t> bytes;
  const auto width = static_cast<int64_t>(size_of(t.view.dtype));
  for (int64_t i = 0; i < t.numel(); ++i) bytes.insert(bytes.end(), t.byte(i), t.byte(i) + width);
  return bytes;
}

}  // namespace moeblas::test
