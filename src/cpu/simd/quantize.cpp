// Quantize for one tier. Codes and what is decided once per group follow the definitions of
// src/formats operation by operation, so that bits are the portable row's.
//
// A batch of groups takes three steps. Their extremes, of 16-bit floats as integers, two to a lane,
// folded so that a lane decides for a group: these and the decisions, long chains of operations,
// are one batch ahead of the rest (quantize_groups.h). Then codes, a byte each: quotients come from
// a group's reciprocal in two parts. Then bytes are packed, which alone depends on the width.
// Codes of 2, 4 and 8 bits from bfloat16 are packed where they are made, and those of mxfp4, nvfp4
// and mxfp8 made as integers (cells.h).
#include "cpu/simd/quantize_groups.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

// ---- All groups, batch by batch

// Of 16-bit floats two vectors are halves of as many words, those of even numbers first.
template <Element kFrom, int kSize>
constexpr bool kPairs = kFrom == Element::bf16 && kSize >= 2 * kLanes;

// Codes of kStep values, which begin with group `at` of the batch.
template <Element kFrom, int kSize, bool kUsual, class Batch>
[[gnu::always_inline]] inline void step_codes(const Batch& batch, const void* from, int64_t at,
                                              uint32_t most, Words* codes) {
  constexpr int kGroups = kStep > kSize ? kStep / kSize : 1, kVectors = 4 / kGroups;
  unroll<kGroups>([&](auto i) __attribute__((always_inline)) {
    const typename Batch::template Group<kUsual> group(batch, at + i.value);
    unroll<kVectors>([&](auto j) __attribute__((always_inline)) {
      constexpr int kAt = i.value * kVectors + j.value;
      if constexpr (kPairs<kFrom, kSize>) {
        // Every word is two values.
        const Words pairs =
            Simd::load_words(static_cast<const uint16_t*>(from) + kAt / 2 * 2 * kLanes);
        const Words one = kAt % 2 == 0 ? Simd::shift_left<16>(pairs)
                                       : Simd::both(pairs, Simd::all_words(0xffff0000));
        codes[kAt] = group.code(Simd::as_floats(one), most);
      } else {
        codes[kAt] = group.code(load_elements<kFrom>(from, kAt * kLanes, kLanes), most);
      }
    });
  });
}

// The same as bytes.
template <Element kFrom, int kSize, bool kUsual, class Batch>
[[gnu::always_inline]] inline void encode_step(const Batch& batch, const void* from, int64_t at,
                                               uint32_t most, uint8_t* bytes) {
  Words codes[4];
  step_codes<kFrom, kSize, kUsual>(batch, from, at, most, codes);
  if constexpr (kPairs<kFrom, kSize>) {
    Simd::store_bytes_of_pairs(codes, bytes);
  } else {
    Simd::store_bytes(codes, bytes);
  }
}

// A line of values is asked for beyond what the next fit reads, and far enough to be there in time.
template <int kElement>
[[gnu::always_inline]] inline void fetch_ahead(const uint8_t* from, int bytes, bool by_l2) {
  constexpr int64_t kAhead = 2 * kMostValues * kElement + 8192;
  for (int byte = 0; byte < bytes; byte += 64) {
    if (by_l2) {
      __builtin_prefetch(from + kAhead + byte, 0, 2);
    } else {
      __builtin_prefetch(from + kAhead + byte, 0, 0);
    }
  }
}

template <Element kFrom, int kSize, bool kUsual, class Batch>
void encode(const Batch& batch, const uint8_t* from, int64_t values, uint32_t most, bool by_l2,
            uint8_t* bytes) {
  constexpr int kElement = kFrom == Element::f32 ? 4 : 2;
  int64_t i = 0;
  for (; i + kStep <= values; i += kStep) {
    fetch_ahead<kElement>(from + i * kElement, kStep * kElement, by_l2);
    encode_step<kFrom, kSize, kUsual>(batch, from + i * kElement, i / kSize, most, bytes + i);
  }
  if (i < values) {
    alignas(64) uint8_t rest[kStep * kElement] = {};
    __builtin_memcpy(rest, from + i * kElement, static_cast<uint64_t>((values - i) * kElement));
    encode_step<kFrom, kSize, kUsual>(batch, rest, i / kSize, most, bytes + i);
  }
}

// Packs bytes, whose number is made up to whole steps.
using Pack = void (*)(const uint8_t* bytes, int64_t count, uint8_t* to);
template <int kBits>
void pack(const uint8_t* bytes, int64_t count, uint8_t* to) {
  for (int64_t i = 0; i < count; i += kStep) Simd::pack_bytes<kBits>(bytes + i, to + i / 8 * kBits);
}

