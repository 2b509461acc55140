#include "moe_model/arithmetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

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

namespace {

// As many as compilers keep in vectors, so that sums and maxima are not one chain.
constexpr int64_t kLanes = 16;

// e^x for x <= 0, without branches and calls, so that loops of it become vector code: 2^n times the
// Taylor sum of what is left, of which |rest| <= log(2) / 2. Within 2 ulp; 0 below -87.
float exp_of_negative(float x) {
  const float shifted = x * 1.44269504f + 0x1.8p23f;  // the integer n stands in the low bits
  const float n = shifted - 0x1.8p23f;
  const float rest = (x - n * 0.693145751953125f) - n * 1.42860677e-6f;
  float sum = 1.0f / 5040;
  sum = sum * rest + 1.0f / 720;
  sum = sum * rest + 1.0f / 120;
  sum = sum * rest + 1.0f / 24;
  sum = sum * rest + 1.0f / 6;
  sum = sum * rest + 0.5f;
  sum = sum * rest * rest + rest + 1.0f;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  const uint32_t kept = x < -87.0f ? 0u : ~0u;  // a mask, not a branch
  return std::bit_cast<float>(std::bit_cast<uint32_t>(sum * std::bit_cast<float>(power)) & kept);
}

}  // namespace

void softmax(float* scores, int64_t count, int64_t size, float scale) {
  const int64_t whole = count / kLanes * kLanes;
  float tops[kLanes], sums[kLanes] = {};
  std::fill_n(tops, kLanes, scores[0]);
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l)
      tops[l] = scores[i + l] > tops[l] ? scores[i + l] : tops[l];
  }
  float top = *std::max_element(tops, tops + kLanes);
  for (int64_t i = whole; i < count; ++i) top = std::max(top, scores[i]);
  for (int64_t i = 0; i < count; ++i) scores[i] = exp_of_negative((scores[i] - top) * scale);
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) sums[l] += scores[i + l];
  }
  float sum = std::accumulate(scores + whole, scores + count, 0.0f);
  sum = std::accumulate(sums, sums + kLanes, sum);
  const float factor = 1.0f / sum;
  for (int64_t i = 0; i < count; ++i) scores[i] *= factor;
  std::fill(scores + count, scores + size, 0.0f);
}

}  // namespace moeblas::examples
