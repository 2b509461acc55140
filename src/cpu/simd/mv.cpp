// mv: rows of floats times a few rows of x, in float32: dense weights whose rows lie along K, of
// any dtype, in decode and in small batches; attention's two products are of this kind.
//
// One row of w after the other meets up to four rows of x, so that w is one linear stream, which is
// fetched ahead of its use; it bounds one row of x. Such a sum has kParts accumulators. Of short
// rows, which are bound by their ends, four go side by side, with one accumulator each. So a sum's
// order depends on K alone.
#include "cpu/simd/qmv.h"
#include "cpu/simd/simd.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

using Floats = Simd::Floats;

constexpr int kLanes = Simd::kLanes;
constexpr int kMostRows = 4;                     // of x, at a time
constexpr int kParts = kLanes == 16 ? 4 : 2;     // of a sum
constexpr int64_t kAhead = 8 << 10, kLine = 64;  // bytes
constexpr int64_t kShort = 1 << 10;              // bytes of a row
constexpr int kTogether = 4;                     // rows whose lanes are summed together

template <ScaleKind Kind>
Floats load(const uint8_t* p, int count) {
  if constexpr (Kind == ScaleKind::f32) return Simd::load_f32(p, count);
  if constexpr (Kind == ScaleKind::f16) return Simd::load_f16(p, count);
  return Simd::load_bf16(p, count);
}

// R rows, P accumulators for each sum.
template <ScaleKind Kind, int M, int R, int P>
[[gnu::always_inline]] inline void multiply_rows(int64_t k, const uint8_t* row, int64_t stride,
                                                 const uint8_t* ahead, const float* const* x,
                                                 Floats* total) {
  constexpr int64_t kSize = Kind == ScaleKind::f32 ? 4 : 2;
  Floats part[R * M * P];
  unroll<R * M * P>([&](auto i) __attribute__((always_inline)) { part[i.value] = Simd::zero(); });
  const auto step = [&](auto p, int64_t at, int count) __attribute__((always_inline)) {
    Floats v[M];
    unroll<M>([&](auto m) __attribute__((always_inline)) {
      const float* const from = x[m.value] + at;
      v[m.value] = count == kLanes ? Simd::load(from) : Simd::load_f32(from, count);
    });
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      const Floats w = load<Kind>(row + r.value * stride + at * kSize, count);
      unroll<M>([&](auto m) __attribute__((always_inline)) {
        Floats& sum = part[(r.value * M + m.value) * P + p.value];
        sum = Simd::fma(w, v[m.value], sum);
      });
    });
  };
  int64_t at = 0;
  for (; at + P * kLanes <= k; at += P * kLanes) {
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      unroll<(P * kLanes * kSize + kLine - 1) / kLine>(
          [&](auto line) __attribute__((always_inline)) {
            __builtin_prefetch(ahead + r.value * stride + at * kSize + line.value * kLine, 0, 3);
          });
    });
    unroll<P>([&](auto p)
                  __attribute__((always_inline)) { step(p, at + p.value * kLanes, kLanes); });
  }
  for (; at + kLanes <= k; at += kLanes) step(Index<0>{}, at, kLanes);
  if (at < k) step(Index<0>{}, at, static_cast<int>(k - at));
  unroll<R * M>([&](auto i) __attribute__((always_inline)) {
    const Floats* const of = part + i.value * P;
    total[i.value] = of[0];
    if constexpr (P >= 2) total[i.value] = Simd::add(of[0], of[1]);
    if constexpr (P == 4) total[i.value] = Simd::add(total[i.value], Simd::add(of[2], of[3]));
  });
}

template <ScaleKind Kind, int M>
void multiply(int64_t k, const QmvPanel& panel, const float* const* x, float* sums, int64_t pitch) {
  const int64_t row_bytes = k * (Kind == ScaleKind::f32 ? 4 : 2), stride = panel.code_stride;
  // Rows that are longer are fetched from themselves.
  const int64_t rows_ahead = row_bytes > kAhead ? 0 : (kAhead + row_bytes - 1) / row_bytes;
  const auto row = [&](int64_t n) {
    return n < panel.rows ? panel.first.codes + n * stride
                          : panel.next.codes + (n - panel.rows) * stride;
  };
  for (int64_t n = 0; n < panel.rows; n += kTogether) {
    const int64_t rows = panel.rows - n < kTogether ? panel.rows - n : kTogether;
    Floats total[kTogether * M];
    if (row_bytes <= kShort && rows == kTogether) {
      multiply_rows<Kind, M, kTogether, 1>(k, row(n), stride, row(n + rows_ahead), x, total);
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        const uint8_t* const from = row(n + r);
        const uint8_t* const ahead = rows_ahead == 0 ? from + kAhead : row(n + r + rows_ahead);
        if (row_bytes <= kShort) {
          multiply_rows<Kind, M, 1, 1>(k, from, stride, ahead, x, total + r * M);
        } else {
          multiply_rows<Kind, M, 1, kParts>(k, from, stride, ahead, x, total + r * M);
        }
      }
    }
    for (int m = 0; m < M; ++m) {
      float* const out = sums + m * pitch + n;
      if (rows == kTogether) {
        Simd::sums(total[m], total[M + m], total[2 * M + m], total[3 * M + m], out);
      } else {
        for (int64_t r = 0; r < rows; ++r) out[r] = Simd::sum(total[r * M + m]);
      }
    }
  }
}

template <ScaleKind Kind>
void kernel(const QmvFormat& format, const QmvPanel& panel, const void* const* prepared,
            int64_t count, float* sums, int64_t pitch) {
  const auto* x = reinterpret_cast<const float* const*>(prepared);
  const auto take = [&](auto m) {
    constexpr int M = decltype(m)::value;
    multiply<Kind, M>(format.k, panel, x, sums, pitch);
    x += M;
    count -= M;
    sums += M * pitch;
  };
  while (count >= kMostRows) take(Index<kMostRows>{});
  if (count == 3) take(Index<3>{});
  if (count == 2) take(Index<2>{});
  if (count == 1) take(Index<1>{});
}

bool prepare(const QmvFormat&, const float* x, int64_t first, int64_t count, void* prepared) {
  __builtin_memcpy(static_cast<float*>(prepared) + first, x,
                   static_cast<uint64_t>(count) * sizeof(float));
  return true;
}

}  // namespace

const Qmv mv = {
    .dense = {{prepare, kernel<ScaleKind::f32>},
              {prepare, kernel<ScaleKind::f16>},
              {prepare, kernel<ScaleKind::bf16>}},
};

}  // namespace moeblas::cpu::MOEBLAS_TIER