void store_codes(const uint8_t* packed, int64_t bytes, uint8_t* to, bool past_cache) {
  constexpr int kVector = 4 * kLanes;
  int64_t i = 0;
  for (; i + kVector <= bytes; i += kVector) {
    const Words v = Simd::load_words(packed + i);
    if (past_cache) {
      Simd::store_past_cache(to + i, v);
    } else {
      Simd::store_words(to + i, v);
    }
  }
  __builtin_memcpy(to + i, packed + i, static_cast<uint64_t>(bytes - i));
}

// Of codes of 2, 4 and 8 bits of bfloat16 a line is made in registers: line(from, i) are those of
// the values from value i of a batch on.
template <int kBits, class Line>
[[gnu::always_inline]] inline void encode_lines(const uint8_t* from, int64_t values,
                                                const Groups& g, uint8_t* to, Line&& line) {
  constexpr int kLine = 32 * kLanes / kBits;  // values
  int64_t i = 0;
  for (; i + kLine <= values; i += kLine) {
    fetch_ahead<2>(from + i * 2, kLine * 2, g.by_l2);
    const Words packed = line(from + i * 2, i);
    if (g.past_cache) {
      Simd::store_past_cache(to + i / 8 * kBits, packed);
    } else {
      Simd::store_words(to + i / 8 * kBits, packed);
    }
  }
  if (i < values) {
    alignas(64) uint8_t rest[kLine * 2] = {}, packed[kLine / 8 * kBits];
    __builtin_memcpy(rest, from + i * 2, static_cast<uint64_t>((values - i) * 2));
    Simd::store_words(packed, line(rest, i));
    __builtin_memcpy(to + i / 8 * kBits, packed, static_cast<uint64_t>((values - i) / 8 * kBits));
  }
}

// H is Halves.
template <int kBits, int kSize, class H, class Batch>
void encode_bytes(const Batch& batch, const uint8_t* from, int64_t values, const Groups& g,
                  uint8_t* to) {
  encode_lines<kBits>(
      from, values, g, to, [&](const uint8_t* at, int64_t i) __attribute__((always_inline)) {
        return H::template pack_line<kBits, kPairs<Element::bf16, kSize>>(
            [&](auto step, Words* codes) __attribute__((always_inline)) {
              constexpr int kFirst = step.value * kStep;
              step_codes<Element::bf16, kSize, true>(batch, at + kFirst * 2, (i + kFirst) / kSize,
                                                     (1u << kBits) - 1, codes);
            });
      });
}

template <Element kFrom, int kSize, class Batch>
void quantize(const Groups& g, int bits, Pack pack) {
  constexpr int kElement = kFrom == Element::f32 ? 4 : 2;
  constexpr int64_t kGroups = kMostValues / kSize < kMostGroups ? kMostValues / kSize : kMostGroups;
  static_assert(kGroups % kLanes == 0 && kGroups * kSize % kStep == 0);
  const uint32_t most = (1u << bits) - 1;
  const auto* const values = static_cast<const uint8_t*>(g.values);
  const auto end = [&](int64_t first) {
    return first + kGroups < g.count ? first + kGroups : g.count;
  };
  Batch batches[2];
  alignas(64) uint8_t bytes[kMostValues], packed[kMostValues + 64];
  batches[0].fit(g, bits, 0, end(0));
  for (int64_t first = 0, i = 0; first < g.count; first += kGroups, ++i) {
    const int64_t next = end(first), count = (next - first) * kSize;
    if (next < g.count) batches[(i + 1) % 2].fit(g, bits, next, end(next));
    const Batch& batch = batches[i % 2];
    const uint8_t* const from = values + first * kSize * kElement;
    if constexpr (kHasHalves && kFrom == Element::bf16 && Batch::kLines) {
      if (batch.usual && (bits & (bits - 1)) == 0) {
        uint8_t* const to = g.codes + first * kSize / 8 * bits;
        if (bits == 2) encode_bytes<2, kSize, Halves>(batch, from, count, g, to);
        if (bits == 4) encode_bytes<4, kSize, Halves>(batch, from, count, g, to);
        if (bits == 8) encode_bytes<8, kSize, Halves>(batch, from, count, g, to);
        continue;
      }
    }
    if (batch.usual) {
      encode<kFrom, kSize, true>(batch, from, count, most, g.by_l2, bytes);
    } else {
      encode<kFrom, kSize, false>(batch, from, count, most, g.by_l2, bytes);
    }
    pack(bytes, count, packed);
    store_codes(packed, count / 8 * bits, g.codes + first * kSize / 8 * bits, g.past_cache);
  }
}

#if defined(__AVX512BW__)
// ---- mxfp4, nvfp4 and mxfp8 from bfloat16, see cells.h

