// quantize_avx512, quantize_avx2: quantize and dequantize by the kernels of a tier
// (simd/quantize.cpp), a part of a row at a time.
#include "cpu/quantize_tier.h"

#include "cpu/packed_side.h"

namespace moeblas::cpu {
namespace {

using dispatch::Conversion;
using dispatch::QuantizeProblem;

constexpr int64_t kMostGroups = kConversionChunk / 16;
// Bytes of values from which on they leave the cache again before anybody reads them, and are
// stored past it: lines that are only written need not be read first.
constexpr int64_t kPastCache = 16 << 20;

// What was stored past the cache is there for all to see.
void fence() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

bool aligned(const dispatch::Rows& rows, int64_t element) {
  uint64_t bytes = reinterpret_cast<uintptr_t>(rows.data);
  for (int i = 0; i < rows.lead_stride.ndim(); ++i)
    bytes |= static_cast<uint64_t>(rows.lead_stride[i] * element);
  return bytes % 64 == 0;
}

// A part of a row.
struct Part {
  PackedRow row;
  int64_t first_group;
  Groups groups;
};

void store_all(const void* to, DType dtype, int64_t first, const float* from, int64_t count) {
  store_floats(const_cast<void*>(to), dtype, first, count, from);
}

template <class Format>
void quantize_part(const QuantizeKernels& kernels, int code, DType dtype, const Part& part) {
  Groups g = part.groups;
  const int from = element_index(dtype);
  if constexpr (formats::kIsAffine<Format>) {
    kernels.quantize[code][from](g);
    store_all(part.row.scales, part.row.scale_dtype, part.first_group, g.scales, g.count);
    store_all(part.row.biases, part.row.scale_dtype, part.first_group, g.biases, g.count);
  } else {
    const auto* bytes = static_cast<const uint8_t*>(part.row.scales) + part.first_group;
    g.scale_bytes = const_cast<uint8_t*>(bytes);
    g.enc = 1.0f / part.row.tensor_scale;
    const bool nvfp4 = int(Format::kMode) == MOEBLAS_NVFP4;
    (nvfp4 ? kernels.quantize_nvfp4[from] : kernels.quantize[code][from])(g);
  }
}

// Scales of parts that follow: few lines each, which the machine does not see coming.
void fetch_ahead(const void* scales, DType dtype, const Part& part) {
  constexpr int64_t kAhead = 4;  // parts
  const auto element = static_cast<int64_t>(size_of(dtype));
  const int64_t bytes = part.groups.count * element;
  const char* const at =
      static_cast<const char*>(scales) + part.first_group * element + kAhead * bytes;
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i);
}

template <class Format>
void dequantize_part(const QuantizeKernels& kernels, int code, DType dtype, const Part& part) {
  const Groups& g = part.groups;
  fetch_ahead(part.row.scales, part.row.scale_dtype, part);
  if (part.row.biases != nullptr) fetch_ahead(part.row.biases, part.row.scale_dtype, part);
  if constexpr (formats::kIsAffine<Format>) {
    load_floats(part.row.scales, part.row.scale_dtype, part.first_group, 1, g.count, g.scales);
    load_floats(part.row.biases, part.row.scale_dtype, part.first_group, 1, g.count, g.biases);
  } else {
    const auto* bytes = static_cast<const uint8_t*>(part.row.scales) + part.first_group;
    const auto decode = int(Format::kMode) == MOEBLAS_NVFP4 ? kernels.e4m3 : kernels.e8m0;
    decode(bytes, g.count, part.row.tensor_scale, g.scales);
  }
  kernels.dequantize[code][element_index(dtype)](g);
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
  const int64_t size = p.spec->group_size;
  const DType dtype = p.values.dtype;
  const int code = code_index(*p.spec);
  const auto element = static_cast<int64_t>(size_of(dtype));
  formats::visit_format(p.spec->mode, p.spec->bits, [&]<class Format>() {
    const Side side{p, p.values, p.packed, p.rows_per_matrix};
    const bool past_cache = p.conversion == Conversion::dequantize &&
                            p.values.count() * p.values.cols * element >= kPastCache &&
                            aligned(p.values, element);
    const auto convert = [&](int64_t r, int64_t first, int64_t count) {
      float scales[kMostGroups], biases[kMostGroups];
      Part part{side.row(r), first / size, {}};
      char* values = static_cast<char*>(Side::start(p.values, r)) + first * element;
      part.groups = {.values = values,
                     .codes = const_cast<uint8_t*>(part.row.codes) + first * Format::kBits / 8,
                     .scales = scales,
                     .biases = biases,
                     .count = count / size,
                     .size = size,
                     .past_cache = past_cache};
      if (p.conversion == Conversion::dequantize) {
        dequantize_part<Format>(kernels, code, dtype, part);
      } else {
        quantize_part<Format>(kernels, code, dtype, part);
      }
    };
    for_each_chunk(p.values, convert, [&] {
      if (past_cache) fence();
    });
  });
}

}  // namespace moeblas::cpu
