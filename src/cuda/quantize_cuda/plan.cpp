#include "cuda/quantize_cuda/plan.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "cuda/quantize_cuda/params.h"
#include "cuda/quantize_cuda/tile_order.h"
#include "simt/plan_rows.h"
#include "simt/quantize.h"

namespace moeblas::cuda {
namespace {

using dispatch::Conversion;
using dispatch::QuantizeProblem;
using dispatch::Reason;
using dispatch::Rows;
using simt::PackedSide;

// Instances by format, then f32, f16, bf16.
struct Names {
  const char* affine[9][3];  // by bits
  const char* block[3][3];   // by mode, from mxfp4 on

  const char* of(const QuantSpec& spec, DType dtype) const {
    const auto type = static_cast<size_t>(dtype);
    return spec.mode == Mode::affine
               ? affine[spec.bits][type]
               : block[static_cast<int>(spec.mode) - static_cast<int>(Mode::mxfp4)][type];
  }
};
#define MB_NAMES_OF(family, format) \
  {family "_" format "_f32", family "_" format "_f16", family "_" format "_bf16"}
#define MB_BLOCK_NAMES(family) \
  {MB_NAMES_OF(family, "mxfp4"), MB_NAMES_OF(family, "mxfp8"), MB_NAMES_OF(family, "nvfp4")}
#define MB_NAMES(family)             \
  {{{},                              \
    {},                              \
    MB_NAMES_OF(family, "affine2"),  \
    MB_NAMES_OF(family, "affine3"),  \
    MB_NAMES_OF(family, "affine4"),  \
    MB_NAMES_OF(family, "affine5"),  \
    MB_NAMES_OF(family, "affine6"),  \
    {},                              \
    MB_NAMES_OF(family, "affine8")}, \
   MB_BLOCK_NAMES(family)}
constexpr Names kQuantizeNames = MB_NAMES("quantize_cuda");
#define MB_NAMES_ALSO(format, what) \
  {nullptr, "quantize_cuda_" format "_" what "_f16", "quantize_cuda_" format "_" what "_bf16"}
constexpr Names kSixteensNames = {{{},
                                   {},
                                   MB_NAMES_ALSO("affine2", "sixteens"),
                                   MB_NAMES_ALSO("affine3", "sixteens"),
                                   MB_NAMES_ALSO("affine4", "sixteens"),
                                   MB_NAMES_ALSO("affine5", "sixteens"),
                                   MB_NAMES_ALSO("affine6", "sixteens"),
                                   {},
                                   MB_NAMES_ALSO("affine8", "sixteens")},
                                  {}};
// Formats that take less time there with one block a lane.
constexpr Names kApartNames = {
    {{},
     {},
     {},
     {},
     {},
     MB_NAMES_ALSO("affine5", "apart"),
     MB_NAMES_ALSO("affine6", "apart"),
     {},
     {}},
    {MB_NAMES_ALSO("mxfp4", "apart"), MB_NAMES_ALSO("mxfp8", "apart"), {}}};
#define MB_NAMES_SWIZZLED(format)                                                    \
  {"quantize_cuda_" format "_swizzled_f32", "quantize_cuda_" format "_swizzled_f16", \
   "quantize_cuda_" format "_swizzled_bf16"}
constexpr Names kSwizzledNames = {
    {}, {MB_NAMES_SWIZZLED("mxfp4"), MB_NAMES_SWIZZLED("mxfp8"), MB_NAMES_SWIZZLED("nvfp4")}};
constexpr Names kDequantizeNames = MB_NAMES("dequantize_cuda");
constexpr Names kDualNames = MB_NAMES("quantize_dual_cuda");
constexpr Names kRequantizeNames = {{}, MB_BLOCK_NAMES("requantize")};
constexpr const char* kToFp8Names[] = {"to_fp8_cuda_f32", "to_fp8_cuda_f16", "to_fp8_cuda_bf16"};
constexpr const char* kFromFp8Names[] = {"from_fp8_cuda_f32", "from_fp8_cuda_f16",
                                         "from_fp8_cuda_bf16"};

constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();

// The largest power of two up to 16 that divides where every row begins, in bytes.
uint32_t alignment(const Rows& rows) {
  auto bits = reinterpret_cast<uintptr_t>(rows.data) | 16u;
  for (int i = 0; i < rows.lead.ndim(); ++i) {
    if (rows.lead[i] > 1) bits |= static_cast<uintptr_t>(rows.lead_stride[i]) * size_of(rows.dtype);
  }
  return static_cast<uint32_t>(bits & (~bits + 1));
}

Reason why_no_values(const Rows& values) {
  if (values.cols % kLaneValues != 0) {
    return Reason::of("rows of %lld values, not a multiple of %u",
                      static_cast<long long>(values.cols), kLaneValues);
  }
  if (values.col_stride != 1) return Reason::of("values have gaps between their columns");
  if (alignment(values) < 16) return Reason::of("rows of values are not aligned to 16 bytes");
  if (values.count() * (values.cols / kLaneValues) > kMostBlocks) {
    return Reason::of("more than 2^31 - 1 blocks of %u values", kLaneValues);
  }
  return {};
}

Reason why_no_codes(const Rows& codes) {
  if (codes.col_stride != 1 || alignment(codes) < 4) {
    return Reason::of("rows of codes are not aligned to 4 bytes");
  }
  return {};
}

Reason why_not(const PackedSide& side) {
  if (const Reason reason = why_no_values(side.values)) return reason;
  return why_no_codes(side.packed.codes);
}

// For lanes that take `of_lane` blocks each.
ConversionParams params_of(const PackedSide& side, uint32_t of_lane = 1) {
  ConversionParams q{};
  q.packed = simt::packed_params(side);
  q.values = static_cast<uint8_t*>(side.values.data);
  q.codes = static_cast<uint8_t*>(side.packed.codes.data);
  q.scales = static_cast<uint8_t*>(side.packed.scales.data);
  q.biases = static_cast<uint8_t*>(side.packed.biases.data);
  q.tensor_scale = side.p.tensor_scale.data;
  q.row_blocks = static_cast<uint32_t>(side.values.cols / kLaneValues);
  const auto rows = static_cast<uint32_t>(side.values.count());
  const auto lanes = [of_lane](uint32_t blocks) { return (blocks + of_lane - 1) / of_lane; };
  q.row_lanes = lanes(q.row_blocks);
  q.lanes = rows * q.row_lanes;
  q.code_alignment = alignment(side.packed.codes);
  const simt::PackedParams& packed = q.packed;
  if (packed.padded_rows != 0) {
    q.matrices = static_cast<uint32_t>(packed.rows / packed.rows_per_matrix);
  } else if (simt::without_gaps(side.values) && simt::without_gaps(side.packed.codes) &&
             simt::without_gaps(side.packed.scales) &&
             (side.packed.biases.data == nullptr || simt::without_gaps(side.packed.biases)) &&
             (side.p.tensor_scale.data == nullptr || side.p.tensor_scale.stride == 0)) {
    q.row_blocks *= rows;  // as one row
    q.lanes = q.row_lanes = lanes(q.row_blocks);
  }
  return q;
}

uint32_t groups_for(uint64_t threads) {
  return static_cast<uint32_t>((threads + kConversionThreads - 1) / kConversionThreads);
}

void convert(const ConversionParams& q, const PackedSide& side, const Names& names, Queue& queue) {
  queue.run(names.of(*side.p.spec, side.values.dtype), groups_for(q.lanes), kConversionThreads, 0,
            q);
}

// Bytes from a row of a matrix to its next: leading dimensions that are collapsed end in the
// matrix's rows.
int64_t row_stride(const simt::StridedRows& rows, size_t element) {
  return rows.ndim == 0 ? 0 : rows.stride[rows.ndim - 1] * static_cast<int64_t>(element);
}

// Warps of quantize_swizzled, each of eight rows by four lanes.
void quantize_swizzled(const PackedSide& side, Queue& queue) {
  const size_t bytes = size_of(side.values.dtype);
  SwizzledParams q{};
  q.by = params_of(side, quantize_blocks(Quantized::most, bytes));
  q.matrix_tiles = static_cast<uint32_t>(q.by.packed.padded_rows / 128);
  q.by.row_lanes = (q.by.row_lanes + 3) / 4;
  const uint64_t warps = uint64_t{q.by.matrices} * q.matrix_tiles * 16 * q.by.row_lanes;
  const int64_t values = row_stride(q.by.packed.values, bytes);
  const int64_t codes = row_stride(q.by.packed.codes, 1);
  q.by.lanes = static_cast<uint32_t>(warps);
  q.beside_inverse = ScaleTileOrder::inverse(q.by.row_lanes, warps);
  q.value_stride = static_cast<int32_t>(values);
  q.code_stride = static_cast<int32_t>(codes);
  if (warps > kMostBlocks || values != q.value_stride || codes != q.code_stride) {
    return simt::simt_quantize_side(side, queue);
  }
  queue.run(kSwizzledNames.of(*side.p.spec, side.values.dtype), groups_for(warps * 32),
            kConversionThreads, 0, q);
}

// The fast way or the portable one.
void quantize_side(const PackedSide& side, Queue& queue) {
  if (why_not(side)) return simt::simt_quantize_side(side, queue);
  if (side.p.scale_layout != ScaleLayout::rows) return quantize_swizzled(side, queue);
  const QuantSpec& spec = *side.p.spec;
  const size_t bytes = size_of(side.values.dtype);
  if (bytes == 2 && spec.mode == Mode::affine && spec.group_size == 16) {
    return convert(params_of(side), side, kSixteensNames, queue);
  }
  const ConversionParams q = params_of(side, quantize_blocks(Quantized::most, bytes));
  const bool whole_warps = q.row_lanes == q.lanes || q.row_blocks % 64 == 0;
  if (bytes == 2 && !whole_warps && kApartNames.of(spec, side.values.dtype) != nullptr) {
    return convert(params_of(side), side, kApartNames, queue);
  }
  convert(q, side, kQuantizeNames, queue);
}

// Both directions of quantize_dual from one read, where rows lie as values do.
bool is_dual(const QuantizeProblem& p) {
  return p.transposed_values && p.rows_per_matrix % kLaneValues == 0 &&
         !why_no_codes(p.transposed.codes);
}

void quantize_dual(const QuantizeProblem& p, Queue& queue) {
  DualParams q{};
  q.by_rows = params_of(simt::rows_side(p));
  q.by_columns = params_of(simt::columns_side(p));
  q.rows = static_cast<uint32_t>(p.rows_per_matrix);
  q.columns = static_cast<uint32_t>(p.values.cols);
  q.value_stride = row_stride(q.by_rows.packed.values, size_of(p.values.dtype));
  const auto tiles = [](uint32_t values) { return (values + kDualTile - 1) / kDualTile; };
  const auto matrices = static_cast<uint32_t>(p.values.count() / p.rows_per_matrix);
  queue.run(kDualNames.of(*p.spec, p.values.dtype), matrices * tiles(q.rows) * tiles(q.columns),
            kConversionThreads,
            kDualTile * kDualTile * static_cast<uint32_t>(size_of(p.values.dtype)), q);
}

}  // namespace

Reason quantize_cuda_reject(const QuantizeProblem& p) { return why_not(simt::rows_side(p)); }

void quantize_cuda(const QuantizeProblem& p, dispatch::Workspace) {
  if (p.empty()) return;
  Queue queue(p.op, p.device.id, p.options.stream);
  if (p.conversion == Conversion::dequantize) return expand(p, queue);
  if (is_dual(p)) return quantize_dual(p, queue);
  quantize_side(simt::rows_side(p), queue);
  if (p.transposed_values) quantize_side(simt::columns_side(p), queue);
}

void expand(const QuantizeProblem& p, Queue& queue) {
  const PackedSide side = simt::rows_side(p);
  convert(params_of(side), side, kDequantizeNames, queue);
}

void requantize(const QuantizeProblem& p, void* out, Queue& queue) {
  RequantizeParams q{params_of(simt::rows_side(p)), static_cast<uint8_t*>(out)};
  queue.run(kRequantizeNames.of(*p.spec, p.values.dtype), groups_for(q.from.lanes),
            kConversionThreads, 0, q);
}

Reason fp8_cuda_reject(const QuantizeProblem& p) {
  if (!simt::without_gaps(p.values) || !simt::without_gaps(p.packed.codes)) {
    return Reason::of("values or codes have gaps");
  }
  if (reinterpret_cast<uintptr_t>(p.values.data) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(p.packed.codes.data) % 8 != 0) {
    return Reason::of("values do not begin at a multiple of 16 bytes, or codes of 8");
  }
  return {};
}

void fp8_cuda(const QuantizeProblem& p, dispatch::Workspace) {
  if (p.empty()) return;
  Fp8CudaParams q{};
  q.values = static_cast<uint8_t*>(p.values.data);
  q.codes = static_cast<uint8_t*>(p.packed.codes.data);
  q.count = static_cast<uint64_t>(p.values.count() * p.values.cols);
  const auto type = static_cast<size_t>(p.values.dtype);
  constexpr uint64_t kOfThread = 32;  // elements
  Queue queue(p.op, p.device.id, p.options.stream);
  queue.run(p.conversion == Conversion::to_fp8 ? kToFp8Names[type] : kFromFp8Names[type],
            std::max(1u, groups_for(q.count / kOfThread + 1)), kConversionThreads, 0, q);
}

}  // namespace moeblas::cuda
