#include "moe_model/arithmetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace moeblas::examples {
namespace {

template <class T>
T load(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

float load_float(const char* p, DType dtype) {
  if (dtype == DType::f32) return load<float>(p);
  if (dtype == DType::f16) return static_cast<float>(load<_Float16>(p));
  const uint32_t bits = uint32_t{load<uint16_t>(p)} << 16;  // bfloat16: the upper half of float32
  return load<float>(reinterpret_cast<const char*>(&bits));
}

}  // namespace

std::vector<float> to_floats(const TensorView& vector) {
  std::vector<float> values(static_cast<size_t>(vector.shape[0]));
  const char* p = static_cast<const char*>(vector.data);
  for (float& value : values) {
    value = load_float(p, vector.dtype);
    p += vector.strides[0] * static_cast<int64_t>(size_of(vector.dtype));
  }
  return values;
}

void add(Matrix& x, const Matrix& y) {
  for (size_t i = 0; i < x.data.size(); ++i) x.data[i] += y.data[i];
}

void add_row(Matrix& x, const TensorView& row) {
  const std::vector<float> values = to_floats(row);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (size_t i = 0; i < values.size(); ++i) x.row(r)[i] += values[i];
  }
}

Matrix rms_norm(const Matrix& x, const TensorView& weight, double epsilon) {
  const std::vector<float> w = to_floats(weight);
  Matrix y(x.rows, x.cols);
  for (size_t first = 0; first < x.data.size(); first += w.size()) {
    const float* in = x.data.data() + first;
    double squares = 0;
    for (size_t i = 0; i < w.size(); ++i) squares += double{in[i]} * in[i];
    const double mean = squares / static_cast<double>(w.size());
    const auto factor = static_cast<float>(1.0 / std::sqrt(mean + epsilon));
    for (size_t i = 0; i < w.size(); ++i) y.data[first + i] = in[i] * factor * w[i];
  }
  return y;
}

void clamp(Matrix& x, double limit) {
  const auto most = static_cast<float>(limit);
  for (float& value : x.data) value = std::clamp(value, -most, most);
}

Rotation::Rotation(int64_t first, int64_t tokens, int64_t dim, double theta) : half_(dim / 2) {
  for (int64_t p = first; p < first + tokens; ++p) {
    for (int64_t i = 0; i < half_; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(dim);
      const double angle = static_cast<double>(p) * std::pow(theta, exponent);
      cosine_.push_back(static_cast<float>(std::cos(angle)));
      sine_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

void Rotation::turn(Matrix& heads) const {
  for (int64_t t = 0; t < heads.rows; ++t) {
    const float* cosine = cosine_.data() + t * half_;
    const float* sine = sine_.data() + t * half_;
    float* const end = heads.row(t) + heads.cols;
    for (float* head = heads.row(t); head < end; head += 2 * half_) {
      for (int64_t i = 0; i < half_; ++i) {
        const float a = head[i], b = head[i + half_];
        head[i] = a * cosine[i] - b * sine[i];
        head[i + half_] = b * cosine[i] + a * sine[i];
      }
    }
  }
}

void softmax(float* scores, int64_t count, int64_t size, float scale) {
  const float top = *std::max_element(scores, scores + count);
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += scores[i] = std::exp((scores[i] - top) * scale);
  for (int64_t i = 0; i < count; ++i) scores[i] /= sum;
  std::fill(scores + count, scores + size, 0.0f);
}

}  // namespace moeblas::examples
