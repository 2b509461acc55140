// qmv: packed rows times a few rows of x, in float32. Used for decode and for small batches.
//
// A block is kLanes octets of a packed row: octet l in lane l, so that shifts alone bring code j of
// all octets to the low bits. x is prepared once per call in the same order, [block][j][lane], with
// the sums of its octets, by which affine biases enter. An octet lies in one group: its sum is
// formed of unscaled codes and then scaled,
//
//   total += bias * sum of x + scale * sum over j of code_j * x_j
//
// which keeps codes exact and scales out of the inner loop, and lets the two parts, which often
// all but cancel, meet before they have grown. A row of weights meets up to kMost
// rows of x while its codes are in registers. Each sum is formed in an order that depends on K and
// the format alone.
//
// The weights are one linear stream; the prefetch pointer runs ahead of it into the next row. The
// time goes into that stream for one row of x, into the multiply-adds from four rows on.
#include "cpu/simd/qmv.h"

#include "cpu/simd/simd.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

using Floats = Simd::Floats;
using Words = Simd::Words;

constexpr int kLanes = Simd::kLanes;
constexpr int kBlock = 8 * kLanes;          // values
constexpr int kBlockOfX = kBlock + kLanes;  // and the octets' sums
constexpr int kMost = kLanes == 16 ? 8 : 4;
constexpr int64_t kAhead = 2048;  // bytes from a load to its prefetch

constexpr int64_t blocks_of(int64_t k) { return (k + kBlock - 1) / kBlock; }

// E4M3FN in the upper byte of each word, times 2^-120: the exponent is moved to float32's place.
// NaN gives a number.
Floats e4m3_at_top(Words v) {
  const Words moved = Simd::both(Simd::shift_right_signed<4>(v), Simd::all_words(0x87f00000u));
  return Simd::mul(Simd::as_floats(moved), Simd::all(0x1p120f));
}

template <int Bits>
struct Affine {
  static constexpr int kBits = Bits;
  static constexpr bool kAffine = true;
  static constexpr bool kMayBeNan = false;
  explicit Affine(const QmvFormat&) {}

  template <int J>
  Floats value(Words low, Words high) const {
    constexpr bool kHigh = Bits > 4 && J >= 4;
    const Words v = Simd::shift_right<Bits*(kHigh ? J - 4 : J)>(kHigh ? high : low);
    return Simd::to_floats(Simd::both(v, Simd::all_words((1u << Bits) - 1)));
  }
};

struct E2m1 {
  static constexpr int kBits = 4;
  static constexpr bool kAffine = false;
  static constexpr bool kMayBeNan = false;
  Simd::Table16 values;
  explicit E2m1(const QmvFormat& format) : values(format.code_values) {}

  template <int J>
  Floats value(Words low, Words) const {
    return values[Simd::shift_right<4 * J>(low)];
  }
};

struct E4m3 {
  static constexpr int kBits = 8;
  static constexpr bool kAffine = false;
  static constexpr bool kMayBeNan = true;
  explicit E4m3(const QmvFormat&) {}

  template <int J>
  Floats value(Words low, Words high) const {
    return e4m3_at_top(Simd::shift_left<24 - 8 * (J % 4)>(J < 4 ? low : high));
  }
};

template <ScaleKind Kind>
Floats load_scales(const uint8_t* row, int64_t group, int count) {
  if constexpr (Kind == ScaleKind::f32) return Simd::load_f32(row + group * 4, count);
  if constexpr (Kind == ScaleKind::f16) return Simd::load_f16(row + group * 2, count);
  if constexpr (Kind == ScaleKind::bf16) return Simd::load_bf16(row + group * 2, count);
  const Words bytes = Simd::load_bytes(row + group, count);
  if constexpr (Kind == ScaleKind::e8m0) return Simd::e8m0(bytes);
  return Simd::nan_where_e4m3_nan(bytes, e4m3_at_top(Simd::shift_left<24>(bytes)));
}

Floats load_scales(ScaleKind kind, const uint8_t* row, int64_t group, int count) {
  switch (kind) {
    case ScaleKind::f32:
      return load_scales<ScaleKind::f32>(row, group, count);
    case ScaleKind::f16:
      return load_scales<ScaleKind::f16>(row, group, count);
    case ScaleKind::bf16:
      return load_scales<ScaleKind::bf16>(row, group, count);
    case ScaleKind::e8m0:
      return load_scales<ScaleKind::e8m0>(row, group, count);
    default:
      return load_scales<ScaleKind::e4m3>(row, group, count);
  }
}

// For block i after the one where a vector of scales begins: which of them each lane takes.
struct Spreads {
  alignas(64) uint32_t lane[16][kLanes];
  int blocks;  // that a vector of scales serves

  explicit Spreads(int group_size) : blocks(group_size / 8) {
    for (int i = 0; i < blocks; ++i) {
      for (int l = 0; l < kLanes; ++l)
        lane[i][l] = static_cast<uint32_t>((i * kLanes + l) * 8 / group_size);
    }
  }
};

