// The traps that implementations of these products have fallen into, one test each.
#include <gtest/gtest.h>

#include "support/cases.h"
#include "support/codec.h"

namespace moeblas::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr QuantSpec kOneOfEach[] = {kAffine4, kMxfp4, kMxfp8, kNvfp4};

// ---- Formats and sizes ------------------------------------------------------------------------

TEST(Traps, GroupSizeOfAnotherModeIsRefused) {
  // mxfp4 with groups of 16 would decode as nvfp4.
  for (Op op : {Op::quantized_matmul, Op::gather_qmm, Op::gather_qmv, Op::grouped_qmm,
                Op::dequantize, Op::quantize}) {
    Case c = make_case(op, 3);
    const Operands o = [&] {
      for (uint64_t seed = 4; c.out.shape.numel() * c.x.shape.numel() == 0 && is_product(op);) {
        c = make_case(op, seed++);
      }
      return build(c, Side::left, kPoison);
    }();
    Operands wrong = build(c, Side::left, kPoison);
    for (const QuantSpec spec : {QuantSpec{Mode::mxfp4, 4, 16}, QuantSpec{Mode::nvfp4, 4, 32},
                                 QuantSpec{Mode::mxfp8, 8, 16}, QuantSpec{Mode::mxfp4, 8, 32},
                                 QuantSpec{Mode::affine, 7, 64}, QuantSpec{Mode::affine, 4, 8}}) {
      wrong.spec = spec;
      try {
        call(c, wrong, {});
        ADD_FAILURE() << name(op) << " took " << name(spec.mode) << " with bits " << spec.bits
                      << " and groups of " << spec.group_size;
      } catch (const Error& e) {
        EXPECT_EQ(e.status(), MOEBLAS_INVALID_ARGUMENT);
        EXPECT_NE(std::string(e.what()).find("group_size " + std::to_string(spec.group_size)),
                  std::string::npos)
            << e.what();
      }
    }
  }
}

TEST(Traps, KIsNotAMultipleOf64) {
  for (int64_t k : {32, 96, 160, 224}) {
    for (int bits : {2, 3, 4, 5, 6, 8}) {
      expect_right(expert_case({Mode::affine, bits, 32}, DType::bf16, 3, 2, 4, 24, k));
    }
    expect_right(expert_case(kMxfp4, DType::f16, 3, 2, 4, 24, k));
  }
}

TEST(Traps, Nvfp4WithHalfOfA32Block) {
  for (int64_t k : {16, 48, 80, 144, 272}) {
    for (int64_t m : {1, 5, 17}) expect_right(matmul_case(kNvfp4, DType::f32, {m, 33, k}));
    expect_right(matmul_case(kNvfp4, DType::bf16, {3, k, 21}, false));
  }
}

TEST(Traps, RaggedN) {
  for (int64_t n : {1, 2, 3, 4, 5, 6, 7, 9, 15, 17, 67, 127, 129, 544, 768, 2880}) {
    for (const QuantSpec& format : kOneOfEach) {
      expect_right(matmul_case(format, DType::f32, {1, n, 64}));
      expect_right(expert_case(format, DType::bf16, 2, 2, 3, n, 64));
    }
    expect_right(dense_case(Op::gather_mm, DType::f16, 3, {2, n, 24}, 4));
  }
}

TEST(Traps, RowsBetweenDecodeAndPrefill) {
  for (int64_t m = 2; m <= 16; ++m) {
    for (const QuantSpec& format : kOneOfEach) {
      expect_right(matmul_case(format, DType::f16, {m, 19, 128}));
      expect_right(matmul_case(format, DType::bf16, {m, 128, 19}, false));
    }
  }
}

