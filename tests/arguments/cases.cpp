// The operations and a valid call of each.
#include <algorithm>
#include <cstring>

#include "arguments/operations.h"
#include "support/array.h"

namespace moeblas::test {
namespace {

using A = const CArguments&;
using C = const Case&;
using S = moeblas_spec*;

const moeblas_dtype* dtype_of(const Case& c) { return c.dtype ? &*c.dtype : nullptr; }

// clang-format off
const Operation kOperations[] = {
  {"quantize",
   [](C c, A a) { return moeblas_quantize(a["w"], a.quantized(), &c.options); },
   [](C c, A a, S s) { return moeblas_infer_quantize(a["w"], c.mode, c.bits, c.group_size, dtype_of(c), s); }, 3},
  {"dequantize",
   [](C c, A a) { return moeblas_dequantize(a.quantized(), a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_dequantize(a.quantized(), dtype_of(c), s); }, 1},
  {"to_fp8",
   [](C c, A a) { return moeblas_to_fp8(a["x"], a["out"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_to_fp8(a["x"], s); }, 1},
  {"from_fp8",
   [](C c, A a) { return moeblas_from_fp8(a["x"], a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_from_fp8(a["x"], *c.dtype, s); }, 1},
  {"quantized_matmul",
   [](C c, A a) { return moeblas_quantized_matmul(a["x"], a.quantized(), c.transpose, a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_quantized_matmul(a["x"], a.quantized(), c.transpose, s); }, 1},
  {"gather_mm",
   [](C c, A a) { return moeblas_gather_mm(a["a"], a["b"], a["lhs_indices"], a["rhs_indices"], c.sorted, a["out"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_gather_mm(a["a"], a["b"], a["lhs_indices"], a["rhs_indices"], s); }, 1},
  {"gather_qmm",
   [](C c, A a) { return moeblas_gather_qmm(a["x"], a.quantized(), a["lhs_indices"], a["rhs_indices"], c.transpose, c.sorted, a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_gather_qmm(a["x"], a.quantized(), a["lhs_indices"], a["rhs_indices"], c.transpose, s); }, 1},
  {"gather_qmv",
   [](C c, A a) { return moeblas_gather_qmv(a["x"], a.quantized(), a["expert_indices"], a["out"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_gather_qmv(a["x"], a.quantized(), a["expert_indices"], s); }, 1},
  {"segmented_mm",
   [](C c, A a) { return moeblas_segmented_mm(a["a"], a["b"], a["segments"], a["out"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_segmented_mm(a["a"], a["b"], a["segments"], s); }, 1},
  {"grouped_mm",
   [](C c, A a) { return moeblas_grouped_mm(a["x"], a["w"], a["offsets"], a["out"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_grouped_mm(a["x"], a["w"], a["offsets"], s); }, 1},
  {"grouped_qmm",
   [](C c, A a) { return moeblas_grouped_qmm(a["x"], a.quantized(), a["offsets"], c.transpose, a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_grouped_qmm(a["x"], a.quantized(), a["offsets"], c.transpose, s); }, 1},
};
// clang-format on

const std::vector<DType> kFloats = {DType::f32, DType::f16, DType::bf16};
const std::vector<DType> kIntegers = {DType::i8, DType::i16, DType::i32, DType::i64,
                                      DType::u8, DType::u16, DType::u32, DType::u64};

// "b" by_inputs, "o" by_output, "f" free: the dimensions, then fewer, more and no dimensions.
void bind(Tensor& t, const char* dims, const char* ndims) {
  const auto bound = [](char c) {
    return c == 'b' ? Bound::by_inputs : c == 'o' ? Bound::by_output : Bound::free;
  };
  for (const char* c = dims; *c; ++c) t.dims.push_back(bound(*c));
  t.fewer_dims = bound(ndims[0]);
  t.more_dims = bound(ndims[1]);
  t.no_dims = bound(ndims[2]);
}

// Memory with room on both sides, so that a bad call that were accepted would not crash at once.
void allocate(Tensor& t) {
  constexpr size_t kRoom = 4096;
  const size_t bytes = static_cast<size_t>(t.numel()) * size_of(t.dtype);
  t.memory = std::make_shared<std::vector<uint8_t>>(bytes + 2 * kRoom, kPoison);
  t.data = t.memory->data() + kRoom;
  t.data += (64 - reinterpret_cast<uintptr_t>(t.data) % 64) % 64;
}

class Builder {
 public:
  Builder(const char* operation, const std::string& label) {
    case_.operation =
        std::find_if(std::begin(kOperations), std::end(kOperations),
                     [&](const Operation& o) { return std::strcmp(o.name, operation) == 0; });
    case_.label = std::string(operation) + (label.empty() ? "" : "_" + label);
  }

  Tensor& add(const char* name, DType dtype, std::vector<int64_t> shape, const char* dims,
              const char* ndims, std::vector<std::string> partners = {}) {
    Tensor t;
    t.name = name;
    t.dtype = dtype;
    t.shape = std::move(shape);
    t.partners = std::move(partners);
    bind(t, dims, ndims);
    allocate(t);
    case_.tensors.push_back(std::move(t));
    return case_.tensors.back();
  }
  // A float operand of small whole numbers.
  Tensor& values(const char* name, DType dtype, std::vector<int64_t> shape, const char* dims,
                 const char* ndims, std::vector<std::string> partners) {
    Tensor& t = add(name, dtype, std::move(shape), dims, ndims, std::move(partners));
    for (int64_t i = 0; i < t.numel(); ++i) {
      cpu::store_float(t.data, dtype, i, static_cast<float>(i * 5 % 11) - 5);
    }
    return t;
  }
  Tensor& integers(const char* name, DType dtype, std::vector<int64_t> shape, const char* dims,
                   const char* ndims, std::vector<std::string> partners, int64_t limit,
                   int64_t step) {
    Tensor& t = add(name, dtype, std::move(shape), dims, ndims, std::move(partners));
    for (int64_t i = 0; i < t.numel(); ++i) {
      const int64_t v = i * step % (limit + 1);
      std::memcpy(t.data + i * static_cast<int64_t>(size_of(dtype)), &v, size_of(dtype));
    }
    t.dtypes = kIntegers;
    case_.ids.push_back(name);
    return t;
  }
  Tensor& out(const char* name, DType dtype, std::vector<int64_t> shape) {
    const std::string dims(shape.size(), 'b');
    Tensor& t = add(name, dtype, std::move(shape), dims.c_str(), "bbb");
    t.output = t.packed = true;
    return t;
  }
  // The tensors of a quantized matrix or stack, as inputs or (of quantize) as outputs.
  void quantized(const char* codes_name, std::vector<int64_t> lead, int64_t columns, int32_t mode,
                 bool output, DType scale_dtype = DType::f32, bool as_bytes = false) {
    case_.quantized = true;
    case_.codes_name = codes_name;
    case_.mode = mode;
    case_.bits = mode == MOEBLAS_MXFP8 ? 8 : 4;
    case_.group_size = mode == MOEBLAS_NVFP4 ? 16 : 32;
    const bool affine = mode == MOEBLAS_AFFINE;
    std::vector<int64_t> codes = lead, scales = lead;
    codes.push_back(columns * case_.bits / (as_bytes ? 8 : 32));
    scales.push_back(columns / case_.group_size);
    const std::string dims(codes.size(), 'b');
    Tensor& c =
        add(codes_name, as_bytes ? DType::u8 : DType::u32, codes, dims.c_str(), "bbb", {"scales"});
    c.packed = true;
    c.output = output;
    for (size_t i = 0; i < c.memory->size(); ++i) (*c.memory)[i] = static_cast<uint8_t>(i * 37);
    Tensor& s =
        add("scales", affine ? scale_dtype : DType::u8, scales, dims.c_str(), "bbb", {"biases"});
    s.packed = true;
    s.output = output;
    fill_scales(s, mode);
    if (affine) {
      Tensor& b = add("biases", scale_dtype, scales, dims.c_str(), "bbb", {"scales"});
      b.packed = true;
      b.output = output;
      fill_scales(b, mode);
    }
  }
  // nvfp4's multiplier for each of `matrices`; a single number would be valid too.
  Tensor& tensor_scale(int64_t matrices) {
    Tensor& t = add("tensor_scale", DType::f32, {matrices}, "b", "fbf");
    for (int64_t i = 0; i < matrices; ++i) {
      cpu::store_float(t.data, DType::f32, i, static_cast<float>(i + 1) * 0.5f);
    }
    t.optional = true;
    return t;
  }
  Case& operator*() { return case_; }
  Case* operator->() { return &case_; }

 private:
  static void fill_scales(Tensor& t, int32_t mode) {
    for (int64_t i = 0; i < t.numel(); ++i) {
      if (mode == MOEBLAS_AFFINE) {
        cpu::store_float(t.data, t.dtype, i, static_cast<float>(i % 3 + 1) * 0.25f);
      } else {
        t.data[i] = static_cast<uint8_t>((mode == MOEBLAS_NVFP4 ? 0x30 : 126) + i % 3);
      }
    }
  }
  Case case_;
};

struct ModeCase {
  const char* name;
  int32_t mode;
};
const ModeCase kModeCases[] = {{"affine", MOEBLAS_AFFINE},
                               {"mxfp4", MOEBLAS_MXFP4},
                               {"mxfp8", MOEBLAS_MXFP8},
                               {"nvfp4", MOEBLAS_NVFP4}};

void conversions(const Sizes& z, std::vector<Case>& cases) {
  for (const auto& [name, mode] : kModeCases) {
    Builder b("quantize", name);
    b.values("w", DType::f32, {3, z.n, z.k}, "oob", "oob", {"w_q"}).dtypes = kFloats;
    b.quantized("w_q", {3, z.n}, z.k, mode, true);
    if (mode == MOEBLAS_NVFP4) b.tensor_scale(3).in_infer = false;
    cases.push_back(*b);

    Builder d("dequantize", name);
    d.quantized("w_q", {3, z.n}, z.k, mode, false, DType::f16);
    if (mode == MOEBLAS_NVFP4) d.tensor_scale(3).in_infer = false;
    d.out("out", DType::f32, {3, z.n, z.k}).dtypes = kFloats;
    d->dtype = to_dlpack(DType::f32);
    cases.push_back(*d);
  }
  Builder to("to_fp8", "");
  to.values("x", DType::f32, {3, z.k}, "oo", "ooo", {"out"}).dtypes = kFloats;
  to.out("out", DType::u8, {3, z.k});
  cases.push_back(*to);

  Builder from("from_fp8", "");
  from.add("x", DType::u8, {3, z.k}, "oo", "ooo", {"out"});
  from.out("out", DType::f32, {3, z.k}).dtypes = kFloats;
  from->dtype = to_dlpack(DType::f32);
  cases.push_back(*from);
}

void dense_products(const Sizes& z, std::vector<Case>& cases) {
  for (DType dtype : kFloats) {
    // a and b have one dtype: a message about either is right.
    Builder g("gather_mm", name(dtype));
    g.values("a", dtype, {6, z.m, z.k}, "fob", "ffb", {"b", "out"});
    g.values("b", dtype, {z.experts, z.k, z.n}, "fbo", "ffb", {"a", "out"});
    g.integers("lhs_indices", DType::i32, {3, 4}, "bb", "fof", {"rhs_indices", "out"}, 5, 1);
    g.integers("rhs_indices", DType::u8, {3, 4}, "bb", "fof", {"lhs_indices", "out"}, z.experts - 1,
               3);
    for (const char* index : {"lhs_indices", "rhs_indices"}) g->find(index)->optional = true;
    g.out("out", dtype, {3, 4, z.m, z.n});
    g->check_ids_applies = true;
    cases.push_back(*g);
  }
  // Without rhs, b's own batch takes its place.
  Builder one("gather_mm", "lhs_only");
  one.values("a", DType::f32, {6, z.m, z.k}, "fob", "ffb", {"b", "out"});
  one.values("b", DType::f32, {3, z.k, z.n}, "bbo", "fob", {"a", "lhs_indices", "out"});
  one.integers("lhs_indices", DType::i64, {3}, "b", "fof", {"b", "out"}, 5, 2);
  one->find("lhs_indices")->optional = true;
  one.out("out", DType::f32, {3, z.m, z.n});
  one->check_ids_applies = true;
  cases.push_back(*one);

  Builder s("segmented_mm", "");
  s.values("a", DType::f32, {z.m, z.k}, "ob", "bbb", {"b", "out"});
  s.values("b", DType::f32, {z.k, z.n}, "bo", "bbb", {"a", "out"});
  s.integers("segments", DType::i64, {3, 2}, "ob", "oob", {"out"}, z.k, 17);
  s.out("out", DType::f32, {3, z.m, z.n});
  s->check_ids_applies = true;
  cases.push_back(*s);

  Builder m("grouped_mm", "");
  m.values("x", DType::bf16, {6, z.k}, "ob", "bbb", {"w", "out"});
  m.values("w", DType::bf16, {3, z.k, z.n}, "bbo", "bbb", {"x", "offsets", "out"});
  m.integers("offsets", DType::i32, {3}, "b", "bbb", {}, 6, 2).dtypes = {DType::i64};
  m.out("out", DType::bf16, {6, z.n});
  cases.push_back(*m);
}

void quantized_products(const Sizes& z, std::vector<Case>& cases) {
  // Groups along N without transpose: N must hold whole groups, K is free.
  const int64_t rows = z.n, wide = z.k;
  for (const auto& [mode_name, mode] : kModeCases) {
    for (int32_t transpose : {1, 0}) {
      const std::string label = std::string(mode_name) + (transpose ? "" : "_plain");
      const int64_t k = transpose ? wide : rows, n = transpose ? rows : wide;
      const bool has_scale = mode == MOEBLAS_NVFP4;
      const auto finish = [&](Builder& b) {
        b->transpose = transpose;
        for (Tensor& t : b->tensors) {
          if (t.name == "x") t.infer_dtypes = kFloats;
        }
        cases.push_back(*b);
      };

      Builder q("quantized_matmul", label);
      q.values("x", DType::f32, {z.m, k}, "ob", "oob", {"out", "w"});
      q.quantized("w", {rows}, wide, mode, false);
      if (has_scale) q.tensor_scale(1);
      q.out("out", DType::f32, {z.m, n});
      finish(q);

      Builder batched("quantized_matmul", label + "_batched");
      batched.values("x", DType::f16, {3, z.m, k}, "bob", "bob", {"out", "w"});
      batched.quantized("w", {3, rows}, wide, mode, false, DType::bf16, true);
      if (has_scale) batched.tensor_scale(3);
      batched.out("out", DType::f16, {3, z.m, n});
      finish(batched);

      Builder g("gather_qmm", label);
      g.values("x", DType::bf16, {6, z.m, k}, "fob", "fob", {"out", "w"});
      g->find("x")->more_dims = Bound::free;
      g.quantized("w", {z.experts, rows}, wide, mode, false);
      if (has_scale) g.tensor_scale(z.experts);
      g.integers("lhs_indices", DType::u16, {3, 4}, "bb", "fof", {"rhs_indices", "out"}, 5, 1);
      g.integers("rhs_indices", DType::i64, {3, 4}, "bb", "fof", {"lhs_indices", "out"},
                 z.experts - 1, 3);
      for (const char* index : {"lhs_indices", "rhs_indices"}) g->find(index)->optional = true;
      g.out("out", DType::bf16, {3, 4, z.m, n});
      g->check_ids_applies = true;
      finish(g);

      Builder o("grouped_qmm", label);
      o.values("x", DType::f32, {6, k}, "ob", "bbb", {"out", "w"});
      o.quantized("w", {3, rows}, wide, mode, false, DType::f16);
      o->find("w")->partners.push_back("offsets");
      if (has_scale) o.tensor_scale(3);
      o.integers("offsets", DType::i64, {3}, "b", "bbb", {}, 6, 2).dtypes = {DType::i32};
      o.out("out", DType::f32, {6, n});
      finish(o);

      if (!transpose) continue;
      Builder v("gather_qmv", label);
      v.values("x", DType::f32, {4, k}, "bb", "bbb", {"out", "w", "expert_indices"});
      v.quantized("w", {z.experts, rows}, wide, mode, false, DType::bf16);
      if (has_scale) v.tensor_scale(z.experts);
      v.integers("expert_indices", DType::i32, {4}, "b", "bbb", {}, z.experts - 1, 1);
      v.out("out", DType::f32, {4, n});
      v->check_ids_applies = true;
      finish(v);
    }
  }
}

}  // namespace

std::vector<Case> valid_cases(const Sizes& sizes) {
  std::vector<Case> cases;
  conversions(sizes, cases);
  dense_products(sizes, cases);
  quantized_products(sizes, cases);
  for (const Case& c : cases) poison_outputs(c);
  return cases;
}

}  // namespace moeblas::test
