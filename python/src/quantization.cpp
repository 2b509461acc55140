// quantize, quantize_dual, dequantize, to_fp8, from_fp8.
#include "moeblas/tensor.h"
#include "operations.h"
#include "weights.h"

namespace moeblas::python {
namespace {

// The tensors that a quantization writes.
struct Written {
  Written(Call& call, const moeblas_spec (&spec)[3], const Format& format, const Parts& given)
      : codes(call, "w_q", given[0], spec[0]), scales(call, "scales", given[1], spec[1]) {
    if (format.mode == MOEBLAS_AFFINE) {
      biases.emplace(call, "biases", given[2], spec[2]);
    } else {
      scales.accept_as_bytes(scale_code(format.mode));
    }
    c.mode = format.mode;
    c.bits = format.bits;
    c.group_size = format.group_size;
    c.codes = codes;
    c.scales = scales;
    if (biases) c.biases = *biases;
  }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;

  void take(nb::list& to) {
    to.append(codes.take());
    to.append(scales.take());
    if (biases) to.append(biases->take());
  }

  Result codes, scales;
  std::optional<Result> biases;
  moeblas_quantized c = MOEBLAS_QUANTIZED_INIT;
};

nb::object quantize(nb::handle w_, nb::handle group_size, nb::handle bits, nb::handle mode,
                    nb::handle tensor_scale, nb::handle scale_dtype, nb::handle out,
                    nb::handle options) {
  Call call("quantize", options);
  const Array w(call, "w", w_);
  const Format format(call, mode, bits, group_size);
  const Parts parts(call, out, format.mode == MOEBLAS_AFFINE ? 3 : 2);
  const std::optional<moeblas_dtype> dtype = dtype_of(call.op(), "scale_dtype", scale_dtype);
  moeblas_spec spec[3]{};
  check(moeblas_infer_quantize(w, format.mode, format.bits, format.group_size,
                               dtype ? &*dtype : nullptr, spec));
  Written written(call, spec, format, parts);
  const Scale scale(call, "tensor_scale", tensor_scale);
  scale.set(written.c);
  call.run([&] { return moeblas_quantize(w, &written.c, call.options()); });
  nb::list results;
  written.take(results);
  return nb::tuple(results);
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
  define(m, "dequantize", &dequantize);
  define(m, "to_fp8", &to_fp8);
  define(m, "from_fp8", &from_fp8);
}

}  // namespace moeblas::python
