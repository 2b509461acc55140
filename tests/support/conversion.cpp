// Conversions through the library against codec.h, bit for bit.
#include <cmath>
#include <cstdlib>
#include <limits>

#include "support/codec.h"
#include "support/execute.h"

namespace moeblas::test {
namespace {

// Groups that encoders trip over, one kind per group.
void fill_group(Random& random, const Case& c, Operand& x, int64_t first, int64_t count) {
  const int64_t kind = random.below(16);
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double size =
      std::ldexp(1.0, c.x.dtype == DType::f16 ? static_cast<int>(random.between(-20, 14))
                                              : static_cast<int>(random.between(-40, 40)));
  const double constant = random.normal();
  for (int64_t i = first; i < first + count; ++i) {
    double v = random.normal();
    switch (kind) {
      case 0:
        v = 0;
        break;
      case 1:
        v = random.one_in(2) ? -0.0 : 0.0;
        break;
      case 2:
        v = constant;
        break;
      case 3:
        v = -std::fabs(v);
        break;
      case 4:
        v = random.one_in(8) ? nan : v;
        break;
      case 5:
        v = nan;
        break;
      case 6:
        v = random.one_in(16) ? (random.one_in(2) ? inf : -inf) : v;
        break;
      case 7:  // halves and quarters: ties
        v = static_cast<double>(random.between(-28, 28)) / 4;
        break;
      case 8:
        v *= size;
        break;
      case 9:  // the ends of float32 or of the dtype
        v = random.pick({1e-45, -1e-40, 3e38, -3e38, 1e-38, 65504.0, 6e-8, 1e-7, -1e-7}) *
            (random.one_in(2) ? 1 : random.uniform());
        break;
      case 10:
        v = i == first ? v : 0;
        break;
      default:
        break;
    }
    x.set(i, v);
  }
}

float tensor_scale_of(const Case& c, const Operands& o, int64_t row) {
  if (c.host_tensor_scale) return *c.host_tensor_scale;
  if (!c.tensor_scale.present) return 1;
  const int ndim = c.x.shape.ndim();
  const int64_t rows = ndim > 1 ? c.x.shape[ndim - 2] : 1;
  return static_cast<float>(o.tensor_scale.get(c.tensor_scale.shape.ndim() == 0 ? 0 : row / rows));
}

bool same_float(const Operand& t, int64_t i, double expected) {
  const double rounded = round_to(float_format(t.view.dtype), expected), got = t.get(i);
  if (std::isnan(rounded)) return std::isnan(got);
  return got == rounded && std::signbit(got) == std::signbit(rounded);
}

std::string differs(const char* what, int64_t at, double got, double expected) {
  char text[160];
  std::snprintf(text, sizeof text, "%s %lld is %.9g, expected %.9g", what,
                static_cast<long long>(at), got, expected);
  return text;
}

std::string check_quantize(const Case& c, const Operands& o) {
  const int64_t group_size = o.spec.group_size, cols = c.x.shape.back();
  const int64_t groups = o.x.numel() / group_size;
  const bool affine = o.spec.mode == Mode::affine;
  std::vector<uint8_t> row(static_cast<size_t>(cols * o.spec.bits / 8));
  const int64_t words = c.codes.shape.back();
  const auto width = static_cast<int64_t>(size_of(c.codes.dtype));
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t r = g * group_size / cols, first = g * group_size % cols;
    for (int64_t i = 0; i < words; ++i) {
      for (int64_t b = 0; b < width; ++b) {
        row[static_cast<size_t>(i * width + b)] = o.codes.byte(r * words + i)[b];
      }
    }
    std::vector<double> values;
    for (int64_t i = 0; i < group_size; ++i) values.push_back(o.x.get(g * group_size + i));
    const EncodedGroup e = encode_group(o.spec, values, tensor_scale_of(c, o, r));
    for (int64_t i = 0; i < group_size; ++i) {
      const uint32_t code = packed_code(row.data(), o.spec.bits, first + i);
      const uint32_t expected = e.codes[static_cast<size_t>(i)];
      if (code != expected) return differs("code", g * group_size + i, code, expected);
    }
    if (affine) {
      if (!same_float(o.scales, g, e.scale)) return differs("scale", g, o.scales.get(g), e.scale);
      if (!same_float(o.biases, g, e.bias)) return differs("bias", g, o.biases.get(g), e.bias);
    } else if (*o.scales.byte(g) != e.scale_byte) {
      return differs("scale byte", g, *o.scales.byte(g), e.scale_byte);
    }
  }
  return "";
}

std::string check_dequantize(const Case& c, const Operands& o) {
  if (c.x.shape.numel() == 0) return "";
  const int64_t cols = c.x.shape.back(), words = c.codes.shape.back();
  const int64_t groups = c.scales.shape.back();
  const auto width = static_cast<int64_t>(size_of(c.codes.dtype));
  std::vector<uint8_t> row(static_cast<size_t>(words * width));
  for (int64_t i = 0; i < c.x.shape.numel(); ++i) {
    const int64_t r = i / cols, k = i % cols;
    if (k == 0) {
      for (int64_t w = 0; w < words; ++w) {
        for (int64_t b = 0; b < width; ++b) {
          row[static_cast<size_t>(w * width + b)] = o.codes.byte(r * words + w)[b];
        }
      }
    }
    const uint32_t code = packed_code(row.data(), o.spec.bits, k);
    const int64_t g = r * groups + k / o.spec.group_size;
    const double expected =
        o.spec.mode == Mode::affine
            ? decode_affine(code, o.scales.get(g), o.biases.get(g))
            : decode_block(o.spec.mode, code, *o.scales.byte(g), tensor_scale_of(c, o, r));
    if (!same_float(o.x, i, expected)) return differs("value", i, o.x.get(i), expected);
  }
  return "";
}

std::string check_fp8(const Case& c, const Operands& o) {
  for (int64_t i = 0; i < o.x.numel(); ++i) {
    if (c.op == Op::from_fp8) {
      const double expected = decode(kE4M3, *o.w.byte(i));
      if (!same_float(o.x, i, expected)) return differs("value", i, o.x.get(i), expected);
    } else {
      const uint32_t expected = encode(kE4M3, o.x.get(i));
      if (*o.w.byte(i) != expected) return differs("code", i, *o.w.byte(i), expected);
    }
  }
  return "";
}

// One run: "" or what is wrong.
std::string run_once(const Case& c, Side side, uint8_t poison, int threads, const Options& options,
                     std::vector<uint8_t>& result) {
  Operands o = build(c, side, poison);
  fill_conversion(c, o);
  const bool encode = c.op == Op::quantize || c.op == Op::to_fp8;
  const Operand* packed[] = {&o.w, &o.codes, &o.scales, &o.biases};
  const auto hash = [&] {
    uint64_t h = o.tensor_scale.memory.hash();
    if (encode) return h * 31 + o.x.memory.hash();
    for (const Operand* t : packed) h = h * 31 + t->memory.hash();
    return h;
  };
  const uint64_t before = hash();
  with_threads(threads, [&] { call(c, o, options); });
  if (hash() != before) return "an input was written";
  const auto look = [&](const Operand& t) {
    if (!t.view) return std::string();
    const std::vector<uint8_t> bytes = element_bytes(t);
    result.insert(result.end(), bytes.begin(), bytes.end());
    return stray_write(t, poison);
  };
  if (!encode) {
    if (const std::string stray = look(o.x); !stray.empty()) return stray;
  } else {
    for (const Operand* t : packed) {
      if (const std::string stray = look(*t); !stray.empty()) return stray;
    }
  }
  return c.op == Op::quantize     ? check_quantize(c, o)
         : c.op == Op::dequantize ? check_dequantize(c, o)
                                  : check_fp8(c, o);
}

std::string check_infer(const Case& c, const Operands& o) {
  Spec got;
  Layout expected;
  switch (c.op) {
    case Op::quantize: {
      const QuantizedSpec q = infer_quantize(o.x.view, *c.format, c.scales.dtype);
      Shape codes = c.codes.shape;
      if (c.codes.dtype == DType::u8) codes[codes.ndim() - 1] /= 4;
      if (!(q.codes.shape == codes) || q.biases.has_value() != c.biases.present) {
        return "infer gives other codes or biases";
      }
      got = q.scales;
      expected = c.scales;
      break;
    }
    case Op::dequantize:
      got = infer_dequantize(o.quantized(), c.x.dtype);
      expected = c.x;
      break;
    case Op::to_fp8:
      got = infer_to_fp8(o.x.view);
      expected = c.w;
      break;
    default:
      got = infer_from_fp8(o.w.view, c.x.dtype);
      expected = c.x;
      break;
  }
  return got.shape == expected.shape && got.dtype == expected.dtype ? ""
                                                                    : "infer gives another shape";
}

}  // namespace

