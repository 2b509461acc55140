#include "arguments/builder.h"

#include <cstring>

#include "support/array.h"

namespace moeblas::test {
namespace {

const std::vector<DType> kIntegers = {DType::i8, DType::i16, DType::i32, DType::i64,
                                      DType::u8, DType::u16, DType::u32, DType::u64};

void bind(Tensor& t, const char* dims, const char* ndims, std::vector<std::string> partners) {
  const auto bound = [](char c) {
    return c == 'b' ? Bound::by_inputs : c == 'o' ? Bound::by_output : Bound::free;
  };
  t.dims.clear();
  for (const char* c = dims; *c; ++c) t.dims.push_back(bound(*c));
  t.fewer_dims = bound(ndims[0]);
  t.more_dims = bound(ndims[1]);
  t.no_dims = bound(ndims[2]);
  t.partners = std::move(partners);
}

// Memory with room on both sides, so that a bad call that were accepted would not crash at once.
void allocate(Tensor& t) {
  constexpr size_t kRoom = 4096;
  const size_t bytes = static_cast<size_t>(t.numel()) * size_of(t.dtype);
  t.memory = std::make_shared<std::vector<uint8_t>>(bytes + 2 * kRoom, kPoison);
  t.data = t.memory->data() + kRoom;
  t.data += (64 - reinterpret_cast<uintptr_t>(t.data) % 64) % 64;
}

void fill_values(Tensor& t) {
  for (int64_t i = 0; i < t.numel(); ++i) {
    cpu::store_float(t.data, t.dtype, i, static_cast<float>(i * 5 % 11) - 5);
  }
}

void fill_scales(Tensor& t, int32_t mode) {
  for (int64_t i = 0; i < t.numel(); ++i) {
    if (mode == MOEBLAS_AFFINE) {
      cpu::store_float(t.data, t.dtype, i, static_cast<float>(i % 3 + 1) * 0.25f);
    } else {
      t.data[i] = static_cast<uint8_t>((mode == MOEBLAS_NVFP4 ? 0x30 : 126) + i % 3);
    }
  }
}

}  // namespace

Builder::Builder(const char* name, const std::string& label) {
  case_.operation = &operation(name);
  case_.label = std::string(name) + (label.empty() ? "" : "_" + label);
}

Tensor& Builder::add(const char* name, DType dtype, std::vector<int64_t> shape, const char* dims,
                     const char* ndims, std::vector<std::string> partners) {
  Tensor t;
  t.name = name;
  t.dtype = dtype;
  t.shape = std::move(shape);
  bind(t, dims, ndims, std::move(partners));
  allocate(t);
  case_.tensors.push_back(std::move(t));
  return case_.tensors.back();
}

Tensor& Builder::values(const char* name, DType dtype, std::vector<int64_t> shape, const char* dims,
                        const char* ndims, std::vector<std::string> partners) {
  Tensor& t = add(name, dtype, std::move(shape), dims, ndims, std::move(partners));
  fill_values(t);
  return t;
}

Tensor& Builder::integers(const char* name, DType dtype, std::vector<int64_t> shape,
                          const char* dims, const char* ndims, std::vector<std::string> partners,
                          int64_t limit, int64_t step) {
  Tensor& t = add(name, dtype, std::move(shape), dims, ndims, std::move(partners));
  for (int64_t i = 0; i < t.numel(); ++i) {
    const int64_t v = i * step % (limit + 1);
    std::memcpy(t.data + i * static_cast<int64_t>(size_of(dtype)), &v, size_of(dtype));
  }
  t.dtypes = kIntegers;
  return t;
}

Tensor& Builder::ids(const char* name, DType dtype, std::vector<int64_t> shape, const char* dims,
                     const char* ndims, std::vector<std::string> partners, int64_t limit,
                     int64_t step) {
  case_.ids.push_back(name);
  if (case_.bad_ids.empty()) case_.bad_ids = {-1, limit + 1, 127};
  return integers(name, dtype, std::move(shape), dims, ndims, std::move(partners), limit, step);
}

Tensor& Builder::out(const char* name, DType dtype, std::vector<int64_t> shape) {
  const std::string dims(shape.size(), 'b');
  Tensor& t = add(name, dtype, std::move(shape), dims.c_str(), "bbb");
  t.output = t.packed = true;
  return t;
}

QuantizedArgument& Builder::quantized(const QuantizedNames& names, std::vector<int64_t> lead,
                                      int64_t columns, const Storage& s) {
  QuantizedArgument q;
  q.names = &names;
  q.fields.mode = s.mode;
  std::vector<int64_t> codes = lead, scales = lead;
  const std::string dims(lead.size() + 1, 'b');
  if (s.floats) {
    codes.push_back(columns);
    values(names.codes, s.dtype, codes, dims.c_str(), "bbb", {names.scales});
    case_.quantized.push_back(q);
    return case_.quantized.back();
  }
  const int32_t bits = q.fields.bits = s.mode == MOEBLAS_MXFP8 ? 8 : 4;
  const int32_t group = q.fields.group_size = s.mode == MOEBLAS_NVFP4 ? 16 : 32;
  const bool affine = s.mode == MOEBLAS_AFFINE;
  codes.push_back(columns * bits / (s.as_bytes ? 8 : 32));
  scales.push_back(columns / group);
  if (s.swizzled) {
    q.fields.scale_layout = MOEBLAS_SCALES_SWIZZLED_128X4;
    scales[lead.size() - 1] = (lead.back() + 127) / 128 * 128;
    scales[lead.size()] = (scales.back() + 3) / 4 * 4;
  }
  const auto part = [&](const char* name, DType dtype, const std::vector<int64_t>& shape,
                        const char* partner) -> Tensor& {
    Tensor& t = add(name, dtype, shape, dims.c_str(), "bbb", {partner});
    t.packed = true;
    t.output = s.output;
    return t;
  };
  Tensor& c = part(names.codes, s.as_bytes ? DType::u8 : DType::u32, codes, names.scales);
  for (size_t i = 0; i < c.memory->size(); ++i) (*c.memory)[i] = static_cast<uint8_t>(i * 37);
  fill_scales(part(names.scales, affine ? s.dtype : DType::u8, scales, names.biases), s.mode);
  if (affine) fill_scales(part(names.biases, s.dtype, scales, names.scales), s.mode);
  case_.quantized.push_back(q);
  return case_.quantized.back();
}

Tensor& Builder::tensor_scale(const QuantizedNames& names, int64_t matrices) {
  Tensor& t = add(names.tensor_scale, DType::f32, {matrices}, "b", "fbf");
  for (int64_t i = 0; i < matrices; ++i) {
    cpu::store_float(t.data, DType::f32, i, static_cast<float>(i + 1) * 0.5f);
  }
  t.optional = true;
  return t;
}

Tensor& Builder::rebind(const char* name, const char* dims, const char* ndims,
                        std::vector<std::string> partners) {
  Tensor& t = *case_.find(name);
  bind(t, dims, ndims, std::move(partners));
  return t;
}

}  // namespace moeblas::test
