// mv: rows of floats times a few rows of x, in float32: dense weights whose rows lie along K, of
// any dtype, in decode and in small batches; attention's two products are of this kind.
//
// Four rows of w at a time meet up to four rows of x, so that a vector of either serves four
// multiply-adds; each sum has one accumulator, so its order depends on K alone. Rows are fetched
// some lines ahead, into the rows that follow. One row of x is bound by the stream of weights.
#include "cpu/simd/qmv.h"
#include "cpu/simd/simd.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

using Floats = Simd::Floats;

constexpr int kLanes = Simd::kLanes;
constexpr int kMostRows = 4;         // of x, at a time
constexpr int64_t kAhead = 2 << 10;  // bytes of each row

template <ScaleKind Kind>
Floats load(const uint8_t* p, int count) {
  if constexpr (Kind == ScaleKind::f32) return Simd::load_f32(p, count);
  if constexpr (Kind == ScaleKind::f16) return Simd::load_f16(p, count);
  return Simd::load_bf16(p, count);
}

template <ScaleKind Kind, int M, int R>
void multiply(int64_t k, const QmvPanel& panel, int64_t n, const float* const* x, float* sums,
              int64_t pitch) {
  constexpr int64_t kSize = Kind == ScaleKind::f32 ? 4 : 2;
  const uint8_t* row = panel.first.codes + n * panel.code_stride;
  // The rows that follow, or what is left of these.
  const int64_t ahead = k * kSize <= kAhead ? R * panel.code_stride : kAhead;
  Floats total[R * M];
  unroll<R * M>([&](auto i) __attribute__((always_inline)) { total[i.value] = Simd::zero(); });
  const auto step = [&](int64_t at, int count) __attribute__((always_inline)) {
    Floats xs[M];
    unroll<M>([&](auto m) __attribute__((always_inline)) {
      xs[m.value] =
          count == kLanes ? Simd::load(x[m.value] + at) : Simd::load_f32(x[m.value] + at, count);
    });
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      const uint8_t* const from = row + r.value * panel.code_stride + at * kSize;
      __builtin_prefetch(from + ahead, 0, 3);
      const Floats w = load<Kind>(from, count);
      unroll<M>([&](auto m) __attribute__((always_inline)) {
        Floats& t = total[r.value * M + m.value];
        t = Simd::fma(w, xs[m.value], t);
      });
    });
  };
  int64_t at = 0;
  for (; at + kLanes <= k; at += kLanes) step(at, kLanes);
  if (at < k) step(at, static_cast<int>(k - at));
  unroll<M>([&](auto m) __attribute__((always_inline)) {
    float* const out = sums + m.value * pitch + n;
    if constexpr (R == 4) {
      Simd::sums(total[m.value], total[M + m.value], total[2 * M + m.value], total[3 * M + m.value],
                 out);
    } else {
      *out = Simd::sum(total[m.value]);
    }
  });
}

template <ScaleKind Kind>
void kernel(const QmvFormat& format, const QmvPanel& panel, const void* const* prepared,
            int64_t count, float* sums, int64_t pitch) {
  const auto* x = reinterpret_cast<const float* const*>(prepared);
  const auto take = [&](auto m) {
    constexpr int M = decltype(m)::value;
    int64_t n = 0;
    for (; n + 4 <= panel.rows; n += 4) multiply<Kind, M, 4>(format.k, panel, n, x, sums, pitch);
    for (; n < panel.rows; ++n) multiply<Kind, M, 1>(format.k, panel, n, x, sums, pitch);
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
