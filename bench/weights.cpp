#include "bench/weights.h"

#include <cmath>

namespace moeblas::bench {

Weights::Weights(Device& device, const CaseSpec& spec, bool quantized, int64_t experts, int64_t n,
                 int64_t k, const Random& random)
    : device_(device),
      format_(spec.format),
      dtype_(spec.dtype),
      quantized_(quantized),
      experts_(experts),
      n_(n),
      k_(k),
      row_pitch_(spec.row_pitch),
      stored_k_(k * spec.row_pitch),
      data_(spec.format, spec.scale_dtype, random),
      floats_(Source::bell(random, spec.dtype, 0.125f)) {}

int64_t Weights::matrix_bytes() const {
  if (!quantized_) return n_ * k_ * static_cast<int64_t>(size_of(dtype_));
  const int64_t per_group =
      static_cast<int64_t>(size_of(data_.scale_dtype())) * (format_.mode == Mode::affine ? 2 : 1);
  return n_ * k_ / 8 * format_.bits + n_ * k_ / format_.group_size * per_group;
}

void Weights::prepare(int64_t stacks) {
  const int64_t e = matrices();
  prepared_ = true;
  if (!quantized_) {
    codes_ = Slab(device_, dtype_, {e, n_, stored_k_}, stacks);
    return;
  }
  const Shape groups{e, n_, stored_k_ / format_.group_size};
  codes_ = Slab(device_, DType::u32, {e, n_, stored_k_ / 32 * format_.bits}, stacks);
  scales_ = Slab(device_, data_.scale_dtype(), groups, stacks);
  if (format_.mode == Mode::affine) {
    biases_ = Slab(device_, data_.scale_dtype(), groups, stacks);
  } else if (format_.mode == Mode::nvfp4) {
    tensor_scales_ = Slab(device_, DType::f32, {e}, stacks);
    for (int64_t i = 0; i < stacks; ++i) tensor_scales_.fill(i, Source::tensor_scales(data_));
  }
}

void Weights::fill(int64_t stack, int64_t matrix) {
  const int64_t values = n_ * stored_k_;
  if (!quantized_) return codes_.fill(stack, matrix * values, values, floats_);
  const int64_t words = values / 32 * format_.bits, groups = values / format_.group_size;
  codes_.fill(stack, matrix * words, words, Source::codes(data_));
  scales_.fill(stack, matrix * groups, groups, Source::scales(data_));
  if (format_.mode == Mode::affine) {
    biases_.fill(stack, matrix * groups, groups, Source::biases(data_));
  }
}

Quantized Weights::quantized(int64_t stack) const {
  // Without the first dimension if this is no stack.
  const auto view = [&](const Slab& slab, DType dtype, std::initializer_list<int64_t> matrix) {
    Shape shape, strides;
    if (experts_ > 0) shape.push_back(experts_);
    for (int64_t size : matrix) shape.push_back(size);
    int64_t stride = row_pitch_;
    for (int d = 0; d < shape.ndim(); ++d) strides.push_back(1);
    for (int d = shape.ndim() - 2; d >= 0; --d) strides[d] = stride *= shape[d + 1];
    return TensorView(prepared_ ? slab.view(stack).data : nullptr, dtype, shape, strides,
                      device_.handle());
  };
  Quantized w;
  w.spec = format_;
  w.codes = view(codes_, DType::u32, {n_, k_ / 32 * format_.bits});
  w.scales = view(scales_, data_.scale_dtype(), {n_, k_ / format_.group_size});
  if (format_.mode == Mode::affine) {
    w.biases = view(biases_, data_.scale_dtype(), {n_, k_ / format_.group_size});
  } else if (format_.mode == Mode::nvfp4) {
    w.tensor_scale = view(tensor_scales_, DType::f32, {});
  }
  return w;
}

TensorView Weights::dense(int64_t stack) const {
  return {prepared_ ? codes_.view(stack).data : nullptr,
          dtype_,
          {matrices(), k_, n_},
          {n_ * stored_k_, 1, stored_k_},
          device_.handle()};
}

void Weights::row(int64_t stack, int64_t matrix, int64_t n, double* w, double* m) const {
  const int64_t index = stack * matrices() + matrix;
  const int64_t first = (index * n_ + n) * stored_k_;
  if (quantized_) return data_.reference(first, k_, index, w, m);
  for (int64_t i = 0; i < k_; ++i) {
    uint32_t element = 0;
    floats_.write(first + i, &element, 0);
    w[i] = load_float(&element, dtype_, 0);
    m[i] = std::abs(w[i]);
  }
}

}  // namespace moeblas::bench