template <CellKind kKind>
void encode_cells(const CellBatch<kKind>& batch, const CellTable* tables, const uint8_t* from,
                  int64_t values, const Groups& g, uint8_t* to) {
  constexpr int kVector = 2 * kLanes, kBits = kKind == CellKind::mxfp8 ? 8 : 4;
  encode_lines<kBits>(
      from, values, g, to, [&](const uint8_t* at, int64_t i) __attribute__((always_inline)) {
        Words codes[16 / kBits];
        unroll<16 / kBits>([&](auto v) __attribute__((always_inline)) {
          codes[v.value] = cell_codes<kKind>(batch.groups, tables, at + v.value * kVector * 2,
                                             i / kVector + v.value);
        });
        return Halves::pack_halves(codes);
      });
}

template <CellKind kKind>
void quantize_by_cells(const Groups& g, const StepCells* cells) {
  using Batch = CellBatch<kKind>;
  constexpr bool kPowers = kKind != CellKind::nvfp4, kBytes = kKind == CellKind::mxfp8;
  constexpr int kBits = kBytes ? 8 : 4;
  constexpr Codes kCodes = kBytes ? Codes::e4m3 : Codes::e2m1;
  constexpr int64_t kGroups = Batch::kGroups, kSize = Batch::kSize;
  alignas(64) static constexpr PowerCells kOne =
      kBytes ? PowerCells(kE4m3Middles) : PowerCells(kMiddles);
  const CellTable* const tables = kPowers ? &kOne.entries : cells->entries;
  const auto end = [&](int64_t first) {
    return first + kGroups < g.count ? first + kGroups : g.count;
  };
  Batch batches[2];
  batches[0].fit(g, cells, 0, end(0));
  for (int64_t first = 0, i = 0; first < g.count; first += kGroups, ++i) {
    const int64_t next = end(first);
    if (next < g.count) batches[(i + 1) % 2].fit(g, cells, next, end(next));
    const auto* const from = static_cast<const uint8_t*>(g.values) + first * kSize * 2;
    uint8_t* const to = g.codes + first * kSize / 8 * kBits;
    if (batches[i % 2].usual) {
      encode_cells<kKind>(batches[i % 2], tables, from, (next - first) * kSize, g, to);
    } else {
      Groups some = g;
      some.values = const_cast<uint8_t*>(from);
      some.codes = to;
      some.scales = static_cast<uint8_t*>(g.scales) + first;
      some.count = next - first;
      quantize<Element::bf16, kSize, BlockBatch<kCodes, kPowers, Element::bf16>>(some, kBits,
                                                                                 pack<kBits>);
    }
  }
}

// Below these making tables takes longer than they save, which was measured; and beyond these
// products of numbers as they come are none.
constexpr int64_t kLeastForCells = 128;
constexpr float kLeastEnc = 0x1p-64f, kLargestEnc = 0x1p64f;
#endif

template <Element kFrom>
void quantize_affine(const Groups& g, int bits, Pack pack) {
  with_size(g.size, [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    quantize<kFrom, kSize, AffineBatch<kFrom, kSize>>(g, bits, pack);
  });
}

struct ToCodes {
  template <Codes kCodes, Element kFrom>
  static void run(const Groups& g) {
    constexpr int kBits = bits_of(kCodes);
#if defined(__AVX512BW__)
    if constexpr (kCodes == Codes::e2m1 && kFrom == Element::bf16) {
      if (g.stored_as == Scales::e8m0) return quantize_by_cells<CellKind::mxfp4>(g, nullptr);
      const float enc = 1.0f / g.tensor_scale;
      if (g.count >= kLeastForCells && enc >= kLeastEnc && enc <= kLargestEnc) {
        const StepCells cells(enc);
        return quantize_by_cells<CellKind::nvfp4>(g, &cells);
      }
    }
    if constexpr (kCodes == Codes::e4m3 && kFrom == Element::bf16)
      return quantize_by_cells<CellKind::mxfp8>(g, nullptr);
#endif
    if constexpr (is_affine(kCodes)) {
      quantize_affine<kFrom>(g, kBits, pack<kBits>);
    } else if (kCodes == Codes::e4m3 || g.stored_as == Scales::e8m0) {
      quantize<kFrom, 32, BlockBatch<kCodes, true, kFrom>>(g, kBits, pack<kBits>);
    } else if constexpr (kCodes == Codes::e2m1) {
      quantize<kFrom, 16, BlockBatch<kCodes, false, kFrom>>(g, kBits, pack<kBits>);
    }
  }
};

}  // namespace

extern const Conversions dequantize_conversions;
namespace {
constinit const Conversions kQuantize = conversions<ToCodes>();
}
constinit const QuantizeKernels quantize_kernels = {kQuantize, dequantize_conversions};

}  // namespace moeblas::cpu::MOEBLAS_TIER