template <class Codes, int M>
void multiply(const QmvFormat& format, const QmvPanel& panel, const Spreads& spreads,
              const float* const* x, float* sums, int64_t pitch) {
  constexpr int kBytes = Codes::kBits * kLanes;  // of a block
  const Codes codes(format);
  const int64_t blocks = blocks_of(format.k), whole = format.k / kBlock;
  const int64_t groups = format.k / format.group_size;
  const int64_t rest = (format.k - whole * kBlock) / 8 * Codes::kBits;
  alignas(64) uint8_t last[kBytes] = {};  // the last block, where K ends within it

  for (int64_t n = 0; n < panel.rows; ++n) {
    const uint8_t* const row = panel.codes + n * panel.code_stride;
    const uint8_t* const scales = panel.scales + n * panel.scale_stride;
    const uint8_t* const biases = panel.biases + n * panel.bias_stride;
    if (rest > 0) __builtin_memcpy(last, row + whole * kBytes, static_cast<uint64_t>(rest));
    Floats total[M];
    for (Floats& t : total) t = Simd::zero();
    bool nan = false;

    for (int64_t block = 0, group = 0; block < blocks; group += kLanes) {
      const int64_t left = groups - group;
      const int present = left < kLanes ? static_cast<int>(left) : kLanes;
      Floats scale = load_scales(format.scale_kind, scales, group, present);
      Floats bias = Simd::zero();
      if constexpr (Codes::kAffine) {
        bias = load_scales(format.scale_kind, biases, group, present);
      } else {
        scale = Simd::mul(scale, Simd::all(panel.tensor_scale));
      }
      const int64_t served = blocks - block < spreads.blocks ? blocks - block : spreads.blocks;
      for (int64_t i = 0; i < served; ++i, ++block) {
        const uint8_t* const at = block < whole ? row + block * kBytes : last;
        unroll<(kBytes + 63) / 64>([&](auto line) __attribute__((always_inline)) {
          __builtin_prefetch(row + block * kBytes + kAhead + 64 * line.value, 0, 3);
        });
        Words low, high = Simd::all_words(0);
        Simd::load_octets<Codes::kBits>(at, low, high);
        if constexpr (Codes::kMayBeNan)
          nan |= Simd::any_byte_e4m3_nan(low) || Simd::any_byte_e4m3_nan(high);
        Floats value[8];
        unroll<8>([&](auto j) __attribute__((always_inline)) {
          value[j.value] = codes.template value<j.value>(low, high);
        });
        const Words lanes = Simd::load_words(spreads.lane[i]);
        const Floats s = Simd::spread(scale, lanes), b = Simd::spread(bias, lanes);
        for (int m = 0; m < M; ++m) {
          const float* const xs = x[m] + block * kBlockOfX;
          Floats even = Simd::mul(value[0], Simd::load(xs));
          Floats odd = Simd::mul(value[1], Simd::load(xs + kLanes));
          unroll<3>([&](auto j) __attribute__((always_inline)) {
            constexpr int kEven = 2 + 2 * decltype(j)::value;
            even = Simd::fma(value[kEven], Simd::load(xs + kEven * kLanes), even);
            odd = Simd::fma(value[kEven + 1], Simd::load(xs + (kEven + 1) * kLanes), odd);
          });
          if constexpr (Codes::kAffine) total[m] = Simd::fma(b, Simd::load(xs + kBlock), total[m]);
          total[m] = Simd::fma(Simd::add(even, odd), s, total[m]);
        }
      }
    }
    for (int m = 0; m < M; ++m)
      sums[m * pitch + n] = nan ? __builtin_nanf("") : Simd::sum(total[m]);
  }
}

template <class Codes>
void kernel(const QmvFormat& format, const QmvPanel& panel, const void* const* prepared,
            int64_t count, float* sums, int64_t pitch) {
  const Spreads spreads(format.group_size);
  const auto* x = reinterpret_cast<const float* const*>(prepared);
  const auto take = [&](auto m) {
    constexpr int kRows = decltype(m)::value;
    multiply<Codes, kRows>(format, panel, spreads, x, sums, pitch);
    x += kRows;
    count -= kRows;
    sums += kRows * pitch;
  };
  while (count >= kMost) take(Index<kMost>{});
  if (kMost > 4 && count >= 4) take(Index<4>{});
  if (count == 3) take(Index<3>{});
  if (count == 2) take(Index<2>{});
  if (count == 1) take(Index<1>{});
}

bool prepare(const float* x, int64_t first, int64_t count, void* prepared) {
  float* out = static_cast<float*>(prepared) + first / kBlock * kBlockOfX;
  float last[kBlock];
  for (int64_t i = 0; i < count; i += kBlock, out += kBlockOfX) {
    const float* from = x + i;
    if (count - i < kBlock) {
      for (int j = 0; j < kBlock; ++j) last[j] = i + j < count ? from[j] : 0.0f;
      from = last;
    }
    float sums[kLanes] = {};
    for (int j = 0; j < 8; ++j) {
      for (int l = 0; l < kLanes; ++l) {
        const float value = from[8 * l + j];
        out[j * kLanes + l] = value;
        sums[l] += value;
      }
    }
    for (int l = 0; l < kLanes; ++l) out[kBlock + l] = sums[l];
  }
  return true;
}

}  // namespace

const Qmv qmv = {
    .prepare = prepare,
    .affine = {nullptr, nullptr, kernel<Affine<2>>, kernel<Affine<3>>, kernel<Affine<4>>,
               kernel<Affine<5>>, kernel<Affine<6>>, nullptr, kernel<Affine<8>>},
    .e2m1 = kernel<E2m1>,
    .e4m3 = kernel<E4m3>,
};

}  // namespace moeblas::cpu::MOEBLAS_TIER