TEST(Traps, SixteenBitActivationsAreSummedInFloat32) {
  // Ones: bfloat16 stops at 256, float16 at 2048, each of 16 lanes alone too.
  constexpr int64_t kOnes = 61440;  // which every dtype has
  for (DType dtype : kFloats) {
    Case c = matmul_case({Mode::affine, 4, 64}, dtype, {2, 3, kOnes});
    Operands o = build(c, Side::left, kPoison);
    for (int64_t i = 0; i < o.x.numel(); ++i) o.x.set(i, 1);
    for (int64_t i = 0; i < o.codes.numel(); ++i)
      store_index(o.codes.byte(i), DType::u32, 0, 0x11111111);
    for (int64_t i = 0; i < o.scales.numel(); ++i) {
      o.scales.set(i, 1);
      o.biases.set(i, 0);
    }
    call(c, o, {});
    for (int64_t i = 0; i < o.out.numel(); ++i) EXPECT_EQ(o.out.get(i), kOnes) << name(dtype);
  }
}

TEST(Traps, ScalesBeyondTheRangeOfFloat16Activations) {
  for (const QuantSpec& format : {kMxfp4, kMxfp8}) {
    for (int exponent : {-24, -30, 15, 20}) {
      for (int64_t m : {1, 9}) {
        Case c = matmul_case(format, DType::f16, {m, 40, 96});
        c.values = Values::ends;
        c.scale_exponent = exponent;
        c.x_exponent = exponent < 0 ? 13 : -16;
        expect_right(c);
      }
    }
  }
}

TEST(Traps, EndsOfTheScaleRange) {
  // E8M0 bytes at which shifting exponents goes wrong: subnormal scales and the largest ones.
  for (const QuantSpec& format : {kMxfp4, kMxfp8}) {
    for (int exponent : {-124, -120, 100, 110}) {
      Case c = matmul_case(format, DType::f32, {2, 17, 64});
      c.values = Values::ends;
      c.scale_exponent = exponent;
      c.x_exponent = -exponent;
      expect_right(c);
    }
  }
}

// ---- Strides ----------------------------------------------------------------------------------

// One half of a fused tensor (E, 2I, K): gate or up, without a copy.
void halve(Layout& t) { t.strides[0] *= 2; }

TEST(Traps, ExpertsAsRowSlicesOfAFusedTensor) {
  for (const QuantSpec& format : kOneOfEach) {
    for (int64_t tokens : {1, 13}) {
      Case c = expert_case(format, DType::bf16, tokens, 2, 5, 24, 128);
      halve(c.codes);
      halve(c.scales);
      if (c.biases.present) halve(c.biases);
      c.sorted = true;
      for (Ids ids : {Ids::sorted, Ids::uniform}) {
        c.ids = ids;
        expect_right(c);
      }
      Case g = grouped_case(format, DType::bf16, 17, 5, 24, 128);
      halve(g.codes);
      halve(g.scales);
      if (g.biases.present) halve(g.biases);
      expect_right(g);
    }
  }
}

TEST(Traps, GateAndUpHalvesAreTheFusedProduct) {
  Case c = expert_case(kAffine4, DType::f32, 6, 2, 4, 40, 128);
  c.ids = Ids::mixed;
  const Operands fused = build(c, Side::right, kPoison);
  call(c, fused, {});
  for (int half = 0; half < 2; ++half) {
    const auto part = [&](TensorView view) {
      view.data = static_cast<char*>(view.data) +
                  half * 20 * view.strides[1] * static_cast<int64_t>(size_of(view.dtype));
      view.shape[1] = 20;
      return view;
    };
    Quantized q = fused.quantized();
    q.codes = part(q.codes);
    q.scales = part(q.scales);
    q.biases = part(q.biases);
    const Operand out(plain(DType::f32, {6, 2, 1, 20}), Side::right, kPoison);
    gather_qmm(fused.x.view, q, {}, fused.rhs.view, true, false, out.view);
    for (int64_t i = 0; i < out.numel(); ++i) {
      EXPECT_EQ(out.get(i), fused.out.get(i / 20 * 40 + half * 20 + i % 20));
    }
  }
}

TEST(Traps, ExpertsAsABroadcastView) {
  for (const QuantSpec& format : kOneOfEach) {
    Case c = expert_case(format, DType::f16, 7, 3, 6, 24, 128);
    c.codes.strides[0] = 0;
    expect_right(c);  // with scales of their own
    c.scales.strides[0] = 0;
    if (c.biases.present) c.biases.strides[0] = 0;
    expect_right(c);
  }
}

