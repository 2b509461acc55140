#include "bench/ops/conversions.h"

#include "formats/scale_layout.h"

namespace moeblas::bench {

Conversion::Conversion(Device& device, const CaseSpec& spec)
    : Case(spec),
      n_(spec.shape.n),
      k_(spec.shape.k),
      data_(spec.format, spec.scale_dtype, Random(spec.seed).stream(1)),
      device_(device) {}

Work Conversion::work() const {
  const int64_t values = n_ * k_;
  const int64_t value_bytes = values * static_cast<int64_t>(size_of(spec().dtype));
  const int64_t packed_bytes =
      values / 8 * spec().format.bits +
      groups() * static_cast<int64_t>(size_of(data_.scale_dtype())) * (affine() ? 2 : 1);
  return reads_values() ? Work{value_bytes, packed_bytes, 0} : Work{packed_bytes, value_bytes, 0};
}

void Conversion::prepare(int64_t sets) {
  const CaseSpec& s = spec();
  const Shape scales = scales_shape();
  values_ = Slab(device_, s.dtype, {n_, k_}, sets);
  codes_ = Slab(device_, DType::u32, {n_, k_ / 32 * s.format.bits}, sets);
  scales_ = Slab(device_, data_.scale_dtype(), scales, sets);
  if (affine()) biases_ = Slab(device_, s.scale_dtype, scales, sets);
  if (s.format.mode == Mode::nvfp4) tensor_scale_ = Slab(device_, DType::f32, {}, sets);
  for (int64_t set = 0; set < sets; ++set) {
    fill(set);
    poison(set);
    if (s.format.mode == Mode::nvfp4) tensor_scale_.fill(set, Source::tensor_scales(data_));
  }
  prepared_ = true;
}

TensorView Conversion::values(int64_t set) const {
  return prepared_ ? values_.view(set)
                   : TensorView(nullptr, spec().dtype, {n_, k_}, device_.handle());
}

Quantized Conversion::quantized(int64_t set) const {
  const CaseSpec& s = spec();
  const auto view = [&](const Slab& slab, DType dtype, const Shape& shape) {
    return prepared_ ? slab.view(set) : TensorView(nullptr, dtype, shape, device_.handle());
  };
  const Shape scales = scales_shape();
  Quantized q;
  q.spec = s.format;
  q.scale_layout = s.scale_layout;
  q.codes = view(codes_, DType::u32, {n_, k_ / 32 * s.format.bits});
  q.scales = view(scales_, data_.scale_dtype(), scales);
  if (affine()) q.biases = view(biases_, s.scale_dtype, scales);
  if (s.format.mode == Mode::nvfp4) q.tensor_scale = view(tensor_scale_, DType::f32, {});
  return q;
}

Shape Conversion::scales_shape() const {
  const int64_t of_row = k_ / spec().format.group_size;
  if (spec().scale_layout == ScaleLayout::rows) return {n_, of_row};
  return {static_cast<int64_t>(formats::swizzle_padded_rows(static_cast<uint64_t>(n_))),
          static_cast<int64_t>(formats::swizzle_padded_scales(static_cast<uint64_t>(of_row)))};
}

int64_t Conversion::sampled_group(int64_t i, int64_t samples) const {
  if (samples == groups()) return i;
  if (i < 2) return i * (groups() - 1);
  return static_cast<int64_t>(Random(spec().seed).stream(3).bits(i) %
                              static_cast<uint64_t>(groups()));
}

}  // namespace moeblas::bench
