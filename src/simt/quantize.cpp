#include "simt/quantize.h"

#include <cstdlib>

#include "simt/plan_rows.h"
#include "simt/quantize_params.h"

namespace moeblas::simt {
namespace {

using dispatch::Conversion;
using dispatch::QuantizeProblem;

// The kernels of a family, one per format.
struct Family {
  const char* affine[9];  // by bits
  const char* block[3];   // by mode, from mxfp4 on

  const char* of(const QuantSpec& spec) const {
    return spec.mode == Mode::affine ? affine[spec.bits]
                                     : block[static_cast<int>(spec.mode) - int(Mode::mxfp4)];
  }
};
constexpr Family kQuantize = {
    {nullptr, nullptr, "quantize_simt_affine2", "quantize_simt_affine3", "quantize_simt_affine4",
     "quantize_simt_affine5", "quantize_simt_affine6", nullptr, "quantize_simt_affine8"},
    {"quantize_simt_mxfp4", "quantize_simt_mxfp8", "quantize_simt_nvfp4"}};
constexpr Family kDequantize = {
    {nullptr, nullptr, "dequantize_simt_affine2", "dequantize_simt_affine3",
     "dequantize_simt_affine4", "dequantize_simt_affine5", "dequantize_simt_affine6", nullptr,
     "dequantize_simt_affine8"},
    {"dequantize_simt_mxfp4", "dequantize_simt_mxfp8", "dequantize_simt_nvfp4"}};

// Whether the rows of a view are closer neighbours in memory than their elements.
bool transposed(const dispatch::Rows& values) {
  if (values.lead.ndim() == 0) return false;
  const int last = values.lead.ndim() - 1;
  return values.lead[last] > 1 && std::abs(values.lead_stride[last]) < std::abs(values.col_stride);
}

void convert(const PackedSide& side, const Family& family, Queue& queue) {
  const PackedParams params = packed_params(side);
  Step step;
  step.kernel = family.of(*side.p.spec);
  step.groups[0] = groups_for(static_cast<uint64_t>(params.rows * params.groups) * params.lanes);
  step.threads[0] = kThreads;
  step.point(side.values.data);
  step.point(side.packed.codes.data);
  step.point(side.packed.scales.data);
  step.point(side.packed.biases.data);
  step.point(side.p.tensor_scale.data);
  step.set(params);
  queue.run(step);
}

dispatch::Rows as_one_row(dispatch::Rows rows) {
  rows.cols *= rows.count();
  rows.lead = rows.lead_stride = Shape();
  return rows;
}

}  // namespace

PackedParams packed_params(const PackedSide& side) {
  const QuantSpec& spec = *side.p.spec;
  PackedParams params{};
  params.values = strided_rows(side.values, kFloatUnit);
  params.codes = strided_rows(side.packed.codes, code_unit(spec.bits));
  params.scales = strided_rows(side.packed.scales, 1);
  if (side.packed.biases.data != nullptr) params.biases = strided_rows(side.packed.biases, 1);
  params.rows = side.values.count();
  params.groups = side.values.cols / spec.group_size;
  params.rows_per_matrix = side.rows_per_matrix;
  if (side.p.scale_layout != ScaleLayout::rows) {
    params.padded_rows = side.packed.scales.lead.back();
    params.padded_groups = side.packed.scales.cols;
  }
  params.tensor_scale_stride = side.p.tensor_scale.stride;
  params.host_tensor_scale = side.p.tensor_scale.host;
  params.has_tensor_scale = side.p.tensor_scale.data != nullptr ? 1 : 0;
  params.group_size = static_cast<uint32_t>(spec.group_size);
  params.lanes = transposed(side.values) ? 1 : params.group_size / 8;
  params.octets = params.group_size / 8 / params.lanes;
  return params;
}

PackedSide rows_side(const QuantizeProblem& p) {
  return {p, p.values, p.packed, p.rows_per_matrix};
}

PackedSide columns_side(const QuantizeProblem& p) {
  return {p, *p.transposed_values, p.transposed, p.values.cols};
}

void simt_quantize_side(const PackedSide& side, Queue& queue) {
  convert(side, kQuantize, queue);
  const PackedParams params = packed_params(side);
  const bool padded = params.padded_rows != 0 && (params.padded_rows != params.rows_per_matrix ||
                                                  params.padded_groups != params.groups);
  if (!padded) return;
  Step step;
  step.kernel = "clear_scales_simt";
  step.groups[0] = groups_for(static_cast<uint64_t>(params.rows / params.rows_per_matrix) *
                              static_cast<uint64_t>(params.padded_rows * params.padded_groups));
  step.threads[0] = kThreads;
  step.point(side.packed.scales.data);
  step.set(params);
  queue.run(step);
}

void simt_quantize(const QuantizeProblem& p, dispatch::Workspace, Queue& queue) {
  if (p.conversion == Conversion::dequantize) return convert(rows_side(p), kDequantize, queue);
  simt_quantize_side(rows_side(p), queue);
  if (p.transposed_values) simt_quantize_side(columns_side(p), queue);
}

void simt_fp8(const QuantizeProblem& p, dispatch::Workspace, Queue& queue) {
  dispatch::Rows values = p.values, codes = p.packed.codes;
  if (without_gaps(values) && without_gaps(codes)) {
    values = as_one_row(values);
    codes = as_one_row(codes);
  }
  Fp8Params params{};
  params.values = strided_rows(values, kFloatUnit);
  params.codes = strided_rows(codes, sizeof(uint32_t));
  params.rows = values.count();
  params.cols = values.cols;
  Step step;
  step.kernel = p.conversion == Conversion::to_fp8 ? "to_fp8_simt" : "from_fp8_simt";
  step.groups[0] = groups_for(static_cast<uint64_t>(params.rows * ((params.cols + 7) / 8)));
  step.threads[0] = kThreads;
  step.point(values.data);
  step.point(codes.data);
  step.set(params);
  queue.run(step);
}

}  // namespace moeblas::simt
