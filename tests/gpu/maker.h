// Puts a job together from arrays made by hand: row-major, in memory that the job keeps.
#pragma once

#include <deque>

#include "job.h"
#include "support/array.h"
#include "support/random.h"

namespace moeblas::gpu {

// Which tensors of a job hold a quantized (or, as dense, a float) matrix; -1: absent.
struct PackedAt {
  QuantSpec spec;
  int codes = -1, scales = -1, biases = -1;
  std::optional<float> tensor_scale;
  int tensor_scale_at = -1;  // on the device, in its place

  Quantized in(Views views) const {
    Quantized q;
    q.spec = spec;
    q.codes = views[static_cast<size_t>(codes)];
    if (scales >= 0) q.scales = views[static_cast<size_t>(scales)];
    if (biases >= 0) q.biases = views[static_cast<size_t>(biases)];
    if (tensor_scale_at >= 0) {
      q.tensor_scale = views[static_cast<size_t>(tensor_scale_at)];
    } else {
      q.host_tensor_scale = tensor_scale;
    }
    return q;
  }
};

class Maker {
 public:
  Maker(std::string op, uint64_t seed)
      : random(seed * 0x2545f4914f6cdd1du + 1), arrays_(new Arrays) {
    job.op = std::move(op);
    job.line = job.op + " seed=" + std::to_string(seed);
    job.keeps = arrays_;
  }

  // The index of a new tensor; zeros.
  int add(Role role, DType dtype, const Shape& shape) {
    arrays_->emplace_back(dtype, shape);
    test::Array& a = arrays_->back();
    job.tensors.push_back({role, a.view(), a.bytes().data(), a.bytes().size()});
    job.line.append(" ").append(name(dtype)).append("(");
    for (int i = 0; i < shape.ndim(); ++i) {
      job.line.append(i > 0 ? "," : "").append(std::to_string(shape[i]));
    }
    job.line += ")";
    return static_cast<int>(job.tensors.size()) - 1;
  }
  int floats(DType dtype, const Shape& shape, double scale = 1) {
    const int at = add(Role::input, dtype, shape);
    for (int64_t i = 0; i < shape.numel(); ++i) {
      (*this)[at].set(i, static_cast<float>(scale * random.normal()));
    }
    return at;
  }
  // Indices below `count`, one in `hostile` of them out of range (0: none).
  int ids(DType dtype, const Shape& shape, int64_t count, int64_t hostile) {
    const int at = add(Role::ids, dtype, shape);
    for (int64_t i = 0; i < shape.numel(); ++i) {
      const bool off = count == 0 || (hostile > 0 && random.one_in(hostile));
      (*this)[at].set_integer(
          i, off ? random.pick<int64_t>({-1, count, count + 3, -100}) : random.below(count));
    }
    return at;
  }
  // A stack of matrices with normal values; dense in `dense_dtype` where the spec says so.
  // `scales`: their type, where it is free; none: any.
  PackedAt packed(const QuantSpec& spec, const Shape& shape, DType dense_dtype, double scale,
                  std::optional<DType> scales = std::nullopt) {
    PackedAt at{spec, -1, -1, -1, {}};
    if (spec.mode == Mode::dense) {
      at.codes = floats(dense_dtype, shape, scale);
      return at;
    }
    at.spec = spec.resolved();
    test::Array values(DType::f32, shape);
    for (int64_t i = 0; i < values.numel(); ++i) {
      values.set(i, static_cast<float>(scale * random.normal()));
    }
    const DType any = random.pick({DType::f32, DType::f16, DType::bf16});
    const DType scale_dtype = scales.value_or(any);
    const bool affine = at.spec.mode == Mode::affine;
    const QuantizedSpec out =
        infer_quantize(values, at.spec, affine ? std::optional(scale_dtype) : std::nullopt);
    at.codes = add(Role::input, out.codes.dtype, out.codes.shape);
    at.scales = add(Role::input, out.scales.dtype, out.scales.shape);
    if (out.biases) at.biases = add(Role::input, out.biases->dtype, out.biases->shape);
    if (at.spec.mode == Mode::nvfp4) at.tensor_scale = static_cast<float>(scale / 300);
    quantize(values, at.in(views()));
    job.line.append(" ")
        .append(name(at.spec.mode))
        .append(" b")
        .append(std::to_string(at.spec.bits));
    job.line.append(" g").append(std::to_string(at.spec.group_size));
    return at;
  }
  // All bits of part `i` of `parts` of a tensor: NaN in every float, scale and code.
  void poison(int tensor, int64_t i, int64_t parts) {
    if (tensor < 0) return;
    auto& bytes = (*this)[tensor].bytes();
    const auto size = static_cast<int64_t>(bytes.size()) / parts;
    std::fill_n(bytes.begin() + i * size, size, uint8_t{0xff});
  }
  void poison(const PackedAt& at, int64_t i, int64_t parts) {
    for (int tensor : {at.codes, at.scales, at.biases}) poison(tensor, i, parts);
  }

  test::Array& operator[](int at) { return (*arrays_)[static_cast<size_t>(at)]; }
  std::vector<TensorView> views() const {
    std::vector<TensorView> all;
    for (const Tensor& t : job.tensors) all.push_back(t.view);
    return all;
  }

  test::Random random;
  Job job;

 private:
  using Arrays = std::deque<test::Array>;
  std::shared_ptr<Arrays> arrays_;
};

// One of every format, affine in all its widths and groups.
QuantSpec draw_format(test::Random& random, bool block_only);

}  // namespace moeblas::gpu
