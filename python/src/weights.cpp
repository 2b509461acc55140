#include "weights.h"

#include <string>

namespace moeblas::python {
namespace {

constexpr const char* kScaleLayouts[] = {"rows", "swizzled_128x4"};

}  // namespace

int32_t scale_layout_of(const Call& call, nb::handle value) {
  return word_of(call.op(), "scale_layout", value, kScaleLayouts);
}

void Scale::bind(Call& call, const char* name, nb::handle value) {
  if (value.is_none()) return;
  if (is_array(value)) {
    array_.bind(call, name, value);
  } else {
    number_ = number_of(call.op(), name, value);
    is_number_ = true;
  }
}

Weights::Weights(Call& call, const WeightsNames& names, const Format& format, nb::handle codes,
                 nb::handle scales, nb::handle biases, nb::handle tensor_scale,
                 nb::handle scale_layout) {
  c_.mode = format.mode;
  c_.bits = format.bits;
  c_.group_size = format.group_size;
  if (scale_layout.is_valid()) c_.scale_layout = scale_layout_of(call, scale_layout);
  bind(call, names, codes, scales, biases, tensor_scale);
}

Weights::Weights(Call& call, const char* name, nb::handle weights) {
  if (weights.is_none()) {
    present_ = false;
    return;
  }
  const nb::object type = nb::module_::import_("moeblas").attr("Quantized");
  if (!nb::isinstance(weights, type)) {
    // What quantize returns does not say its mode.
    if (!is_array(weights)) {
      fail_type(call.op(), name, weights, "a Quantized(*quantize(...), mode=...) or a dense array");
    }
    c_.mode = MOEBLAS_DENSE;
    codes_.bind(call, name, weights);
    c_.codes = codes_;
    return;
  }
  const Format format(call, weights.attr("mode"), weights.attr("bits"), weights.attr("group_size"));
  c_.mode = format.mode;
  c_.bits = format.bits;
  c_.group_size = format.group_size;
  c_.scale_layout = scale_layout_of(call, weights.attr("scale_layout"));
  const std::string prefix = std::string(name) + ".";
  const std::string scales = prefix + "scales", biases = prefix + "biases",
                    tensor_scale = prefix + "tensor_scale";
  bind(call, {name, scales.c_str(), biases.c_str(), tensor_scale.c_str()}, weights.attr("w_q"),
       weights.attr("scales"), weights.attr("biases"), weights.attr("tensor_scale"));
}

void Weights::bind(Call& call, const WeightsNames& names, nb::handle codes, nb::handle scales,
                   nb::handle biases, nb::handle tensor_scale) {
  codes_.bind(call, names.codes, codes);
  if (c_.mode == MOEBLAS_MXFP8) codes_.accept_as_bytes(kE4M3);
  scales_.bind(call, names.scales, scales);
  if (c_.mode != MOEBLAS_AFFINE) scales_.accept_as_bytes(scale_code(c_.mode));
  biases_.bind(call, names.biases, biases);
  c_.codes = codes_;
  c_.scales = scales_;
  c_.biases = biases_;
  tensor_scale_.bind(call, names.tensor_scale, tensor_scale);
  tensor_scale_.set(c_);
}

}  // namespace moeblas::python
