// quantize, quantize_dual, dequantize, to_fp8, from_fp8.
#include "moeblas/tensor.h"
#include "operations.h"
#include "weights.h"

namespace moeblas::python {
namespace {

// What quantize and quantize_dual are asked for.
struct Request {
  Request(const Call& call, nb::handle mode, nb::handle bits, nb::handle group_size,
          nb::handle scale_dtype, nb::handle scale_layout)
      : format(call, mode, bits, group_size),
        dtype(dtype_of(call.op(), "scale_dtype", scale_dtype)),
        layout(scale_layout_of(call, scale_layout)) {}

  const moeblas_dtype* scale_dtype() const { return dtype ? &*dtype : nullptr; }
  size_t arrays() const { return format.mode == MOEBLAS_AFFINE ? 3 : 2; }

  Format format;
  std::optional<moeblas_dtype> dtype;
  int32_t layout;
};

// The arrays that one of them writes: codes, scales and, where the format has them, biases.
class Written {
 public:
  Written(Call& call, const Request& request, const moeblas_spec* spec, nb::handle out)
      : parts_(call, out, request.arrays()),
        codes_(call, "w_q", parts_[0], spec[0]),
        scales_(call, "scales", parts_[1], spec[1]) {
    if (request.arrays() == 3) biases_.emplace(call, "biases", parts_[2], spec[2]);
    if (request.format.mode != MOEBLAS_AFFINE) {
      scales_.accept_as_bytes(scale_code(request.format.mode));
    }
    c_.mode = request.format.mode;
    c_.bits = request.format.bits;
    c_.group_size = request.format.group_size;
    c_.scale_layout = request.layout;
    c_.codes = codes_;
    c_.scales = scales_;
    if (biases_) c_.biases = *biases_;
  }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;

  void set(const Scale& tensor_scale) { tensor_scale.set(c_); }
  operator const moeblas_quantized*() const { return &c_; }
  nb::object take() {
    if (!biases_) return nb::make_tuple(codes_.take(), scales_.take());
    return nb::make_tuple(codes_.take(), scales_.take(), biases_->take());
  }

 private:
  Parts parts_;
  Result codes_, scales_;
  std::optional<Result> biases_;
  moeblas_quantized c_ = MOEBLAS_QUANTIZED_INIT;
};

nb::object quantize(nb::handle w_, nb::handle group_size, nb::handle bits, nb::handle mode,
                    nb::handle tensor_scale, nb::handle scale_dtype, nb::handle scale_layout,
                    nb::handle out_, nb::handle options) {
  Call call("quantize", options);
  const Array w(call, "w", w_);
  const Request request(call, mode, bits, group_size, scale_dtype, scale_layout);
  const Format& f = request.format;
  const Scale scale(call, "tensor_scale", tensor_scale);
  moeblas_spec spec[3]{};
  if (out_.is_none()) {
    check(moeblas_infer_quantize(w, f.mode, f.bits, f.group_size, request.scale_dtype(),
                                 request.layout, spec));
  }
  Written out(call, request, spec, out_);
  out.set(scale);
  call.run([&] { return moeblas_quantize(w, out, call.options()); });
  return out.take();
}

nb::object quantize_dual(nb::handle w_, nb::handle group_size, nb::handle bits, nb::handle mode,
                         nb::handle tensor_scale, nb::handle scale_dtype, nb::handle scale_layout,
                         nb::handle out, nb::handle options) {
  Call call("quantize_dual", options);
  const Array w(call, "w", w_);
  const Request request(call, mode, bits, group_size, scale_dtype, scale_layout);
  const Format& f = request.format;
  const Scale scale(call, "tensor_scale", tensor_scale);
  const Parts parts(call, out, 2);
  moeblas_spec spec[6]{};
  if (out.is_none()) {
    check(moeblas_infer_quantize_dual(w, f.mode, f.bits, f.group_size, request.scale_dtype(),
                                      request.layout, spec));
  }
  Written rows(call, request, spec, parts[0]), columns(call, request, spec + 3, parts[1]);
  rows.set(scale);
  call.run([&] { return moeblas_quantize_dual(w, rows, columns, call.options()); });
  return nb::make_tuple(rows.take(), columns.take());
}

nb::object dequantize(nb::handle w_q, nb::handle scales, nb::handle biases, nb::handle group_size,
                      nb::handle bits, nb::handle mode, nb::handle tensor_scale,
                      nb::handle scale_layout, nb::handle dtype_, nb::handle out_,
                      nb::handle options) {
  Call call("dequantize", options);
  const Weights w(call, {"w_q"}, Format(call, mode, bits, group_size), w_q, scales, biases,
                  tensor_scale, scale_layout);
  const std::optional<moeblas_dtype> dtype = dtype_of(call.op(), "dtype", dtype_);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_dequantize(w, dtype ? &*dtype : nullptr, spec);
             }));
  call.run([&] { return moeblas_dequantize(w, out, call.options()); });
  return out.take();
}

nb::object to_fp8(nb::handle x_, nb::handle out_, nb::handle options) {
  Call call("to_fp8", options);
  const Array x(call, "x", x_);
  Result out(call, "out", out_,
             infer_unless(out_, [&](moeblas_spec* spec) { return moeblas_infer_to_fp8(x, spec); }));
  out.accept_as_bytes(kE4M3);
  call.run([&] { return moeblas_to_fp8(x, out, call.options()); });
  return out.take();
}

nb::object from_fp8(nb::handle x_, nb::handle dtype_, nb::handle out_, nb::handle options) {
  Call call("from_fp8", options);
  Array x(call, "x", x_);
  x.accept_as_bytes(kE4M3);
  const std::optional<moeblas_dtype> dtype = dtype_of(call.op(), "dtype", dtype_);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_from_fp8(x, dtype.value_or(to_dlpack(DType::bf16)), spec);
             }));
  call.run([&] { return moeblas_from_fp8(x, out, call.options()); });
  return out.take();
}

}  // namespace

void bind_quantization(nb::module_& m) {
  define(m, "quantize", &quantize);
  define(m, "quantize_dual", &quantize_dual);
  define(m, "dequantize", &dequantize);
  define(m, "to_fp8", &to_fp8);
  define(m, "from_fp8", &from_fp8);
}

}  // namespace moeblas::python
