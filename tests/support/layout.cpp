// Shapes and strides of the generator.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "support/generator.h"

namespace moeblas::test {
namespace {

enum class Style { plain, padded, permuted, reversed, broadcast };

Style draw_style(Random& random, bool input) {
  const Style style = random.pick({Style::plain, Style::plain, Style::padded, Style::permuted,
                                   Style::reversed, Style::broadcast});
  return style == Style::broadcast && !input ? Style::padded : style;
}

}  // namespace

int64_t packed_unit(const QuantSpec& spec) {
  const int64_t values_per_word_run = 32 / std::gcd(32, spec.bits);
  return std::lcm<int64_t>(spec.group_size, values_per_word_run);
}

Layout plain(DType dtype, const Shape& shape) {
  return {dtype, shape, contiguous_strides(shape), true};
}

Layout drawn(Random& random, DType dtype, const Shape& shape, bool unit_last, bool input) {
  const Style style = draw_style(random, input);
  if (style == Style::plain) return plain(dtype, shape);
  const int ndim = shape.ndim(), last = ndim - 1;
  int order[kMaxNdim];  // innermost first
  for (int i = 0; i < ndim; ++i) order[i] = last - i;
  if (style == Style::permuted) {
    for (int i = unit_last ? 1 : 0; i + 1 < ndim; ++i) {
      std::swap(order[i], order[random.between(i, last)]);
    }
  }
  Layout layout = plain(dtype, shape);
  int64_t step = 1;
  for (int i = 0; i < ndim; ++i) {
    const int d = order[i];
    const bool fixed = unit_last && d == last;
    if (!fixed && style == Style::broadcast && random.one_in(2)) {
      layout.strides[d] = 0;
      continue;
    }
    // A gap before the next element, or, as with one half of a fused tensor, as long as the part.
    if (!fixed && style != Style::permuted && random.one_in(2)) {
      step += random.pick<int64_t>({1, 3, step, 16});
    }
    layout.strides[d] = step;
    if (!fixed && style == Style::reversed && random.one_in(2)) layout.strides[d] = -step;
    step *= std::max<int64_t>(shape[d], 1);
  }
  // The stride of a dimension of one element means nothing.
  for (int d = 0; d < ndim; ++d) {
    if (shape[d] == 1 && random.one_in(3)) layout.strides[d] = random.pick<int64_t>({0, -5, 7777});
  }
  return layout;
}

Shape broadcast_strides(const Layout& t, const Shape& shape) {
  const int missing = shape.ndim() - t.shape.ndim();
  Shape strides;
  for (int i = 0; i < shape.ndim(); ++i) {
    strides.push_back(i < missing || t.shape[i - missing] == 1 ? 0 : t.strides[i - missing]);
  }
  return strides;
}

void add_weights(Random& random, Case& c, const Shape& logical, DType scale_dtype) {
  const QuantSpec spec = c.format->resolved();
  const int last = logical.ndim() - 1;
  const bool bytes = random.one_in(3);
  Shape codes = logical, groups = logical;
  codes[last] = logical[last] * spec.bits / (bytes ? 8 : 32);
  groups[last] = logical[last] / spec.group_size;
  const bool input = c.op != Op::quantize;
  const bool affine = spec.mode == Mode::affine;
  c.codes = drawn(random, bytes ? DType::u8 : DType::u32, codes, true, input);
  c.scales = drawn(random, affine ? scale_dtype : DType::u8, groups, true, input);
  if (affine) c.biases = drawn(random, scale_dtype, groups, true, input);
  if (spec.mode != Mode::nvfp4) return;
  const Shape stack = logical.first(std::max(last - 1, 0));
  switch (random.below(4)) {
    case 0:
      c.tensor_scale = plain(DType::f32, {});
      break;
    case 1:
      c.tensor_scale = drawn(random, DType::f32, {stack.numel()}, false, true);
      break;
    case 2:
      c.host_tensor_scale = static_cast<float>(random.pick({0.5, 0.25, 0.037, 1.7}));
      if (c.values == Values::integers) c.host_tensor_scale = 0.5f;
      if (c.values == Values::ends) c.host_tensor_scale = std::ldexp(1.0f, c.scale_exponent);
      break;
    default:
      break;
  }
}

}  // namespace moeblas::test
