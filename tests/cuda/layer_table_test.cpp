// Which of CUDA's kernels runs an expert layer: asked of the table by capability, without a device.
#include "cuda/ffn_sm90/plan.h"
#include "cuda/qmv_sm90/plan.h"
#include "cuda/table.h"

#include <gtest/gtest.h>

#include "dispatch/select.h"
#include "nowhere.h"
#include "ops/moe.h"
#include "table_case.h"

namespace moeblas::test {
namespace {

// Whole layers: gates and ups split or taking turns, biases, gpt-oss's rows of scales.
dispatch::FfnProblem layer_nowhere(const Layer& l, const QuantSpec& spec, GluLayout layout,
                                   DType dtype, int64_t tokens, const Options& options = {},
                                   bool down_bias = true) {
  FfnLayer f;
  f.gate_up = weights_nowhere(spec, {l.experts, 2 * l.intermediate}, l.hidden, kBf16);
  f.down = weights_nowhere(spec, {l.experts, l.hidden}, l.intermediate, kBf16);
  f.glu_layout = layout;
  if (down_bias) f.down_bias = nowhere(kBf16, {l.experts, l.hidden}, 9 * 1024);
  return ops::moe_ffn(nowhere(dtype, {tokens, l.hidden}), f,
                      nowhere(DType::i32, {tokens, l.top_k}, 8 * 1024),
                      nowhere(DType::f32, {tokens, l.top_k}, 10 * 1024),
                      output_nowhere(dtype, {tokens, l.hidden}), options);
}
std::string winner(const dispatch::FfnProblem& p, int capability = 90) {
  return dispatch::select(cuda::backend().ffn, p, capability, nullptr).name.text;
}

TEST_F(CudaTable, WholeLayers) {
  for (const Layer& l : kLayers) {
    for (const QuantSpec& spec : {kAffine4, kAffine8, kMxfp4, kMxfp8, kNvfp4}) {
      if (l.hidden % spec.group_size != 0 || l.intermediate % spec.group_size != 0) continue;
      for (GluLayout layout : {GluLayout::gate_up, GluLayout::up_gate, GluLayout::interleaved}) {
        for (int64_t tokens : {1, 8, 16, 64, 512, 2048, 8192}) {
          const auto problem = layer_nowhere(l, spec, layout, kBf16, tokens);
          // Where decoding takes longer, or an expert's rows are columns in turn.
          const int64_t rows = tokens * l.top_k;
          const int64_t held = spec == kAffine4 ? 3 : 2;
          const int64_t least = is_held(l, false, spec) ? held : spec.bits == 4 ? 6 : 8;
          const bool many = rows >= least * l.experts || rows > cuda::kQmvMostRows ||
                            cuda::ffn_sm90_passes(problem) > 1;
          EXPECT_TRUE(!many || rows >= std::min<int64_t>(least, 4) * l.experts);
          // One launch for a token, unless it meets many codes under long rows of affine scales.
          const int64_t bytes = l.top_k * 3 * l.hidden * l.intermediate * spec.bits / 8;
          const bool two = spec.mode == Mode::affine && spec.bits == 8 && l.intermediate > 8192 &&
                           bytes > int64_t{128} << 20;
          const bool one = tokens == 1 && !two;
          EXPECT_EQ(winner(problem), one    ? "ffn_one_sm90"
                                     : many ? "ffn_qmm_sm90"
                                            : "ffn_sm90")
              << l.name << ", " << name(spec.mode) << spec.bits << ", " << tokens << " tokens";
        }
      }
    }
  }
}

// As much as their gates and ups gain by rows of x in registers, and what these have left, where
// that has no bias.
TEST_F(CudaTable, LayersOfFewRowsForAnExpert) {
  bool biases = true;
  const auto of = [&](const Layer& l, const QuantSpec& spec, int64_t tokens) {
    return winner(layer_nowhere(l, spec, GluLayout::gate_up, kBf16, tokens, {}, biases));
  };
  const Layer &mixtral = kLayers[0], &qwen = kLayers[1], &olmoe = kLayers[4];
  EXPECT_EQ(of(mixtral, kAffine4, 11), "ffn_sm90");
  EXPECT_EQ(of(mixtral, kAffine4, 12), "ffn_qmm_sm90");
  EXPECT_EQ(of(mixtral, kMxfp4, 7), "ffn_sm90");
  EXPECT_EQ(of(mixtral, kMxfp4, 8), "ffn_qmm_sm90");
  EXPECT_EQ(of(mixtral, kNvfp4, 16), "ffn_sm90");
  EXPECT_EQ(of(olmoe, kNvfp4, 40), "ffn_sm90");
  for (const bool with : {true, false}) {
    biases = with;
    const int64_t least_affine = with ? 24 : 4, least_mxfp4 = with ? 16 : 8;
    EXPECT_EQ(of(olmoe, kAffine4, least_affine - 1), "ffn_sm90");
    EXPECT_EQ(of(olmoe, kAffine4, least_affine), "ffn_qmm_sm90");
    EXPECT_EQ(of(olmoe, kMxfp4, least_mxfp4 - 1), "ffn_sm90");
    EXPECT_EQ(of(olmoe, kMxfp4, least_mxfp4), "ffn_qmm_sm90");
  }
  for (const QuantSpec& spec : {kAffine4, kMxfp4}) {
    for (const Layer& l : {mixtral, qwen}) {
      EXPECT_EQ(of(l, spec, 1), "ffn_one_sm90");
      EXPECT_EQ(of(l, spec, 2), "ffn_qmm_sm90");
    }
    // Of eight matrices lists would take longer.
    Layer half = qwen;
    half.top_k = 4;
    EXPECT_EQ(of(half, spec, 2), "ffn_sm90");
    EXPECT_EQ(of(half, spec, 3), "ffn_qmm_sm90");
  }
}

TEST_F(CudaTable, LayersThatTheCompositionTakes) {
  const Layer& l = kLayers[1];
  const auto of = [&](const QuantSpec& spec, DType dtype, int capability) {
    return winner(layer_nowhere(l, spec, GluLayout::gate_up, dtype, 2048), capability);
  };
  EXPECT_EQ(of(kAffine4, DType::f16, 90), "ffn_cuda");
  EXPECT_EQ(of({Mode::affine, 6, 64}, kBf16, 90), "ffn_cuda");
  EXPECT_EQ(of({Mode::affine, 4, 16}, kBf16, 90), "ffn_cuda");
  EXPECT_EQ(of(kAffine4, DType::f32, 90), "ffn_simt");
  for (int capability : {80, 89, 100, 120}) EXPECT_EQ(of(kMxfp4, kBf16, capability), "ffn_cuda");
}

TEST_F(CudaTable, DeterministicLayersHaveOneKernelForAnyNumberOfTokens) {
  Options options;
  options.deterministic = true;
  for (const QuantSpec& spec : {kAffine4, kAffine8, kMxfp4, kMxfp8, kNvfp4}) {
    for (int64_t tokens : {1, 2, 16, 64, 65, 600, 5000}) {
      EXPECT_EQ(winner(layer_nowhere(kLayers[1], spec, GluLayout::gate_up, kBf16, tokens, options)),
                "ffn_qmm_sm90")
          << tokens << " tokens";
    }
  }
}

}  // namespace
}  // namespace moeblas::test
