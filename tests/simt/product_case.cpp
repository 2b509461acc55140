#include "simt/product_case.h"

#include "formats/formats.h"
#include "formats/scale_layout.h"

namespace moeblas::test {
namespace {

using dispatch::MatmulProblem;

bool affine(const ProductCase& c) { return c.spec.mode == Mode::affine; }
bool dense(const ProductCase& c) { return c.spec.mode == Mode::dense; }

int64_t pad(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

std::string ProductCase::name() const {
  static const char* ops[] = {"qmm", "batched", "broadcast", "gather", "grouped", "segmented"};
  static const char* id_names[] = {"", "_bad", "_one", "_stride0", "_both"};
  std::string s = kernel == Kernel::gather_qmv_fast ? "fast_" : kernel == Kernel::qmv ? "qmv_" : "";
  s += ops[static_cast<int>(op)];
  s += std::string("_") + (block ? "qq_" : "") + moeblas::name(spec.mode);
  if (spec.mode != Mode::dense)
    s += std::to_string(spec.bits) + "g" + std::to_string(spec.group_size);
  s += std::string("_") + moeblas::name(x_type);
  if (w_type) s += std::string("_w") + moeblas::name(*w_type);
  if (spec.mode == Mode::affine) s += std::string("_s") + moeblas::name(scale_type);
  s += transpose ? "_t" : "_n";
  s += "_e" + std::to_string(e) + "t" + std::to_string(t) + "m" + std::to_string(m) + "n" +
       std::to_string(n) + "k" + std::to_string(k) + id_names[static_cast<int>(ids)];
  if (id_type != DType::i32) s += std::string("_") + moeblas::name(id_type);
  if (strided) s += "_strided";
  if (!exact) s += "_rounded";
  if (positive) s += "_positive";
  if (block) s += std::string(x_packed ? "_xp" : "_xf") + (w_packed ? "_wp" : "_wf");
  if (swizzled) s += "_swizzled";
  if (epilogue) s += "_epilogue";
  if (out_type) s += std::string("_to_") + moeblas::name(*out_type);
  return s + "_" + emu::name_of(schedule);
}

Product::Product(const ProductCase& c, uint64_t seed) : c_(c), random_(seed) {
  if (!dense(c_)) c_.spec = c_.spec.resolved();
  make_ids();
  Shape x_shape, w_shape;
  const int64_t rows = c_.transpose ? c_.n : c_.k, cols = c_.transpose ? c_.k : c_.n;
  switch (c_.op) {
    case Op::quantized_matmul:
      x_shape = {c_.m, c_.k}, w_shape = {rows, cols};
      break;
    case Op::batched:
      x_shape = {c_.e, c_.m, c_.k}, w_shape = {c_.e, rows, cols};
      break;
    case Op::broadcast:
      x_shape = {2, c_.e, c_.m, c_.k}, w_shape = {c_.e, rows, cols};
      break;
    case Op::gather:
      x_shape = {c_.t, 1, c_.m, c_.k}, w_shape = {c_.e, rows, cols};
      break;
    case Op::grouped:
      x_shape = {c_.t, c_.k}, w_shape = {c_.e, rows, cols};
      break;
    case Op::segmented:
      x_shape = {c_.m, c_.k}, w_shape = {rows, cols};
      break;
  }
  make_operand(x_shape, false);
  make_operand(w_shape, true);
  tensor_scale_w_ = Array(DType::f32, {c_.e});
  for (int64_t i = 0; i < c_.e; ++i) tensor_scale_w_.set(i, i % 2 == 0 ? 0.5f : 2.0f);
  tensor_scale_x_ = 0.25f;
  if (c_.epilogue) {
    const Shape added = w_shape.ndim() == 2 ? Shape{c_.n} : Shape{c_.e, c_.n};
    added_ = floats(DType::bf16, added, false);
    c_in_ = floats(DType::f16, {c_.m, c_.n}, false);
  }
  spoil_unselected();
}

float Product::number() {
  const float value = c_.exact ? static_cast<float>(static_cast<int>(random_() % 9) - 4) / 2.0f
                               : std::normal_distribution<float>()(random_);
  return c_.positive ? std::fabs(value) : value;
}

// A view of the last two dimensions of something larger.
Input Product::bytes(DType dtype, Shape shape, bool strided) {
  Input in;
  Shape outer = shape;
  const int last = shape.ndim() - 1;
  if (strided) {
    outer[last] += 3;
    if (last > 0) outer[last - 1] = 2 * outer[last - 1] + 1;
  }
  in.memory = Array(dtype, outer, 0xff);
  const Shape strides = contiguous_strides(outer);
  int64_t first = 0;
  if (strided) first = last > 0 ? (outer[last - 1] - shape[last - 1]) * strides[last - 1] + 1 : 1;
  in.view = TensorView(in.memory.bytes().data() + first * static_cast<int64_t>(size_of(dtype)),
                       dtype, shape, strides);
  return in;
}

namespace {
template <class F>
void each(const TensorView& view, F f) {
  const int64_t count = view.numel();
  for (int64_t i = 0; i < count; ++i) f(i, dispatch::strided_offset(i, view.shape, view.strides));
}
}  // namespace

Input Product::floats(DType dtype, const Shape& shape, bool strided) {
  Input in = bytes(dtype, shape, strided);
  each(in.view, [&](int64_t, int64_t at) { cpu::store_float(in.view.data, dtype, at, number()); });
  return in;
}

void Product::make_operand(const Shape& shape, bool weights) {
  Input& values = weights ? w_ : x_;
  const bool is_packed = weights ? !dense(c_) && (!c_.block || c_.w_packed) : c_.x_packed;
  const int last = shape.ndim() - 1;
  if (!is_packed) {
    const DType of_w = c_.block ? DType::bf16 : c_.w_type.value_or(c_.x_type);
    values = floats(weights ? of_w : c_.x_type, shape, c_.strided);
    return;
  }
  Shape codes = shape;
  codes[last] = shape[last] * c_.spec.bits / 8;
  const bool words = !c_.strided || c_.kernel == Kernel::qmv;
  if (words) codes[last] /= 4;
  values = bytes(words ? DType::u32 : DType::u8, codes, c_.strided);
  each(values.view, [&](int64_t, int64_t at) {
    uint32_t code = static_cast<uint32_t>(random_());
    // Exponents close to 1, so that sums are exact.
    if (c_.spec.mode == Mode::mxfp8 && c_.exact)
      code = (code & 0x87878787u) | 0x30303030u | ((code >> 1) & 0x08080808u);
    if (c_.spec.mode == Mode::mxfp8 && !c_.exact) code &= 0xbfbfbfbfu;
    char* to = static_cast<char*>(values.view.data) + at * (words ? 4 : 1);
    std::memcpy(to, &code, words ? 4 : 1);
  });
  Shape scales = shape;
  scales[last] = shape[last] / c_.spec.group_size;
  if (c_.swizzled) {
    scales[last] = pad(scales[last], 4);
    scales[last - 1] = pad(scales[last - 1], 128);
  }
  make_scales(scales, affine(c_) ? c_.scale_type : DType::u8, weights);
}

void Product::make_scales(const Shape& shape, DType dtype, bool weights) {
  Input& scales = weights ? w_scales_ : x_scales_;
  scales = bytes(dtype, shape, c_.strided && !c_.swizzled);
  each(scales.view, [&](int64_t, int64_t at) {
    const auto pick = static_cast<int>(random_() % 3);
    if (dtype == DType::u8) {
      static const uint8_t e4m3[] = {0x30, 0x38, 0x40}, e8m0[] = {126, 127, 128};
      static_cast<uint8_t*>(scales.view.data)[at] =
          c_.spec.mode == Mode::nvfp4 ? e4m3[pick] : e8m0[pick];
      return;
    }
    const float s =
        c_.exact ? std::ldexp(pick == 2 && !c_.positive ? -1.0f : 1.0f, -pick) : number() / 8;
    cpu::store_float(scales.view.data, dtype, at, s);
  });
  if (!affine(c_)) return;
  w_biases_ = floats(dtype, shape, c_.strided);
}

void Product::make_ids() {
  const int64_t e = c_.e, t = c_.t;
  if (c_.op == Op::gather) {
    if (c_.ids == Ids::broadcast) {
      lhs_ = Input{};
      rhs_.memory = Array(c_.id_type, {1});
      rhs_.memory.set_integer(0, 1 % e);
      rhs_.view = TensorView(rhs_.memory.bytes().data(), c_.id_type, Shape{t, 2}, Shape{0, 0});
      unselected_ = e > 1 ? 0 : -1;
      return;
    }
    rhs_.memory = Array(c_.id_type, {t, 2});
    rhs_.view = rhs_.memory;
    // The last expert is never chosen.
    unselected_ = e > 1 ? e - 1 : -1;
    for (int64_t i = 0; i < 2 * t; ++i) {
      int64_t id =
          static_cast<int64_t>(random_() % static_cast<uint64_t>(std::max<int64_t>(1, e - 1)));
      if (c_.ids == Ids::one) id = 0;
      if (c_.ids == Ids::bad && i % 2 == 0) {
        const int64_t bad[] = {-1, e, int64_t{1} << 40, e + 100};
        id = bad[i / 2 % 4];
        // In a small dtype the huge one would come out as a good one.
        if (size_of(c_.id_type) < 8 && id == int64_t{1} << 40) id = 120;
      }
      rhs_.memory.set_integer(i, id);
    }
    if (c_.ids == Ids::both) {
      lhs_.memory = Array(DType::u16, {t, 1});
      lhs_.view = lhs_.memory;
      for (int64_t i = 0; i < t; ++i) lhs_.memory.set_integer(i, (t - i) % (t + 1));
    }
  } else if (c_.op == Op::grouped) {
    rhs_.memory = Array(c_.id_type, {e});
    rhs_.view = rhs_.memory;
    // Ends that skip experts, go back, and stop before the last row (or run past it).
    for (int64_t i = 0; i < e; ++i) {
      int64_t end = (i + 1) * t / e - (i % 3 == 1 ? 3 : 0);
      if (i + 1 == e) end = c_.ids == Ids::bad ? t + 7 : t - 1;
      rhs_.memory.set_integer(i, end);
    }
  } else if (c_.op == Op::segmented) {
    rhs_.memory = Array(c_.id_type, {t, 2});
    rhs_.view = rhs_.memory;
    for (int64_t i = 0; i < t; ++i) {
      const int64_t start = static_cast<int64_t>(random_() % static_cast<uint64_t>(c_.k + 1));
      const int64_t ends[] = {start + 1, c_.k, start, start - 2, c_.k + 9, start + 33};
      rhs_.memory.set_integer(2 * i, i == 1 ? -4 : start);
      rhs_.memory.set_integer(2 * i + 1, ends[i % 6]);
    }
  }
}

// NaN wherever nothing may be read.
void Product::spoil_unselected() {
  if (unselected_ < 0) return;
  Input* tensors[] = {&w_, &w_scales_, &w_biases_, c_.epilogue ? &added_ : nullptr};
  for (Input* in : tensors) {
    if (in == nullptr || !in->view || (in == &w_ && !is_float(w_.view.dtype))) continue;
    TensorView part = in->view;
    part.shape[0] = 1;
    const auto size = static_cast<int64_t>(size_of(part.dtype));
    each(part, [&](int64_t, int64_t at) {
      std::memset(static_cast<char*>(part.data) + (at + unselected_ * part.strides[0]) * size, 0xff,
                  static_cast<size_t>(size));
    });
  }
}

Product Product::magnitudes() const {
  Product other = *this;
  const auto absolute = [](Input& in) {
    if (!in.view || !is_float(in.view.dtype)) return;
    each(in.view, [&](int64_t, int64_t at) {
      const float v = cpu::load_float(in.view.data, in.view.dtype, at);
      cpu::store_float(in.view.data, in.view.dtype, at, std::fabs(v));
    });
  };
  const auto unsign = [&](Input& in) {
    if (!in.view || is_float(in.view.dtype) || affine(c_)) return;
    for (uint8_t& byte : in.memory.bytes())
      byte = byte & (c_.spec.mode == Mode::mxfp8 ? 0x7f : 0x77);
  };
  other.rebind();
  for (Input* in :
       {&other.x_, &other.w_, &other.w_scales_, &other.w_biases_, &other.added_, &other.c_in_}) {
    absolute(*in);
  }
  unsign(other.w_);
  unsign(other.x_);
  return other;
}

// A copy's views lead into its own memory.
void Product::rebind() {
  for (Input* in : {&x_, &x_scales_, &w_, &w_scales_, &w_biases_, &lhs_, &rhs_, &added_, &c_in_}) {
    if (!in->view) continue;
    const auto last = contiguous_strides(in->memory.shape());
    int64_t first = 0;
    const int dims = in->view.ndim();
    if (in->memory.shape() != in->view.shape && in->memory.numel() > 1) {
      const Shape& outer = in->memory.shape();
      first = dims > 1 ? (outer[dims - 2] - in->view.shape[dims - 2]) * last[dims - 2] + 1 : 1;
    }
    in->view.data =
        in->memory.bytes().data() + first * static_cast<int64_t>(size_of(in->view.dtype));
  }
}

Quantized Product::packed(bool weights) const {
  Quantized q;
  q.spec = c_.spec;
  q.codes = weights ? w_.view : x_.view;
  if (weights ? c_.w_packed || !c_.block : c_.x_packed) {
    q.scales = weights ? w_scales_.view : x_scales_.view;
    if (affine(c_)) q.biases = w_biases_.view;
    if (c_.swizzled) q.scale_layout = ScaleLayout::swizzled_128x4;
  }
  if (c_.spec.mode == Mode::nvfp4) {
    if (weights && q.codes.ndim() > 2) {
      q.tensor_scale = TensorView(tensor_scale_w_.bytes().data(), DType::f32, {c_.e});
    } else if (c_.block || !weights) {
      q.host_tensor_scale = tensor_scale_x_;
    }
  }
  return q;
}

Array Product::make_out() const {
  const DType type = c_.out_type.value_or(c_.x_type);
  Shape shape;
  switch (c_.op) {
    case Op::quantized_matmul:
      shape = {c_.m, c_.n};
      break;
    case Op::batched:
      shape = {c_.e, c_.m, c_.n};
      break;
    case Op::broadcast:
      shape = {2, c_.e, c_.m, c_.n};
      break;
    case Op::gather:
      shape = {c_.t, 2, c_.m, c_.n};
      break;
    case Op::grouped:
      shape = {c_.t, c_.n};
      break;
    case Op::segmented:
      shape = {c_.t, c_.m, c_.n};
      break;
  }
  if (c_.strided) shape[shape.ndim() - 1] += 5;
  return Array(type, shape, 0xff);
}

MatmulProblem Product::problem(Array& out) const {
  TensorView to = out;
  to.shape[to.ndim() - 1] = c_.n;
  Epilogue epilogue;
  if (c_.epilogue) {
    epilogue.alpha = 0.5f;
    epilogue.beta = 2.0f;
    epilogue.c = c_in_.view;
    epilogue.bias = added_.view;
    // Rows of a grouped product are their own matrices.
    if (c_.op == Op::grouped) {
      epilogue.c.shape = {c_.n};
      epilogue.c.strides = {epilogue.c.strides[1]};
    }
  }
  const bool plain = dense(c_) && !c_.w_type;  // an operation of dense tensors alone
  Quantized w;
  if (c_.w_type) {
    w = {.spec = c_.spec, .codes = w_.view};
  } else if (!plain) {
    w = packed(true);
  }
  // The wide output of a float x is the fused layer's: no operation asks for it, so it is set here.
  const bool wide = c_.out_type && !c_.x_packed;
  Array narrow(c_.x_type, out.shape());
  TensorView bound = to;
  if (wide) {
    bound = narrow.view();
    bound.shape = to.shape;
  }
  MatmulProblem p;
  const Options options;
  TensorView transposed = w_.view;
  const int dims = transposed.ndim();
  if (plain && c_.transpose) {
    std::swap(transposed.shape[dims - 1], transposed.shape[dims - 2]);
    std::swap(transposed.strides[dims - 1], transposed.strides[dims - 2]);
  }
  switch (c_.op) {
    case Op::gather:
      if (c_.block) {
        p = ops::gather_qqmm(packed(false), w, lhs_, rhs_, false, epilogue, bound, options);
      } else if (plain) {
        p = ops::gather_mm(x_, transposed, lhs_, rhs_, false, bound, options);
      } else {
        p = ops::gather_qmm(x_, w, lhs_, rhs_, c_.transpose, false, bound, options);
      }
      break;
    case Op::grouped:
      if (c_.block) {
        p = ops::grouped_qqmm(packed(false), w, rhs_, epilogue, bound, options);
      } else if (plain) {
        p = ops::grouped_mm(x_, transposed, rhs_, bound, options);
      } else {
        p = ops::grouped_qmm(x_, w, rhs_, c_.transpose, bound, options);
      }
      break;
    case Op::segmented:
      p = ops::segmented_mm(x_, transposed, rhs_, bound, options);
      break;
    default:
      if (c_.block) {
        p = ops::qqmm(packed(false), w, epilogue, bound, options);
      } else if (plain) {
        p = ops::gather_mm(x_, transposed, {}, {}, false, bound, options);
      } else {
        p = ops::quantized_matmul(x_, w, c_.transpose, bound, options);
      }
      break;
  }
  if (wide) {
    p.out.data = out.bytes().data();
    p.out.dtype = out.dtype();
  }
  return p;
}

dispatch::Reason simt_reject(Kernel kernel, const MatmulProblem& p) {
  return kernel == Kernel::gather_qmv_fast ? simt::simt_gather_qmv_fast_reject(p)
         : kernel == Kernel::qmv           ? simt::simt_qmv_reject(p)
                                           : simt::simt_qmm_reject(p);
}

void Product::know_inputs(EmulatorQueue& queue) const {
  for (const Input* in :
       {&x_, &x_scales_, &w_, &w_scales_, &w_biases_, &lhs_, &rhs_, &added_, &c_in_}) {
    queue.input(in->memory.bytes().data(), in->memory.bytes().size());
  }
  queue.input(tensor_scale_w_.bytes().data(), tensor_scale_w_.bytes().size());
}

std::vector<uint8_t> Product::run_on(EmulatorQueue& queue) const {
  Array out = make_out();
  run_on(queue, out, problem(out));
  return out.bytes();
}

void Product::run_on(EmulatorQueue& queue, Array& out, const MatmulProblem& p) const {
  know_inputs(queue);
  queue.output(out.bytes().data(), out.bytes().size());
  const dispatch::Reason reason = simt_reject(c_.kernel, p);
  EXPECT_FALSE(reason) << reason.text();
  switch (c_.kernel) {
    case Kernel::gather_qmv_fast:
      return simt::simt_gather_qmv_fast(p, queue.workspace(simt::simt_qmv_workspace(p)), queue);
    case Kernel::qmv:
      return simt::simt_qmv(p, queue.workspace(simt::simt_qmv_workspace(p)), queue);
    case Kernel::qmm:
      return simt::simt_qmm(p, queue.workspace(simt::simt_qmm_workspace(p)), queue);
  }
}

namespace {
Array on_cpu(const Product& product) {
  Array out = product.make_out();
  const MatmulProblem p = product.problem(out);
  if (p.empty()) return out;
  std::vector<uint8_t> memory(cpu::matmul_portable_workspace(p) + 64);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  cpu::matmul_portable(p, {reinterpret_cast<void*>((address + 63) / 64 * 64), memory.size() - 64});
  return out;
}
}  // namespace

void Product::check() const {
  const Array expected = on_cpu(*this);
  EmulatorQueue queue(c_.schedule);
  Array actual = make_out();
  actual.bytes() = run_on(queue);
  if (c_.exact) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < actual.numel(); ++i) {
      const auto size = size_of(actual.dtype());
      const auto at = static_cast<size_t>(i) * size;
      if (std::memcmp(&actual.bytes()[at], &expected.bytes()[at], size) != 0 && ++wrong <= 4) {
        ADD_FAILURE() << c_.name() << ": element " << i << " is " << actual.get(i) << ", expected "
                      << expected.get(i);
      }
    }
    EXPECT_EQ(wrong, 0);
    return;
  }
  const Array bounds = on_cpu(magnitudes());
  const float rounding = actual.dtype() == DType::f32   ? 0x1p-23f
                         : actual.dtype() == DType::f16 ? 0x1p-10f
                                                        : 0x1p-7f;
  int wrong = 0;
  for (int64_t i = 0; i < actual.numel(); ++i) {
    const float a = actual.get(i), b = expected.get(i);
    if (std::isnan(a) && std::isnan(b)) continue;  // the padding of a strided output
    // Two orders of summation, each within K roundings of the sum of magnitudes, then one each.
    const float bound = static_cast<float>(c_.k + 8) * 0x1p-23f * bounds.get(i) +
                        rounding * std::fabs(b) + 0x1p-24f;
    if (!(std::fabs(a - b) <= bound) && ++wrong <= 4) {
      ADD_FAILURE() << c_.name() << ": element " << i << " is " << a << ", expected " << b << " to "
                    << bound;
    }
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace moeblas::test
