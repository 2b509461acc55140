// Selection over a hand-made table: the first row that takes the problem, and why earlier ones do
// not.
#include <gtest/gtest.h>

#include "dispatch/fake_backend.h"

namespace moeblas::test {
namespace {

const QuantSpec kAffine4{Mode::affine, 4, 64}, kAffine3{Mode::affine, 3, 64};
const QuantSpec kMxfp4{Mode::mxfp4, 4, 32};

const std::span<const Row<MatmulProblem>> kTable(kRows);

std::string winner(const MatmulProblem& p, int capability = 0, const char* forced = nullptr,
                   std::string* explanation = nullptr) {
  return select(kTable, p, capability, forced, explanation).name.text;
}

TEST(Select, FirstRowThatTakesTheProblem) {
  EXPECT_EQ(winner(matmul(kAffine4)), "row_b");
  EXPECT_EQ(winner(matmul({})), "row_b");
  EXPECT_EQ(winner(matmul(kAffine3)), "row_d");
  EXPECT_EQ(winner(matmul(kMxfp4, DType::bf16, 4, 128, Grouping::gather)), "row_c");
  EXPECT_EQ(winner(matmul(kMxfp4, DType::bf16, 4, 128, Grouping::segments)), "row_d");
}

// The capability is an argument: winners of a device are pinned without it.
TEST(Select, CapabilityDecidesWithoutHardware) {
  EXPECT_EQ(winner(matmul(kAffine4), 89), "row_b");
  EXPECT_EQ(winner(matmul(kAffine4), 90), "row_a");
  EXPECT_EQ(winner(matmul(kAffine4), 119), "row_a");
  EXPECT_EQ(winner(matmul(kAffine4), 120), "row_b") << "instructions that only some devices have";
  EXPECT_EQ(winner(matmul(kMxfp4), 120), "row_d");
}

TEST(Select, RowsAreThoseOfTheWholeCall) {
  EXPECT_EQ(winner(matmul(kAffine4, DType::f32, 16)), "row_b");
  EXPECT_EQ(winner(matmul(kAffine4, DType::f32, 17)), "row_d");
  MatmulProblem p = matmul(kAffine4, DType::f32, 2);
  p.batch = {3, 3};
  EXPECT_EQ(winner(p), "row_d") << "18 rows in nine matrices";
}

TEST(Select, ExplainsEveryEarlierRow) {
  std::string text;
  winner(matmul(kAffine4, DType::f32, 4, 544), 0, nullptr, &text);
  EXPECT_EQ(text,
            "row_a: needs a device of 90\n"
            "row_b: K = 544 is not a multiple of 64\n"
            "row_c: affine4 weights are not among: mxfp4, mxfp8, nvfp4\n"
            "row_d: takes it\n");
  winner(matmul(kMxfp4, DType::f16, 40, 544, Grouping::gather), 90, nullptr, &text);
  EXPECT_EQ(text,
            "row_a: mxfp4 weights are not among: affine2, affine3, affine4, affine5, affine6, "
            "affine8\n"
            "row_b: mxfp4 weights are not among: dense, affine4\n"
            "row_c: float16 activations are not among: bfloat16\n"
            "row_d: takes it\n");
  winner(matmul(kMxfp4, DType::bf16, 4, 64, Grouping::offsets), 0, nullptr, &text);
  EXPECT_NE(text.find("row_c: grouping offsets is not among: gather\n"), std::string::npos) << text;
  winner(matmul(kAffine4, DType::f32, 17), 0, nullptr, &text);
  EXPECT_NE(text.find("row_b: 17 rows are outside 1..16\n"), std::string::npos) << text;
}

// What a problem needs beyond the plain product is turned away by rows that do not list it.
TEST(Select, Extras) {
  const auto reason_of_b = [](const MatmulProblem& p) {
    EXPECT_EQ(winner(p), "row_d");
    return std::string(why_not(kTable[1], p, 0).text());
  };
  MatmulProblem p = matmul(kAffine4);
  p.epilogue.alpha = 2;
  EXPECT_EQ(reason_of_b(p), "has no epilogue (alpha, c, bias)");
  p = matmul(kAffine4);
  p.out.dtype = DType::f16;
  EXPECT_EQ(reason_of_b(p), "writes x's dtype only");
  p = matmul(kAffine4);
  p.x.form = Form::on_the_fly;
  EXPECT_EQ(reason_of_b(p), "does not quantize x on the fly");
  p.x.form = Form::packed;
  EXPECT_EQ(reason_of_b(p), "does not take a packed x");
  p = matmul(kAffine4);
  p.w.form = Form::on_the_fly;
  EXPECT_EQ(reason_of_b(p), "does not quantize w on the fly");
  p = matmul(kAffine4);
  p.w.scale_layout = ScaleLayout::swizzled_128x4;
  EXPECT_EQ(reason_of_b(p), "does not take swizzled scales");
  p = matmul({});
  p.w.values.dtype = DType::bf16;
  EXPECT_EQ(reason_of_b(p), "takes a dense w of x's dtype only");
}

TEST(Select, ForcedRow) {
  std::string text;
  EXPECT_EQ(winner(matmul(kAffine4), 0, "row_d", &text), "row_d");
  EXPECT_EQ(text, "row_d: takes it\n") << "only the forced row is looked at";
  EXPECT_EQ(winner(matmul(kAffine4), 90, "row_b"), "row_b") << "though row_a is preferred";
}

TEST(Select, ForcedRowThatRejectsIsUnsupportedWithItsReason) {
  const auto [status, message] =
      thrown([] { winner(matmul(kAffine4, DType::f32, 4, 544), 0, "row_b"); });
  EXPECT_EQ(status, MOEBLAS_UNSUPPORTED);
  EXPECT_EQ(message.rfind("[some_op] ", 0), 0u) << message;
  EXPECT_NE(message.find("row_b: K = 544 is not a multiple of 64"), std::string::npos) << message;
  EXPECT_EQ(message.find("row_d"), std::string::npos) << message;
  EXPECT_EQ(thrown([] { winner(matmul(kAffine4), 0, "row_a"); }).status, MOEBLAS_UNSUPPORTED);
}

TEST(Select, NoRowTakesItListsEveryReason) {
  const auto [status, message] =
      thrown([] { select(kTable.first(3), matmul(kAffine3, DType::f16, 40), 0, nullptr); });
  EXPECT_EQ(status, MOEBLAS_UNSUPPORTED);
  EXPECT_EQ(message.rfind("[some_op] ", 0), 0u) << message;
  for (const char* reason : {"row_a: needs a device of 90", "row_b: affine3 weights are not among",
                             "row_c: affine3 weights are not among"}) {
    EXPECT_NE(message.find(reason), std::string::npos) << message;
  }
}

TEST(Select, ColumnsInWords) {
  EXPECT_EQ(describe(Formats::dense() | Formats::quantized()), "all");
  EXPECT_EQ(describe(Formats::dense() | Formats::of(Mode::nvfp4, 4)), "dense, nvfp4");
  EXPECT_EQ(describe(Formats::quantized()), "all quantized");
  EXPECT_EQ(describe(DTypes::floats()), "float32, float16, bfloat16");
  EXPECT_EQ(describe(kEvery), "none, gather, offsets, segments");
  EXPECT_EQ(describe(RowRange{}), "any");
  EXPECT_EQ(describe(RowRange{8, 64}), "8..64");
  EXPECT_EQ(describe(RowRange{8}), "8..");
}

// Formats are told apart by mode and by width.
TEST(Select, EveryFormatHasABitOfItsOwn) {
  const Formats all[] = {Formats::dense(),
                         Formats::of(Mode::affine, 2),
                         Formats::of(Mode::affine, 3),
                         Formats::of(Mode::affine, 4),
                         Formats::of(Mode::affine, 5),
                         Formats::of(Mode::affine, 6),
                         Formats::of(Mode::affine, 8),
                         Formats::of(Mode::mxfp4, 4),
                         Formats::of(Mode::mxfp8, 8),
                         Formats::of(Mode::nvfp4, 4)};
  uint32_t seen = 0;
  for (Formats f : all) {
    EXPECT_NE(f.mask, 0u);
    EXPECT_EQ(seen & f.mask, 0u);
    seen |= f.mask;
  }
  EXPECT_EQ(seen, (Formats::dense() | Formats::quantized()).mask);
}

}  // namespace
}  // namespace moeblas::test
