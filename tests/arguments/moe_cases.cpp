// Valid calls of the block-quantized products, of routing and of expert layers.
#include "arguments/builder.h"

namespace moeblas::test {
namespace {

constexpr QuantizedNames kX{"x", "x", "x_scales", "x_biases", "tensor_scale_x", "x."};
constexpr QuantizedNames kW{"w", "w", "scales", "biases", "tensor_scale_w", "w."};
constexpr QuantizedNames kGateUp{
    "gate_up", "gate_up", "gate_up.scales", "gate_up.biases", "gate_up.tensor_scale", "gate_up."};
constexpr QuantizedNames kGate{"gate", "gate", "gate.scales", "gate.biases", "gate.tensor_scale",
                               "gate."};
constexpr QuantizedNames kUp{"up", "up", "up.scales", "up.biases", "up.tensor_scale", "up."};
constexpr QuantizedNames kDown{"down", "down", "down.scales", "down.biases", "down.tensor_scale",
                               "down."};

// A block-quantized product; both operands have one format, and a message may name either.
class BlockProduct : public Builder {
 public:
  BlockProduct(const char* operation, const std::string& label, int32_t mode)
      : Builder(operation, label), mode_(mode) {}

  void packed(const QuantizedNames& names, std::vector<int64_t> lead, int64_t k,
              bool swizzled = false, bool as_bytes = false) {
    block(quantized(names, lead, k, {.mode = mode_, .as_bytes = as_bytes, .swizzled = swizzled}));
    // Padded scales go with other numbers of rows, too.
    std::string dims(lead.size() + 1, 'b');
    if (swizzled) dims[lead.size() - 1] = 'o';
    rebind(names.codes, dims.c_str(), "bbb", {names.scales, "out", "c", "bias"});
  }
  // Quantized on the fly.
  void floats(const QuantizedNames& names, DType dtype, std::vector<int64_t> lead, int64_t k,
              const char* dims, const char* ndims) {
    block(quantized(names, std::move(lead), k, {.mode = mode_, .floats = true, .dtype = dtype}));
    Tensor& t = rebind(names.codes, dims, ndims, {names.scales, "x", "w", "out", "c", "bias"});
    (&names == &kX ? t.infer_dtypes : t.dtypes) = kFloats;
  }
  // Both or neither: one alone is an error.
  void tensor_scales(int64_t matrices) {
    if (mode_ != MOEBLAS_NVFP4) return;
    for (const QuantizedNames* names : {&kX, &kW}) tensor_scale(*names, matrices).optional = false;
  }
  void host_tensor_scales() {
    if (mode_ != MOEBLAS_NVFP4) return;
    for (QuantizedArgument& q : (**this).quantized) q.host_tensor_scale = 0.5f;
  }
  void epilogue(float alpha, float beta) {
    Longer<moeblas_epilogue> e{MOEBLAS_EPILOGUE_INIT};
    e.known.alpha = alpha;
    e.known.beta = beta;
    (**this).epilogue = e;
  }
  void addend(DType dtype, std::vector<int64_t> shape, const char* dims, const char* ndims) {
    Tensor& t = values("c", dtype, std::move(shape), dims, ndims, {"out"});
    t.dtypes = kFloats;
    t.in_infer = false;
  }
  void bias(DType dtype, std::vector<int64_t> shape, const char* dims, const char* ndims) {
    Tensor& t = values("bias", dtype, std::move(shape), dims, ndims, {"out"});
    t.dtypes = kFloats;
    t.in_infer = false;
    t.optional = true;
  }
  void indices(const Sizes& z) {
    ids("lhs_indices", DType::u16, {3, 4}, "bb", "fof", {"rhs_indices", "out"}, 5, 1);
    ids("rhs_indices", DType::i64, {3, 4}, "bb", "fof", {"lhs_indices", "out"}, z.experts - 1, 3);
    for (const char* index : {"lhs_indices", "rhs_indices"}) (*this)[index].optional = true;
  }
  // Where x is packed, any float dtype will do.
  void packed_out(DType dtype, std::vector<int64_t> shape) {
    out("out", dtype, std::move(shape)).dtypes = kFloats;
    (**this).dtype = to_dlpack(dtype);
  }

