// The products: quantized, gathered, segmented, grouped, and block-quantized on both sides.
#include "operations.h"
#include "weights.h"

namespace moeblas::python {
namespace {

nb::object quantized_matmul(nb::handle x_, nb::handle w_, nb::handle scales, nb::handle biases,
                            nb::handle transpose_, nb::handle group_size, nb::handle bits,
                            nb::handle mode, nb::handle tensor_scale, nb::handle out_,
                            nb::handle options) {
  Call call("quantized_matmul", options);
  const Array x(call, "x", x_);
  const Weights w(call, {}, Format(call, mode, bits, group_size), w_, scales, biases, tensor_scale);
  const bool transpose = truth_of(call.op(), "transpose", transpose_);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_quantized_matmul(x, w, transpose, spec);
             }));
  call.run([&] { return moeblas_quantized_matmul(x, w, transpose, out, call.options()); });
  return out.take();
}

nb::object gather_mm(nb::handle a_, nb::handle b_, nb::handle lhs_, nb::handle rhs_,
                     nb::handle sorted_, nb::handle out_, nb::handle options) {
  Call call("gather_mm", options);
  const Array a(call, "a", a_), b(call, "b", b_), lhs(call, "lhs_indices", lhs_),
      rhs(call, "rhs_indices", rhs_);
  const bool sorted = truth_of(call.op(), "sorted_indices", sorted_);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_gather_mm(a, b, lhs, rhs, spec);
             }));
  call.run([&] { return moeblas_gather_mm(a, b, lhs, rhs, sorted, out, call.options()); });
  return out.take();
}

nb::object gather_qmm(nb::handle x_, nb::handle w_, nb::handle scales, nb::handle biases,
                      nb::handle lhs_, nb::handle rhs_, nb::handle transpose_,
                      nb::handle group_size, nb::handle bits, nb::handle mode,
                      nb::handle tensor_scale, nb::handle sorted_, nb::handle out_,
                      nb::handle options) {
  Call call("gather_qmm", options);
  const Array x(call, "x", x_);
  const Weights w(call, {}, Format(call, mode, bits, group_size), w_, scales, biases, tensor_scale);
  const Array lhs(call, "lhs_indices", lhs_), rhs(call, "rhs_indices", rhs_);
  const bool transpose = truth_of(call.op(), "transpose", transpose_);
  const bool sorted = truth_of(call.op(), "sorted_indices", sorted_);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_gather_qmm(x, w, lhs, rhs, transpose, spec);
             }));
  call.run(
      [&] { return moeblas_gather_qmm(x, w, lhs, rhs, transpose, sorted, out, call.options()); });
  return out.take();
}

nb::object gather_qmv(nb::handle x_, nb::handle w_, nb::handle scales, nb::handle biases,
                      nb::handle ids_, nb::handle group_size, nb::handle bits, nb::handle mode,
                      nb::handle tensor_scale, nb::handle out_, nb::handle options) {
  Call call("gather_qmv", options);
  const Array x(call, "x", x_);
  const Weights w(call, {}, Format(call, mode, bits, group_size), w_, scales, biases, tensor_scale);
  const Array ids(call, "expert_indices", ids_);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_gather_qmv(x, w, ids, spec);
             }));
  call.run([&] { return moeblas_gather_qmv(x, w, ids, out, call.options()); });
  return out.take();
}

nb::object segmented_mm(nb::handle a_, nb::handle b_, nb::handle segments_, nb::handle out_,
                        nb::handle options) {
  Call call("segmented_mm", options);
  const Array a(call, "a", a_), b(call, "b", b_), segments(call, "segments", segments_);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_segmented_mm(a, b, segments, spec);
             }));
  call.run([&] { return moeblas_segmented_mm(a, b, segments, out, call.options()); });
  return out.take();
}

nb::object grouped_mm(nb::handle x_, nb::handle w_, nb::handle offsets_, nb::handle out_,
                      nb::handle options) {
  Call call("grouped_mm", options);
  const Array x(call, "x", x_), w(call, "w", w_), offsets(call, "offsets", offsets_);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_grouped_mm(x, w, offsets, spec);
             }));
  call.run([&] { return moeblas_grouped_mm(x, w, offsets, out, call.options()); });
  return out.take();
}

nb::object grouped_qmm(nb::handle x_, nb::handle w_, nb::handle scales, nb::handle biases,
                       nb::handle offsets_, nb::handle transpose_, nb::handle group_size,
                       nb::handle bits, nb::handle mode, nb::handle tensor_scale, nb::handle out_,
                       nb::handle options) {
  Call call("grouped_qmm", options);
  const Array x(call, "x", x_);
  const Weights w(call, {}, Format(call, mode, bits, group_size), w_, scales, biases, tensor_scale);
  const Array offsets(call, "offsets", offsets_);
  const bool transpose = truth_of(call.op(), "transpose", transpose_);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_grouped_qmm(x, w, offsets, transpose, spec);
             }));
  call.run([&] { return moeblas_grouped_qmm(x, w, offsets, transpose, out, call.options()); });
  return out.take();
}

// ---- Block-quantized on both sides -------------------------------------------------------------

