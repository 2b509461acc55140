// A valid call of every operation, or several: conversions, dense and quantized products.
#include "arguments/builder.h"

namespace moeblas::test {
namespace {

void conversions(const Sizes& z, std::vector<Case>& cases) {
  for (const auto& [name, mode] : kModeCases) {
    Builder b("quantize", name);
    b.values("w", DType::f32, {3, z.n, z.k}, "oob", "oob", {"w_q"}).dtypes = kFloats;
    b.quantized(kPacked, {3, z.n}, z.k, {.mode = mode, .output = true}).in_infer = false;
    if (mode == MOEBLAS_NVFP4) b.tensor_scale(kPacked, 3).in_infer = false;
    cases.push_back(*b);

    Builder d("dequantize", name);
    d.quantized(kPacked, {3, z.n}, z.k, {.mode = mode, .dtype = DType::f16});
    if (mode == MOEBLAS_NVFP4) d.tensor_scale(kPacked, 3);
    d.out("out", DType::f32, {3, z.n, z.k}).dtypes = kFloats;
    d->dtype = to_dlpack(DType::f32);
    cases.push_back(*d);
    // The swizzled layout, which only the block formats have; wide enough for them to differ in it.
    if (mode == MOEBLAS_AFFINE) continue;
    Builder s("quantize", std::string(name) + "_swizzled");
    s.values("w", DType::bf16, {z.n, 2 * z.k}, "ob", "oob", {"w_q", "scale_layout"}).dtypes =
        kFloats;
    const Storage swizzled{.mode = mode, .as_bytes = true, .swizzled = true, .output = true};
    s.quantized(kPacked, {z.n}, 2 * z.k, swizzled).in_infer = false;
    cases.push_back(*s);
  }
  for (const auto& [name, mode] : kModeCases) {
    const bool block = mode != MOEBLAS_AFFINE;
    Builder b("quantize_dual", name);
    b.values("w", DType::f16, {2, 64, z.k}, "obb", "oob",
             {"rows.w_q", "rows.scales", "columns.w_q", "columns.scales"})
        .dtypes = kFloats;
    const Storage storage{.mode = mode, .swizzled = block, .output = true};
    b.quantized(kRows, {2, 64}, z.k, storage).partners = {"columns"};
    b.quantized(kColumns, {2, z.k}, 64, storage).takes_tensor_scale = false;
    b->quantized.back().partners = {"columns"};
    b->quantized.back().format_in_infer = false;
    for (QuantizedArgument& q : b->quantized) q.in_infer = false;
    if (mode == MOEBLAS_NVFP4) b.tensor_scale(kRows, 2).in_infer = false;
    if (!block) b->dtype = to_dlpack(storage.dtype);
    cases.push_back(*b);
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
    g.ids("lhs_indices", DType::i32, {3, 4}, "bb", "fof", {"rhs_indices", "out"}, 5, 1);
    g.ids("rhs_indices", DType::u8, {3, 4}, "bb", "fof", {"lhs_indices", "out"}, z.experts - 1, 3);
    for (const char* index : {"lhs_indices", "rhs_indices"}) g[index].optional = true;
    g.out("out", dtype, {3, 4, z.m, z.n});
    cases.push_back(*g);
  }
  // Without rhs, b's own batch takes its place.
  Builder one("gather_mm", "lhs_only");
  one.values("a", DType::f32, {6, z.m, z.k}, "fob", "ffb", {"b", "out"});
  one.values("b", DType::f32, {3, z.k, z.n}, "bbo", "fob", {"a", "lhs_indices", "out"});
  one.ids("lhs_indices", DType::i64, {3}, "b", "fof", {"b", "out"}, 5, 2);
  one["lhs_indices"].optional = true;
  one.out("out", DType::f32, {3, z.m, z.n});
  cases.push_back(*one);

  Builder s("segmented_mm", "");
  s.values("a", DType::f32, {z.m, z.k}, "ob", "bbb", {"b", "out"});
  s.values("b", DType::f32, {z.k, z.n}, "bo", "bbb", {"a", "out"});
  s.ids("segments", DType::i64, {3, 2}, "ob", "oob", {"out"}, z.k, 17);
  s.out("out", DType::f32, {3, z.m, z.n});
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
      q.quantized(kWeights, {rows}, wide, {.mode = mode});
      if (has_scale) q.tensor_scale(kWeights, 1);
      q.out("out", DType::f32, {z.m, n});
      finish(q);

      Builder batched("quantized_matmul", label + "_batched");
      batched.values("x", DType::f16, {3, z.m, k}, "bob", "bob", {"out", "w"});
      batched.quantized(kWeights, {3, rows}, wide,
                        {.mode = mode, .dtype = DType::bf16, .as_bytes = true});
      if (has_scale) batched.tensor_scale(kWeights, 3);
      batched.out("out", DType::f16, {3, z.m, n});
      finish(batched);

      Builder g("gather_qmm", label);
      g.values("x", DType::bf16, {6, z.m, k}, "fob", "fob", {"out", "w"});
      g["x"].more_dims = Bound::free;
      g.quantized(kWeights, {z.experts, rows}, wide, {.mode = mode});
      if (has_scale) g.tensor_scale(kWeights, z.experts);
      g.ids("lhs_indices", DType::u16, {3, 4}, "bb", "fof", {"rhs_indices", "out"}, 5, 1);
      g.ids("rhs_indices", DType::i64, {3, 4}, "bb", "fof", {"lhs_indices", "out"}, z.experts - 1,
            3);
      for (const char* index : {"lhs_indices", "rhs_indices"}) g[index].optional = true;
      g.out("out", DType::bf16, {3, 4, z.m, n});
      finish(g);

      Builder o("grouped_qmm", label);
      o.values("x", DType::f32, {6, k}, "ob", "bbb", {"out", "w"});
      o.quantized(kWeights, {3, rows}, wide, {.mode = mode, .dtype = DType::f16});
      o["w"].partners.push_back("offsets");
      if (has_scale) o.tensor_scale(kWeights, 3);
      o.integers("offsets", DType::i64, {3}, "b", "bbb", {}, 6, 2).dtypes = {DType::i32};
      o.out("out", DType::f32, {6, n});
      finish(o);

      if (!transpose) continue;
      Builder v("gather_qmv", label);
      v.values("x", DType::f32, {4, k}, "bb", "bbb", {"out", "w", "expert_indices"});
      v.quantized(kWeights, {z.experts, rows}, wide, {.mode = mode, .dtype = DType::bf16});
      if (has_scale) v.tensor_scale(kWeights, z.experts);
      v.ids("expert_indices", DType::i32, {4}, "b", "bbb", {}, z.experts - 1, 1);
      v.out("out", DType::f32, {4, n});
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
  block_products(sizes, cases);
  expert_layers(sizes, cases);
  for (const Case& c : cases) poison_outputs(c);
  return cases;
}

}  // namespace moeblas::test