TEST(Traps, IndexArraysOfStrideZero) {
  for (Ids ids : {Ids::uniform, Ids::none}) {
    for (bool sorted : {false, true}) {
      Case c = expert_case(kAffine4, DType::bf16, 9, 4, 5, 20, 64);
      c.ids = ids;
      c.sorted = sorted;
      c.rhs.strides = {0, 0};
      expect_right(c);
      c.rhs.strides = {1, 0};
      expect_right(c);
    }
  }
}

TEST(Traps, OneRowOfXForEveryPairSorted) {
  for (bool sorted : {false, true}) {
    Case c = expert_case(kMxfp4, DType::f32, 12, 2, 5, 20, 64);
    c.ids = Ids::sorted;
    c.sorted = sorted;
    c.x.strides = {0, 0, 0, 1};
    expect_right(c);
    c.x.shape[0] = 1;  // and by broadcasting instead
    expect_right(c);
  }
}

TEST(Traps, SortedFlagOnUnsortedIds) {
  for (Ids ids : {Ids::uniform, Ids::mixed}) {
    Case c = expert_case(kAffine4, DType::f16, 33, 2, 6, 17, 64);
    c.ids = ids;
    c.sorted = true;
    expect_right(c);
    Case d = dense_case(Op::gather_mm, DType::f32, 21, {2, 9, 33}, 5);
    d.ids = ids;
    d.sorted = true;
    expect_right(d);
  }
}

TEST(Traps, WeightsWithMoreBatchDimensionsThanX) {
  for (int64_t m : {1, 3}) {
    Case c = matmul_case(kAffine4, DType::f32, {m, 20, 64});
    c.x = plain(DType::f32, {5, m, 64});
    set_weights(c, kAffine4, {1, 1, 20, 64});
    c.out = plain(DType::f32, {1, 5, m, 20});
    expect_right(c);
  }
}

// ---- Routing ----------------------------------------------------------------------------------

TEST(Traps, EmptyExperts) {
  for (const QuantSpec& format : kOneOfEach) {
    Case c = grouped_case(format, DType::bf16, 5, 32, 24, 64);
    for (Ids ids : {Ids::uniform, Ids::one, Ids::none, Ids::mixed}) {
      c.ids = ids;
      expect_right(c);
    }
    expect_right(expert_case(format, DType::bf16, 3, 2, 64, 24, 64));
  }
}

TEST(Traps, AllTokensOnOneExpert) {
  for (const QuantSpec& format : kOneOfEach) {
    for (int64_t tokens : {1, 2, 16, 65}) {
      Case c = expert_case(format, DType::f32, tokens, 1, 8, 24, 64);
      c.ids = Ids::one;
      expect_right(c);
    }
  }
}

TEST(Traps, ZeroTokens) {
  for (const QuantSpec& format : kOneOfEach) {
    expect_right(expert_case(format, DType::f32, 0, 2, 8, 24, 64));
    expect_right(grouped_case(format, DType::f32, 0, 8, 24, 64));
  }
}

TEST(Traps, EveryIdOutOfRange) {
  // -1, E, stale and huge ids in every integer dtype; nothing may be read for them.
  for (DType dtype : {DType::i8, DType::i16, DType::i32, DType::i64, DType::u8, DType::u16,
                      DType::u32, DType::u64}) {
    for (Ids ids : {Ids::none, Ids::mixed}) {
      Case c = expert_case(kNvfp4, DType::f16, 9, 4, 5, 24, 64);
      c.ids = ids;
      c.rhs.dtype = dtype;
      expect_right(c);
    }
  }
}

TEST(Traps, MorePairsThanAGridDimension) {
  Case c = expert_case({Mode::affine, 4, 32}, DType::bf16, 32775, 2, 3, 5, 32);
  expect_right(c);
  Case v;
  v.op = Op::gather_qmv;
  v.x = plain(DType::f32, {65537, 32});
  set_weights(v, kMxfp4, {3, 3, 32});
  v.rhs = plain(DType::u8, {65537});
  v.out = plain(DType::f32, {65537, 3});
  expect_right(v);
}

}  // namespace
}  // namespace moeblas::test
