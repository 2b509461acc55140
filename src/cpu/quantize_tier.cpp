// quantize_avx512, quantize_avx2: quantize and dequantize by the kernels of a tier
// (simd/quantize.cpp, simd/dequantize.cpp), a part of a row at a time. Swizzled scales are put in a
// row for them, and taken from there.
#include "cpu/quantize_tier.h"

#include "cpu/packed_side.h"
#include "cpu/tier.h"

namespace moeblas::cpu {
namespace {

using dispatch::Conversion;
using dispatch::QuantizeProblem;

// Bytes of values from which on what is written leaves the cache again, unread, and is stored
// past it: lines that are only written need not be read first.
constexpr int64_t kPastCache = 16 << 20;

// What was stored past the cache is there for all to see.
void fence() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

int64_t bytes_of(const dispatch::Rows& rows) {
  return rows.count() * rows.cols * static_cast<int64_t>(size_of(rows.dtype));
}

bool aligned(const dispatch::Rows& rows) {
  uint64_t bytes = reinterpret_cast<uintptr_t>(rows.data);
  for (int i = 0; i < rows.lead_stride.ndim(); ++i)
    bytes |= static_cast<uint64_t>(rows.lead_stride[i]) * size_of(rows.dtype);
  return bytes % 64 == 0;
}

bool swizzled(const QuantizeProblem& p) { return p.scale_layout != ScaleLayout::rows; }

// Rows that follow each other without gaps are one.
int64_t rows_in_one(const QuantizeProblem& p) {
  for (const dispatch::Rows* rows :
       {&p.values, &p.packed.codes, &p.packed.scales, &p.packed.biases}) {
    if (rows->data == nullptr || (swizzled(p) && rows == &p.packed.scales)) continue;
    const int last = rows->lead.ndim() - 1;
    if (last < 0 || rows->lead[last] != p.rows_per_matrix || rows->lead_stride[last] != rows->cols)
      return 1;
  }
  return p.rows_per_matrix;
}

Scales stored_as(const QuantSpec& spec, DType dtype) {
  if (spec.mode == Mode::nvfp4) return Scales::e4m3;
  if (spec.mode != Mode::affine) return Scales::e8m0;
  return dtype == DType::f32 ? Scales::f32 : dtype == DType::f16 ? Scales::f16 : Scales::bf16;
}

// Groups of rows without gaps, the first of which is `row`, from group `first` on: f(the place of a
// swizzled scale, how many groups are before it, how many scales follow each other there).
template <class F>
void for_each_swizzled(PackedRow row, int64_t groups_in_row, int64_t first, int64_t count, F&& f) {
  constexpr int64_t kTogether = 4;
  row.swizzled_row += first / groups_in_row;
  for (int64_t i = 0, g = first % groups_in_row; i < count; ++row.swizzled_row, g = 0) {
    while (g < groups_in_row && i < count) {
      const int64_t n = std::min({kTogether - g % kTogether, groups_in_row - g, count - i});
      f(static_cast<uint8_t*>(const_cast<void*>(row.scales)) + row.scale_index(g), i, n);
      g += n;
      i += n;
    }
  }
}

}  // namespace

dispatch::Reason quantize_tier_reject(const QuantizeProblem& p) {
  if (p.values.col_stride != 1) {
    return dispatch::Reason::of("values lie %lld elements apart, it takes rows without gaps",
                                static_cast<long long>(p.values.col_stride));
  }
  if (p.transposed_values) return dispatch::Reason::of("it quantizes along one axis");
  return {};
}

void quantize_tier(const QuantizeProblem& p, const QuantizeKernels& kernels) {
  const bool dequantize = p.conversion == Conversion::dequantize;
  const QuantSpec& spec = *p.spec;
  const auto run = (dequantize ? kernels.dequantize : kernels.quantize)
                       .of[code_index(spec)][element_index(p.values.dtype)];
  const dispatch::Rows& written = dequantize ? p.values : p.packed.codes;
  const bool past_cache = bytes_of(p.values) >= kPastCache && aligned(written);
  const auto element = static_cast<int64_t>(size_of(p.values.dtype));
  const auto scale = static_cast<int64_t>(size_of(p.packed.scales.dtype));
  const Side side{p, p.values, p.packed, p.rows_per_matrix};
  const int64_t together = rows_in_one(p);
  const auto at = [](const void* start, int64_t bytes) {
    return start == nullptr ? nullptr : static_cast<char*>(const_cast<void*>(start)) + bytes;
  };
  const auto convert = [&](int64_t rows, int64_t first, int64_t count) {
    const PackedRow row = side.row(rows * together);
    const int64_t group = first / spec.group_size;
    Groups groups = {.values = at(Side::start(p.values, rows * together), first * element),
                     .codes = const_cast<uint8_t*>(row.codes) + first / 8 * spec.bits,
                     .scales = at(row.scales, group * scale),
                     .biases = at(row.biases, group * scale),
                     .stored_as = stored_as(spec, row.scale_dtype),
                     .tensor_scale = row.tensor_scale,
                     .count = count / spec.group_size,
                     .size = spec.group_size,
                     .past_cache = past_cache,
                     .by_l2 = made_by_intel()};
    if (!swizzled(p)) return run(groups);
    uint8_t in_a_row[kConversionChunk];
    groups.scales = in_a_row;
    for (int64_t i = group; i < group + count / spec.group_size; i += groups.count) {
      groups.count = std::min(kConversionChunk, group + count / spec.group_size - i);
      const auto copy = [&](auto&& f) {
        for_each_swizzled(row, p.values.cols / spec.group_size, i, groups.count, f);
      };
      if (dequantize) {
        copy([&](const uint8_t* from, int64_t to, int64_t n) {
          std::copy_n(from, n, in_a_row + to);
        });
      }
      run(groups);
      if (!dequantize) {
        copy([&](uint8_t* to, int64_t from, int64_t n) { std::copy_n(in_a_row + from, n, to); });
      }
      groups.values = at(groups.values, groups.count * spec.group_size * element);
      groups.codes += groups.count * spec.group_size / 8 * spec.bits;
    }
  };
  for_each_part(p.values.count() / together, p.values.cols * together, convert, [&] {
    if (past_cache) fence();
  });
  if (swizzled(p) && !dequantize) clear_padding(side);
}

}  // namespace moeblas::cpu