 private:
  static void block(QuantizedArgument& q) {
    q.partners = {"x", "w"};
    q.both_tensor_scales = true;
  }
  int32_t mode_;
};

void batched_products(const std::string& name, int32_t mode, const Sizes& z,
                      std::vector<Case>& cases) {
  BlockProduct q("qqmm", name, mode);
  q.floats(kX, DType::f32, {z.m}, z.k, "ob", "bob");
  q.packed(kW, {z.n}, z.k);
  q.tensor_scales(1);
  q.epilogue(2, 1);
  q.addend(DType::f16, {z.m, z.n}, "oo", "fof");
  q.bias(DType::f32, {z.n}, "o", "foo");
  q.out("out", DType::f32, {z.m, z.n});
  cases.push_back(*q);

  BlockProduct p("qqmm", name + "_packed", mode);
  p.packed(kX, {3, z.m}, z.k, /*swizzled=*/true, /*as_bytes=*/true);
  p.packed(kW, {3, z.n}, z.k, /*swizzled=*/true);
  p.host_tensor_scales();
  p.epilogue(1, 0);
  p.bias(DType::bf16, {3, z.n}, "oo", "foo");
  p.packed_out(DType::bf16, {3, z.m, z.n});
  cases.push_back(*p);

  BlockProduct f("qqmm", name + "_floats", mode);
  f.floats(kX, DType::f16, {z.m}, z.k, "ob", "bob");
  f.floats(kW, DType::f32, {z.n}, z.k, "ob", "bbb");
  f.host_tensor_scales();
  f.out("out", DType::f16, {z.m, z.n});
  cases.push_back(*f);
}

void gathered_products(const std::string& name, int32_t mode, const Sizes& z,
                       std::vector<Case>& cases) {
  BlockProduct g("gather_qqmm", name, mode);
  g.floats(kX, DType::bf16, {6, z.m}, z.k, "fob", "ffb");
  g.packed(kW, {z.experts, z.n}, z.k, /*swizzled=*/true);
  g.tensor_scales(z.experts);
  g.indices(z);
  g.epilogue(0.5f, -1);
  g.addend(DType::bf16, {3, 4, z.m, z.n}, "oooo", "fof");
  g.bias(DType::f16, {z.experts, z.n}, "oo", "foo");
  g.out("out", DType::bf16, {3, 4, z.m, z.n});
  cases.push_back(*g);

  BlockProduct p("gather_qqmm", name + "_packed", mode);
  p.packed(kX, {6, z.m}, z.k, /*swizzled=*/false, /*as_bytes=*/true);
  p.floats(kW, DType::f16, {z.experts, z.n}, z.k, "fob", "ffb");
  p.indices(z);
  p.packed_out(DType::f16, {3, 4, z.m, z.n});
  cases.push_back(*p);
}

void grouped_products(const std::string& name, int32_t mode, const Sizes& z,
                      std::vector<Case>& cases) {
  for (bool packed : {false, true}) {
    BlockProduct o("grouped_qqmm", name + (packed ? "_packed" : ""), mode);
    if (packed) {
      o.packed(kX, {6}, z.k);
    } else {
      o.floats(kX, DType::f32, {6}, z.k, "ob", "bbb");
    }
    o.packed(kW, {3, z.n}, z.k, /*swizzled=*/!packed, /*as_bytes=*/packed);
    o["w"].partners.push_back("offsets");
    o.tensor_scales(3);
    o.integers("offsets", DType::i64, {3}, "b", "bbb", {}, 6, 2).dtypes = {DType::i32};
    o.epilogue(1, 0);
    o.bias(DType::f32, {3, z.n}, "oo", "foo");
    if (packed) {
      o.packed_out(DType::bf16, {6, z.n});
    } else {
      o.out("out", DType::f32, {6, z.n});
    }
    cases.push_back(*o);
  }
}

void routing(const Sizes& z, std::vector<Case>& cases) {
  Builder r("moe_route", "");
  r.values("logits", DType::bf16, {z.m, 8}, "ob", "bbb", {"ids", "bias"}).dtypes = kFloats;
  r.values("bias", DType::f32, {8}, "b", "bbb", {}).optional = true;
  r.out("ids", DType::i32, {z.m, 2});
  r.out("weights", DType::f32, {z.m, 2});
  r->router = Longer<moeblas_router>{MOEBLAS_ROUTER_INIT};
  r->router->known.top_k = 2;
  r->router->known.n_group = 4;
  r->router->known.topk_group = 2;
  cases.push_back(*r);

  Builder p("moe_permute", "");
  p.values("x", DType::bf16, {z.m, z.k}, "bo", "bbb", {"ids", "rows"}).infer_dtypes = kFloats;
  p.ids("ids", DType::i64, {z.m, 2}, "bo", "bbb", {"rows"}, 5, 1);
  p.integers("expert_map", DType::i8, {6}, "f", "bbb", {}, z.experts - 1, 1).optional = true;
  p.out("rows", DType::bf16, {z.m * 2, z.k});
  p.out("offsets", DType::i32, {z.experts});
  p.out("inverse", DType::i32, {z.m, 2});
  p->experts = z.experts;
  p->bad_ids = {-2, 6, 127};  // -1 is nobody's, which is no error
  cases.push_back(*p);

  Builder u("moe_unpermute", "");
  u.values("y", DType::f16, {z.m * 2, z.k}, "fo", "bbb", {"out"}).infer_dtypes = kFloats;
  u.integers("inverse", DType::i32, {z.m, 2}, "bb", "bbb", {"weights", "out"}, z.m * 2 - 1, 3);
  u.values("weights", DType::f32, {z.m, 2}, "bb", "bbb", {}).optional = true;
  u.out("out", DType::f16, {z.m, z.k});
  cases.push_back(*u);
}

struct Stack {
  const QuantizedNames* names;
  Storage storage;
};

// A layer whose first products are `first`: gate_up, or gate and up.
void layer(const char* label, DType dtype, const std::vector<Stack>& first, const Storage& down,
           const Sizes& z, std::vector<Case>& cases) {
  constexpr int64_t kIntermediate = 96;
  const bool separate = first.size() == 2;
  Builder b("moe_ffn", label);
  b->layer = Longer<moeblas_ffn>{MOEBLAS_FFN_INIT};
  b.values("x", dtype, {z.m, z.k}, "bb", "bbb", {"ids", "down", "out"}).infer_dtypes = kFloats;
  b.ids("ids", DType::i64, {z.m, 2}, "bb", "bbb", {"weights"}, 5, 1);
  b->bad_ids = {-2, 6, 127};
  b.values("weights", DType::f32, {z.m, 2}, "bb", "bbb", {});
  b.integers("expert_map", DType::i16, {6}, "f", "bbb", {}, z.experts - 1, 1).optional = true;
  const auto stack = [&](const QuantizedNames& names, int64_t n, int64_t k, const Storage& s) {
    b.quantized(names, {z.experts, n}, k, s);
    if (s.floats) b[names.codes].dtypes = kFloats;
    if (s.mode == MOEBLAS_NVFP4) b.tensor_scale(names, z.experts);
  };
  const auto bias = [&](const std::string& name, int64_t n) {
    Tensor& t = b.values((name + "_bias").c_str(), DType::bf16, {z.experts, n}, "bb", "bbb", {});
    t.dtypes = kFloats;
    t.optional = true;
  };
  for (const Stack& s : first) {
    const int64_t n = separate ? kIntermediate : 2 * kIntermediate;
    stack(*s.names, n, z.k, s.storage);
    bias(s.names->argument, n);
  }
  stack(kDown, z.k, kIntermediate, down);
  bias("down", z.k);
  // The number of experts and the intermediate size are what down says they are.
  b["down"].partners.insert(b["down"].partners.end(), {first[0].names->codes, "x"});
  b.out("out", dtype, {z.m, z.k});
  cases.push_back(*b);
}

}  // namespace

void block_products(const Sizes& sizes, std::vector<Case>& cases) {
  for (const auto& [name, mode] : kModeCases) {
    if (mode == MOEBLAS_AFFINE) continue;
    batched_products(name, mode, sizes, cases);
    gathered_products(name, mode, sizes, cases);
    grouped_products(name, mode, sizes, cases);
  }
}

void expert_layers(const Sizes& sizes, std::vector<Case>& cases) {
  routing(sizes, cases);
  const Storage affine{.mode = MOEBLAS_AFFINE, .dtype = DType::f16}, mxfp4{.mode = MOEBLAS_MXFP4},
      mxfp8{.mode = MOEBLAS_MXFP8, .as_bytes = true}, nvfp4{.mode = MOEBLAS_NVFP4},
      dense{.mode = MOEBLAS_DENSE, .floats = true, .dtype = DType::f16};
  layer("affine_nvfp4", DType::f32, {{&kGateUp, affine}}, nvfp4, sizes, cases);
  layer("nvfp4_dense", DType::f16, {{&kGateUp, nvfp4}}, dense, sizes, cases);
  layer("dense", DType::f16, {{&kGateUp, dense}}, dense, sizes, cases);
  layer("separate", DType::bf16, {{&kGate, mxfp4}, {&kUp, dense}}, mxfp8, sizes, cases);
  layer("separate_quantized", DType::f32, {{&kGate, nvfp4}, {&kUp, affine}}, affine, sizes, cases);
}

}  // namespace moeblas::test