// Both operands of such a product and what follows it.
struct BlockProduct {
  BlockProduct(Call& call, nb::handle x_, nb::handle w_, nb::handle scales, nb::handle group_size,
               nb::handle bits, nb::handle mode, nb::handle tensor_scale_x,
               nb::handle tensor_scale_w, nb::handle x_scales, nb::handle x_layout,
               nb::handle w_layout, nb::handle bias_, nb::handle alpha, nb::handle beta,
               nb::handle c_, nb::handle dtype_)
      : format(call, mode, bits, group_size),
        x(call, {"x", "x_scales", "x_biases", "tensor_scale_x"}, format, x_, x_scales, nb::none(),
          tensor_scale_x, x_layout),
        w(call, {"w", "scales", "biases", "tensor_scale_w"}, format, w_, scales, nb::none(),
          tensor_scale_w, w_layout),
        bias(call, "bias", bias_),
        c(call, "c", c_),
        dtype(dtype_of(call.op(), "dtype", dtype_)) {
    epilogue.alpha = number_of(call.op(), "alpha", alpha);
    epilogue.beta = number_of(call.op(), "beta", beta);
    epilogue.c = c;
    epilogue.bias = bias;
  }
  const moeblas_dtype* out_dtype() const { return dtype ? &*dtype : nullptr; }

  Format format;
  Weights x, w;
  Array bias, c;
  std::optional<moeblas_dtype> dtype;
  moeblas_epilogue epilogue = MOEBLAS_EPILOGUE_INIT;
};

nb::object qqmm(nb::handle x, nb::handle w, nb::handle scales, nb::handle group_size,
                nb::handle bits, nb::handle mode, nb::handle tensor_scale_x,
                nb::handle tensor_scale_w, nb::handle x_scales, nb::handle x_layout,
                nb::handle w_layout, nb::handle bias, nb::handle alpha, nb::handle beta,
                nb::handle c, nb::handle dtype, nb::handle out_, nb::handle options) {
  Call call("qqmm", options);
  const BlockProduct p(call, x, w, scales, group_size, bits, mode, tensor_scale_x, tensor_scale_w,
                       x_scales, x_layout, w_layout, bias, alpha, beta, c, dtype);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_qqmm(p.x, p.w, p.out_dtype(), spec);
             }));
  call.run([&] { return moeblas_qqmm(p.x, p.w, &p.epilogue, out, call.options()); });
  return out.take();
}

nb::object gather_qqmm(nb::handle x, nb::handle w, nb::handle scales, nb::handle lhs_,
                       nb::handle rhs_, nb::handle group_size, nb::handle bits, nb::handle mode,
                       nb::handle tensor_scale_x, nb::handle tensor_scale_w, nb::handle sorted_,
                       nb::handle x_scales, nb::handle x_layout, nb::handle w_layout,
                       nb::handle bias, nb::handle alpha, nb::handle beta, nb::handle c,
                       nb::handle dtype, nb::handle out_, nb::handle options) {
  Call call("gather_qqmm", options);
  const BlockProduct p(call, x, w, scales, group_size, bits, mode, tensor_scale_x, tensor_scale_w,
                       x_scales, x_layout, w_layout, bias, alpha, beta, c, dtype);
  const Array lhs(call, "lhs_indices", lhs_), rhs(call, "rhs_indices", rhs_);
  const bool sorted = truth_of(call.op(), "sorted_indices", sorted_);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_gather_qqmm(p.x, p.w, lhs, rhs, p.out_dtype(), spec);
             }));
  call.run([&] {
    return moeblas_gather_qqmm(p.x, p.w, lhs, rhs, sorted, &p.epilogue, out, call.options());
  });
  return out.take();
}

nb::object grouped_qqmm(nb::handle x, nb::handle w, nb::handle scales, nb::handle offsets_,
                        nb::handle group_size, nb::handle bits, nb::handle mode,
                        nb::handle tensor_scale_x, nb::handle tensor_scale_w, nb::handle x_scales,
                        nb::handle x_layout, nb::handle w_layout, nb::handle bias, nb::handle alpha,
                        nb::handle beta, nb::handle c, nb::handle dtype, nb::handle out_,
                        nb::handle options) {
  Call call("grouped_qqmm", options);
  const BlockProduct p(call, x, w, scales, group_size, bits, mode, tensor_scale_x, tensor_scale_w,
                       x_scales, x_layout, w_layout, bias, alpha, beta, c, dtype);
  const Array offsets(call, "offsets", offsets_);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_grouped_qqmm(p.x, p.w, offsets, p.out_dtype(), spec);
             }));
  call.run(
      [&] { return moeblas_grouped_qqmm(p.x, p.w, offsets, &p.epilogue, out, call.options()); });
  return out.take();
}

}  // namespace

void bind_products(nb::module_& m) {
  define(m, "quantized_matmul", &quantized_matmul);
  define(m, "gather_mm", &gather_mm);
  define(m, "gather_qmm", &gather_qmm);
  define(m, "gather_qmv", &gather_qmv);
  define(m, "segmented_mm", &segmented_mm);
  define(m, "grouped_mm", &grouped_mm);
  define(m, "grouped_qmm", &grouped_qmm);
  define(m, "qqmm", &qqmm);
  define(m, "gather_qqmm", &gather_qqmm);
  define(m, "grouped_qqmm", &grouped_qqmm);
}

}  // namespace moeblas::python