void fill_conversion(const Case& c, Operands& o) {
  Random random(c.seed ^ 0x1234567deadbeefu);
  const int64_t numel = o.x.numel();
  switch (c.op) {
    case Op::quantize:
      for (int64_t i = 0; i < numel; i += o.spec.group_size) {
        fill_group(random, c, o.x, i, o.spec.group_size);
      }
      break;
    case Op::dequantize: {
      if (c.codes.shape.numel() == 0) break;
      Case any = c;
      if (any.values == Values::specials) any.values = Values::normal;
      const int64_t rows = c.x.shape.first(c.x.shape.ndim() - 1).numel();
      fill_quantized(random, any, o, 0, rows, 0);
      break;
    }
    case Op::to_fp8:
      for (int64_t i = 0; i < numel; ++i) fill_group(random, c, o.x, i, 1);
      for (int64_t i = 0; i < numel; i += 3)
        o.x.set(i, decode(kE4M3, static_cast<uint32_t>(random.below(256))));
      break;
    default:
      for (int64_t i = 0; i < numel; ++i) *o.w.byte(i) = static_cast<uint8_t>(random.below(256));
      break;
  }
  for (int64_t i = 0; c.tensor_scale.present && i < o.tensor_scale.numel(); ++i) {
    o.tensor_scale.set(i, 0.01 + random.uniform());
  }
}

Outcome run_conversion(const Case& c, const char* kernel) {
  Outcome outcome;
  Options options;
  options.kernel = kernel;
  try {
    const Operands o = build(c, Side::left, kPoison);
    outcome.failure = check_infer(c, o);
    if (!outcome.ok()) return outcome;
    try {
      outcome.kernel = plan([&](const Options& q) { call(c, o, q); }, options).kernel;
    } catch (const Error& e) {
      if (kernel == nullptr || e.status() != MOEBLAS_UNSUPPORTED) throw;
      outcome.refusal = e.what();
      return outcome;
    }
    std::vector<uint8_t> first, second;
    outcome.failure = run_once(c, Side::left, kPoison, 1, options, first);
    if (!outcome.ok()) return outcome;
    outcome.failure = run_once(c, Side::right, kOtherPoison, c.threads, options, second);
    if (outcome.ok() && first != second) outcome.failure = "two runs differ";
  } catch (const std::exception& e) {
    outcome.failure = std::string("unexpected error: ") + e.what();
  }
  return outcome;
}

}  // namespace moeblas::test
