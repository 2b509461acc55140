#include "support/block_operand.h"

#include <cstring>

#include "support/codec.h"
#include "support/generator.h"

namespace moeblas::test {

int64_t swizzled_byte(int64_t row, int64_t group, int64_t groups) {
  const int64_t across = (groups + 3) / 4;
  const int64_t index[] = {row / 128, group / 4, row % 128 % 32, row % 128 / 32, group % 4};
  const int64_t extent[] = {0, across, 32, 4, 4};
  int64_t byte = 0;
  for (int i = 0; i < 5; ++i) byte = byte * extent[i] + index[i];
  return byte;
}

Shape swizzled_shape(int64_t rows, int64_t groups) {
  return {(rows + 127) / 128 * 128, (groups + 3) / 4 * 4};
}

BlockLayout draw_block(Random& random, const QuantSpec& spec, DType dtype, const Shape& batch,
                       int64_t rows, int64_t cols, bool packed, bool swizzled) {
  BlockLayout b;
  b.batch = batch;
  b.rows = rows;
  b.cols = cols;
  b.packed = packed;
  b.swizzled = swizzled;
  const auto shape = [&](int64_t r, int64_t c) {
    Shape s = batch;
    s.push_back(r);
    s.push_back(c);
    return s;
  };
  if (!packed) {
    b.floats = drawn(random, dtype, shape(rows, cols), false, true);
    return b;
  }
  const bool bytes = random.one_in(3);
  b.codes = drawn(random, bytes ? DType::u8 : DType::u32,
                  shape(rows, cols * spec.bits / (bytes ? 8 : 32)), true, true);
  const int64_t groups = cols / spec.group_size;
  if (!swizzled) {
    b.scales = drawn(random, DType::u8, shape(rows, groups), true, true);
    return b;
  }
  // Each matrix in one piece; gaps between matrices are allowed.
  const Shape padded = swizzled_shape(rows, groups);
  b.scales = plain(DType::u8, shape(padded[0], padded[1]));
  if (batch.ndim() > 0 && random.one_in(2)) b.scales.strides[0] += random.between(1, 9);
  return b;
}

BlockOperand::BlockOperand(const QuantSpec& spec, const BlockLayout& layout, Side side)
    : floats(layout.floats, side, kPoison),
      codes(layout.codes, side, kPoison),
      scales(layout.scales, side, kPoison),
      tensor_scale(layout.tensor_scale, side, kPoison),
      spec_(spec),
      layout_(layout) {
  if (layout.swizzled) {
    for (int64_t i = 0; i < scales.numel(); ++i) *scales.byte(i) = 0;
  }
}

uint8_t* BlockOperand::scale_byte(int64_t position, int64_t row, int64_t group) const {
  const int64_t groups = layout_.cols / spec_.group_size;
  if (!layout_.swizzled) return scales.byte((position * layout_.rows + row) * groups + group);
  const Shape padded = swizzled_shape(layout_.rows, groups);
  return scales.byte(position * padded.numel() + swizzled_byte(row, group, groups));
}

void BlockOperand::fill(Random& random, const Case& c, int64_t position) {
  const int64_t rows = layout_.rows, size = rows * layout_.cols;
  if (!layout_.packed) return fill_floats(random, c, floats, position * size, size, c.x_exponent);
  // Drawn in the plain layout, then moved to where they lie.
  const int64_t words = codes.view.shape.back(), groups = layout_.cols / spec_.group_size;
  Operands plain_rows;
  plain_rows.spec = spec_;
  plain_rows.codes = Operand(plain(codes.view.dtype, {rows, words}), Side::left, 0);
  plain_rows.scales = Operand(plain(DType::u8, {rows, groups}), Side::left, 0);
  fill_quantized(random, c, plain_rows, 0, rows, 0);
  const size_t width = size_of(codes.view.dtype);
  for (int64_t i = 0; i < rows * words; ++i) {
    std::memcpy(codes.byte(position * rows * words + i), plain_rows.codes.byte(i), width);
  }
  for (int64_t i = 0; i < rows * groups; ++i) {
    *scale_byte(position, i / groups, i % groups) = *plain_rows.scales.byte(i);
  }
}

void BlockOperand::fill_tensor_scale(Random& random, Values values, int64_t position) {
  if (!tensor_scale.view) return;
  const double scale =
      values == Values::integers ? random.pick({0.5, 1.0, 2.0}) : 0.25 + random.uniform();
  tensor_scale.set(tensor_scale.view.ndim() == 0 ? 0 : position, scale);
}

Quantized BlockOperand::view() const {
  Quantized q;
  q.spec = spec_;
  q.codes = layout_.packed ? codes.view : floats.view;
  if (layout_.packed) q.scales = scales.view;
  q.tensor_scale = tensor_scale.view;
  q.host_tensor_scale = layout_.host_tensor_scale;
  if (layout_.swizzled) q.scale_layout = ScaleLayout::swizzled_128x4;
  return q;
}

std::vector<const Operand*> BlockOperand::operands() const {
  return {&floats, &codes, &scales, &tensor_scale};
}

float BlockOperand::tensor_scale_of(int64_t position) const {
  if (layout_.host_tensor_scale) return *layout_.host_tensor_scale;
  if (!tensor_scale.view) return 1;
  return static_cast<float>(tensor_scale.get(tensor_scale.view.ndim() == 0 ? 0 : position));
}

const std::vector<double>& BlockOperand::values(int64_t position, float scale) const {
  const std::pair key(position, scale);
  auto found = decoded_.find(key);
  if (found == decoded_.end()) {
    found = decoded_.emplace(key, decode_matrix(position, scale)).first;
  }
  return found->second;
}

std::vector<double> BlockOperand::decode_matrix(int64_t position, float scale) const {
  const int64_t cols = layout_.cols, group_size = spec_.group_size;
  std::vector<double> all;
  for (int64_t row = 0; row < layout_.rows; ++row) {
    const int64_t flat_row = position * layout_.rows + row;
    for (int64_t i = 0; i < cols; i += group_size) {
      std::vector<double> group;
      if (!layout_.packed) {
        for (int64_t j = 0; j < group_size; ++j)
          group.push_back(floats.get(flat_row * cols + i + j));
        group = fake_quantized(spec_, group, scale);
      } else {
        const uint8_t* bytes = codes.byte(flat_row * codes.view.shape.back());
        const uint32_t byte = *scale_byte(position, row, i / group_size);
        for (int64_t j = 0; j < group_size; ++j) {
          group.push_back(
              decode_block(spec_.mode, packed_code(bytes, spec_.bits, i + j), byte, scale));
        }
      }
      all.insert(all.end(), group.begin(), group.end());
    }
  }
  return all;
}

std::vector<double> fake_quantized(const QuantSpec& spec, std::span<const double> values,
                                   float tensor_scale) {
  const EncodedGroup encoded = encode_group(spec, values, tensor_scale);
  std::vector<double> decoded;
  for (uint32_t code : encoded.codes) {
    decoded.push_back(decode_block(spec.mode, code, encoded.scale_byte, tensor_scale));
  }
  return decoded;
}

}  // namespace moeblas::test
